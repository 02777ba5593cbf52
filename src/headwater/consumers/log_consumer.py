"""A named consumer in a directory or a bucket: acks, failures, positions, and what transactions need of it.

Delivery is at least once: when a member dies, what was handed out and not acked, or acked and not yet stored, is
delivered again. `Delivery` iterates (delivery.py), `ConsumerMember` keeps the leases (member.py), `DeliveryLedger`
counts the acks of one partition (delivery_ledger.py). Iterating belongs to one thread; acks and failures may come from
any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from headwater.consumers.delivery import Delivery
from headwater.consumers.delivery_ledger import DeliveryLedger
from headwater.consumers.leases import Leases, Progress
from headwater.consumers.member import not_held
from headwater.directory.cursor_file import CursorMove
from headwater.disk.disk import Clock, Disk
from headwater.errors import Closed, HeadwaterError, Invalid, out_of_memory, within_memory
from headwater.event import Event
from headwater.limits import Limits
from headwater.log.log import Log
from headwater.log.reading import check_id, resolve
from headwater.match.matcher import Selection
from headwater.position import Position


class ExternalCursors(Protocol):
    """Cursors that are kept with what is made of the events, in one transaction, and not by the consumer."""

    def cursor(self, partition: int) -> int:
        """Return the next offset to read of a partition that was just taken."""

    def set_aside(self, consumer: LogConsumer, event: Event, error: object) -> None:
        """Handle an event that has failed, or ended its process, too often."""


@within_memory("ack")
class LogConsumer(Delivery):
    """One member of a consumer in a directory or a bucket; `Consumer` has the documentation of its verbs."""

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
        super().__init__(name, logs, leases, selection, limits, disk, clock, timeout, cursor_of)
        self._append_aside = set_aside

    @property
    def id(self) -> str:
        return self._leases.id.hex()

    @property
    def partitions(self) -> list[int]:
        with self._mutex:
            return sorted(self._held)

    @property
    def fences(self) -> dict[int, int]:
        with self._mutex:
            return {number: holding.fence for number, holding in self._held.items()}

    # Acks

    def ack(self, event: Event | Iterable[Event], *more: Event) -> None:
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
        """Ack all that was handed out from offset `first` to before `end` in one partition."""
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
        """Mark all events up to and including one as handled: an event, or a partition and an offset.

        With `fence`, only if it was handed out under that: raises Fenced if the consumer was moved since.
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
        self._verify(event)
        with self._mutex:
            holding = self._held.get(event.partition)
            if holding is None or not holding.start <= event.offset < holding.end:
                raise not_held(self.name, event.partition, event.offset)
            before = holding.failures.get(event.offset, 0)
            pause_ms = min(self._limits.retry_ms << min(before, 32), self._limits.retry_ms_max)
            failures = holding.fail(event, self._monotonic() + pause_ms / 1000)
            if failures >= self._limits.failures_max:
                holding.keep_back(event)  # else the thread that iterates may dead-letter it, too
            self._member.look_up()
            self._member.stir()
        if failures < self._limits.failures_max:
            return False
        try:
            self._set_aside(event, error)
        except BaseException:
            with self._mutex:  # it is delivered again, unless the partition was lost
                holding.bring_back(event)
            raise
        return True

    def flush(self) -> None:
        self.store()
        refused = self._member.refused()
        if refused is not None:
            raise refused

    def store(self) -> None:
        """Store all acks, durably; acks that came too late are left for `flush` to report."""
        self._check_open()
        self._member.store_all()

    # For transactions

    @property
    def transactional(self) -> bool:
        """Return whether transactions can ack for it."""
        return self._leases.transactional

    def secure(self, partition: int, offset: int) -> None:
        """Make the log durable up to an offset, before anything outside of it records that offset."""
        log = self._logs[partition]
        if offset > log.state().secured_offset:
            log.sync()

    def holds(self, event: Event) -> bool:
        """Return whether it handed out this event and still holds its partition, as far as it knows."""
        with self._mutex:
            holding = self._held.get(event.partition) if event.topic == self.topic else None
            return holding is not None and holding.start <= event.offset < holding.end

    def moves(self, events: Iterable[Event]) -> list[CursorMove]:
        """Return what a transaction stores to ack these events; changes nothing. Their logs are durable that far.

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

    # Positions

    def seek(self, at: Position, partition: int | None = None) -> dict[int, int]:
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
        with self._mutex:
            cursors = {number: holding.cursor for number, holding in self._held.items()}
        stored = self._leases.peek(number for number in range(len(self._logs)) if number not in cursors)
        cursors |= {number: standing.cursor for number, standing in stored.items()}
        return {number: max(0, self._logs[number].end() - cursor) for number, cursor in sorted(cursors.items())}

    # Ending

    def close(self) -> None:
        self._put_back()
        self._member.close()
        self._stopped = True

    def abandon(self) -> None:
        """Close it for a client that died with events in hand: they count as failed, as if this process had died."""
        self._put_back()
        self._member.close(died=True)
        self._stopped = True

    def after_fork(self) -> None:
        """Drop the leases in a forked child: they are the parent's."""
        self._member.after_fork()
        self._mutex = self._member.mutex

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        event = self._last
        if isinstance(error, Exception) and not isinstance(error, HeadwaterError) and event is not None:
            with self._mutex:
                holding = self._held.get(event.partition)
                if holding is not None and holding.cursor == event.offset:
                    holding.fail(event, 0.0)
        self.close()

    def _set_aside(self, event: Event, error: object) -> None:
        self._append_aside(self, event, error)
        if self.on_aside is not None:
            self.on_aside(event, error)

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
    """Return the offset of a position for a cursor, made durable; the oldest if it is gone. Invalid behind the end."""
    offset, state = resolve(log, at, logs), log.state()
    if offset > state.visible_offset:
        raise Invalid(
            f"{log.place}: offset {offset} is beyond the end, {state.visible_offset}", code="offset_behind_end"
        )
    if offset > state.secured_offset:
        log.sync()
    return max(offset, log.start())


def places(logs: Sequence[Log], at: Position) -> list[int]:
    """Return the offset of a position in each log of a topic, as `place` does."""
    return [place(log, at, len(logs)) for log in logs]
