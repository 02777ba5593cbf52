"""`check` of an archive: verifies every file, byte by byte, and its contents. Changes nothing.

One topic or all, with or without the log directory that the archive belongs to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headwater.directory import local_manifest
from headwater.directory.catalog import DirectoryCatalog
from headwater.directory.directory import Directory
from headwater.errors import Corrupt, NotFound
from headwater.event import UNIX_EPOCH_TICKS
from headwater.format import arrow
from headwater.format.history import ArchivedFile, HistoryFile, HistoryManifest
from headwater.format.settings import TopicRecord
from headwater.history import files
from headwater.history.files import damaged, reaching
from headwater.history.records import HistoryStore, open_history
from headwater.history.writing import KeySummary
from headwater.info import CheckReport, Counts, Finding, Progress, advancing
from headwater.limits import DEFAULTS, Limits

if TYPE_CHECKING:
    import pyarrow as pa


_ALIKE = ("topic", "partition")  # columns of one value


def check_archive_at(
    url: str, topic: str | None = None, *, limits: Limits = DEFAULTS, progress: Progress | None = None
) -> CheckReport:
    """Verify the archive at an address; raises NotFound if there is none, Unavailable."""
    with contextlib.closing(open_history(url, limits=limits)) as archive:
        return check_archive(archive, None, topic, progress)


def check_archive_of(directory: Directory, topic: str | None = None, progress: Progress | None = None) -> CheckReport:
    """Fetch and verify the archive of a directory, and check that nothing is missing there.

    Raises NotFound if the directory has no archive, Unavailable if it is out of reach.
    """
    directory.check_open()
    return check_archive(directory.archive.open(), directory.catalog, topic, progress)


def check_archive(
    archive: HistoryStore, directory: DirectoryCatalog | None, name: str | None, progress: Progress | None
) -> CheckReport:
    """Fetch and verify all of an archive, and check that it has what the log `directory` knows to be archived.

    In the report, `segments` are files, and `batches` are the pieces of them that were read.
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
                report.findings += _check_files(archive, topic, manifests, counts, advance)
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
    """Return the manifests of a topic that can be read; add a finding to the report for each of the others."""
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
    """Yield files that a log directory knows to be archived, and may have deleted, but that the archive lacks."""
    place = directory.place(topic, manifest.partition)
    known = None
    with contextlib.suppress(Corrupt):  # the check of the directory reports it
        known = local_manifest.read(place)
    for part in known.parts if known is not None else ():
        if manifest.at(part.start) != part:
            problem = (
                f"offsets {part.start} to {part.end - 1} were archived, but {archive.store.url} no longer has them"
            )
            yield Finding(place.topic, place.partition, str(place.archived), 0, 0, problem)


def _finding(topic: str, partition: int, error: Corrupt) -> Finding:
    return Finding(topic, partition, str(error.path), error.position, error.size, error.message)


def _check_files(
    archive: HistoryStore,
    topic: TopicRecord,
    manifests: list[HistoryManifest],
    counts: Counts,
    advance: Callable[[int], None],
) -> Iterator[Finding]:
    """Yield what is wrong with the files of a topic, and those that no manifest names. Counts what was read."""
    for log in manifests:
        for part in log.parts:
            yield from _check_part(archive, log, part, counts, advance)
    for each in archive.unnamed(topic):
        what = "no manifest names this object: an archiver is running, or was stopped before it finished"
        yield Finding(topic.name, each.partition, f"{archive.store.url}/{each.key}", 0, 0, what, damage=False)


def _check_part(
    archive: HistoryStore, log: HistoryManifest, part: HistoryFile, counts: Counts, advance: Callable[[int], None]
) -> Iterator[Finding]:
    store = archive.store
    summary: KeySummary | None = KeySummary()
    for file in part.files:
        where = files.where_is(store, log, file)
        try:
            with files.fetched(store, log, file, advance) as path:
                _check_file(path, log, part, file, where, summary, counts)
        except Corrupt as error:
            summary = None  # of a damaged file, it is not what the index must list
            size = error.facts.get("size", file.bytes)
            problem = error.facts.get("reason", error.message)
            yield Finding(log.topic, log.partition, where, error.facts.get("position", 0), size, problem)
        counts.bytes += file.bytes
    counts.segments += 1
    counts.events += part.rows
    where = files.where_is(store, log, part.file)
    for lo, hi in part.lost:
        counts.lost += hi - lo
        problem = f"offsets {lo} to {hi - 1} were lost before they were archived: repair removed them"
        yield Finding(log.topic, log.partition, where, 0, 0, problem, damage=False)


def _check_file(
    path: Path,
    log: HistoryManifest,
    part: HistoryFile,
    file: ArchivedFile,
    where: str,
    summary: KeySummary | None,
    counts: Counts,
) -> None:
    """Raise Corrupt unless a file, whose bytes are those that were archived, holds what its manifest says."""
    if summary is None:
        return
    if file is part.file:
        _check_rows(path, log, part, where, summary, counts)
    elif file is part.index and path.read_bytes() != summary.index(part.start, part.end, part.first_ticks).encode():
        raise damaged("it does not match the keys and types of its file", where, file.bytes)


def _check_rows(
    path: Path, log: HistoryManifest, part: HistoryFile, where: str, summary: KeySummary, counts: Counts
) -> None:
    """Raise Corrupt unless a Parquet file has the events that its manifest says, in order."""
    offset, ticks, first = part.start - 1, part.previous_ticks, 0
    beside = {blob.offset for blob in part.blobs}
    for rows in files.rows(path, part, where):
        counts.batches += 1
        summary.add(rows)
        offsets, all_ticks = (np.asarray(rows.column(name)) for name in ("offset", "ticks"))
        problem = _problem(rows, log, offsets, all_ticks, beside)
        if offsets[0] <= offset or (np.diff(offsets) <= 0).any() or offsets[-1] >= part.end:
            problem = "its offsets are out of order, or not those in its manifest"
        elif all_ticks[0] <= ticks or (np.diff(all_ticks) <= 0).any():
            problem = "its ticks do not increase"
        elif any(((offsets >= lo) & (offsets < hi)).any() for lo, hi in part.lost):
            problem = "it has events that its manifest says are lost"
        if problem:
            raise damaged(problem, where, part.file.bytes)
        first = first or int(all_ticks[0])
        offset, ticks = int(offsets[-1]), int(all_ticks[-1])
    if part.rows and (first, ticks) != (part.first_ticks, part.last_ticks):
        raise damaged("its first and last event differ from its manifest", where, part.file.bytes)


def _problem(rows: pa.RecordBatch, log: HistoryManifest, offsets: Any, ticks: Any, beside: set[int]) -> str:
    """Return what is wrong with rows, each by itself; empty if nothing is."""
    times = np.asarray(rows.column("time").view(arrow.pyarrow().int64()))
    if not (times == (ticks - UNIX_EPOCH_TICKS) // 10).all():
        return "its times do not match its ticks"
    own = {"topic": log.topic, "partition": log.partition}
    if any(rows.column(name).unique().to_pylist() != [own[name]] for name in _ALIKE):
        return "it has rows of another log"
    missing = offsets[~np.asarray(rows.column("data").is_valid())].tolist()
    return "" if beside.issuperset(missing) else "it has events without data"
