"""Verifying an archive of Parquet files: each file whole, in order, and what its manifest says. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headwater.errors import Corrupt
from headwater.event import UNIX_EPOCH_TICKS
from headwater.format import arrow
from headwater.format import parquet as format
from headwater.format.parquet import ParquetFile, ParquetManifest
from headwater.format.settings import TopicRecord
from headwater.storage.check import Counts, Finding
from headwater.storage.disk import Disk
from headwater.storage.parquet import reading
from headwater.storage.parquet.archive import ParquetStore

if TYPE_CHECKING:
    import pyarrow as pa

_ALIKE = ("topic", "partition")  # columns of one value


def check(
    archive: ParquetStore,
    topic: TopicRecord,
    manifests: list[ParquetManifest],
    counts: Counts,
    advance: Callable[[int], None],
) -> Iterator[Finding]:
    """What is wrong with the files of a topic, and which of them no manifest names. What was looked at is counted."""
    for log in manifests:
        for part in log.parts:
            yield from _check_part(archive, log, part, counts, advance)
    for each in archive.unnamed(topic):
        what = "no manifest names it: it was left by one who was killed, or is being archived"
        yield Finding(topic.name, each.partition, f"{archive.store.url}/{each.key}", 0, 0, what, damage=False)


def _check_part(
    archive: ParquetStore, log: ParquetManifest, part: ParquetFile, counts: Counts, advance: Callable[[int], None]
) -> Iterator[Finding]:
    disk, store = Disk(), archive.store
    for file in part.files:
        where = f"{store.url}/{format.file_key(log.topic, file)}"
        try:
            with reading.fetched(store, log.topic, file, disk, advance) as path:
                if file is part.file:
                    _check_rows(path, log, part, where, counts)
        except Corrupt as error:
            size = error.facts.get("size", file.bytes)
            problem = error.facts.get("reason", error.message)
            yield Finding(log.topic, log.partition, where, error.facts.get("position", 0), size, problem)
        counts.bytes += file.bytes
    counts.segments += 1
    counts.events += part.rows
    lost = part.end - part.start - part.rows
    counts.lost += lost
    if lost:
        problem = f"{lost} of the offsets {part.start} to {part.end - 1} were lost before they were archived"
        where = f"{store.url}/{format.file_key(log.topic, part.file)}"
        yield Finding(log.topic, log.partition, where, 0, 0, problem, damage=False)


def _check_rows(path: Path, log: ParquetManifest, part: ParquetFile, where: str, counts: Counts) -> None:
    """Raise Corrupt unless a file has the events that its manifest says, in order."""
    offset, ticks, first = part.start - 1, 0, 0
    beside = {blob.offset for blob in part.blobs}
    for rows in reading.rows(path, part, where):
        counts.batches += 1
        offsets, all_ticks = (np.asarray(rows.column(name)) for name in ("offset", "ticks"))
        problem = _problem(rows, log, offsets, all_ticks, beside)
        if offsets[0] <= offset or (np.diff(offsets) <= 0).any() or offsets[-1] >= part.end:
            problem = "its offsets are not in order, or not those that it should have"
        elif all_ticks[0] <= ticks or (np.diff(all_ticks) <= 0).any():
            problem = "its ticks do not grow"
        if problem:
            raise reading.damaged(problem, where, part.file.bytes)
        first = first or int(all_ticks[0])
        offset, ticks = int(offsets[-1]), int(all_ticks[-1])
    if (first, ticks) != (part.first_ticks, part.last_ticks):
        raise reading.damaged("its first and last event are not those of its manifest", where, part.file.bytes)


def _problem(rows: pa.RecordBatch, log: ParquetManifest, offsets: Any, ticks: Any, beside: set[int]) -> str:
    """What is wrong with rows, each by itself; empty if nothing is."""
    times = np.asarray(rows.column("time").view(arrow.pyarrow().int64()))
    if not (times == (ticks - UNIX_EPOCH_TICKS) // 10).all():
        return "its times are not those of its ticks"
    own = {"topic": log.topic, "partition": log.partition}
    if any(rows.column(name).unique().to_pylist() != [own[name]] for name in _ALIKE):
        return "it has rows of another log"
    missing = offsets[~np.asarray(rows.column("data").is_valid())].tolist()
    return "" if beside.issuperset(missing) else "it has events without data"
