"""A place in a local log that moves forward over its batches. It belongs to one thread."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from headwater.directory.segment import SegmentFile, StaleSegment
from headwater.format.batch import LOST, Batch, corrupt
from headwater.format.losses import Ranges, total, warn, within
from headwater.format.segment import HEADER_BYTES
from headwater.format.tail import TailSlot
from headwater.log.log import TypeTest

if TYPE_CHECKING:
    from headwater.directory.log_reader import LogReader

SCAN_BYTES_MAX = 256 * 1024  # so near the end of the active segment, reading on is quicker than looking for a key


class SegmentCursor:
    """A place in a log that moves forward over batches, without looking anything up again."""

    def __init__(self, reader: LogReader, offset: int) -> None:
        self.offset = offset
        self.lost = 0  # offsets that it passed, whose events are lost
        self._reader = reader
        self._segment: SegmentFile | None = None
        self._generation = -1
        self._position = -1

    def batches(
        self, stop: int, types: TypeTest | None = None, key: bytes | None = None, *, lost: bool = False
    ) -> Iterator[Batch]:
        """Yield the batches from here to the one that holds `stop - 1`, moving along; ends at what is visible.

        Those that cannot hold a wanted type or the key are left out; others may hold neither. `lost`: those that stand
        for lost events come, too; else they are counted, and logged as a warning.
        """
        while True:
            try:
                yield from self._batches(stop, types, key, lost=lost)
            except StaleSegment:  # the reader paused for long: continue in the file that is there now
                self._segment = None
            else:
                return

    def _batches(self, stop: int, types: TypeTest | None, key: bytes | None, *, lost: bool) -> Iterator[Batch]:
        slot = self._reader.slot()
        stop = min(stop, slot.visible_offset)
        while self.offset < stop:
            segment = self._segment
            if segment is None or slot.generation != self._generation:
                self._segment = None
                if (types is not None or key is not None) and (yield from self._jump(slot, stop, types, key)):
                    continue
                segment = self._entered(slot)
            end = self._reader.end_position(segment, slot)
            if self._position >= end:
                if segment.base >= self._reader.base_of(self.offset, slot):
                    self._reader.check_joined(segment.base, slot, self.offset + 1)
                    raise corrupt(f"the segment ends too early, at offset {self.offset}", segment.path, end, 0)
                self._segment = None
                continue
            for batch in segment.window(self._position, end).batches(self._position, self._batch_offset):
                first = self.offset
                self._pass(batch)
                if lost or not batch.flags & LOST:
                    yield batch
                else:
                    self._miss([(batch.base_offset, batch.end_offset)], first, stop)
                if self.offset >= stop:
                    return

    def _jump(
        self, slot: TailSlot, stop: int, types: TypeTest | None, key: bytes | None
    ) -> Generator[Batch, None, bool]:
        """Yield the batches of this segment that may hold what is wanted; the others are not read. False: not known."""
        reader = self._reader
        base = reader.base_of(self.offset, slot)
        if base == slot.segment:
            active = self._find(slot)
            if reader.end_position(active, slot) - self._position < SCAN_BYTES_MAX:
                return False
        found = reader.lookup.find(base, slot, types, key)
        if found is None:
            return False
        self._segment = None
        segment, places = found
        missing = reader.losses.of(base, slot)
        if segment is not None:
            end = reader.end_position(segment, slot)
            if self.offset > base:
                places = list(places)
                places = places[bisect_left(places, reader.locate(segment, slot, self.offset)[0]) :]
            for position in places:
                batch = segment.batch_at(position, end)
                if batch.base_offset >= stop:
                    break
                self._miss(missing, self.offset, batch.base_offset)
                self.offset = batch.end_offset
                if not batch.flags & LOST:
                    yield batch
        reader.check_joined(base, slot, stop)
        first, self.offset = self.offset, max(self.offset, min(stop, reader.end_offset(base, slot)))
        self._miss(missing, first, self.offset)
        return True

    def _miss(self, lost: Ranges, start: int, stop: int) -> None:
        """Count what is lost of the offsets that are passed."""
        missed = within(lost, start, stop)
        self.lost += total(missed)
        warn(self._reader.losses.place, missed)

    def _entered(self, slot: TailSlot) -> SegmentFile:
        return self._find(slot) if self._segment is None else self._segment

    def _find(self, slot: TailSlot) -> SegmentFile:
        segment = self._reader.segment(self._reader.base_of(self.offset, slot), slot)
        self._segment, self._generation = segment, slot.generation
        if self.offset == segment.base:
            self._position, self._batch_offset = HEADER_BYTES, segment.base
        elif self.offset == slot.visible_offset and segment.base == slot.segment and not segment.header.packed:
            self._position, self._batch_offset = slot.visible_position, self.offset
        else:
            self._position, self._batch_offset = self._reader.locate(segment, slot, self.offset)
        return segment

    def _pass(self, batch: Batch) -> None:
        self.offset = self._batch_offset = batch.end_offset
        self._position = batch.end_position
