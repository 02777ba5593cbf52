"""Runs a find: a plan over one snapshot of a binder, whose documents are read lazily."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple, Self, TypeVar

from headwater.document import Document
from headwater.errors import Closed, TooLarge
from headwater.limits import FIND_SORTED_MAX
from headwater.views import database
from headwater.views.encoding import decode
from headwater.views.keys import index_key, order_of
from headwater.views.pool import BinderReader, Pool
from headwater.views.query import Count, DocumentMatch, QueryPlan, choose, project

SORTED_MIN = 1000  # documents that are gathered before those that are surely not wanted are dropped

T = TypeVar("T")
_Entry = tuple[Any, ...]  # row and id of a document, and what it is sorted by

_ONE = "SELECT id, version, data FROM documents WHERE row = ?"


class DocumentReader(Iterator[T]):
    """Reads documents through one connection, from one snapshot of a binder. For one thread at a time.

    Raises Closed when the log was closed before its end.

    It holds a connection until its end, `close`, or the end of the object: close what you do not read to its end. As
    long as it is open, the write-ahead log of SQLite grows; it blocks no writer.
    """

    _reader: BinderReader | None = None  # also where making it has failed
    _found: Generator[T, None, None]

    def __init__(self, pool: Pool, reader: BinderReader) -> None:
        """`reader` has begun a transaction; once this is made, it gives it back to the pool."""
        self._pool = pool
        self._reader = reader

    def __next__(self) -> T:
        reader = self._reader
        if reader is None:
            raise StopIteration
        try:
            self._pool.check(reader)
            return next(self._found)
        except sqlite3.Error as error:
            self.close(broken=True)
            raise self._pool.translation(reader, error) from error
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
        reader, self._reader = self._reader, None
        if reader is not None:
            self._found.close()  # the statements end before their transaction
            (self._pool.discard if broken else self._pool.give)(reader)


class FoundDocuments(DocumentReader[Document]):
    """The documents of a find, from a snapshot taken when it started."""

    def __init__(self, pool: Pool, reader: BinderReader, query: DocumentMatch) -> None:
        self._found = _documents(reader.connection, make_plan(reader.connection, query), query)
        super().__init__(pool, reader)


class StoredDocument(NamedTuple):
    """A document as it is stored: `data` is BSON."""

    id: str
    version: int
    data: bytes


class Results(DocumentReader[StoredDocument]):
    """The stored documents of a find, and their number.

    Unless all documents are wanted in an order that they are kept in, each is looked at when this is made; what is kept
    of those that match is their row, in `held` bytes.
    """

    def __init__(self, pool: Pool, reader: BinderReader, query: DocumentMatch, over: Callable[[], bool]) -> None:
        """Open a find; `over` is polled during the search to cancel it, which raises Closed."""
        connection = reader.connection
        plan = make_plan(connection, query)
        if query.matcher is None and plan.ordered:
            left = max(0, count(connection, query) - query.skip)
            self.count = left if query.limit is None else min(left, query.limit)
            self.held = 0
            self._found = _stored(connection, plan, query)
        else:
            rows = _rows(connection, plan, query, over)
            self.count = len(rows)
            self.held = self.count * rows.itemsize
            self._found = _stored_in(connection, rows)
        super().__init__(pool, reader)


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


def count(connection: sqlite3.Connection, query: DocumentMatch) -> int:
    """Return how many documents match, inside of a transaction."""
    if query.matcher is None:
        return int(connection.execute("SELECT count(*) FROM documents").fetchone()[0])
    plan = make_plan(connection, query)
    return sum(1 for _ in _matching(connection, plan._replace(ordered=False), query, "data"))


def _documents(
    connection: sqlite3.Connection, plan: QueryPlan, query: DocumentMatch
) -> Generator[Document, None, None]:
    fields = query.fields
    found = _in_order(connection, plan, query) if plan.ordered else _sorted(connection, plan, query)
    for id, version, document in found:
        yield Document(id, version, document if fields is None else project(document, fields))


def _in_order(connection: sqlite3.Connection, plan: QueryPlan, query: DocumentMatch) -> Iterator[_Entry]:
    """Documents as the plan gives them, until there are enough."""
    if query.matcher is None:
        found = _matching(connection, plan, query, "id, version, data", query.skip)
        return islice(found, query.limit)
    return islice(_matching(connection, plan, query, "id, version, data"), query.skip, query.wanted)


def _sorted(connection: sqlite3.Connection, plan: QueryPlan, query: DocumentMatch) -> Iterator[_Entry]:
    """Documents that must be sorted, which are read again when it is done."""
    for row, id, *_ in _keys_in_order(_matching(connection, plan, query, "row, id, data"), query):
        version, data = connection.execute(_ONE, (row,)).fetchone()[1:]
        yield id, version, decode(data)


def _keys_in_order(matching: Iterator[_Entry], query: DocumentMatch) -> list[_Entry]:
    """Row and id of the documents that are wanted, in their order: only what they are sorted by is kept."""
    paths = [path for path, _ in query.sort]
    wanted = query.wanted
    enough = FIND_SORTED_MAX if wanted is None else min(max(2 * wanted, SORTED_MIN), FIND_SORTED_MAX)
    kept: list[_Entry] = []
    for row, id, document in matching:
        kept.append((row, id, *[order_of(index_key(document, path)) for path in paths]))
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


def _rows(
    connection: sqlite3.Connection, plan: QueryPlan, query: DocumentMatch, over: Callable[[], bool]
) -> array[int]:
    """Return the rows of the documents that are wanted, in their order."""
    found = _matching(connection, plan, query, "row, id, data", over=over)
    wanted = islice(found, query.skip, query.wanted) if plan.ordered else _keys_in_order(found, query)
    return array("q", (row for row, *_ in wanted))


def _stored(
    connection: sqlite3.Connection, plan: QueryPlan, query: DocumentMatch
) -> Generator[StoredDocument, None, None]:
    """Yield all documents in the order of a plan."""
    limit = -1 if query.limit is None else query.limit
    for statement, keys in plan.statements("id, version, data"):
        with closing(connection.execute(f"{statement} LIMIT ? OFFSET ?", (*keys, limit, query.skip))) as rows:
            for row in rows:
                yield StoredDocument(*row)


def _stored_in(connection: sqlite3.Connection, rows: array[int]) -> Generator[StoredDocument, None, None]:
    """Yield the documents in these rows."""
    for row in rows:
        yield StoredDocument(*connection.execute(_ONE, (row,)).fetchone())


def _first(kept: list[_Entry], query: DocumentMatch) -> list[_Entry]:
    """Sorted, by one field after the other from the last to the first: sorting keeps what was in order before."""
    kept.sort(key=lambda entry: entry[1], reverse=bool(query.sort) and query.sort[-1][1])
    for number in reversed(range(len(query.sort))):
        kept.sort(key=_item(number + 2), reverse=query.sort[number][1])
    return kept[: query.wanted]


def _item(number: int) -> Callable[[_Entry], Any]:
    return lambda entry: entry[number]


def _matching(
    connection: sqlite3.Connection,
    plan: QueryPlan,
    query: DocumentMatch,
    selected: str,
    skip: int = 0,
    over: Callable[[], bool] | None = None,
) -> Iterator[_Entry]:
    """What was selected of the documents that match, the data last, and decoded; the first of a plan may be skipped."""
    matches = query.matcher
    for statement, keys in plan.statements(selected):
        with closing(connection.execute(f"{statement} LIMIT -1 OFFSET ?", (*keys, skip))) as rows:
            for *known, data in rows:
                if over is not None and over():
                    raise Closed("the query was cancelled")
                document = decode(data)
                if matches is None or matches(document):
                    yield (*known, document)
