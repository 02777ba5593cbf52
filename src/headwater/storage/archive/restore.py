"""Bringing back one log from an archive, whole or up to an offset or a time: the same offsets, times and ids.

Whole segments are the files that were archived. One that goes beyond what is wanted is written anew up to there, in
the midst of a batch if need be, and becomes the active segment; else the active one is new and empty. What was fetched
before an interruption is verified and kept. For one thread; the caller decides when all of it becomes a log.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from headwater.errors import Invalid
from headwater.format.archive import ArchivedFile, ArchivedSegment, SegmentManifest, file_key
from headwater.format.batch import BLOB, DATA, KEY, LOST, META, TYPE, Batch, encode, encode_lost
from headwater.format.names import file_of, offset_of
from headwater.format.segment import HEADER_BYTES, SegmentHeader
from headwater.storage.archive.archive import reaching
from headwater.storage.archive.transfer import download, pieces_of
from headwater.storage.bucket.store import ObjectStore
from headwater.storage.place import LogDirectory
from headwater.storage.segment import SegmentFile

CUT = "cut"  # the directory of a segment that is written anew, while it is


class RestoreEnd(NamedTuple):
    """Where to end: before this offset, or before the first event with these ticks. Neither: at the archive's end."""

    offset: int | None = None
    ticks: int | None = None

    def whole(self, segment: ArchivedSegment) -> bool:
        """Whether all of a segment is before it."""
        return (self.offset is None or segment.end <= self.offset) and (
            self.ticks is None or segment.last_ticks < self.ticks
        )

    def none(self, segment: ArchivedSegment) -> bool:
        """Whether nothing of a segment is before it."""
        return (self.offset is not None and segment.base >= self.offset) or (
            self.ticks is not None and segment.first_ticks >= self.ticks
        )

    def rows(self, batch: Batch) -> int:
        """How many events of a batch are before it."""
        rows = batch.count
        if self.offset is not None:
            rows = min(rows, max(0, self.offset - batch.base_offset))
        if self.ticks is not None:
            rows = min(rows, int(np.searchsorted(batch.ticks(), self.ticks, "left")))
        return rows


class Fetch(NamedTuple):
    """A file to fetch, and where to put it."""

    manifest: SegmentManifest
    file: ArchivedFile
    path: Path


class SegmentRestore:
    """One log that is being restored into `place`, whose directory is not part of a log yet."""

    def __init__(self, place: LogDirectory, manifest: SegmentManifest, bound: RestoreEnd) -> None:
        """Raises Invalid if the archive does not reach so far, or begins later."""
        self.place = place
        self._manifest = manifest
        self._bound = bound
        _check_reach(place, manifest, bound)
        segments = manifest.segments
        self._whole = [segment for segment in segments if bound.whole(segment)]
        behind = segments[len(self._whole) : len(self._whole) + 1]
        self._cut = behind[0] if behind and not bound.none(behind[0]) else None
        self._next = behind[0] if behind else None

    def fetches(self) -> list[Fetch]:
        """What has to be fetched before `finish`."""
        place, found = self.place, []
        for segment in self._whole:
            last = self._next is None and segment is self._whole[-1]
            found += [
                self._fetch(file, place.path / file.name)
                for file in segment.files
                if not file.name.endswith(".producers") or last
            ]
        if self._cut is not None:
            for file in self._cut.files:
                offset = offset_of(file.name.partition("/")[2], "blob")
                if offset is not None and (self._bound.offset is None or offset < self._bound.offset):
                    found.append(self._fetch(file, place.path / file.name))
                elif file.name == file_of(self._cut.base, "log"):
                    found.append(self._fetch(file, place.path / CUT / file.name))
        return found

    def finish(self) -> tuple[int, int]:
        """Make the active segment, when all is fetched, durably; returns where the log begins and ends."""
        place, disk = self.place, self.place.disk
        if self._cut is not None:
            header, end = self._write_cut(self._cut)
        else:
            header = self._new_header()
            end = header.base_offset
            disk.replace(place.segment(end), header.encode())
        with contextlib.suppress(FileExistsError):
            disk.close(disk.create(place.lock))
        disk.remove_tree(place.path / CUT)
        start = self._whole[0].base if self._whole else header.base_offset
        if start:
            place.mark(start)
        disk.sync_directory(place.path)
        return start, end

    def _fetch(self, file: ArchivedFile, path: Path) -> Fetch:
        return Fetch(self._manifest, file, path)

    def _new_header(self) -> SegmentHeader:
        """Of an empty active segment behind all that is restored."""
        base = previous_ticks = 0
        producers = False
        if self._whole:
            last = self._whole[-1]
            base, previous_ticks = last.end, last.last_ticks
            producers = self._next is None and last.file(file_of(base, "producers")) is not None
        elif self._next is not None:
            base, previous_ticks = self._next.base, self._next.previous_ticks
        return SegmentHeader(
            self._file_id(), self.place.uuid, base, previous_ticks, self.place.clock.ticks(), producers=producers
        )

    def _write_cut(self, archived: ArchivedSegment) -> tuple[SegmentHeader, int]:
        """Write the part of a segment that is wanted, as the active one; returns its header and where it ends."""
        place, disk = self.place, self.place.disk
        segment = SegmentFile(msgspec.structs.replace(place, path=place.path / CUT), archived.base)
        temporary, fd = disk.create_temporary(place.segment(archived.base))
        try:
            # It is appended to, so it is not packed; what was remembered of producers at its beginning is not archived.
            header = msgspec.structs.replace(segment.header, file_id=self._file_id(), packed=False, producers=False)
            disk.write(fd, header.encode(), 0)
            position, end = HEADER_BYTES, archived.base
            blobs: set[int] = set()
            for batch, rows in self._kept(segment):
                stored = bytes(batch.stored()) if rows == batch.count else first_events(batch, rows, zstd=place.zstd)
                disk.write(fd, stored, position)
                position, end = position + len(stored), batch.base_offset + rows
                if batch.flags & BLOB:
                    blobs.add(batch.base_offset)
            disk.fdatasync(fd)
            disk.rename(temporary, place.segment(archived.base))
        except BaseException:
            with contextlib.suppress(OSError):
                disk.unlink(temporary)
            raise
        finally:
            disk.release(fd)
            segment.close()
        self._remove_blobs(archived.base, blobs)
        return header, end

    def _kept(self, segment: SegmentFile) -> Iterator[tuple[Batch, int]]:
        """The batches of which something is wanted, verified, and how many events of each."""
        window = segment.window(HEADER_BYTES, segment.size())
        for batch in window.batches(HEADER_BYTES, segment.base):
            rows = self._bound.rows(batch)
            if not rows:
                return
            batch.validate()
            yield batch, rows

    def _remove_blobs(self, base: int, kept: set[int]) -> None:
        blobs = self.place.blobs(base)
        for name in self.place.disk.names(blobs):
            if offset_of(name, "blob") not in kept:
                self.place.disk.unlink(blobs / name)

    def _file_id(self) -> int:
        return int.from_bytes(self.place.clock.random_bytes(4), "little")


