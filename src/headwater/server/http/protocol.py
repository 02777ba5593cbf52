"""HTTP/1.1 over a connection: `parsing` splits its bytes into requests, which are answered in their order.

A connection is two small state machines: `Intake` is what it does with incoming bytes, `AnswerState` what it does with
the request whose turn it is. An append of one small item is answered without a task (`prompt_appends`); everything else
is an `Exchange`, a task of `HttpApplication.answer`. Bodies are pulled: the rest of a body that no handler takes is not
read from the socket. A few requests may wait for their turn; when there are more, the rest is neither parsed nor read.
A request that cannot be parsed is refused when all before it are answered. Every state has a deadline, checked by one
timer for all connections (`Connections`). Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any

import httptools

from headwater.errors import HeadwaterError, Invalid
from headwater.server.commits import Way
from headwater.server.http.errors import of_status
from headwater.server.http.exchange import Exchange
from headwater.server.http.message import SAFE, Client, Request, Response, head, parts_of, whole
from headwater.server.http.parsing import Body, RepeatedHead, RequestParser, parse_failure
from headwater.server.http.prompt_appends import PromptAnswer

if TYPE_CHECKING:
    from headwater.server.connections import Connections

BODY_BYTES_READY = 64 * 1024  # of a body that may wait in the connection before it is not read any more
LINGER_S = 2.0  # how long a refused upload is read and thrown away, so that the client can read why
LINGER_BYTES = 1024 * 1024  # an unread rest of a body up to this is read, and the connection kept
NEVER = float("inf")

_PROMPT = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + SAFE
_PROMPT_LAST = _PROMPT + b"connection: close\r\n"


class Intake(Enum):
    """States of the bytes that come in."""

    OPEN = "requests are parsed"
    SHUT = "nothing more is parsed; what was is still answered"
    ENDED = "the client sends no more; what was parsed is still answered"


class AnswerState(Enum):
    """States of the request whose turn it is."""

    IDLE = "there is none"
    PROMPT = "an append is being committed, without a task"
    TASK = "a task answers"
    ENDLESS = "a response is sent that may never end"


# As globals, because every request compares several times, and a member of an enum takes longer to find.
IDLE, PROMPT, TASK, ENDLESS = AnswerState
OPEN, SHUT, ENDED = Intake


class ServerConnection(asyncio.Protocol):
    """One connection. Requests that arrive while one is answered wait for their turn."""

    __slots__ = (  # found quicker than what is in a dictionary, and every request looks for dozens
        *("app", "client", "connections", "deadline", "full", "keep_alive", "limits", "loop", "transport"),
        *("_body", "_head", "_intake", "_parsed", "_parser", "_parsing", "_reading", "_refusal"),
        *("_answering", "_exchange", "_metrics", "_prompt", "_room", "_waiting", "_way"),
    )

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.app = connections.app
        self.loop = connections.loop
        self.limits = connections.limits
        self._metrics = connections.app.service.metrics
        self.deadline = NEVER
        self.client = Client()
        self.transport: Any = None
        # The message that is being parsed
        self._intake = OPEN
        self._parser: Any = None
        self._parsing = False  # a slice of what has come, now
        self._reading = True  # from the socket
        self._head = RepeatedHead()
        self._body: Body | None = None
        self._parsed: Request | None = None  # the last one of those that came with the last data
        self._refusal: Response | None = None  # of what cannot be parsed, for when all before it is answered
        # What is being answered
        self._answering = IDLE
        self._waiting: deque[tuple[Request, Body]] = deque()
        self.keep_alive = True
        self._prompt: PromptAnswer | None = None  # if the state is PROMPT
        self._exchange: Exchange | None = None  # if the state is TASK or ENDLESS
        self._way: Way | None = None
        self.full = False  # the client reads too slowly: send no more until there is room
        self._room: asyncio.Future[None] | None = None

    # The transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        client = self.connections.accept(self, transport)
        if client is None:
            self._intake = SHUT
            refused = of_status(503, "there are too many connections", "overloaded", "try again soon")
            self.transport.write(head(refused, length=len(whole(refused)), close=True) + whole(refused))
            self.transport.close()
            return
        self.client = client
        self.transport.set_write_buffer_limits(high=self.limits.write_buffer_bytes)
        self._parser = RequestParser(self, self.limits)
        self.deadline = self.loop.time() + self.limits.idle_s

    def connection_lost(self, error: Exception | None) -> None:
        self.connections.forget(self)
        self._shut()
        self._way = None
        self.deadline = NEVER
        gone = error or ConnectionResetError("the client has gone")
        exchange, self._exchange = self._exchange, None
        answered = None if exchange is None else exchange.body
        for body in (self._body, answered, *(body for _, body in self._waiting)):
            if body is not None:
                body.fail(gone)
        self._waiting.clear()
        self.resume_writing()
        if exchange is not None:
            exchange.cancel()

    def eof_received(self) -> bool:
        """Keep the connection for what is still to be answered, unless the response would never end."""
        if self._body is not None and not self._body.whole:
            self._body.fail(ConnectionResetError("the body ended too early"))
        self._intake = ENDED
        if self._answering is ENDLESS or self.client.secure:
            return False
        return self._answering is not IDLE or bool(self._waiting)

    def pause_writing(self) -> None:
        self.full = True
        self.deadline = self.loop.time() + self.limits.write_s

    def resume_writing(self) -> None:
        self.full = False
        if self._answering is not IDLE:
            self.deadline = NEVER
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)
        if self._exchange is not None and self._exchange.stream is not None:
            self._exchange.stream.resume()

    def data_received(self, data: bytes) -> None:
        self._metrics.bytes_received += len(data)
        if self._intake is not OPEN:
            return
        if self._prompt is not None and self._prompt.written:
            self.app.prompt_appends.finish(self._prompt)  # the client was quicker than our loop
        first = self._answering is IDLE and not self._parser.begun and self._body is None
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
            while self._parser.rest and self._intake is OPEN and not self._crowded:
                if not self._parser.parse():
                    self._shut()  # no other protocol is spoken here: what follows is not ours
        except (httptools.HttpParserError, HeadwaterError) as error:
            self._refuse(parse_failure(error))
        finally:
            self._parsing = False
        body = self._body
        stuck = body is not None and not body.dropped and body.size > BODY_BYTES_READY
        self._read(self._intake is not OPEN or not (self._parser.rest or self._crowded or stuck))
        return self._intake is OPEN

    @property
    def _crowded(self) -> bool:
        return len(self._waiting) > self.limits.pipelined_max

    def _read(self, wanted: bool) -> None:
        if wanted != self._reading and not self.transport.is_closing():
            self._reading = wanted
            (self.transport.resume_reading if wanted else self.transport.pause_reading)()

    def _shut(self) -> None:
        """Parse nothing more."""
        if self._intake is OPEN:
            self._intake = SHUT

    async def wait_for_room(self) -> None:
        """Wait until the client has read enough of what was sent, or has gone."""
        if self.full and not self.transport.is_closing():
            self._room = self.loop.create_future()
            await self._room

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
        if body is None or self._intake is not OPEN:
            return
        body.whole = True
        if body.dropped:
            if self._answering is IDLE:
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
        return _PROMPT if self.keep_alive and not self.connections.stopping else _PROMPT_LAST

    def way(self) -> Way | None:
        """Return the socket for another thread to write to; None while something waits to be written, and with TLS."""
        if self.client.secure or self.transport.get_write_buffer_size():
            return None
        if self._way is None:
            self._way = Way(self.transport.get_extra_info("socket").fileno())
        return self._way

    def answer_promptly(self, rest: bytes) -> None:
        """Write what is left of the response to a prompt append."""
        if not self.transport.is_closing():
            self.transport.write(rest)
            self.answered_promptly()

    def answer_at_once(self, response: Response) -> None:
        """Write the response to a prompt append that failed."""
        if self.transport.is_closing():
            return
        data = whole(response)
        if self.connections.stopping:
            self.keep_alive = False
        self.transport.write(head(response, length=len(data), close=not self.keep_alive) + data)
        self.answered_promptly()

    def answered_promptly(self) -> None:
        """The response to a prompt append is written: continue with the next request."""
        self._answering = IDLE
        self._prompt = None
        if self.transport.is_closing():
            return  # the client has gone, and its socket may be closed already
        if not self.keep_alive or self.connections.stopping:
            self.transport.close()
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
            self.transport.write(head(response, length=len(data), close=True) + data)
            self._linger()
        elif self._intake is ENDED:
            self.transport.close()
        elif self._intake is SHUT:
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
        if self._answering is IDLE:
            self._next()

    def _next(self) -> None:
        request, body = self._waiting.popleft()
        if body.whole and request.method == "POST" and not request.http10:
            self._begin_whole(request, body.pieces[0] if len(body.pieces) == 1 else b"".join(body.pieces))
        else:
            self._start(request, body)

    def _begin_whole(self, request: Request, data: bytes) -> None:
        """Begin to answer a request whose body is whole: without a task, if that can be."""
        self.deadline = NEVER
        self.keep_alive = request.keep_alive
        if not self.full and request.method == "POST":
            self._answering = PROMPT
            self._prompt = self.app.prompt_appends.take(self, request, data)
        if self._prompt is None:
            self._start(request, Body(self, data))

    def _start(self, request: Request, body: Body) -> None:
        """Begin to answer a request with a task."""
        self._answering = TASK
        self.deadline = NEVER
        self.keep_alive = request.keep_alive
        self._exchange = Exchange(self, request, body)

    def begin_endless(self) -> bool:
        """Note that the response may never end; False if the client has left before it began."""
        self._answering = ENDLESS
        return self._intake is not ENDED

    def closes_after(self, body: Body) -> bool:
        """Return whether the connection ends with the response to the request of this body."""
        last = self._intake is not OPEN and not self._waiting and self._refusal is None
        return not self.keep_alive or self.connections.stopping or last or not self._can_skip(body)

    def _can_skip(self, body: Body) -> bool:
        """Return whether so little of the body is unread that it can be skipped, and the connection kept."""
        if body.whole:
            return True
        length = self._parser.headers.get("content-length", "0")
        return body.failure is None and not body.expected and length.isdigit() and int(length) <= LINGER_BYTES

    def answered(self, exchange: Exchange) -> None:
        """Continue with the next request, or end the connection: the response is written."""
        exchange.record()
        self._exchange = None
        body = exchange.body
        close = self.closes_after(body)
        self._answering = IDLE
        if close:
            if body.whole or self._intake is ENDED:
                self.transport.close()
            else:
                self._linger()
            return
        if not body.whole:
            body.drop()
        self._go_on()

    def _linger(self) -> None:
        """Let the client read the answer before the connection is reset under the rest of its upload."""
        self._shut()
        with contextlib.suppress(NotImplementedError, OSError):  # TLS cannot be closed in one direction
            self.transport.write_eof()
        self._read(True)
        self.deadline = self.loop.time() + LINGER_S

    def more_wanted(self, body: Body) -> None:
        """A handler waits for the next piece of its body."""
        if body.expected:
            body.expected = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._flow()
        self.deadline = self.loop.time() + self.limits.body_idle_s

    # Ending

    def expire(self) -> None:
        """End, or refuse the request that is being received: its deadline has passed."""
        self.deadline = NEVER
        answered = None if self._exchange is None else self._exchange.body
        if self._intake is not OPEN or self.full or (self._body is not None and self._body.dropped):
            self.abort()
        elif self._parser.begun:
            self._refuse(of_status(408, "the headers took too long", "timeout", ""))
        elif answered is not None and not answered.whole:
            answered.fail(Invalid("the request body timed out", code="timeout"))
        elif self._body is not None:
            self._refuse(of_status(408, "the body took too long", "timeout", ""))
        elif self._answering is IDLE:
            self.transport.close()

    def stop(self) -> None:
        """End when all requests that have arrived are answered; a stream ends now, properly."""
        if self._exchange is not None and self._exchange.stop():
            return
        if self._answering is IDLE and not self._waiting and (self._body is None or self._body.dropped):
            self.transport.close()

    def abort(self) -> None:
        """End now, without the rest of a response."""
        if self.transport is not None:
            self.transport.abort()

    def _refuse(self, response: Response) -> None:
        """End because of what cannot be parsed, when all before it is answered; in a body, that is its request's."""
        self._shut()
        if self._body is None or not self._body.taken:
            self._refusal = response
        else:
            self._body.fail(Invalid("the body cannot be read", code="bad_request"))
        if self._answering is IDLE:
            self._go_on()


def _target(url: bytes) -> tuple[tuple[str, ...], bytes, HeadwaterError | None]:
    try:
        return *parts_of(url), None
    except HeadwaterError as error:
        return (), b"", error
