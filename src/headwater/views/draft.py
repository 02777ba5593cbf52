"""The documents of a binder while a transaction changes them: bytes in, bytes out, written all at once.

A fold is always given what was stored, decoded anew, so that what it does with the object it was given, or returned
before, changes nothing. What was read and written is remembered, as long as nobody else writes to the binder. For one
thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

import msgspec

from headwater.views import database
from headwater.views.codec import codec, document_id
from headwater.views.keys import index_key

CACHE_BYTES = 64 * 1024 * 1024  # of documents that are remembered; then all are forgotten, and those needed read again
ENTRY_BYTES = 200  # what an entry of the cache takes beside its document
LOADED_MAX = 10_000  # ids in one statement
CHANGES_KEPT = (
    1_000_000  # ids of changed documents that are kept for those who follow; who is further behind starts anew
)

_encode_json = msgspec.json.Encoder().encode


class Draft:
    """What is changed, over what is stored. Used inside of `database.writing`, from `begin` to `write`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._encode, self._decode = codec()
        self._known: dict[str, tuple[int, bytes] | None] = {}  # row and data of stored documents; None: there is none
        self._known_bytes = 0
        self._seen = -1  # SQLite's data_version when they were read
        self._changed: dict[str, tuple[int, bytes | None]] = {}  # version and data; None: deleted
        self._indexes: list[str] = []

    @property
    def changed(self) -> int:
        """How many documents are changed."""
        return len(self._changed)

    def begin(self) -> None:
        """Begin a transaction. What was remembered is forgotten if another connection has written since."""
        (seen,) = self._connection.execute("PRAGMA data_version").fetchone()
        if seen != self._seen:
            self._seen = seen
            self._forget()
            self._indexes = database.indexes(self._connection)
        self._changed.clear()

    def abandon(self) -> None:
        """The transaction was not committed."""
        self._changed.clear()
        self._seen = -1

    def load(self, ids: Iterable[str | None]) -> None:
        """Read the documents that will be asked for, those that are not known, with few statements."""
        known = self._known
        wanted = list({id for id in ids if id is not None and id not in known})
        for start in range(0, len(wanted), LOADED_MAX):
            some = wanted[start : start + LOADED_MAX]
            known.update(dict.fromkeys(some))
            rows = self._connection.execute(
                "SELECT id, row, data FROM documents WHERE id IN (SELECT value FROM json_each(?))",
                (_encode_json(some).decode(),),
            )
            for id, row, data in rows:
                known[id] = (row, data)
                self._known_bytes += len(data)

    def get(self, id: str) -> dict[str, Any] | None:
        """A document as it is now, an object of its own; None if there is none."""
        changed = self._changed.get(id)
        if changed is not None:
            data = changed[1]
            return None if data is None else self._decode(data)
        if id not in self._known:
            self.load((id,))
        known = self._known[id]
        return None if known is None else self._decode(known[1])

    def put(self, id: str, document: Any, version: int) -> None:
        """Change or, with None, delete a document. Raises if it is none; then nothing has changed."""
        self._changed[id] = (version, None if document is None else self._encode(document))

    def put_all(self, documents: dict[str, Any], version: int) -> None:
        """The same for several, all or none of them."""
        encoded = {id: (version, None if each is None else self._encode(each)) for id, each in documents.items()}
        self._changed.update(encoded)

    def write(self) -> None:
        """Write everything that was changed."""
        changed, known = self._changed, self._known
        if not changed:
            return
        self.load(changed)
        paths = self._indexes
        new: list[tuple[Any, ...]] = []
        old: list[tuple[Any, ...]] = []
        gone: list[tuple[int]] = []
        noted: list[str] = []
        last = self._connection.execute("SELECT max(row) FROM documents").fetchone()[0] or 0
        for id in sorted(changed):
            version, data = changed[id]
            before = known[id]
            if before is None and data is None:
                continue  # made and deleted again, or never there
            noted.append(id)
            if data is None:
                assert before is not None
                gone.append((before[0],))
                known[id] = None
                continue
            keys = self._keys(data) if paths else ()
            if before is None:
                last += 1
                new.append((last, id, version, data, *keys))
                known[id] = (last, data)
            else:
                old.append((version, data, *keys, before[0]))
                known[id] = (before[0], data)
            self._known_bytes += len(data)
        old.sort(key=lambda values: values[-1])  # in the order of the table: each page is visited once
        execute = self._connection.executemany
        if gone:
            execute("DELETE FROM documents WHERE row = ?", gone)
        if old:
            setting = "".join(f", {database.column(path)} = ?" for path in paths)
            execute(f"UPDATE documents SET version = ?, data = ?{setting} WHERE row = ?", old)  # noqa: S608
        if new:
            columns = "".join(f", {database.column(path)}" for path in paths)
            marks = ", ?" * len(paths)
            execute(f"INSERT INTO documents (row, id, version, data{columns}) VALUES (?, ?, ?, ?{marks})", new)  # noqa: S608
        if noted:
            self._note(noted)
        changed.clear()
        if self._known_bytes + len(known) * ENTRY_BYTES > CACHE_BYTES:
            self._forget()

    def _note(self, ids: list[str]) -> None:
        """Tell followers which documents have changed, and forget what only the slowest of them would want."""
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
        document = self._decode(data)
        return tuple([index_key(document, path) for path in self._indexes])

    def _forget(self) -> None:
        self._known.clear()
        self._known_bytes = 0


class Documents(MutableMapping[str, dict[str, Any]]):
    """All documents of a binder, for a fold that touches several: what it puts and deletes is kept if it returns.

    A document that was got is a copy: changing it changes nothing until it is put back.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._put: dict[str, Any] = {}

    def __getitem__(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] | None
        found = self._put[id] if id in self._put else self._draft.get(_checked(id))
        if found is None:
            raise KeyError(id)
        return found

    def __setitem__(self, id: str, document: dict[str, Any]) -> None:
        if document is None:
            raise TypeError("a document is a dict; to delete one: del docs[id]")
        self._put[_checked(id)] = document

    def __delitem__(self, id: str) -> None:
        if id not in self:
            raise KeyError(id)
        self._put[id] = None

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self.get(id) is not None

    def __iter__(self) -> Iterator[str]:
        raise TypeError("a fold cannot go through all documents of a binder: it would take longer with each of them")

    def __len__(self) -> int:
        raise TypeError("a fold cannot count the documents of a binder")

    def keep(self, version: int) -> None:
        """Hand over what the fold has done for one event; raises if one of them is no document, and keeps none."""
        self._draft.put_all(self._put, version)
        self._put = {}

    def drop(self) -> None:
        """Forget what the fold has done for one event."""
        self._put = {}


def _checked(id: Any) -> str:
    found = document_id(id)
    if found is None or found != id:
        raise TypeError(f"a document's id is text, not {id!r}")
    return found
