"""Binders over HTTP: their documents, one by one, found and counted, and live (docs/HTTP.md, "Binders").
Also the state of projections and functions, and named queries, which the application answers.

Waiting holds no thread: a request that waits for a projection polls, and the followers of a binder share one poll
(server/changes.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from functools import partial
from itertools import chain, repeat
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from headwater.document import Document
from headwater.errors import HeadwaterError, Invalid, NotFound, Unavailable
from headwater.event import Ref
from headwater.format import documents
from headwater.info import BinderInfo
from headwater.limits import PARTITIONS_MAX
from headwater.protocols import READ_TIMEOUT_S, AtLeast
from headwater.server.changes import Pieces
from headwater.server.http import sse
from headwater.server.http.errors import error_line
from headwater.server.http.message import JSON, QueryParameters, Request, Response, json
from headwater.server.http.reading import ARRAY, LINES, SSE, chosen
from headwater.server.rights import binder_scope
from headwater.server.service import Service
from headwater.server.wire import sse as wire
from headwater.server.wire.decoding import decoded
from headwater.server.wire.pieces import HUGE_BYTES, SLICE_BYTES, joined, slices
from headwater.views.binder import LocalBinder
from headwater.views.finding import SentDocument, SentDocuments
from headwater.views.following import StoredChange
from headwater.views.stored_documents import LargeDocument

LOOK_S, LOOK_MAX_S = 0.002, 0.1  # between two looks whether a projection has come far enough
SMALL_BODY = 64 * 1024

Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
T = TypeVar("T")
Sent = Iterator[Document | LargeDocument]


class DocumentQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /binders/{binder}/query`: find documents, count them, or explain the query plan."""

    match: dict[str, Any] = {}
    sort: str | list[str] = []
    skip: Number = 0
    limit: Number | None = None
    fields: list[str] | None = None
    count: bool = False
    explain: bool = False


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The field to index."""

    field: str


class ChangeFormat(NamedTuple):
    """Encodes a stream of changes: its start, each change, heartbeats, and the error that ends it."""

    media: str
    opening: Callable[[str], bytes]
    change: Callable[[StoredChange], bytes]
    heartbeat: bytes
    failure: Callable[[HeadwaterError], bytes]


_decode_asked = msgspec.json.Decoder(DocumentQuery).decode
_decode_field = msgspec.json.Decoder(Field).decode


async def list_binders(service: Service, request: Request) -> Response:
    """Return what each binder holds, of those that the user may read."""

    def look() -> list[BinderInfo]:
        found = []
        for name in service.views.binders():
            if request.user.may("read", binder_scope(name)):
                with contextlib.suppress(NotFound):  # it was deleted meanwhile
                    found.append(service.views.binder(name).info())
        return found

    return json(await service.blocking(look))


async def describe(service: Service, request: Request) -> Response:
    """Return what a binder holds, and what fills it."""
    return json(await service.blocking(service.views.binder(request.name).info))


async def get(service: Service, request: Request) -> Response:
    """Return a document."""
    binder, id = service.views.binder(request.name), request.path[2]
    found = await _waiting(service, request.query, partial(_got, binder, id))
    if found is None:
        raise NotFound(
            f"binder {binder.name!r} has no document {id[:100]!r}", code="no_such_document", binder=binder.name
        )
    headers = (("content-type", JSON),)
    return Response(200, headers, found if isinstance(found, bytes) else _pumped(service, *found))


async def query(service: Service, request: Request) -> Response:
    """Return the documents that match, as they were at one moment; or only how many, or how they would be found."""
    format = chosen(request, (ARRAY, LINES))
    asked = decoded(_decode_asked, await request.body(service.limits.query_bytes_max) or b"{}")
    binder = service.views.binder(request.name)
    if asked.explain:
        return json({"plan": await service.blocking(binder.explain, asked.match, sort=asked.sort)})
    if asked.count:
        return json({"count": await _waiting(service, request.query, partial(binder.count, asked.match))})
    find = partial(binder.send, asked.match, sort=asked.sort, skip=asked.skip, limit=asked.limit, fields=asked.fields)
    encode = _array if format is ARRAY else _lines
    pieces, first, held = await _waiting(service, request.query, partial(_begun, find, encode))
    try:
        service.budget.check(held)
    except Unavailable:
        service.later(pieces.close)
        raise
    return Response(200, (("content-type", format.media),), _pumped(service, pieces, first, held))


async def changes(service: Service, request: Request) -> Response:
    """The changes of a binder's documents, as they come. A document of that name is had by accepting only JSON."""
    format = chosen(request, (SSE, LINES, ARRAY))
    if format is ARRAY:
        return await get(service, request)
    after = request.headers.get("last-event-id") or request.query.text("after")
    form = EVENTS if format is SSE else CHANGE_LINES
    place, found = await service.changes.follow(
        request.name, after, form.media, lambda each, _: partial(form.change, each)
    )
    headers = (*(sse.HEADERS if format is SSE else (("content-type", form.media),)), ("headwater-place", place))
    return Response(200, headers, _told(service, place, found, form), waits=True)


