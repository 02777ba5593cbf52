"""`restore`: a new log directory from an archive, with the same offsets, times and ids.

The directory is built beside its final path, under a hidden name, and renamed when all of it is durable: an unfinished
one never looks like a log. Called again after an interruption, it verifies and keeps the finished files.

Each file becomes a segment. A file that reaches beyond the requested end is cut, within a batch if necessary, and is
the active segment; otherwise the active segment is new and empty.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from stat import S_ISDIR

from headwater.bucket.object_store import ObjectStore
from headwater.directory.catalog import SETTINGS_FILE, TOPIC_FILE, DirectoryCatalog
from headwater.directory.failures import FULL
from headwater.directory.log_directory import LogDirectory
from headwater.directory.sealer import build_index
from headwater.directory.segment import SegmentFile
from headwater.disk.disk import Clock, Disk, locked
from headwater.errors import HeadwaterError, Invalid, NotFound, Unavailable
from headwater.event import ticks_of
from headwater.format import settings
from headwater.format.history import HistoryFile, HistoryManifest
from headwater.format.losses import total
from headwater.format.names import directory_of, file_of, offset_of
from headwater.format.segment import SegmentHeader
from headwater.format.settings import LogSettings as StoreSettings
from headwater.format.settings import TopicRecord
from headwater.history import files
from headwater.history.files import reaching
from headwater.history.records import HistoryStore, open_history
from headwater.history.segments import SegmentEnd, write_segment
from headwater.info import Progress, RestoreResult, advancing
from headwater.limits import DEFAULTS, Limits


def restore(
    url: str,
    path: Path,
    *,
    topic: str | None = None,
    partition: int | None = None,
    to: int | datetime | None = None,
    limits: Limits = DEFAULTS,
    progress: Progress | None = None,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> list[RestoreResult]:
    """Create a log directory from an archive, with the same topics, offsets, times and ids; return its logs.

    `to` ends it before an offset of a topic (and of one partition, if it has several: the others are complete), or, in
    every log, before the first event of that time or later. Raises Invalid if `path` exists, NotFound for what is not
    in the archive, Corrupt for damage, Unavailable. `path` appears when all of it is durable.
    """
    disk, clock, path = disk or Disk(), clock or Clock(), path.absolute()
    if isinstance(to, int) and topic is None:
        raise Invalid("an offset needs a topic", hint="give the topic, or a time", code="topic_needed")
    check_free(path, disk)
    archive = open_history(url, clock=clock, disk=disk, limits=limits)
    building = building_at(path)
    catalogue = DirectoryCatalog(building, disk, clock, limits)
    with contextlib.closing(archive):
        with reaching(archive.store.url):
            uuid = archive.owner()
            topics = archive.topics(topic)
            logs = [log for each in topics for log in _logs(archive, catalogue, each, partition, to)]
        with _finishing(path, uuid, topics, disk, clock):
            return _restore(building, topics, logs, disk, limits, progress)


def _logs(
    archive: HistoryStore,
    catalogue: DirectoryCatalog,
    topic: TopicRecord,
    partition: int | None,
    to: int | datetime | None,
) -> Iterator[LogRestore]:
    for number in range(topic.partitions):
        end = end_of(topic, number, partition, to)
        yield LogRestore(archive.store, catalogue.place(topic, number), archive.manifest(topic, number), end)


def _restore(
    building: Path,
    topics: list[TopicRecord],
    logs: list[LogRestore],
    disk: Disk,
    limits: Limits,
    progress: Progress | None,
) -> list[RestoreResult]:
    with contextlib.suppress(FileExistsError):
        disk.mkdir(building / "topics")
    names = {directory_of(topic.name) for topic in topics}
    for name in disk.names(building / "topics"):
        if name not in names:  # of an earlier restore, of other topics
            disk.remove_tree(building / "topics" / name)
    for log in logs:
        with contextlib.suppress(FileExistsError):
            disk.mkdir(log.place.path.parent)
        log.prepare()
    advance = advancing(sum(part.bytes for log in logs for part in log.parts), progress)
    with ThreadPoolExecutor(limits.archive_transfers, "headwater-restore") as pool:
        work = [pool.submit(log.make, part, advance) for log in logs for part in log.parts]
        try:
            for started in work:
                started.result()
        except BaseException:
            for started in work:
                started.cancel()
            raise
    done: list[RestoreResult] = []
    for log in logs:
        first, end, lost = log.finish()
        size = sum(part.bytes for part in log.parts)
        done.append(RestoreResult(log.place.topic, log.place.partition, first, end, size, lost))
    return done


def end_of(topic: TopicRecord, number: int, partition: int | None, to: int | datetime | None) -> SegmentEnd:
    """Return where partition `number` of a topic ends. Raises Invalid if `to` is ambiguous, NotFound."""
    if isinstance(to, datetime):
        return SegmentEnd(ticks=ticks_of(to))
    if to is None:
        return SegmentEnd()
    if partition is None and topic.partitions > 1:
        raise Invalid(
            f"topic {topic.name!r} has {topic.partitions} partitions, and an offset applies to only one of them",
            hint="give the partition, or a time",
            code="partition_needed",
        )
    if partition is not None and not 0 <= partition < topic.partitions:
        raise NotFound(f"topic {topic.name!r} has no partition {partition}", code="partition_not_found")
    return SegmentEnd(offset=to) if number == (partition or 0) else SegmentEnd()


def check_free(path: Path, disk: Disk) -> None:
    """Raise Invalid if the path exists, unless it is an empty directory."""
    there = disk.inode(path) is not None
    if there and (disk.entries(path) or not S_ISDIR(disk.status(path).st_mode)):
        raise Invalid(f"{path} already exists", hint="use a new or empty directory", code="not_empty")


def building_at(path: Path) -> Path:
    """Return the path where a directory is built."""
    return path.parent / f".{path.name}.restoring"


@contextlib.contextmanager
def _finishing(path: Path, uuid: str, topics: list[TopicRecord], disk: Disk, clock: Clock) -> Iterator[None]:
    """Hold the lock of the unfinished directory while the block fills it; then give it its name, durably."""
    building = building_at(path)
    try:
        with contextlib.suppress(FileExistsError):
            disk.make_root(building, like=path)
        with locked(building / ".lock", disk, clock, 0.0):
            yield
            _settle(building, topics, uuid, disk)
            _give_name(building, path, disk)
    except FileNotFoundError as error:
        raise NotFound(f"{path.parent} does not exist", hint="create that directory first") from error
    except OSError as error:
        raise _failed(path, error) from error


def _settle(path: Path, topics: list[TopicRecord], uuid: str, disk: Disk) -> None:
    """Make all of it durable, and then a log: its settings are written last."""
    with contextlib.suppress(FileExistsError):
        disk.mkdir(path / "topics")
    for topic in topics:
        disk.replace(path / "topics" / directory_of(topic.name) / TOPIC_FILE, settings.encode(topic))
    disk.sync_directory(path / "topics")
    disk.replace(path / SETTINGS_FILE, settings.encode(StoreSettings(uuid=uuid)))


def _give_name(building: Path, path: Path, disk: Disk) -> None:
    disk.unlink(building / ".lock")
    disk.sync_directory(building)
    disk.rename(building, path)  # over an empty directory, if there is one
    with contextlib.suppress(PermissionError):  # a parent that this user may pass through and not read
        disk.sync_directory(path.parent)


def _failed(path: Path, error: OSError) -> Unavailable:
    full = error.errno in FULL
    return Unavailable(
        f"{path} cannot be restored: {error.strerror or error}",
        hint="free some space, then restore again: it continues" if full else "restore again: it continues",
        code="disk_full" if full else "disk_failed",
        errno=error.errno,
    )


class LogRestore:
    """The restore of one log into `place`, whose directory is not part of a log yet."""

    def __init__(self, store: ObjectStore, place: LogDirectory, manifest: HistoryManifest, end: SegmentEnd) -> None:
        """Raise Invalid if `end` is not in the archive."""
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
        """Return the files that are needed, each for one call of `make`."""
        return [*self._whole, *([self._cut] if self._cut is not None else [])]

    def prepare(self) -> None:
        """Create the directory, and remove what an earlier restore to another end has left there."""
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
        """Build the segment of a file and its blobs, verified; they are durable except for their names."""
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
        """Make the active segment, after all others, durably; return the first offset, the end, and lost events."""
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
        """Make an empty active segment after the restored ones; return its first offset."""
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
        """Return the end of the segment that was cut, after removing the blobs that its events do not name."""
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
        """Return whether an earlier restore has finished the segment of a file; verifies all of it."""
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
    """Return the segment that a file belongs to; None if it does not belong to a finished one."""
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
