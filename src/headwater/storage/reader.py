"""Reading a local log: no locks, any number of threads and processes, up to what is visible.

A `Reader` belongs to one log in one process. A `Cursor` moves through it and belongs to one thread.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np

from headwater.errors import NotFound
from headwater.format.batch import KEY, LOST, Batch, corrupt
from headwater.format.index import Index
from headwater.format.segment import HEADER_BYTES
from headwater.format.tail import DELETING, OPEN, Slot
from headwater.storage import recovery
from headwater.storage.failures import deleted, offset_gone
from headwater.storage.place import Place
from headwater.storage.segment import SegmentFile
from headwater.storage.tail import Tail

OPEN_SEGMENTS_MAX = 8  # segments kept open between reads; a scan needs one

TypeTest = Callable[[bytes], bool]


class Reader:
    """The reading side of one log in one process."""

    def __init__(self, place: Place, identity: int | None, recover: Callable[[], Slot]) -> None:
        """`identity` is the inode of the log's lock: another one there means another log."""
        self._place = place
        self._identity = identity
        self._recover = recover
        self._boot_id = place.clock.boot_id()
        self._tail: Tail | None = None
        self._still: Slot | None = None  # the state of a log on read-only media, which cannot change
        self._bases: list[int] = []
        self._segments: OrderedDict[int, tuple[SegmentFile, int]] = OrderedDict()
        self._opening = threading.Lock()  # protects `_segments`

    def slot(self) -> Slot:
        """What is visible now."""
        tail = self._tail
        slot = tail.newest() if tail is not None else self._still
        if slot is None or slot.boot_id != self._boot_id or slot.state == DELETING:
            slot = self._settle()
        return slot

    def start(self) -> int:
        """The oldest readable offset."""
        slot = self.slot()
        bases = self._known_bases(slot)
        if bases and (bases[0] == slot.segment or self._place.disk.inode(self._place.segment(bases[0])) is not None):
            return bases[0]
        return self._oldest()  # retention, of any process, has deleted what was the oldest

    def wait_on(self) -> Tail | None:
        """The tail to sleep on; None if the log cannot change."""
        self.slot()
        return self._tail

    def wake(self) -> None:
        """Wake whoever sleeps on the tail."""
        if self._tail is not None:
            self._tail.wake()

    def batches(
        self, start: int, stop: int, *, backwards: bool = False, types: TypeTest | None = None
    ) -> Iterator[Batch]:
        """The batches that hold the offsets from `start` to `stop`, whole, without those that lack a wanted type."""
        if backwards:
            return self._backwards(start, stop, types, self.slot())
        return Cursor(self, start).batches(stop, types)

    def version(self, key: bytes, slot: Slot) -> int | None:
        """The offset of the key's last event among those that `slot` makes visible; None if there is none.

        Takes no lock of the log, so that a writer may ask while it holds that.
        """
        try:
            for batch in self._backwards(0, slot.visible_offset, None, slot):
                column = batch.column(KEY)
                rows = np.flatnonzero(column.equals(key)) if column is not None else np.zeros(0, np.int64)
                if len(rows):
                    return batch.base_offset + int(rows[-1])
        except NotFound as error:
            if error.code != "offset_gone":  # else the rest was deleted by retention, and with it the key
                raise
        return None

    def offset_at(self, ticks: int) -> int:
        """The first offset whose event has these ticks or later ones; the end if there is none."""
        while True:
            try:
                return self._offset_at(ticks)
            except NotFound as error:
                if error.code != "offset_gone":  # else retention came in between: look again in what is left
                    raise

    def _offset_at(self, ticks: int) -> int:
        slot = self.slot()
        bases = self._known_bases(slot)
        if not bases:
            raise self.gone(0)
        at = bisect_right(bases, ticks, key=lambda base: self.segment(base, slot).header.previous_ticks + 1) - 1
        if at < 0:
            return bases[0]
        segment = self.segment(bases[at], slot)
        end = self.end_position(segment, slot)
        if end == HEADER_BYTES:
            return segment.base
        if segment.base == slot.segment and slot.last_ticks - ticks < ticks - segment.header.begun_ticks:
            return self._offset_near_end(segment, slot, ticks)
        batches = segment.map(end)
        number = max(0, int(np.searchsorted(batches.ticks, ticks, "right")) - 1)
        window = segment.window(int(batches.positions[number]), end)
        batch = window.batch(int(batches.positions[number]))
        if batch.last_ticks < ticks and batch.end_position < end:
            window.batch(batch.end_position)  # the map is unverified: if this one has the ticks, its header is damaged
        return batch.base_offset + int(np.searchsorted(batch.ticks(), ticks, "left"))

    def _offset_near_end(self, segment: SegmentFile, slot: Slot, ticks: int) -> int:
        """The first offset of the active segment with these ticks or later ones, looked for from its end."""
        found = slot.visible_offset
        for batch in segment.backwards(self.end_position(segment, slot), found):
            if batch.last_ticks < ticks:
                break
            found = batch.base_offset + int(np.searchsorted(batch.ticks(), ticks, "left"))
        return found

    def locate(self, segment: SegmentFile, slot: Slot, offset: int) -> tuple[int, int]:
        """Position and base offset of the batch that holds an offset: from the nearer end of an active segment."""
        end = self.end_position(segment, slot)
        active = segment.base == slot.segment and not segment.header.packed
        if active and slot.visible_offset - offset < offset - segment.base:
            for batch in segment.backwards(end, slot.visible_offset):
                if batch.base_offset <= offset:
                    return batch.position, batch.base_offset
        batches = segment.map(end)
        number = batches.batch_of(offset)
        return int(batches.positions[number]), int(batches.offsets[number])

    def segment(self, base: int, slot: Slot) -> SegmentFile:
        """An open segment; raises NotFound, with the oldest offset, if it was deleted."""
        try:
            return self._open(base, slot)
        except NotFound as error:
            gone = self.gone(base)
            raise (gone if base < gone.oldest else error) from None

    def _open(self, base: int, slot: Slot) -> SegmentFile:
        there = base == slot.segment or self._place.disk.inode(self._place.segment(base)) is not None
        with self._opening:
            found = self._segments.get(base)
            if (
                found is None
                or found[1] != slot.generation
                or not there
                or (base != slot.segment and found[0].replaced())
            ):
                found = self._segments[base] = SegmentFile(self._place, base), slot.generation
            self._segments.move_to_end(base)
            while len(self._segments) > OPEN_SEGMENTS_MAX:
                self._segments.popitem(last=False)
            return found[0]

    def end_position(self, segment: SegmentFile, slot: Slot) -> int:
        """Where the readable bytes of a segment end."""
        if segment.base == slot.segment and not segment.header.packed:
            return slot.visible_position
        return segment.size()

    def base_of(self, offset: int, slot: Slot) -> int:
        """The first offset of the segment that holds an offset."""
        bases = self._known_bases(slot)
        at = bisect_right(bases, offset) - 1
        if at < 0:
            raise self.gone(offset)
        return bases[at]

    def gone(self, offset: int) -> NotFound:
        """That retention has deleted an offset."""
        return offset_gone(self._place, offset, self._oldest())

    def close(self) -> None:
        """Let go of the files; batches that were handed out stay valid."""
        self._segments.clear()
        self._tail = None

    def after_fork(self) -> None:
        """In a forked child: drop what another thread of the parent may have been changing."""
        self._opening = threading.Lock()
        self._segments.clear()

    def _settle(self) -> Slot:
        """Open the tail; have the log recovered if it cannot be believed as it is."""
        place = self._place
        tail = self._tail = Tail.open(place)
        slot = tail.newest() if tail is not None else None
        if place.disk.inode(place.lock) != self._identity:
            raise deleted(place)
        if slot is not None and slot.boot_id == self._boot_id and slot.state != DELETING:
            assert tail is not None
            if tail.sound():
                return slot
        if not place.disk.writable(place.lock):
            return self._settle_read_only(slot)
        slot = self._recover()
        self._tail = Tail.open(place)
        return slot

    def _settle_read_only(self, known: Slot | None) -> Slot:
        """On read-only media nothing changes and nothing can be cut: read what is valid."""
        found = recovery.scan(self._place, known)
        end = found.offset, found.position
        self._tail = None
        self._still = Slot(1, self._boot_id, found.segment, *end, *end, found.last_ticks, 1, OPEN)
        return self._still

    def _known_bases(self, slot: Slot) -> list[int]:
        """The segments up to the active one: a later one, which a roll is just making, is not in use.

        Those at the beginning may have been deleted since. None at all if the slot is that old.
        """
        bases = self._bases
        if not bases or bases[-1] != slot.segment:
            bases = self._bases = [base for base in self._place.segments() if base <= slot.segment]
            self._let_go(bases[0] if bases else slot.segment)
        return bases

    def _oldest(self) -> int:
        """The first offset of the oldest segment that is there now."""
        while True:
            slot, self._bases = self.slot(), []
            bases = self._known_bases(slot)
            if bases:
                return bases[0]
            if self.slot() == slot:  # nobody rolled meanwhile: the active one must have been there
                raise corrupt("the active segment is missing", str(self._place.segment(slot.segment)), 0, HEADER_BYTES)

    def _let_go(self, oldest: int) -> None:
        """Close what was deleted, so that its space is given back; whoever reads it keeps it."""
        with self._opening:
            for base in [base for base in self._segments if base < oldest]:
                del self._segments[base]

    def _backwards(self, start: int, stop: int, types: TypeTest | None, slot: Slot) -> Iterator[Batch]:
        stop = min(stop, slot.visible_offset)
        bases = self._known_bases(slot)
        for number in range(len(bases) - 1, -1, -1):
            if stop <= start:
                return
            if bases[number] < stop:
                end = bases[number + 1] if number + 1 < len(bases) else slot.visible_offset
                for batch in self._segment_backwards(self.segment(bases[number], slot), slot, stop, end, types):
                    if batch.end_offset <= start:
                        return
                    if not batch.flags & LOST:
                        yield batch
                stop = bases[number]
        if start < stop:  # all that is there was read, and more was asked for
            raise self.gone(start)

    def _segment_backwards(
        self, segment: SegmentFile, slot: Slot, stop: int, end_offset: int, types: TypeTest | None
    ) -> Iterator[Batch]:
        """The batches of one segment from the one that holds `stop - 1` back; by the index where there is one."""
        index = segment.index()
        if index is None:
            for batch in segment.backwards(self.end_position(segment, slot), end_offset):
                if batch.base_offset < stop:
                    yield batch
            return
        wanted = wanted_batches(index, types)
        ends = np.append(index.positions[1:], index.segment_bytes)
        for number in range(index.batch_of(stop - 1), -1, -1):
            if wanted is None or wanted[number]:
                position = int(index.positions[number])
                yield segment.window(position, int(ends[number])).batch(position)