async def index(service: Service, request: Request) -> Response:
    """Have an index over a field."""
    said = decoded(_decode_field, await request.body(SMALL_BODY))
    await service.blocking(service.views.binder(request.name).index, said.field)
    return json(True)


async def _waiting(service: Service, query: QueryParameters, ask: Callable[..., T]) -> T:
    """Ask; with `at_least`, until the projections have come so far, or the time is over."""
    at_least, timeout = at_least_of(query), query.seconds("timeout")
    if at_least is None:
        return await service.blocking(ask)
    left_s = min(READ_TIMEOUT_S if timeout is None else timeout, service.limits.view_wait_s_max)
    pause_s = LOOK_S
    while True:
        try:
            return await service.blocking(ask, at_least=at_least, timeout=0)
        except Unavailable as error:
            if error.code != "view_behind" or left_s <= 0 or service.changes.closed:
                raise
        pause_s = min(pause_s, left_s)
        await asyncio.sleep(pause_s)
        left_s, pause_s = left_s - pause_s, min(LOOK_MAX_S, pause_s * 1.5)


def at_least_of(query: QueryParameters) -> AtLeast | None:
    """Parse `at_least`: an offset, or comma-separated `topic:partition:offset` with percent-encoded topics."""
    said = query.text("at_least")
    if said is None:
        return None
    if said.isascii() and said.isdigit() and len(said) < 19:
        return int(said)
    places = said.split(",")
    if len(places) > PARTITIONS_MAX:
        raise Invalid(f"at_least has {len(places)} places, which is too many", code="bad_parameter")
    return [_ref(place) for place in places]


def _ref(place: str) -> Ref:
    topic, *numbers = place.rsplit(":", 2)
    if len(numbers) != 2 or not all(each.isascii() and each.isdigit() and len(each) < 19 for each in numbers):
        hint = "for a topic with one partition, an offset is enough"
        raise Invalid(f"{place[:40]!r} is not topic:partition:offset", hint=hint, code="bad_parameter")
    return Ref(unquote(topic), int(numbers[0]), int(numbers[1]), 0, 0, "fsync")


# Documents, in a worker thread


def _got(binder: LocalBinder, id: str, **options: Any) -> bytes | tuple[Generator[bytes, None, None], bytes] | None:
    """Return a document, encoded; None if there is none. A large one comes in pieces, with the first of them."""
    found = binder.send_one(id, **options)
    if found is None or isinstance(found, Document):
        return None if found is None else documents.encode(found)
    pieces = _sending(found, _bare)
    first = next(pieces, b"")
    return (pieces, first) if first else None  # it was deleted meanwhile


def _begun(
    find: Callable[..., SentDocuments], encode: Callable[[Sent], Iterator[bytes]], **options: Any
) -> tuple[Generator[bytes, None, None], bytes, int]:
    """Return the encoded documents, their first piece, and what they hold. Raises what is wrong with the query."""
    found = find(**options)
    pieces = _sending(found, encode)
    return pieces, next(pieces, b""), found.held


def _sending(
    found: SentDocuments | SentDocument, encode: Callable[[Sent], Iterator[bytes]]
) -> Generator[bytes, None, None]:
    with found:
        yield from joined(encode(found))


def _bare(found: Sent) -> Iterator[bytes]:
    return chain.from_iterable(map(_encoded, found))  # which holds no document while its client is slow


def _lines(found: Sent) -> Iterator[bytes]:
    return chain.from_iterable(map(_encoded, found, repeat(b""), repeat(b"\n")))