def fetch(store: ObjectStore, place: LogDirectory, wanted: Fetch, advance: Callable[[int], None]) -> None:
    """Have a file, verified and durable but for its name, fetched unless an earlier try has it."""
    manifest, file, path = wanted
    disk = place.disk
    if _is_there(place, wanted):
        advance(file.bytes)
        return
    for folder in (path.parent.parent, path.parent):
        with contextlib.suppress(FileExistsError):
            disk.mkdir(folder)
    position = 0
    with disk.replacing(path) as fd, reaching(store.url):
        for piece in download(store, file_key(manifest, file), file):
            disk.write(fd, piece, position)
            position += len(piece)
            advance(len(piece))


def first_events(batch: Batch, rows: int, *, zstd: bool) -> bytes:
    """The bytes of a batch that holds the first events of another one, verified, with their offsets and ticks."""
    if batch.flags & LOST:
        return encode_lost(batch.base_offset, batch.base_ticks, rows)
    columns = {
        kind: None if (column := batch.column(kind)) is None else column.slice(0, rows)
        for kind in (TYPE, KEY, DATA, META)
    }
    ticks = batch.ticks()[:rows]
    return encode(batch.base_offset, batch.base_ticks, rows, batch.content, columns, ticks=ticks, zstd=zstd)


def _is_there(place: LogDirectory, wanted: Fetch) -> bool:
    disk = place.disk
    try:
        fd = disk.open_read(wanted.path)
    except FileNotFoundError:
        return False
    try:
        if disk.size(fd) != wanted.file.bytes:
            return False
        digest = hashlib.sha256()
        for piece in pieces_of(disk, fd, wanted.file.bytes):
            digest.update(piece)
        return digest.hexdigest() == wanted.file.sha256
    finally:
        disk.close(fd)


def _check_reach(place: LogDirectory, manifest: SegmentManifest, bound: RestoreEnd) -> None:
    end = max(manifest.end, 0)
    start = manifest.segments[0].base if manifest.segments else 0
    if bound.offset is not None and not start <= bound.offset <= end:
        raise Invalid(
            f"{place}: the archive has the offsets from {start} to before {end}, so it cannot end at {bound.offset}",
            hint="leave it out to restore all that is archived",
            code="not_archived",
            start=start,
            end=end,
        )
