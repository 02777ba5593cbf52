"""Following a binder: all documents, then those that change, from any process.

A commit notes which documents it has changed (`Draft`), under a number. Documents are given as they are when they are
read, a page at a time, so that no transaction stays open between pages; a large document is a page of its own, and is
loaded in its transaction as often as needed (`take`). A document that has changed since its page was read is given
again later: the last version given is the current one. A place is `<generation>-<number>`: everything up to this commit
of this file was given. While listing documents it is `<generation>-<number>-.<id>`: the documents up to this id were
given, and what has changed since the commit is still to come.
"""

from __future__ import annotations

import binascii
import sqlite3
from base64 import b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Self

import msgspec

from headwater.document import Change, ChangeKind
from headwater.errors import Closed, Invalid, NotFound
from headwater.store import Store
from headwater.views.encoding import decode
from headwater.views.pool import BinderReader, BinderWatch, Pool
from headwater.views.stored_documents import SMALL_DATA, LargeDocument, Snapshot

PAGE_DOCUMENTS = 500  # that are read at once
PAGE_BYTES = 64 * 1024  # the bytes of a page, except for its last document: held in memory for a slow follower
GROUP_IDS = 5000  # ids of changed documents that are gathered, so that one that changes often is given once
GROUP_COMMITS = 256
NUMBER_DIGITS_MAX = 18

_Row = tuple[int, str, int, bytes | None]  # of a document; without its data if it is large
_decode_ids = msgspec.json.Decoder(list[str]).decode

_NUMBERS = "SELECT (SELECT min(number) FROM changes), (SELECT max(number) FROM changes)"
_COMMITS = "SELECT number, ids FROM changes WHERE number > ? ORDER BY number LIMIT ?"
_LISTED = f"SELECT row, id, version, {SMALL_DATA} FROM documents"  # noqa: S608  # nothing in them is a user's
_FIRST = f"{_LISTED} ORDER BY id LIMIT ?"
_NEXT = f"{_LISTED} WHERE id > ? ORDER BY id LIMIT ?"
_ONE = f"{_LISTED} WHERE id = ?"


class ChangePosition(NamedTuple):
    """The position of a follower: in the commits of a file and, while `listing`, in its documents, up to an id."""

    generation: str
    number: int
    listing: bool = False
    id: str | None = None

    def __str__(self) -> str:
        place = f"{self.generation}-{self.number}"
        if not self.listing:
            return place
        return f"{place}-" if self.id is None else f"{place}-.{urlsafe_b64encode(self.id.encode()).decode()}"

    @classmethod
    def parse(cls, text: str) -> ChangePosition:
        """Raises Invalid for what is no place."""
        try:
            generation, digits, *rest = text.split("-", 2)
            bytes.fromhex(generation)
            if not generation or not digits.isascii() or not digits.isdigit() or len(digits) > NUMBER_DIGITS_MAX:
                raise ValueError(text)
            if not rest:
                return cls(generation, int(digits))
            (listed,) = rest
            if not listed:
                return cls(generation, int(digits), listing=True)
            if not listed.startswith("."):
                raise ValueError(text)
            id = b64decode(listed[1:].encode("ascii"), b"-_", validate=True).decode()
            return cls(generation, int(digits), listing=True, id=id)
        except (AttributeError, ValueError, binascii.Error):
            raise Invalid(
                f"{text!r:.100} is not a place in a binder",
                hint="give the place of a change, 'latest', or nothing for all documents",
                code="bad_place",
            ) from None


def latest(reader: BinderReader) -> ChangePosition:
    """Return the place behind everything that is there now."""
    _, last = reader.connection.execute(_NUMBERS).fetchone()
    return ChangePosition(reader.generation, last or 0)


class StoredChange(NamedTuple):
    """A change with its document as it is stored: `data` is BSON, or `large` loads it."""

    kind: ChangeKind
    place: str
    id: str = ""
    version: int | None = None
    data: bytes | None = None
    large: LargeDocument | None = None

    def load(self) -> bytes | None:
        """Return the data of the document; None unless it was put."""
        return self.data if self.large is None else self.large.load()

    def change(self) -> Change:
        """Return the change with its decoded document."""
        data = self.load()
        return Change(self.kind, self.place, self.id, self.version, None if data is None else decode(data))


