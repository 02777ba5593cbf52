"""Documents as they are stored: small ones as bytes, large ones loaded from their snapshot each time they are needed.

A document above `LARGE_BYTES` is not read with its row. Its `LargeDocument` loads it as often as needed, always the
same bytes, as long as its snapshot is open. So a server that sends a large document to a slow client holds nothing of
it while the client reads nothing.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

from headwater.document import Document
from headwater.errors import Closed, HeadwaterError
from headwater.limits import KIB
from headwater.views.encoding import decode
from headwater.views.pool import BinderReader, Pool
from headwater.views.query import project

LARGE_BYTES = 64 * KIB  # a slow client may hold a few of this size
DECODED_AT_ONCE = 2  # large documents that are matched or sorted at once: each takes many times its size for a moment
SMALL_DATA = f"CASE WHEN length(data) <= {LARGE_BYTES} THEN data END"  # NULL, without reading it, if it is large

_LOAD = "SELECT data FROM documents WHERE row = ?"
_COMMIT = "SELECT max(number) FROM changes"


class StoredDocument(NamedTuple):
    """A document as it is stored: `data` is BSON."""

    id: str
    version: int
    data: bytes


class LargeDocument(NamedTuple):
    """A document that is not in memory. `load` returns its BSON until its snapshot ends, then raises Closed.

    Documents with equal keys are equal. `fields` is the tree of the fields that are wanted, None for all.
    """

    id: str
    version: int
    key: Hashable
    load: Callable[[], bytes]
    fields: dict[str, Any] | None = None

    def document(self) -> Document:
        """Return the decoded document."""
        found = decode(self.load())
        return Document(self.id, self.version, found if self.fields is None else project(found, self.fields))


class Snapshot:
    """One state of a binder, seen through a connection in a transaction. For one thread at a time."""

    def __init__(self, pool: Pool, reader: BinderReader) -> None:
        """`reader` has begun a transaction."""
        self.connection = reader.connection
        self._pool = pool
        self._reader: BinderReader | None = reader
        self._commit: int | None = None

    def check(self) -> BinderReader:
        """Return the connection; raises Closed if it must not be used any more."""
        if self._reader is None:
            raise Closed("the snapshot of the documents was closed")
        self._pool.check(self._reader)
        return self._reader

    def large(
        self,
        row: int,
        id: str,
        version: int,
        fields: dict[str, Any] | None = None,
        load: Callable[[int], bytes] | None = None,
    ) -> LargeDocument:
        """Return a document that was not read with its row. `load` is what loads a row, by default `Snapshot.load`."""
        if self._commit is None:
            self._commit = self.connection.execute(_COMMIT).fetchone()[0] or 0
        path = self._pool.path(self.check())
        key = (path, self._commit, id, version, None if fields is None else repr(fields))
        load = load or self.load
        return LargeDocument(id, version, key, lambda: load(row), fields)

    def load(self, row: int) -> bytes:
        """Return the data of a document. Raises Closed if the snapshot was closed."""
        reader = self.check()
        try:
            (data,) = reader.connection.execute(_LOAD, (row,)).fetchone()
        except sqlite3.Error as error:
            raise self.translation(error) from error
        assert isinstance(data, bytes)
        return data

    def translation(self, error: sqlite3.Error) -> HeadwaterError:
        """Return what SQLite has raised as an error of ours."""
        assert self._reader is not None
        return self._pool.translation(self._reader, error)

    def close(self) -> BinderReader | None:
        """End it, and return its connection, still in the transaction; None if it was closed before."""
        reader, self._reader = self._reader, None
        return reader


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Wait for a turn to decode a large document, and have it for the block."""
    with _turns:
        yield


def _after_fork() -> None:
    global _turns  # noqa: PLW0603  # other threads of the parent had turns, and are not in the child
    _turns = threading.Semaphore(DECODED_AT_ONCE)


_turns = threading.Semaphore(DECODED_AT_ONCE)
os.register_at_fork(after_in_child=_after_fork)
