"""Live delivery to many subscribers: new events are read and encoded once for all that share a channel.

A `Channel` moves along its topic's end and numbers the chunks that it writes; the last few are kept. A
`ChannelSubscription` that is at the channel's place is live: it gets each chunk as it is made. One that is not (it
began earlier, or its client was slow) reads for itself up to the offsets at which the channel was when it looked, and
needs then just the chunk that the channel was to write next at that moment. If that is still kept, it goes on from
there, else it reads on. So nothing is lost or doubled, and a slow client holds nothing but what its connection has not
sent.

`Channel.advance` is called in the thread of a watch, and reading for a subscription is done in a worker thread;
everything else belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from headwater.errors import HeadwaterError, NotFound
from headwater.format.events import EventBatch
from headwater.limits import ServerLimits
from headwater.log.topic_cursor import Gap, Offsets, TopicCursor
from headwater.server.http.message import StreamSink
from headwater.server.metrics import LiveMeter
from headwater.server.watches import Follower
from headwater.server.wire.encodings import HUGE_BYTES
from headwater.server.wire.pieces import joined

TURN = 256  # writes at a time, of about 10 µs each, before the loop sees to others
REST_SHARE = (
    0.5  # of the time that writing to all took: so long it rests, and the loop is never taken up by one channel
)
REST_S_MIN = 0.001  # below, resting is not worth a timer

Blocking = Callable[..., Awaitable[Any]]
Write = Callable[[bytes, bytes], bool]


class StreamFormat(Protocol):
    """Encodes events for a stream. Safe from any thread."""

    @property
    def key(self) -> Hashable:
        """Two forms with the same key write the same bytes."""
        ...

    @property
    def opening(self) -> bytes:
        """Return what is written at once."""
        ...

    @property
    def first(self) -> bytes:
        """Return what is written before the first event, together with it."""
        ...

    @property
    def heartbeat(self) -> bytes:
        """Return a heartbeat; empty if the format has none."""
        ...

    def encode(self, batches: Sequence[EventBatch], before: Offsets) -> Iterator[bytes]:
        """Return the bytes of events, huge ones in slices; `before` is where their reader was before them."""
        ...

    def gap(self, gap: Gap, before: Offsets, last_id: UUID | None) -> bytes:
        """That events were deleted before they were written; `last_id` is the last that was, if it is known."""
        ...

    def failure(self, error: HeadwaterError) -> bytes:
        """Return the error that ends a stream."""
        ...


class ChannelChunk(NamedTuple):
    """Encoded events. `after` is the position of a reader that has received them.

    With a huge event among them, they are not here: `pieces` makes their bytes, for each reader as it has room.
    """

    data: bytes
    framed: bytes  # the same as a chunk of HTTP
    events: int
    gaps: int
    after: Offsets
    last_id: UUID | None
    pieces: Callable[[], Iterator[bytes]] | None = None


class Channel(Follower):
    """A reader, a format and the last chunks that several subscriptions share."""

    def __init__(
        self,
        cursor: TopicCursor,
        form: StreamFormat,
        limits: ServerLimits,
        counts: LiveMeter,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`cursor` is at the end of the topic, or was just now."""
        super().__init__(cursor)
        self.form = form
        self.offsets = cursor.offsets  # where a live subscription is, once the last chunk is written to all
        self.last_id: UUID | None = None  # of what was written last
        self.head = 0  # the number of the next chunk
        self.recent: deque[ChannelChunk] = deque()  # the last ones, the newest before `head`
        self.live: dict[ChannelSubscription, Write] = {}
        self.subscriptions: set[ChannelSubscription] = set()
        self._recent_bytes = 0
        self._idle = True  # whether nothing was written since the last heartbeat
        self._limits = limits
        self._counts = counts
        self._loop = loop
        self._read_id: UUID | None = None  # of the last that was read; of the watch's thread

    def advance(self) -> tuple[Callable[[ChannelChunk], None], ChannelChunk] | None:
        """Read what is new, and have it written. In the thread of the watch."""
        chunk = read(self.cursor, self.form, self._limits.feed_chunk_bytes, None, self._read_id)
        if chunk is None:
            return None
        self._read_id = chunk.last_id
        return self.deliver, chunk

    def deliver(self, chunk: ChannelChunk) -> None:
        """Write a chunk to all who are live."""
        self.offsets = chunk.after
        if chunk.data or chunk.pieces is not None:
            self._keep(chunk)
            self._idle = False
            self.last_id = chunk.last_id
        if chunk.pieces is not None:
            for subscription in list(self.live):
                subscription.go_alone()
            self._delivered(0.0)
        elif chunk.data:
            self._write(chunk, list(self.live.items()), 0, 0.0)
        else:
            self._delivered(0.0)

    def _write(
        self, chunk: ChannelChunk, live: list[tuple[ChannelSubscription, Write]], at: int, took_s: float
    ) -> None:
        """Write to some, and to the others when the loop has seen to those who wait for something else."""
        begun = self._loop.time()
        data, framed = chunk.data, chunk.framed
        some = live[at : at + TURN]
        if at:  # some may have left meanwhile, and their connections may be used for something else
            some = [each for each in some if each[0] in self.live]
        late = [subscription for subscription, write in some if not write(data, framed)]
        for subscription in late:
            subscription.fall_behind(chunk)
        counts, many = self._counts, len(some)
        counts.events += chunk.events * many
        counts.bytes += len(data) * many
        counts.gaps += chunk.gaps * many
        took_s += self._loop.time() - begun
        if at + TURN < len(live):
            self._loop.call_soon(self._write, chunk, live, at + TURN, took_s)
        else:
            self._delivered(took_s)

    def _delivered(self, took_s: float) -> None:
        """Rest a while: the loop has other work, and what comes meanwhile is written at once."""
        if len(self.live) < len(self.subscriptions):
            for subscription in [each for each in self.subscriptions if each.ahead]:
                subscription.look_again()
        if took_s > REST_S_MIN:
            self._loop.call_later(took_s * REST_SHARE, self.done)
        else:
            self.done()

    def fail(self, error: Exception) -> None:
        """End all subscriptions because reading failed."""
        for subscription in list(self.subscriptions):
            subscription.fail(error)

    def kept(self, number: int) -> ChannelChunk | None:
        """Return a chunk by its number; None if it is not kept any more."""
        at = number - self.head
        return self.recent[at] if at >= -len(self.recent) else None

    def beat(self) -> None:
        """Say that the stream is alive to all who have heard nothing since the last time."""
        heartbeat = self.form.heartbeat
        if self._idle and heartbeat and not self.is_busy():
            for subscription in list(self.subscriptions):
                subscription.beat(heartbeat)
        self._idle = True

    def _keep(self, chunk: ChannelChunk) -> None:
        """Keep it for those who are just coming; the more they are, the more is kept."""
        limits = self._limits
        most = min(limits.feed_recent_bytes, limits.feed_chunk_bytes * len(self.subscriptions))
        self.recent.append(chunk)
        self.head += 1
        self._recent_bytes += len(chunk.data)
        while self.recent and (self._recent_bytes > most or len(self.recent) > limits.feed_recent_max):
            self._recent_bytes -= len(self.recent.popleft().data)


