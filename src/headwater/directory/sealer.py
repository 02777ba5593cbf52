"""Sealing: a finished segment is packed into batches of a good size, and indexed, by a thread in the background.

Outside the writers' lock: the finished segment never changes, readers that hold it keep the old file, and the new one
takes its name in one rename. Offsets, times and ids stay. A lock on the segment's own file keeps two processes from
sealing it at once, and retention from deleting it meanwhile. Damage is never packed over: it raises, and the segment
stays as it is.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from io import FileIO

import msgspec
import numpy as np

from headwater.directory.failures import being_sealed, unavailable
from headwater.directory.keys import KeyEntries
from headwater.directory.log_directory import LogDirectory
from headwater.directory.segment import SegmentFile
from headwater.errors import HeadwaterError, NotFound
from headwater.format.batch import BLOB, LOST, TYPE, Batch
from headwater.format.column import Column
from headwater.format.index import Index
from headwater.format.names import offset_of
from headwater.format.segment import HEADER_BYTES
from headwater.info import Progress, advancing
from headwater.log.packing import Pause, packed, runs, too_large

log = logging.getLogger("headwater")

WORK_S = 0.002  # how long to work before a pause: a thread that computes holds up all appends
REST = 1.0  # rest per work: half of one core at most
BUSY_POLL_S = 0.005  # how often to look whether another process has released a segment that it seals
REST_S_MAX = 0.1  # and not for as long as the process was stopped: the caller that closes the log waits for it


class Sealer:
    """Sees to logs that rolled, one segment at a time: deletes what is old, then seals. No thread before there is work.

    `retain` applies the retention of a log. It is called for all that rolled before another segment is sealed.
    """

    def __init__(self, retain: Callable[[LogDirectory], None] = lambda _: None) -> None:
        self._retain = retain
        self._work: queue.SimpleQueue[tuple[LogDirectory, int | None] | None] = queue.SimpleQueue()
        self._mutex = threading.Lock()  # protects `_thread`
        self._thread: threading.Thread | None = None
        self._stopping = False

    def rolled(self, place: LogDirectory) -> None:
        """Seal the segment of this log that was just finished."""
        self._begin(place, None)

    def damaged(self, place: LogDirectory, base: int) -> None:
        """Rebuild the index of a finished segment, which is of no use, where that can be written."""
        if place.disk.writable(place.lock):
            self._begin(place, base)

    def _begin(self, place: LogDirectory, base: int | None) -> None:
        self._work.put((place, base))
        with self._mutex:
            if self._stopping or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, name="headwater-seal", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop soon. What is not sealed stays readable, and is sealed by the process that comes next."""
        with self._mutex:
            self._stopping = True
            thread = self._thread
        if thread is not None and thread.is_alive():
            self._work.put(None)
            thread.join()

    def _run(self) -> None:
        waiting: deque[tuple[LogDirectory, Iterator[int]]] = deque()
        while self._take(waiting):
            if waiting and not self._stopping:
                place, sealing = waiting[0]
                try:
                    if next(sealing, None) is None:
                        waiting.popleft()
                except _SealerStopError:
                    waiting.clear()
                except HeadwaterError as error:
                    waiting.popleft()
                    log.warning("%s could not be sealed, and is unchanged: %s", place, error)

    def _take(self, waiting: deque[tuple[LogDirectory, Iterator[int]]]) -> bool:
        """Apply the retention of all logs that rolled, and have them wait to be sealed; False at the end."""
        while self._stopping or not waiting or not self._work.empty():
            work = self._work.get()
            if work is None:
                return False
            place, base = work
            pause = _Pacer(place, self).pause
            if base is not None:
                waiting.append((place, (int(reindex(place, each, pause)) for each in (base,))))
                continue
            try:
                self._retain(place)
            except NotFound:
                continue  # the topic was deleted
            except HeadwaterError as error:
                log.warning("%s could not delete old events, and keeps them: %s", place, error)
            waiting.append((place, seal_each(place, pause)))
        return True

    @property
    def stopping(self) -> bool:
        return self._stopping


