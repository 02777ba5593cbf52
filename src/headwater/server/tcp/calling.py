"""CALL: any request of the HTTP interface, answered by the application that answers HTTP too.

So routes, rights, errors and metrics are the same. The body is pulled frame by frame: a client whose body nobody takes
is not read. Belongs to the loop's thread.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from headwater.errors import HeadwaterError, Invalid, TooLarge
from headwater.format import bodies, protocol
from headwater.limits import KIB, MIB
from headwater.server.http.message import Request, Response, Stream
from headwater.server.http.target import parts_of
from headwater.server.tcp.answers import failure
from headwater.server.tcp.fields import Fields
from headwater.server.tcp.parts import Part
from headwater.server.tcp.slots import Answer

if TYPE_CHECKING:
    from headwater.server.tcp.connection import Connection

NAMES = ("method", "target", "headers", "body", "more")
BODY_NAMES = ("data", "more")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# What the connection says of itself, and a request may not: who asks is told by CONNECT, and nothing stands between.
IGNORED = frozenset(
    ("authorization", "connection", "content-length", "expect", "host", "origin", "transfer-encoding", "upgrade")
)
PIECE_BYTES = 64 * KIB  # of an answer's body in one frame: what a broken connection has brought is whole frames
REST_BYTES_MAX = MIB  # of a body that nobody wanted, which is read so that the connection can go on; as over HTTP
PART = ("CALL",)  # what a stream is called among the parts of its connection

_NOT_IN_A_TARGET = re.compile(r"[\x00-\x20\x7f]")


async def call(connection: Connection, frame: dict[str, Any]) -> Answer:
    """Answer a request. Whatever is wrong with it is told by a CALLRESPONSE, as HTTP tells it."""
    begun = perf_counter()
    body = Body(connection, frame)
    request = _request(connection, frame, body)
    app = connection.connections.app
    response = await app.answer(request)
    sent = connection.out.sent
    try:
        await _send(connection, request, response)
    finally:
        app.ended(request, response.status, body.received, connection.out.sent - sent, perf_counter() - begun)
    if body.failure is None and response.status != 401 and await body.skip():
        return Answer(b"", counted=True)
    connection.end()
    return Answer(b"" if body.failure is None else failure(body.failure), connection.linger, counted=True)


async def stray(connection: Connection, frame: dict[str, Any]) -> Answer:
    """A CALLBODY that no CALL waits for."""
    del connection, frame
    raise Invalid("CALLBODY belongs to a CALL, and none waits for it", code="no_call")


class Body:
    """The body of one CALL on its way in."""

    def __init__(self, connection: Connection, frame: dict[str, Any]) -> None:
        self.received = 0
        self.failure: HeadwaterError | None = None  # why what comes cannot be trusted any more
        self._connection = connection
        self._first: bytes = b""
        self._more = False
        body, more = (frame.get(name, frame.get(name.capitalize())) for name in ("body", "more"))
        if isinstance(body, bytes):
            self._first = body
            self.received = len(body)
        self._more = more is True

    @property
    def whole(self) -> int | None:
        """How long it is, if all of it has come with the CALL."""
        return None if self._more else len(self._first)

    async def receive(self) -> bytes:
        """The next piece; b"" at the end. Raises ConnectionResetError when the client has gone."""
        while not self._first and self._more:
            self._first = await self._next()
        piece, self._first = self._first, b""
        return piece

    async def skip(self) -> bool:
        """Read what nobody wanted; False if that is too much, or broken, and the connection has to end."""
        skipped = 0
        try:
            while self._more and skipped <= REST_BYTES_MAX:
                skipped += len(await self._next())
        except (HeadwaterError, ConnectionError):
            return False
        return not self._more

    async def _next(self) -> bytes:
        connection = self._connection
        raw = await connection.next_frame()
        try:
            if (found := bodies.decode(raw)) is not None:
                data, self._more = found
                self.received += len(data)
                return data
            type, frame = (
                await connection.store.blocking(protocol.decode_large, raw) if _large(raw) else protocol.decode(raw)
            )
            if type != "CALLBODY":
                raise protocol.bad_frame(f"a body goes on with CALLBODY, and {type[:40]!r} came")
            fields = Fields(type, frame, BODY_NAMES)
            said = fields.data("data") or b""
            if isinstance(said, str):
                raise fields.wrong("needs binary data for 'data'")
            self._more = fields.flag("more")
        except HeadwaterError as error:
            self._more, self.failure = False, error
            raise
        self.received += len(said)
        return said


class Live(Part):
    """An answer that writes itself: for the stream it is the sink, for the connection one of its parts."""

    def __init__(self, connection: Connection, stream: Stream) -> None:
        self.over = connection.loop.create_future()
        self._connection = connection
        self._stream = stream

    def write(self, chunk: bytes) -> bool:
        """Send a piece; False when there is no more room."""
        if self.over.done() or not chunk:
            return True
        return self._connection.write(_frames(chunk))

    def write_framed(self, chunk: bytes, framed: bytes) -> bool:
        """The same: chunks of HTTP are of no use here."""
        del framed
        return self.write(chunk)

    def end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def resume(self) -> None:
        if not self.over.done():
            self._stream.resume()

    def close(self) -> None:
        self.end()


async def _send(connection: Connection, request: Request, response: Response) -> None:
    """Send an answer, as the client takes it."""
    body = response.body
    if request.method == "HEAD":
        await _let_go(body)
        body = b""
    if isinstance(body, bytes):
        first, rest = body[:PIECE_BYTES], memoryview(body)[PIECE_BYTES:]
        connection.write(_head(response, first, more=bool(rest)))
        while rest:
            await connection.room()
            piece, rest = rest[:PIECE_BYTES], rest[PIECE_BYTES:]
            connection.write(bodies.encode(bytes(piece), more=bool(rest)))
        return
    connection.waits = response.waits or not isinstance(body, AsyncIterator)
    try:
        if connection.waits and connection.over:  # the client has left before it began
            connection.abort()
            return
        connection.write(_head(response, b"", more=True))
        if isinstance(body, AsyncIterator):
            await _send_pieces(connection, body)
        else:
            await _send_stream(connection, body)
    finally:
        connection.waits = False
        await _let_go(body)


async def _send_pieces(connection: Connection, pieces: AsyncIterator[bytes]) -> None:
    try:
        async for piece in pieces:
            if piece and not connection.write(_frames(piece)):
                await connection.room()
            if connection.closing:
                return
    except Exception as error:  # noqa: BLE001  # whatever it was, the client must not take this for all
        connection.connections.app.broke_off(error)
        connection.write(protocol.encode("CALLBODY", {"aborted": True}))
        return
    connection.write(_LAST)


async def _send_stream(connection: Connection, stream: Stream) -> None:
    live = Live(connection, stream)
    connection.parts[PART] = live
    try:
        stream.begin(live)
        await live.over
    finally:
        connection.parts.pop(PART, None)
    if not connection.closing:
        connection.write(_LAST)


async def _let_go(body: bytes | AsyncIterator[bytes] | Stream) -> None:
    """Nobody wants more of it."""
    if isinstance(body, bytes):
        return
    if isinstance(body, AsyncIterator):
        close = getattr(body, "aclose", None)
        if close is not None:
            await close()
    else:
        body.close()


def _request(connection: Connection, frame: dict[str, Any], body: Body) -> Request:
    """The request that a CALL carries. What is wrong with the frame is the request's failure."""
    method, target, headers = "", b"", dict(connection.headers)
    path: tuple[str, ...] = ()
    query = b""
    wrong: HeadwaterError | None = None
    try:
        fields = Fields("CALL", frame, NAMES)
        if isinstance(fields.data("body"), str):
            raise fields.wrong("needs binary data for 'body'")
        fields.flag("more")
        method, target = _asked(fields)
        headers |= _headers(fields, connection.limits.header_bytes_max - len(target))
        path, query = parts_of(target)
    except HeadwaterError as error:
        wrong = error
    if body.whole is not None:
        headers["content-length"] = str(body.whole)
    request = Request(method, path, query, headers, body.receive, connection.client)
    request.failure = wrong
    request.target = target
    return request


