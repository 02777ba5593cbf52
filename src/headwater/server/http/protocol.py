"""HTTP/1.1 over a connection: `parsing` cuts requests, handlers answer them in their order.

Each is a `Request`. An append of one small item is answered without a task (`prompt_appends`); everything else is a
task of `HttpApplication.answer`. Bodies are pulled: a client whose body nobody takes is not read. A few requests may
wait for their turn; when there are more, the rest is neither parsed nor read. A request that cannot be parsed is
refused when all before it are answered. Every state has a deadline, checked by one timer for all connections
(`Connections`). Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

import httptools

from headwater.errors import HeadwaterError, Invalid
from headwater.server.http.errors import of_status
from headwater.server.http.message import SAFE, BodyStream, Client, Request, Response, head, parts_of, whole
from headwater.server.http.parsing import Body, RepeatedHead, RequestParser, parse_failure
from headwater.server.http.prompt_appends import PromptAnswer
from headwater.server.prompt import Way

if TYPE_CHECKING:
    from headwater.server.connections import Connections

BODY_BYTES_READY = 64 * 1024  # of a body that may wait in the connection before it is not read any more
LINGER_S = 2.0  # how long a refused upload is read and thrown away, so that the client can read why
LINGER_BYTES = 1024 * 1024  # an unread rest of a body up to this is read, and the connection kept
NEVER = float("inf")

_PROMPT = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + SAFE
_PROMPT_LAST = _PROMPT + b"connection: close\r\n"


class ServerConnection(asyncio.Protocol):
    """One connection. Requests that arrive while one is answered wait for their turn."""

    __slots__ = (  # found quicker than what is in a dictionary, and every request looks for dozens
        *("app", "client", "connections", "deadline", "limits", "loop", "sent"),
        *("_head", "_parsed", "_prompt", "_way"),
        *("_body", "_ended", "_parser", "_parsing", "_reading", "_refusal"),
        *("_answering", "_begun_s", "_busy", "_chunked", "_full", "_head_only", "_http10", "_keep_alive", "_over"),
        *("_metrics", "_request", "_room", "_status", "_stream", "_task", "_transport", "_waiting", "_waits"),
    )

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.app = connections.app
        self.loop = connections.loop
        self.limits = connections.limits
        self._metrics = connections.app.service.metrics
        self.deadline = NEVER
        self.client = Client()
        self.sent = 0
        self._transport: Any = None
        self._parser: Any = None
        # The message that is being parsed
        self._parsing = False  # a slice of what has come, now
        self._body: Body | None = None
        self._refusal: Response | None = None  # of what cannot be parsed, for when all before it is answered
        # What is being answered
        self._waiting: deque[tuple[Request, Body]] = deque()
        self._busy = False
        self._keep_alive = True
        self._task: asyncio.Task[None] | None = None
        self._request: Request | None = None
        self._status = 0
        self._begun_s = 0.0
        self._waits = False  # for what may come late, or never
        self._stream: BodyStream | None = None
        self._answering: Body | None = None
        self._head_only = False
        self._chunked = False
        self._http10 = False
        self._room: asyncio.Future[None] | None = None
        self._full = False
        self._reading = True
        self._over = False  # nothing more is parsed; what was is still answered
        self._ended = False  # the client sends no more
        self._head = RepeatedHead()
        self._parsed: Request | None = None  # the last one of those that came with the last data
        self._prompt: PromptAnswer | None = None  # that is under way
        self._way: Way | None = None

    # The transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        client = self.connections.accept(self, transport)
        if client is None:
            self._over = True
            refused = of_status(503, "there are too many connections", "overloaded", "try again soon")
            self._transport.write(head(refused, length=len(whole(refused)), close=True) + whole(refused))
            self._transport.close()
            return
        self.client = client
        self._transport.set_write_buffer_limits(high=self.limits.write_buffer_bytes)
        self._parser = RequestParser(self, self.limits)
        self.deadline = self.loop.time() + self.limits.idle_s

    def connection_lost(self, error: Exception | None) -> None:
        self.connections.forget(self)
        self._over = True
        self._way = None
        self.deadline = NEVER
        gone = error or ConnectionResetError("the client has gone")
        for body in (self._body, self._answering, *(body for _, body in self._waiting)):
            if body is not None:
                body.fail(gone)
        self._waiting.clear()
        self.resume_writing()
        if self._stream is not None:
            stream, self._stream = self._stream, None
            stream.close()
        elif self._task is not None:
            self._task.cancel()
        self._note()

    def eof_received(self) -> bool:
        """The client sends no more. It may still read an answer; but a stream without an end has nobody to end it."""
        if self._body is not None and not self._body.whole:
            self._body.fail(ConnectionResetError("the body ended too early"))
        self._over = self._ended = True
        endless = self._stream is not None or self._waits
        return (self._busy or bool(self._waiting)) and not endless and not self.client.secure

    def pause_writing(self) -> None:
        self._full = True
        self.deadline = self.loop.time() + self.limits.write_s

    def resume_writing(self) -> None:
        self._full = False
        if self._busy:
            self.deadline = NEVER
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)
        if self._stream is not None:
            self._stream.resume()

    def data_received(self, data: bytes) -> None:
        self._metrics.bytes_received += len(data)
        if self._over:
            return
        if self._prompt is not None and self._prompt.written:
            self.app.prompt_appends.finish(self._prompt)  # the client was quicker than our loop
        first = not self._parser.begun and not self._busy and self._body is None
        if first:
            known = self._head.match(data)
            if known is not None:
                self._begin_whole(*known)
                return
            self._parser.begun = True
            self._parsed = None
        self._parser.add(data)
        if not self._flow():
            return
        if self._parser.begun:
            if first:
                self.deadline = self.loop.time() + self.limits.header_s
        elif self._body is not None:
            self.deadline = self.loop.time() + self.limits.body_idle_s
        elif first and self._parsed is not None:
            self._head.learn(data, self._parsed)

    def _flow(self) -> bool:
        """Parse what has come, and read on, while requests have room and bodies are taken; False if that is over."""
        if self._parsing:
            return True  # it looks again after each slice
        self._parsing = True
        try:
            while self._parser.rest and not (self._over or self._crowded):
                if not self._parser.parse():
                    self._over = True  # no other protocol is spoken here: what follows is not ours
        except (httptools.HttpParserError, HeadwaterError) as error:
            self._refuse(parse_failure(error))
        finally:
            self._parsing = False
        body = self._body
        stuck = body is not None and not body.dropped and body.size > BODY_BYTES_READY
        self._read(self._over or not (self._parser.rest or self._crowded or stuck))
        return not self._over

    @property
    def _crowded(self) -> bool:
        return len(self._waiting) > self.limits.pipelined_max

    def _read(self, wanted: bool) -> None:
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    # The parser

    def on_headers_complete(self) -> None:
        body = self._body = Body(self)
        headers = self._parser.headers
        expect = headers.get("expect")
        if expect is not None:
            body.expected = expect.lower() == "100-continue"
        length = headers.get("content-length")
        small = (length is None or int(length) <= BODY_BYTES_READY) and "transfer-encoding" not in headers
        if not small or body.expected:
            self._take(body)

    def on_body(self, piece: bytes) -> None:
        self._parser.progress()
        body = self._body
        if body is None:
            return
        body.put(piece)
        if body.dropped:
            self.deadline = self.loop.time() + self.limits.body_idle_s
            if body.size > LINGER_BYTES:  # of one whose length was not said
                self._linger()

    def on_message_complete(self) -> None:
        self._parser.progress()
        body, self._body = self._body, None
        if body is None or self._over:
            return
        body.whole = True
        if body.dropped:
            if not self._busy:
                self.deadline = self.loop.time() + self.limits.idle_s
            return
        if body.taken:
            body.end()
            return
        self._take(body)

    # Answering

    @property
    def prompt_head(self) -> bytes:
        """Return what the response to a prompt append begins with. Also called by the committing thread."""
        return _PROMPT if self._keep_alive and not self.connections.stopping else _PROMPT_LAST

    def way(self) -> Way | None:
        """Return the socket for another thread to write to; None while something waits to be written, and with TLS."""
        if self.client.secure or self._transport.get_write_buffer_size():
            return None
        if self._way is None:
            self._way = Way(self._transport.get_extra_info("socket").fileno())
        return self._way

    def answer_promptly(self, rest: bytes) -> None:
        """Write what is left of the response to a prompt append."""
        if not self._transport.is_closing():
            self._transport.write(rest)
            self.answered_promptly()

    def answer_at_once(self, response: Response) -> None:
        """Write the response to a prompt append that failed."""
        if self._transport.is_closing():
            return
        data = whole(response)
        if self.connections.stopping:
            self._keep_alive = False
        self._transport.write(head(response, length=len(data), close=not self._keep_alive) + data)
        self.answered_promptly()

    def answered_promptly(self) -> None:
        """The response to a prompt append is written: continue with the next request."""
        self._busy = False
        self._prompt = None
        if self._transport.is_closing():
            return  # the client has gone, and its socket may be closed already
        if not self._keep_alive or self.connections.stopping:
            self._transport.close()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """All that has begun is answered: begin the next request, or say why there is none, or wait for one."""
        if self._waiting:
            self._next()
            self._flow()
        elif self._refusal is not None:
            response, self._refusal = self._refusal, None
            data = whole(response)
            self.app.refused(response)
            self._transport.write(head(response, length=len(data), close=True) + data)
            self._linger()
        elif self._ended:
            self._transport.close()
        elif self._over:
            self._linger()
        else:
            self.deadline = self.loop.time() + self.limits.idle_s
            self._flow()

    def _take(self, body: Body) -> None:
        """Put the request of the message that is being parsed into the queue."""
        parser, body.taken = self._parser, True
        path, query, failure = _target(parser.url)
        if "expect" in parser.headers and not body.expected:
            failure = Invalid("unsupported Expect header", code="expectation_failed")
        request = self._parsed = Request(parser.method, path, query, parser.headers, self.client)
        request.failure = failure
        request.target = parser.url
        request.keep_alive = parser.keeps_alive
        request.http10 = parser.http10
        self._waiting.append((request, body))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        request, body = self._waiting.popleft()
        if body.whole and request.method == "POST" and not request.http10:
            self._begin_whole(request, body.pieces[0] if len(body.pieces) == 1 else b"".join(body.pieces))
        else:
            self._start(request, body)

    def _begin_whole(self, request: Request, data: bytes) -> None:
        """Begin to answer a request whose body is whole: without a task, if that can be."""
        self._busy = True
        self.deadline = NEVER
        self._keep_alive = request.keep_alive
        if not self._full and request.method == "POST":
            self._prompt = self.app.prompt_appends.take(self, request, data)
        if self._prompt is None:
            self._start(request, Body(self, data))

    def _start(self, request: Request, body: Body) -> None:
        """Begin to answer a request with a task."""
        self._busy = True
        self.deadline = NEVER
        self._answering = body
        request.receive = body.receive
        self._keep_alive = request.keep_alive
        self._http10 = request.http10
        self._head_only = request.method == "HEAD"
        self._request, self._status, self.sent, self._begun_s = request, 0, 0, perf_counter()
        self._task = self.loop.create_task(self._answer(request, body))

    async def _answer(self, request: Request, body: Body) -> None:
        await self._wait_for_room()  # a client that asks and asks, and reads no answers, must not fill the memory
        response = await self.app.answer(request)
        self._status = response.status
        self._waits = response.waits
        if self._waits and self._ended:  # the client has left before it began
            await _let_go(response)
            self._transport.close()
            return
        if self._transport.is_closing():
            await _let_go(response)
            return
        if isinstance(response.body, bytes):
            self._send_whole(response, body)
        elif self._head_only:
            await _let_go(response)
            self._transport.write(self._begin(response, body))
            self._end(body)
        elif isinstance(response.body, AsyncIterator):
            await self._send_pieces(response, response.body, body)
        else:
            self._send_stream(response, response.body, body)

    def _send_whole(self, response: Response, body: Body) -> None:
        data = whole(response)
        if self._http10 and response.status == 204:  # which has no length
            self._keep_alive = False
        answer = head(response, length=len(data), close=self._closes(body), keep_alive=self._http10)
        self._transport.write(answer if self._head_only else answer + data)
        self.sent = 0 if self._head_only else len(data)
        self._end(body)

    async def _send_pieces(self, response: Response, pieces: AsyncIterator[bytes], body: Body) -> None:
        self._transport.write(self._begin(response, body))
        try:
            async for piece in pieces:
                room = self._write(piece)
                del piece  # which the transport has
                if not room:
                    await self._wait_for_room()
                if self._transport.is_closing():
                    return
        except Exception as error:  # noqa: BLE001  # whatever it was, the client must not take this for all
            self.app.broke_off(error)
            self.abort()  # without the end that was promised
            return
        finally:
            await _close(pieces)
        self._write_end()
        self._end(body)

    def _send_stream(self, response: Response, stream: BodyStream, body: Body) -> None:
        self._transport.write(self._begin(response, body))
        self._stream = stream
        stream.begin(self)

    # A sink for streams

    def write(self, chunk: bytes) -> bool:
        """Send a piece of a stream; False when there is no more room."""
        return self._write(chunk)

    def write_framed(self, chunk: bytes, framed: bytes) -> bool:
        """Send a piece of a stream; `framed` is its form in chunks, which is made once for many connections."""
        self.sent += len(chunk)
        self._transport.write(framed if self._chunked else chunk)
        return not self._full

    def end(self) -> None:
        """End a stream properly."""
        if self._stream is None:
            return
        self._stream = None
        if not self._transport.is_closing():
            self._write_end()
            assert self._answering is not None
            self._end(self._answering)

    def _write(self, piece: bytes) -> bool:
        if piece:
            self.sent += len(piece)
            self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)
        return not self._full

    def _write_end(self) -> None:
        if self._chunked:
            self._transport.write(b"0\r\n\r\n")

    async def _wait_for_room(self) -> None:
        if self._full and not self._transport.is_closing():
            self._room = self.loop.create_future()
            await self._room

    def _begin(self, response: Response, body: Body) -> bytes:
        """Return the head of a response whose length is not known."""
        self._chunked = not self._http10 and not self._head_only
        if self._http10:
            self._keep_alive = False  # its end is the end of the connection
        return head(response, length=None, close=self._closes(body), chunked=not self._http10)

    def _closes(self, body: Body) -> bool:
        last = self._over and not self._waiting and self._refusal is None
        return not self._keep_alive or self.connections.stopping or last or not self._can_skip(body)

    def _can_skip(self, body: Body) -> bool:
        """Return whether so little of the body is unread that it can be skipped, and the connection kept."""
        if body.whole:
            return True
        length = self._parser.headers.get("content-length", "0")
        return body.failure is None and not body.expected and length.isdigit() and int(length) <= LINGER_BYTES

    def _end(self, body: Body) -> None:
        """The answer is written: go on with the next request, or end the connection."""
        self._note()
        self._task = None
        self._answering = None
        close = self._closes(body)
        self._busy = self._waits = False
        if close:
            if body.whole or self._ended:
                self._transport.close()
            else:
                self._linger()
            return
        if not body.whole:
            body.drop()
        self._go_on()

    def _note(self) -> None:
        """Tell of the answer that has ended, once."""
        request, self._request = self._request, None
        if request is not None:
            self._metrics.bytes_sent += self.sent
            received = self._answering.received if self._answering is not None else 0
            self.app.ended(request, self._status, received, self.sent, perf_counter() - self._begun_s)

    def _linger(self) -> None:
        """Let the client read the answer before the connection is reset under the rest of its upload."""
        self._over = True
        with contextlib.suppress(NotImplementedError, OSError):  # TLS cannot be closed in one direction
            self._transport.write_eof()
        self._read(True)
        self.deadline = self.loop.time() + LINGER_S

    def more_wanted(self, body: Body) -> None:
        """A handler waits for the next piece of its body."""
        if body.expected:
            body.expected = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._flow()
        self.deadline = self.loop.time() + self.limits.body_idle_s

    # Ending

    def expire(self) -> None:
        """Its time is over."""
        self.deadline = NEVER
        if self._over or self._full or (self._body is not None and self._body.dropped):
            self.abort()
        elif self._parser.begun:
            self._refuse(of_status(408, "the headers took too long", "timeout", ""))
        elif self._answering is not None and not self._answering.whole:
            self._answering.fail(Invalid("the request body timed out", code="timeout"))
        elif self._body is not None:
            self._refuse(of_status(408, "the body took too long", "timeout", ""))
        elif not self._busy:
            self._transport.close()

    def stop(self) -> None:
        """End when what was asked is answered; a stream ends now, properly."""
        if self._stream is not None:
            stream = self._stream
            self.end()
            stream.close()
        elif not self._busy and not self._waiting and (self._body is None or self._body.dropped):
            self._transport.close()

    def abort(self) -> None:
        """End now."""
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, response: Response) -> None:
        """End because of what cannot be parsed, when all before it is answered; in a body, that is its request's."""
        self._over = True
        if self._body is None or not self._body.taken:
            self._refusal = response
        else:
            self._body.fail(Invalid("the body cannot be read", code="bad_request"))
        if not self._busy:
            self._go_on()


def _target(url: bytes) -> tuple[tuple[str, ...], bytes, HeadwaterError | None]:
    try:
        return *parts_of(url), None
    except HeadwaterError as error:
        return (), b"", error


async def _close(pieces: AsyncIterator[bytes]) -> None:
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()


async def _let_go(response: Response) -> None:
    """Nobody wants the answer."""
    body = response.body
    if isinstance(body, bytes):
        return
    if isinstance(body, AsyncIterator):
        await _close(body)
    else:
        body.close()
