"""Server-sent events of a topic: live, resumed after `Last-Event-ID`, with a notice of deleted events.

The `id:` of an event is its UUIDv6. Over several partitions, where that is no place to go on from, it is a cursor over
all of them. `respond` is for `GET /topic/{name}/items` and for the bus; the bytes are made in `wire/sse.py`.

The event bus at `/api/events` (`publish`, `follow`) is one topic, created with its first event, which keeps its newest
segments. A topic of that name that exists is used as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from headwater.errors import Closed, HeadwaterError, Invalid, NotFound
from headwater.event import Content, Ref, ticks_and_node
from headwater.format.events import EventBatch
from headwater.log.topic_cursor import Gap, Offsets, TopicCursor
from headwater.match.matcher import Selection
from headwater.position import Position
from headwater.requests import Append
from headwater.server.channels import ChannelSubscription
from headwater.server.feeds import beating
from headwater.server.http.message import JSON, BodyStream, Headers, Request, Response, StreamSink, json
from headwater.server.service import Service
from headwater.server.wire import sse
from headwater.server.wire.pieces import encoded, joined, parted

MEDIA_TYPE = "text/event-stream"
HEADERS: Headers = (("content-type", MEDIA_TYPE),)
RETRY_MS = 2000  # when a client comes back that lost its connection: many may have lost theirs at once
PARTITIONS_MAX = 256  # each takes a few bytes of every id


class SseFormat:
    """The form of events whose id is a UUIDv6. See `channels.Form`."""

    opening = sse.HEARTBEAT  # at once: some clients give up a stream of which they hear nothing
    first = sse.retry(RETRY_MS)
    heartbeat = sse.HEARTBEAT

    def __init__(self, *, bus: bool) -> None:
        self.bus = bus
        self.key: Hashable = ("sse", bus)

    def encode(self, batches: Sequence[EventBatch], before: Offsets) -> Iterator[bytes]:
        """Yield the events, each with its id."""
        for batch in batches:
            for part in parted(batch):
                yield from encoded(part, (self.key, before), partial(self._frames, before))
                before = _after(before, (part,))

    def ids(self, batch: EventBatch, before: Offsets) -> Sequence[bytes] | None:
        """Return the ids of events, where they are not their UUIDs."""
        del batch, before
        return None

    def _frames(self, before: Offsets, part: EventBatch) -> bytes:
        return sse.encode(part, self.ids(part, before), bus=self.bus)

    def gap(self, gap: Gap, before: Offsets, last_id: UUID | None) -> bytes:
        """Return an event `headwater.gap`."""
        del before
        return _gap(last_id, gap.oldest_id, gap)

    def failure(self, error: HeadwaterError) -> bytes:
        """Return an event `headwater.error`, the last one."""
        return sse.told("headwater.error", {"code": error.code, "message": error.message})


class CursorSseFormat(SseFormat):
    """The format over several partitions: an id is a cursor over all of them."""

    def __init__(self, uuid: str, *, bus: bool) -> None:
        super().__init__(bus=bus)
        self.uuid = UUID(uuid)
        self.key = ("sse", bus, uuid)

    def ids(self, batch: EventBatch, before: Offsets) -> Sequence[bytes]:
        """Cursors, each after its event."""
        return sse.cursor_texts(before, self.uuid, batch.partition, batch.offsets() + 1)

    def gap(self, gap: Gap, before: Offsets, last_id: UUID | None) -> bytes:
        """Return a `headwater.gap` event whose positions are cursors."""
        del last_id
        after = [*before[: gap.partition], gap.oldest, *before[gap.partition + 1 :]]
        return _gap(sse.cursor_encode(before, self.uuid), sse.cursor_encode(after, self.uuid), gap)


TOPIC, BUS = SseFormat(bus=False), SseFormat(bus=True)


class End(Protocol):
    """The end of a response."""

    @property
    def done(self) -> bool:
        """Return whether nothing that comes can be part of the answer."""
        ...

    def take(self, batch: EventBatch) -> EventBatch | None:
        """Return the part of a batch that belongs to the response; None if nothing does."""
        ...


async def respond(
    service: Service,
    request: Request,
    topic: str,
    *,
    start: Position = "earliest",
    last: str | None = None,
    wait: bool = True,
    stop: int | None = None,
    end: End | None = None,
    bus: bool = False,
    **selection: Any,
) -> Response:
    """Return the events of a topic from `start` on, or after the `Last-Event-ID`; live, unless it should not `wait`.

    `last` is the `Last-Event-ID` of a client that cannot set the header. `stop` is an offset before which the answer
    ends, and `end` tells how much of what is before that is part of it. On the bus, data is never base64 without need.
    `selection` is as for `Feeds.subscribe`. Raises NotFound for a missing topic and an offset that was deleted, Invalid
    for a bad place, pattern or match.
    """
    last = request.headers.get("last-event-id") or last
    cursor = await service.blocking(service.backend.cursor, topic, start="latest", **selection)
    form, place = _resume(cursor, start, last, bus)
    if wait and stop is None and end is None:
        return Response(200, HEADERS, await service.feeds.subscribe(topic, form, **place, **selection))
    after, gaps = place.pop("after", None), place.pop("opening", b"")
    cursor = await service.blocking(service.backend.cursor, topic, **place, **selection)
    if after is not None and (gap := await service.blocking(cursor.go_after, after)) is not None:
        gaps += form.gap(gap, cursor.offsets, after)
    offsets, bytes_max = cursor.offsets, service.limits.feed_chunk_bytes
    follow = await service.feeds.follow(topic, start=offsets, stop=stop, wait=wait, bytes_max=bytes_max, **selection)
    return Response(200, HEADERS, _pieces(service, follow, form, gaps, offsets, end), waits=wait)


def respond_later(service: Service, request: Request, topic: str, *, last: str | None, type: str | None) -> Response:
    """The events of the bus, whose topic does not exist yet, from the moment at which it does. Raises Invalid."""
    last = request.headers.get("last-event-id") or last
    if last:
        _id(last)
    Selection(type)  # what can be refused is refused before there is an answer

    async def subscribe() -> BodyStream:
        await service.arrivals.wait(topic)
        body = (await respond(service, request, topic, last=last, type=type, bus=True)).body
        assert isinstance(body, ChannelSubscription)
        return body

    return Response(200, HEADERS, AwaitedEvents(subscribe, service.settings.heartbeat_s))


class AwaitedEvents:
    """A stream that starts when its topic is created, and sends heartbeats until then."""

    def __init__(self, subscribe: Callable[[], Coroutine[None, None, BodyStream]], heartbeat_s: float) -> None:
        """`subscribe` returns the stream of the topic, when there is one."""
        self._subscribe = subscribe
        self._heartbeat_s = heartbeat_s
        self._full = False
        self._stream: BodyStream | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, sink: StreamSink) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(sink))

    def resume(self) -> None:
        self._full = False
        if self._stream is not None:
            self._stream.resume()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        elif self._task is not None:
            self._task.cancel()

    async def _run(self, sink: StreamSink) -> None:
        try:
            stream = await self._arrived(sink)
        except HeadwaterError as error:
            if not isinstance(error, Closed):
                sink.write(BUS.failure(error))
            sink.end()
            return
        self._stream = stream
        stream.begin(sink)

    async def _arrived(self, sink: StreamSink) -> BodyStream:
        subscribing = asyncio.ensure_future(self._subscribe())
        self._full = not sink.write(sse.HEARTBEAT)
        try:
            while not (await asyncio.wait((subscribing,), timeout=self._heartbeat_s))[0]:
                if not self._full:
                    self._full = not sink.write(sse.HEARTBEAT)
            return subscribing.result()
        finally:
            subscribing.cancel()


def _resume(cursor: TopicCursor, start: Position, last: str | None, bus: bool) -> tuple[SseFormat, dict[str, Any]]:
    """Return the form of a topic's events, and where to begin, as `Feeds.subscribe` takes it."""
    partitions = len(cursor.partitions)
    if partitions == 1:
        return BUS if bus else TOPIC, {"after": _id(last)} if last else {"start": start}
    if partitions > PARTITIONS_MAX:
        raise Invalid(
            f"the topic has {partitions} partitions; server-sent events can read at most {PARTITIONS_MAX} at once",
            hint="choose one, as in ?partition=0",
            code="partition_needed",
        )
    form = CursorSseFormat(cursor.uuid, bus=bus)
    if not last:
        return form, {"start": start}
    try:
        return form, {"start": tuple(sse.cursor_decode(last, form.uuid))}
    except Invalid as error:
        if error.code != "cursor_of_another":
            raise
        return form, {"start": "earliest", "opening": _gap(last, None, None)}