class ChannelSubscription:
    """One stream to one client: a `BodyStream` of `http.message`."""

    def __init__(
        self,
        join: Callable[[ChannelSubscription], Channel],
        leave: Callable[[ChannelSubscription], None],
        blocking: Blocking,
        offsets: Offsets,
        last_id: UUID | None,
        limits: ServerLimits,
        counts: LiveMeter,
        opening: bytes,
        first: bytes = b"",
    ) -> None:
        """`join` and `leave` are called when it begins and ends; `last_id` is the event before `offsets`, if known."""
        self.ahead = False  # whether it waits for its channel to get to where it begins
        self._join = join
        self._leave = leave
        self._blocking = blocking
        self._offsets = offsets
        self._last_id = last_id
        self._limits = limits
        self._counts = counts
        self._opening = opening
        self._first = first  # until it is written, with the first event
        self._number = 0  # of its channel's chunk that it needs next
        self._full = False
        self._begun = self._ended = False
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._channel: Channel
        self._sink: StreamSink

    # The stream

    def begin(self, sink: StreamSink) -> None:
        """Write to this sink from now on."""
        if self._ended:
            sink.end()
            return
        self._begun = True
        self._sink = sink
        self._channel = self._join(self)
        self._full = not sink.write(self._opening)
        if self._offsets == self._channel.offsets:
            self._number = self._channel.head
            self._go_on()
        else:
            self._task = asyncio.get_running_loop().create_task(self._catch_up())

    def resume(self) -> None:
        """There is room again."""
        if self._ended or not self._full:
            return
        self._full = False
        if self._task is None:
            self._go_on()
        elif not self.ahead:
            self._woken()

    def close(self) -> None:
        """Let go of everything. May be called twice."""
        if self._ended:
            return
        self._ended = True
        if self._task is not None:
            self._task.cancel()
        if self._begun:
            self._channel.live.pop(self, None)
            self._leave(self)

    # What the channel tells

    def fall_behind(self, chunk: ChannelChunk) -> None:
        """The channel's last chunk has filled the sink."""
        self._channel.live.pop(self, None)
        if self._ended:
            return
        self._full = True
        self._number = self._channel.head
        self._offsets, self._last_id = chunk.after, chunk.last_id or self._last_id
        self._counts.behind += 1

    def go_alone(self) -> None:
        """The channel's last chunk is huge: send it as fast as the client takes it, and come back."""
        self._channel.live.pop(self, None)
        self._number = self._channel.head - 1
        self._go_on()

    def look_again(self) -> None:
        """The channel has moved."""
        if self._behind_or_at(self._channel.offsets):
            self._woken()

    def beat(self, heartbeat: bytes) -> None:
        """Say that the stream is alive, if there is room and nothing else to say."""
        if not self._full and (self._task is None or self.ahead) and not self._sink.write(heartbeat):
            live = self._channel.live.pop(self, None)
            self._full = True
            if live is not None:
                self._number = self._channel.head
                self._offsets, self._last_id = self._channel.offsets, self._channel.last_id or self._last_id

    def fail(self, error: Exception) -> None:
        """End the stream with an error to the client, unless the topic was deleted."""
        if self._ended:
            return
        deleted = isinstance(error, NotFound) and error.code == "topic_deleted"
        if isinstance(error, HeadwaterError) and not deleted:
            self._begin_events()
            self._sink.write(self._channel.form.failure(error))
        self.end()

    def end(self) -> None:
        """End the answer properly."""
        if not self._ended:
            self.close()
            if self._begun:
                self._sink.end()

    # Its way to the channel's place

    def _go_on(self) -> None:
        """Write what the channel has kept since, and be live; if that is not kept any more, read it."""
        channel = self._channel
        while not (self._full or self._ended):
            if self._number == channel.head:
                channel.live[self] = self._write_first if self._first else self._sink.write_framed
                return
            chunk = channel.kept(self._number)
            if chunk is None:
                self._task = asyncio.get_running_loop().create_task(self._catch_up())
                return
            self._number += 1
            if chunk.pieces is not None:
                self._task = asyncio.get_running_loop().create_task(self._send_alone(chunk))
                return
            self._write(chunk)

    async def _catch_up(self) -> None:
        """Read up to where the channel is now, and go on from there."""
        channel = self._channel
        async with self._apart():
            cursor = channel.cursor.at(self._offsets)
            while True:
                while not self._behind_or_at(channel.offsets):
                    await self._wait_for_channel()
                stop, number = channel.offsets, channel.head
                await self._read_to(stop, cursor)
                if self._offsets == stop:  # else a gap has led beyond it
                    break
            self._number = number

    async def _send_alone(self, chunk: ChannelChunk) -> None:
        """Send a chunk with a huge event, and go on after it."""
        async with self._apart():
            await self._send_huge(chunk)

    @contextlib.asynccontextmanager
    async def _apart(self) -> AsyncIterator[None]:
        """Do something for itself, and go on with the channel after it; what it raises ends the stream."""
        try:
            yield
        except HeadwaterError as error:
            self._task = None
            self.fail(error)
            return
        except Exception as error:  # a bug
            self._task = None
            self.fail(error)
            raise
        self._task = None
        self._go_on()

    async def _read_to(self, stop: Offsets, cursor: TopicCursor) -> None:
        form, bytes_max = self._channel.form, self._limits.feed_chunk_bytes
        while any(map(int.__lt__, self._offsets, stop)):
            while self._full:
                await self._sleep()
            chunk = await self._blocking(read, cursor, form, bytes_max, stop, self._last_id)
            if chunk is None:
                return
            if chunk.pieces is not None:
                await self._send_huge(chunk)
            else:
                self._write(chunk)
        while self._full:
            await self._sleep()

    async def _send_huge(self, chunk: ChannelChunk) -> None:
        """Write a chunk with a huge event piece by piece: nothing of it is held while there is no room."""
        assert chunk.pieces is not None
        pieces = chunk.pieces()
        while not self._ended:
            while self._full:
                await self._sleep()
            piece = await self._blocking(next, pieces, b"")
            if not piece:
                break
            self._begin_events()
            self._full = not self._sink.write(piece)
            self._counts.bytes += len(piece)
            del piece
        self._offsets, self._last_id = chunk.after, chunk.last_id
        self._counts.events += chunk.events

    def _write(self, chunk: ChannelChunk) -> None:
        self._offsets = chunk.after
        if chunk.data:
            self._last_id = chunk.last_id
            self._begin_events()
            self._full = not self._sink.write_framed(chunk.data, chunk.framed)
            self._counts.events += chunk.events
            self._counts.bytes += len(chunk.data)
            self._counts.gaps += chunk.gaps

    def _write_first(self, data: bytes, framed: bytes) -> bool:
        """Write the first chunk that comes while it is live; others go straight to the sink."""
        self._begin_events()
        self._channel.live[self] = self._sink.write_framed
        return self._sink.write_framed(data, framed)

    def _begin_events(self) -> None:
        first, self._first = self._first, b""
        if first:
            self._sink.write(first)

    def _behind_or_at(self, offsets: Offsets) -> bool:
        return all(map(int.__le__, self._offsets, offsets))

    async def _wait_for_channel(self) -> None:
        self.ahead = True
        try:
            await self._sleep()
        finally:
            self.ahead = False

    async def _sleep(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    def _woken(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def read(
    cursor: TopicCursor, form: StreamFormat, bytes_max: int, stop: Offsets | None, last_id: UUID | None
) -> ChannelChunk | None:
    """The next chunk from a cursor, without bytes if nothing of what was read is wanted; None if there is no more.

    `last_id` is the last that was read before.
    """
    before = cursor.offsets
    batches: list[EventBatch] = []
    gaps: list[Gap] = []
    data, pieces = b"", None
    try:
        batches = cursor.take(bytes_max, stop)
        if sum(batch.size + batch.huge_bytes for batch in batches) > HUGE_BYTES:
            pieces = partial(_pieces, form, batches, before)
        else:
            data = b"".join(form.encode(batches, before))
    except NotFound as error:
        if error.code != "offset_gone":
            raise
        gaps = cursor.pass_gaps()
        data = b"".join([form.gap(gap, before, last_id) for gap in gaps])
    after = cursor.offsets
    if after == before:
        return None
    framed = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
    last_id = batches[-1].last_id if batches else last_id
    return ChannelChunk(data, framed, sum(map(len, batches)), len(gaps), after, last_id, pieces)


def _pieces(form: StreamFormat, batches: Sequence[EventBatch], before: Offsets) -> Iterator[bytes]:
    return joined(form.encode(batches, before))
