"""Stored batches over HTTP, as `headwater.open("http://…")` reads and sends them (docs/HTTP.md, "Batches")."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from headwater.format.frames import MEDIA_TYPE
from headwater.position import Positions
from headwater.requests import Read
from headwater.server.http.message import Headers, Response
from headwater.server.service import Service
from headwater.server.wire import batches
from headwater.server.wire.pieces import PIECE_BYTES

LOST_MAX = 100  # ranges of lost offsets that a header names: clients bound the bytes of headers


async def read(
    service: Service, topic: str, start: Positions, end: Positions, options: dict[str, Any], *, by_time: bool
) -> Response:
    """Return the events up to now; `options` are those of `Store.read`. The headers tell where it begins and ends."""

    def begin() -> tuple[Any, Any, bytes]:
        span = service.backend.span(
            Read.of(topic, service.backend.limits, start=start, end=end, **options), by_time=by_time
        )
        pieces = batches.encode_all(span.batches)
        return span, pieces, next(pieces, b"")  # which raises what is to be told before the answer begins

    span, pieces, first = await service.blocking(begin)

    async def body() -> AsyncIterator[bytes]:
        if first:
            yield first
            async for piece in service.pump(pieces):
                yield piece

    headers = (*_headers(span.uuid, span.starts, span.lost), ("headwater-to", _told(span.ends)))
    return Response(200, headers, body())


async def follow(service: Service, topic: str, start: Positions, filters: dict[str, Any]) -> Response:
    """Return the events up to now and new ones. The headers tell where it begins."""
    cursor = await service.blocking(service.backend.cursor, topic, start=start, **filters)
    lost = await service.blocking(cursor.lost)
    found = await service.feeds.follow(topic, start=cursor.offsets, wait=True, bytes_max=PIECE_BYTES, **filters)

    async def body() -> AsyncIterator[bytes]:
        async for some in found:
            async for piece in service.pump(batches.encode_all(some)):
                yield piece

    return Response(200, _headers(cursor.uuid, cursor.offsets, lost), body(), waits=True)


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
