"""`POST /topic/{name}/items`: one item of any size, or several events in the format that `Content-Type` names.

`item_of` decodes a request with one small item into `requests.Append`. It is the only way from a request to an append
of one event: `append` uses it in a task, and `prompt_appends` without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headwater.errors import Invalid, TooLarge
from headwater.event import CONTENTS, Content, id_text
from headwater.format.contents import StreamedText
from headwater.limits import MIB, Limits
from headwater.log.log import Log
from headwater.log.rows import Rows
from headwater.requests import Append
from headwater.server.http.appending_many import CONTAINERS, LINES, append_many
from headwater.server.http.message import JSON, Headers, QueryParameters, Request, Response
from headwater.server.service import Service
from headwater.server.wire import cloudevents
from headwater.server.wire.decoding import decoded

SMALL_BYTES = MIB  # up to this, an item is held in memory, and committed with others
PIECE_BYTES = MIB  # of a large one, what is written to its file at once
BSON = "application/bson"

_decode_meta = msgspec.json.Decoder(dict[str, str]).decode


async def append(service: Service, request: Request) -> Response:
    """Append what the body holds."""
    content, options = content_of(request), options_of(request)
    piecewise = content in ("bytes", "text")
    if piecewise and (request.length is None or request.length > SMALL_BYTES):
        return await _huge(service, request, content, options)
    body = await request.body(SMALL_BYTES if piecewise else service.limits.body_bytes_max)
    limits = service.backend.limits
    if len(body) > SMALL_BYTES:
        asked = await service.blocking(item_of, request, body, content, options, limits)
    else:
        asked = item_of(request, body, content, options, limits)
    if asked is None:
        return await append_many(service, request, body, options)
    if len(body) > SMALL_BYTES:
        return await _large_document(service, asked, body)
    waiting = service.backend.prepare(asked)
    await service.commits.commit([waiting])
    if waiting.rows.error is not None:
        raise waiting.rows.error
    return _appended(waiting.log, waiting.rows)


def content_of(request: Request) -> Content | None:
    """Return the content of the item that a body is; None if only the body tells, or it holds several events."""
    if "content-encoding" in request.headers:
        raise Invalid(
            "the body is compressed",
            hint="send it uncompressed; a topic can compress its data",
            code="unsupported_media_type",
        )
    said: Any = request.query.choice("content", CONTENTS)
    if said is not None:
        return said  # type: ignore[no-any-return]  # it is one of CONTENTS
    media = request.media_type
    if not media:
        content: Content | None = "bytes"
    elif media in (JSON, LINES, cloudevents.STRUCTURED) or media in CONTAINERS:
        return None
    elif media.startswith("text/"):
        content = "text"
    else:
        content = "bson" if media == BSON else "bytes"
    return None if cloudevents.is_binary(request.headers) else content


def options_of(request: Request) -> dict[str, Any]:
    """Return the options of an append that the query and the headers give; raises Invalid."""
    query, headers = request.query, request.headers
    options = {name: _OPTIONS[name](query, name) for name in query if name in _OPTIONS}
    if "headwater-meta" in headers:
        options["meta"] = _meta(headers["headwater-meta"])
    if not _PRODUCER_HEADERS.isdisjoint(headers):
        options["producer"] = _producer(headers)
    return options


def item_of(
    request: Request, data: bytes, content: Content | None, options: dict[str, Any], limits: Limits
) -> Append | None:
    """Return the append of the one event that a body is; None if it holds several. Raises Invalid and TooLarge."""
    if content is not None:
        return Append.of(request.name, data, limits, content=content, **options)
    query, media = request.query, request.media_type
    if media == cloudevents.STRUCTURED:
        return _cloud_event(request, cloudevents.structured(data), options, limits)
    if cloudevents.is_binary(request.headers) and media not in CONTAINERS:
        return _cloud_event(request, cloudevents.binary(request.headers, data), options, limits)
    single = query.flag("one") or (not query.flag("events") and data.lstrip()[:1] != b"[")
    if media != JSON or not single:
        return None
    return Append.of(request.name, data, limits, content="json", **options)


def _cloud_event(request: Request, event: cloudevents.Item, options: dict[str, Any], limits: Limits) -> Append:
    """Return the append of a CloudEvent, whose own attributes take precedence over the request's."""
    options = options | {"type": event.type, "meta": options.get("meta", {}) | event.meta}
    if event.key is not None:
        options["key"] = event.key
    return Append.of(request.name, event.data, limits, content=event.content, **options)


async def _large_document(service: Service, asked: Append, body: bytes) -> Response:
    """Append one document of JSON or BSON that is too large to be committed with others."""
    upload, log = await service.blocking(service.backend.upload, asked)
    try:
        await service.blocking(upload.write, body)
        rows = await service.blocking(upload.commit)
    finally:
        service.later(upload.discard)
    service.metrics.appended(asked.topic, 1, len(body))
    return _appended(log, rows)


async def _huge(service: Service, request: Request, content: Any, options: dict[str, Any]) -> Response:
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
    service.metrics.appended(request.name, 1, total)
    return _appended(log, rows)


def _appended(log: Log, rows: Rows) -> Response:
    """Return the answer to one event."""
    place: Headers = (
        ("headwater-partition", str(log.place.partition)),
        ("headwater-id", id_text(rows.ticks, log.node)),
        ("headwater-durability", "fsync" if rows.sync else "os"),
    )
    return Response(200, (("content-type", JSON), *place), b"%d" % rows.offset)


def _meta(text: str) -> dict[str, str]:
    what = "Headwater-Meta is not a flat JSON object of strings"
    return decoded(_decode_meta, text.encode("latin-1"), what, "bad_parameter")  # which the header was decoded with


def _producer(headers: Mapping[str, str]) -> tuple[str, int, int]:
    id, epoch, seq = (
        headers.get("headwater-producer"),
        headers.get("headwater-epoch", "0"),
        headers.get("headwater-seq"),
    )
    if id is None or seq is None or not seq.isdigit() or not epoch.isdigit() or len(seq) > 19:
        raise Invalid(
            "a producer needs Headwater-Producer, Headwater-Seq and, unless it is 0, Headwater-Epoch",
            hint="an id and two numbers",
            code="bad_parameter",
        )
    return id.encode("latin-1").decode(errors="replace"), int(epoch), int(seq)


def _durability(query: QueryParameters, name: str) -> str | None:
    return query.choice(name, ("fsync", "os"))


def _version(query: QueryParameters, name: str) -> int | str | None:
    return "none" if query.data(name) == b"none" else query.number(name)


_OPTIONS: dict[str, Callable[[QueryParameters, str], Any]] = {
    "type": QueryParameters.text,
    "key": QueryParameters.data,
    "partition": QueryParameters.number,
    "durability": _durability,
    "expected_version": _version,
}
_PRODUCER_HEADERS = frozenset(("headwater-producer", "headwater-epoch", "headwater-seq"))


def _too_large(service: Service) -> TooLarge:
    most = service.limits.item_bytes_max
    return TooLarge(f"an item may have at most {most} bytes", limit="item_bytes_max", maximum=most)
