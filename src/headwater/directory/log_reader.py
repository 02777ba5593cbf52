"""Reading a local log: no locks, any number of threads and processes, up to what is visible.

A `LogReader` belongs to one log in one process. A `SegmentCursor` (log_cursor.py) moves through it and belongs to one
thread.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator

import numpy as np

from headwater.directory import recovery
from headwater.directory.batch_lookup import NOWHERE, BatchLookup, BatchPositions, last_of
from headwater.directory.keys import KeyIndexes
from headwater.directory.log_cursor import SegmentCursor
from headwater.directory.log_directory import LogDirectory
from headwater.directory.losses import Losses, beginning, missing
from headwater.directory.parts import ArchivedSegments
from headwater.directory.segment import OpenSegments, SegmentFile, StaleSegment
from headwater.directory.tail import Tail
from headwater.disk.open_files import open_files
from headwater.errors import Corrupt, HeadwaterError, NotFound, Unsupported
from headwater.format.batch import LOST, Batch
from headwater.format.history import HistoryFile
from headwater.format.losses import warn, within
from headwater.format.segment import HEADER_BYTES
from headwater.format.tail import DELETING, OPEN, TailSlot
from headwater.log.log import Extents, TypeTest, deleted, joined, offset_gone


class LogReader:
    """The reading side of one log in one process."""

    def __init__(
        self,
        place: LogDirectory,
        identity: int | None,
        recover: Callable[[], TailSlot],
        on_damage: Callable[[int], None],
        archived: ArchivedSegments | None = None,
    ) -> None:
        """`identity` is the inode of the log's lock: another one there means another log.

        `on_damage` is called with a segment whose index cannot be used. What was deleted here may be `archived`.
        """
        self._place = place
        self._identity = identity
        self._recover = recover
        self._boot_id = place.clock.boot_id()
        self._tail: Tail | None = None
        self._still: TailSlot | None = None  # the state of a log on read-only media, which cannot change
        self._bases: list[int] = []
        self._local = 0  # the first of them that is on the local disk, as far as is known
        self._archived = archived
        self._doubt: HeadwaterError | None = None  # why it is not known where the log begins
        self._joined: dict[int, int] = {}  # of each segment that was found to lead up to the next, where that begins
        self._segments = OpenSegments(place)
        self.key_indexes = KeyIndexes(place, on_damage)
        self.lookup = BatchLookup(self, archived)
        self.losses = Losses(self, place)
        self.used = 0  # the turn of `open_files` in which it was last

    def slot(self) -> TailSlot:
        """Return what is visible now."""
        self.used = open_files.turn
        tail = self._tail
        slot = tail.newest() if tail is not None else self._still
        if slot is None or slot.boot_id != self._boot_id or slot.state == DELETING:
            slot = self._settle()
        return slot

    def glance(self) -> TailSlot | None:
        """Return what is visible, without waiting; None if the log must be recovered first."""
        tail = self._tail or self._open_tail()
        slot = tail.newest() if tail is not None else None
        return slot if slot is not None and slot.boot_id == self._boot_id and slot.state == OPEN else None

    def start(self) -> int:
        """Return the oldest readable offset."""
        slot = self.slot()
        bases = self._known_bases(slot)
        if self._doubt is not None:
            return self._oldest()
        if bases and (bases[0] == slot.segment or self.archived_part(bases[0]) is not None or self.is_here(bases[0])):
            return bases[0]
        return self._oldest()  # retention, of any process, has deleted what was the oldest

    def ticks_before_start(self) -> int:
        """Return the ticks of the last event before the oldest readable one; 0 if there never was one."""
        while True:
            try:
                return self._previous_ticks(self.start(), self.slot())
            except StaleSegment:
                continue
            except NotFound as error:
                if error.code != "offset_gone":  # else retention came in between
                    raise

    def wait_on(self) -> Tail | None:
        """Return the tail to sleep on; None if the log cannot change."""
        self.slot()
        while (tail := self._tail) is None and self._still is None:
            self.slot()  # it came to rest in between
        return tail

    def wake(self) -> None:
        """Wake the threads that sleep on the tail, also if this reader has come to rest since."""
        tail = self._tail or Tail.open(self._place)
        if tail is not None:
            tail.wake()

    def batches(
        self,
        start: int,
        stop: int,
        *,
        backwards: bool = False,
        types: TypeTest | None = None,
        key: bytes | None = None,
    ) -> Iterator[Batch]:
        """Return the batches that hold the offsets from `start` to `stop`, whole.

        Those that cannot hold a wanted type or the key are left out; others may hold neither.
        """
        if backwards:
            return self._backwards(start, stop, types, key, self.slot(), tell=True)
        return SegmentCursor(self, start).batches(stop, types, key)

    def version(self, key: bytes, slot: TailSlot) -> int | None:
        """Return the offset of the key's last event among those that `slot` makes visible; None if there is none.

        Takes no lock of the log, so that a writer may call it while it holds that.
        """
        try:
            for batch in self._backwards(0, slot.visible_offset, None, key, slot):
                row = last_of(batch, key)
                if row is not None:
                    return batch.base_offset + row
        except NotFound as error:
            if error.code != "offset_gone":  # the oldest segments were deleted, and their events with them
                raise
        return None

    def offset_at(self, ticks: int) -> int:
        """Return the first offset whose event has these ticks or later ones; the end if there is none."""
        while True:
            try:
                return self._offset_at(ticks)
            except StaleSegment:
                continue
            except NotFound as error:
                if error.code != "offset_gone":  # else retention came in between: search what is left
                    raise

    def _offset_at(self, ticks: int) -> int:
        if self._archived is not None:
            self.start()  # looks whether the oldest are still here: what was dropped need not be fetched to be compared
        slot = self.slot()
        bases = self._known_bases(slot)
        if not bases:
            raise self.gone(0)
        at = bisect_right(bases, ticks, key=lambda base: self._previous_ticks(base, slot) + 1) - 1
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
        found = batch.base_offset + int(np.searchsorted(batch.ticks(), ticks, "left"))
        self.check_joined(segment.base, slot, found + 1)
        return found

    def extents(self, start: int, stop: int, whole: int) -> Extents:
        """Return where the offsets from `start` to before `stop` can be cut: at batches, by what the indexes say.

        A part of a segment that has up to `whole` bytes is not looked into; nor is one that is in the archive alone.
        """
        slot = self.slot()
        stop = min(stop, slot.visible_offset)
        found: list[Extents] = []
        while start < stop:
            base = self.base_of(start, slot)
            end = min(stop, self.end_offset(base, slot))
            with contextlib.suppress(StaleSegment):  # else it is looked at again
                found.append(self._extents(base, start, end, whole, slot))
                start = end
        return joined(found)

    def _extents(self, base: int, start: int, stop: int, whole: int, slot: TailSlot) -> Extents:
        """Return those of one segment."""
        part = self.archived_part(base)
        if part is not None:
            return Extents.of([start], [part.log_bytes * (stop - start) // (part.end - part.start)])
        segment = self.segment(base, slot)
        self.check_joined(base, slot, stop)
        end = self.end_position(segment, slot)
        first = HEADER_BYTES if start == base else self.locate(segment, slot, start)[0]
        last = end if stop == self.end_offset(base, slot) else self.locate(segment, slot, stop)[0]
        if last - first <= whole:
            return Extents.of([start], [last - first])
        batches = segment.map(end)
        lo, hi = batches.batch_of(start), batches.batch_of(stop - 1) + 1
        starts, positions = batches.offsets[lo:hi].copy(), batches.positions[lo:hi]
        starts[0] = start
        return Extents(starts, np.diff(positions, append=max(last, int(positions[-1]))))

    def local_start(self) -> int:
        """Return the oldest offset that is on the local disk; what is before it is in the archive, or gone."""
        self.start()
        return self._local

    def archived_part(self, base: int) -> HistoryFile | None:
        """Return the file of a segment that is in the archive only, as far as is known without a look; else None."""
        return self._archived.part(base) if self._archived is not None and base < self._local else None

    def is_archived_only(self, base: int) -> bool:
        """Return whether a segment is in the archive and not here, as far as is known without a look."""
        return self._archived is not None and base < self._local

    def in_archive(self) -> bool:
        """Return whether the oldest events are only in the archive, as far as is known without a look."""
        return bool(self._bases) and self._bases[0] < self._local

    def first_ticks(self, base: int) -> int | None:
        """Return the ticks of the first event of a segment that is in the archive only; None for others."""
        part = self.archived_part(base)
        return None if part is None else part.first_ticks or None

    def _previous_ticks(self, base: int, slot: TailSlot) -> int:
        """Return the ticks of the last event before a segment, which is not fetched from the archive for that."""
        part = self.archived_part(base)
        return part.previous_ticks if part is not None else self.segment(base, slot).header.previous_ticks

    def _offset_near_end(self, segment: SegmentFile, slot: TailSlot, ticks: int) -> int:
        """Return the first offset of the active segment with these ticks or later ones, searching from its end."""
        found = slot.visible_offset
        for batch in segment.backwards(self.end_position(segment, slot), found):
            if batch.last_ticks < ticks:
                break
            found = batch.base_offset + int(np.searchsorted(batch.ticks(), ticks, "left"))
        return found

    def locate(self, segment: SegmentFile, slot: TailSlot, offset: int) -> tuple[int, int]:
        """Return position and base offset of the batch that holds an offset, from the nearer end of a segment."""
        end = self.end_position(segment, slot)
        active = segment.base == slot.segment and not segment.header.packed
        if active and slot.visible_offset - offset < offset - segment.base:
            for batch in segment.backwards(end, slot.visible_offset):
                if batch.base_offset <= offset:
                    return batch.position, batch.base_offset
        batches = segment.map(end)
        number = batches.batch_of(offset)
        return int(batches.positions[number]), int(batches.offsets[number])

    def segment(self, base: int, slot: TailSlot) -> SegmentFile:
        """Return an open segment; raises NotFound, with the oldest offset, if it was deleted and is not in the archive.

        Raises Corrupt if it is missing though retention did not delete it.
        """
        try:
            return self._segments.get(base, slot)
        except Corrupt:
            self._check_identity()
            raise
        except NotFound as error:
            self._check_identity()
            if self._archived is not None and self._archived.part(base) is not None:
                if base >= self._local:
                    self._bases = []  # retention has dropped it since they were listed
                return self._archived.open(base)
            gone = self.gone(base)
            if base < gone.oldest:
                raise gone from None
            raise missing(self._place, base, self.end_offset(base, slot)) from error

    def end_offset(self, base: int, slot: TailSlot) -> int:
        """Return where the events of a segment end."""
        bases = self._known_bases(slot)
        at = bisect_right(bases, base)
        return bases[at] if at < len(bases) else slot.visible_offset

    def check_joined(self, base: int, slot: TailSlot, stop: int) -> None:
        """Raise Corrupt if events before `stop` are missing between a segment and the next; looked at once."""
        end = self.end_offset(base, slot)
        if base == slot.segment or base < self._local or self._joined.get(base) == end:
            return  # what is in the archive alone was found to be without a gap
        if self._archived is not None and self._archived.part(base) is not None and not self.is_here(base):
            return  # it was dropped just now
        ended = self.segment(base, slot).end_offset()
        if ended >= end:
            self._joined[base] = end
        elif self.is_here(ended):
            self._bases = []  # the file system did not list it
        elif ended < stop:
            raise missing(self._place, ended, end)

    def end_position(self, segment: SegmentFile, slot: TailSlot) -> int:
        """Return where the readable bytes of a segment end."""
        if segment.base == slot.segment and not segment.header.packed:
            return slot.visible_position
        return segment.size()

    def base_of(self, offset: int, slot: TailSlot) -> int:
        """Return the first offset of the segment that holds an offset."""
        bases = self._known_bases(slot)
        at = bisect_right(bases, offset) - 1
        if at < 0:
            raise self.gone(offset)
        return bases[at]

    def gone(self, offset: int) -> NotFound:
        """Return the error for an offset that retention has deleted."""
        return offset_gone(self._place, offset, self._oldest())

    def close(self) -> None:
        """Close the files; batches that were handed out stay valid, and it can be used again."""
        self._segments.clear()
        self._tail = None
        if self._archived is not None:
            self._archived.close()

    def after_fork(self) -> None:
        """In a forked child: drop what another thread of the parent may have been changing."""
        self._segments.after_fork()
        if self._archived is not None:
            self._archived.after_fork()

    def _settle(self) -> TailSlot:
        """Open the tail; have the log recovered if it cannot be believed as it is."""
        place = self._place
        tail = self._open_tail()
        slot = tail.newest() if tail is not None else None
        if slot is not None and slot.boot_id == self._boot_id and slot.state != DELETING:
            assert tail is not None
            if tail.sound():
                return slot
        if not place.disk.writable(place.lock):
            try:
                return self._settle_read_only(slot)
            finally:
                self._check_identity()  # what was deleted meanwhile cannot be written either
        slot = self._recover()
        self._open_tail()
        return slot

    def _open_tail(self) -> Tail | None:
        """Map the tail of this log, not that of another one that has its name by now: raises NotFound."""
        tail = Tail.open(self._place)
        self._check_identity()
        self._tail = tail
        return tail

    def _check_identity(self) -> None:
        """Raise NotFound if the topic was deleted: what its files were called is of another one, or of none."""
        if self._place.disk.inode(self._place.lock) != self._identity:
            raise deleted(self._place)

    def _settle_read_only(self, known: TailSlot | None) -> TailSlot:
        """On read-only media nothing changes and nothing can be cut: read what is valid."""
        found = recovery.scan(self._place, known)
        end = found.offset, found.position
        self._tail = None
        self._still = TailSlot(1, self._boot_id, found.segment, *end, *end, found.last_ticks, 1, OPEN)
        return self._still

    def _known_bases(self, slot: TailSlot) -> list[int]:
        """Return the segments up to the active one, with those that are in the archive only.

        A later one, which a roll is just making, is not in use. Those at the beginning may have been deleted since.
        None at all if the slot is that old.
        """
        bases = self._bases
        if not bases or bases[-1] != slot.segment:
            bases = [base for base in self._place.segments() if base <= slot.segment]
            local = bases[0] if bases else slot.segment
            self._doubt = None
            if bases and bases[-1] != slot.segment:
                bases.append(slot.segment)  # it is missing, and reading it raises; or retention deleted it
            if local and bases:
                try:
                    before = self._archived.before(local) if self._archived is not None else []
                    self._doubt = None if before else beginning(self._place, local)
                    bases = before + bases
                except (Corrupt, Unsupported) as error:
                    self._doubt = error  # what is here can be read all the same
            self._local, self._bases = local, bases
            self._joined = {base: end for base, end in self._joined.items() if base >= local}
            self._segments.drop_before(local)
        return bases

    def is_here(self, base: int) -> bool:
        """Return whether a segment is on the local disk now."""
        return self._place.disk.inode(self._place.segment(base)) is not None

    def _oldest(self) -> int:
        """Return the first offset of the oldest segment that is there now."""
        while True:
            slot, self._bases = self.slot(), []
            bases = self._known_bases(slot)
            if self._doubt is not None:
                raise self._doubt
            if bases:
                return bases[0]
            if self.slot() == slot:  # no roll came in between: the active one must have been there
                raise missing(self._place, slot.segment, slot.visible_offset)

    def _backwards(
        self, start: int, stop: int, types: TypeTest | None, key: bytes | None, slot: TailSlot, *, tell: bool = False
    ) -> Iterator[Batch]:
        """Yield the batches that hold the offsets before `stop`, back to `start`. `tell`: warn of lost ones."""
        stop = min(stop, slot.visible_offset)
        while start < stop:
            bases = self._known_bases(slot)
            if not bases or stop <= bases[0]:  # all that is there was read, and more is wanted
                raise self.gone(start)
            try:
                after = bisect_right(bases, stop - 1)
                base, end = bases[after - 1], bases[after] if after < len(bases) else slot.visible_offset
                if base != slot.segment and self._joined.get(base) != end:
                    self.check_joined(base, slot, stop)
                    base = self.base_of(stop - 1, slot)  # the check may have listed the segments again
                found = self.lookup.find(base, slot, types, key) if types is not None or key is not None else None
                if found is NOWHERE and not tell:
                    stop = base
                    continue
                lost = self.losses.of(base, slot) if found is not None and tell else []
                for batch in self._segment_backwards(base, slot, stop, found):
                    if found is None and tell and batch.flags & LOST:
                        lost = [(batch.base_offset, batch.end_offset)]
                    if lost:
                        warn(self._place, within(lost, max(start, batch.base_offset), stop)[::-1])
                    if batch.end_offset <= start:
                        return
                    stop = min(stop, batch.base_offset)
                    if not batch.flags & LOST:
                        yield batch
            except StaleSegment:  # the reader paused for long: continue in the file that is there now
                continue
            if lost:
                warn(self._place, within(lost, max(start, base), stop)[::-1])
            stop = base

    def _segment_backwards(self, base: int, slot: TailSlot, stop: int, found: BatchPositions | None) -> Iterator[Batch]:
        """Yield the batches of one segment from the one that holds `stop - 1` back: those found, or all."""
        segment = self.segment(base, slot) if found is None else found.segment
        if segment is None:
            return
        end = self.end_position(segment, slot)
        if found is not None:
            places = found.positions
        elif (index := segment.index()) is not None:
            places = index.positions.tolist()
        else:
            for batch in segment.backwards(end, self.end_offset(base, slot)):
                if batch.base_offset < stop:
                    yield batch
            return
        if stop < self.end_offset(base, slot):
            places = list(places)
            places = places[: bisect_right(places, self.locate(segment, slot, stop - 1)[0])]
        for position in reversed(places):
            yield segment.batch_at(position, end)
