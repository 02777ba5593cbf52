"""A file of an archive, fetched and verified by its SHA-256 before anything in it is used, then read by row groups."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.errors import Corrupt
from headwater.format import arrow
from headwater.format import parquet as format
from headwater.format.archive import ArchivedFile
from headwater.format.parquet import ParquetFile, ParquetManifest
from headwater.storage.archive.transfer import download
from headwater.storage.bucket.store import ObjectStore
from headwater.storage.disk import Disk
from headwater.storage.parquet.writing import parquet

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 65_536  # of one Arrow batch


@contextlib.contextmanager
def fetched(
    store: ObjectStore, topic: str, file: ArchivedFile, disk: Disk, advance: Callable[[int], None] = lambda _: None
) -> Iterator[Path]:
    """The file in a temporary directory, as long as the block runs; raises Corrupt if it is not what was archived."""
    with tempfile.TemporaryDirectory(prefix="headwater-parquet-") as temporary:
        path = Path(temporary) / "fetched"
        position = 0
        fd = disk.create(path)
        try:
            for piece in download(store, format.file_key(topic, file), file):
                disk.write(fd, piece, position)
                position += len(piece)
                advance(len(piece))
        finally:
            disk.close(fd)
        yield path


def rows(path: Path, part: ParquetFile, where: str) -> Iterator[pa.RecordBatch]:
    """The rows of a fetched file; raises Corrupt if it is no table of this part."""
    try:
        with parquet().ParquetFile(path, page_checksum_verification=True) as file:
            if not file.schema_arrow.equals(format.schema()) or file.metadata.num_rows != part.rows:
                raise damaged("it has other columns or rows than its manifest says", where, part.file.bytes)
            for number in range(file.num_row_groups):  # one is held in memory at a time
                for batch in file.iter_batches(ROWS, row_groups=[number]):
                    if batch.num_rows:
                        yield batch
    except (OSError, arrow.pyarrow().ArrowException) as error:
        raise damaged(f"it cannot be read as Parquet: {error}", where, part.file.bytes) from error


def where_is(store: ObjectStore, log: ParquetManifest, part: ParquetFile) -> str:
    """The place of a file, for messages."""
    return f"{store.url}/{format.file_key(log.topic, part.file)}"


def damaged(problem: str, where: str, size: int) -> Corrupt:
    return Corrupt(
        f"{where}: {problem}",
        hint="'headwater check parquet:PLACE' tells all that is damaged",
        code="archive_damaged",
        path=where,
        position=0,
        size=size,
        reason=problem,
    )