class Cursor:
    """A place in a log that moves forward over batches, without looking anything up again."""

    def __init__(self, reader: Reader, offset: int) -> None:
        self.offset = offset
        self._reader = reader
        self._segment: SegmentFile | None = None
        self._generation = -1
        self._position = -1

    def batches(self, stop: int, types: TypeTest | None = None) -> Iterator[Batch]:
        """The batches from here to the one that holds `stop - 1`, moving along; ends at what is visible."""
        slot = self._reader.slot()
        stop = min(stop, slot.visible_offset)
        while self.offset < stop:
            segment = self._segment
            if segment is None or slot.generation != self._generation:
                segment = self._find(slot)
            end = self._reader.end_position(segment, slot)
            if self._position >= end:
                if segment.base >= self._reader.base_of(self.offset, slot):
                    raise corrupt(f"the segment ends at offset {self.offset}, too early", segment.path, end, 0)
                self._segment = None
                continue
            wanted = wanted_batches(segment.index(), types) if types is not None else None
            if wanted is not None:
                yield from self._wanted(segment, end, stop, wanted)
                continue
            for batch in segment.window(self._position, end).batches(self._position, self._batch_offset):
                self._pass(batch)
                if not batch.flags & LOST:
                    yield batch
                if self.offset >= stop:
                    return

    def _find(self, slot: Slot) -> SegmentFile:
        segment = self._reader.segment(self._reader.base_of(self.offset, slot), slot)
        self._segment, self._generation = segment, slot.generation
        if self.offset == segment.base:
            self._position, self._batch_offset = HEADER_BYTES, segment.base
        elif self.offset == slot.visible_offset and segment.base == slot.segment and not segment.header.packed:
            self._position, self._batch_offset = slot.visible_position, self.offset
        else:
            self._position, self._batch_offset = self._reader.locate(segment, slot, self.offset)
        return segment

    def _wanted(self, segment: SegmentFile, end: int, stop: int, wanted: np.ndarray) -> Iterator[Batch]:
        """The batches of a sealed segment that hold a wanted type; the others are not read."""
        batches = segment.map(end)
        window = segment.window(self._position, end)
        numbers = np.flatnonzero(wanted)
        for number in numbers[np.searchsorted(numbers, batches.batch_of(self.offset)) :].tolist():
            if batches.offsets[number] >= stop:
                break
            batch = window.batch(int(batches.positions[number]))
            self._pass(batch)
            if not batch.flags & LOST:
                yield batch
        index = segment.index()
        assert index is not None
        self.offset = max(self.offset, min(stop, index.end_offset))
        self._segment = None

    def _pass(self, batch: Batch) -> None:
        self.offset = self._batch_offset = batch.end_offset
        self._position = batch.end_position


def wanted_batches(index: Index | None, types: TypeTest | None) -> np.ndarray | None:
    """Which batches of a sealed segment hold a wanted type; None if that is not known."""
    if index is None or index.types is None or types is None:
        return None
    wanted = np.zeros(len(index.offsets), np.bool_)
    for type, numbers in index.types.items():
        if types(type):
            wanted[numbers] = True
    return wanted
