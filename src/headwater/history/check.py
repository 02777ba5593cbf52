"""Verifying what an archive holds of one topic: every object, byte by byte, and what is in it. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headwater.directory.log_directory import LogDirectory
from headwater.errors import Corrupt
from headwater.event import UNIX_EPOCH_TICKS
from headwater.format import arrow
from headwater.format.history import ArchivedFile, HistoryFile, HistoryManifest
from headwater.format.settings import TopicRecord
from headwater.history import files
from headwater.history.records import HistoryStore
from headwater.history.transfer import damaged
from headwater.history.writing import KeySummary
from headwater.log.check_report import Counts, Finding

if TYPE_CHECKING:
    import pyarrow as pa

_ALIKE = ("topic", "partition")  # columns of one value


def check(
    archive: HistoryStore,
    topic: TopicRecord,
    manifests: list[HistoryManifest],
    counts: Counts,
    advance: Callable[[int], None],
) -> Iterator[Finding]:
    """Yield what is wrong with the files of a topic, and which of them no manifest names. Counts what was read."""
    for log in manifests:
        for part in log.parts:
            yield from _check_part(archive, log, part, counts, advance)
    for each in archive.unnamed(topic):
        what = "no manifest names this object: an archiver is running, or was stopped before it finished"
        yield Finding(topic.name, each.partition, f"{archive.store.url}/{each.key}", 0, 0, what, damage=False)


def missing(
    place: LogDirectory, archive: HistoryStore, manifest: HistoryManifest, known: HistoryManifest | None
) -> Iterator[Finding]:
    """Yield what a log directory knows to be in its archive, and is not: it may have dropped that."""
    for part in known.parts if known is not None else ():
        if manifest.at(part.start) != part:
            problem = (
                f"offsets {part.start} to {part.end - 1} were archived, but {archive.store.url} no longer has them"
            )
            yield Finding(place.topic, place.partition, str(place.archived), 0, 0, problem)


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
