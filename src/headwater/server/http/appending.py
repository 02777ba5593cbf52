"""`POST /topic/{name}/items`: one item of any size, or several events in the format that `Content-Type` names."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from headwater.engine import waiting as waits
from headwater.engine.waiting import Waiting
from headwater.errors import HeadwaterError, Invalid, Unavailable
from headwater.event import Content, Refs, id_of
from headwater.server.http.message import Headers, Request, Response, json
from headwater.server.store import Store

SMALL_BYTES = 1024 * 1024  # up to this, an item is held in memory, and committed with others

# What a plain body is; the formats that need more than a look are in `append`.
CONTENT_BY_MEDIA: dict[str, Content] = {
    "": "bytes",
    "application/octet-stream": "bytes",
    "application/x-www-form-urlencoded": "bytes",  # what curl says of anything
}

_decode_meta = msgspec.json.Decoder(dict[str, str]).decode
_DURABILITIES = ("fsync", "os")


async def append(store: Store, request: Request) -> Response:
    """Append what the body holds."""
    options = _options(request)
    media = request.media_type
    content: Content = "text" if media.startswith("text/") else "bson" if media == "application/bson" else "bytes"
    return await append_item(store, request, content, options)


async def append_item(store: Store, request: Request, content: Content, options: dict[str, Any]) -> Response:
    """Append the body as one event."""
    if (length := request.length) is not None and length <= SMALL_BYTES:
        waiting = store.engine.prepare(request.name, await request.body(SMALL_BYTES), content=content, **options)
        await store.commits.commit([waiting])
        return _one(waiting)
    return await _append_stream(store, request, content, options)


async def _append_stream(store: Store, request: Request, content: Content, options: dict[str, Any]) -> Response:
    """Append a body of any size, piece by piece, holding little of it; no lock is held until all of it is there."""
    await store.blocking(store.engine.describe, request.name)  # a missing topic is not made, and told before the upload
    pieces = _Pieces(asyncio.get_running_loop())
    appending = asyncio.ensure_future(
        store.blocking(store.engine.append, request.name, iter(pieces), content=content, **options)
    )
    try:
        size = 0
        async for piece in request.chunks():
            size += len(piece)
            if size > store.limits.item_bytes_max:
                raise Invalid("the item is too large")
            if not await pieces.put(piece, appending):
                break
        await pieces.put(b"", appending)
    except BaseException as error:
        pieces.fail(error)
        raise
    ref = await appending
    return json(ref.offset)


class _Pieces(Iterator[bytes]):
    """A body between the loop, which receives it, and the thread that stores it: a few pieces at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()

    def __next__(self) -> bytes:
        piece = self._queue.get()
        return b""


def placed(waiting: Waiting) -> bytes:
    """The headers that tell where an event is."""
    rows, log = waiting.rows, waiting.log
    return b"headwater-partition: %d\r\nheadwater-id: %b\r\nheadwater-durability: %b\r\n" % (
        log.place.partition,
        str(id_of(rows.ticks, log.node)).encode(),
        b"fsync" if rows.sync else b"os",
    )
