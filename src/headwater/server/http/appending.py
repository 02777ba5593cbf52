"""`POST /topic/{name}/items`: one item of any size, or several events in the format that `Content-Type` names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np

from headwater.errors import Invalid, TooLarge
from headwater.event import CONTENTS, Content, Refs, id_text
from headwater.format import frames
from headwater.format.batch import KEY, META, TYPE
from headwater.format.column import Column
from headwater.format.contents import StreamedText
from headwater.format.given import encode_meta
from headwater.limits import KIB, MIB, Limits
from headwater.log import pending as waits
from headwater.log.log import Log
from headwater.log.pending import PendingAppend
from headwater.log.rows import Rows
from headwater.requests import Append, AppendMany
from headwater.server.http import batches
from headwater.server.http.message import JSON, Request, Response, json
from headwater.server.service import Service
from headwater.server.wire import arrow, cloudevents, lines
from headwater.server.wire.decoding import decoded
from headwater.server.wire.parsed import ParsedEvents

SMALL_BYTES = MIB  # up to this, an item is held in memory, and committed with others
PIECE_BYTES = MIB  # of a large one, what is written to its file at once
PARSED_HERE_BYTES = 256 * KIB  # up to this, parsing takes about a millisecond, and another thread costs as much

R = TypeVar("R")

# What a plain body is. What needs more than a look is in `append`.
CONTENT_BY_MEDIA: dict[str, Content] = {
    "": "bytes",
    "application/octet-stream": "bytes",
    "application/x-www-form-urlencoded": "bytes",  # what curl says of anything
    "text/plain": "text",
    "text/plain; charset=utf-8": "text",
    "text/plain;charset=UTF-8": "text",  # what browsers say
}

LINES = "application/x-ndjson"
BSON = "application/bson"

_decode_meta = msgspec.json.Decoder(dict[str, str]).decode


async def append(service: Service, request: Request) -> Response:  # noqa: PLR0911  # one for each kind of body
    """Append what the body holds."""
    options = options_of(request)
    media = request.media_type
    if "content-encoding" in request.headers:
        raise Invalid(
            "the body is compressed",
            hint="send it uncompressed; a topic can compress its data",
            code="unsupported_media_type",
        )
    said: Any = request.query.choice("content", CONTENTS)
    if said is not None:
        return await _item(service, request, said, options)
    if media == frames.MEDIA_TYPE:
        return await append_group(service, request.name, await batches.prepare(service, request, options))
    if media == arrow.MEDIA_TYPE:
        return await _arrow(service, request, options)
    if media in (cloudevents.STRUCTURED, cloudevents.BATCH) or cloudevents.is_binary(request.headers):
        return await _cloud_events(service, request, options)
    if media == LINES:
        body = await request.body(service.limits.body_bytes_max)
        parse = partial(lines.parse, body, service.backend.limits, events=request.query.flag("events"))
        return await append_parsed(service, request.name, await _parsed(service, body, parse), options)
    if media == JSON:
        return await _json(service, request, options)
    content: Content = "text" if media.startswith("text/") else "bson" if media == BSON else "bytes"
    return await _item(service, request, content, options)


async def _json(service: Service, request: Request, options: dict[str, Any]) -> Response:
    """Append the elements of an array, or one event."""
    body = await request.body(service.limits.body_bytes_max)
    query = request.query
    if query.flag("one") or (not query.flag("events") and body.lstrip()[:1] != b"["):
        return await append_one(service, request.name, body, "json", options)
    parse = partial(lines.parse_array, body, service.backend.limits, events=query.flag("events"))
    return await append_parsed(service, request.name, await _parsed(service, body, parse), options)


async def _cloud_events(service: Service, request: Request, options: dict[str, Any]) -> Response:
    """Append CloudEvents: an array, or one; what they say themselves counts."""
    body = await request.body(service.limits.body_bytes_max)
    if request.media_type == cloudevents.BATCH:
        parsed = await _parsed(service, body, partial(cloudevents.batch, body, service.backend.limits))
        return await append_parsed(service, request.name, parsed, options)
    structured = request.media_type == cloudevents.STRUCTURED
    item = cloudevents.structured(body) if structured else cloudevents.binary(request.headers, body)
    options |= {"type": item.type, "meta": options.get("meta", {}) | item.meta}
    if item.key is not None:
        options["key"] = item.key
    return await append_one(service, request.name, item.data, item.content, options)


async def _arrow(service: Service, request: Request, options: dict[str, Any]) -> Response:
    """Append the rows of an Arrow stream, in as many batches as they need."""
    body, limits = await request.body(service.limits.body_bytes_max), service.backend.limits

    def prepare(sent: arrow.ArrowBody) -> list[PendingAppend]:
        parts = sent.parts()
        if len(parts) > 1 and not options.keys().isdisjoint(("producer", "expected_version")):
            raise Invalid(
                f"the rows need {len(parts)} batches, but a producer or an expected version applies to one",
                hint="send fewer rows at once",
                code="bad_parameter",
            )
        prepared = []
        at = 0
        rest = {name: value for name, value in options.items() if name not in ("type", "key", "meta")}
        for part in parts:
            columns = _with_options(part, options, limits)
            asked = AppendMany.of(request.name, part.content, columns, part.count, limits, first=at, **rest)
            group = service.backend.prepare_many(asked)
            prepared.append((at, group))
            at += part.count
        return _in_one_call(prepared)

    look = partial(arrow.look, body, limits, service.limits.arrow_events_max)
    here = len(body) <= PARSED_HERE_BYTES and "pyarrow" in sys.modules  # which takes long to be loaded
    sent = look() if here else await service.blocking(look)
    group = prepare(sent) if here and not sent.grows else await service.blocking(prepare, sent)
    return await append_group(service, request.name, group) if group else await _nothing(service, request.name, options)


async def _parsed(service: Service, body: bytes, parse: Callable[[], R]) -> R:
    """What parsing a body gives. A large one takes so long that the loop must not wait for it."""
    return parse() if len(body) <= PARSED_HERE_BYTES else await service.blocking(parse)


def _in_one_call(prepared: list[tuple[int, list[PendingAppend]]]) -> list[PendingAppend]:
    """The appends of several parts of a request, of which each tells its rows in the whole, if that is needed."""
    everything = [waiting for _, group in prepared for waiting in group]
    if any(waiting.where is not None for waiting in everything):
        for at, group in prepared:
            for waiting in group:
                waiting.where = at + (np.arange(waiting.rows.count) if waiting.where is None else waiting.where)
    return everything


async def append_parsed(service: Service, topic: str, parsed: ParsedEvents, options: dict[str, Any]) -> Response:
    """Append the events that a body holds. A type, key or meta that the request names is of those that have none."""
    columns = _with_options(parsed, options, service.backend.limits)
    for name in ("type", "key", "meta"):
        options.pop(name, None)
    if not parsed.count:
        return await _nothing(service, topic, options)
    asked = AppendMany.of(topic, parsed.content, columns, parsed.count, service.backend.limits, checked=True, **options)
    return await append_group(service, topic, service.backend.prepare_many(asked))


def _with_options(parsed: ParsedEvents, options: dict[str, Any], limits: Limits) -> dict[int, Column | None]:
    """Return the columns of events, with the type, key and meta that the request names for those that have none."""
    columns = dict(parsed.columns)
    for kind, value in ((TYPE, options.get("type", "").encode()), (KEY, options.get("key"))):
        if value and columns.get(kind) is None:
            columns[kind] = Column(parsed.count, value)
    meta = options.get("meta")
    if meta and columns.get(META) is None:
        columns[META] = Column(parsed.count, encode_meta(meta, limits) or b"{}")
    return columns


async def _nothing(service: Service, topic: str, options: dict[str, Any]) -> Response:
    """Return the answer to a body without events."""
    await service.blocking(service.store.describe, topic)  # NotFound, if there is none
    return json({"count": 0, "durability": options.get("durability", "fsync"), "runs": []})


async def append_group(service: Service, topic: str, group: list[PendingAppend]) -> Response:
    """Commit the events of one request, and tell where they are."""
    await service.commits.commit(group)
    return json(told(waits.refs(topic, group), group))


async def _item(service: Service, request: Request, content: Content, options: dict[str, Any]) -> Response:
    """Append the body as one event."""
    length = request.length
    if length is None or length > SMALL_BYTES:
        if content in ("json", "bson"):
            return await _large_document(service, request, content, options)
        return await _huge(service, request, content, options)
    return await append_one(service, request.name, await request.body(SMALL_BYTES), content, options)


async def append_one(service: Service, topic: str, data: bytes, content: Content, options: dict[str, Any]) -> Response:
    """Append one event that is in memory."""
    waiting = service.backend.prepare(Append.of(topic, data, service.backend.limits, content=content, **options))
    await service.commits.commit([waiting])
    ref = waiting.ref()
    return Response(200, (("content-type", JSON), *place_of(waiting.log, waiting.rows)), b"%d" % ref.offset)


async def _large_document(service: Service, request: Request, content: Content, options: dict[str, Any]) -> Response:
    """Append one document of JSON or BSON, which is held in memory to be checked as a whole."""
    body = await request.body(service.limits.body_bytes_max)
    if len(body) <= SMALL_BYTES:
        return await append_one(service, request.name, body, content, options)
    limits = service.backend.limits
    asked = await service.blocking(lambda: Append.of(request.name, body, limits, content=content, **options))
    upload, log = await service.blocking(service.backend.upload, asked)
    try:
        await service.blocking(upload.write, body)
        rows = await service.blocking(upload.commit)
    finally:
        service.later(upload.discard)
    return _appended(service, request, log, rows, len(body))


async def _huge(service: Service, request: Request, content: Content, options: dict[str, Any]) -> Response:
    """Append a body of any size, piece by piece, into a file of its own: no lock is held until all of it is there."""
    if (request.length or 0) > service.limits.item_bytes_max:
        raise _too_large(service)
    asked = Append.of(request.name, iter(()), service.backend.limits, content=content, **options)
    text = StreamedText() if content == "text" else None
    upload, log = await service.blocking(service.backend.upload, asked)
    try:
        pieces: list[bytes] = []
        size = total = 0
        async for piece in request.chunks():
            if text is not None:
                text.take(piece)
            pieces.append(piece)
            size += len(piece)
            total += len(piece)
            if total > service.limits.item_bytes_max:
                raise _too_large(service)
            if size >= PIECE_BYTES:
                await service.blocking(upload.write, b"".join(pieces))
                pieces, size = [], 0
        if text is not None:
            text.end()
        await service.blocking(upload.write, b"".join(pieces))
        rows = await service.blocking(upload.commit)
    finally:
        service.later(upload.discard)  # a thread may be writing still, if the client has left
    return _appended(service, request, log, rows, total)


def _appended(service: Service, request: Request, log: Log, rows: Rows, size: int) -> Response:
    """Return the answer to one event that was written to a file of its own."""
    service.metrics.appended(request.name, 1, size)
    return Response(200, (("content-type", JSON), *place_of(log, rows)), b"%d" % rows.offset)


def told(refs: Refs, group: list[PendingAppend]) -> dict[str, Any]:
    """Return where several events are, as JSON has it."""
    runs: list[dict[str, Any]] = [
        {"partition": run.partition, "offset": run.offset, "count": run.count, "id": id_text(run.ticks, run.node)}
        for run in refs.runs
    ]
    if len(group) > 1 and any(part.where is not None for part in group):
        for run, part in zip(runs, group, strict=True):
            run["rows"] = [] if part.where is None else part.where.tolist()
    return {"count": len(refs), "durability": refs.durability, "runs": runs}


def options_of(request: Request) -> dict[str, Any]:
    """What the query and the headers say of an append, as the engine's verbs take it."""
    query, headers = request.query, request.headers
    options: dict[str, Any] = {
        "type": query.text("type"),
        "key": query.data("key"),
        "partition": query.number("partition"),
        "durability": query.choice("durability", ("fsync", "os")),
        "expected_version": "none" if query.data("expected_version") == b"none" else query.number("expected_version"),
        "meta": _meta(headers.get("headwater-meta")),
        "producer": _producer(request),
    }
    return {name: value for name, value in options.items() if value is not None}


