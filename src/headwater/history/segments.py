"""Turning a Parquet file of an archive back into a segment: the same offsets, ticks, ids and contents.

Rows become batches of about the size that sealing makes. An offset without a row was lost before it was archived, and
stays so. Readers use such a segment from the cache, `restore` makes a log of them. For one thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from headwater.bucket.object_store import ObjectStore
from headwater.directory.blobs import BlobSpool
from headwater.directory.log_directory import LogDirectory
from headwater.directory.sealer import build_index
from headwater.directory.segment import SegmentFile
from headwater.event import Content
from headwater.format import arrow
from headwater.format.batch import BLOB, encode, encode_blob_reference, encode_lost, encode_one
from headwater.format.column import I64
from headwater.format.history import HistoryFile, HistoryManifest
from headwater.format.names import file_of
from headwater.format.segment import HEADER_BYTES, SegmentHeader
from headwater.history import files
from headwater.history.files import damaged
from headwater.limits import DATA_BYTES_CEILING

if TYPE_CHECKING:
    import pyarrow as pa

_STORED = ["data", "key", "type", "meta"]


class SegmentEnd(NamedTuple):
    """Where to end: before this offset, or before the first event with these ticks. Neither: at the end."""

    offset: int | None = None
    ticks: int | None = None

    def has_all(self, part: HistoryFile) -> bool:
        """Tell whether all of a file is before it."""
        return (self.offset is None or part.end <= self.offset) and (self.ticks is None or part.end_ticks < self.ticks)

    def has_none(self, part: HistoryFile) -> bool:
        """Tell whether nothing of a file is before it."""
        first = part.first_ticks or part.end_ticks
        return (self.offset is not None and part.start >= self.offset) or (
            self.ticks is not None and first >= self.ticks
        )

    def rows(self, run: ContentRun) -> int:
        """Return how many rows of a run are before it."""
        rows = len(run.offsets)
        if self.offset is not None:
            rows = min(rows, int(np.searchsorted(run.offsets, self.offset)))
        if self.ticks is not None:
            rows = min(rows, int(np.searchsorted(run.ticks, self.ticks)))
        return rows


ALL = SegmentEnd()


class ContentRun(NamedTuple):
    """Rows of one content, with their offsets and ticks."""

    content: Content
    offsets: I64
    ticks: I64
    rows: pa.RecordBatch

    def part(self, lo: int, hi: int) -> ContentRun:
        return ContentRun(self.content, self.offsets[lo:hi], self.ticks[lo:hi], self.rows.slice(lo, hi - lo))


def write_segment(
    store: ObjectStore,
    log: HistoryManifest,
    part: HistoryFile,
    place: LogDirectory,
    end: SegmentEnd = ALL,
    advance: Callable[[int], None] = lambda _: None,
) -> int:
    """Fetch a file, verified, and write its events as a segment, and huge ones as blobs; returns where they end.

    The segment gets its name last, when all of it is durable but for the names. A whole one is finished, and has its
    index; one that is cut short at `end` can be appended to. Data that is beside the file is not fetched.
    """
    limits = msgspec.structs.replace(place.limits, data_bytes_max=DATA_BYTES_CEILING)  # the archived log has decided
    writer = _SegmentWriter(msgspec.structs.replace(place, limits=limits), store, log, part)
    whole = end.has_all(part)
    file_id = int.from_bytes(place.clock.random_bytes(4), "little")
    begun = place.clock.ticks()
    header = SegmentHeader(file_id, place.uuid, part.start, part.previous_ticks, begun, packed=whole)
    with files.fetched(store, log, part.file, advance) as path, place.disk.replacing(place.segment(part.start)) as fd:
        place.disk.write(fd, header.encode(), 0)
        position = HEADER_BYTES
        for batch in writer.batches(path, end):
            place.disk.write(fd, batch, position)
            position += len(batch)
    if whole:
        with contextlib.closing(SegmentFile(place, part.start)) as segment:
            place.disk.replace(place.index(part.start), build_index(segment).encode(), sync=False)
    return writer.next


class _SegmentWriter:
    """The batches of one segment, from the rows of a file."""

    def __init__(self, place: LogDirectory, store: ObjectStore, log: HistoryManifest, part: HistoryFile) -> None:
        self.next = part.start
        self._ticks = part.previous_ticks
        self._place = place
        self._part = part
        self._where = files.where_is(store, log, part.file)

    def batches(self, path: Path, end: SegmentEnd) -> Iterator[bytes]:
        """Yield the batches up to `end`."""
        for rows in files.rows(path, self._part, self._where):
            for run in self._runs(rows):
                kept = end.rows(run)
                if kept:
                    yield from self._encoded(run.part(0, kept))
                if kept < len(run.offsets):
                    if end.offset is not None:
                        yield from self._lost(end.offset)
                    return
        if end.ticks is None or end.has_all(self._part):
            yield from self._lost(self._part.end if end.offset is None else min(self._part.end, end.offset))

    def _runs(self, rows: pa.RecordBatch) -> Iterator[ContentRun]:
        """Yield rows of the same content together, which is how batches have them."""
        contents = rows.column("content").dictionary_encode()
        codes = np.asarray(contents.indices)
        names: list[Any] = contents.dictionary.to_pylist()
        offsets, ticks = (np.asarray(rows.column(name)) for name in ("offset", "ticks"))
        if (np.diff(offsets) <= 0).any() or (np.diff(ticks) <= 0).any() or offsets[0] < self.next:
            raise self._damaged("its rows are not in the order of their offsets")
        stored = rows.select(_STORED)
        starts = np.flatnonzero(np.diff(codes, prepend=-1)).tolist()
        for lo, hi in zip(starts, [*starts[1:], len(codes)], strict=True):
            yield ContentRun(names[codes[lo]], offsets[lo:hi], ticks[lo:hi], stored.slice(lo, hi - lo))

    def _encoded(self, run: ContentRun) -> Iterator[bytes]:
        """Yield the batches of a run, cut at gaps; a huge event is alone."""
        limits, lengths = self._place.limits, _lengths(run.rows)
        huge = (lengths > limits.blob_bytes_min) | ~np.asarray(run.rows.column("data").is_valid())
        full = np.diff(np.cumsum(lengths) // limits.pack_bytes, prepend=0) > 0
        begins = huge | full | (np.diff(run.offsets, prepend=-2) != 1)
        begins[1:] |= huge[:-1]
        starts = np.flatnonzero(begins).tolist()
        for lo, hi in zip(starts, [*starts[1:], len(lengths)], strict=True):
            some = run.part(lo, hi)
            yield from self._lost(int(some.offsets[0]))
            yield self._huge(some) if huge[lo] else self._batch(some)
            self.next, self._ticks = int(some.offsets[-1]) + 1, int(some.ticks[-1])

    def _batch(self, run: ContentRun) -> bytes:
        content, columns = arrow.columns_of(run.rows, run.content)
        first = int(run.offsets[0]), int(run.ticks[0])
        return encode(*first, len(run.offsets), content, columns, ticks=run.ticks, zstd=self._place.zstd)

    def _huge(self, run: ContentRun) -> bytes:
        """Return the batch of a huge event, whose data is put into a blob file here, or is one in the archive."""
        (row,) = run.rows.to_pylist()
        offset = int(run.offsets[0])
        reference = self._spooled(offset, row["data"]) if row["data"] is not None else self._beside(offset)
        meta = None if row["meta"] is None else row["meta"].encode()
        values = reference, row["type"].encode(), row["key"], meta
        return encode_one(offset, int(run.ticks[0]), run.content, *values, flags=BLOB)

    def _spooled(self, offset: int, data: bytes) -> bytes:
        place, disk = self._place, self._place.disk
        blobs = place.blobs(self._part.start)
        spool = BlobSpool(place)
        try:
            spool.write(data)
            spool.finish()
            with contextlib.suppress(FileExistsError):
                disk.mkdir(blobs)
            disk.rename(spool.path, blobs / file_of(offset, "blob"))
        finally:
            spool.close()
        return spool.reference

    def _beside(self, offset: int) -> bytes:
        found = next((blob for blob in self._part.blobs if blob.offset == offset), None)
        if found is None:
            raise self._damaged(f"the event at offset {offset} has no data")
        return encode_blob_reference(*found.reference)

    def _lost(self, offset: int) -> Iterator[bytes]:
        """Yield what stands for lost events up to an offset: they were between the same neighbours."""
        if self.next < offset:
            yield encode_lost(self.next, self._ticks + 1, offset - self.next)
            self._ticks += offset - self.next
            self.next = offset

    def _damaged(self, problem: str) -> Exception:
        return damaged(problem, self._where, self._part.file.bytes)


def _lengths(rows: pa.RecordBatch) -> I64:
    """Return the length of each row's data; 0 where it is kept beside the file."""
    compute = arrow.pyarrow().compute
    return np.asarray(compute.binary_length(rows.column("data")).fill_null(0)).astype(np.int64)
