"""`restore`: a new log directory from an archive.

It is built beside its place, under a hidden name, and renamed when all of it is durable: an unfinished one never looks
like a log. Called again, it goes on with what is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from stat import S_ISDIR

from headwater.directory.catalog import SETTINGS_FILE, TOPIC_FILE, DirectoryCatalog
from headwater.directory.failures import FULL
from headwater.disk.disk import Clock, Disk
from headwater.disk.lockfile import locked
from headwater.errors import Invalid, NotFound, Unavailable
from headwater.event import ticks_of
from headwater.format import settings
from headwater.format.names import directory_of
from headwater.format.settings import LogSettings as StoreSettings
from headwater.format.settings import TopicRecord
from headwater.history.records import HistoryStore, open_history
from headwater.history.restore import LogRestore
from headwater.history.segments import SegmentEnd
from headwater.history.transfer import reaching
from headwater.info import RestoreResult
from headwater.limits import DEFAULTS, Limits
from headwater.log.check_report import Progress, advancing


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
    """Make a new log directory of what an archive holds: the same topics, offsets, times and ids; returns its logs.

    `to` ends it before an offset of a topic (and of one partition, if it has several: the others come whole), or, in
    every log, before the first event of that time or later. Raises Invalid if `path` is there already, NotFound for
    what is not in the archive, Corrupt for damage, Unavailable. Nothing is at `path` before all of it is durable.
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
        if name not in names:  # of an earlier try, which wanted something else
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
    """Return where partition `number` of a topic ends. Raises Invalid if that is unclear, NotFound for a wrong one."""
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
    """Raise Invalid if something is there."""
    there = disk.inode(path) is not None
    if there and (disk.entries(path) or not S_ISDIR(disk.status(path).st_mode)):
        raise Invalid(f"{path} already exists", hint="use a new or empty directory", code="not_empty")


def building_at(path: Path) -> Path:
    """Where a directory is built."""
    return path.parent / f".{path.name}.restoring"


@contextlib.contextmanager
def _finishing(path: Path, uuid: str, topics: list[TopicRecord], disk: Disk, clock: Clock) -> Iterator[None]:
    """Build the directory in the block, by nobody else meanwhile; behind it, it gets its name, durably."""
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
    """Make all of it durable, and a log: what says so comes last."""
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
