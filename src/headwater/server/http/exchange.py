"""One request that a task answers, and the sending of its response.

The response is sent whole, in pieces as fast as the client reads them, or as a stream that writes when it has
something. Its connection decides what comes before and after it. Belongs to the loop's thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import perf_counter
from typing import TYPE_CHECKING

from headwater.server.http.message import BodyStream, Request, Response, head, whole
from headwater.server.http.parsing import Body

if TYPE_CHECKING:
    from headwater.server.http.protocol import ServerConnection


class Exchange:
    """A request and its response. A sink for streams."""

    __slots__ = (
        *("_app", "_begun_s", "_chunked", "_connection", "_head_only", "_request", "_sent", "_status", "_task"),
        *("_transport", "body", "stream"),
    )

    def __init__(self, connection: ServerConnection, request: Request, body: Body) -> None:
        self.body = body
        self.stream: BodyStream | None = None  # the response, while it is sent as a stream
        self._connection = connection
        self._app = connection.app
        self._transport = connection.transport
        self._request: Request | None = request  # None once its end is recorded
        self._head_only = request.method == "HEAD"
        self._chunked = False
        self._status = 0
        self._sent = 0
        self._begun_s = perf_counter()
        request.receive = body.receive
        self._task = connection.loop.create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        # A client that sends requests but reads no responses must not fill the memory.
        await self._connection.wait_for_room()
        response = await self._app.answer(request)
        self._status = response.status
        if response.waits and not self._connection.begin_endless():
            await _discard(response)
            self._transport.close()
            return
        if self._transport.is_closing():
            await _discard(response)
            return
        if isinstance(response.body, bytes):
            self._send_whole(request, response)
        elif self._head_only:
            await _discard(response)
            self._transport.write(self._begin(request, response))
            self._connection.answered(self)
        elif isinstance(response.body, AsyncIterator):
            await self._send_pieces(request, response, response.body)
        else:
            self._send_stream(request, response, response.body)

    def _send_whole(self, request: Request, response: Response) -> None:
        data = whole(response)
        if request.http10 and response.status == 204:  # which has no length
            self._connection.keep_alive = False
        closes = self._connection.closes_after(self.body)
        begin = head(response, length=len(data), close=closes, keep_alive=request.http10)
        self._transport.write(begin if self._head_only else begin + data)
        self._sent = 0 if self._head_only else len(data)
        self._connection.answered(self)

    async def _send_pieces(self, request: Request, response: Response, pieces: AsyncIterator[bytes]) -> None:
        self._transport.write(self._begin(request, response))
        try:
            async for piece in pieces:
                room = self.write(piece)
                del piece  # which the transport has
                if not room:
                    await self._connection.wait_for_room()
                if self._transport.is_closing():
                    return
        except Exception as error:  # noqa: BLE001  # whatever it was, the client must not take this for all
            self._app.broke_off(error)
            self._connection.abort()  # without the end that was promised
            return
        finally:
            await _close(pieces)
        self._write_end()
        self._connection.answered(self)

    def _send_stream(self, request: Request, response: Response, stream: BodyStream) -> None:
        self._transport.write(self._begin(request, response))
        self._connection.begin_endless()
        self.stream = stream
        stream.begin(self)

    def _begin(self, request: Request, response: Response) -> bytes:
        """Return the head of a response whose length is not known."""
        self._chunked = not request.http10 and not self._head_only
        if request.http10:
            self._connection.keep_alive = False  # its end is the end of the connection
        closes = self._connection.closes_after(self.body)
        return head(response, length=None, close=closes, chunked=not request.http10)

    # A sink for streams

    def write(self, chunk: bytes) -> bool:
        """Send a piece of the response; False when there is no more room."""
        if chunk:
            self._sent += len(chunk)
            self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunked else chunk)
        return not self._connection.full

    def write_framed(self, chunk: bytes, framed: bytes) -> bool:
        """Send a piece of a stream; `framed` is its form in chunks, which is made once for many connections."""
        self._sent += len(chunk)
        self._transport.write(framed if self._chunked else chunk)
        return not self._connection.full

    def end(self) -> None:
        """End a stream properly."""
        if self.stream is None:
            return
        self.stream = None
        if not self._transport.is_closing():
            self._write_end()
            self._connection.answered(self)

    def _write_end(self) -> None:
        if self._chunked:
            self._transport.write(b"0\r\n\r\n")

    # Ending

    def stop(self) -> bool:
        """End a stream now, properly; False if the response is not one."""
        stream = self.stream
        if stream is None:
            return False
        self.end()
        stream.close()
        return True

    def cancel(self) -> None:
        """End without a response: the connection is lost."""
        if self.stream is not None:
            stream, self.stream = self.stream, None
            stream.close()
        else:
            self._task.cancel()
        self.record()

    def record(self) -> None:
        """Count and log the response that has ended, once."""
        request, self._request = self._request, None
        if request is not None:
            self._app.service.metrics.bytes_sent += self._sent
            seconds = perf_counter() - self._begun_s
            self._app.ended(request, self._status, self.body.received, self._sent, seconds)


async def _close(pieces: AsyncIterator[bytes]) -> None:
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()


async def _discard(response: Response) -> None:
    """Release what a response holds that is not sent."""
    body = response.body
    if isinstance(body, bytes):
        return
    if isinstance(body, AsyncIterator):
        await _close(body)
    else:
        body.close()
