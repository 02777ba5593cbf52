"""The documents of a binder while a transaction changes them: bytes in, bytes out, written all at once.

A projection function always gets a fresh copy of the stored document, so that mutating an object it got or returned
before has no effect. Documents are cached as long as no other connection writes to the binder. For one thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from operator import itemgetter
from typing import Any, cast

import msgspec

from headwater.event import Event
from headwater.format.codec import codec
from headwater.limits import DOCUMENT_BYTES_MAX
from headwater.views import database
from headwater.views.encoding import decode, document_id, encode, too_large
from headwater.views.keys import index_key

CACHE_BYTES = 64 * 1024 * 1024  # of documents that are remembered; then all are forgotten, and those needed read again
ENTRY_BYTES = 200  # what an entry of the cache takes beside its document
DECODED_BYTES = 256 * 1024  # of documents that are decoded together
LOADED_MAX = 10_000  # ids in one statement
CHANGES_KEPT = (
    1_000_000  # ids of changed documents that are kept for followers; one that is further behind starts again
)

Fold = Callable[[Any, Event], Any]

_encode_json = msgspec.json.Encoder().encode
_row = itemgetter(0)


class Draft:
    """Pending changes over the stored documents. Used inside of `database.writing`, from `begin` to `write`."""

    def __init__(self, connection: sqlite3.Connection, *, cache_bytes: int = 0, followed: bool = True) -> None:
        """Up to `cache_bytes` of documents are remembered, CACHE_BYTES unless it is said.

        `followed`: changes are recorded for followers. A file without followers is one that is to be read
        as a whole: its documents are written in the order of ids.
        """
        self._cache_bytes = cache_bytes
        self._followed = followed
        self._connection = connection
        self._codec = codec()
        self._data: dict[str | None, bytes | None] = {}  # documents as they are now; None: there is none
        self._rows: dict[str, int] = {}  # where they are stored, if they are
        self._versions: dict[str, int] = {}  # of those that are changed
        self._bytes = 0
        self._seen = -1  # SQLite's data_version when they were read
        self._indexes: list[str] = []
        self._all = False  # whether all documents that there are are known

    def begin(self) -> None:
        """Begin a transaction. What was remembered is forgotten if another connection has written since."""
        (seen,) = self._connection.execute("PRAGMA data_version").fetchone()
        if seen != self._seen or self.full():
            self.abandon()
            self._seen = seen
            self._indexes = database.indexes(self._connection)
            self._all = self._connection.execute("SELECT 1 FROM documents LIMIT 1").fetchone() is None

    def full(self) -> bool:
        """Return whether so much is remembered that it should be written, and forgotten at the next `begin`.

        Replaced documents count too, until all are counted again.
        """
        entries = len(self._data) * ENTRY_BYTES
        most = self._cache_bytes or CACHE_BYTES
        if self._bytes + entries <= most:
            return False
        self._bytes = sum(map(len, filter(None, self._data.values())))
        return self._bytes + entries > most // 2

    def abandon(self) -> None:
        """Forget everything: the transaction was not committed."""
        self._data.clear()
        self._rows.clear()
        self._versions.clear()
        self._bytes = 0
        self._seen = -1

    def load(self, ids: Iterable[str | None]) -> int:
        """Read the documents that will be asked for, those that are not known, with few statements; their bytes."""
        before = self._bytes
        missing = set(ids).difference(self._data)
        missing.discard(None)
        if self._all:
            self._data.update(dict.fromkeys(missing))
            return 0
        wanted = cast("list[str]", sorted(missing))
        for start in range(0, len(wanted), LOADED_MAX):
            some = wanted[start : start + LOADED_MAX]
            self._data.update(dict.fromkeys(some))
            rows = self._connection.execute(
                "SELECT id, row, data FROM documents WHERE id IN (SELECT value FROM json_each(?))",
                (_encode_json(some).decode(),),
            )
            self._remember(rows)
            for id in some:
                if "\0" in id:  # where SQLite's JSON ends a text
                    self._remember(self._connection.execute("SELECT id, row, data FROM documents WHERE id = ?", (id,)))
        return self._bytes - before

    def _remember(self, rows: Iterable[tuple[str, int, bytes]]) -> None:
        for id, row, data in rows:
            self._data[id] = data
            self._rows[id] = row
            self._bytes += len(data)

    def get(self, id: str) -> dict[str, Any] | None:
        """Return a document as it is now, an object of its own; None if there is none."""
        if id not in self._data:
            self.load((id,))
        data = self._data[id]
        return None if data is None else decode(data)

    def put_all(self, documents: dict[str, bytes | None], version: int) -> None:
        """Change documents, which are encoded, or with None, delete them."""
        self.load(documents)
        self._bytes += sum(map(len, filter(None, documents.values())))
        self._data.update(documents)
        self._versions.update(dict.fromkeys(documents, version))

    def stored(self, ids: Sequence[str]) -> list[bytes | None]:
        """Return loaded documents as they are stored, or will be; None where there is none."""
        return list(map(self._data.__getitem__, ids))

    def change(self, documents: Mapping[str, bytes | None], versions: Mapping[str, int]) -> None:
        """Change documents that are loaded, each with a version of its own, as `put_all` does."""
        self._bytes += sum(map(len, filter(None, documents.values())))
        self._data.update(documents)
        self._versions.update(versions)

    def fold(self, fold: Fold, events: Sequence[Event], ids: Sequence[str | None]) -> tuple[int, BaseException | None]:
        """Fold each event into its document, which must be loaded; those without one are passed over.

        Returns how many are done, and what the next one raised, if it did.
        """
        documents, versions = self._data, self._versions
        encode, decode, _, options, encoding, _ = self._codec
        pop = self._decoded(ids).pop
        done = written = 0
        try:
            for event, id in zip(events, ids, strict=True):
                if id is not None:
                    document = pop(id, None)
                    if document is None and (data := documents[id]) is not None:
                        document = decode(data, options)
                    document = fold(document, event)
                    data = None
                    if document is not None:
                        data = encode(document, False, encoding)
                        if (size := len(data)) > DOCUMENT_BYTES_MAX:
                            raise too_large(data)
                        written += size
                    documents[id] = data
                    versions[id] = event.offset
                done += 1
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever the user's code raises
            return done, error
        finally:
            self._bytes += written
        return done, None

    def _decoded(self, ids: Sequence[str | None]) -> dict[str | None, dict[str, Any]]:
        """Return the documents of some ids, each for the first fold that needs it, without large ones."""
        stored = {id: data for id in ids if (data := self._data.get(id)) is not None}
        if sum(map(len, stored.values())) > DECODED_BYTES:
            return {}  # it would gain little, and take much memory
        try:
            found = self._codec.decode_all(b"".join(stored.values()), self._codec.options)
            return dict(zip(stored, found, strict=True))
        except (self._codec.damage, ValueError):
            return {}  # the one that is damaged is found when it has its turn

    def write(self) -> None:
        """Write everything that was changed."""
        if not self._versions:
            return
        if not self._followed:
            self._versions = dict(sorted(self._versions.items()))
        new, old, gone = self._sorted()
        marks = [database.column(path) for path in self._indexes]
        many = self._connection.executemany
        if gone:
            many("DELETE FROM documents WHERE row = ?", gone)
        if old:
            setting = "".join(f", {mark} = ?{number}" for number, mark in enumerate(marks, 4))
            many(f"UPDATE documents SET version = ?2, data = ?3{setting} WHERE row = ?1", old)  # noqa: S608
        if new:
            columns, values = "".join(f", {mark}" for mark in marks), ", ?" * len(marks)
            many(f"INSERT INTO documents (row, version, data{columns}, id) VALUES (?, ?, ?{values}, ?)", new)  # noqa: S608
        self._versions.clear()

    def _sorted(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the rows to insert, update and delete, in the order of the table: each page is visited once."""
        documents, rows, versions = self._data, self._rows, self._versions
        changed = zip(map(rows.get, versions), versions.values(), map(documents.get, versions), strict=True)
        old: list[Any] = [values for values in changed if values[0] is not None and values[2] is not None]
        new: list[Any] = []
        gone: list[Any] = []
        never: set[str] = set()  # made and deleted again, or not there in the first place
        if len(old) < len(versions):
            (last,) = self._connection.execute("SELECT coalesce(max(row), 0) FROM documents").fetchone()
            for id, version in versions.items():
                data, row = documents[id], rows.get(id)
                if data is None:
                    if row is None:
                        never.add(id)
                    else:
                        gone.append((row,))
                        del rows[id]
                elif row is None:
                    last += 1
                    rows[id] = last
                    new.append((last, version, data, id))
        if self._indexes:
            old = [(*values, *self._keys(values[2])) for values in old]
            new = [(*values[:-1], *self._keys(values[2]), values[-1]) for values in new]
        old.sort(key=_row)
        if self._followed:
            self._note([id for id in versions if id not in never] if never else list(versions))
        return new, old, gone

    def _note(self, ids: list[str]) -> None:
        """Record for followers which documents have changed, and delete the oldest records."""
        if not ids:
            return
        execute = self._connection.execute
        execute("INSERT INTO changes (count, ids) VALUES (?, ?)", (len(ids), _encode_json(ids).decode()))
        (number,) = execute("SELECT last_insert_rowid()").fetchone()
        kept = CHANGES_KEPT
        if number % 64 == 0 or len(ids) > CHANGES_KEPT // 64:
            for each, count in execute("SELECT number, count FROM changes ORDER BY number DESC"):
                kept -= count
                if kept < 0 and each != number:
                    execute("DELETE FROM changes WHERE number <= ?", (each,))
                    break

    def _keys(self, data: bytes) -> tuple[Any, ...]:
        document = decode(data)
        return tuple([index_key(document, path) for path in self._indexes])


