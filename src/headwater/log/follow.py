"""Following a topic: the events that are there, then those that come, from any process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self

from headwater.disk.disk import Clock, Disk, Word
from headwater.errors import out_of_memory, within_memory
from headwater.event import Event
from headwater.format.events import EventBatch
from headwater.log.log import Log, LogCursor
from headwater.log.reading import pick
from headwater.match.matcher import Selection

SLICE_S = 1.0  # the longest sleep without a look around: a lost wake-up costs at most this


@within_memory("__next__")
class LogFollow(Iterator[Event]):
    """An endless read. Belongs to one thread; only `stop` may be called from others.

    Ends when `timeout` seconds pass without a wanted event, when it or the log is stopped or closed; raises
    NotFound when the topic is deleted. Events of one partition come in order; those of several as they are found.
    """

    def __init__(
        self,
        logs: Sequence[Log],
        starts: Sequence[int],
        selection: Selection,
        timeout: float | None,
        disk: Disk,
        clock: Clock,
        closed: Callable[[], bool],
    ) -> None:
        self._logs = logs
        self._cursors = [log.cursor(offset) for log, offset in zip(logs, starts, strict=True)]
        self._selection = selection
        self._timeout = timeout
        self._disk = disk
        self._clock = clock
        self._closed = closed
        self._stopped = False
        self._deadline: float | None = None
        self._found: Iterator[list[Event]] = iter(())
        self._events: Iterator[Event] = iter(())

    def __next__(self) -> Event:
        for event in self._events:
            return event
        return self._more()

    def _more(self) -> Event:
        """Return the first event of the next batch; raises StopIteration."""
        self._deadline = None
        try:
            while not (self._stopped or self._closed()):
                events = self._look()
                if events:
                    self._events = iter(events)
                    return next(self._events)
                if not self._wait():
                    break
        except MemoryError as error:
            raise out_of_memory("the next events cannot be read") from error
        raise StopIteration

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the iteration, from any thread, within a second; events that were not handed out are not lost."""
        self._stopped = True
        for log in self._logs:
            tail = log.wait_on()
            if tail is not None:
                tail.wake()

    def _look(self) -> list[Event]:
        """Return the events of the next batch that holds wanted ones; nothing when all partitions are caught up."""
        for events in self._found:
            return events
        self._found = self._sweep()
        for events in self._found:
            return events
        return []

    def _sweep(self) -> Iterator[list[Event]]:
        for log, cursor in zip(self._logs, self._cursors, strict=True):
            for picked in sweep(log, cursor, self._selection):
                yield picked.events()

    def _wait(self) -> bool:
        """Sleep until there may be more; False when the time is over."""
        sleep = SLICE_S
        if self._timeout is not None:
            now = self._clock.monotonic()
            if self._deadline is None:
                self._deadline = now + self._timeout
            sleep = min(SLICE_S, self._deadline - now)
            if sleep <= 0:
                return False
        places = ((log, cursor.offset) for log, cursor in zip(self._logs, self._cursors, strict=True))
        wait_for_more(places, sleep, self._disk, self._clock, lambda: self._stopped or self._closed())
        return True


def sweep(log: Log, cursor: LogCursor, selection: Selection) -> Iterator[EventBatch]:
    """Yield what is wanted of the batches from a cursor to the end that the log has now; the cursor moves along."""
    end = log.seen()
    try:
        while cursor.offset < end:
            lo = cursor.offset
            for batch in cursor.batches(end, selection.types, selection.key):
                picked = pick(log, batch, lo, batch.end_offset, selection)
                lo = batch.end_offset  # what comes next may overlap
                if picked is not None:
                    yield picked
    except MemoryError as error:
        raise out_of_memory(f"{log.place} cannot be read") from error


def wait_for_more(
    places: Iterable[tuple[Log, int]],
    sleep_s: float,
    disk: Disk,
    clock: Clock,
    over: Callable[[], bool],
    *more: Word,
) -> None:
    """Sleep until a log holds its offset, it is woken, it is `over`, or the time has passed.

    `more` are other words to be woken by; their values were seen before.
    """
    places = list(places)
    for log, _ in places:
        log.settle()  # a process that dies in the middle of a commit wakes no follower
    words = [*more, *(tail.expect() for log, _ in places if (tail := log.wait_on()) is not None)]
    if over() or any(log.seen() > offset for log, offset in places):
        return
    sleep_s = min([sleep_s, *(pause_s for log, _ in places if (pause_s := log.pause_s()) is not None)])
    if words:
        disk.wait(words, sleep_s)
    else:
        clock.sleep(sleep_s)
