"""`Delivery`: the iteration of a consumer's member over the partitions that it leases.

Events are handed out a chunk at a time, of one partition after the other; what failed comes first, after its pause.
How far that may go is stored before it happens, so that an event that ends its process is found. For one thread, but
for `stop` and `wake`.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import length_hint

from headwater.consumers.delivery_ledger import CHUNK_BYTES, DeliveryLedger
from headwater.consumers.leases import Leases
from headwater.consumers.member import ConsumerMember
from headwater.disk.disk import Clock, Disk
from headwater.errors import Unavailable, out_of_memory, within_memory
from headwater.event import Event
from headwater.limits import Limits
from headwater.log.follow import wait_for_more
from headwater.log.log import Log
from headwater.match.matcher import Selection
from headwater.protocols import Consumer

NEVER = 1 << 62  # an offset that no log reaches

_log = logging.getLogger("headwater")


@within_memory("__next__", "__iter__")
class Delivery(Consumer):
    """Hands out the events of the partitions that a member holds."""

    def __init__(
        self,
        name: str,
        logs: Sequence[Log],
        leases: Leases,
        selection: Selection,
        limits: Limits,
        disk: Disk,
        clock: Clock,
        timeout: float | None = None,
        cursor_of: Callable[[int], int] | None = None,
    ) -> None:
        self.name = name
        self.topic = logs[0].place.topic
        self._skipped = 0  # offsets that retention took before they were handed out, or whose events are lost
        self.on_aside: Callable[[Event, object], None] | None = None  # is called with each dead letter and its error
        self.loads = True  # whether the data of huge events comes with them, up to the limit for memory
        self._logs = logs
        self._leases = leases
        self._selection = selection
        self._limits = limits
        self._disk = disk
        self._clock = clock
        self._monotonic = clock.monotonic
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
    def skipped(self) -> int:
        return self._skipped

    @property
    def places(self) -> dict[int, int]:
        """Return the next offset to hand out of each partition that it holds; for the thread that iterates.

        All before it was handed out, or is not wanted.
        """
        with self._mutex:
            places = {number: holding.next for number, holding in self._held.items()}
        current, last = self._current, self._last
        if last is not None and current is not None and current.partition in places and length_hint(self._events):
            places[current.partition] = min(places[current.partition], last.offset + 1)
        return places

    @property
    def careful(self) -> bool:
        """Return whether what was handed out last may have ended a process: ack it before more is taken, to find out.

        For the thread that iterates.
        """
        current, last = self._current, self._last
        return current is not None and last is not None and last.offset < current.careful_until

    @property
    def ready(self) -> bool:
        """Return whether the next event is there, and of the same partition as the last. For the iterating thread."""
        return self._monotonic() < self._member.until_s and length_hint(self._events) > 0

    @property
    def failing(self) -> bool:
        """Return whether something failed and is to be handed out again."""
        return any(holding.again for holding in list(self._held.values()))

    @property
    def over(self) -> bool:
        """Return whether it was stopped or closed: nothing more is handed out."""
        return self._stopped or self._member.closed

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

    def __iter__(self) -> Iterator[Event]:  # a generator is twice as quick as calls of __next__
        """Yield what `next` returns, until there is no more."""
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
        """Return the next events of one partition, at most about so many; waits for the first of them.

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

    def retries(self) -> list[Event]:
        """Return what failed and is to be handed out again now, of one partition, and nothing else. Does not wait.

        For the thread that iterates, while it takes nothing new: others of the partition may wait for these.
        """
        now_s = self._monotonic()
        for holding in list(self._held.values()):
            if holding.again and holding.retry_s <= now_s:
                with self._mutex:
                    return holding.returned()
        return []

    def tend(self) -> None:
        """Notice lost leases, and release what others should have, if that is due.

        For the thread that iterates, while it takes nothing for long.
        """
        if self._member.due():
            self._member.tend(claim=True)

    def wake(self) -> None:
        """End a `take` that waits, from any thread; if none does, the next one does not wait."""
        self._woken = True
        for log in self._logs:
            log.stop_followers()

    def stop(self) -> None:
        self._stopped = True
        with self._mutex:
            self._member.look_up()
        for log in self._logs:
            log.stop_followers()

    def catch_up(self, ends: dict[int, int], until_s: float) -> Iterator[Event]:
        """Yield the events of some partitions up to these ends, as far as they are free or become free; for a guest.

        It waits for a partition that another member holds until that one is seen to live, or to be dead; in no case
        longer than `until_s` of the monotonic clock.
        """
        self._leases.guest = sorted(ends)
        self._until_s = until_s
        with self._mutex:
            self._member.look_up()
        try:
            yield from self._drain_to(ends)
        finally:
            self._until_s = None

    def failures(self, event: Event) -> int:
        with self._mutex:
            holding = self._held.get(event.partition)
            return 0 if holding is None else holding.failures.get(event.offset, 0)

    def _drain(self) -> Iterator[Event]:
        return self._drain_to({number: log.end() for number, log in enumerate(self._logs)})

    def _more(self) -> Event:
        """Return the next event when it is not just the next of the chunk; raises StopIteration."""
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
        """Do what is left out within a chunk: notice the end, trouble and leases, claim and release partitions."""
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
        """Return whether more of a partition may be handed out: it is not leaving, pausing for a retry, or drained."""
        if holding.leaving or holding.retry_s > now_s:
            return False
        drained = self._ends is not None and holding.end >= self._ends.get(holding.partition, 0)
        return not drained or bool(holding.again or holding.rest)

    def _chunk(self, holding: DeliveryLedger) -> list[Event]:
        """Return the next events of a partition, after it was stored that they may be handed out."""
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
        """Return whether to store how far events are handed out, so that a death with them in hand counts as failure.

        Where storing costs much, only the first chunk and then now and then: an event that ends its process is in the
        first chunk of the member that takes over.
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
        self._skipped += gone + lost
        with self._mutex:
            holding.hand_out(events)
            if not events and holding.cursor > holding.stored:  # passed over what is not wanted
                self._member.stir()
        if gone:
            where = f"topic {self.topic!r}, partition {holding.partition}"
            _log.warning("consumer %r: %d events of %s are gone; it continues after them", self.name, gone, where)
        return events or (self._read(holding) if gone else [])

    def _drain_to(self, ends: dict[int, int]) -> Iterator[Event]:
        self._ends = ends
        try:
            yield from self
        finally:
            self._ends = None

    def _drained(self, ends: dict[int, int]) -> bool:
        """Return whether all events before these ends were handed out here, acked elsewhere, or are left to others."""
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

    @abstractmethod
    def _set_aside(self, event: Event, error: object) -> None:
        """Dead-letter an event, and ack it."""

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
                self._member.look_up()  # it was moved to another position
        return True

    def _disturbed(self) -> bool:
        return self._woken or self.over
