"""The HTTP application as plain ASGI, to be mounted in Starlette or FastAPI, or run by uvicorn.

    app = headwater.asgi("data")
    Starlette(routes=[Mount("/log", app)], lifespan=app.lifespan)

The log is opened by the first request or by the `lifespan` of the ASGI server, and closed by that or by `close`.
Authentication is up to the surrounding application, unless `access` is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from headwater.errors import Closed, HeadwaterError
from headwater.opening import open_directory
from headwater.server.access import Access, OpenAccess
from headwater.server.http.app import HttpApplication
from headwater.server.http.message import BodyStream, Client, Request, Response, decode_path
from headwater.server.metrics import CountingDisk, Metrics
from headwater.server.service import Service
from headwater.server.settings import ServerSettings
from headwater.store import Store

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

SAFE = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


def asgi(
    address: str | os.PathLike[str], *, access: Access | None = None, settings: ServerSettings | None = None
) -> Asgi:
    """Return a log directory as an ASGI application, to be mounted or run. It is opened with its first request.

    Authentication is up to the surrounding application, unless `access` is given: without both, everything is allowed.
    """
    return Asgi(Path(address), access=access or OpenAccess(), settings=settings or ServerSettings())


class Asgi:
    """An ASGI application over a log directory. Belongs to one loop."""

    def __init__(self, path: Path, *, access: Access, settings: ServerSettings) -> None:
        self._path = path
        self._access = access
        self._settings = settings
        self._opening: asyncio.Task[HttpApplication] | None = None
        self._store: Store | None = None
        self._closed = False
        self._cache: dict[Any, Any] = {}  # passwords that were right, by their digests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """Open for the time of an application around it, which does not tell what is mounted of its own end."""
        await self.open()
        try:
            yield
        finally:
            await self.close()

    async def open(self) -> HttpApplication:
        """Open the log, if it is not; raises what `headwater.open` raises."""
        if self._closed:
            raise Closed("the application was closed")
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        """End live streams, finish what waits, and close the log. May be called twice."""
        self._closed = True
        opening, self._opening = self._opening, None
        if opening is not None:
            with contextlib.suppress(HeadwaterError):
                app = await opening
                await app.service.close()
        store, self._store = self._store, None
        if store is not None:
            await asyncio.to_thread(store.close)

    async def _open(self) -> HttpApplication:
        metrics = Metrics(CountingDisk())
        self._store = await asyncio.to_thread(open_directory, self._path, disk=metrics.disk)
        return HttpApplication(Service(self._store, self._access, self._settings, metrics))

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.open()
                except HeadwaterError as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = await self.open()
        body = _Body(receive)
        response = await app.answer(_request(scope, body, self._cache))
        headers = [*SAFE, *((name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers)]
        if isinstance(response.body, bytes):
            headers.append((b"content-length", b"%d" % len(response.body)))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        if isinstance(response.body, bytes):
            sent = b"" if scope["method"] == "HEAD" else response.body
            await send({"type": "http.response.body", "body": sent})
            return
        pieces = _pieces(response)
        left = asyncio.ensure_future(body.gone())
        sending = asyncio.ensure_future(_send_all(pieces, send))
        try:
            await asyncio.wait((left, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (left, sending):
                task.cancel()
            await asyncio.gather(left, sending, return_exceptions=True)
            await pieces.aclose()


class _Body:
    """The body of a request, as ASGI gives it."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._whole = False

    async def receive(self) -> bytes:
        """Return the next piece; b"" at the end."""
        while not self._whole:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._whole = True
                raise ConnectionResetError("the client disconnected")
            self._whole = not message.get("more_body", False)
            if piece := message.get("body", b""):
                return bytes(piece)
        return b""

    async def gone(self) -> None:
        """Return when the client has left."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class _SendQueue:
    """A bounded queue between a stream, which writes at any time, and `send`, which may block."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pieces: list[bytes] = []
        self._size = 0
        self._ended = False
        self._news = asyncio.Event()

    def write(self, chunk: bytes) -> bool:
        """Take a piece; False when it is full."""
        self._pieces.append(chunk)
        self._size += len(chunk)
        self._news.set()
        return self._size < self._bytes_max

    def write_framed(self, chunk: bytes, framed: bytes) -> bool:
        """Take a piece; how HTTP frames it is up to the server around."""
        del framed
        return self.write(chunk)

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def take(self) -> bytes:
        """Return all that is there; b"" at the end."""
        while not self._pieces:
            if self._ended:
                return b""
            self._news.clear()
            await self._news.wait()
        taken = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return taken


BUFFER_BYTES = 256 * 1024


async def _stream(stream: BodyStream) -> AsyncIterator[bytes]:
    queue = _SendQueue(BUFFER_BYTES)
    try:
        stream.begin(queue)
        while chunk := await queue.take():
            yield chunk
            stream.resume()
    finally:
        stream.close()


def _pieces(response: Response) -> Any:
    assert not isinstance(response.body, bytes)
    return response.body if isinstance(response.body, AsyncIterator) else _stream(response.body)


async def _send_all(pieces: AsyncIterator[bytes], send: Send) -> None:
    async for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _request(scope: Scope, body: _Body, cache: dict[Any, Any]) -> Request:
    """Return the request; `cache` is shared by all, because ASGI does not tell of connections."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    peer = scope.get("client")
    client = Client(str(peer[0]) if peer else "", secure=scope.get("scheme") == "https")
    client.cache = cache
    failure: HeadwaterError | None = None
    try:
        path = decode_path(_path(scope))
    except HeadwaterError as error:
        path, failure = (), error
    request = Request(scope["method"], path, scope.get("query_string", b""), headers, client)
    request.receive = body.receive
    request.failure = failure
    request.root = scope.get("root_path", "")
    return request


def _path(scope: Scope) -> bytes:
    """Return the path below where we are mounted, still percent-encoded where the server around tells it so."""
    root = scope.get("root_path", "").encode()
    raw = scope.get("raw_path")
    path: bytes = raw.partition(b"?")[0] if raw else scope["path"].encode()
    return path.removeprefix(root) if root and path.startswith(root) else path
