"""A place in a topic that moves forward over its batches, for those who deliver them some at a time.

Unlike `LogFollow` it never sleeps, knows its offset in each partition, and continues where it was stopped.
A `CursorBell` is what to sleep on until one of many cursors has more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from headwater.disk.disk import Clock, Disk
from headwater.errors import HeadwaterError
from headwater.event import id_of, ticks_and_node
from headwater.format.events import EventBatch
from headwater.log.follow import wait_for_more
from headwater.log.log import Log, offset_gone
from headwater.log.reading import lost_between, pick
from headwater.match.matcher import Selection

SCAN_BYTES = 8 * 1024 * 1024  # looked at in one call: a reader of rare events can be stopped so often

Offsets = tuple[int, ...]
"""The offset of the next event in each partition, in their order."""


class Gap(NamedTuple):
    """Events that were deleted before they were read: of one partition, from `offset` to before `oldest`."""

    partition: int
    offset: int | None  # None if it is not known which
    oldest: int
    oldest_id: UUID | None  # None if no event is left


class TopicCursor:
    """A place in a topic, or in one partition of it. Belongs to one thread at a time.

    Its methods raise NotFound when the topic was deleted, and Corrupt on damage.
    """

    def __init__(
        self, topic: str, uuid: str, logs: Sequence[Log], offsets: Sequence[int], selection: Selection
    ) -> None:
        self.topic = topic
        self.uuid = uuid  # of the topic: one of the same name that is made later has another
        self._logs = logs
        self._selection = selection
        self._offsets = list(offsets)
        self._cursors = [log.cursor(offset) for log, offset in zip(logs, offsets, strict=True)]
        self._walk: Iterator[EventBatch | int] = iter(())

    @property
    def offsets(self) -> Offsets:
        """Return the next offset in each partition."""
        return tuple(self._offsets)

    @property
    def partitions(self) -> tuple[int, ...]:
        """Return the numbers of the partitions that it reads."""
        return tuple(log.place.partition for log in self._logs)

    @property
    def nodes(self) -> tuple[int, ...]:
        """Return what the ids of the events of each partition have in common."""
        return tuple(log.node for log in self._logs)

    @property
    def places(self) -> list[tuple[Log, int]]:
        """Return what it waits for: the next offset of each log."""
        return list(zip(self._logs, self._offsets, strict=True))

    def has_more(self) -> bool:
        """Return whether there is anything that it has not passed."""
        return any(log.seen() > offset for log, offset in self.places)

    def ends(self) -> Offsets:
        """Return where each partition ends now."""
        return tuple([log.seen() for log in self._logs])

    def lost(self) -> list[tuple[int, int, int]]:
        """Return the lost events between here and the end: partition, first offset and end of each range."""
        return lost_between(self._logs, self._offsets, self.ends())

    def at(self, offsets: Sequence[int]) -> TopicCursor:
        """Return another cursor with the same selection, at another place. May be called from any thread."""
        return TopicCursor(self.topic, self.uuid, self._logs, offsets, self._selection)

    def take(self, bytes_max: int, stop: Offsets | None = None) -> list[EventBatch]:
        """Return the next wanted events up to the end there is now, or to before `stop`: about `bytes_max`.

        It returns earlier, maybe with nothing, when it has read much that was not wanted: to read all, call it
        until `offsets` stay where they are. Raises NotFound with the code `offset_gone` where retention has been:
        `pass_gaps` continues from there. The `stop` of a later call must not be before that of an earlier one.
        """
        found: list[EventBatch] = []
        size = looked = 0
        while size < bytes_max and looked < SCAN_BYTES:
            try:
                step = next(self._walk, None)
            except HeadwaterError:
                if not found:
                    raise
                break  # the next call meets it again, when what came before was handed out
            if step is None:
                ends = self.ends()
                ends = ends if stop is None else tuple(map(min, stop, ends))
                if all(map(int.__le__, ends, self._offsets)):
                    break
                self._walk = self._walk_to(ends, bytes_max)
            elif isinstance(step, int):
                looked += step
            else:
                found.append(step)
                size += step.size + step.huge_bytes
                looked += step.size
        return found

    def check(self) -> None:
        """Raise NotFound, with the code `offset_gone`, where retention has deleted what comes next."""
        for log, offset in self.places:
            oldest = log.start()
            if offset < oldest:
                raise offset_gone(log.place, offset, oldest)

    def go_after(self, id: UUID) -> Gap | None:
        """Move to the event after the one with this id, in a cursor over one partition.

        If retention has deleted others that came after it, or it is of another log, as before a topic was made again,
        to the oldest: then the gap is returned. Raises Invalid for what is no id.
        """
        ticks, node = ticks_and_node(id)
        log = self._logs[0]
        gap = None
        if node == log.node and log.ticks_before_start() <= ticks:
            self._offsets[0] = log.offset_at(ticks + 1)
        else:
            oldest = self._offsets[0] = log.start()
            gap = Gap(log.place.partition, None, oldest, _id_at(log, oldest))
        self._walk = iter(())
        return gap

    def pass_gaps(self) -> list[Gap]:
        """Move on to the oldest events where retention has deleted the next ones, and return the gaps."""
        gaps = []
        for number, log in enumerate(self._logs):
            offset, oldest = self._offsets[number], log.start()
            if offset < oldest:
                gaps.append(Gap(log.place.partition, offset, oldest, _id_at(log, oldest)))
                self._offsets[number] = oldest
        self._walk = iter(())
        return gaps

    def to_end(self) -> bool:
        """Pass over all that is there; False if there was nothing."""
        ends = self.ends()
        moved = any(map(int.__gt__, ends, self._offsets))
        self._offsets = list(map(max, ends, self._offsets))
        self._walk = iter(())
        return moved

    def _walk_to(self, stop: Offsets, part_bytes: int) -> Iterator[EventBatch | int]:
        for number, end in enumerate(stop):
            yield from self._walk_log(number, end, part_bytes)

    def _walk_log(self, number: int, end: int, part_bytes: int) -> Iterator[EventBatch | int]:
        """Yield what is wanted of one log, in parts.

        For a batch of which nothing is, its size. The offset moves along.
        """
        log, cursor, selection, offsets = self._logs[number], self._cursors[number], self._selection, self._offsets
        if cursor.offset != offsets[number]:  # after an error, a gap, or a stop in the middle of a batch
            cursor = self._cursors[number] = log.cursor(offsets[number])
        while cursor.offset < end:
            for batch in cursor.batches(end, selection.types, selection.key):
                upto = min(batch.end_offset, end)
                picked = pick(log, batch, offsets[number], upto, selection)
                if picked is None:
                    offsets[number] = upto
                    yield batch.size
                else:
                    for part in _parts(picked, part_bytes):
                        offsets[number] = upto if part.end_offset == picked.end_offset else part.end_offset
                        yield part
        offsets[number] = max(offsets[number], end)


class CursorBell:
    """What a thread sleeps on until one of many cursors has more, from any process, or it is woken."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._word = disk.shared_word()

    def ring(self) -> None:
        """Wake the thread, or have its next `wait` return at once. May be called from any thread."""
        value = int.from_bytes(self._word[:4], "little")
        self._disk.store(self._word, 0, ((value + 1) & 0xFFFFFFFF).to_bytes(4, "little"))
        self._disk.wake(self._word, 0)

    def wait(self, cursors: Iterable[TopicCursor], sleep_s: float, over: Callable[[], bool]) -> None:
        """Sleep until a cursor has more, it is rung while not `over`, or the time has passed. Raises as cursors do."""
        waited: dict[Log, int] = {}
        for cursor in cursors:
            for log, offset in cursor.places:
                waited[log] = min(offset, waited.get(log, offset))
        expected = self._word, 0, int.from_bytes(self._word[:4], "little")
        wait_for_more(waited.items(), sleep_s, self._disk, self._clock, over, expected)


def _parts(batch: EventBatch, bytes_max: int) -> Iterable[EventBatch]:
    """Return a large batch in parts of about this size."""
    if batch.size <= 2 * bytes_max:
        return (batch,)
    each = max(1, len(batch) * bytes_max // batch.size)
    return (batch.part(lo, lo + each) for lo in range(0, len(batch), each))


def _id_at(log: Log, offset: int) -> UUID | None:
    """Return the id of the first event from an offset on."""
    for batch in log.batches(offset, log.end()):
        return id_of(int(batch.ticks()[max(0, offset - batch.base_offset)]), log.node)
    return None
