"""SUBSCRIBE and UNSUBSCRIBE, and the subscription to a topic that is not durable. Belongs to the loop's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headwater.errors import HeadwaterError, NotFound
from headwater.format.events import EventBatch
from headwater.match.matcher import Selection
from headwater.match.pattern import exactly
from headwater.position import Position
from headwater.server.tcp import changing, durable, recev
from headwater.server.tcp.frame_io import AnswerSlot
from headwater.server.tcp.frames import INT32, OK, FrameFields, failure
from headwater.server.tcp.subscription import TcpSubscription, check_number, find, stopping
from headwater.server.wire.pieces import parted

if TYPE_CHECKING:
    from headwater.server.tcp.connection import TcpConnection

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MS = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
OF_TOPICS = (
    *("streamName", "eventType", "typeMatcher", "matcher"),
    *("startSequence", "startTimestamp", "durableID", "partition"),
)
OF_BINDERS = ("binder", "after")


async def subscribe(connection: TcpConnection, frame: dict[str, Any]) -> AnswerSlot:
    """Handle SUBSCRIBE: to a topic, or to the documents of a binder."""
    try:
        fields = FrameFields("SUBSCRIBE", frame, OF_TOPICS + OF_BINDERS)
        check_number(connection)
        if "binder" in fields:
            return await changing.subscribe(connection, fields)
        return await _subscribe(connection, fields)
    except HeadwaterError as error:
        if error.code == "unauthenticated":  # which ends the connection
            raise
        return AnswerSlot(failure(error, "SUBRESPONSE"), None, error)


async def unsubscribe(connection: TcpConnection, frame: dict[str, Any]) -> AnswerSlot:
    """Handle UNSUBSCRIBE."""
    fields = FrameFields("UNSUBSCRIBE", frame, ("subID", "delete"))
    id = fields.integer("subID", most=INT32, needed=True) or 0
    await find(connection, id).unsubscribe(delete=fields.flag("delete"))
    return AnswerSlot(OK)


async def _subscribe(connection: TcpConnection, fields: FrameFields) -> AnswerSlot:
    topic = fields.text("streamName", needed=True) or ""
    if "after" in fields:
        raise fields.wrong("has 'after' without 'binder'", hint="for events, use 'startSequence'")
    start, partition = _start(fields), fields.integer("partition", most=INT32)
    selection: dict[str, Any] = {"type": _type(fields), "match": fields.document("matcher")}
    name = fields.text("durableID")
    user = await connection.require("SUBSCRIBE", topic)
    if name is not None and partition is not None:
        raise fields.wrong("has 'partition' and 'durableID'", hint="a durable subscription reads all partitions")
    subscription: TopicSubscription | durable.DurableSubscription
    if name is not None:
        subscription = await durable.owned(connection, topic, name, user.name, start, selection)
    else:
        subscription = TopicSubscription(connection, topic, partition, start, selection)
    await enter(subscription, selection)
    return subscription.accepted()


async def enter(subscription: TopicSubscription | durable.DurableSubscription, selection: dict[str, Any]) -> None:
    """Open a subscription; one to a topic that does not exist yet waits for it after it is accepted.

    Raises what opening it raises beside that, and Unavailable if too many wait already.
    """
    try:
        await subscription.open()
    except NotFound as error:
        try:
            if error.code != "topic_not_found":
                raise
            Selection(**selection)  # what can be refused is refused at once
            subscription.connection.service.arrivals.check(subscription.topic)
        except HeadwaterError:
            subscription.close()
            raise
        subscription.awaits = True
    except BaseException:
        subscription.close()
        raise


def _type(fields: FrameFields) -> str | None:
    """Return the pattern of the event types; None for all."""
    name, pattern = fields.text("eventType"), fields.text("typeMatcher")
    if name is not None and pattern is not None:
        raise fields.wrong("has 'eventType' and 'typeMatcher'", hint="give a type or a pattern")
    return pattern if name is None else exactly(name)


def _start(fields: FrameFields) -> Position:
    """Return where a subscription begins; by default, at the end."""
    offset, time = fields.integer("startSequence"), fields.integer("startTimestamp", most=LAST_MS)
    if offset is not None and time is not None:
        raise fields.wrong("has 'startSequence' and 'startTimestamp'", hint="give only one of them")
    if time is not None:
        return EPOCH + timedelta(milliseconds=time)
    return "latest" if offset is None else offset


class TopicSubscription(TcpSubscription):
    """A subscription to a topic that is not durable: it has its own reader, and waits when its client is slow."""

    _batches: AsyncGenerator[list[EventBatch], None]

    def __init__(
        self, connection: TcpConnection, topic: str, partition: int | None, start: Position, selection: dict[str, Any]
    ) -> None:
        super().__init__(connection)
        self.topic = topic
        self.only = partition or 0
        self._partition = partition
        self._start = start
        self._selection = selection

    async def open(self) -> None:
        """Find the first event; raises NotFound for a missing topic, and other errors of the request."""
        service, start = self.connection.service, self._start
        if self._partition is None:
            self.several = len((await service.blocking(service.store.describe, self.topic)).partitions) > 1
        if self.awaits and start == "latest":
            start = "earliest"  # there was nothing when it was asked for
        self._batches = await service.feeds.follow(
            self.topic, start=start, bytes_max=recev.CHUNK_BYTES, partition=self._partition, **self._selection
        )

    async def run(self) -> None:
        if self.awaits:
            await self.arrive()
        async with aclosing(self._batches) as each:
            async for batches in each:
                rest = _Rest(batches)
                while rest.more:
                    await self.has_room()  # before its turn: others need not wait for what its client acknowledges
                    async with self.connection.out.turn:
                        await self._send_some(rest)
        raise stopping()

    async def _send_some(self, rest: _Rest) -> None:
        """Encode and send only as much as there is room for, so that a slow client holds no memory."""
        rest.room = await self.has_room()
        connection = self.connection
        encoded = await connection.service.blocking(recev.encode, self.id, rest, connection.limits.frame_bytes_max)
        for frames in encoded.frames:
            await self.send(frames)
        if encoded.error is not None:
            raise encoded.error


class _Rest(Iterator[EventBatch]):
    """Batches, split so that no part has more events than there is `room` for."""

    def __init__(self, batches: Iterable[EventBatch]) -> None:
        self.room = 0
        self._parts = deque(part for batch in batches for part in parted(batch))

    @property
    def more(self) -> bool:
        return bool(self._parts)

    def __next__(self) -> EventBatch:
        if not self._parts or not self.room:
            raise StopIteration
        part = self._parts.popleft()
        if len(part) > self.room:
            self._parts.appendleft(part.part(self.room, len(part)))
            part = part.part(0, self.room)
        self.room -= len(part)
        return part
