"""One partition that a member of a consumer holds: what it was handed, what it acked, what failed.

Memory only, and the place in the log to read on from. What needs the thread that iterates says so; everything else is
called under the consumer's mutex, but for acks: they are one operation on a dict, which needs no lock.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Container
from operator import attrgetter

from headwater.consumers.leases import LeaseState
from headwater.errors import NotFound
from headwater.event import Event
from headwater.format.events import EventBatch
from headwater.limits import MIB
from headwater.log.follow import sweep
from headwater.log.log import Log
from headwater.match.matcher import Selection

CHUNK_EVENTS = 4096  # what is read ahead, and the least that is handed out between two looks at the stored cursor
CHUNK_BYTES = 8 * MIB
NARROWINGS = 3  # how often that may take: 64 ** 3 is more than is handed out without an ack
NARROWING = 64  # the events that a process died with are handed out in so many groups, to find the one that ended it

_by_offset = attrgetter("offset")


class DeliveryLedger:
    """A leased partition. `waiting` has the offsets that were handed out and not acked, ascending, as its keys."""

    __slots__ = (
        "again",
        "careful_until",
        "end",
        "expires_s",
        "failures",
        "fence",
        "group",
        "handed",
        "leaving",
        "log",
        "partition",
        "parts",
        "patience",
        "reached",
        "reader",
        "rest",
        "retry_s",
        "start",
        "stored",
        "told_s",
        "waiting",
    )

    def __init__(self, log: Log, at: LeaseState, expires_s: float, careful_until: int = 0) -> None:
        self.log = log
        self.partition = log.place.partition
        self.fence = at.fence
        self.expires_s = expires_s  # of the monotonic clock; as stored
        self.start = self.end = self.stored = at.cursor  # all below `end` was handed out, or passed over
        self.handed = at.cursor  # from here on, nothing was handed out
        self.reached = at.cursor  # the `handed` that is stored
        self.told_s = 0.0  # when that was
        self.waiting: dict[int, None] = {}
        self.failures: dict[int, int] = {at.failing: at.failures} if at.failures else {}
        self.again: list[Event] = []  # failed: to be handed out again, by offset
        self.rest: deque[Event] = deque()  # read, counted as handed out, and put back
        self.retry_s = 0.0  # nothing is handed out before
        self.careful_until = careful_until  # up to here, one event may have ended the process that had them in hand
        in_hand = careful_until - at.cursor
        self.group = max(1, in_hand // NARROWING)  # so many of them are handed out at a time
        self.patience = NARROWINGS if in_hand > 1 else 0  # the event at the cursor need not be the one
        self.leaving = False  # to be given up as soon as everything handed out is acked
        self.reader = log.cursor(at.cursor)
        self.parts: deque[EventBatch] = deque()  # of the batch that the reader passed last: they come next

    @property
    def cursor(self) -> int:
        """Return the lowest offset that is not acked."""
        return self.cursor_after(())

    @property
    def idle(self) -> bool:
        """Return whether the program has nothing of this partition in its hands, but what failed."""
        return self.waiting.keys() <= {event.offset for event in self.again}

    @property
    def next(self) -> int:
        """Return the lowest offset that may still be handed out: what failed, was put back, or was not read yet."""
        waiting = [events[0].offset for events in (self.again, self.rest) if events]
        return min(self.end, *waiting) if waiting else self.end

    def read(self, selection: Selection, *, load: bool = True) -> tuple[list[Event], int, int]:
        """The next wanted events, about a chunk; how many offsets retention took before; how many of others are lost.

        Without `load`, the data of huge ones stays in its file. For the thread that iterates; it then calls `hand_out`.
        """
        events: list[Event] = []
        size = 0
        reader, before = self.reader, self.reader.lost
        sweeping = sweep(self.log, reader, selection)
        try:
            while len(events) < CHUNK_EVENTS and size < CHUNK_BYTES:
                if not self.parts and (picked := next(sweeping, None)) is not None:
                    self.parts.extend(picked.part(lo, lo + CHUNK_EVENTS) for lo in range(0, len(picked), CHUNK_EVENTS))
                if not self.parts:
                    break
                part = self.parts.popleft()
                some = part.events(load=load)
                events += some
                size += some[0].size if len(some) == 1 else part.size
        except NotFound as error:
            if error.code != "offset_gone":
                raise
            self.reader = self.log.cursor(error.oldest)
            return events, error.oldest - reader.offset, reader.lost - before
        return events, 0, reader.lost - before

    def hand_out(self, events: list[Event]) -> None:
        """Count what was read as handed out."""
        self.waiting.update(dict.fromkeys(map(_by_offset, events)))
        self.end = events[-1].offset + 1 if self.parts else self.reader.offset

    def put_back(self, events: list[Event]) -> None:
        """Take back what the program has not seen, to hand it out later."""
        self.rest.extendleft(reversed(events))

    def returned(self) -> list[Event]:
        """Return what failed, or else what was put back, to hand it out again.

        Where care is needed, a group at a time.
        """
        events, self.again = self.again, []
        if not events and self.rest:
            count = self.group if self.careful() else len(self.rest)
            events = [self.rest.popleft() for _ in range(min(count, len(self.rest)))]
        return events

    def careful(self) -> bool:
        """Return whether what comes next may have ended a process."""
        return bool(self.rest) and self.rest[0].offset < self.careful_until

    def recall(self) -> None:
        """Forget what was put back: it was never handed out, and the process that holds the partition next reads it."""
        if self.rest:
            self.end = self.rest[0].offset
            for event in self.rest:
                self.waiting.pop(event.offset, None)
            self.rest.clear()
            self.parts.clear()
            self.reader = self.log.cursor(self.end)

    def acked(self, offset: int) -> bool:
        """Return whether an offset that is not waiting was acked before.

        Else it was not handed out under this lease.
        """
        return self.start <= offset < self.end

    def ack_range(self, first: int, end: int) -> bool:
        """Take what was handed out from `first` to before `end` as handled; False if it was not handed out."""
        if not self.start <= first < end <= self.end:
            return False
        offsets = range(first, end)
        for offset in offsets if len(offsets) <= len(self.waiting) else list(self.waiting):
            if offset in offsets:
                self.waiting.pop(offset, None)
        self.settle()
        return True

    def ack_to(self, offset: int) -> bool:
        """Take all that was handed out up to an event, and it, as handled; False, and nothing, if it was not."""
        if not self.acked(offset):
            return False
        for waiting in list(self.waiting):
            if waiting > offset:
                break
            self.waiting.pop(waiting, None)
        self.settle()
        return True

    def settle(self) -> None:
        """Forget failures of what was acked."""
        if self.failures:
            self.failures = {offset: count for offset, count in self.failures.items() if offset in self.waiting}
            self.again = [event for event in self.again if event.offset in self.waiting]

    def cursor_after(self, done: Container[int]) -> int:
        """Return what the cursor is when these are acked, too."""
        while True:
            try:
                return next((offset for offset in self.waiting if offset not in done), self.end)
            except RuntimeError:  # an ack came in between
                continue

    def fail(self, event: Event, retry_s: float) -> int:
        """Hand an event out again, not before `retry_s`; returns how often it has failed. 0 if it was acked."""
        if event.offset not in self.waiting:
            return 0
        self.failures[event.offset] = self.failures.get(event.offset, 0) + 1
        self.bring_back(event)
        self.retry_s = max(self.retry_s, retry_s)
        return self.failures[event.offset]

    def bring_back(self, event: Event) -> None:
        """Hand out an event again, unless it was acked."""
        if event.offset in self.waiting and event.offset not in map(_by_offset, self.again):
            insort(self.again, event, key=_by_offset)

    def keep_back(self, event: Event) -> None:
        """Do not hand out an event again that failed."""
        self.again = [each for each in self.again if each.offset != event.offset]

    def failing(self) -> tuple[int, int]:
        """Return the event at the cursor and how often it has failed."""
        cursor = self.cursor
        return cursor, self.failures.get(cursor, 0)
