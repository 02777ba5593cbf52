"""`POST /topic/{name}/items` with several events: JSON arrays and lines, CloudEvents, Arrow streams and batches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np

from headwater.errors import Invalid
from headwater.event import Refs, id_text
from headwater.format import frames
from headwater.format.batch import KEY, META, TYPE
from headwater.format.column import Column
from headwater.format.given import encode_meta
from headwater.limits import KIB, Limits
from headwater.log import pending as waits
from headwater.log.pending import PendingAppend
from headwater.requests import AppendMany
from headwater.server.http.message import Request, Response, json
from headwater.server.service import Service
from headwater.server.wire import arrow, batches, cloudevents, lines
from headwater.server.wire.decoding import ParsedEvents

PARSED_HERE_BYTES = 256 * KIB  # up to this, parsing takes about a millisecond, and another thread costs as much
LINES = "application/x-ndjson"
CONTAINERS = frozenset((frames.MEDIA_TYPE, arrow.MEDIA_TYPE, cloudevents.BATCH))
"""Formats of several events, whatever the headers say."""

R = TypeVar("R")


async def append_many(service: Service, request: Request, body: bytes, options: dict[str, Any]) -> Response:
    """Append the events of a body in a format for several; `options` are those of `AppendMany`, type, key and meta."""
    media, limits, topic = request.media_type, service.backend.limits, request.name
    if media == frames.MEDIA_TYPE:
        return await append_group(service, topic, await service.blocking(_batches, service, topic, body, options))
    if media == arrow.MEDIA_TYPE:
        return await _arrow(service, topic, body, options)
    events = request.query.flag("events")
    parse: Callable[[], ParsedEvents]
    if media == LINES:
        parse = partial(lines.parse, body, limits, events=events)
    elif media == cloudevents.BATCH:
        parse = partial(cloudevents.batch, body, limits)
    else:
        parse = partial(lines.parse_array, body, limits, events=events)
    return await append_parsed(service, topic, await _parsed(service, body, parse), options)


def _batches(service: Service, topic: str, body: bytes, options: dict[str, Any]) -> list[PendingAppend]:
    """Return the appends of stored batches, of which there is one: all of it or nothing, in each partition."""
    limits = service.backend.limits
    parsed = batches.parse(body, limits)
    columns = _with_options(parsed, options, limits)
    asked = AppendMany.of(topic, parsed.content, columns, parsed.count, limits, **_of_request(options))
    return service.backend.prepare_many(asked)


async def _arrow(service: Service, topic: str, body: bytes, options: dict[str, Any]) -> Response:
    """Append the rows of an Arrow stream, in as many batches as they need."""
    limits = service.backend.limits

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
        rest = _of_request(options)
        for part in parts:
            columns = _with_options(part, options, limits)
            asked = AppendMany.of(topic, part.content, columns, part.count, limits, first=at, **rest)
            group = service.backend.prepare_many(asked)
            prepared.append((at, group))
            at += part.count
        return _in_one_call(prepared)

    look = partial(arrow.look, body, limits, service.limits.arrow_events_max)
    here = len(body) <= PARSED_HERE_BYTES and "pyarrow" in sys.modules  # which takes long to be loaded
    sent = look() if here else await service.blocking(look)
    group = prepare(sent) if here and not sent.grows else await service.blocking(prepare, sent)
    return await append_group(service, topic, group) if group else await _nothing(service, topic, options)


async def _parsed(service: Service, body: bytes, parse: Callable[[], R]) -> R:
    """Return the parsed body. A large one takes so long that the loop must not wait for it."""
    return parse() if len(body) <= PARSED_HERE_BYTES else await service.blocking(parse)


def _in_one_call(prepared: list[tuple[int, list[PendingAppend]]]) -> list[PendingAppend]:
    """Return the appends of several parts of a request; each tells its rows in the whole, if that is needed."""
    everything = [waiting for _, group in prepared for waiting in group]
    if any(waiting.where is not None for waiting in everything):
        for at, group in prepared:
            for waiting in group:
                waiting.where = at + (np.arange(waiting.rows.count) if waiting.where is None else waiting.where)
    return everything


async def append_parsed(service: Service, topic: str, parsed: ParsedEvents, options: dict[str, Any]) -> Response:
    """Append the events that a body holds. A type, key or meta that the request names is of those that have none."""
    columns = _with_options(parsed, options, service.backend.limits)
    if not parsed.count:
        return await _nothing(service, topic, options)
    limits, rest = service.backend.limits, _of_request(options)
    asked = AppendMany.of(topic, parsed.content, columns, parsed.count, limits, checked=True, **rest)
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


def _of_request(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that `AppendMany` takes: all but those of each event."""
    return {name: value for name, value in options.items() if name not in ("type", "key", "meta")}


async def _nothing(service: Service, topic: str, options: dict[str, Any]) -> Response:
    """Return the answer to a body without events."""
    await service.blocking(service.store.describe, topic)  # NotFound, if there is none
    return json({"count": 0, "durability": options.get("durability", "fsync"), "runs": []})


async def append_group(service: Service, topic: str, group: list[PendingAppend]) -> Response:
    """Commit the events of one request, and tell where they are."""
    await service.commits.commit(group)
    return json(told(waits.refs(topic, group), group))


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
