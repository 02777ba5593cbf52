"""Requests and responses as handlers see them, both from the HTTP protocol of this server and from ASGI.

A handler is `async def handler(service, request) -> Response`. It reads the body with `request.body(...)` or piece by
piece with `request.chunks()`, and raises errors of `headwater.errors`, which become responses. `head` encodes the
status line and the headers of a response. Belongs to the loop's thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote_to_bytes

import httptools
import msgspec

from headwater.errors import HeadwaterError, Invalid, TooLarge, Unavailable
from headwater.server.rights import NOBODY, Action

if TYPE_CHECKING:
    from headwater.server.http.route import Route


Headers = tuple[tuple[str, str], ...]
UNBUFFERED = ("x-accel-buffering", "no")  # said with every stream, which nginx would else hold back
JSON = "application/json"
_encode = msgspec.json.Encoder().encode


def parts_of(url: bytes) -> tuple[tuple[str, ...], bytes]:
    """Return the parts and the raw query. A part may hold any character, also a slash: it is a name, never a path."""
    if url[:1] != b"/":
        try:
            parsed = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError as error:
            raise Invalid("the URL cannot be parsed", code="bad_request") from error
        path, query = parsed.path or b"/", parsed.query or b""
    else:
        path, _, query = url.partition(b"?")
        query = query.partition(b"#")[0]
    return decode_path(path), query


def decode_path(path: bytes) -> tuple[str, ...]:
    """Return the parts of a percent-encoded path. A slash at its end means nothing: many clients add one."""
    if len(path) > 1:
        path = path.removesuffix(b"/")
    try:
        if b"%" in path:
            return tuple(unquote_to_bytes(part).decode() for part in path.split(b"/")[1:])
        return tuple(path.decode().split("/")[1:])
    except UnicodeDecodeError as error:
        raise Invalid("the URL is not UTF-8", code="bad_request") from error


async def nothing() -> bytes:
    """Return no piece: the body of a request without one."""
    return b""


class QueryParameters:
    """The parameters of a request. Each getter takes a default, and raises Invalid for a bad value."""

    def __init__(self, raw: bytes) -> None:
        self._values: dict[str, bytes] = {}
        if not raw:
            return
        escaped = b"%" in raw or b"+" in raw
        for pair in raw.split(b"&"):
            name, _, value = pair.partition(b"=")
            if escaped:
                name, value = (unquote_to_bytes(part.replace(b"+", b" ")) for part in (name, value))
            decoded = name.decode(errors="replace")
            if decoded in self._values:
                raise Invalid(f"duplicate parameter {decoded!r}", code="bad_parameter")
            if decoded:
                self._values[decoded] = value

    def only(self, names: Sequence[str]) -> QueryParameters:
        """Raise Invalid for a parameter of another name: a typing error would else be a silent surprise."""
        for name in self._values:
            if name not in names:
                raise Invalid(
                    f"unknown parameter {name!r}",
                    hint=f"known parameters: {', '.join(names)}" if names else "there are none here",
                    code="bad_parameter",
                )
        return self

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def data(self, name: str) -> bytes | None:
        """Return the bytes of a parameter, which need not be text; None if it is absent."""
        return self._values.get(name)

    def text(self, name: str, default: str | None = None) -> str | None:
        value = self._values.get(name)
        if value is None:
            return default
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise Invalid(f"the parameter {name!r} is not UTF-8", code="bad_parameter") from error

    def number(self, name: str, default: int | None = None, *, most: int = (1 << 63) - 1) -> int | None:
        """Return a number that is not negative."""
        value = self._values.get(name)
        if value is None:
            return default
        if not value.isdigit() or len(value) > 19 or int(value) > most:
            raise Invalid(
                f"the parameter {name!r} is not a number from 0 to {most}: {value[:40].decode(errors='replace')!r}",
                code="bad_parameter",
            )
        return int(value)

    def seconds(self, name: str) -> float | None:
        """Return a number of seconds; None if it is absent."""
        said = self.text(name)
        if said is None:
            return None
        try:
            seconds = float(said)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 1e9:
            raise Invalid(f"the parameter {name!r} is not a number of seconds", code="bad_parameter")
        return seconds

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if value not in (b"true", b"false"):
            raise Invalid(f"the parameter {name!r} must be 'true' or 'false'", code="bad_parameter")
        return value == b"true"

    def choice(self, name: str, of: Iterable[str], default: str | None = None) -> str | None:
        value = self.text(name, default)
        if value is not None and name in self._values and value not in of:
            raise Invalid(f"the parameter {name!r} must be one of {', '.join(of)}", code="bad_parameter")
        return value


class Budget:
    """Limits the memory that all requests together may use."""

    def __init__(self, bytes_max: int) -> None:
        self.held = 0
        self._bytes_max = bytes_max

    def take(self, size: int) -> None:
        """Hold so much more; raises Unavailable if that is too much."""
        self.check(size)
        self.held += size

    def check(self, size: int) -> None:
        """Raise Unavailable if so much more would be too much."""
        if self.held + size > self._bytes_max:
            raise Unavailable("too many requests are in memory", hint="try again soon", code="overloaded")

    def count(self, change: int) -> None:
        """Hold so much more, or less, of what is small, or was checked."""
        self.held += change

    @property
    def scarce(self) -> bool:
        """Return whether half of it is taken: then connections are read only as far as they must be."""
        return self.held * 2 > self._bytes_max

    def give_back(self, size: int) -> None:
        self.held -= size


UNBOUNDED = Budget(1 << 62)


class Request:
    """One request. `headers` have lower-case names; `path` is its parts, percent-decoded; `client` is its sender."""

    __slots__ = (
        *("admitted", "budget", "client", "failure", "headers", "held", "http10", "keep_alive", "method", "path"),
        *("receive", "root", "route", "target", "user", "_query", "_raw_query"),
    )

    def __init__(
        self, method: str, path: tuple[str, ...], raw_query: bytes, headers: Mapping[str, str], client: Client
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.client = client
        self.user = NOBODY
        self.route: Route | None = None  # once it is found
        self.admitted = False  # whether what headers and path say was checked
        self.failure: HeadwaterError | None = None  # what is wrong with the message itself
        self.keep_alive = True
        self.http10 = False
        self.target = b""  # path and query as they were sent
        self.root = ""  # where the routes are mounted, in an application around them
        self.budget = UNBOUNDED
        self.held = 0  # of the budget
        self.receive: Callable[[], Awaitable[bytes]] = nothing
        """Return the next piece of the body, and b"" at its end; raises when the client has gone."""
        self._raw_query = raw_query
        self._query: QueryParameters | None = None

    def repeated(self, target: bytes, headers: Mapping[str, str]) -> Request:
        """Return another request with the same head, but for its target and the values of some headers."""
        path, _, query = target.partition(b"?")
        known = self.target.partition(b"?")[0] == path
        request = Request(self.method, self.path if known else decode_path(path), query, headers, self.client)
        request.target = target
        if known:
            request.route, request.admitted = self.route, self.admitted
        if target == self.target:
            request._query = self._query
        return request

    def action(self, condition: str = "") -> Action:
        """Return the action that the route needs, or needs under a condition."""
        assert self.route is not None
        return self.route.action(condition)

    @property
    def pattern(self) -> str:
        """Return the pattern of the route; empty as long as none is found."""
        return "" if self.route is None else self.route.pattern

    @property
    def name(self) -> str:
        """Return the first name in the path: of a topic, or of a consumer."""
        return self.path[1]

    @property
    def query(self) -> QueryParameters:
        if self._query is None:
            self._query = QueryParameters(self._raw_query)
        return self._query

    @property
    def length(self) -> int | None:
        """Return the length of the body, if the request says it."""
        said = self.headers.get("content-length")
        return int(said) if said is not None and said.isdigit() else None

    @property
    def media_type(self) -> str:
        """Return the `Content-Type` without its parameters, in lower case; empty if there is none."""
        said = self.headers.get("content-type")
        return _media_type(said) if said else ""

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces as it arrives; the client is slowed down while none is taken."""
        while piece := await self.receive():
            yield piece

    async def body(self, bytes_max: int) -> bytes:
        """Return the whole body; raises TooLarge, before it is read where its length was said."""
        if (self.length or 0) > bytes_max:
            raise _body_too_large(self.length or 0, bytes_max)
        self._hold(self.length or 0)  # before it is asked for, so that it need not be sent in vain
        pieces, size = [], 0
        async for piece in self.chunks():
            size += len(piece)
            if size > bytes_max:
                raise _body_too_large(size, bytes_max)
            self._hold(size - self.held)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _hold(self, more: int) -> None:
        if more > 0:
            self.budget.take(more)
            self.held += more


