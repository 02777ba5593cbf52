"""Bringing back one log from an archive, whole or up to an offset or a time: the same offsets, times and ids.

Each file becomes a segment. One that goes beyond what is wanted is cut, in the midst of a batch if need be, and becomes
the active segment; else the active one is new and empty. What was made before an interruption is verified and kept. The
caller decides when all of it becomes a log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from headwater.bucket.object_store import ObjectStore
from headwater.directory.log_directory import LogDirectory
from headwater.directory.seal import build_index
from headwater.directory.segment import SegmentFile
from headwater.errors import HeadwaterError, Invalid
from headwater.format.history import HistoryFile, HistoryManifest
from headwater.format.losses import total
from headwater.format.names import file_of, offset_of
from headwater.format.segment import SegmentHeader
from headwater.history import files
from headwater.history.segments import SegmentEnd, write_segment


class LogRestore:
    """One log that is being restored into `place`, whose directory is not part of a log yet."""

    def __init__(self, store: ObjectStore, place: LogDirectory, manifest: HistoryManifest, end: SegmentEnd) -> None:
        """Raises Invalid if the archive does not reach so far, or begins later."""
        self.place = place
        self._store = store
        self._manifest = manifest
        self._end = end
        _check_reach(place, manifest, end)
        whole = [part for part in manifest.parts if end.has_all(part)]
        behind = manifest.parts[len(whole) : len(whole) + 1]
        self._cut = behind[0] if behind and not end.has_none(behind[0]) else None
        self._next = behind[0] if behind else None
        self._whole = whole

    @property
    def parts(self) -> list[HistoryFile]:
        """The files that are needed, each for one call of `make`."""
        return [*self._whole, *([self._cut] if self._cut is not None else [])]

    def prepare(self) -> None:
        """Make the directory, and remove what an earlier try, which may have wanted something else, has left there."""
        disk = self.place.disk
        with contextlib.suppress(FileExistsError):
            disk.mkdir(self.place.path)
        bases = {part.start for part in self._whole}
        for name, is_directory in disk.entries(self.place.path):
            path = self.place.path / name
            if is_directory and offset_of(name, "blobs") not in bases:
                disk.remove_tree(path)
            elif not is_directory and name != "lock" and _base_of(name) not in bases:
                disk.unlink(path)

    def make(self, part: HistoryFile, advance: Callable[[int], None]) -> None:
        """Have the segment of a file, and its blobs, verified and durable but for their names."""
        place, disk = self.place, self.place.disk
        if part in self._whole and self._is_there(part):
            advance(part.file.bytes)
        else:
            write_segment(self._store, self._manifest, part, place, self._end, advance)
        for blob in part.blobs:
            path = place.blobs(part.start) / file_of(blob.offset, "blob")
            wanted = self._end.offset is None or blob.offset < self._end.offset
            if wanted and disk.inode(path) is None:
                with contextlib.suppress(FileExistsError):
                    disk.mkdir(path.parent)
                files.fetch(self._store, self._manifest, blob.file, path, disk, advance)

    def finish(self) -> tuple[int, int, int]:
        """Make the active segment, when all others are there, durably; returns first offset, end, and lost events."""
        place, disk = self.place, self.place.disk
        end = self._active_end() if self._cut is not None else self._begin()
        with contextlib.suppress(FileExistsError):
            disk.close(disk.create(place.lock))
        parts = self.parts
        start = parts[0].start if parts else end
        if start:
            place.mark(start)
        lost = sum(total(part.lost) for part in self._whole)
        if self._cut is not None:
            lost += total((lo, min(hi, end)) for lo, hi in self._cut.lost if lo < end)
        if lost:
            place.mark_lost()
        disk.remove_tree(place.spool)
        disk.sync_directory(place.path)
        return start, end, lost

    def _begin(self) -> int:
        """Make an empty active segment behind all that is restored; returns its first offset."""
        place, disk = self.place, self.place.disk
        base = previous_ticks = 0
        producers = None
        if self._whole:
            last = self._whole[-1]
            base, previous_ticks = last.end, last.end_ticks
            producers = last.producers if self._next is None else None
        elif self._next is not None:
            base, previous_ticks = self._next.start, self._next.previous_ticks
        if producers is not None:
            files.fetch(self._store, self._manifest, producers, place.producers(base), disk)
        file_id, begun = int.from_bytes(place.clock.random_bytes(4), "little"), place.clock.ticks()
        header = SegmentHeader(file_id, place.uuid, base, previous_ticks, begun, producers=producers is not None)
        disk.replace(place.segment(base), header.encode())
        return base

    def _active_end(self) -> int:
        """Return where the segment ends that was cut, without the blobs that its events do not name."""
        assert self._cut is not None
        place = self.place
        with contextlib.closing(SegmentFile(place, self._cut.start)) as segment:
            end = segment.end_offset()
        blobs = place.blobs(self._cut.start)
        for name in place.disk.names(blobs):
            if (offset_of(name, "blob") or 0) >= end:
                place.disk.unlink(blobs / name)
        return end

    def _is_there(self, part: HistoryFile) -> bool:
        """Tell whether an earlier try has made the segment of a file; all of it is verified."""
        place = self.place
        try:
            with contextlib.closing(SegmentFile(place, part.start)) as segment:
                header = segment.header
                if (header.packed, header.previous_ticks) != (True, part.previous_ticks):
                    return False
                index = build_index(segment)
                place.disk.replace(place.index(part.start), index.encode(), sync=False)
                return index.end_offset == part.end and (bool(part.lost) or int(index.ticks[0]) == part.first_ticks)
        except (HeadwaterError, OSError):
            return False


def _base_of(name: str) -> int | None:
    """The segment that a file of a log belongs to; None if it is none of a finished one."""
    return next((base for suffix in ("log", "index") if (base := offset_of(name, suffix)) is not None), None)


def _check_reach(place: LogDirectory, manifest: HistoryManifest, bound: SegmentEnd) -> None:
    start, end = max(manifest.start, 0), max(manifest.end, 0)
    if bound.offset is not None and not start <= bound.offset <= end:
        raise Invalid(
            f"{place}: offset {bound.offset} is not archived: the archive begins at {start} and ends before {end}",
            hint="omit the offset to restore everything in the archive",
            code="not_archived",
            start=start,
            end=end,
        )
