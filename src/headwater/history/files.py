"""A Parquet file of an archive, fetched and verified by its SHA-256 before anything in it is used."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.bucket.object_store import ObjectStore
from headwater.disk.disk import Disk
from headwater.format import arrow
from headwater.format import history as format
from headwater.format.history import ArchivedFile, HistoryFile, HistoryManifest
from headwater.history.transfer import damaged, download
from headwater.history.writing import parquet

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 65_536  # of one Arrow batch


@contextlib.contextmanager
def fetched(
    store: ObjectStore, log: HistoryManifest, file: ArchivedFile, advance: Callable[[int], None] = lambda _: None
) -> Iterator[Path]:
    """Have a file in a temporary directory while the block runs; raises Corrupt if it is not what was archived."""
    with tempfile.TemporaryDirectory(prefix="headwater-history-") as temporary:
        path = Path(temporary) / "fetched"
        fetch(store, log, file, path, Disk(), advance)
        yield path


def fetch(
    store: ObjectStore,
    log: HistoryManifest,
    file: ArchivedFile,
    path: Path,
    disk: Disk,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Put a file at a path, durably; raises Corrupt, and leaves nothing there, if it is not what was archived."""
    position = 0
    with disk.replacing(path) as fd:
        for piece in download(store, format.file_key(log, file), file):
            disk.write(fd, piece, position)
            position += len(piece)
            advance(len(piece))


def rows(path: Path, part: HistoryFile, where: str) -> Iterator[pa.RecordBatch]:
    """The rows of a fetched file, of the columns of every file; raises Corrupt if it is no table of this part."""
    columns = format.schema()
    try:
        with parquet().ParquetFile(path, page_checksum_verification=True) as file:
            has = {field.name: field.type for field in file.schema_arrow}
            if any(has.get(field.name) != field.type for field in columns) or file.metadata.num_rows != part.rows:
                raise damaged("its columns or rows differ from its manifest", where, part.file.bytes)
            for number in range(file.num_row_groups):  # one is held in memory at a time
                for batch in file.iter_batches(ROWS, row_groups=[number], columns=columns.names):
                    if batch.num_rows:
                        yield batch.select(columns.names)
    except (OSError, arrow.pyarrow().ArrowException) as error:
        raise damaged(f"it cannot be read as Parquet: {error}", where, part.file.bytes) from error


def where_is(store: ObjectStore, log: HistoryManifest, file: ArchivedFile) -> str:
    """Return the address of a file, for messages."""
    return f"{store.url}/{format.file_key(log, file)}"
