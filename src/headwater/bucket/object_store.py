"""What an object store must do for a log: create what is not there, replace what was seen, read, list, delete.

Keys are relative to the place that the store was opened at, with "/" between their parts. Every method is safe from any
thread and any machine. What fails for a while is tried again with growing, random pauses, for as long as the store
was told; then it raises Unavailable. `directory.py` and `s3.py` are the two stores.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple, Protocol


class StoredObject(NamedTuple):
    """An object as it was found. `version` changes with every write, and is only for `swap`."""

    data: memoryview
    version: str


class ObjectEntry(NamedTuple):
    """An object in a list; `modified` is by the clock of the store."""

    key: str
    size: int
    modified: datetime


class ObjectStore(Protocol):
    """A place in an object store."""

    @property
    def url(self) -> str:
        """Return where it is, for messages: without secrets."""

    def get(self, key: str) -> StoredObject | None:
        """Return the object; None if it is not there."""

    def get_range(self, key: str, start: int, length: int) -> memoryview | None:
        """Return some bytes of an object, fewer where it ends; None if it is not there."""

    def create(self, key: str, data: bytes) -> str | None:
        """Put an object where none is, durably; returns its version.

        None means that one is there, or was just being made: look. It may be this very one, if an answer was lost on
        the way and the request was repeated; so whatever is put has something in it that tells it from all others.
        """

    def swap(self, key: str, data: bytes, version: str) -> str | None:
        """Replace an object if it still has this version, durably; returns the new one.

        None means that it has another one, or is gone: look. As with `create`, it may be this very write.
        """

    def put(self, key: str, data: bytes) -> None:
        """Put an object, durably, whatever was there: for names that nobody else uses, and for hints."""

    def put_pieces(self, key: str, pieces: Iterable[bytes]) -> int:
        """The same for one of any size, which is there when all of it is; returns its bytes. Bounded memory.

        If taking a piece raises, nothing is put.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are passed over. Durable when it returns."""

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        """Yield all objects whose keys begin so; those of one folder in the order of their keys.

        With `after`, a key of the folder that is asked for, only those behind it.
        """

    def folders(self, prefix: str) -> builtins.list[str]:
        """The next parts of the keys that begin with `prefix` (which is empty or ends with "/"), sorted, each once.

        Only of keys that go on behind them: `folders("a/")` of the keys `a/b/c` and `a/d` is `["b"]`. A part may still
        be named for a while after its last object was deleted.
        """

    def close(self) -> None:
        """Release it. May be called twice."""
