"""`GET /topic/{name}/items`: the events of a topic in the format that `Accept` names, to an end, or as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from headwater import position
from headwater.errors import Invalid
from headwater.format import frames
from headwater.format.events import EventBatch
from headwater.limits import PARTITIONS_MAX, SPLIT_BYTES
from headwater.position import Position, Positions
from headwater.server.http import batches, sse
from headwater.server.http.message import QueryParameters, Request, Response, json
from headwater.server.service import Service
from headwater.server.wire import arrow, items, lines
from headwater.server.wire.decoding import decoded
from headwater.server.wire.pieces import PIECE_BYTES, Cut

Encode = Callable[[Iterable[EventBatch], Cut | None], Iterator[bytes]]
_decode_match = msgspec.json.Decoder(dict[str, Any]).decode


class Format(NamedTuple):
    """A format of events in a response. `encode` is None for those that need more than batches."""

    name: str
    media: str
    encode: Encode | None
    names_partitions: bool = True  # whether an event says which partition it is of
    can_wait: bool = True


ITEMS = Format("items", "application/octet-stream", items.encode, names_partitions=False)
SSE = Format("sse", "text/event-stream", None)
LINES = Format("ndjson", "application/x-ndjson", lines.encode_all)
ARRAY = Format("json", "application/json", lines.encode_array, can_wait=False)
ARROW = Format("arrow", arrow.MEDIA_TYPE, None, can_wait=False)
BATCHES = Format("batches", frames.MEDIA_TYPE, None)
FORMATS = (ITEMS, SSE, LINES, ARRAY, ARROW, BATCHES)


class ReadQuery(NamedTuple):
    """The parsed query. `filters` are those of `Store.read_batches`, with the partition."""

    start: Position
    cut: Cut
    wait: bool | None
    filters: dict[str, Any]


async def read(service: Service, request: Request) -> Response:
    """Return the events that the query asks for."""
    format = chosen(request, FORMATS)
    if format is BATCHES:
        return await _batches(service, request)
    asked = _asked(request)
    topic = request.name
    if format is SSE:
        return await _server_sent(service, request, asked)
    if asked.wait and not format.can_wait:
        raise Invalid(
            f"{format.name} does not support wait_for_more", hint="use ndjson, sse or items", code="bad_parameter"
        )
    await _check_partition(service, topic, asked, format)
    headers = (("content-type", format.media),)
    if asked.wait:
        assert format.encode is not None
        found = await service.feeds.follow(
            topic, start=asked.start, stop=asked.cut.end, wait=True, bytes_max=PIECE_BYTES, **asked.filters
        )
        return Response(200, headers, _follow(service, found, format.encode, asked.cut), waits=True)
    pieces = await service.blocking(_pieces, service, request, format, asked)
    first = await service.blocking(next, pieces, b"")  # which raises what is to be told before the answer begins
    return Response(200, headers, _prepend(first, service.pump(pieces)))


async def splits(service: Service, request: Request) -> Response:
    """Parts of a topic for different workers to read."""
    query = request.query
    found = await service.blocking(
        service.store.splits,
        request.name,
        start=_positions(query, "from", "earliest"),
        end=_positions(query, "end_before", "latest"),
        partition=query.number("partition"),
        split_bytes=query.number("split_bytes") or SPLIT_BYTES,
    )
    return json(await service.blocking(msgspec.to_builtins, found))


async def _batches(service: Service, request: Request) -> Response:
    """Return the events as stored batches, for clients of ours."""
    query = request.query
    filters = filters_of(query) | {"partition": query.number("partition")}
    start = _positions(query, "from", "earliest")
    if query.flag("wait_for_more"):
        return await batches.follow(service, request.name, start, filters)
    options = filters | {"reverse": query.flag("reverse")}
    by_time = query.choice("order", ("partition", "time")) == "time"
    end = _positions(query, "end_before", "latest")
    return await batches.read(service, request.name, start, end, options, by_time=by_time)


async def _server_sent(service: Service, request: Request, asked: ReadQuery) -> Response:
    """The events as server-sent events, live unless it is said otherwise. Without an end, many share one reader."""
    await _check_partition(service, request.name, asked, SSE)
    bounded = asked.cut if asked.cut.bounded else None
    return await sse.respond(
        service,
        request,
        request.name,
        start=asked.start,
        wait=asked.wait is not False,
        stop=asked.cut.end,
        end=bounded,
        **asked.filters,
    )


def _pieces(service: Service, request: Request, format: Format, asked: ReadQuery) -> Iterator[bytes]:
    """Return the answer up to what is there now. In a worker thread."""
    end: Position = "latest" if asked.cut.end is None else asked.cut.end
    found = service.store.read_batches(request.name, start=asked.start, end=end, **asked.filters)
    if format is ARROW:
        columns = request.query.text("columns")
        return arrow.encode(found, asked.cut, None if columns is None else columns.split(","))
    assert format.encode is not None
    return format.encode(found, asked.cut)


async def _follow(
    service: Service, found: AsyncIterator[list[EventBatch]], encode: Encode, cut: Cut
) -> AsyncIterator[bytes]:
    over = cut.done
    if over:
        return
    async for some in found:
        async for piece in service.pump(encode(some, cut)):
            yield piece
        if cut.done:
            return


async def _prepend(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
        async for piece in rest:
            yield piece


async def _check_partition(service: Service, topic: str, asked: ReadQuery, format: Format) -> None:
    """Raise Invalid if an offset is given for several partitions."""
    if asked.filters.get("partition") is not None or (format.names_partitions and asked.cut.end is None):
        return
    partitions = len((await service.blocking(service.store.describe, topic)).partitions)
    if partitions > 1:
        raise Invalid(
            f"topic {topic!r} has {partitions} partitions, but an id is an offset in one partition",
            hint="give partition=, or accept application/x-ndjson",
            code="partition_needed",
        )


def chosen(request: Request, formats: tuple[Format, ...]) -> Format:
    """Return the format that a request asks for, in its query or by `Accept`; the first of them if it does not care."""
    named = request.query.choice("format", [each.name for each in formats])
    if named is not None:
        return next(each for each in formats if each.name == named)
    accept = request.headers.get("accept", "*/*")
    wanted = sorted(_ranges(accept), key=lambda pair: -pair[1])
    for media, quality in wanted:
        for each in formats:
            if quality > 0 and (media in (each.media, "*/*") or media == f"{each.media.partition('/')[0]}/*"):
                return each
    raise Invalid(
        f"no format in {accept!r} is available",
        hint=f"available: {', '.join(each.media for each in formats)}",
        code="not_acceptable",
    )


def _ranges(accept: str) -> list[tuple[str, float]]:
    """Return the media types of an `Accept` header with their qualities."""
    found = []
    for part in accept.split(",")[:50]:
        media, *parameters = part.lower().split(";")
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "q":
                try:
                    quality = float(value)
                except ValueError:
                    quality = 0.0
        found.append((media.strip(), quality))
    return found


def _asked(request: Request) -> ReadQuery:
    query = request.query
    cut = Cut(query.number("end_before"), query.number("end_after"), query.number("max_items"))
    wait = query.flag("wait_for_more") if "wait_for_more" in query else None
    return ReadQuery(_start(query), cut, wait, filters_of(query) | {"partition": query.number("partition")})


def filters_of(query: QueryParameters) -> dict[str, Any]:
    """Return the filters of a query, as the engine's verbs take them."""
    match = query.data("match")
    said = None if match is None else decoded(_decode_match, match, "the match is not a JSON object", "bad_match")
    return {"type": query.text("type"), "key": query.data("key"), "match": said}


def _start(query: QueryParameters) -> Position:
    return _position(query, "from", "earliest")


def _position(query: QueryParameters, name: str, default: Position) -> Position:
    return _checked(query, name, default, position.parse)


def _positions(query: QueryParameters, name: str, default: Position) -> Positions:
    """Return a position, or the comma-separated offsets of all partitions."""
    return _checked(query, name, default, partial(position.parse_several, most=PARTITIONS_MAX))


T = TypeVar("T")


def _checked(query: QueryParameters, name: str, default: Position, parse: Callable[[str], T]) -> T | Position:
    given = [each for each in (name, f"{name}_time", f"{name}_id") if each in query]
    if len(given) > 1:
        raise Invalid(
            f"{' and '.join(given)} are mutually exclusive", hint="give only one of them", code="bad_parameter"
        )
    if not given:
        return default
    text = query.text(given[0]) or ""
    if given[0].endswith("_time"):
        return position.parse_time(text)
    return position.parse_id(text) if given[0].endswith("_id") else parse(text)