class DocumentChanges(Iterator[Change]):
    """A live stream of document changes. For one thread; only `stop` may be called from others.

    Ends when `timeout` seconds pass without a change, when it is stopped or closed, or the log is closed.
    """

    def __init__(self, hw: Store, pool: Pool, after: str | None, timeout: float | None) -> None:
        """Raises NotFound if there is no such binder, Invalid for a bad place."""
        self._hw = hw
        self._pool = pool
        self._timeout = timeout
        self._stopped = False
        self._ready: deque[StoredChange] = deque()
        self._snapshot: Snapshot | None = None  # of the large document that was given last
        self._ids: list[str] = []  # changed documents that were not read yet, in reverse
        self._reached = 0  # the commit up to which they are
        place = None if after is None or after == "latest" else ChangePosition.parse(after)
        self._watch = BinderWatch(pool, hw.directory.clock)
        reader = self._watch.look()
        if reader is None:
            pool.file()  # raises
            raise NotFound(f"no such binder: {pool.name!r}", code="no_such_binder")
        if place is None:
            place = latest(reader)._replace(listing=after is None)
        self._place = place
        self.place = str(place)
        """From where to go on after what was given so far."""

    def __next__(self) -> Change:
        stored = self.take()
        if stored is None:
            raise StopIteration
        try:
            return stored.change()
        finally:
            self._release()

    def take(self) -> StoredChange | None:
        """Return the next change as it is stored; None at the end.

        A large document is loaded from a snapshot that is open until this is called again.
        """
        if not self._ready and not self._find():
            self.place = str(self._place)  # which may be behind the last document of all, and so tells more than that
            self.close()
            return None
        change = self._ready.popleft()
        self.place = change.place
        return change

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_watch"):
            self._watch.close()

    def stop(self) -> None:
        """End the iteration soon, from any thread."""
        self._stopped = True

    def close(self) -> None:
        """End it, and give back its connection. May be called twice."""
        self._stopped = True
        self._ready.clear()
        self._release()
        self._watch.close()

    def _release(self) -> None:
        """End the snapshot of the last large document."""
        snapshot, self._snapshot = self._snapshot, None
        reader = None if snapshot is None else snapshot.close()
        if reader is not None:
            reader.end()

    def _find(self) -> bool:
        """Wait until there is something to give; False if it is over."""
        deadline = None if self._timeout is None else self._hw.directory.clock.monotonic() + self._timeout
        try:
            self._release()
            while not self._is_over():
                reader = self._watch.look()
                if reader is not None and self._read(reader):
                    return True
                if not self._watch.wait(deadline, self._is_over):
                    return False
        except Closed:
            return False
        except sqlite3.Error as error:
            reader = self._watch.handed_over()
            self._pool.discard(reader)
            raise self._pool.translation(reader, error) from error
        return False

    def _is_over(self) -> bool:
        if not self._stopped:
            try:
                self._hw.directory.check_open()
            except Closed:
                self._stopped = True
        return self._stopped

    def _read(self, reader: BinderReader) -> bool:
        """Read a page of what is next; False if there is nothing."""
        reader.spare()
        reader.begin()
        snapshot = Snapshot(self._pool, reader)
        try:
            self._begin_anew_if_lost(reader.generation, reader.connection)
            while not self._ready:
                if self._place.listing:
                    self._list(snapshot)
                elif not self._ids and not self._gather(reader.connection):
                    return False
                else:
                    self._give(snapshot)
            return True
        finally:
            if self._ready and self._ready[-1].large is not None:
                self._snapshot = snapshot
            else:
                reader.end()

    def _begin_anew_if_lost(self, generation: str, connection: sqlite3.Connection) -> None:
        """Give a reset if the file is another one, or commits behind the place are forgotten."""
        first, last = connection.execute(_NUMBERS).fetchone()
        place, last = self._place, last or 0
        reached = self._reached if self._ids else place.number
        if place.generation == generation and reached <= last and (first is None or first <= reached + 1):
            return
        self._ids.clear()
        self._place = ChangePosition(generation, last, listing=True)
        self._ready.append(StoredChange("reset", str(self._place)))

    def _list(self, snapshot: Snapshot) -> None:
        """Read a page of all documents. With the last of them, only changes are still to come."""
        last, size = self._place.id, 0
        query = (_FIRST, (PAGE_DOCUMENTS,)) if last is None else (_NEXT, (last, PAGE_DOCUMENTS))
        rows = snapshot.connection.execute(*query)
        page: list[_Row] = []
        more = False
        for row in rows:
            if size >= PAGE_BYTES or (row[3] is None and page):  # a large document is a page of its own
                more = True
                break
            page.append(row)
            size += PAGE_BYTES if row[3] is None else len(row[3])
        rows.close()
        is_last = not more and len(page) < PAGE_DOCUMENTS
        for number, each in enumerate(page, 1):
            done = is_last and number == len(page)
            self._place = self._place._replace(listing=not done, id=None if done else each[1])
            self._put(snapshot, each)
        if not page:
            self._place = self._place._replace(listing=False, id=None)

    def _put(self, snapshot: Snapshot, found: _Row) -> None:
        """Give a document, at the place that is known."""
        row, id, version, data = found
        large = snapshot.large(row, id, version, load=self._load) if data is None else None
        self._ready.append(StoredChange("put", str(self._place), id, version, data, large))

    def _load(self, row: int) -> bytes:
        """Load the last large document. A method, so that whatever loads it keeps the connection from being reused."""
        if self._snapshot is None:
            raise Closed("the snapshot of the changes was closed")
        return self._snapshot.load(row)

    def _gather(self, connection: sqlite3.Connection) -> bool:
        """Return which documents have changed in the commits behind the place; False if there are none."""
        ids: dict[str, None] = {}
        rows = connection.execute(_COMMITS, (self._place.number, GROUP_COMMITS))
        for number, text in rows:
            self._reached = number
            for id in _decode_ids(text):
                ids.pop(id, None)  # where it is given is where it has changed last
                ids[id] = None
            if len(ids) >= GROUP_IDS:
                break
        rows.close()
        self._ids = list(reversed(ids))
        return bool(ids)

    def _give(self, snapshot: Snapshot) -> None:
        """Read a page of documents that have changed. Only with the last of them are their commits passed."""
        ids, size, count = self._ids, 0, 0
        while ids and size < PAGE_BYTES and count < PAGE_DOCUMENTS:
            row = snapshot.connection.execute(_ONE, (ids[-1],)).fetchone()
            if row is not None and row[3] is None and count:  # a large document is a page of its own
                return
            id = ids.pop()
            count += 1
            if not ids:
                self._place = self._place._replace(number=self._reached)
            if row is None:
                self._ready.append(StoredChange("delete", str(self._place), id))
            else:
                size += PAGE_BYTES if row[3] is None else len(row[3])
                self._put(snapshot, row)
