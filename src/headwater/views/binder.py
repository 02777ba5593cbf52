"""The documents of one binder, to be read. Only projections change them."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headwater.document import Document
from headwater.errors import Invalid, within_memory
from headwater.info import BinderInfo
from headwater.protocols import READ_TIMEOUT_S, AtLeast
from headwater.store import Store
from headwater.views import database, finding, read_your_writes
from headwater.views.encoding import decode, document_id
from headwater.views.files import Files
from headwater.views.finding import FoundDocuments, Results, SentDocument, SentDocuments
from headwater.views.following import DocumentChanges, latest
from headwater.views.keys import checked_path
from headwater.views.pool import BinderReader, BinderWatch, Pool
from headwater.views.query import query
from headwater.views.read_your_writes import ViewLag
from headwater.views.stored_documents import SMALL_DATA, Snapshot

_GET = "SELECT version, data FROM documents WHERE id = ?"
_GET_SMALL = f"SELECT version, {SMALL_DATA} FROM documents WHERE id = ?"  # noqa: S608  # nothing in it is a user's


@within_memory()
class LocalBinder:
    """A collection of documents. Safe from any thread; raises NotFound while no projection has made it.

    `at_least` has a read wait until the projections have passed what was appended: up to `timeout` seconds, then it
    raises Unavailable with the code `view_behind`, or at once with `projection_stopped`.
    """

    def __init__(self, hw: Store, files: Files, name: str) -> None:
        self.name = name
        self._hw = hw
        self._files = files
        self._pool = Pool(hw, files, name)  # raises for a bad name

    def get(self, id: str, *, at_least: AtLeast | None = None, timeout: float = READ_TIMEOUT_S) -> Document | None:
        """Return a document; None if there is none."""
        if id.__class__ is not str:
            id = _checked_id(id)
        reader = self._pool.take() if at_least is None else self._passed(at_least, timeout)
        try:
            row = reader.connection.execute(_GET, (id,)).fetchone()
        except sqlite3.Error as error:
            self._pool.discard(reader)
            raise self._pool.translation(reader, error) from error
        except UnicodeEncodeError:  # what is not quite text is the id of no document
            row = None
        self._pool.give(reader)
        return None if row is None else Document(id, row[0], decode(row[1]))

    def find(
        self,
        match: Mapping[str, Any] | None = None,
        *,
        sort: str | Sequence[str] = (),
        skip: int = 0,
        limit: int | None = None,
        fields: Sequence[str] | None = None,
        at_least: AtLeast | None = None,
        timeout: float = READ_TIMEOUT_S,
    ) -> FoundDocuments:
        """Return the documents that match, as they are at this moment; each is read when it is asked for.

        By id, unless `sort` says otherwise: a path, with `-` before it for descending order, or a list of those.
        `fields` lists the only paths that are wanted. Close the iterator if you do not read it to its end. Raises
        Invalid for what cannot be asked, TooLarge if too many documents would have to be sorted without an index.
        """
        asked = query(match, sort, skip, limit, fields)
        reader = self._begun(at_least, timeout)
        with self._giving_back_on_error(reader):
            return FoundDocuments(self._pool, reader, asked)

    def send(
        self,
        match: Mapping[str, Any] | None = None,
        *,
        sort: str | Sequence[str] = (),
        skip: int = 0,
        limit: int | None = None,
        fields: Sequence[str] | None = None,
        at_least: AtLeast | None = None,
        timeout: float = READ_TIMEOUT_S,
    ) -> SentDocuments:
        """Return what `find` does for a client that may be slow, large documents not loaded: for servers."""
        asked = query(match, sort, skip, limit, fields)
        reader = self._begun(at_least, timeout)
        with self._giving_back_on_error(reader):
            return SentDocuments(self._pool, reader, asked)

    def send_one(
        self, id: str, *, at_least: AtLeast | None = None, timeout: float = READ_TIMEOUT_S
    ) -> Document | SentDocument | None:
        """Return a document as `get` does; a large one is not loaded, and is held as it is now: for servers."""
        reader = self._pool.take() if at_least is None else self._passed(at_least, timeout)
        with self._giving_back_on_error(reader):
            try:
                row = reader.connection.execute(_GET_SMALL, (id,)).fetchone()
            except UnicodeEncodeError:  # what is not quite text is the id of no document
                row = None
            if row is not None and row[1] is None:
                if at_least is None:
                    reader.begin()
                return SentDocument(self._pool, reader, id)
        self._pool.give(reader)
        return None if row is None else Document(id, row[0], decode(row[1]))

    def results(
        self,
        match: Mapping[str, Any] | None = None,
        *,
        sort: str | Sequence[str] = (),
        skip: int = 0,
        limit: int | None = None,
        over: Callable[[], bool] = lambda: False,
    ) -> Results:
        """Return the stored documents of a find and their number, from one snapshot: for servers.

        `over` is asked again and again whether they are still wanted: raises Closed if not.
        """
        asked = query(match, sort, skip, limit)
        reader = self._begun(None, 0)
        with self._giving_back_on_error(reader):
            return Results(self._pool, reader, asked, over)

    def count(
        self,
        match: Mapping[str, Any] | None = None,
        *,
        at_least: AtLeast | None = None,
        timeout: float = READ_TIMEOUT_S,
    ) -> int:
        """Return how many documents match."""
        asked = query(match)
        with self._reading(at_least, timeout) as reader:
            return finding.count(Snapshot(self._pool, reader), asked)

    def explain(
        self,
        match: Mapping[str, Any] | None = None,
        *,
        sort: str | Sequence[str] = (),
        skip: int = 0,
        limit: int | None = None,
    ) -> str:
        """Return how `find` goes about it, in a line: the index, or a scan; and the plan of SQLite."""
        asked = query(match, sort, skip, limit)
        with self._reading() as reader:
            return finding.explain(reader.connection, asked)

    def follow(self, *, after: str | None = None, timeout: float | None = None) -> DocumentChanges:
        """Changes of documents, as they come, until `timeout` seconds bring none.

        Without `after` it begins with all documents that are there, with "latest" with what comes, else behind a place.
        Several changes of a document may be given as one. Every change has the place to go on from: nothing is lost
        then, but what was given last may be repeated. Raises NotFound; Invalid for what is no place.
        """
        _check_timeout(timeout)
        return DocumentChanges(self._hw, self._pool, after, timeout)

    def place(self) -> str:
        """Return the place behind everything that is there now: `follow(after=place)` gives what has come since."""
        with self._reading() as reader:
            return str(latest(reader))

    def index(self, field: str) -> None:
        """Have an index over a field from now on; it is made when this returns, durably.

        Projections wait meanwhile: for a million documents some ten seconds. Raises Invalid for what is no path of a
        field, TooLarge if there are too many. Nothing happens if it is there.
        """
        path = checked_path(field, "index")
        while True:
            reader = self._pool.take()
            with self._giving_back_on_error(reader), database.writing(reader.connection):
                database.ensure_index(reader.connection, path)
            self._pool.give(reader)
            if self._pool.file() == reader.file:  # else it was replaced by one that may not have it
                return

    def info(self) -> BinderInfo:
        """Return what the binder holds, and what fills it."""
        with self._reading() as reader:
            projections = reader.connection.execute("SELECT name FROM projections ORDER BY name").fetchall()
            return BinderInfo(
                name=self.name,
                documents=finding.count(Snapshot(self._pool, reader), query(None)),
                bytes=self._files.bytes(self._files.path / reader.file),
                indexes=database.indexes(reader.connection),
                projections=[name for (name,) in projections],
            )

    def close(self) -> None:
        """Let go of all files: those in use when their reading ends. The log calls it when it is closed."""
        self._pool.close()

    @contextlib.contextmanager
    def _reading(self, at_least: AtLeast | None = None, timeout: float = READ_TIMEOUT_S) -> Iterator[BinderReader]:
        """Return a connection in a transaction."""
        reader = self._begun(at_least, timeout)
        with self._giving_back_on_error(reader):
            yield reader
        self._pool.give(reader)

    def _begun(self, at_least: AtLeast | None, timeout: float) -> BinderReader:
        if at_least is not None:
            return self._passed(at_least, timeout)
        reader = self._pool.take()
        reader.begin()
        return reader

    @contextlib.contextmanager
    def _giving_back_on_error(self, reader: BinderReader) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self._pool.discard(reader)
            raise self._pool.translation(reader, error) from error
        except BaseException:
            self._pool.give(reader)
            raise

    def _passed(self, at_least: AtLeast, timeout: float) -> BinderReader:
        """Return a connection in a transaction that sees everything up to what was asked for."""
        wanted = read_your_writes.wanted(at_least)
        _check_timeout(timeout)
        deadline = self._hw.directory.clock.monotonic() + timeout
        watch = BinderWatch(self._pool, self._hw.directory.clock)
        try:
            while True:
                reader = watch.look()
                behind = ViewLag(f"binder {self.name!r} does not exist yet")
                if reader is not None:
                    reader.begin()
                    found = read_your_writes.behind(self._hw, reader.connection, self.name, wanted)
                    if found is None:
                        return watch.handed_over()
                    reader.end()
                    behind = found
                if not watch.wait(deadline, self._is_over):
                    raise read_your_writes.late(behind, timeout)
        except sqlite3.Error as error:
            reader = watch.handed_over()
            self._pool.discard(reader)
            raise self._pool.translation(reader, error) from error
        finally:
            watch.close()

    def _is_over(self) -> bool:
        """Never; but raise Closed if the log was closed."""
        self._hw.directory.check_open()
        return False


def _checked_id(id: Any) -> str:
    found = document_id(id)
    if found is None:
        raise Invalid("a document's id must not be empty", hint="as in get('ann')")
    return found


def _check_timeout(timeout: Any) -> None:
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and (not number or timeout < 0 or math.isnan(timeout)):
        raise Invalid(f"timeout must be a number of seconds from 0, not {timeout!r}"[:100])
