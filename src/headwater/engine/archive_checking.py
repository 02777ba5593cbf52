"""`check` over an archive: of one topic, or of all, with or without the log directory that it belongs to."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from headwater.engine.archiving import Progress, advancing
from headwater.engine.catalogue import DirectoryCatalog
from headwater.engine.checking import CheckReport
from headwater.errors import Corrupt, NotFound
from headwater.format.archive import SegmentManifest
from headwater.format.settings import TopicRecord
from headwater.limits import DEFAULTS, Limits
from headwater.storage.archive import check as log_check
from headwater.storage.archive import note
from headwater.storage.archive.archive import ArchiveStore, reaching
from headwater.storage.bucket.opening import open_store
from headwater.storage.check import Counts, Finding
from headwater.storage.disk import Clock, Disk
from headwater.storage.place import LogDirectory


def check_archive_at(
    url: str, topic: str | None = None, *, limits: Limits = DEFAULTS, progress: Progress | None = None
) -> CheckReport:
    """Verify the archive at an address; raises NotFound if there is none, Unavailable."""
    disk, clock = Disk(), Clock()
    store = open_store(url, clock=clock, disk=disk, limits=limits)
    try:
        return check_archive(ArchiveStore(store, clock), None, topic, limits, disk, progress)
    finally:
        store.close()


def is_archive(url: str) -> bool:
    """Whether an archive is at an address of an object store."""
    disk, clock = Disk(), Clock()
    store = open_store(url, clock=clock, disk=disk)
    try:
        ArchiveStore(store, clock).owner()
    except NotFound:
        return False
    finally:
        store.close()
    return True


def check_archive(
    archive: ArchiveStore,
    directory: DirectoryCatalog | None,
    name: str | None,
    limits: Limits,
    disk: Disk,
    progress: Progress | None,
) -> CheckReport:
    """Fetch and verify all that an archive holds; and that it has what the log `directory` has noted."""
    report, counts = CheckReport(), Counts()
    with tempfile.TemporaryDirectory(prefix="headwater-check-") as temporary, reaching(archive.store.url):
        meanwhile = DirectoryCatalog(Path(temporary), disk, archive.clock, limits)
        logs = list(_logs(archive, directory, meanwhile, name, report))
        advance = advancing(sum(log_check.total_bytes(manifest) for _, manifest in logs), progress)
        for place, manifest in logs:
            place.path.mkdir(parents=True)
            report.findings += log_check.check(archive.store, place, manifest, counts, advance)
    report.add(counts)
    return report


def _logs(
    archive: ArchiveStore,
    directory: DirectoryCatalog | None,
    meanwhile: DirectoryCatalog,
    name: str | None,
    report: CheckReport,
) -> Iterator[tuple[LogDirectory, SegmentManifest]]:
    """The logs of an archive that have a sound manifest, and where to put their segments meanwhile."""
    for topic in _topics(archive, name, report):
        report.topics += 1
        for partition in range(topic.partitions):
            place = meanwhile.place(topic, partition)
            report.partitions += 1
            manifest: SegmentManifest | None = None
            try:
                found = archive.manifest(topic, partition, place.uuid)
                manifest = found.record if found is not None else None
            except Corrupt as error:
                report.findings.append(_finding(topic.name, partition, error))
            if manifest is not None:
                yield place, manifest
            if directory is not None:
                report.findings += _missing(archive, directory.place(topic, partition), manifest)


def _missing(archive: ArchiveStore, local: LogDirectory, manifest: SegmentManifest | None) -> Iterator[Finding]:
    """What the log directory knows to be archived, and is not in the archive."""
    try:
        noted = note.read(local)
    except Corrupt:
        return  # the check of the directory tells
    yield from log_check.missing(local, archive.store, manifest, noted)


def _topics(archive: ArchiveStore, name: str | None, report: CheckReport) -> Iterator[TopicRecord]:
    archive.owner()
    for directory in archive.directories(name):
        try:
            yield archive.topic_in(directory)
        except Corrupt as error:
            report.findings.append(_finding(directory, -1, error))


def _finding(topic: str, partition: int, error: Corrupt) -> Finding:
    return Finding(topic, partition, str(error.path), error.position, error.size, error.message)
