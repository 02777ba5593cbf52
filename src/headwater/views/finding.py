"""Runs a find: a plan over one snapshot of a binder, whose documents are read lazily.

For a client of a server, which may be slow, large documents are not loaded (views/stored_documents.py).
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, Self, TypeVar

from headwater.document import Document
from headwater.errors import Closed, TooLarge
from headwater.limits import FIND_SORTED_MAX
from headwater.views import database
from headwater.views.encoding import decode
from headwater.views.keys import index_key, order_of
from headwater.views.pool import BinderReader, Pool
from headwater.views.query import Count, DocumentMatch, QueryPlan, choose, project
from headwater.views.stored_documents import SMALL_DATA, LargeDocument, Snapshot, StoredDocument, decoding

SORTED_MIN = 1000  # documents that are gathered before those that are surely not wanted are dropped

T = TypeVar("T")
_Entry = tuple[Any, ...]  # row and id of a document, and what it is sorted by

_COLUMNS = f"row, id, version, {SMALL_DATA}"
_ONE = f"SELECT id, version, {SMALL_DATA} FROM documents WHERE row = ?"  # noqa: S608  # nothing in it is a user's
_BY_ID = f"SELECT row, version, {SMALL_DATA} FROM documents WHERE id = ?"  # noqa: S608


class DocumentReader(Iterator[T]):
    """Reads documents through one connection, from one snapshot of a binder. For one thread at a time.

    Raises Closed when the log was closed before its end.

    It holds a connection until its end, `close`, or the end of the object: close what you do not read to its end. As
    long as it is open, the write-ahead log of SQLite grows; it blocks no writer.
    """

    _snapshot: Snapshot | None = None  # also where making it has failed
    _found: Generator[T, None, None]

    def __init__(self, pool: Pool, snapshot: Snapshot) -> None:
        """Own the snapshot from now on, and give its connection back to the pool in the end."""
        self._pool = pool
        self._snapshot = snapshot

    def __next__(self) -> T:
        snapshot = self._snapshot
        if snapshot is None:
            raise StopIteration
        try:
            snapshot.check()
            return next(self._found)
        except sqlite3.Error as error:
            translation = snapshot.translation(error)
            self.close(broken=True)
            raise translation from error
        except BaseException:  # also its end
            self.close()
            raise

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self, *, broken: bool = False) -> None:
        """End it, and give back what it holds. May be called twice."""
        snapshot, self._snapshot = self._snapshot, None
        reader = None if snapshot is None else snapshot.close()
        if reader is not None:
            self._found.close()  # the statements end before their transaction
            (self._pool.discard if broken else self._pool.give)(reader)


class FoundDocuments(DocumentReader[Document]):
    """The documents of a find, from a snapshot taken when it started."""

    def __init__(self, pool: Pool, reader: BinderReader, query: DocumentMatch) -> None:
        snapshot = Snapshot(pool, reader)
        self._found = _documents(snapshot, make_plan(reader.connection, query), query)
        super().__init__(pool, snapshot)


class SentDocuments(DocumentReader[Document | LargeDocument]):
    """The documents of a find for a client that may be slow: large ones are not loaded.

    If they must be sorted, that is done when this is made; what is kept of them is their row, in `held` bytes.
    """

    def __init__(self, pool: Pool, reader: BinderReader, query: DocumentMatch) -> None:
        reader.spare()
        snapshot = Snapshot(pool, reader)
        plan = make_plan(reader.connection, query)
        self.held = 0
        if plan.ordered:
            make: Callable[..., Document | LargeDocument] = partial(_wanted, query.fields)
            large = partial(snapshot.large, fields=query.fields)
            self._found = _generated(_in_order(query, partial(_matching, snapshot, plan, query, make, large)))
        else:
            rows = array("q", _sorted(snapshot, plan, query))
            self.held = len(rows) * rows.itemsize
            self._found = _sent_in(snapshot, rows, query)
        super().__init__(pool, snapshot)


class SentDocument(DocumentReader[Document | LargeDocument]):
    """At most one document, by its id, for a client that may be slow."""

    def __init__(self, pool: Pool, reader: BinderReader, id: str) -> None:
        reader.spare()
        snapshot = Snapshot(pool, reader)
        self._found = _sent_one(snapshot, id)
        super().__init__(pool, snapshot)


class Results(DocumentReader[StoredDocument | LargeDocument]):
    """The stored documents of a find, and their number.

    Unless all documents are wanted in an order that they are kept in, each is looked at when this is made; what is kept
    of those that match is their row, in `held` bytes.
    """

    def __init__(self, pool: Pool, reader: BinderReader, query: DocumentMatch, over: Callable[[], bool]) -> None:
        """Open a find; `over` is polled during the search to cancel it, which raises Closed."""
        reader.spare()
        connection, snapshot = reader.connection, Snapshot(pool, reader)
        plan = make_plan(connection, query)
        if query.matcher is None and plan.ordered:
            left = max(0, count(snapshot, query) - query.skip)
            self.count = left if query.limit is None else min(left, query.limit)
            self.held = 0
            self._found = _stored(snapshot, plan, query)
        else:
            rows = _rows(snapshot, plan, query, over)
            self.count = len(rows)
            self.held = self.count * rows.itemsize
            self._found = _stored_in(snapshot, rows)
        super().__init__(pool, snapshot)


def make_plan(connection: sqlite3.Connection, query: DocumentMatch) -> QueryPlan:
    """Return how a query is answered best, inside of a transaction."""

    def visited(plan: QueryPlan, most: int) -> int:
        found = 0
        for statement, keys in plan.statements("1"):
            counting = f"SELECT count(*) FROM ({statement} LIMIT ?)"  # noqa: S608  # a plan's
            found += connection.execute(counting, (*keys, most - found)).fetchone()[0]
            if found >= most:
                break
        return found

    def all() -> int:
        return connection.execute("SELECT max(row) FROM documents").fetchone()[0] or 0

    node = None if query.matcher is None else query.matcher.node
    return choose(node, query.sort, query.wanted, database.indexes(connection), Count(visited, all))


def explain(connection: sqlite3.Connection, query: DocumentMatch) -> str:
    """Return a plan in words, and what SQLite makes of it, in a line."""
    plan = make_plan(connection, query)
    statement, keys = next(plan.statements("id, version, data"))
    steps = [detail for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {statement}", keys)]
    return f"{plan.describe()}: {'; '.join(steps)}"


def count(snapshot: Snapshot, query: DocumentMatch) -> int:
    """Return how many documents match."""
    connection = snapshot.connection
    if query.matcher is None:
        return int(connection.execute("SELECT count(*) FROM documents").fetchone()[0])
    plan = make_plan(connection, query)
    return sum(1 for _ in _matching(snapshot, plan._replace(ordered=False), query, _nothing))


def _documents(snapshot: Snapshot, plan: QueryPlan, query: DocumentMatch) -> Generator[Document, None, None]:
    """Yield the documents of a find, all of them loaded."""
    if plan.ordered:
        yield from _in_order(query, partial(_matching, snapshot, plan, query, partial(_wanted, query.fields)))
        return
    for row in _sorted(snapshot, plan, query):
        id, version, data = snapshot.connection.execute(_ONE, (row,)).fetchone()
        yield _wanted(query.fields, row, id, version, decode(snapshot.load(row) if data is None else data))


def _generated(found: Iterator[T]) -> Generator[T, None, None]:
    yield from found


def _sent_in(
    snapshot: Snapshot, rows: array[int], query: DocumentMatch
) -> Generator[Document | LargeDocument, None, None]:
    """Yield the documents in these rows, large ones not loaded. Nothing of a document is held when it was yielded."""
    for row in rows:
        yield _as_sent(snapshot, query.fields, row, *snapshot.connection.execute(_ONE, (row,)).fetchone())


def _as_sent(
    snapshot: Snapshot, fields: dict[str, Any] | None, row: int, id: str, version: int, data: bytes | None
) -> Document | LargeDocument:
    if data is None:
        return snapshot.large(row, id, version, fields)
    return _wanted(fields, row, id, version, decode(data))


def _sent_one(snapshot: Snapshot, id: str) -> Generator[Document | LargeDocument, None, None]:
    found = snapshot.connection.execute(_BY_ID, (id,)).fetchone()
    if found is not None:
        row, version, data = found
        yield _as_sent(snapshot, None, row, id, version, data)


def _wanted(fields: dict[str, Any] | None, row: int, id: str, version: int, document: dict[str, Any]) -> Document:
    """Return the wanted fields of a document."""
    del row
    return Document(id, version, document if fields is None else project(document, fields))


def _nothing(row: int, id: str, version: int, document: dict[str, Any] | None = None) -> None:
    del row, id, version, document


def _only_row(row: int, id: str, version: int, document: dict[str, Any] | None = None) -> int:
    del id, version, document
    return row


def _in_order(query: DocumentMatch, matching: Callable[..., Iterator[T]]) -> Iterator[T]:
    """Return the documents as the plan gives them, until there are enough."""
    if query.matcher is None:
        return islice(matching(skip=query.skip), query.limit)
    return islice(matching(), query.skip, query.wanted)


def _sorted(
    snapshot: Snapshot, plan: QueryPlan, query: DocumentMatch, over: Callable[[], bool] | None = None
) -> Iterator[int]:
    """Return the rows of documents that must be sorted; only what they are sorted by is kept meanwhile."""
    matching = _matching(snapshot, plan, query, _keys_of(query), over=over)
    return (row for row, *_ in _keys_in_order(matching, query))


def _keys_of(query: DocumentMatch) -> Callable[[int, str, int, dict[str, Any]], _Entry]:
    """Return what makes an entry to be sorted of a document."""
    paths = [path for path, _ in query.sort]

    def keys(row: int, id: str, version: int, document: dict[str, Any]) -> _Entry:
        del version
        return row, id, *[order_of(index_key(document, path)) for path in paths]

    return keys


def _keys_in_order(matching: Iterator[_Entry], query: DocumentMatch) -> list[_Entry]:
    """Return the entries of the documents that are wanted, in their order."""
    wanted = query.wanted
    enough = FIND_SORTED_MAX if wanted is None else min(max(2 * wanted, SORTED_MIN), FIND_SORTED_MAX)
    kept: list[_Entry] = []
    for entry in matching:
        kept.append(entry)
        if len(kept) <= enough:
            continue
        if wanted is not None and wanted < enough:
            kept = _first(kept, query)
        else:
            raise TooLarge(
                f"more than {FIND_SORTED_MAX} documents would have to be sorted",
                hint="create an index on the field, or give a limit",
                limit="find_sorted_max",
                maximum=FIND_SORTED_MAX,
            )
    return _first(kept, query)[query.skip :]


def _rows(snapshot: Snapshot, plan: QueryPlan, query: DocumentMatch, over: Callable[[], bool]) -> array[int]:
    """Return the rows of the documents that are wanted, in their order."""
    if not plan.ordered:
        return array("q", _sorted(snapshot, plan, query, over))
    found = _matching(snapshot, plan, query, _only_row, _only_row, over=over)
    return array("q", islice(found, query.skip, query.wanted))


def _stored(
    snapshot: Snapshot, plan: QueryPlan, query: DocumentMatch
) -> Generator[StoredDocument | LargeDocument, None, None]:
    """Yield all documents in the order of a plan."""
    limit = -1 if query.limit is None else query.limit
    for statement, keys in plan.statements(_COLUMNS):
        with closing(snapshot.connection.execute(f"{statement} LIMIT ? OFFSET ?", (*keys, limit, query.skip))) as rows:
            for row, id, version, data in rows:
                yield _as_stored(snapshot, row, id, version, data)


def _stored_in(snapshot: Snapshot, rows: array[int]) -> Generator[StoredDocument | LargeDocument, None, None]:
    """Yield the documents in these rows."""
    for row in rows:
        yield _as_stored(snapshot, row, *snapshot.connection.execute(_ONE, (row,)).fetchone())


def _as_stored(
    snapshot: Snapshot, row: int, id: str, version: int, data: bytes | None
) -> StoredDocument | LargeDocument:
    return snapshot.large(row, id, version) if data is None else StoredDocument(id, version, data)


def _first(kept: list[_Entry], query: DocumentMatch) -> list[_Entry]:
    """Sorted, by one field after the other from the last to the first: sorting keeps what was in order before."""
    kept.sort(key=lambda entry: entry[1], reverse=bool(query.sort) and query.sort[-1][1])
    for number in reversed(range(len(query.sort))):
        kept.sort(key=_item(number + 2), reverse=query.sort[number][1])
    return kept[: query.wanted]


def _item(number: int) -> Callable[[_Entry], Any]:
    return lambda entry: entry[number]


def _matching(
    snapshot: Snapshot,
    plan: QueryPlan,
    query: DocumentMatch,
    make: Callable[[int, str, int, dict[str, Any]], T],
    large: Callable[[int, str, int], T] | None = None,
    skip: int = 0,
    over: Callable[[], bool] | None = None,
) -> Iterator[T]:
    """Yield what `make` returns for each document that matches; the first of a plan may be skipped.

    With `large`, a large document is decoded only to be matched, and what `large` returns is yielded for it. Nothing of
    a document is held when it was yielded: the next may be read much later.
    """
    matches = query.matcher
    for statement, keys in plan.statements(_COLUMNS):
        with closing(snapshot.connection.execute(f"{statement} LIMIT -1 OFFSET ?", (*keys, skip))) as rows:
            for row, id, version, data in rows:
                if over is not None and over():
                    raise Closed("the query was cancelled")
                if data is not None:
                    document = decode(data)
                    del data
                    if matches is None or matches(document):
                        found = [make(row, id, version, document)]
                        del document
                        yield found.pop()
                elif large is not None and matches is None:
                    yield large(row, id, version)
                else:
                    yield from _matching_large(snapshot, query, row, id, version, make, large)


def _matching_large(
    snapshot: Snapshot,
    query: DocumentMatch,
    row: int,
    id: str,
    version: int,
    make: Callable[[int, str, int, dict[str, Any]], T],
    large: Callable[[int, str, int], T] | None,
) -> Iterator[T]:
    """Yield what becomes of a large document, if it matches."""
    found = []
    with decoding():
        document = decode(snapshot.load(row))
        if query.matcher is None or query.matcher(document):
            found.append(make(row, id, version, document) if large is None else large(row, id, version))
        del document
    if found:
        yield found.pop()
