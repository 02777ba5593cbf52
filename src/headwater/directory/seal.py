"""Sealing: packing the batches of a finished segment into ones of a good size, and building its index.

Outside the writers' lock: the finished segment never changes, readers that hold it keep the old file, and the new one
takes its name in one rename. Offsets, times and ids stay. A lock on the segment's own file keeps two processes from
sealing it at once, and retention from deleting it meanwhile. Damage is never packed over: it raises, and the segment
stays as it is.
"""

from __future__ import annotations

import contextlib
from io import FileIO

import msgspec
import numpy as np

from headwater.directory.keys import KeyEntries
from headwater.directory.log_directory import LogDirectory
from headwater.directory.segment import SegmentFile
from headwater.format import segment as segment_format
from headwater.format.batch import BLOB, LOST, TYPE, Batch
from headwater.format.column import Column
from headwater.format.index import Index
from headwater.format.names import offset_of
from headwater.format.segment import HEADER_BYTES
from headwater.log.packing import Pause, packed, runs, too_large

BUSY_POLL_S = 0.005  # how often to look whether another process has released a segment that it seals


def seal(place: LogDirectory, base: int, pause: Pause = lambda: None, *, anew: bool = False) -> bool:
    """Pack and index one finished segment; False if another process is at it.

    `anew` makes its index also where there is one. `pause` is called between pieces of work; it may sleep to leave the
    processor to others, or raise to stop.
    """
    disk = place.disk
    path = place.segment(base)
    with disk.guard(disk.open_read(path)) as file:
        if not disk.try_lock(file.fileno()) or disk.inode(path) != disk.inode(file.fileno()):
            return False
        with contextlib.closing(SegmentFile(place, base)) as segment:
            if not anew and segment.index() is not None:
                return True
            if segment.header.packed or not _worth_packing(place, segment):
                _index(place, segment, pause)
                return True
            with _pack(place, segment, pause), contextlib.closing(SegmentFile(place, base)) as packed:
                _index(place, packed, pause)
    return True


def _index(place: LogDirectory, segment: SegmentFile, pause: Pause) -> None:
    index = build_index(segment, pause)
    _remove_orphans(place, segment)
    place.make_room(place.index(segment.base))
    place.disk.replace(place.index(segment.base), index.encode(), sync=False)


def unsealed(place: LogDirectory, active: int) -> list[int]:
    """Return the finished segments that have no index."""
    names = set(place.disk.names(place.path))
    return [base for base in place.segments() if base < active and place.index(base).name not in names]


def build_index(segment: SegmentFile, pause: Pause = lambda: None) -> Index:
    """Read a finished segment whole, verifying it, and tell where its batches, types and keys are."""
    size = segment.size()
    offsets, ticks, positions = [], [], []
    types: dict[bytes, list[int]] = {}
    keys = KeyEntries()
    window = segment.window(HEADER_BYTES, size)
    end = segment.base
    for number, batch in enumerate(window.batches(HEADER_BYTES, segment.base)):
        batch.validate()
        offsets.append(batch.base_offset)
        ticks.append(batch.base_ticks)
        positions.append(batch.position)
        for type in _types_of(batch):
            types.setdefault(type, []).append(number)
        keys.add(batch, number)
        end = batch.end_offset
        if number % 256 == 255:
            pause()
    numbers = {type: np.array(batches, np.int32) for type, batches in sorted(types.items())}
    return Index(
        segment.header.file_id,
        segment.base,
        end,
        size,
        np.array(offsets, np.int64),
        np.array(ticks, np.int64),
        np.array(positions, np.int64),
        numbers,
        keys.sorted(),
    )


def _types_of(batch: Batch) -> set[bytes]:
    if batch.flags & LOST:
        return set()
    column = batch.column(TYPE)
    if column is None:
        return {b""}
    if column.codes is not None and column.offsets is not None:
        distinct = Column(len(column.offsets) - 1, column.data, column.offsets)
        return {value or b"" for value in distinct.take(np.unique(column.codes).astype(np.int64))}
    return {
        value or b"" for value in (column.values(0, 1) if column.offsets is None else column.values(0, column.count))
    }


def _worth_packing(place: LogDirectory, segment: SegmentFile) -> bool:
    """Not if its batches have about the right size already: then rewriting would only cost."""
    batches = len(segment.map(segment.size()).positions)
    return batches > 2 * max(1, segment.size() // place.limits.pack_bytes) or too_large(
        segment.size() // max(1, batches), place
    )


def _pack(place: LogDirectory, segment: SegmentFile, pause: Pause) -> FileIO:
    """Put a packed file in the place of the segment; returns it, locked, so that it stays until it is indexed."""
    disk = place.disk
    path = place.segment(segment.base)
    file_id = int.from_bytes(place.clock.random_bytes(4), "little")
    header = msgspec.structs.replace(segment.header, file_id=file_id, packed=True)
    temporary, fd = disk.create_temporary(path)
    file = disk.guard(fd)
    try:
        disk.write(fd, header.encode(), 0)
        position = segment_format.HEADER_BYTES
        window = segment.window(HEADER_BYTES, segment.size())
        for run in runs(window.batches(HEADER_BYTES, segment.base), place, pause):
            for stored in packed(run, place):
                disk.write(fd, stored, position)
                position += len(stored)
                pause()
        disk.fdatasync(fd)
        disk.rename(temporary, path)
        disk.sync_directory(place.path)
    except BaseException:
        file.close()
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise
    return file


def _remove_orphans(place: LogDirectory, segment: SegmentFile) -> None:
    """Remove blobs that no event names: left by a crash between placing one and committing its event."""
    blobs = place.blobs(segment.base)
    names = place.disk.names(blobs)
    if names:
        window = segment.window(HEADER_BYTES, segment.size())
        named = {batch.base_offset for batch in window.batches(HEADER_BYTES, segment.base) if batch.flags & BLOB}
        for name in names:
            offset = offset_of(name, "blob")
            if offset is not None and offset not in named:
                place.disk.unlink(blobs / name)