class Client:
    """The peer of a connection. `certificate` is the subject of its verified client certificate."""

    __slots__ = ("address", "cache", "certificate", "secure")

    def __init__(self, address: str = "", *, secure: bool = False, certificate: str | None = None) -> None:
        self.address = address
        self.secure = secure
        self.certificate = certificate
        self.cache: dict[Any, Any] = {}  # what the connection may keep: a password is checked once


class StreamSink(Protocol):
    """The target of a stream: a connection. Belongs to the loop's thread."""

    def write(self, chunk: bytes) -> bool:
        """Send it; False when there is no more room: then wait for `BodyStream.resume`. Never raises."""
        ...

    def write_framed(self, chunk: bytes, framed: bytes) -> bool:
        """Send it; `framed` is its form in chunks of HTTP, which is made once for many connections."""
        ...

    def end(self) -> None:
        """End the answer properly."""
        ...


class BodyStream(Protocol):
    """A body that writes itself as things happen, without a task of its own: live delivery to many."""

    def begin(self, sink: StreamSink) -> None: ...
    def resume(self) -> None:
        """There is room again."""
        ...

    def close(self) -> None:
        """Release everything: the client disconnected, or the server stops."""
        ...


class Response:
    """A response. An iterator or a stream is sent as it produces data, and closed when the client disconnects."""

    __slots__ = ("body", "headers", "status", "waits")

    def __init__(
        self,
        status: int = 200,
        headers: Headers = (),
        body: bytes | AsyncIterator[bytes] | BodyStream = b"",
        *,
        waits: bool = False,
    ) -> None:
        """`waits` says that the body may have nothing for long: a client that sends no more has left then."""
        self.waits = waits
        self.status = status
        self.headers = headers if isinstance(body, bytes) else (*headers, UNBUFFERED)
        self.body = body