def _id(text: str) -> UUID:
    try:
        id = UUID(text)
        ticks_and_node(id)
    except (ValueError, HeadwaterError) as error:
        raise _bad_id(text) from error
    return id


def _bad_id(text: str) -> Invalid:
    return Invalid(
        f"{text[:80]!r} is not an event id of this stream",
        hint="send the id of the last event received, or none to start at the oldest",
        code="bad_event_id",
    )


async def _pieces(
    service: Service,
    follow: AsyncGenerator[list[EventBatch], None],
    form: SseFormat,
    gaps: bytes,
    offsets: Offsets,
    end: End | None,
) -> AsyncIterator[bytes]:
    first = form.first
    yield form.opening + (first + gaps if gaps else b"")
    if gaps:
        first = b""
    async for found in beating(follow, service.settings.heartbeat_s):
        if found is None:
            yield form.heartbeat
            continue
        batches = found if end is None else [part for batch in found if (part := end.take(batch)) is not None]
        if batches:
            async for piece in service.pump(joined(form.encode(batches, offsets))):
                yield first + piece
                del piece
                first = b""
            offsets = _after(offsets, batches)
        if end is not None and end.done:
            return


def _after(offsets: Offsets, batches: Sequence[EventBatch]) -> Offsets:
    """Return where a reader of all partitions is after these."""
    if len(offsets) == 1:
        return (batches[-1].end_offset,)
    moved = list(offsets)
    for batch in batches:
        moved[batch.partition] = batch.end_offset
    return tuple(moved)


