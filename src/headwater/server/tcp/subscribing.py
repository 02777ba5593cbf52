"""SUBSCRIBE and UNSUBSCRIBE, and the subscription to a topic that keeps nothing. Belongs to the loop's thread."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headwater.engine.pattern import exactly
from headwater.errors import HeadwaterError
from headwater.event import At
from headwater.format.events import EventBatch
from headwater.server.tcp import changing, durable, recev
from headwater.server.tcp.answers import OK, failure
from headwater.server.tcp.fields import INT32, Fields
from headwater.server.tcp.slots import Answer
from headwater.server.tcp.subscription import Subscription, check_number, find, stopping

if TYPE_CHECKING:
    from headwater.server.tcp.connection import Connection

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MS = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
OF_TOPICS = (
    *("streamName", "eventType", "typeMatcher", "matcher"),
    *("startSequence", "startTimestamp", "durableID", "partition"),
)
OF_BINDERS = ("binder", "after")


async def subscribe(connection: Connection, frame: dict[str, Any]) -> Answer:
    """SUBSCRIBE: to a topic, or to the documents of a binder."""
    try:
        fields = Fields("SUBSCRIBE", frame, OF_TOPICS + OF_BINDERS)
        check_number(connection)
        if "binder" in fields:
            return await changing.subscribe(connection, fields)
        return await _subscribe(connection, fields)
    except HeadwaterError as error:
        if error.code == "unauthenticated":  # which ends the connection
            raise
        return Answer(failure(error, "SUBRESPONSE"), None, error)


async def unsubscribe(connection: Connection, frame: dict[str, Any]) -> Answer:
    """UNSUBSCRIBE."""
    fields = Fields("UNSUBSCRIBE", frame, ("subID", "delete"))
    id = fields.integer("subID", most=INT32, needed=True) or 0
    await find(connection, id).unsubscribe(delete=fields.flag("delete"))
    return Answer(OK)


async def _subscribe(connection: Connection, fields: Fields) -> Answer:
    topic = fields.text("streamName", needed=True) or ""
    if "after" in fields:
        raise fields.wrong("has 'after' without 'binder'", hint="events begin at 'startSequence'")
    start, partition = _start(fields), fields.integer("partition", most=INT32)
    selection: dict[str, Any] = {"type": _type(fields), "match": fields.document("matcher")}
    name = fields.text("durableID")
    user = await connection.require("SUBSCRIBE", topic)
    store = connection.store
    several = partition is None and len((await store.blocking(store.engine.describe, topic)).partitions) > 1
    if name is not None:
        if partition is not None:
            raise fields.wrong("has 'partition' and 'durableID'", hint="a durable subscription has all partitions")
        return await durable.subscribe(connection, user.name, name, topic, several, start, selection)
    batches = await store.feeds.follow(
        topic, start=start, bytes_max=recev.CHUNK_BYTES, partition=partition, **selection
    )
    subscription = TopicSubscription(connection, batches)
    subscription.several, subscription.only = several, partition or 0
    return subscription.accepted()


def _type(fields: Fields) -> str | None:
    """The pattern of the types that are wanted; None for all."""
    name, pattern = fields.text("eventType"), fields.text("typeMatcher")
    if name is not None and pattern is not None:
        raise fields.wrong("has 'eventType' and 'typeMatcher'", hint="give a name, or a pattern")
    return pattern if name is None else exactly(name)


def _start(fields: Fields) -> At:
    """Where a subscription begins: at the end, unless it says."""
    offset, time = fields.integer("startSequence"), fields.integer("startTimestamp", most=LAST_MS)
    if offset is not None and time is not None:
        raise fields.wrong("has 'startSequence' and 'startTimestamp'", hint="give one of them")
    if time is not None:
        return EPOCH + timedelta(milliseconds=time)
    return "latest" if offset is None else offset


class TopicSubscription(Subscription):
    """A subscription to a topic that keeps nothing: it reads for itself, and waits when its client is slow."""

    def __init__(self, connection: Connection, batches: AsyncGenerator[list[EventBatch], None]) -> None:
        super().__init__(connection)
        self._batches = batches

    async def run(self) -> None:
        blocking, frame_max = self.connection.store.blocking, self.connection.limits.frame_bytes_max
        async with aclosing(self._batches) as each:
            async for batches in each:
                rest = iter(batches)
                while (encoded := await blocking(recev.encode, self.id, rest, frame_max)).frames or encoded.error:
                    for frames in encoded.frames:
                        await self.send(frames)
                    if encoded.error is not None:
                        raise encoded.error
        raise stopping()