def _asked(fields: Fields) -> tuple[str, bytes]:
    method, target = fields.text("method", needed=True) or "", fields.text("target", needed=True) or ""
    if method not in METHODS:
        raise fields.wrong(f"has a method that is unknown: {method[:40]!r}", hint=f"it is one of {', '.join(METHODS)}")
    if not target.startswith("/") or _NOT_IN_A_TARGET.search(target):
        raise fields.wrong(f"has a target that is none: {target[:80]!r}", hint="it is as /topic/orders/items?from=0")
    return method, target.encode()


def _headers(fields: Fields, bytes_max: int) -> dict[str, str]:
    """The headers that count, as HTTP has them: names in lower case, and text as its bytes in UTF-8."""
    found: dict[str, str] = {}
    size = 0
    for said, value in (fields.document("headers") or {}).items():
        name = said.lower()
        if not isinstance(value, str):
            raise fields.wrong(f"needs a string for the header {said[:40]!r}")
        if name in found:
            raise fields.wrong(f"has the header {name[:40]!r} twice")
        size += len(name) + len(value)
        if name not in IGNORED:
            found[name] = value if value.isascii() else value.encode().decode("latin-1")
    if size > bytes_max:
        raise TooLarge(
            f"the headers have {size} bytes, and may have {bytes_max} beside the target",
            code="headers_too_large",
            limit="header_bytes_max",
            maximum=bytes_max,
        )
    return found


def _head(response: Response, body: bytes, *, more: bool) -> bytes:
    headers: dict[str, str] = {}
    for name, value in response.headers:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    told = {"status": response.status, "headers": headers, "body": body, "more": more}
    return protocol.encode("CALLRESPONSE", told)


def _frames(piece: bytes) -> bytes:
    """A piece of an answer that goes on, in as many frames as it needs."""
    if len(piece) <= PIECE_BYTES:
        return bodies.encode(piece, more=True)
    starts = range(0, len(piece), PIECE_BYTES)
    return b"".join(bodies.encode(piece[start : start + PIECE_BYTES], more=True) for start in starts)


def _large(raw: bytes) -> bool:
    """Whether decoding it takes so long that the loop must not wait."""
    return len(raw) > MIB


_LAST = bodies.encode(b"", more=False)
