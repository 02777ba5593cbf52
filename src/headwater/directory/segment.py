"""Reading one segment file: windows of verified batches, and the map of where its batches are.

A segment file is never changed below what is visible, and a sealed one is replaced as a whole, so an open
`SegmentFile` stays right for as long as it is held. One that `rests` closes its file between two uses when the process
has many open; if another file has its name when it is needed again, that raises. Safe from several threads.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from headwater.directory.keys import POSITION_MAX, KeyRuns, Positions, read_index
from headwater.directory.log_directory import LogDirectory
from headwater.disk.open_files import open_files
from headwater.errors import Corrupt, NotFound, Unavailable
from headwater.format import segment as format
from headwater.format.batch import LOST, Batch, corrupt, header_sound, peek, size_before
from headwater.format.column import I64
from headwater.format.index import Index
from headwater.format.losses import Ranges, merged
from headwater.format.segment import HEADER_BYTES, SegmentHeader, SegmentWindow
from headwater.format.tail import TailSlot

BACKWARDS_BYTES = 64 * 1024  # how much to read at once on the way back
BATCH_BYTES = 4 * 1024  # how much to read for one batch of unknown size: most hold a few events
MAP_BYTES_MIN = 256 * 1024  # below this, one read is cheaper than a map and its page faults

OPEN_SEGMENTS_MAX = 32  # of a log, kept between reads: a key's history may touch as many again and again
OPEN_SEGMENTS_FEW = 8  # when the process has many files open: it may read many logs, and each takes memory

_LOST = re.compile(rb"HWB1.{4}\x28\0\0\0", re.DOTALL)  # how a batch begins that has no columns


class StaleSegment(Unavailable):
    """The file of a segment was closed between two uses, and has been replaced or deleted since."""

    code = "segment_replaced"


class Map:
    """Base offset, base ticks and position of each batch of a segment, in order."""

    __slots__ = ("offsets", "positions", "ticks")

    def __init__(self, offsets: I64, ticks: I64, positions: I64) -> None:
        self.offsets = offsets
        self.ticks = ticks
        self.positions = positions

    def batch_of(self, offset: int) -> int:
        """Return the number of the batch that holds an offset."""
        return int(np.searchsorted(self.offsets, offset, "right")) - 1


class SegmentFile:
    """An open segment. `header` is verified."""

    files = 1

    def __init__(
        self, place: LogDirectory, base: int, header: SegmentHeader | None = None, *, rests: bool = False
    ) -> None:
        """Raises NotFound if it is not there, and Corrupt if its header is not what it should be.

        Repair gives the `header` that it will write in place of a damaged one. One that `rests` may close its file
        between two uses, which raise StaleSegment if that cannot be opened again.
        """
        self.base = base
        self._where = place.segment(base)
        self.path = str(self._where)
        self.used = 0
        self._disk = place.disk
        self._fd = -1
        self._rests = False
        self._using = threading.Lock()  # protects `_fd` from being closed while it is used
        try:
            self._fd = place.disk.open_read(self._where)
        except FileNotFoundError as error:
            message = f"{place} has no segment {base}"
            raise NotFound(message, code="segment_not_found", path=self.path, base=base) from error
        self._mapped: memoryview | None = None
        self._walked = (array("q"), array("q"), array("q"))
        self._walked_to = HEADER_BYTES
        self._walked_lost: Ranges = []
        self._lost_to = HEADER_BYTES  # up to here it is known whether there are lost events
        self._walking = threading.Lock()  # protects these four
        self._index: Index | None = None
        self._index_tried = False
        self._keys = KeyRuns(HEADER_BYTES, base)
        self._place = place
        self._begins_with = self._pread(HEADER_BYTES, 0)  # what distinguishes it from a file that takes its place
        self.header = header or self._read_header(place.uuid)
        self._rests = rests
        if rests:
            open_files.opened(self)

    def _read_header(self, uuid: bytes) -> SegmentHeader:
        try:
            header = format.decode(self._begins_with)
        except Corrupt as error:
            raise corrupt(error.message, self.path, 0, HEADER_BYTES) from None
        if header.base_offset != self.base or header.log_uuid != uuid:
            raise corrupt("the segment belongs to another log or offset", self.path, 0, HEADER_BYTES)
        return header

    def size(self) -> int:
        with self._using:
            return self._disk.size(self._descriptor())

    def rest(self) -> bool:
        """Close the file until it is needed; False if it is in use just now."""
        if not self._using.acquire(blocking=False):
            return False
        try:
            self._close()
        finally:
            self._using.release()
        return True

    def stale(self) -> bool:
        """Return whether the file was closed, and another one has its name or none. Else it is open."""
        try:
            with self._using:
                self._descriptor()
        except StaleSegment:
            return True
        return False

    def _pread(self, size: int, position: int) -> bytes:
        with self._using:
            return self._disk.pread(self._descriptor(), size, position)

    def _descriptor(self) -> int:
        """Return the open file, opened again if it was closed. The caller has `_using`."""
        self.used = open_files.turn
        if self._fd < 0:
            try:
                fd = self._disk.open_read(self._where)
            except FileNotFoundError as error:
                raise StaleSegment(f"{self.path} was deleted", hint="read again") from error
            if self._disk.pread(fd, HEADER_BYTES, 0) != self._begins_with:
                self._disk.close(fd)
                raise StaleSegment(f"{self.path} was replaced", hint="read again")
            self._fd = fd
            open_files.opened(self)
        return self._fd

    def end_offset(self) -> int:
        """Return the offset behind the last event of a finished segment, by its last batch, or else by its index."""
        try:
            return self._end_offset(self.size())
        except Corrupt:
            index = self.index()
            if index is None:
                raise
            return index.end_offset

    def _end_offset(self, end: int) -> int:
        if end <= HEADER_BYTES:
            return self.base
        window = self.window(max(HEADER_BYTES, end - BATCH_BYTES), end)
        position = end - size_before(window.buffer, end - window.start)
        if not HEADER_BYTES <= position < end:
            raise corrupt("no batch ends here", self.path, HEADER_BYTES, end - HEADER_BYTES)
        if position < window.start:
            window = self.window(position, end)
        return window.batch(position).end_offset

    def identity(self) -> tuple[int, int]:
        """Return the id and the size of the file, by which an index names it."""
        return self.header.file_id, self.size()

    def replaced(self) -> bool:
        """Return whether the file was deleted, or sealing has put a packed file in its place."""
        now = self._disk.inode(self._where)
        if now is None or self.header.packed:
            return now is None
        with self._using:
            return now != self._disk.inode(self._descriptor())

    def data_end(self, position: int) -> int:
        """Return where bytes other than reserved space, which is zeros, end behind a position.

        That position if nowhere.
        """
        size = self.size()
        rest = (
            np.frombuffer(self.window(position, size).buffer, np.uint8)[-(size - position) :] if size > position else ()
        )
        there = np.flatnonzero(rest)
        return position + -(-(int(there[-1]) + 1) // 8) * 8 if len(there) else position

    def window(self, position: int, end: int) -> SegmentWindow:
        """Return the bytes from `position` to `end`, at most what is visible. Raises Corrupt if they are not there."""
        if end - position < MAP_BYTES_MIN:
            stored = self._pread(end - position, position)
            found = position + len(stored)
            if found < end:
                raise corrupt("the segment was cut short", self.path, found, end - found)
            return SegmentWindow(memoryview(stored), position, self.path)
        mapped = self._mapped
        if mapped is None or len(mapped) < end:
            if (size := self.size()) < end:
                raise corrupt("the segment was cut short", self.path, size, end - size)
            with self._using:
                mapped = self._mapped = self._disk.map(self._descriptor(), end)
        return SegmentWindow(mapped[:end], 0, self.path)

    def index(self) -> Index | None:
        """Return the index of a sealed segment.

        None if it is missing, damaged or of another file: it is never truth.
        """
        if not self._index_tried:
            index = None
            try:
                index = read_index(self._place, self.base)
            except FileNotFoundError:
                return None  # it may come: sealing makes it some time after the segment was closed
            except Corrupt:
                pass
            self._index_tried = True
            if index is not None and self.identity() == (index.file_id, index.segment_bytes):
                self._index = index
        return self._index

    @property
    def index_damaged(self) -> bool:
        """Return whether there is an index that could not be used when it was looked at."""
        return self._index_tried and self._index is None

    def key_positions(self, hash: int, end: int) -> Positions | None:
        """Return where the batches up to position `end` are that may hold a key with this hash, ascending.

        None if one of them is damaged. Needs no index. The first call reads the keys of all batches, later
        ones those of new batches.
        """
        if end >= POSITION_MAX:
            return None
        try:
            return self._keys.positions(hash, end, self._walk_batches)
        except Corrupt:
            return None

    def batch_at(self, position: int, end: int) -> Batch:
        """Return the batch at a position, wherever it is in the segment; `end` is where the readable bytes end."""
        if self.header.packed:
            return self.window(HEADER_BYTES, end).batch(position)  # it does not grow: one map serves all
        window = self.window(position, min(end, position + BATCH_BYTES))
        if window.end < end and peek(window.buffer, 0)[0] > len(window.buffer):
            window = self.window(position, end)
        return window.batch(position)

    def _walk_batches(self, position: int, end: int, offset: int) -> Iterator[Batch]:
        return self.window(position, end).batches(position, offset)

    def map(self, end: int) -> Map:
        """Return where the batches up to position `end` are: from the index, else by walking their headers once."""
        index = self.index()
        if index is not None:
            return Map(index.offsets, index.ticks, index.positions)
        with self._walking:
            self._walk(end)
            return Map(*(np.array(numbers, np.int64) for numbers in self._walked))

    def lost(self, end: int) -> Ranges:
        """Return the offsets of lost events up to position `end`: from the index, else from the headers of the batches.

        Raises Corrupt if a header on the way is damaged.
        """
        index = self.index()
        if index is not None and (found := index.lost()) is not None:
            return found
        with self._walking:
            if self._lost_to < end:
                window = self.window(self._lost_to, end)
                if _LOST.search(window.buffer, self._lost_to - window.start):  # else there is no need to walk
                    self._walk(end)
                self._lost_to = end
            return merged(self._walked_lost)

    def backwards(self, end: int, offset: int) -> Iterator[Batch]:
        """Yield the batches that end at position `end` and before, the last first.

        `offset` is where the last one ends.
        """
        window = self.window(end, end)
        while end > HEADER_BYTES:
            if end - 4 < window.start:
                window = self.window(max(HEADER_BYTES, end - BACKWARDS_BYTES), end)
            size = size_before(window.buffer, end - window.start)
            if not HEADER_BYTES <= end - size < end:
                raise corrupt("no batch ends here", self.path, HEADER_BYTES, end - HEADER_BYTES)
            if end - size < window.start:
                window = self.window(end - size, end)
            batch = window.batch(end - size)
            if batch.end_offset != offset or batch.size != size:
                raise corrupt(f"offset {offset - 1} was expected", self.path, batch.position, batch.size)
            yield batch
            end, offset = batch.position, batch.base_offset

    def _walk(self, end: int) -> None:
        offsets, ticks, positions = self._walked
        if self._walked_to < end:
            window = self.window(self._walked_to, end)
            position, buffer, start = self._walked_to, window.buffer, window.start
            expected = self.base if not offsets else None
            while position < end:
                if position + 36 > end:
                    raise corrupt("the header of a batch is cut off", self.path, position, end - position)
                size, count, base_offset, base_ticks = peek(buffer, position - start)
                if size < 36 or (expected is not None and base_offset != expected):
                    raise corrupt("no batch begins here", self.path, position, end - position)
                if not header_sound(buffer, position - start):  # its size may lead into the data of an event
                    raise corrupt("the checksum of a batch's header is wrong", self.path, position, end - position)
                if buffer[position - start + 33] & LOST:
                    self._walked_lost.append((base_offset, base_offset + count))
                offsets.append(base_offset)
                ticks.append(base_ticks)
                positions.append(position)
                expected = base_offset + count
                position += size
            self._walked_to = position

    def close(self) -> None:
        """Close the file; windows that were handed out stay valid."""
        self._close()
        self._mapped = None

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if self._rests:
                open_files.closed(self)
            self._disk.close(fd)

    def __del__(self) -> None:
        self._close()


class OpenSegments:
    """The segments of one log that are kept open between reads, the least recently used first. Safe from any thread."""

    def __init__(self, place: LogDirectory) -> None:
        self._place = place
        self._found: OrderedDict[int, tuple[SegmentFile, int]] = OrderedDict()  # each with its generation of the log
        self._opening = threading.Lock()  # protects `_found`

    def get(self, base: int, slot: TailSlot) -> SegmentFile:
        """Return a segment, opened if need be, or if its file was replaced; raises NotFound if it was deleted."""
        with self._opening:
            found = self._found.get(base)
            if (
                found is None
                or found[1] != slot.generation
                or found[0].stale()
                or (base != slot.segment and found[0].replaced())
            ):
                found = self._found[base] = SegmentFile(self._place, base, rests=True), slot.generation
            self._found.move_to_end(base)
            if len(self._found) > min(OPEN_SEGMENTS_FEW, OPEN_SEGMENTS_MAX):
                most = OPEN_SEGMENTS_FEW if open_files.many else OPEN_SEGMENTS_MAX
                while len(self._found) > most:
                    # The active one stays: what it knows of its keys would take long to learn again.
                    del self._found[next(other for other in self._found if other != slot.segment)]
            return found[0]

    def drop_before(self, oldest: int) -> None:
        """Close deleted segments, so that their space is given back; those that a read still uses stay open."""
        with self._opening:
            for base in [base for base in self._found if base < oldest]:
                del self._found[base]

    def clear(self) -> None:
        with self._opening:
            self._found.clear()

    def after_fork(self) -> None:
        """In a forked child: drop what another thread of the parent may have been changing."""
        self._opening = threading.Lock()
        self._found.clear()


def read_header(place: LogDirectory, base: int) -> SegmentHeader:
    """Return the verified header of a segment."""
    segment = SegmentFile(place, base)
    try:
        return segment.header
    finally:
        segment.close()
