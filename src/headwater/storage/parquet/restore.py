"""Bringing back one log from an archive of Parquet files: the same offsets, times, ids and contents.

Rows become batches, which are appended as a replica appends those of its source. What was appended before an
interruption is kept: it goes on behind that. Offsets without a row were lost before they were archived, and stay so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headwater.errors import Corrupt, Invalid
from headwater.event import Content
from headwater.format import arrow
from headwater.format.batch import BLOB, Batch, decode, encode, encode_lost, encode_one
from headwater.format.column import I64
from headwater.format.parquet import ParquetFile, ParquetManifest
from headwater.limits import BLOB_CHUNK_BYTES
from headwater.storage.archive.restore import RestoreEnd
from headwater.storage.blobs import BlobSpool
from headwater.storage.bucket.store import ObjectStore
from headwater.storage.log import LocalLog
from headwater.storage.parquet import reading
from headwater.storage.place import LogDirectory
from headwater.storage.sealer import seal_all

if TYPE_CHECKING:
    import pyarrow as pa

TAKE_BYTES = 8 * 1024 * 1024  # of batches that are appended with one sync
_STORED = ["data", "key", "type", "meta"]


class _ContentRun(NamedTuple):
    """Rows of one content, with their places."""

    content: Content
    offsets: I64
    ticks: I64
    rows: pa.RecordBatch


class ParquetRestore:
    """One log that is being restored, of a directory that is not a log yet. For one thread."""

    def __init__(self, store: ObjectStore, manifest: ParquetManifest, bound: RestoreEnd) -> None:
        """Raises Invalid if the archive does not reach as far as the bound."""
        start, end = max(manifest.start, 0), max(manifest.end, 0)
        if bound.offset is not None and not start <= bound.offset <= end:
            raise Invalid(
                f"topic {manifest.topic!r}, partition {manifest.partition}: the archive has the offsets from {start} to"
                f" before {end}, so it cannot end at {bound.offset}",
                hint="leave it out to restore all that is archived",
                code="not_archived",
                start=start,
                end=end,
            )
        self.manifest = manifest
        self._store = store
        self._bound = bound

    @property
    def start(self) -> int:
        """Where the log begins."""
        return max(self.manifest.start, 0)

    @property
    def parts(self) -> list[ParquetFile]:
        """The files that are needed."""
        offset, ticks = self._bound
        return [
            part
            for part in self.manifest.parts
            if (offset is None or part.start < offset) and (ticks is None or not part.rows or part.first_ticks < ticks)
        ]

    def too_far(self, end: int, last_ticks: int) -> bool:
        """Whether a log that ends so, behind an event with these ticks, has more than is wanted."""
        offset, ticks = self._bound
        return (offset is not None and end > offset) or (ticks is not None and last_ticks >= ticks)

    def run(self, place: LogDirectory, advance: Callable[[int], None]) -> tuple[int, int]:
        """Append what is not there yet, durably, and seal it; returns where the log begins and ends."""
        log = LocalLog(place, lambda _: None)
        try:
            appender = _Appender(log)
            for part in self.parts:
                if part.end <= appender.end:
                    advance(part.bytes)
                elif not self._append(appender, part, advance):
                    break
            appender.flush()
            seal_all(place)
            return log.start(), log.end()
        finally:
            log.close()

    def _append(self, appender: _Appender, part: ParquetFile, advance: Callable[[int], None]) -> bool:
        """Append the rows of one file; False if the rest of the archive is behind the bound."""
        store, manifest = self._store, self.manifest
        where = reading.where_is(store, manifest, part)
        with reading.fetched(store, manifest.topic, part.file, appender.place.disk, advance) as path:
            for rows in reading.rows(path, part, where):
                for run in _runs(rows, where):
                    kept = self._kept(run)
                    self._take(appender, part, kept)
                    if len(kept.offsets) < len(run.offsets):
                        return False
        if self._bound.ticks is None:
            appender.fill(part.end if self._bound.offset is None else min(part.end, self._bound.offset))
        return True

    def _kept(self, run: _ContentRun) -> _ContentRun:
        """The rows of a run that are before the bound."""
        offset, ticks = self._bound
        hi = len(run.offsets)
        if offset is not None:
            hi = min(hi, int(np.searchsorted(run.offsets, offset)))
        if ticks is not None:
            hi = min(hi, int(np.searchsorted(run.ticks, ticks)))
        return _cut(run, 0, hi)

    def _take(self, appender: _Appender, part: ParquetFile, run: _ContentRun) -> None:
        """Append rows, behind those that an earlier try has appended: as batches up to a gap, and huge events alone."""
        run = _cut(run, int(np.searchsorted(run.offsets, appender.end)), len(run.offsets))
        if not len(run.offsets):
            return
        limits, lengths = appender.place.limits, _lengths(run.rows)
        huge = (lengths > limits.blob_bytes_min) | ~np.asarray(run.rows.column("data").is_valid())
        full = np.diff(np.cumsum(lengths) // limits.pack_bytes, prepend=0) > 0
        begins = huge | full | (np.diff(run.offsets, prepend=-2) != 1)
        begins[1:] |= huge[:-1]
        starts = np.flatnonzero(begins).tolist()
        for lo, hi in zip(starts, [*starts[1:], len(lengths)], strict=True):
            some = _cut(run, lo, hi)
            appender.fill(int(some.offsets[0]))
            if huge[lo]:
                self._take_huge(appender, part, some)
            else:
                appender.add(_batch(some, zstd=appender.place.zstd))

    def _take_huge(self, appender: _Appender, part: ParquetFile, run: _ContentRun) -> None:
        (row,) = run.rows.to_pylist()
        offset, ticks = int(run.offsets[0]), int(run.ticks[0])
        spool = BlobSpool(appender.place)
        try:
            for piece in [row["data"]] if row["data"] is not None else self._beside(part, offset, appender.place):
                spool.write(piece)
            spool.finish()
            meta = None if row["meta"] is None else row["meta"].encode()
            values = row["type"].encode(), row["key"], meta
            stored = encode_one(offset, ticks, run.content, spool.reference, *values, flags=BLOB)
            appender.add(_decoded(stored))
            appender.flush({offset: spool.path})
        finally:
            spool.close()

    def _beside(self, part: ParquetFile, offset: int, place: LogDirectory) -> Iterator[bytes]:
        """The data of an event that is too large for a column."""
        found = next((blob.file for blob in part.blobs if blob.offset == offset), None)
        if found is None:
            where = reading.where_is(self._store, self.manifest, part)
            raise reading.damaged(f"the event at offset {offset} has no data", where, part.file.bytes)
        with reading.fetched(self._store, self.manifest.topic, found, place.disk) as path, path.open("rb") as file:
            while piece := file.read(BLOB_CHUNK_BYTES):
                yield piece


class _Appender:
    """Appends batches to a log, several with one sync. `end` is where it ends with those that wait."""

    def __init__(self, log: LocalLog) -> None:
        self.place = log.place
        self.end = log.end()
        self._last_ticks = log.state().last_ticks
        self._log = log
        self._waiting: list[Batch] = []
        self._bytes = 0

    def add(self, batch: Batch) -> None:
        """Append a batch, soon."""
        self._waiting.append(batch)
        self._bytes += batch.size
        self.end, self._last_ticks = batch.end_offset, batch.last_ticks
        if self._bytes >= TAKE_BYTES and not batch.flags & BLOB:
            self.flush()

    def fill(self, offset: int) -> None:
        """Have the log end at an offset: what is missing before it was lost in the log that was archived.

        Whatever follows has later ticks than these: the lost events were between the same neighbours.
        """
        if self.end > offset:
            raise Corrupt(f"{self.place}: the archive has offset {offset} twice")
        if self.end < offset:
            self.add(_decoded(encode_lost(self.end, self._last_ticks + 1, offset - self.end)))

    def flush(self, spooled: Mapping[int, Path] = MappingProxyType({})) -> None:
        """Have all of them in the log, durably."""
        if self._waiting:
            self._log.take(self._waiting, spooled)
        self._waiting, self._bytes = [], 0


def _runs(rows: pa.RecordBatch, where: str) -> Iterator[_ContentRun]:
    """Rows of the same content together, which is how batches have them."""
    contents = rows.column("content").dictionary_encode()
    codes = np.asarray(contents.indices)
    names: list[Any] = contents.dictionary.to_pylist()
    offsets, ticks = (np.asarray(rows.column(name)) for name in ("offset", "ticks"))
    if (np.diff(offsets) <= 0).any() or (np.diff(ticks) <= 0).any():
        raise reading.damaged("its rows are not in the order of their offsets", where, 0)
    stored = rows.select(_STORED)
    starts = np.flatnonzero(np.diff(codes, prepend=-1)).tolist()
    for lo, hi in zip(starts, [*starts[1:], len(codes)], strict=True):
        yield _ContentRun(names[codes[lo]], offsets[lo:hi], ticks[lo:hi], stored.slice(lo, hi - lo))


def _cut(run: _ContentRun, lo: int, hi: int) -> _ContentRun:
    return _ContentRun(run.content, run.offsets[lo:hi], run.ticks[lo:hi], run.rows.slice(lo, hi - lo))


def _lengths(rows: pa.RecordBatch) -> I64:
    """How long the data of each row is; 0 where it is beside."""
    compute = arrow.pyarrow().compute
    return np.asarray(compute.binary_length(rows.column("data")).fill_null(0)).astype(np.int64)


def _batch(run: _ContentRun, *, zstd: bool) -> Batch:
    content, columns = arrow.columns_of(run.rows, run.content)
    places = int(run.offsets[0]), int(run.ticks[0]), len(run.offsets)
    return _decoded(encode(*places, content, columns, ticks=run.ticks, zstd=zstd))


def _decoded(stored: bytes) -> Batch:
    return decode(memoryview(stored), 0, len(stored))
