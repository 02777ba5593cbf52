"""A named consumer: hands out the events of the partitions that it leases, and takes their acks.

Delivery is at least once: when a member dies, what was handed out and not acked, or acked and not yet stored, comes
again. `LogConsumer` is the iterator and its verbs; `member` keeps the leases, `holding` counts one partition's acks.
Iterating belongs to one thread; acks and failures may come from any.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import length_hint
from typing import Protocol, Self, overload

from headwater.consumers.delivery_ledger import CHUNK_BYTES, DeliveryLedger
from headwater.consumers.leases import Leases, Progress
from headwater.consumers.member import ConsumerMember, not_held
from headwater.directory.cursor_file import CursorMove
from headwater.disk.disk import Clock, Disk
from headwater.errors import Closed, HeadwaterError, Invalid, Unavailable, out_of_memory, within_memory
from headwater.event import Event
from headwater.limits import Limits
from headwater.log.follow import wait_for_more
from headwater.log.log import Log
from headwater.log.reading import check_id, resolve
from headwater.match.selection import Selection
from headwater.position import Position

NEVER = 1 << 62  # an offset that no log reaches

_log = logging.getLogger("headwater")


class ExternalCursors(Protocol):
    """Where cursors are kept that are not the consumer's own: with what is made of its events, in one transaction."""

    def cursor(self, partition: int) -> int:
        """The next offset to read of a partition that was just taken."""

    def set_aside(self, consumer: LogConsumer, event: Event, error: object) -> None:
        """What to do with an event that has failed, or ended its process, too often."""


