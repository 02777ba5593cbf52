"""Parses requests: httptools splits the bytes, and this module collects and checks the head, and buffers the body.

What has come and is not parsed yet waits in `rest`, so that a client that sends many requests in one write is parsed
no further than its connection has room for. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import httptools

from headwater.errors import HeadwaterError, Invalid, TooLarge
from headwater.server.http.errors import of_status, response_of
from headwater.server.http.message import Response

if TYPE_CHECKING:
    from headwater.limits import ServerLimits
    from headwater.server.http.message import Request
    from headwater.server.http.protocol import ServerConnection


SLICE_BYTES = 16 * 1024  # parsed at once: some hundred requests at most, beyond those that may wait

# As clients write them, to save the work; others are made lower case one by one.
_NAMES = {name.title().encode(): name for name in ("accept", "connection", "content-length", "content-type", "host")}
_NAMES |= {name.encode(): name for name in (*_NAMES.values(), "authorization", "user-agent")}
_NAMES |= {b"Authorization": "authorization", b"User-Agent": "user-agent"}
_ONCE = frozenset(("authorization", "content-length", "content-type", "host", "transfer-encoding"))

VERSION = b" HTTP/1.1\r\n"
_VARIABLE = ("content-length", "headwater-producer", "headwater-epoch", "headwater-seq")
VALUE_BYTES_MAX = 255
REPEATED_BYTES_MAX = 2048  # of a head that is remembered, in each connection
NOT_REPEATED = frozenset(("expect", "transfer-encoding", "upgrade"))  # they need the parser's rules
DIGITS_MAX = 19
_word = re.compile(rb"[!-~]+").fullmatch
_target = re.compile(rb'/[!"$-~]*').fullmatch  # any visible character but the one that begins a fragment


class RequestParser:
    """The requests of one connection, one after the other. Notifies the connection of each head, piece and end."""

    __slots__ = (
        *("begun", "headers", "rest", "url"),
        *("on_body", "on_message_complete", "_head_complete"),
        *("_header_bytes", "_limits", "_parser", "_silent_bytes", "_twice"),
    )

    def __init__(self, connection: ServerConnection, limits: ServerLimits) -> None:
        self.begun = False  # a first byte has come, and the headers are not whole
        self.url = b""
        self.headers: dict[str, str] = {}
        self.rest = memoryview(b"")  # what has come, and is not parsed
        self.on_body = connection.on_body
        self.on_message_complete = connection.on_message_complete
        self._head_complete = connection.on_headers_complete
        self._limits = limits
        self._header_bytes = 0  # of the names and values that have come
        self._silent_bytes = 0  # that have come since the last event of the parser, which may keep them
        self._twice = False  # a header came twice which may come only once
        self._parser = httptools.HttpRequestParser(self)

    @property
    def method(self) -> str:
        """Return the method of the request whose head is whole."""
        return self._parser.get_method().decode("ascii")

    @property
    def http10(self) -> bool:
        """Return whether that request is of HTTP/1.0."""
        return self._parser.get_http_version() == "1.0"

    @property
    def keeps_alive(self) -> bool:
        """Return whether the connection may go on after that request: what follows an upgrade is no HTTP."""
        return self._parser.should_keep_alive() and not self._parser.should_upgrade()

    def add(self, data: bytes) -> None:
        """Keep what has come until it is parsed."""
        self.rest = memoryview(bytes(self.rest) + data if self.rest else data)

    def parse(self) -> bool:
        """Parse a slice of what has come. False if the protocol ends here; raises what is wrong as a parser does."""
        piece, self.rest = self.rest[:SLICE_BYTES], self.rest[SLICE_BYTES:]
        self._silent_bytes += len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            return False
        if self._silent_bytes > self._limits.header_bytes_max:  # a header, a trailer or a chunk's line without an end
            raise _too_large(self._silent_bytes, self._limits)
        return True

    # What httptools calls

    def on_message_begin(self) -> None:
        self.begun = True
        self._silent_bytes = self._header_bytes = 0
        self.url = b""
        self.headers = {}
        self._twice = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.begun:
            return  # a trailer: a proxy that checked the headers has not seen it
        self._header_bytes += len(name) + len(value)
        key = _NAMES.get(name) or name.lower().decode("latin-1")
        headers = self.headers
        if key in headers:
            if key in _ONCE:
                self._twice = True
            headers[key] = f"{headers[key]}, {value.decode('latin-1')}"
        else:
            headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.begun = False
        self._silent_bytes = 0
        self._check_head()
        self._head_complete()

    def progress(self) -> None:
        """Something has come of a body: the parser keeps nothing of it."""
        self._silent_bytes = 0

    def _check_head(self) -> None:
        """Raise what is wrong with the headers as such. Where the request ends is in doubt then: no other is read."""
        headers = self.headers
        if self._header_bytes + len(self.url) > self._limits.header_bytes_max:
            raise _too_large(self._header_bytes + len(self.url), self._limits)
        if self._twice:
            raise Invalid("duplicate header that must not be repeated", code="bad_request")
        coding = headers.get("transfer-encoding")
        if coding is None and "host" in headers:
            return
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise Invalid(f"HTTP/{version} is not supported", hint="use HTTP/1.1", code="bad_request")
        if version == "1.1" and "host" not in headers:
            raise Invalid("the Host header is missing", code="bad_request")
        if coding is not None and (coding.strip().lower() != "chunked" or version == "1.0"):
            raise Invalid("unsupported Transfer-Encoding", hint="use chunked", code="bad_request")


class RepeatedHead:
    """The head of a connection's last request. Clients repeat it, with another length, producer, and maybe target.

    `match` reads such a head without the parser, which would take half of the time of a small request.
    """

    __slots__ = ("_gaps", "_last", "_pieces", "_start")

    def __init__(self) -> None:
        self._last: Request | None = None  # whose head is known
        self._start = b""  # its method and a space
        self._gaps: list[str] = []  # headers whose values differ from request to request
        self._pieces: list[bytes] = []  # what is around them, from the version on: one more than gaps

    def learn(self, data: bytes, request: Request) -> None:
        """Remember the head of a request as it was parsed, if data is that one request and no more."""
        self._last = None
        headers, start = request.headers, request.method.encode() + b" "
        line, end = data.find(VERSION), data.find(b"\r\n\r\n") + 4
        if end > REPEATED_BYTES_MAX or int(headers.get("content-length", "0")) != len(data) - end:
            return
        if request.http10 or not request.keep_alive or not NOT_REPEATED.isdisjoint(headers):
            return
        if data[:line] != start + request.target or not _target(request.target):
            return
        block, pieces, gaps, at = data[line:end], [], [], 0
        lower = block.lower()
        for found, name in sorted((lower.find(b"\r\n%b: " % name.encode()), name) for name in _VARIABLE):
            if found >= 0:
                value = found + len(name) + 4
                stop = block.find(b"\r", value)
                if block[value:stop] != headers[name].encode("latin-1") or not _is_value(name, block[value:stop]):
                    return  # it comes twice, or has spaces around it
                pieces.append(block[at:value])
                gaps.append(name)
                at = stop
        self._last, self._start, self._gaps, self._pieces = request, start, gaps, [*pieces, block[at:]]

    def match(self, data: bytes) -> tuple[Request, bytes] | None:
        """Return the request and its body, if data is one whole request with the head that was learned."""
        last, start = self._last, self._start
        if last is None or not data.startswith(start):
            return None
        at = data.find(VERSION, 0, REPEATED_BYTES_MAX)
        target = data[len(start) : at]
        if at < 0 or not (target == last.target or _target(target)):
            return None
        headers, pieces, size = last.headers, self._pieces, 0
        if self._gaps:
            headers = dict(headers)
            for piece, name in zip(pieces, self._gaps, strict=False):
                value = at + len(piece)
                stop = data.find(b"\r", value, value + VALUE_BYTES_MAX + 1)
                given = data[value:stop]
                if stop < 0 or not data.startswith(piece, at) or not _is_value(name, given):
                    return None
                headers[name] = given.decode("ascii")
                at = stop
            size = int(headers.get("content-length", "0"))
        end = at + len(pieces[-1])
        if len(data) - end != size or not data.startswith(pieces[-1], at):
            return None
        return last.repeated(target, headers), data[end:]


def _is_value(name: str, value: bytes) -> bool:
    """Return whether the value of a variable header needs no rule of the parser: a number, or a visible word."""
    return _word(value) is not None if name == "headwater-producer" else value.isdigit() and len(value) <= DIGITS_MAX


def parse_failure(error: Exception) -> Response:
    """Return the answer to what could not be parsed."""
    if isinstance(error, HeadwaterError):
        return response_of(error)
    if isinstance(error, httptools.HttpParserCallbackError) and isinstance(error.__context__, HeadwaterError):
        return response_of(error.__context__)
    return of_status(400, "malformed HTTP request", "bad_request", str(error)[:200])


def _too_large(size: int, limits: ServerLimits) -> TooLarge:
    most = limits.header_bytes_max
    told = f"the headers have at least {size} bytes; the limit is {most}"
    return TooLarge(told, code="headers_too_large", limit="header_bytes_max", maximum=most)


class Body:
    """The body of one request on its way in."""

    __slots__ = (
        *("connection", "dropped", "expected", "failure", "pieces", "received", "size", "taken", "waiter", "whole"),
    )

    def __init__(self, connection: ServerConnection, whole: bytes | None = None) -> None:
        """`whole` is all of it, if it has arrived with its head."""
        self.connection = connection
        self.pieces: list[bytes] = [whole] if whole else []
        self.received = self.size = len(whole or b"")  # in all; and of the pieces that wait, or were thrown away
        self.whole = whole is not None
        self.taken = False  # whether its request has begun to be answered, or waits for that
        self.dropped = False  # whether the request was answered without it
        self.expected = False  # whether the client waits for a word before it sends
        self.failure: BaseException | None = None
        self.waiter: asyncio.Future[None] | None = None

    async def receive(self) -> bytes:
        """Return the next piece; b"" at the end."""
        while not self.pieces:
            if self.failure is not None:
                raise self.failure
            if self.whole:
                return b""
            waiter = self.waiter = self.connection.loop.create_future()
            self.connection.more_wanted(self)
            await waiter
        piece = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)  # they are parsed in small slices
        self.pieces.clear()
        self.size = 0
        return piece

    def drop(self) -> None:
        """Throw away what has come of it, and what will."""
        self.dropped = True
        self.pieces.clear()
        self.size = 0

    def put(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.dropped:
            return
        self.pieces.append(piece)
        self.received += len(piece)
        if self.waiter is not None:
            self._wake()

    def end(self) -> None:
        self.whole = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        if not self.whole and self.failure is None:
            self.failure = error
        self._wake()

    def _wake(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
