"""A remote member: a member of the engine that delivers events to a client that has joined a consumer.

A `RemoteMember` has a thread of its own, which takes events, encodes them and gives them to the loop, one chunk at a
time: no more while the connection is full, or so much is not acked that the window is. The member lives as long as its
connection, and as its client is heard of: a client that is stopped keeps its connection, but sends nothing, and after
`lease_ms` the member leaves, as an embedded one would lose its leases. Then, and when the connection ends, its
partitions are given up at once. A client that did not say that it leaves has died, and what it had in hand has failed.
That is different for a member that is `MemberOwner` to a connection that tells by itself whether its client lives.

A `RemoteMember` is a `BodyStream`: `begin`, `resume` and `close` belong to the loop's thread; the rest is thread-safe.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from headwater.consumers.log_consumer import LogConsumer
from headwater.errors import Fenced, HeadwaterError, Unavailable
from headwater.event import Event
from headwater.limits import ServerLimits
from headwater.position import Position
from headwater.server.http.message import StreamSink
from headwater.server.window import AckWindow

LOOK_S = 1.0  # how often a thread that may not hand out looks whether its partitions are still held
RETRY_S = 0.05  # and whether what failed is to be sent again, which it may be in any case
LEAVE_S = 10.0  # how long to wait for a thread that is to end: it may be at a lock

_log = logging.getLogger("headwater.server")


class HeldPartition(msgspec.Struct, frozen=True):
    """A partition that a member holds: its fence, and the next offset to deliver."""

    fence: int
    next: int


class MemberState(msgspec.Struct, frozen=True):
    """The progress of a member: the number of events `sent` in all, and the partitions it holds.

    `idle` says that there was nothing more to send then, `full` that so much is not acked that it waits.
    """

    sent: int = 0
    idle: bool = False
    full: bool = False
    skipped: int = 0
    held: dict[int, HeldPartition] = {}


class Formats(msgspec.Struct, frozen=True):
    """Encodes a stream: events, heartbeats, and the error that ends it.

    `events` makes pieces, each when there is room for it; up to so many bytes, the data of a huge event is part of it.
    """

    media_type: str
    events: Callable[[Sequence[Event], int], Iterator[bytes]]
    heartbeat: bytes
    error: Callable[[HeadwaterError], bytes]


class Settlement(msgspec.Struct, frozen=True):
    """A client's report on events: acked ranges, cumulative acks, failures; with `flush`, made durable."""

    acks: Sequence[tuple[int, int, int]] = ()
    to: Sequence[tuple[int, int]] = ()
    fails: Sequence[tuple[int, int, str]] = ()
    flush: bool = False


class MemberOwner(msgspec.Struct, frozen=True):
    """Keeps a member alive without a lease, until it leaves.

    At most `events_max` are sent and not acked. When it leaves, nothing has failed, whatever the reason; `last` is
    called before, in its thread, for the last acks. It has the consumer for itself: when a partition that it held is
    lost or moved, it ends with Fenced.
    """

    events_max: int
    last: Callable[[], None]


Work = Callable[[], dict[int, int]]


class MemberTask(NamedTuple):
    """A request to a member's thread: work to do, or None to poll for events; and the callback for its result."""

    work: Work | None
    tell: Callable[[object], None]


class Turn(NamedTuple):
    """The next step of a member's thread: respond and, if it is `open`, take as many events as there is `room` for."""

    asked: list[MemberTask]
    open: bool
    room: tuple[int, int]
    wait_s: float