@within_memory("__next__", "__iter__", "ack")
class LogConsumer(Iterator[Event]):
    """One member of a consumer. Close it, or use it in a `with` statement; what it had not acked goes to the next.

    Iterating ends after `timeout` seconds without an event, and when it is stopped, or it or the log is closed; while
    other members hold all partitions, it waits. If the `with` block ends by an exception, the event in hand has failed.
    """

    def __init__(
        self,
        name: str,
        logs: Sequence[Log],
        leases: Leases,
        selection: Selection,
        limits: Limits,
        disk: Disk,
        clock: Clock,
        set_aside: Callable[[LogConsumer, Event, object], None],
        timeout: float | None = None,
        cursor_of: Callable[[int], int] | None = None,
    ) -> None:
        self.name = name
        self.topic = logs[0].place.topic
        self.skipped = 0  # offsets that retention took before they were handed out, or whose events are lost
        self.on_aside: Callable[[Event, object], None] | None = None  # is told what was set aside, and why
        self.loads = True  # whether the data of huge events comes with them, up to the limit for memory
        self._logs = logs
        self._leases = leases
        self._selection = selection
        self._limits = limits
        self._disk = disk
        self._clock = clock
        self._monotonic = clock.monotonic
        self._append_aside = set_aside
        self._timeout = timeout
        self._member = ConsumerMember(name, logs, leases, limits, clock, cursor_of)
        self._held = self._member.held
        self._mutex = self._member.mutex
        self._stopped = False
        self._woken = False
        self._events: Iterator[Event] = iter(())  # what is left of the chunk that is being handed out
        self._current: DeliveryLedger | None = None  # whose chunk it is
        self._last: Event | None = None
        self._turns: deque[int] = deque(range(len(logs)))
        self._ends: dict[int, int] | None = None  # while draining: where each partition ended at the call
        self._until_s: float | None = None  # while catching up: when that is over
        self._deadline_s: float | None = None

    @property
    def id(self) -> str:
        """What tells this member from all others: the owner of its leases."""
        return self._leases.id.hex()

    @property
    def partitions(self) -> list[int]:
        """The partitions it holds."""
        with self._mutex:
            return sorted(self._held)

    @property
    def fences(self) -> dict[int, int]:
        """The fence of each partition it holds. It grows with every owner: others can refuse older ones."""
        with self._mutex:
            return {number: holding.fence for number, holding in self._held.items()}

    @property
    def places(self) -> dict[int, int]:
        """Of each partition it holds, what is handed out next: all before that was, or is not wanted.

        For the thread that iterates.
        """
        with self._mutex:
            places = {number: holding.next for number, holding in self._held.items()}
        current, last = self._current, self._last
        if last is not None and current is not None and current.partition in places and length_hint(self._events):
            places[current.partition] = min(places[current.partition], last.offset + 1)
        return places

    @property
    def careful(self) -> bool:
        """Whether what was handed out last may have ended a process: to find out, ack it before more is taken.

        For the thread that iterates.
        """
        current, last = self._current, self._last
        return current is not None and last is not None and last.offset < current.careful_until

    # Events

    def __next__(self) -> Event:
        try:
            if self._monotonic() < self._member.until_s:
                for event in self._events:
                    self._last = event
                    return event
            event = self._last = self._more()
        except MemoryError as error:
            raise out_of_memory("the next events cannot be read") from error
        return event

    def __iter__(self) -> Iterator[Event]:  # noqa: PYI034  # a generator is twice as quick as calls of __next__
        """As `next`, again and again."""
        monotonic, member = self._monotonic, self._member
        while True:
            try:
                if monotonic() < member.until_s:
                    for event in self._events:
                        self._last = event
                        yield event
                        if monotonic() >= member.until_s:
                            break
                self._last = self._more()
            except StopIteration:
                return
            except MemoryError as error:
                raise out_of_memory("the next events cannot be read") from error
            yield self._last

    def take(self, events_max: int, bytes_max: int, wait_s: float) -> list[Event]:
        """The next events of one partition that are there, all at once: about so many; waits for the first of them.

        Empty when `wait_s` seconds brought none, when `wake` was called, and when it was stopped. Raises as `next`.
        """
        timeout, self._timeout = self._timeout, wait_s
        try:
            first = next(self, None)
        finally:
            self._timeout = timeout
            self._woken = False
        if first is None:
            return []
        if bytes_max >= CHUNK_BYTES:  # a chunk has no more, but for its last batch
            events = [first, *islice(self._events, events_max - 1)]
            self._last = events[-1]
            return events
        events, size = [first], first.size
        if size < bytes_max:
            for event in islice(self._events, events_max - 1):
                events.append(event)
                size += event.size
                if size >= bytes_max:
                    break
        self._last = events[-1]
        return events

    @property
    def ready(self) -> bool:
        """Whether the next event is there, and of the same partition as the last one. For the thread that iterates."""
        return self._monotonic() < self._member.until_s and length_hint(self._events) > 0

    @property
    def failing(self) -> bool:
        """Whether something failed and is to be handed out again."""
        return any(holding.again for holding in list(self._held.values()))

    def retries(self) -> list[Event]:
        """What failed and is to be handed out again now, of one partition, and nothing else. Does not wait.

        For the thread that iterates, while it takes nothing new: others of the partition may wait for these.
        """
        now_s = self._monotonic()
        for holding in list(self._held.values()):
            if holding.again and holding.retry_s <= now_s:
                with self._mutex:
                    return holding.returned()
        return []

    def tend(self) -> None:
        """What taking events does besides, now and then: notice what was lost, give up what others should have.

        For the thread that iterates, while it takes none for long.
        """
        if self._member.due():
            self._member.tend(claim=True)

    def wake(self) -> None:
        """Have a `take` that waits return what it has, from any thread; else the next one does not wait."""
        self._woken = True
        for log in self._logs:
            log.stop_followers()

    @overload
    def drain(self) -> Iterator[Event]: ...
    @overload
    def drain(self, handler: Callable[[Event], object]) -> int: ...
    def drain(self, handler: Callable[[Event], object] | None = None) -> Iterator[Event] | int:
        """Events until the consumer has caught up with what is there now: to iterate over, or each given to `handler`.

        It waits for partitions that other members hold, or held when they died. What a handler returns from is acked,
        what it raises is a failure; then the number of events handled is returned, and all acks are durable.
        """
        if handler is None:
            return self._drain(self._all_ends())
        handled = 0
        for event in self._drain(self._all_ends()):
            try:
                handler(event)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is told with the event
                self.fail(event, error)
            else:
                self.ack(event)
                handled += 1
        self.flush()
        return handled

    def catch_up(self, ends: dict[int, int], until_s: float) -> Iterator[Event]:
        """For a guest: the events of some partitions up to these ends, as far as they are free, or become so.

        It waits for a partition that somebody else holds until that one is seen to live, or to be dead; in no case
        longer than `until_s` of the monotonic clock.
        """
        self._leases.guest = sorted(ends)
        self._until_s = until_s
        with self._mutex:
            self._member.look_up()
        try:
            yield from self._drain(ends)
        finally:
            self._until_s = None

    # Acks

    def ack(self, event: Event | Iterable[Event], *more: Event) -> None:
        """Take one event or many as handled. Stored within `ack_ms`, on `flush` and on closing.

        The cursor is the lowest offset that is not acked. Acking again changes nothing. Raises Fenced if the partition
        is not held any more, or was moved: the event comes again, here or elsewhere.
        """
        try:
            if more or not isinstance(event, Event):
                for each in (event, *more) if isinstance(event, Event) else (*event, *more):
                    self.ack(each)
                return
            holding = self._held.get(event.partition)
            if holding is None or self._monotonic() >= holding.expires_s or event.topic != self.topic:
                self._verify(event)
                self.ack(event)
                return
            if holding.waiting.pop(event.offset, event) is event and not holding.acked(event.offset):
                raise not_held(self.name, event.partition, event.offset)
            if holding.failures:
                with self._mutex:
                    holding.settle()
            if self._member.dirty_s is None:  # after the pop: who sets it to None looks at what waits later
                self._member.stir()
        except MemoryError as error:
            raise out_of_memory("ack failed") from error

    def ack_range(self, partition: int, first: int, end: int) -> None:
        """As `ack`, of all that was handed out from offset `first` to before `end` in one partition."""
        while True:
            with self._mutex:
                holding = self._held.get(partition)
                if holding is not None and self._monotonic() < holding.expires_s:
                    if not holding.ack_range(first, end):
                        raise not_held(self.name, partition, first)
                    self._member.stir()
                    return
            self._verify_partition(partition, first)

    def ack_to(self, at: Event | tuple[int, int], fence: int | None = None) -> None:
        """Take all that was handed out of a partition up to an event, or (partition, offset), and it, as handled.

        With `fence`, only if it was handed out under that: raises Fenced where the consumer was moved since.
        """
        partition, offset = (at.partition, at.offset) if isinstance(at, Event) else at
        while True:
            with self._mutex:
                holding = self._held.get(partition)
                if holding is not None and self._monotonic() < holding.expires_s:
                    if (fence is not None and holding.fence != fence) or not holding.ack_to(offset):
                        raise not_held(self.name, partition, offset)
                    self._member.stir()
                    return
            self._verify_partition(partition, offset)

    def fail(self, event: Event, error: object = "") -> bool:
        """Say that handling an event failed. It comes again after a while, before anything else of its partition.

        After `failures_max` times it is set aside into the topic `<topic>.dead` with the error, and acked: True.
        """
        self._verify(event)
        with self._mutex:
            holding = self._held.get(event.partition)
            if holding is None or not holding.start <= event.offset < holding.end:
                raise not_held(self.name, event.partition, event.offset)
            before = holding.failures.get(event.offset, 0)
            pause_ms = min(self._limits.retry_ms << min(before, 32), self._limits.retry_ms_max)
            failures = holding.fail(event, self._monotonic() + pause_ms / 1000)
            self._member.look_up()
            self._member.stir()
        if failures < self._limits.failures_max:
            return False
        self._set_aside(event, error)
        return True

    def failures(self, event: Event) -> int:
        """How often handling an event has failed, as far as this member knows."""
        with self._mutex:
            holding = self._held.get(event.partition)
            return 0 if holding is None else holding.failures.get(event.offset, 0)

    def flush(self) -> None:
        """Store all acks; they are durable when this returns. Raises Fenced if some came too late to be stored."""
        self.store()
        refused = self._member.refused()
        if refused is not None:
            raise refused

    def store(self) -> None:
        """As `flush`, but without a word about acks that came too late."""
        self._check_open()
        self._member.store_all()

    # For transactions

    @property
    def transactional(self) -> bool:
        """Whether transactions can ack for it."""
        return self._leases.transactional

    def secure(self, partition: int, offset: int) -> None:
        """Make the log durable up to an offset: nothing outside of it may tell of more."""
        log = self._logs[partition]
        if offset > log.state().secured_offset:
            log.sync()

    def holds(self, event: Event) -> bool:
        """Whether it handed out this event, and holds its partition still, as far as it knows."""
        with self._mutex:
            holding = self._held.get(event.partition) if event.topic == self.topic else None
            return holding is not None and holding.start <= event.offset < holding.end

    def moves(self, events: Iterable[Event]) -> list[CursorMove]:
        """What a transaction has to store to ack these events; changes nothing. Their logs are durable that far.

        They must be the next ones of their partitions: a transaction moves cursors, and these leave no gaps. Raises
        Invalid if they are not, Fenced if they are not held, Unsupported where transactions cannot move cursors.
        """
        wanted: dict[int, set[int]] = {}
        for event in events:
            self._verify(event)
            wanted.setdefault(event.partition, set()).add(event.offset)
        moves = []
        for partition, offsets in sorted(wanted.items()):
            with self._mutex:
                holding = self._held.get(partition)
                if holding is None or not holding.start <= min(offsets) <= max(offsets) < holding.end:
                    raise not_held(self.name, partition, min(offsets))
                cursor = holding.cursor_after(offsets)
            if cursor <= max(offsets):
                raise Invalid(
                    f"partition {partition}: offset {cursor} comes before {max(offsets)} and is not acked",
                    hint="a transaction must ack events in the order of delivery",
                    code="ack_order",
                )
            if cursor > holding.log.state().secured_offset:
                holding.log.sync()
            moves.append(self._leases.move(partition, holding.fence, cursor))
        return moves

    def moved(self, moves: Iterable[CursorMove]) -> None:
        """Follow a transaction that has stored these moves."""
        with self._mutex:
            for move in moves:
                holding = self._held.get(move.partition)
                if holding is not None and holding.fence == move.fence:
                    holding.ack_to(move.cursor - 1)
                    holding.stored = max(holding.stored, move.cursor)

    # Places

    def seek(self, at: Position, partition: int | None = None) -> dict[int, int]:
        """Go on from another place, durably: an offset, a time, an id or an end, in one partition or all that it holds.

        Returns the new cursors. What was handed out before cannot be acked any more. Raises Fenced if not held.
        """
        self._check_open()
        check_id(self._logs, at)
        numbers = self.partitions if partition is None else [partition]
        with self._mutex:
            holdings = {number: self._held.get(number) for number in numbers}
        progress = []
        for number, holding in holdings.items():
            if holding is None:
                raise not_held(self.name, number, 0)
            cursor = place(holding.log, at, len(self._logs) if partition is None else 1)
            progress.append(Progress(number, holding.fence, cursor, cursor, 0, 0))
        expires_s, moved = self._leases.seek(progress)
        for standing, each in zip(moved, progress, strict=True):
            self._member.replace(DeliveryLedger(self._logs[each.partition], standing, expires_s))
        return {each.partition: each.cursor for each in progress}

    def lag(self) -> dict[int, int]:
        """How many offsets each partition of the topic is ahead of the consumer, whoever holds it."""
        with self._mutex:
            cursors = {number: holding.cursor for number, holding in self._held.items()}
        stored = self._leases.peek(number for number in range(len(self._logs)) if number not in cursors)
        cursors |= {number: standing.cursor for number, standing in stored.items()}
        return {number: max(0, self._logs[number].end() - cursor) for number, cursor in sorted(cursors.items())}

    # Ending

    def stop(self) -> None:
        """End the iteration, from any thread, soon; what was handed out can still be acked."""
        self._stopped = True
        with self._mutex:
            self._member.look_up()
        for log in self._logs:
            log.stop_followers()

    def close(self) -> None:
        """Store all acks, give up all partitions, durably, and leave. May be called twice."""
        self._put_back()
        self._member.close()
        self._stopped = True

    def abandon(self) -> None:
        """As `close`, for somebody who died with what was handed out: that counts as failed, as if this process had."""
        self._put_back()
        self._member.close(died=True)
        self._stopped = True

    @property
    def over(self) -> bool:
        """Whether it was stopped or closed: nothing more is handed out."""
        return self._stopped or self._member.closed

    def after_fork(self) -> None:
        """In a forked child: the leases are the parent's."""
        self._member.after_fork()
        self._mutex = self._member.mutex

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        event = self._last
        if isinstance(error, Exception) and not isinstance(error, HeadwaterError) and event is not None:
            with self._mutex:
                holding = self._held.get(event.partition)
                if holding is not None and holding.cursor == event.offset:
                    holding.fail(event, 0.0)
        self.close()

    # Handing out

    def _more(self) -> Event:
        """The next event when it is not just the next of the chunk; raises StopIteration."""
        self._deadline_s = None
        while True:
            self._look_around()
            for event in self._events:
                return event
            if self._ends is not None and self._drained(self._ends):
                raise StopIteration
            if self._next_chunk():
                continue
            if not self._wait():
                raise StopIteration

    def _look_around(self) -> None:
        """What the chunk's quick way leaves out: an end, trouble, leases, partitions to claim or to give up."""
        member = self._member
        if self.over:
            raise StopIteration
        trouble, member.trouble = member.trouble, None
        if trouble is not None:
            raise trouble
        if not self._monotonic() < member.until_s or member.due():
            member.tend(claim=True)
        with self._mutex:
            member.looked()
        current = self._current
        if current is not None and (
            self._held.get(current.partition) is not current or current.leaving or current.again
        ):
            self._put_back()
        member.give_up()

    def _put_back(self) -> None:
        """End the chunk: its partition is lost, has something to repeat, or is to be given up."""
        current, self._current = self._current, None
        events, self._events = list(self._events), iter(())
        if current is not None:
            with self._mutex:
                current.put_back(events)

    def _next_chunk(self) -> bool:
        """Begin the next chunk, of the partition whose turn it is; False if no partition has one now."""
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            holding = self._held.get(self._turns[-1])
            if holding is None or not self._open_handed(holding, self._monotonic()):
                continue
            events = self._chunk(holding)
            if events and self._held.get(holding.partition) is holding:
                self._current = holding
                self._events = iter(events)
                return True
        return False

    def _open_handed(self, holding: DeliveryLedger, now_s: float) -> bool:
        """Whether more of a partition may be handed out: it stays, nothing waits for its retry, it is not drained."""
        if holding.leaving or holding.retry_s > now_s:
            return False
        drained = self._ends is not None and holding.end >= self._ends.get(holding.partition, 0)
        return not drained or bool(holding.again or holding.rest)

    def _chunk(self, holding: DeliveryLedger) -> list[Event]:
        """The next events of a partition; it is stored that they may be handed out before they are."""
        with self._mutex:
            events = holding.returned()
        if not events:
            events = self._read(holding)
        while events and (failures := self.failures(events[0])) >= self._limits.failures_max + holding.patience:
            self._set_aside(events[0], f"handling it failed, or ended its process, {failures} times")
            events = events[1:]
        careful = bool(events) and events[0].offset < holding.careful_until
        if careful:
            with self._mutex:
                holding.put_back(events[holding.group :])
            events = events[: holding.group]
        if events:
            holding.handed = max(holding.handed, events[-1].offset + 1)
            if careful or self._untold(holding):
                self._member.store([holding], exact=careful)
        return events

    def _untold(self, holding: DeliveryLedger) -> bool:
        """Whether it must be stored how far events are handed out: then a death with them in hand counts as failure.

        Where storing costs much, only the first chunk and then now and then: an event that ends its process is in the
        first chunk of whoever takes over.
        """
        if holding.handed <= holding.reached:
            return False
        return holding.reached == holding.start or self._monotonic() >= holding.told_s + self._leases.reach_s

    def _read(self, holding: DeliveryLedger) -> list[Event]:
        if len(holding.waiting) >= self._limits.unacked_max:
            raise Unavailable(
                f"{len(holding.waiting)} events of partition {holding.partition} are delivered but not acked",
                hint="ack the events that were handled, or raise unacked_max",
                code="too_many_unacked",
            )
        events, gone, lost = holding.read(self._selection, load=self.loads)
        self.skipped += gone + lost
        with self._mutex:
            holding.hand_out(events)
            if not events and holding.cursor > holding.stored:  # passed over what is not wanted
                self._member.stir()
        if gone:
            where = f"topic {self.topic!r}, partition {holding.partition}"
            _log.warning("consumer %r: %d events of %s are gone; it continues after them", self.name, gone, where)
        return events or (self._read(holding) if gone else [])

    def _all_ends(self) -> dict[int, int]:
        return {number: log.end() for number, log in enumerate(self._logs)}

    def _drain(self, ends: dict[int, int]) -> Iterator[Event]:
        self._ends = ends
        try:
            yield from self
        finally:
            self._ends = None

    def _drained(self, ends: dict[int, int]) -> bool:
        """Whether everything up to these ends was handed out here, acked elsewhere, or is left to who lives there."""
        if self._until_s is not None and self._monotonic() >= self._until_s:
            return True
        others = []
        for number, end in ends.items():
            holding = self._held.get(number)
            if holding is None:
                others.append(number)
            elif holding.end < end or holding.again or holding.rest:
                return False
        stored = self._leases.peek(others)
        behind = {number for number in others if number not in stored or stored[number].cursor < ends[number]}
        return not behind or (self._until_s is not None and self._leases.busy(behind) == behind)

    def _set_aside(self, event: Event, error: object) -> None:
        self._append_aside(self, event, error)
        if self.on_aside is not None:
            self.on_aside(event, error)

    def _wait(self) -> bool:
        """Sleep until there may be more; False when the time is over."""
        now = self._monotonic()
        holdings = list(self._held.values())
        pauses_s = [each.retry_s - now for each in holdings if each.retry_s > now]
        sleep_s = min([self._member.period_s, *pauses_s])
        if self._until_s is not None:
            sleep_s = max(0.0, min(sleep_s, self._until_s - now))
        if self._timeout is not None and not (pauses_s and self._ends is not None):  # draining means retries too
            if self._deadline_s is None:
                self._deadline_s = now + self._timeout
            sleep_s = min(sleep_s, self._deadline_s - now)
            if self._deadline_s <= now:  # where looking costs, what was seen may be old: once more before it ends
                return any(each.log.end() > each.end for each in holdings if self._open_handed(each, now))
        places = [(each.log, each.end if self._open_handed(each, now) else NEVER) for each in holdings]
        wait_for_more(places, sleep_s, self._disk, self._clock, self._disturbed)
        if self._woken:
            return False
        stored = self._leases.peek(each.partition for each in holdings)
        if any(there.fence != holding.fence for holding in holdings if (there := stored.get(holding.partition))):
            with self._mutex:
                self._member.look_up()  # somebody sought another place for it
        return True

    def _disturbed(self) -> bool:
        return self._woken or self.over

    def _verify(self, event: Event) -> None:
        if event.topic != self.topic:
            raise Invalid(
                f"the event belongs to topic {event.topic!r}, but consumer {self.name!r} reads {self.topic!r}"
            )
        self._verify_partition(event.partition, event.offset)

    def _verify_partition(self, partition: int, offset: int) -> None:
        if not self._member.verified(partition):
            raise not_held(self.name, partition, offset)

    def _check_open(self) -> None:
        if self._member.closed:
            raise Closed(f"consumer {self.name!r} was closed")


def place(log: Log, at: Position, logs: int) -> int:
    """The offset of a place for a cursor, which is durable; the oldest one if it is gone. Invalid behind the end."""
    offset, state = resolve(log, at, logs), log.state()
    if offset > state.visible_offset:
        raise Invalid(
            f"{log.place}: offset {offset} is beyond the end, {state.visible_offset}", code="offset_behind_end"
        )
    if offset > state.secured_offset:
        log.sync()
    return max(offset, log.start())


def places(logs: Sequence[Log], at: Position) -> list[int]:
    """The same for all logs of a topic."""
    return [place(log, at, len(logs)) for log in logs]
