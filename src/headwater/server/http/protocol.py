"""HTTP/1.1 over a connection: httptools parses, handlers answer, in the order of the requests.

The usual append, small and plain, is answered without a task of its own (`plain`); everything else is a `Request`
for `App.answer`. Bodies are pulled: a client whose body nobody takes is not read. Every state has a deadline, looked at
by one timer for all connections (`Connections`). Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

import httptools

from headwater.errors import HeadwaterError, Invalid, TooLarge, Unavailable
from headwater.server.http.body import Body
from headwater.server.http.errors import of_status, response_of
from headwater.server.http.head import SAFE, head
from headwater.server.http.message import Client, Request, Response, Stream, whole
from headwater.server.http.plain import Answer, Head
from headwater.server.http.target import parts_of
from headwater.server.prompt import Way

if TYPE_CHECKING:
    from headwater.limits import ServerLimits
    from headwater.server.connections import Connections
    from headwater.server.scopes import User

BODY_BYTES_READY = 64 * 1024  # of a body that may wait in the connection before it is not read any more
LINGER_S = 2.0  # how long a refused upload is read and thrown away, so that the client can read why
LINGER_BYTES = 1024 * 1024  # an unread rest of a body up to this is read, and the connection kept
PIPELINED_REFUSED = 16  # times `pipelined_max`, which came in one piece: the rest is not even parsed
NEVER = float("inf")

_PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + SAFE
_PLAIN_LAST = _PLAIN + b"connection: close\r\n"


class Connection(asyncio.Protocol):
    """One connection. Requests that arrive while one is answered wait for their turn."""

    __slots__ = (  # found quicker than what is in a dictionary, and every request looks for dozens
        *("app", "client", "connections", "deadline", "limits", "loop", "sent"),
        *("granted_head", "granted_user", "secret_head", "plain_answer", "_plain", "_plain_keep", "_way"),
        *("_begun", "_body", "_header_bytes", "_headers", "_silent_bytes", "_twice", "_url"),
        *("_answering", "_begun_s", "_busy", "_chunked", "_full", "_head_only", "_http10", "_keep_alive", "_over"),
        *("_metrics", "_parser", "_reading", "_request", "_room", "_status", "_stream", "_task", "_transport"),
        *("_waiting", "_waits"),
    )

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.app = connections.app
        self.loop = connections.loop
        self.limits = connections.limits
        self._metrics = connections.app.store.metrics
        self.deadline = NEVER
        self.client = Client()
        self.sent = 0
        self._transport: Any = None
        self._parser: Any = None
        # The message that is being parsed
        self._begun = False  # a first byte has come, and the headers are not whole
        self._header_bytes = 0  # of the names and values that have come
        self._silent_bytes = 0  # that have come since the last event of the parser, which may keep them
        self._url = b""
        self._headers: dict[str, str] = {}
        self._twice = False  # a header came twice which may come only once
        self._body: Body | None = None
        # What is being answered
        self._waiting: deque[tuple[Request, Body]] = deque()
        self._busy = False
        self._keep_alive = True
        self._task: asyncio.Task[None] | None = None
        self._request: Request | None = None
        self._status = 0
        self._begun_s = 0.0
        self._waits = False  # for what may come late, or never
        self._stream: Stream | None = None
        self._answering: Body | None = None
        self._head_only = False
        self._chunked = False
        self._http10 = False
        self._room: asyncio.Future[None] | None = None
        self._full = False
        self._reading = True
        self._over = False  # nothing is read or begun any more
        self._plain: Head | None = None  # of a plain append that came last
        self.plain_answer: Answer | None = None  # that is under way
        self._way: Way | None = None
        self.granted_user: User | None = None  # who was last allowed to append so
        self.granted_head: Head | None = None
        self.secret_head: tuple[bytes, Head | None] = b"", None  # with a password or token
        self._plain_keep = True  # whether the connection goes on after it

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
        self._parser = httptools.HttpRequestParser(self)
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
        self._over = True
        ended = self._stream is not None or self._waits
        return (self._busy or bool(self._waiting)) and not ended and not self.client.secure

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
        if self.plain_answer is not None and self.plain_answer.written:
            self.app.plain.finish(self.plain_answer)  # the client was quicker than our loop
        first = not self._begun and not self._busy and self._body is None
        if first:
            if not self._full and self._take_known(data):
                return
            self._begun = True
            self._plain = None
        self._silent_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # No other protocol is spoken here: the request was answered in this one, and what follows it is not ours.
            self._stop_reading()
        except httptools.HttpParserError as error:
            self._refuse(_parse_failure(error))
            return
        if self._silent_bytes > self.limits.header_bytes_max:  # a header, a trailer or a chunk's line without an end
            self._refuse(response_of(_too_large(self._silent_bytes, self.limits)))
        elif self._begun:
            if first:
                self.deadline = self.loop.time() + self.limits.header_s
        elif self._body is not None:
            self.deadline = self.loop.time() + self.limits.body_idle_s
        elif first and self._plain is not None and self._plain_keep:
            self.app.plain.remember(self, data, self._plain)

    def _take_known(self, data: bytes) -> bool:
        """Take a plain append whose head was seen before, as a whole: it need not be parsed again."""
        end = data.find(b"\r\n\r\n") + 4
        plain = self.app.plain
        head = plain.find(self, data, end)
        if head is None:
            return False
        self._busy = plain.take(self, head, data[end:])
        if self._busy:
            self._plain_keep = True
            self._silent_bytes = 0
            self.deadline = NEVER
        return self._busy

    # The parser

    def on_message_begin(self) -> None:
        self._begun = True
        self._silent_bytes = self._header_bytes = 0
        self._url = b""
        self._headers = {}
        self._twice = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._begun:
            return  # a trailer: nobody who looked at the headers, such as a proxy, has seen it
        self._header_bytes += len(name) + len(value)
        key = _NAMES.get(name) or name.lower().decode("latin-1")
        headers = self._headers
        if key in headers:
            if key in _ONCE:
                self._twice = True
            headers[key] = f"{headers[key]}, {value.decode('latin-1')}"
        else:
            headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._begun = False
        self._silent_bytes = 0
        self._check_head()
        if len(self._waiting) > PIPELINED_REFUSED * self.limits.pipelined_max:
            raise Unavailable("too many requests wait for their answers", code="overloaded")
        body = self._body = Body(self)
        expect = self._headers.get("expect")
        if expect is not None:
            body.expected = expect.lower() == "100-continue"
        length = self._headers.get("content-length")
        small = (length is None or int(length) <= BODY_BYTES_READY) and "transfer-encoding" not in self._headers
        if not small or body.expected:
            self._take(body)

    def _check_head(self) -> None:
        """Raise what is wrong with the headers as such. Where the request ends is in doubt then: no other is read."""
        headers = self._headers
        if self._header_bytes + len(self._url) > self.limits.header_bytes_max:
            raise _too_large(self._header_bytes + len(self._url), self.limits)
        if self._twice:
            raise Invalid("a header came twice which may come only once", code="bad_request")
        coding = headers.get("transfer-encoding")
        if coding is None and "host" in headers:
            return
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise Invalid(f"HTTP/{version} is not spoken here", hint="use HTTP/1.1", code="bad_request")
        if version == "1.1" and "host" not in headers:
            raise Invalid("the Host header is missing", code="bad_request")
        if coding is not None and (coding.strip().lower() != "chunked" or version == "1.0"):
            raise Invalid("the body is sent in a way that is not understood", hint="use chunked", code="bad_request")

    def on_body(self, piece: bytes) -> None:
        self._silent_bytes = 0
        body = self._body
        if body is None:
            return
        if body.dropped:
            self.deadline = self.loop.time() + self.limits.body_idle_s
            return
        body.put(piece)
        if body.size > BODY_BYTES_READY and self._reading:
            self._reading = False
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        self._silent_bytes = 0
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
        if not self._busy and not self._waiting and not self._full and self._parser.get_method() == b"POST":
            data = body.pieces[0] if len(body.pieces) == 1 else b"".join(body.pieces)
            self._plain_keep = self._parser.should_keep_alive()
            plain = self._plain = self.app.plain.learn(self._url, self._headers)
            if plain is not None and self.app.plain.take(self, plain, data):
                self._busy = True
                self.deadline = NEVER
                return
        self._take(body)

    # Answering

    @property
    def plain_head(self) -> bytes:
        """What the answer to a plain append begins with."""
        return _PLAIN if self._plain_keep and not self.connections.stopping else _PLAIN_LAST

    def way(self) -> Way | None:
        """The socket for another thread to write to, as long as nothing waits to be written here; None with TLS."""
        if self.client.secure or self._transport.get_write_buffer_size():
            return None
        if self._way is None:
            self._way = Way(self._transport.get_extra_info("socket").fileno())
        return self._way

    def answer_plainly(self, rest: bytes) -> None:
        """Write what is left of the answer to a plain append."""
        if not self._transport.is_closing():
            self._transport.write(rest)
            self.answered_plainly()

    def answer_at_once(self, response: Response) -> None:
        """The same, with any answer that is whole."""
        if self._transport.is_closing():
            return
        data = whole(response)
        if self.connections.stopping:
            self._plain_keep = False
        self._transport.write(head(response, length=len(data), close=not self._plain_keep) + data)
        self.answered_plainly()

    def answered_plainly(self) -> None:
        """The answer to a plain append is written: go on."""
        self._busy = False
        self.plain_answer = None
        if not self._plain_keep or self.connections.stopping:
            self._transport.close()
        elif self._waiting:
            self._next()
        else:
            self.deadline = self.loop.time() + self.limits.idle_s
            if self._over:
                self._transport.close()

    def _take(self, body: Body) -> None:
        """The request of the message that is being parsed goes into the queue."""
        body.taken = True
        parser = self._parser
        method = parser.get_method().decode("ascii")
        http10 = parser.get_http_version() == "1.0"
        path, query, failure = _target(self._url)
        if "expect" in self._headers and not body.expected:
            failure = Invalid("this cannot be expected", code="expectation_failed")
        request = Request(method, path, query, self._headers, body.receive, self.client)
        request.failure = failure
        request.target = self._url
        request.keep_alive = parser.should_keep_alive()
        request.http10 = http10
        self._waiting.append((request, body))
        if len(self._waiting) > self.limits.pipelined_max and self._reading:
            self._reading = False
            self._transport.pause_reading()
        if not self._busy:
            self._next()

    def _next(self) -> None:
        request, body = self._waiting.popleft()
        self._busy = True
        self.deadline = NEVER
        self._answering = body
        self._keep_alive = request.keep_alive
        self._http10 = request.http10
        self._head_only = request.method == "HEAD"
        self._request, self._status, self.sent, self._begun_s = request, 0, 0, perf_counter()
        if not self._reading and len(self._waiting) <= self.limits.pipelined_max and body.size <= BODY_BYTES_READY:
            self._reading = True
            self._transport.resume_reading()
        self._task = self.loop.create_task(self._answer(request, body))

    async def _answer(self, request: Request, body: Body) -> None:
        await self._wait_for_room()  # a client that asks and asks, and reads no answers, must not fill the memory
        response = await self.app.answer(request)
        self._status = response.status
        self._waits = response.waits
        if self._waits and self._over:  # the client has left before it began
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
        close = self._closes(body)
        answer = head(response, length=len(data), close=close)
        self._transport.write(answer if self._head_only else answer + data)
        self.sent = 0 if self._head_only else len(data)
        self._end(body)

    async def _send_pieces(self, response: Response, pieces: AsyncIterator[bytes], body: Body) -> None:
        self._transport.write(self._begin(response, body))
        try:
            async for piece in pieces:
                if not self._write(piece):
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

    def _send_stream(self, response: Response, stream: Stream, body: Body) -> None:
        self._transport.write(self._begin(response, body))
        self._stream = stream
        stream.begin(self)

    # A sink for streams

    def write(self, chunk: bytes) -> bool:
        """Send a piece of a stream; False when there is no more room."""
        return self._write(chunk)

    def write_framed(self, chunk: bytes, framed: bytes) -> bool:
        """The same, of which the form in chunks is known already: it is made once for many connections."""
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
        """The head of an answer whose length is not known."""
        self._chunked = not self._http10 and not self._head_only
        if self._http10 and not self._head_only:
            self._keep_alive = False  # its end is the end of the connection
        return head(response, length=None, close=self._closes(body), chunked=not self._http10)

    def _closes(self, body: Body) -> bool:
        return not self._keep_alive or self.connections.stopping or self._over or not self._can_skip(body)

    def _can_skip(self, body: Body) -> bool:
        """Whether what was not read of the body is so little that the connection can go on."""
        return body.whole or (body.failure is None and not body.expected and self._left() <= LINGER_BYTES)

    def _left(self) -> int:
        length = self._headers.get("content-length")
        return int(length) if length is not None and length.isdigit() else LINGER_BYTES + 1

    def _end(self, body: Body) -> None:
        """The answer is written: go on with the next request, or end the connection."""
        self._note()
        self._task = None
        self._answering = None
        close = self._closes(body)
        self._busy = False
        if close:
            if body.whole or self._over:
                self._transport.close()
            else:
                self._linger()
            return
        if not body.whole:  # the rest of it is thrown away as it comes
            body.dropped = True
            body.pieces.clear()
        self.deadline = self.loop.time() + self.limits.idle_s
        if self._waiting:
            self._next()
        elif not self._reading:
            self._reading = True
            self._transport.resume_reading()

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
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        self.deadline = self.loop.time() + LINGER_S

    def more_wanted(self, body: Body) -> None:
        """A handler waits for the next piece of its body."""
        if body.expected:
            body.expected = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        self.deadline = self.loop.time() + self.limits.body_idle_s

    # Ending

    def expire(self) -> None:
        """Its time is over."""
        self.deadline = NEVER
        if self._over or self._full or (self._body is not None and self._body.dropped):
            self.abort()
        elif self._begun:
            self._refuse(of_status(408, "the headers took too long", "timeout", ""))
        elif self._answering is not None and not self._answering.whole:
            self._answering.fail(Invalid("the body stands still", code="timeout"))
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
        """Answer what cannot be parsed, and end the connection, unless another answer is on its way."""
        self._over = True
        if self._busy or self._waiting:
            for body in (self._body, self._answering):
                if body is not None:
                    body.fail(Invalid("the body cannot be read", code="bad_request"))
            return
        data = whole(response)
        self.app.refused(response)
        self._transport.write(head(response, length=len(data), close=True) + data)
        self._linger()

    def _stop_reading(self) -> None:
        self._keep_alive = self._plain_keep = False
        self._over = True


# As clients write them, to save the work; others are made lower case one by one.
_NAMES = {name.title().encode(): name for name in ("accept", "connection", "content-length", "content-type", "host")}
_NAMES |= {name.encode(): name for name in (*_NAMES.values(), "authorization", "user-agent")}
_NAMES |= {b"Authorization": "authorization", b"User-Agent": "user-agent"}
_ONCE = frozenset(("authorization", "content-length", "content-type", "host", "transfer-encoding"))


def _target(url: bytes) -> tuple[tuple[str, ...], bytes, HeadwaterError | None]:
    try:
        return *parts_of(url), None
    except HeadwaterError as error:
        return (), b"", error


def _too_large(size: int, limits: ServerLimits) -> TooLarge:
    most = limits.header_bytes_max
    told = f"the headers have {size} bytes or more, and may have {most}"
    return TooLarge(told, code="headers_too_large", limit="header_bytes_max", maximum=most)


def _parse_failure(error: Exception) -> Response:
    if isinstance(error, httptools.HttpParserCallbackError) and isinstance(error.__context__, HeadwaterError):
        return response_of(error.__context__)
    return of_status(400, "this is not HTTP", "bad_request", str(error)[:200])


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