def _array(found: Sent) -> Iterator[bytes]:
    empty = True
    for pieces in map(_encoded, found, chain((b"[",), repeat(b","))):
        yield from pieces
        empty = False
    yield b"[]" if empty else b"]"


def _encoded(document: Document | LargeDocument, before: bytes = b"", after: bytes = b"") -> Iterator[bytes]:
    """Return the bytes of a document: at once, or in slices if it is large."""
    if isinstance(document, Document):
        return iter((before + documents.encode(document) + after,))
    large = slices(("document", document.key), partial(_large, document))
    return chain((before,), large, (after,))


def _large(document: LargeDocument) -> bytes:
    return documents.encode(document.document())


async def _pumped(
    service: Service, pieces: Generator[bytes, None, None], first: bytes, held: int = 0
) -> AsyncGenerator[bytes, None]:
    """Yield the pieces, one at a time, as fast as the client takes them; releases their resources when it leaves.

    They hold so many bytes of the memory for all requests.
    """

    def close() -> None:
        with contextlib.suppress(ValueError):  # it is at work in another thread, which is the last to know it then
            pieces.close()

    service.budget.count(held)
    try:
        if first:
            yield first
            del first
            async for piece in service.pump(pieces):
                yield piece
                del piece
    finally:
        service.budget.count(-held)
        service.later(close)


# Changes


async def _told(service: Service, place: str, found: Pieces, form: ChangeFormat) -> AsyncGenerator[bytes, None]:
    live = service.metrics.live
    live.subscribers += 1
    try:
        if opening := form.opening(place):
            yield opening
        async for changes in found:
            piece = b"".join(changes.whole)
            live.events += changes.number
            live.bytes += len(piece)
            if piece or changes.large is None:
                yield piece or form.heartbeat
            if changes.large is not None:
                async for piece in service.pump(changes.large):
                    live.bytes += len(piece)
                    yield piece
    except HeadwaterError as error:  # it is too late for a status
        service.metrics.failed(error.code)
        yield form.failure(error)
    finally:
        live.subscribers -= 1
        await found.aclose()


def _event(stored: StoredChange) -> bytes:
    change = stored.change()
    place = change.place.encode()
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (place, change.kind.encode(), documents.encode_change(change))


def _line(stored: StoredChange) -> bytes:
    return documents.encode_change(stored.change()) + b"\n"


def _failure(error: HeadwaterError) -> bytes:
    return wire.told("headwater.error", {"code": error.code, "message": error.message})


def _opening(place: str) -> bytes:
    """Return the start of the stream: a client that reconnects before the first change resumes there."""
    return wire.retry(sse.RETRY_MS) + b"id: %b\n" % place.encode() + wire.told("headwater.begin", {"place": place})


EVENTS = ChangeFormat(SSE.media, _opening, _event, wire.HEARTBEAT, _failure)
CHANGE_LINES = ChangeFormat(LINES.media, lambda _: b"", _line, b"\n", error_line)


_decode_arguments = msgspec.json.Decoder(dict[str, Any]).decode


async def list_views(service: Service, request: Request) -> Response:
    """Return how each projection and function is, of those whose topic the user may read."""
    found = await service.blocking(service.store.views)
    return json([each for each in found if request.user.may("read", each.topic)])


async def ask(service: Service, request: Request) -> Response:
    """Ask a query with a name."""
    arguments = decoded(_decode_arguments, await request.body(service.limits.query_bytes_max) or b"{}")
    if service.application is None:
        raise NotFound(
            f"no query {request.name!r}: the server runs no application",
            hint="start it with --app",
            code="no_such_query",
        )
    answer = await service.application.ask(request.name, arguments)
    if len(answer) <= HUGE_BYTES:
        return Response(200, (("content-type", JSON),), answer)
    service.budget.check(len(answer))
    return Response(200, (("content-type", JSON),), _slices(service, answer))


async def _slices(service: Service, answer: bytes) -> AsyncGenerator[bytes, None]:
    """Yield a large answer in slices. It cannot be made again, so it counts as held in memory until it is sent."""
    service.budget.count(len(answer))
    try:
        for at in range(0, len(answer), SLICE_BYTES):
            yield answer[at : at + SLICE_BYTES]
    finally:
        service.budget.count(-len(answer))