def whole(response: Response) -> bytes:
    """Return the body of an answer that is in memory."""
    assert isinstance(response.body, bytes)
    return response.body


def json(value: Any, status: int = 200, headers: Headers = ()) -> Response:
    """Return an answer in JSON."""
    return Response(status, (("content-type", JSON), *headers), _encode(value))


@lru_cache(maxsize=256)
def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _body_too_large(size: int, most: int) -> TooLarge:
    return TooLarge(
        f"the body has at least {size} bytes; the limit is {most}", limit="body_bytes_max", maximum=most, size=size
    )


_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
SAFE = b"x-content-type-options: nosniff\r\ncache-control: no-store\r\n"  # nothing of a log is for others' caches


def head(
    response: Response, *, length: int | None, close: bool, chunked: bool = True, keep_alive: bool = False
) -> bytes:
    """Return the status line and the headers of an answer; `keep_alive` says what clients of HTTP/1.0 must be told."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (response.status, _PHRASES.get(response.status, b"")), SAFE]
    lines += [f"{name}: {value}\r\n".encode("latin-1") for name, value in response.headers]
    if length is not None:
        if response.status != 204:
            lines.append(b"content-length: %d\r\n" % length)
    elif chunked:
        lines.append(b"transfer-encoding: chunked\r\n")
    if close:
        lines.append(b"connection: close\r\n")
    elif keep_alive:
        lines.append(b"connection: keep-alive\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