class Documents(MutableMapping[str, dict[str, Any]]):
    """All documents of a binder, for a fold that touches several: what it puts and deletes is kept if it returns.

    A document that was got is a copy: changing it changes nothing until it is put back.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._put: dict[str, bytes | None] = {}

    def __getitem__(self, id: str) -> dict[str, Any]:
        if id in self._put:
            data = self._put[id]
            found = None if data is None else decode(data)
        else:
            found = self._draft.get(_checked(id))
        if found is None:
            raise KeyError(id)
        return found

    def __setitem__(self, id: str, document: dict[str, Any]) -> None:
        if document is None:
            raise TypeError("a document must be a dict; to delete one: del docs[id]")
        self._put[_checked(id)] = encode(document)

    def __delitem__(self, id: str) -> None:
        if id not in self:
            raise KeyError(id)
        self._put[id] = None

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self.get(id) is not None

    def __iter__(self) -> Iterator[str]:
        raise TypeError("a projection function cannot iterate over a binder: it would become slower with each document")

    def __len__(self) -> int:
        raise TypeError("a projection function cannot count the documents of a binder")

    def keep(self, version: int) -> None:
        """Hand over what the fold has done for one event."""
        self._draft.put_all(self._put, version)
        self._put = {}

    def drop(self) -> None:
        """Forget what the fold has done for one event."""
        self._put = {}


def _checked(id: Any) -> str:
    found = document_id(id)
    if found is None or found != id:
        raise TypeError(f"a document's id must be text, not {id!r}")
    return found