def place_of(log: Log, rows: Rows) -> tuple[tuple[str, str], ...]:
    """Return the headers that tell where an event is."""
    return (
        ("headwater-partition", str(log.place.partition)),
        ("headwater-id", id_text(rows.ticks, log.node)),
        ("headwater-durability", "fsync" if rows.sync else "os"),
    )


def _meta(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    what = "Headwater-Meta is not a flat JSON object of strings"
    return decoded(_decode_meta, text.encode("latin-1"), what, "bad_parameter")  # which the header was decoded with


def _producer(request: Request) -> tuple[str, int, int] | None:
    headers = request.headers
    id, epoch, seq = (headers.get(f"headwater-{name}") for name in ("producer", "epoch", "seq"))
    if id is None and epoch is None and seq is None:
        return None
    if id is None or seq is None or not seq.isdigit() or not (epoch or "0").isdigit() or len(seq) > 19:
        raise Invalid(
            "a producer needs Headwater-Producer, Headwater-Seq and, unless it is 0, Headwater-Epoch",
            hint="an id and two numbers",
            code="bad_parameter",
        )
    return id.encode("latin-1").decode(errors="replace"), int(epoch or 0), int(seq)


def _too_large(service: Service) -> TooLarge:
    most = service.limits.item_bytes_max
    return TooLarge(f"an item may have at most {most} bytes", limit="item_bytes_max", maximum=most)
