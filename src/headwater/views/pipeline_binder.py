"""A binder that a pipeline fills: documents that are computed elsewhere, and how far the pipeline has come with them.

Both are in one file and change in one transaction, so that a rerun after a crash is idempotent. The
table `pipelines` is only in files that a pipeline fills: `run` names what all batches up to `batch` are of.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from headwater.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable
from headwater.store import Store
from headwater.views import database
from headwater.views.draft import Draft
from headwater.views.encoding import decode
from headwater.views.files import Files
from headwater.views.keys import index_key

CHUNK = 10_000  # documents that are written with one statement

Encoded = Iterable[tuple[str, bytes]]
"""Documents: the id and the BSON of each."""

_TABLE = """
CREATE TABLE IF NOT EXISTS pipelines (name TEXT PRIMARY KEY, run TEXT NOT NULL, batch INTEGER NOT NULL) WITHOUT ROWID
"""
_NOTE = "INSERT INTO pipelines (name, run, batch) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET run = ?2, batch = ?3"


class PipelineBatch(msgspec.Struct, frozen=True):
    """A batch that is written atomically: the pipeline, its run, and the number of the batch, from 0."""

    pipeline: str
    run: str
    number: int = 0


def check_free(hw: Store, binder: str, pipeline: str) -> None:
    """Raise Conflict if something else than this pipeline fills a binder."""
    with _current(Files.of(hw), binder) as found:
        if found is not None:
            _check_ours(found[1], binder, pipeline)


def replace(hw: Store, binder: str, batch: PipelineBatch, documents: Encoded, indexes: Sequence[str] = ()) -> int:
    """Replace all documents of a binder, atomically and durably. Return how many there are.

    Raises Invalid if two have the same id, and Conflict if something else fills the binder: then all is as before.
    """
    files = Files.of(hw)
    with files.building(binder) as file:
        wanted = {*indexes}
        with _current(files, binder) as found:
            if found is not None:
                _check_ours(found[1], binder, batch.pipeline)
                wanted |= {*database.indexes(found[1])}
        with database.translated(file), contextlib.closing(database.connect(file)) as connection:
            count = _load(connection, batch, documents, sorted(wanted))
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise Unavailable("the new file of the binder is in use by another program", code="locked")
        files.take_place(binder, file)
    return count


def put(hw: Store, binder: str, batch: PipelineBatch, documents: Encoded, indexes: Sequence[str] = ()) -> int | None:
    """Put the documents of a batch into a binder, durably, unless this was done before; how many, None if it was.

    The first batch of a run that the binder does not know replaces whatever an earlier run has left. Raises as
    `replace` does.
    """
    with _current(Files.of(hw), binder) as found:
        if found is not None and _reached(found[1], batch) is not None:
            return _put(*found, batch, documents, indexes)
    return replace(hw, binder, batch, documents, indexes)


def _put(
    file: Path, connection: sqlite3.Connection, batch: PipelineBatch, documents: Encoded, indexes: Sequence[str]
) -> int | None:
    with database.translated(file), database.writing(connection):
        reached = _reached(connection, batch)
        if reached is not None and reached >= batch.number:
            return None
        for path in indexes:
            database.ensure_index(connection, path)
        count = _upsert(connection, batch, documents)
        connection.execute(_NOTE, (batch.pipeline, batch.run, batch.number))
        return count


@contextlib.contextmanager
def _current(files: Files, binder: str) -> Iterator[tuple[Path, sqlite3.Connection] | None]:
    """Return the file that is read now, if there is one that can be."""
    try:
        file = files.current(binder)
        connection = database.connect(file)
    except (NotFound, Corrupt):
        yield None
        return
    with contextlib.closing(connection):
        yield file, connection


def _load(connection: sqlite3.Connection, batch: PipelineBatch, documents: Encoded, indexes: Sequence[str]) -> int:
    """Fill a new file, in one transaction."""
    count = 0
    with database.writing(connection):
        for path in indexes:
            database.declare_index(connection, path)
        columns = "".join(f", {database.column(path)}" for path in indexes)
        insert = f"INSERT INTO documents (id, version, data{columns}) VALUES (?, ?, ?{', ?' * len(indexes)})"  # noqa: S608  # it is quoted
        for chunk in _chunks(documents):
            (before,) = connection.execute("SELECT coalesce(max(row), 0) FROM documents").fetchone()
            try:
                connection.executemany(insert, [(id, batch.number, data, *_keys(data, indexes)) for id, data in chunk])
            except sqlite3.IntegrityError:
                among = (id for id, _ in chunk)
                raise _two_rows(next(id for id in among if _is_before(connection, id, before))) from None
            count += len(chunk)
        connection.execute(_TABLE)
        connection.execute(_NOTE, (batch.pipeline, batch.run, batch.number))
    return count


def _is_before(connection: sqlite3.Connection, id: str, row: int) -> bool:
    return connection.execute("SELECT 1 FROM documents WHERE id = ? AND row <= ?", (id, row)).fetchone() is not None


def _upsert(connection: sqlite3.Connection, batch: PipelineBatch, documents: Encoded) -> int:
    draft, seen = Draft(connection), set[str]()
    for chunk in _chunks(documents):
        draft.begin()
        found: dict[str, bytes | None] = dict(chunk)
        if not seen.isdisjoint(found):
            raise _two_rows(min(seen.intersection(found)))
        seen.update(found)
        draft.put_all(found, batch.number)
        draft.write()
    return len(seen)


def _chunks(documents: Encoded) -> Iterator[list[tuple[str, bytes]]]:
    """Yield the documents, some thousand at a time. Raises Invalid if an id is in one of these twice."""
    left = iter(documents)
    while chunk := list(itertools.islice(left, CHUNK)):
        ids = Counter(id for id, _ in chunk)
        if len(ids) < len(chunk):
            raise _two_rows(ids.most_common(1)[0][0])
        yield chunk


def _keys(data: bytes, indexes: Sequence[str]) -> tuple[object, ...]:
    if not indexes:
        return ()
    document = decode(data)
    return tuple(index_key(document, path) for path in indexes)


def _reached(connection: sqlite3.Connection, batch: PipelineBatch) -> int | None:
    """Return the last batch of this run that the file has; None if it has none."""
    return dict(_filled_by(connection)).get((batch.pipeline, batch.run))


def _filled_by(connection: sqlite3.Connection) -> list[tuple[tuple[str, str], int]]:
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'pipelines'").fetchone():
        return []
    return [((name, run), batch) for name, run, batch in connection.execute("SELECT name, run, batch FROM pipelines")]


def _check_ours(connection: sqlite3.Connection, binder: str, pipeline: str) -> None:
    others = [f"projection {name!r}" for (name,) in connection.execute("SELECT name FROM projections ORDER BY name")]
    others += [f"pipeline {name!r}" for (name, _), _ in _filled_by(connection) if name != pipeline]
    if others:
        raise Conflict(
            f"binder {binder!r} is filled by {', '.join(others)}, not by pipeline {pipeline!r}",
            hint="give the pipeline its own binder; or delete the binder's files while nothing fills it",
            code="binder_taken",
        )


def _two_rows(id: str) -> Invalid:
    return Invalid(
        f"two rows have the _id {id!r}; a document is one row",
        hint="group by it, or drop duplicates",
        code="repeated_id",
    )
