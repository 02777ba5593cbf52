"""`check` over an archive: of one topic, or of all, with or without the log directory that it belongs to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from headwater.directory import local_manifest
from headwater.directory.catalog import DirectoryCatalog
from headwater.directory.directory import Directory
from headwater.errors import Corrupt, NotFound
from headwater.format.history import HistoryManifest
from headwater.format.settings import TopicRecord
from headwater.history import check as history_check
from headwater.history.records import HistoryStore, open_history
from headwater.history.transfer import reaching
from headwater.limits import DEFAULTS, Limits
from headwater.log.check_report import CheckReport, Counts, Finding, Progress, advancing


def check_archive_at(
    url: str, topic: str | None = None, *, limits: Limits = DEFAULTS, progress: Progress | None = None
) -> CheckReport:
    """Verify the archive at an address; raises NotFound if there is none, Unavailable."""
    with contextlib.closing(open_history(url, limits=limits)) as archive:
        return check_archive(archive, None, topic, progress)


def check_archive_of(directory: Directory, topic: str | None = None, progress: Progress | None = None) -> CheckReport:
    """Verify what the archive of a directory holds, by fetching all of it; and that nothing is missing there.

    Raises NotFound if the directory has no archive, Unavailable if it is out of reach.
    """
    directory.check_open()
    return check_archive(directory.archive.open(), directory.catalog, topic, progress)


def check_archive(
    archive: HistoryStore, directory: DirectoryCatalog | None, name: str | None, progress: Progress | None
) -> CheckReport:
    """Fetch and verify all that an archive holds; and that it has what the log `directory` knows to be archived.

    In the report, `segments` are files, and `batches` what of them was read at a time.
    """
    report, counts = CheckReport(), Counts()
    with reaching(archive.store.url):
        archive.owner()
        logs = [(topic, _manifests(archive, topic, report)) for topic in _topics(archive, name, report)]
        total = sum(part.bytes for _, manifests in logs for each in manifests for part in each.parts)
        advance = advancing(total, progress)
        for topic, manifests in logs:
            report.topics += 1
            report.partitions += topic.partitions
            if len(manifests) == topic.partitions:
                report.findings += history_check.check(archive, topic, manifests, counts, advance)
            for manifest in manifests if directory is not None else ():
                assert directory is not None
                report.findings += _missing(archive, directory, topic, manifest)
    report.add(counts)
    return report


def _topics(archive: HistoryStore, name: str | None, report: CheckReport) -> Iterator[TopicRecord]:
    for key in archive.topic_keys(name):
        try:
            topic = archive.topic_at(key)
        except Corrupt as error:
            report.findings.append(_finding(key.split("/")[1], -1, error))
            continue
        if topic is not None:
            yield topic
        elif name is not None:
            raise NotFound(f"the archive {archive.store.url} has no topic {name!r}", code="topic_not_found")


def _manifests(archive: HistoryStore, topic: TopicRecord, report: CheckReport) -> list[HistoryManifest]:
    """The manifests of a topic that can be read; what is wrong with the others goes into the report."""
    found: list[HistoryManifest] = []
    for partition in range(topic.partitions):
        try:
            found.append(archive.manifest(topic, partition))
        except Corrupt as error:
            report.findings.append(_finding(topic.name, partition, error))
    return found


def _missing(
    archive: HistoryStore, directory: DirectoryCatalog, topic: TopicRecord, manifest: HistoryManifest
) -> Iterator[Finding]:
    place = directory.place(topic, manifest.partition)
    with contextlib.suppress(Corrupt):  # the check of the directory finds it
        yield from history_check.missing(place, archive, manifest, local_manifest.read(place))


def _finding(topic: str, partition: int, error: Corrupt) -> Finding:
    return Finding(topic, partition, str(error.path), error.position, error.size, error.message)
