"""Stored batches over HTTP, as `headwater.open("http://…")` reads and sends them (docs/HTTP.md, "Batches")."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from headwater.engine.waiting import PendingAppend
from headwater.event import At
from headwater.format.frames import MEDIA_TYPE
from headwater.requests import AppendMany
from headwater.server.http.message import Headers, Request, Response
from headwater.server.store import ServedLog
from headwater.server.wire import batches
from headwater.server.wire.pieces import PIECE_BYTES

Places = At | Sequence[int]

LOST_MAX = 100  # ranges of lost offsets that a header names: clients bound the bytes of headers


async def read(store: ServedLog, topic: str, start: Places, end: Places, options: dict[str, Any]) -> Response:
    """What is there now; `options` are those of `Engine.span`. The headers tell where it begins and ends."""

    def begin() -> tuple[Any, Any, bytes]:
        span = store.engine.span(topic, start=start, end=end, **options)
        pieces = batches.encode_all(span.batches)
        return span, pieces, next(pieces, b"")  # which raises what is to be told before the answer begins

    span, pieces, first = await store.blocking(begin)

    async def body() -> AsyncIterator[bytes]:
        if first:
            yield first
            async for piece in store.pump(pieces):
                yield piece

    headers = (*_headers(span.uuid, span.starts, span.lost), ("headwater-to", _told(span.ends)))
    return Response(200, headers, body())


async def follow(store: ServedLog, topic: str, start: Places, filters: dict[str, Any]) -> Response:
    """What is there, and what comes. The headers tell where it begins."""
    cursor = await store.blocking(store.engine.cursor, topic, start=start, **filters)
    lost = await store.blocking(cursor.lost)
    found = await store.feeds.follow(topic, start=cursor.offsets, wait=True, bytes_max=PIECE_BYTES, **filters)

    async def body() -> AsyncIterator[bytes]:
        async for some in found:
            async for piece in store.pump(batches.encode_all(some)):
                yield piece

    return Response(200, _headers(cursor.uuid, cursor.offsets, lost), body(), waits=True)


async def prepare(store: ServedLog, request: Request, options: dict[str, Any]) -> list[PendingAppend]:
    """The appends of a request with batches, of which there is one: all of it or nothing, in each partition."""
    body = await request.body(store.limits.body_bytes_max)

    def decode() -> list[PendingAppend]:
        parsed = batches.parse(body, store.engine.limits)
        columns, limits = parsed.columns, store.engine.limits
        asked = AppendMany.of(request.name, parsed.content, columns, parsed.count, limits, **options)
        return store.engine.prepare_many(asked)

    return await store.blocking(decode)


def _headers(uuid: str, offsets: Sequence[int], lost: Sequence[tuple[int, int, int]]) -> Headers:
    told = ",".join([f"{partition}:{lo}-{hi - 1}" for partition, lo, hi in lost[:LOST_MAX]])
    return (
        ("content-type", MEDIA_TYPE),
        ("headwater-topic", uuid),
        ("headwater-from", _told(offsets)),
        *((("headwater-lost", told),) if told else ()),
    )


def _told(offsets: Sequence[int]) -> str:
    return ",".join(map(str, offsets))