def _gap(after: UUID | str | None, oldest: UUID | str | None, gap: Gap | None) -> bytes:
    missed = None if gap is None or gap.offset is None else gap.oldest - gap.offset
    return sse.told("headwater.gap", {"after": after, "oldest": oldest, "missed": missed})


_LINE_ENDS = frozenset("\r\n\0")  # what the name of a server-sent event cannot hold


async def publish(service: Service, request: Request) -> Response:
    """Append an event; answered with its id when it is durable."""
    type = request.query.text("type")
    if not type:
        raise Invalid("the parameter 'type' is missing", hint="add it, as in ?type=placed", code="bad_parameter")
    if not _LINE_ENDS.isdisjoint(type):
        raise Invalid("a type on the bus must be a single line", code="bad_parameter")
    data = await request.body(service.backend.limits.data_bytes_max)
    content: Content = "json" if request.media_type == JSON else "text"
    try:
        ref = await _append(service, type, data, content)
    except NotFound:
        await service.make(service.settings.bus.topic)
        ref = await _append(service, type, data, content)
    except Invalid as error:
        if error.code != "not_utf8":
            raise
        hint = "the bus carries text; encode other bytes, for example as base64"
        raise Invalid(error.message, hint=hint, code="not_utf8") from error
    return json({"id": str(ref.id)})


async def follow(service: Service, request: Request) -> Response:
    """Return the events after the last that the client had, or from the oldest on, then those that come.

    Before the first event there is no bus; a GET makes none, but waits for it.
    """
    query = request.query
    last, pattern = query.text("lastEventId"), query.text("typeMatcher")
    try:
        return await respond(service, request, service.settings.bus.topic, last=last, type=pattern, bus=True)
    except NotFound as error:
        if error.code != "topic_not_found":
            raise
        return respond_later(service, request, service.settings.bus.topic, last=last, type=pattern)


async def _append(service: Service, type: str, data: bytes, content: Content) -> Ref:
    topic = service.settings.bus.topic
    request = Append.of(topic, data, service.backend.limits, type=type, content=content)
    if len(data) > service.backend.limits.blob_bytes_min:  # too large to wait in memory for a commit with others
        return await service.blocking(service.backend.append, request)
    return await service.commits.append(request)