class RemoteMember:
    """One member of a consumer, for one client."""

    def __init__(
        self,
        token: str,
        user: str,
        consumer: LogConsumer,
        formats: Formats,
        lease_s: float,
        heartbeat_s: float,
        timeout: float | None,
        limits: ServerLimits,
        in_memory: int,
        event_at: Callable[[str, int, int], Event],
        gone: Callable[[RemoteMember], None],
        bound: MemberOwner | None = None,
    ) -> None:
        """`timeout` ends the stream when nothing came for so long. `gone` is called when the member has left.

        Data up to `in_memory` is sent with its event.
        """
        self.token = token
        self.user = user
        self.consumer = consumer
        self.formats = formats
        self.lease_s = lease_s
        self._heartbeat_s = min(heartbeat_s, lease_s / 3)
        self._timeout = timeout
        self._event_at = event_at
        self._gone = gone
        self._bound = bound
        self._patience_s = lease_s if bound is None else float("inf")
        self._changed = threading.Condition()  # protects all below; never held during I/O
        events_max = limits.member_events_max if bound is None else bound.events_max
        self._window = AckWindow(events_max, limits.member_bytes_max)
        self._in_memory = in_memory
        self._pieces: Iterator[bytes] | None = None  # of what was taken and is not sent; of the thread
        self._state = MemberState()
        self._sent = 0
        self._spoke_s = self._came_s = 0.0  # when something, and when an event was sent last
        self._asked: list[MemberTask] = []
        self._answering: list[MemberTask] = []  # what of it the thread has taken up, and not answered
        self._heard_s = monotonic()
        self._room = False  # whether the connection takes another chunk
        self._over = False
        self._said_farewell = False
        self._sink: StreamSink | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=f"headwater-member-{consumer.name}", daemon=True)

    @property
    def state(self) -> MemberState:
        """As of the last time that its thread looked."""
        with self._changed:
            return self._state

    def start(self) -> None:
        """Begin to hand out, as soon as there is a connection."""
        self._thread.start()

    # The client

    def heard(self) -> None:
        """The client has shown that it lives."""
        with self._changed:
            self._heard_s = monotonic()

    def settle(self, said: Settlement) -> list[bool]:
        """Apply acks and failures of a client; returns for each failure whether the event was dead-lettered.

        Raises Fenced if something of it came too late, when all the rest is taken.
        """
        self.heard()
        refused: Fenced | None = None
        for partition, first, end in said.acks:
            try:
                self.consumer.ack_range(partition, first, end)
            except Fenced as error:
                refused = refused or error
            self.done(partition, first, end)
        for partition, offset in said.to:
            try:
                self.consumer.ack_to((partition, offset))
            except Fenced as error:
                refused = refused or error
            self.done(partition, 0, offset + 1)
        aside = [self._fail(*each) for each in said.fails]
        if said.flush:
            self.consumer.flush()
        if refused is not None:
            raise refused
        return aside

    def leave(self) -> None:
        """The client has no more use for it: whatever ends it now, nothing has failed."""
        with self._changed:
            self._said_farewell = self._over = True
            self._changed.notify()
        self.consumer.stop()

    def handed_out(self, partition: int, offset: int) -> Event:
        """Return a stand-in for an event that was handed out: an ack uses only its position."""
        return Event(self.consumer.topic, partition, offset, 0, "", None, b"", "bytes", 0)

    def done(self, partition: int, first: int, end: int) -> None:
        """Make room in the window for others: these were acked, here or by a transaction."""
        with self._changed:
            self._window.done(partition, first, end)
            self._changed.notify()

    async def look(self) -> MemberState:
        """Return what the member holds, after a poll that began after this call."""
        return (await self._ask(None))[1]

    async def seek(self, at: Position, partition: int | None) -> tuple[dict[int, int], MemberState]:
        """Go on from another place, as `Consumer.seek`; what is sent later is from there. Returns the new cursors."""
        cursors, state = await self._ask(partial(self.consumer.seek, at, partition))
        return cursors or {}, state

    async def _ask(self, work: Work | None) -> tuple[dict[int, int] | None, MemberState]:
        """Have the thread do something between two chunks, and hear what it found."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[dict[int, int] | None, MemberState]] = loop.create_future()
        asked = MemberTask(work, partial(_tell, loop, answer))
        with self._changed:
            if self._over:
                raise member_gone()
            self._asked.append(asked)
            self._changed.notify()
        self.consumer.wake()
        return await answer

    def _fail(self, partition: int, offset: int, error: str) -> bool:
        aside = self.consumer.fail(self._event_at(self.consumer.topic, partition, offset), error)
        if aside:
            self.done(partition, offset, offset + 1)
        return aside

    # The loop

    def begin(self, sink: StreamSink) -> None:
        with self._changed:
            self._loop = asyncio.get_running_loop()
            self._sink = sink
            self._room = True
            self._changed.notify()

    def resume(self) -> None:
        with self._changed:
            self._room = True
            self._changed.notify()

    def close(self) -> None:
        """The client has gone, or the server stops: leave, soon."""
        with self._changed:
            self._over = True
            self._sink = None
            self._changed.notify()
        self.consumer.stop()

    def join(self) -> None:
        """Wait until the member has left, after `close`."""
        self._thread.join(LEAVE_S)

    def _write(self, chunk: bytes) -> None:
        if self._sink is not None and self._sink.write(chunk):
            self.resume()

    def _end(self, last: bytes) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            if last:
                sink.write(last)
            sink.end()

    # The thread

    def _run(self) -> None:
        error: HeadwaterError | None = None
        try:
            self._hand_out()
        except HeadwaterError as trouble:
            error = trouble
        except Exception as bug:  # noqa: BLE001  # a bug of ours must be heard of at the other end
            _log.exception("a member of consumer %r failed", self.consumer.name)
            error = Unavailable(f"the member failed: {type(bug).__name__}", hint="see the server's log")
        finally:
            self._leave(error)

    def _hand_out(self) -> None:
        """Until it is over. Raises Fenced when the client was not heard of for as long as a lease."""
        self._spoke_s = self._came_s = monotonic()
        while (turn := self._next_turn()) is not None:
            looks = self._work(turn.asked)
            came = self._take(turn)
            now = monotonic()
            if self._pieces is not None:
                if self._room:
                    self._send_piece()
                    self._spoke_s = self._came_s = now
            elif self.consumer.over or (
                turn.open and self._timeout is not None and now >= self._came_s + self._timeout
            ):
                self._end_by_server()
                return
            elif now >= self._spoke_s + self._heartbeat_s and self._room:
                self._send(self.formats.heartbeat)
                self._spoke_s = now
            self._look_around(looks, idle=turn.open and not came)

    def _next_turn(self) -> Turn | None:
        """Return what is to be done next; waits while nothing may be sent. None when it is over."""
        with self._changed:
            lost = self._window.hold(self.consumer.fences)
            now = monotonic()
            dies_s = self._heard_s + self._patience_s
            if self._over:
                return None
            if lost and self._bound is not None:
                raise taken_over(self.consumer.name)
            if now >= dies_s:
                raise member_gone(self.lease_s)
            beat_s = self._spoke_s + self._heartbeat_s if self._room else dies_s
            sending = self._pieces is not None
            opened = self._room and not self._window.full and not sending
            if not (opened or self._asked or (sending and self._room)):
                look_s = now + (RETRY_S if self.consumer.failing else LOOK_S)
                self._changed.wait(max(0.0, min(dies_s, beat_s, look_s) - now))
            elif opened and self._timeout is not None:
                beat_s = min(beat_s, self._came_s + self._timeout)
            self._answering, self._asked = self._asked, []
            wait_s = 0.0 if self._answering else max(0.0, min(beat_s, dies_s) - now)
            return Turn(self._answering, opened, self._window.room, wait_s)

    def _take(self, turn: Turn) -> bool:
        """Take the next events to be sent, if there are any; the last must have been."""
        if turn.open:
            events = self.consumer.take(*turn.room, turn.wait_s)
        else:
            self.consumer.tend()
            # What failed is in the window, and others of its partition wait for it.
            events = self.consumer.retries() if self._room and self._pieces is None else []
        if not events:
            return False
        self._check_held(events)
        self._pieces = self.formats.events(events, self._in_memory)
        with self._changed:
            self._window.add(events, self._in_memory)
            self._sent += len(events)
        return True

    def _send_piece(self) -> None:
        """Send the next piece of what was taken, if there is one."""
        assert self._pieces is not None
        piece = next(self._pieces, None)
        if piece is None:
            self._pieces = None
        else:
            self._send(piece)

    def _check_held(self, events: Sequence[Event]) -> None:
        """Raise Fenced if one that is bound has lost a partition while it took these: they are not to be sent.

        They would be from another place, and an ack of what was sent before could be taken for one of theirs.
        """
        if self._bound is not None:
            with self._changed:
                lost = self._window.hold(self.consumer.fences)
            last = {event.partition: event for event in events}
            if lost or not all(map(self.consumer.holds, last.values())):
                raise taken_over(self.consumer.name)

    def _end_by_server(self) -> None:
        """Nothing has failed, unless it was the client's end that stopped the consumer."""
        with self._changed:
            self._said_farewell = self._said_farewell or not self._over

    def _send(self, chunk: bytes) -> None:
        with self._changed:
            self._room = False
            loop = self._loop
        assert loop is not None
        _call(loop, lambda: self._write(chunk))

    def _work(self, asked: list[MemberTask]) -> list[MemberTask]:
        """Do what is asked, and return what only wants a look, which comes next."""
        for each in asked:
            if each.work is not None:
                try:
                    done = each.work()
                except HeadwaterError as error:
                    each.tell(error)
                else:
                    self._look_around([], idle=False)
                    each.tell((done, self.state))
        return [each for each in asked if each.work is None]

    def _look_around(self, looks: list[MemberTask], *, idle: bool) -> None:
        """Note what is held, and tell those who wait for it."""
        places, fences = self.consumer.places, self.consumer.fences
        held = {number: HeldPartition(fence, places[number]) for number, fence in fences.items() if number in places}
        with self._changed:
            # Both at once: who knows that events were sent must not miss their partition among those that are held.
            self._state = state = MemberState(self._sent, idle, self._window.full, self.consumer.skipped, held)
        for each in looks:
            each.tell((None, state))

    def _leave(self, error: HeadwaterError | None) -> None:
        with self._changed:
            self._over = True
            asked = [*self._answering, *self._asked]
            self._asked = []
            loop = self._loop
            farewell = self._said_farewell
        self._gone(self)
        try:
            if self._bound is not None:
                self._bound.last()
            if farewell or self._bound is not None:
                self.consumer.close()
            else:
                self.consumer.abandon()
        except HeadwaterError as trouble:
            error = error or trouble
        finally:  # in any case, as a caller may wait for its end
            for each in asked:
                each.tell(member_gone())
            if loop is not None:
                last = b"" if error is None else self.formats.error(error)
                _call(loop, lambda: self._end(last))


def member_gone(lease_s: float | None = None) -> Fenced:
    """Return the error for a member that has left, or whose client was silent for too long."""
    told = "no such member" if lease_s is None else f"the member's lease of {lease_s:g} s has expired"
    return Fenced(
        told,
        hint="join again; events that were not acknowledged are delivered again",
        code="member_gone",
    )


def taken_over(name: str) -> Fenced:
    """Return the error for an exclusive member that was taken over."""
    return Fenced(
        f"consumer {name!r} was taken over, or moved by a seek",
        hint="subscribe again; events that were not acknowledged are delivered again",
    )


def _tell(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], told: object) -> None:
    _call(loop, partial(_resolve, answer, told))


def _resolve(answer: asyncio.Future[Any], told: object) -> None:
    if answer.done():  # the caller has gone
        return
    if isinstance(told, BaseException):
        answer.set_exception(told)
    else:
        answer.set_result(told)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:  # the loop is closed: the server has ended, and there are no waiters
        _log.debug("a member outlived its event loop")
