"""Writing files of an archive from the batches of a log: written, read back and compared, then put into the store.

Every batch is verified as a whole before its events are written. A row group is held in memory, and the file is made
in a temporary directory of the machine. What was written is then decoded again, and must equal what went in: retention
deletes events because they are archived. The index object beside a file holds the hashes of its keys and its types.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from crc32c import crc32c

from headwater.bucket.object_store import ObjectStore
from headwater.disk.disk import Disk
from headwater.errors import Conflict, Corrupt
from headwater.event import Blob
from headwater.format import arrow, events
from headwater.format import history as format
from headwater.format import segment as blob_format
from headwater.format.batch import BLOB, LOST
from headwater.format.events import EventBatch
from headwater.format.hashes import U32, key_hashes
from headwater.format.history import COLUMNS, ArchivedBlob, ArchivedFile, HistoryFile, HistoryManifest
from headwater.format.index import Index
from headwater.format.losses import Ranges
from headwater.history.files import parquet, pieces_of, upload
from headwater.limits import BLOB_CHUNK_BYTES, COLUMN_DATA_BYTES_MAX, MIB

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_BYTES = 64 * MIB  # of Arrow: what a writer holds, and what a reader may skip by its statistics
ROW_GROUP_ROWS = 1_000_000
FILE_BYTES = 256 * MIB  # of events: a segment that has more, as with huge events, becomes several files

_PLAIN = ("data", "meta")
_DELTAS = {"offset": "DELTA_BINARY_PACKED", "ticks": "DELTA_BINARY_PACKED", "time": "DELTA_BINARY_PACKED"}
_ENCODINGS = {**_DELTAS, "id": "DELTA_BYTE_ARRAY"}

Pause = Callable[[], None]


def write_files(
    store: ObjectStore,
    log: HistoryManifest,
    bounds: tuple[int, int],
    batches: Iterable[EventBatch],
    ticks: tuple[int, int | None],
    producers: bytes | None = None,
    pause: Pause = lambda: None,
) -> list[HistoryFile]:
    """Put the files of the events from one offset to before another, durably; returns what they hold.

    They are in the archive when a manifest names them. `ticks` are those that the log had reached before and after,
    None if that is not known. Raises Corrupt for a damaged batch, and if a file does not read as it was written; that
    file is not put then. `pause` is called between pieces of work, and may raise to stop.
    """
    start, end = bounds
    done: list[HistoryFile] = []
    with tempfile.TemporaryDirectory(prefix="headwater-history-") as temporary:
        path = Path(temporary) / "part.parquet"
        writer = _FileWriter(path, store, log, start, ticks[0], pause)
        try:
            for batch in batches:
                pause()
                first = batch.end_offset - len(batch)
                if not start <= first < batch.end_offset <= end:
                    raise Corrupt(f"{writer}: the log returned offsets outside {start} to {end}")
                if writer.full and not batch.piece.batch.flags & LOST:
                    done.append(writer.finish(first, None, None))
                    writer = _FileWriter(path, store, log, first, done[-1].end_ticks, pause)
                writer.add(batch)
            done.append(writer.finish(end, ticks[1], producers))
        finally:
            writer.discard()
    return done


class _FileWriter:
    """A Parquet file that grows by row groups, each with a fingerprint of what went into it."""

    def __init__(
        self, path: Path, store: ObjectStore, log: HistoryManifest, start: int, previous_ticks: int, pause: Pause
    ) -> None:
        self._start = self._next = start
        self._previous_ticks = self._reached = previous_ticks
        self._rows = self._first_ticks = self._last_ticks = self._log_bytes = self._file_bytes = 0
        self._blobs: list[ArchivedBlob] = []
        self._lost: Ranges = []
        self._summary = KeySummary()
        self._path = path
        self._store = store
        self._log = log
        self._pause = pause
        self._disk = Disk()
        self._gathered: list[EventBatch] = []
        self._events = self._bytes = 0
        self._fingerprints: list[int] = []
        self._writer = parquet().ParquetWriter(path, format.schema(), **_settings())

    def __str__(self) -> str:
        return f"topic {self._log.topic!r}, partition {self._log.partition}"

    @property
    def full(self) -> bool:
        """Tell whether the next events go into another file."""
        return self._file_bytes >= FILE_BYTES

    def add(self, batch: EventBatch) -> None:
        """Take the next events, verified."""
        stored = batch.piece.batch
        stored.validate()
        if stored.flags & LOST:
            self._reached = max(self._reached, stored.last_ticks)
            return
        self._follow(batch)
        if stored.flags & BLOB:
            self._flush()
            self._write(self._huge(batch))
            return
        self._gathered.append(batch)
        self._events += len(batch)
        self._bytes += stored.bytes_claimed()
        if self._bytes >= ROW_GROUP_BYTES or self._events >= ROW_GROUP_ROWS:
            self._flush()

    def finish(self, end: int, end_ticks: int | None, producers: bytes | None) -> HistoryFile:
        """Put the file of the events to before `end`, and what is beside it, durably."""
        self._flush()
        self._writer.close()
        self._check()
        if self._next < end:
            self._lost.append((self._next, end))
            self._reached = max(self._reached, (self._last_ticks or self._previous_ticks) + end - self._next)
        name = partial(format.file_name, self._log.partition, self._start, end)
        file = self._put_file(name("parquet"))
        index = self._put(name("index"), self._summary.index(self._start, end, self._first_ticks).encode())
        return HistoryFile(
            self._start,
            end,
            self._rows,
            self._previous_ticks,
            self._first_ticks,
            self._last_ticks,
            end_ticks or self._reached,
            self._log_bytes,
            file,
            index,
            None if producers is None else self._put(name("producers"), producers),
            self._blobs,
            self._lost,
        )

    def discard(self) -> None:
        """Close the file, whatever is in it."""
        with contextlib.suppress(OSError):
            self._writer.close()

    def _follow(self, batch: EventBatch) -> None:
        ticks = batch.ticks()
        offset = batch.end_offset - len(batch)
        if batch.log.node != self._log.node:
            raise Conflict(f"topic {self._log.topic!r} was deleted and recreated while it was being archived")
        if offset < self._next or int(ticks[0]) <= self._reached:
            raise Corrupt(f"{self}: offset {offset} is out of order")
        if offset > self._next:
            self._lost.append((self._next, offset))
        self._first_ticks = self._first_ticks or int(ticks[0])
        self._last_ticks = self._reached = int(ticks[-1])
        self._next = batch.end_offset
        self._rows += len(batch)
        self._log_bytes += batch.size
        self._file_bytes += batch.piece.batch.bytes_claimed()

    def _flush(self) -> None:
        if self._gathered:
            self._write(events.table(self._gathered, COLUMNS))
            self._gathered, self._events, self._bytes = [], 0, 0

    def _write(self, table: pa.Table) -> None:
        self._pause()
        table = table.cast(format.schema()).combine_chunks()
        self._summary.add(table)
        self._fingerprints.append(_fingerprint(table))
        self._writer.write_table(table, row_group_size=table.num_rows)

    def _huge(self, batch: EventBatch) -> pa.Table:
        """Return the row of a huge event: with its data, or, if that is too large for a column, with a blob beside."""
        whole = events.with_data(batch, COLUMN_DATA_BYTES_MAX)
        offset, blob = batch.piece.batch.base_offset, batch.log.blob(batch.piece.batch)
        if whole is not batch:
            self._file_bytes += blob.size
            return events.table([whole], COLUMNS)
        pieces = BlobPieces(blob)
        key_of = partial(format.file_key, self._log)
        file = upload(self._store, key_of, format.blob_name(self._log.partition, offset), pieces.size, pieces)
        self._blobs.append(ArchivedBlob(offset, pieces.reference, file))
        return events.table([batch], COLUMNS)

    def _check(self) -> None:
        """Read it all back; raises Corrupt if it is not what was written."""
        with parquet().ParquetFile(self._path, page_checksum_verification=True) as file:
            found = [_fingerprint(file.read_row_group(number)) for number in range(file.num_row_groups)]
        if found != self._fingerprints:
            raise Corrupt(
                f"{self}: a Parquet file does not read back as it was written",
                hint="check the memory and the disk of the machine that wrote it",
                code="not_as_written",
            )

    def _put(self, name: str, data: bytes) -> ArchivedFile:
        self._pause()
        return upload(self._store, partial(format.file_key, self._log), name, len(data), lambda: [data])

    def _put_file(self, name: str) -> ArchivedFile:
        disk, key_of = self._disk, partial(format.file_key, self._log)
        fd = disk.open_read(self._path)
        try:
            size = disk.size(fd)
            return upload(self._store, key_of, name, size, lambda: pieces_of(disk, fd, size, self._pause))
        finally:
            disk.close(fd)


class BlobPieces:
    """The pieces of a blob file that holds the data of a huge event, made anew whenever it is called."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self.reference = (blob.size, BLOB_CHUNK_BYTES, 0)
        self.size = blob.size + 4 * -(-blob.size // BLOB_CHUNK_BYTES) + blob_format.FOOTER_BYTES

    def __call__(self) -> Iterator[bytes]:
        crcs: list[int] = []
        pending = bytearray()
        for piece in self._blob.chunks():
            pending += piece
            while len(pending) >= BLOB_CHUNK_BYTES:
                crcs.append(crc32c(pending[:BLOB_CHUNK_BYTES]))
                yield bytes(pending[:BLOB_CHUNK_BYTES])
                del pending[:BLOB_CHUNK_BYTES]
        if pending:
            crcs.append(crc32c(pending))
            yield bytes(pending)
        table = np.array(crcs, np.uint32)
        self.reference = (self._blob.size, BLOB_CHUNK_BYTES, blob_format.table_crc(table))
        yield blob_format.encode_trailer(self._blob.size, BLOB_CHUNK_BYTES, table)


class KeySummary:
    """Which keys and types are in a file. It is stored as an index of one batch."""

    def __init__(self) -> None:
        self._types: set[bytes] = set()
        self._hashes: list[U32] = []

    def add(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Take the keys and types of some rows."""
        pa = arrow.pyarrow()
        self._types.update((value or "").encode() for value in rows.column("type").unique().to_pylist())
        keys = rows.column("key")
        for chunk in keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]:
            column = arrow.column_of(chunk)
            if column is not None:
                self._hashes.append(key_hashes(column))

    def index(self, start: int, end: int, ticks: int) -> Index:
        """Return what was taken."""
        hashes = np.sort(np.concatenate([np.zeros(0, np.uint32), *self._hashes]))  # np.unique takes longer
        entries = hashes.astype(np.uint64)[np.diff(hashes.astype(np.int64), prepend=-1) > 0] << np.uint64(32)
        offsets, first_ticks, zero = (np.array([value], np.int64) for value in (start, ticks, 0))
        types = dict.fromkeys(sorted(self._types), np.zeros(1, np.int32))
        return Index(0, start, end, 0, offsets, first_ticks, zero, types, entries)


def _settings() -> dict[str, Any]:
    """Return encodings that Spark, DuckDB and Polars read, and statistics where a reader may filter by them."""
    coded = [name for name in COLUMNS if name not in _ENCODINGS and name not in _PLAIN]
    return {
        "compression": "zstd",
        "use_dictionary": coded,
        "column_encoding": _ENCODINGS,
        "write_statistics": [name for name in COLUMNS if name not in (*_PLAIN, "id")],
        "write_page_index": True,
        "write_page_checksum": True,
        "store_schema": False,
        "sorting_columns": [parquet().SortingColumn(COLUMNS.index("offset"))],
    }


def _fingerprint(table: pa.Table) -> int:
    """Return a checksum of the values of a table, however they are stored."""
    crc = 0
    for column in table.columns:
        for piece in _bytes_of(column.combine_chunks()):
            crc = crc32c(piece, crc)
    return crc


def _bytes_of(array: Any) -> Iterator[Any]:
    """The bytes that tell the values of an array apart from all others of its type."""
    pa = arrow.pyarrow()
    if isinstance(array, pa.ChunkedArray):  # as an empty one comes out of combine_chunks
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if array.null_count:
        yield np.packbits(np.asarray(array.is_valid())).data
        array = array.fill_null(b"" if array.type == pa.binary() else "")
    if array.type in (pa.string(), pa.binary()):
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4) if len(array) else np.zeros(1, "i4")
        yield np.diff(ends).data
        yield memoryview(data or b"")[ends[0] : ends[-1]]
    else:
        width = array.type.bit_width // 8
        yield memoryview(array.buffers()[1] or b"")[array.offset * width : (array.offset + len(array)) * width]
