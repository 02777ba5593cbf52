"""One file of an archive, from the batches of a log: written, read back and compared, then put into the store.

Every batch is verified as a whole before its events are written. A row group is held in memory, and the file is made
in a temporary directory of the machine. What was written is then decoded again, and must be what went in: whoever
drops events from a log because they are archived relies on it.
"""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from crc32c import crc32c

from headwater.errors import Conflict, Corrupt
from headwater.format import arrow, events
from headwater.format import parquet as format
from headwater.format.archive import ArchivedFile
from headwater.format.batch import BLOB
from headwater.format.events import EventBatch
from headwater.format.parquet import COLUMNS, ParquetBlob, ParquetFile, ParquetManifest
from headwater.limits import COLUMN_DATA_BYTES_MAX
from headwater.storage.archive.transfer import pieces_of, upload
from headwater.storage.bucket.store import ObjectStore
from headwater.storage.disk import Disk

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_BYTES = 64 * 1024 * 1024  # of Arrow: what a writer holds, and what a reader may skip by its statistics
ROW_GROUP_ROWS = 1_000_000

_PLAIN = ("data", "meta")
_DELTAS = {"offset": "DELTA_BINARY_PACKED", "ticks": "DELTA_BINARY_PACKED", "time": "DELTA_BINARY_PACKED"}
_ENCODINGS = {**_DELTAS, "id": "DELTA_BYTE_ARRAY"}


def parquet() -> Any:
    """The module, imported where it is first needed."""
    arrow.pyarrow()
    return importlib.import_module("pyarrow.parquet")


def write_part(
    store: ObjectStore, log: ParquetManifest, start: int, end: int, batches: Iterable[EventBatch]
) -> ParquetFile:
    """Put the file of the events from `start` to before `end`, which `batches` has, durably; returns what it holds.

    It is in the archive when a manifest names it. Raises Corrupt for a damaged batch, and if the file does not read
    as it was written; nothing is put then.
    """
    disk = Disk()
    with tempfile.TemporaryDirectory(prefix="headwater-parquet-") as temporary:
        path = Path(temporary) / "part.parquet"
        writer = _Writer(path, store, log, disk)
        with contextlib.closing(writer):
            for batch in batches:
                writer.add(batch)
        _check_bounds(log, writer, start, end)
        writer.check()
        name = format.part_name(log.partition, start, end)
        file = _put_file(store, log, name, path, disk)
    return ParquetFile(start, end, writer.rows, writer.first_ticks, writer.last_ticks, file, writer.blobs)


class _Writer:
    """A Parquet file that grows by row groups, each with a fingerprint of what went into it."""

    def __init__(self, path: Path, store: ObjectStore, log: ParquetManifest, disk: Disk) -> None:
        self.rows = self.first_ticks = self.last_ticks = 0
        self.first_offset, self.last_offset = -1, -1
        self.blobs: list[ParquetBlob] = []
        self._path = path
        self._store = store
        self._log = log
        self._disk = disk
        self._gathered: list[EventBatch] = []
        self._events = self._bytes = 0
        self._fingerprints: list[int] = []
        self._writer = parquet().ParquetWriter(path, format.schema(), **_settings())

    def add(self, batch: EventBatch) -> None:
        """Take the next events, verified."""
        batch.piece.batch.validate()
        self._follow(batch)
        if batch.piece.batch.flags & BLOB:
            self._flush()
            self._write(self._huge(batch))
            return
        self._gathered.append(batch)
        self._events += len(batch)
        self._bytes += batch.piece.batch.bytes_claimed()
        if self._bytes >= ROW_GROUP_BYTES or self._events >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        self._flush()
        self._writer.close()

    def check(self) -> None:
        """Read it all back; raises Corrupt if it is not what was written."""
        with parquet().ParquetFile(self._path, page_checksum_verification=True) as file:
            found = [_fingerprint(file.read_row_group(number)) for number in range(file.num_row_groups)]
        if found != self._fingerprints:
            raise Corrupt(
                f"topic {self._log.topic!r}, partition {self._log.partition}: a Parquet file does not read as it was"
                " written",
                hint="look at the memory and the disk of the machine that wrote it",
                code="not_as_written",
            )

    def _follow(self, batch: EventBatch) -> None:
        ticks = batch.ticks()
        offset = batch.end_offset - len(batch)
        if batch.log.node != self._log.node:
            raise Conflict(f"topic {self._log.topic!r} was deleted and made again while it was archived")
        if offset <= self.last_offset or int(ticks[0]) <= self.last_ticks:
            raise Corrupt(
                f"topic {self._log.topic!r}, partition {self._log.partition}: offset {offset} is out of order"
            )
        if not self.rows:
            self.first_offset, self.first_ticks = offset, int(ticks[0])
        self.last_offset, self.last_ticks = batch.end_offset - 1, int(ticks[-1])
        self.rows += len(batch)

    def _flush(self) -> None:
        if self._gathered:
            self._write(events.table(self._gathered, COLUMNS))
            self._gathered, self._events, self._bytes = [], 0, 0

    def _write(self, table: pa.Table) -> None:
        table = table.cast(format.schema()).combine_chunks()
        self._fingerprints.append(_fingerprint(table))
        self._writer.write_table(table, row_group_size=table.num_rows)

    def _huge(self, batch: EventBatch) -> pa.Table:
        """The row of a huge event: with its data, or, if that is too large for a column, beside it."""
        whole = events.with_data(batch, COLUMN_DATA_BYTES_MAX)
        if whole is batch:
            blob = batch.log.blob(batch.piece.batch)
            offset = batch.piece.batch.base_offset
            name = format.blob_name(self._log.partition, offset)
            key_of = partial(format.file_key, self._log.topic)
            self.blobs.append(ParquetBlob(offset, upload(self._store, key_of, name, blob.size, blob.chunks)))
        return events.table([whole], COLUMNS)


def _settings() -> dict[str, Any]:
    """Encodings that Spark, DuckDB and Polars read; statistics where somebody may filter by them."""
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


def _check_bounds(log: ParquetManifest, written: _Writer, start: int, end: int) -> None:
    if written.rows and not (start <= written.first_offset and written.last_offset < end):
        raise Corrupt(f"topic {log.topic!r}, partition {log.partition}: the log gave offsets outside {start} to {end}")


def _fingerprint(table: pa.Table) -> int:
    """A checksum of the values of a table, however they are stored."""
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


def _put_file(store: ObjectStore, log: ParquetManifest, name: str, path: Path, disk: Disk) -> ArchivedFile:
    fd = disk.open_read(path)
    try:
        size = disk.size(fd)
        return upload(store, partial(format.file_key, log.topic), name, size, lambda: pieces_of(disk, fd, size))
    finally:
        disk.close(fd)
