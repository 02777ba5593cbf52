"""Live delivery of a served log: subscriptions that share what they read, and readers with ends of their own.

`channels` serves many subscribers with one read, `watches` waits for new events. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from headwater.directory.directory import Directory
from headwater.errors import Closed
from headwater.format.events import EventBatch
from headwater.log.topic_cursor import Gap, Offsets, TopicCursor
from headwater.position import Position
from headwater.server.channels import Blocking, Channel, ChannelSubscription, StreamFormat
from headwater.server.metrics import LiveMeter
from headwater.server.settings import ServerSettings
from headwater.server.watches import Follower, Watches

_canonical = msgspec.json.Encoder(order="deterministic").encode


class Feeds:
    """All live delivery of one server, with its `counts`."""

    def __init__(
        self,
        backend: Directory,
        blocking: Blocking,
        loop: asyncio.AbstractEventLoop,
        settings: ServerSettings,
        counts: LiveMeter,
    ) -> None:
        """`blocking` calls a function in a thread, and waits for it without blocking the loop."""
        self.counts = counts
        self._backend = backend
        self._blocking = blocking
        self._loop = loop
        self._limits = settings.limits
        self._heartbeat_s = settings.heartbeat_s
        self._watches = Watches(backend.bell, loop, settings.limits.watch_threads)
        self._channels: dict[Hashable, Channel] = {}
        self._waiters: set[_FeedWaiter] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def subscribe(
        self,
        topic: str,
        form: StreamFormat,
        *,
        start: Position | Sequence[int] = "latest",
        after: UUID | None = None,
        opening: bytes = b"",
        **selection: Any,
    ) -> ChannelSubscription:
        """A stream of the events from `start` on, then those that come, from any process, until the client leaves.

        `selection` is `partition`, `type`, `key` and `match`, as for `Store.read`; all that ask for the same share one
        reader. `after` is the id of an event to begin after, instead of `start`: if others were deleted since, or it is
        of a topic that had this name before, a gap is told, and the oldest comes next. `opening` is written first. The
        stream ends properly when the topic is deleted or the server stops. Raises NotFound for a missing topic, and for
        an offset that was deleted; Invalid for a bad pattern, match or place.
        """
        if self._closed:
            raise Closed("the server is stopping", code="stopping")
        cursor, end, gap = await self._blocking(self._place, topic, start, after, selection)
        if gap is not None:
            self.counts.gaps += 1
            opening += form.gap(gap, cursor.offsets, after)
        first = form.first
        if opening:
            opening, first = first + opening, b""
        wanted = [selection.get(name) for name in ("type", "key", "match")]
        key = (cursor.uuid, cursor.partitions, form.key, _canonical(wanted))
        return ChannelSubscription(
            partial(self._join, key, form, end),
            partial(self._leave, key),
            self._blocking,
            cursor.offsets,
            after,
            self._limits,
            self.counts,
            form.opening + opening,
            first,
        )

    async def follow(
        self,
        topic: str,
        *,
        start: Position | Sequence[int] = "earliest",
        stop: int | None = None,
        wait: bool = True,
        bytes_max: int,
        **selection: Any,
    ) -> AsyncGenerator[list[EventBatch], None]:
        """Return events from `start` to before the offset `stop`, and with `wait` new ones: some batches at a time.

        For readers that share with nobody. Raises as `subscribe`; the iteration also when the topic is deleted, or with
        NotFound and the code `offset_gone` when retention passes it. It ends when the server stops.
        """
        cursor, end, _ = await self._blocking(self._place, topic, start, None, selection)
        ends = None if stop is None else (stop,) * len(cursor.offsets)
        if not wait:
            ends = end.offsets if ends is None else tuple(map(min, ends, end.offsets))
        return self._follow(cursor, ends, wait, bytes_max)

    def close(self) -> None:
        """End all streams properly, and the threads. Nothing can be subscribed to any more. May be called twice."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for channel in list(self._channels.values()):
            for subscription in list(channel.subscriptions):
                subscription.end()
        for waiter in list(self._waiters):
            waiter.wake()
        self._watches.close()

    def _place(
        self, topic: str, start: Position | Sequence[int], after: UUID | None, selection: Mapping[str, Any]
    ) -> tuple[TopicCursor, TopicCursor, Gap | None]:
        """Return where to begin, and where the topic ends now. In a worker thread."""
        cursor = self._backend.cursor(topic, start=start, **selection)
        end = cursor.at(cursor.ends())
        gap = None
        if after is not None:
            gap = cursor.go_after(after)
        elif start != "earliest":  # which retention may pass meanwhile
            cursor.check()
        return cursor, end, gap

    def _join(self, key: Hashable, form: StreamFormat, end: TopicCursor, subscription: ChannelSubscription) -> Channel:
        """Return the channel of a subscription, which is made with the first."""
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = Channel(end, form, self._limits, self.counts, self._loop)
            self.counts.channels += 1
            self._watches.add(channel)
        channel.subscriptions.add(subscription)
        self.counts.subscribers += 1
        if self._timer is None:
            self._timer = self._loop.call_later(self._heartbeat_s, self._beat)
        return channel

    def _leave(self, key: Hashable, subscription: ChannelSubscription) -> None:
        """A channel ends with its last subscription."""
        channel = self._channels[key]
        channel.subscriptions.discard(subscription)
        self.counts.subscribers -= 1
        if not channel.subscriptions:
            del self._channels[key]
            self.counts.channels -= 1
            self._watches.remove(channel)

    def _beat(self) -> None:
        """One timer for all, which stops with the last subscription."""
        self._timer = self._loop.call_later(self._heartbeat_s, self._beat) if self._channels else None
        for channel in list(self._channels.values()):
            channel.beat()

    async def _follow(
        self, cursor: TopicCursor, ends: Offsets | None, wait: bool, bytes_max: int
    ) -> AsyncGenerator[list[EventBatch], None]:
        waiter: _FeedWaiter | None = None
        try:
            while not self._closed:
                before = cursor.offsets
                batches = await self._blocking(cursor.take, bytes_max, ends)
                if batches:
                    yield batches
                elif cursor.offsets == before:
                    over = ends is not None and all(map(int.__ge__, before, ends))
                    if over or not wait or self._closed:
                        return
                    if waiter is None:
                        waiter = _FeedWaiter(cursor.at(before))
                        self._waiters.add(waiter)
                        self._watches.add(waiter)
                    await waiter.wait()
        finally:
            if waiter is not None:
                self._waiters.discard(waiter)
                self._watches.remove(waiter)


async def beating(
    found: AsyncGenerator[list[EventBatch], None], seconds: float
) -> AsyncGenerator[list[EventBatch] | None, None]:
    """Yield the batches, and None whenever there were none for so many seconds."""
    looking: asyncio.Future[list[EventBatch] | None] | None = None
    try:
        while True:
            looking = asyncio.ensure_future(anext(found, None))
            while not (await asyncio.wait({looking}, timeout=seconds))[0]:
                yield None
            if (batches := looking.result()) is None:
                return
            yield batches
    finally:
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        await found.aclose()


class _FeedWaiter(Follower):
    """A reader with its own position that is notified of new events."""

    def __init__(self, cursor: TopicCursor) -> None:
        super().__init__(cursor)
        self._news = asyncio.Event()

    def advance(self) -> tuple[Callable[[], None]] | None:
        """Have it told that there is more. In the thread of the watch."""
        return (self.wake,) if self.cursor.to_end() else None

    def fail(self, error: Exception) -> None:
        """It meets the error itself when it reads."""
        del error
        self.wake()

    def wake(self) -> None:
        self._news.set()

    async def wait(self) -> None:
        """Sleep until there is more than there was when this last returned."""
        await self._news.wait()
        self._news.clear()
        self.done()
