"""The files of an archive: uploaded, downloaded and read, each verified as a whole by its SHA-256.

A file gets its name when it is complete: in the store, because an object appears only then; on disk, by a rename.
Memory is bounded by a few pieces.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.bucket.object_store import ObjectStore
from headwater.disk.disk import Disk
from headwater.errors import Corrupt, Unavailable
from headwater.format import arrow
from headwater.format import history as format
from headwater.format.history import ArchivedFile, HistoryFile, HistoryManifest

if TYPE_CHECKING:
    import pyarrow as pa


ROWS = 65_536  # of one Arrow batch
PIECE_BYTES = 8 * 1024 * 1024  # of a request: large enough to hide its latency, small enough to hold a few
PIECES_AHEAD = 4  # that are requested before the first has arrived


def upload(
    store: ObjectStore,
    key_of: Callable[[ArchivedFile], str],
    name: str,
    size: int,
    pieces: Callable[[], Iterable[bytes]],
) -> ArchivedFile:
    """Put a file, durably; return its entry for a manifest. It is read twice, because its key contains its hash.

    Another object of that key has the same bytes, so a second archiver, or a retry after a crash, changes nothing.
    """
    digest = hashlib.sha256()
    for piece in pieces():
        digest.update(piece)
    file = ArchivedFile(name, size, digest.hexdigest())
    store.put_pieces(key_of(file), _unchanged(pieces(), file))
    return file


def pieces_of(disk: Disk, fd: int, size: int, pause: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """Yield the bytes of an open file; raises Corrupt if it is shorter. `pause` may raise to stop."""
    position = 0
    while position < size:
        pause()
        piece = disk.pread(fd, min(PIECE_BYTES, size - position), position)
        if not piece:
            raise Corrupt("a file became shorter while it was being archived", position=position, size=size - position)
        yield piece
        position += len(piece)


def _unchanged(pieces: Iterable[bytes], file: ArchivedFile) -> Iterator[bytes]:
    """Yield the pieces; raises Corrupt after the last if they are not those of the file, so that nothing is put."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
        yield piece
    if digest.hexdigest() != file.sha256 or size != file.bytes:
        raise Corrupt(
            f"{file.name} changed while it was being archived",
            hint="check the disk, then run 'headwater check'",
            position=0,
            size=0,
        )


def download(
    store: ObjectStore, key: str, file: ArchivedFile, pause: Callable[[], None] = lambda: None
) -> Iterator[bytes]:
    """Yield the bytes of an archived file; several pieces are requested at once.

    Raises Corrupt after the last if they are not the archived bytes: use none of them before the end.
    """
    digest = hashlib.sha256()
    where = f"{store.url}/{key}"
    done = 0
    for piece in _ranges(store, key, file.bytes):
        pause()
        if piece is None:
            raise damaged("it is missing", where, file.bytes)
        expected = min(PIECE_BYTES, file.bytes - done)
        done += len(piece)
        if len(piece) != expected:
            raise damaged("it is cut short", where, file.bytes - done, done)
        digest.update(piece)
        yield bytes(piece)
    if digest.hexdigest() != file.sha256:
        raise damaged("its bytes are not the ones that were archived", where, file.bytes)


def _ranges(store: ObjectStore, key: str, size: int) -> Iterator[memoryview | None]:
    """Yield the pieces of an object in their order; a few are requested at once."""
    if size <= PIECE_BYTES:  # as indexes are: not worth threads
        if size:
            with reaching(store.url):
                found = store.get_range(key, 0, size)
            yield found
        return
    asked: deque[Future[memoryview | None]] = deque()
    with reaching(store.url), ThreadPoolExecutor(PIECES_AHEAD, "headwater-fetch") as pool:
        try:
            for start in range(0, size, PIECE_BYTES):
                asked.append(pool.submit(store.get_range, key, start, min(PIECE_BYTES, size - start)))
                if len(asked) == PIECES_AHEAD:
                    yield asked.popleft().result()
            while asked:
                yield asked.popleft().result()
        finally:
            for each in asked:
                each.cancel()


@contextlib.contextmanager
def fetched(
    store: ObjectStore, log: HistoryManifest, file: ArchivedFile, advance: Callable[[int], None] = lambda _: None
) -> Iterator[Path]:
    """Yield the path of a file in a temporary directory; raises Corrupt if it is not what was archived."""
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
    """Yield the rows of a fetched file, with the columns of every file; raises Corrupt if it does not match `part`."""
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


def parquet() -> Any:
    """Return the module `pyarrow.parquet`, imported at the first use; raises Unsupported without pyarrow."""
    arrow.pyarrow()
    return importlib.import_module("pyarrow.parquet")


def where_is(store: ObjectStore, log: HistoryManifest, file: ArchivedFile) -> str:
    """Return the address of a file, for messages."""
    return f"{store.url}/{format.file_key(log, file)}"


@contextlib.contextmanager
def reaching(url: str) -> Iterator[None]:
    """Raise Unavailable with a code that says that the archive, and not the log, is out of reach."""
    try:
        yield
    except Unavailable as error:
        if error.code == "archive_unavailable":
            raise
        raise Unavailable(
            f"the archive {url} cannot be reached: {error.message}",
            hint="events on the local disk can be read; is the network up, and are credentials in the environment?",
            code="archive_unavailable",
            url=url,
        ) from error


def damaged(problem: str, where: str, size: int, position: int = 0) -> Corrupt:
    """Return the error for an object that is not what was archived."""
    return Corrupt(
        f"{where}: {problem}",
        hint="'headwater check' with the address of the archive lists all damage",
        code="archive_damaged",
        path=where,
        position=position,
        size=size,
        reason=problem,
    )
