"""Files on their way to an archive and from it: in pieces, each file verified as a whole by its SHA-256.

A file gets its name when it is whole: in the store, because an object is there when all of it is; on the disk, by the
caller's rename. Memory is bounded by a few pieces.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from headwater.bucket.object_store import ObjectStore
from headwater.disk.disk import Disk
from headwater.errors import Corrupt, Unavailable
from headwater.format.history import ArchivedFile

PIECE_BYTES = 8 * 1024 * 1024  # of a request: large enough to hide its latency, small enough to hold a few
PIECES_AHEAD = 4  # that are asked for before the first is there


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


def upload(
    store: ObjectStore,
    key_of: Callable[[ArchivedFile], str],
    name: str,
    size: int,
    pieces: Callable[[], Iterable[bytes]],
) -> ArchivedFile:
    """Put a file, durably; returns what a manifest is to say of it. It is read twice: its key tells its bytes.

    An object of that key has the same bytes, so whoever comes second, or again after a crash, changes nothing.
    """
    digest = hashlib.sha256()
    for piece in pieces():
        digest.update(piece)
    file = ArchivedFile(name, size, digest.hexdigest())
    store.put_pieces(key_of(file), _unchanged(pieces(), file))
    return file


def _unchanged(pieces: Iterable[bytes], file: ArchivedFile) -> Iterator[bytes]:
    """The same pieces; raises Corrupt behind the last if they are not those of the file, so that nothing is put."""
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

    Raises Corrupt behind the last one if they are not those that were archived: only then may they be used.
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