def seal_all(place: LogDirectory, *, wait: bool = False) -> int:
    """Seal every finished segment of a log that is not sealed; returns how many.

    One that another process is at is left to them; with `wait`, until they are done.
    """
    bases = place.segments()
    sealed = sum(seal_each(place, lambda: None))
    if wait and bases:
        sealed += sum(_seal_or_wait(place, base) for base in unsealed(place, bases[-1]))
    return sealed


def _seal_or_wait(place: LogDirectory, base: int) -> bool:
    """Seal a segment, or wait for who is at it (False); raises Unavailable when that takes too long."""
    deadline = place.clock.monotonic() + place.limits.lock_wait_s
    while base in unsealed(place, base + 1):
        if _seal(place, base, lambda: None):
            return True
        if place.clock.monotonic() > deadline:
            raise being_sealed(place, base)
        place.clock.sleep(BUSY_POLL_S)
    return False


def seal_each(place: LogDirectory, pause: Pause) -> Iterator[int]:
    """Seal the finished segments one at a time: yields 1 for each, 0 if another process is at it or it is gone."""
    bases = place.segments()
    for base in unsealed(place, bases[-1]) if bases else ():
        yield int(_seal(place, base, pause))


def reindex(place: LogDirectory, base: int, pause: Pause = lambda: None) -> bool:
    """Make the index of a finished segment again from what it holds; False if another process is at it."""
    return _seal(place, base, pause, rebuild=True)


def reindex_all(places: list[LogDirectory], progress: Progress | None) -> int:
    """Rebuild the index of every finished segment; returns how many were rebuilt."""
    finished = [(place, base) for place in places for base in place.segments()[:-1]]
    sizes = [place.disk.file_size(place.segment(base)) for place, base in finished]
    advance = advancing(sum(sizes), progress)
    made = 0
    for (place, base), size in zip(finished, sizes, strict=True):
        made += reindex(place, base)
        advance(size)
    return made


def _seal(place: LogDirectory, base: int, pause: Pause, *, rebuild: bool = False) -> bool:
    try:
        return seal(place, base, pause, rebuild=rebuild)
    except FileNotFoundError:  # removed meanwhile
        return False
    except OSError as error:
        raise unavailable(place, "a segment cannot be sealed, and is unchanged", error) from error


class _SealerStopError(Exception):  # it is a signal, not an error
    """Ends the work between two pieces of it."""


class _Pacer:
    def __init__(self, place: LogDirectory, sealer: Sealer) -> None:
        self._clock = place.clock
        self._sealer = sealer
        self._began = place.clock.monotonic()

    def pause(self) -> None:
        if self._sealer.stopping:
            raise _SealerStopError
        worked = self._clock.monotonic() - self._began
        if worked > WORK_S:
            self._clock.sleep(min(worked * REST, REST_S_MAX))
            self._began = self._clock.monotonic()


def seal(place: LogDirectory, base: int, pause: Pause = lambda: None, *, rebuild: bool = False) -> bool:
    """Pack and index one finished segment; False if another process is at it.

    `rebuild` makes its index also where there is one. `pause` is called between pieces of work; it may sleep to leave
    the processor to others, or raise to stop.
    """
    disk = place.disk
    path = place.segment(base)
    with disk.guard(disk.open_read(path)) as file:
        if not disk.try_lock(file.fileno()) or disk.inode(path) != disk.inode(file.fileno()):
            return False
        with contextlib.closing(SegmentFile(place, base)) as segment:
            if not rebuild and segment.index() is not None:
                return True
            if segment.header.packed or not _worth_packing(place, segment):
                _write_index(place, segment, pause)
                return True
            with _pack(place, segment, pause), contextlib.closing(SegmentFile(place, base)) as packed:
                _write_index(place, packed, pause)
    return True


def _write_index(place: LogDirectory, segment: SegmentFile, pause: Pause) -> None:
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
    """Return whether packing pays: not if the batches have about the right size already."""
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
        position = HEADER_BYTES
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
