"""One SQLite file with the documents of a binder and the cursors of its projections. Only this module opens SQLite.

Write-ahead logging with full syncs: a commit that has returned is durable, and readers never wait for a writer. SQLite
writes, syncs and locks its own files; everything else that touches the disk goes through `storage.disk`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headwater.disk.disk import Disk
from headwater.errors import Corrupt, HeadwaterError, NotFound, TooLarge, Unavailable, Unsupported
from headwater.limits import BINDER_INDEXES_MAX
from headwater.views.encoding import decode
from headwater.views.keys import index_key

FORMAT = 1  # of the tables; stored as SQLite's user_version
APPLICATION_ID = 0x48574244  # "HWBD", which the program `file` shows
COUNTS_APPLICATION_ID = 0x4857464E  # "HWFN"
COUNTS_BUSY_S = 0.2  # a function is not to be kept from its work by its counts
BUSY_S = 30.0  # a writer waits so long for another one, which takes at most about three seconds at a time
ASK_MS = 100  # between two questions whether to go on waiting
CACHE_KIB = 16 * 1024  # of pages, for each connection
_GONE_CODES = sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY  # by what was removed, and when
ATTACHED_MAX = 8  # files that are read together; SQLite takes 10
CHECKPOINT_PAGES = 10_000  # 40 MiB: a page that is changed often is written back once for many commits

_TABLES = """
CREATE TABLE documents (
    row INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE TABLE indexes (path TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE changes (number INTEGER PRIMARY KEY AUTOINCREMENT, count INTEGER NOT NULL, ids TEXT NOT NULL);
CREATE TABLE projections (
    name TEXT PRIMARY KEY,
    topic TEXT NOT NULL,
    topic_uuid TEXT NOT NULL,
    version INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'running',
    folded INTEGER NOT NULL DEFAULT 0,
    skipped INTEGER NOT NULL DEFAULT 0,
    missed INTEGER NOT NULL DEFAULT 0,
    errors INTEGER NOT NULL DEFAULT 0,
    rate REAL NOT NULL DEFAULT 0,
    changed_ms INTEGER NOT NULL DEFAULT 0,
    error TEXT
) WITHOUT ROWID;
CREATE TABLE cursors (
    projection TEXT NOT NULL,
    partition INTEGER NOT NULL,
    next INTEGER NOT NULL,
    PRIMARY KEY (projection, partition)
) WITHOUT ROWID;
CREATE TABLE quarantined (
    projection TEXT NOT NULL,
    partition INTEGER NOT NULL,
    "offset" INTEGER NOT NULL,
    error TEXT NOT NULL,
    PRIMARY KEY (projection, partition, "offset")
) WITHOUT ROWID;
"""

_COUNTS = """
CREATE TABLE IF NOT EXISTS functions (
    name TEXT PRIMARY KEY,
    topic TEXT NOT NULL,
    handled INTEGER NOT NULL,
    appended INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    aside INTEGER NOT NULL,
    missed INTEGER NOT NULL,
    error TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rates (
    name TEXT NOT NULL,
    member TEXT NOT NULL,
    rate REAL NOT NULL,
    changed_ms INTEGER NOT NULL,
    PRIMARY KEY (name, member)
) WITHOUT ROWID;
"""
PAGE_ROWS = 1000  # documents that are read before their keys are written
_PAGE = "SELECT row, data FROM documents WHERE row > ? ORDER BY row LIMIT ?"


def create(path: Path) -> None:
    """Make a new, empty file; durable when it returns, but for its name in the directory."""
    with translated(path, making=True), contextlib.closing(_connect(path, "rwc")) as connection:
        connection.execute("PRAGMA page_size = 4096")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN;{_TABLES}PRAGMA user_version = {FORMAT};COMMIT;")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing file; every statement is a transaction of its own unless one is begun.

    Raises NotFound if there is no such file, Unsupported if a newer Headwater made it, Corrupt if it is something else.
    It may be used by any thread, one at a time.
    """
    with translated(path):
        connection = _connect(path, "rw")
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (application,) = connection.execute("PRAGMA application_id").fetchone()
        except BaseException:
            connection.close()
            raise
    if version != FORMAT or application != APPLICATION_ID:
        connection.close()
        if application == APPLICATION_ID:
            raise Unsupported(
                f"{path} has format version {version}; this Headwater supports {FORMAT}", hint="upgrade Headwater"
            )
        raise Corrupt(f"{path} is not a binder", hint="delete it; the application then rebuilds it", path=str(path))
    return connection


def create_scratch(path: Path, fields: Sequence[str]) -> sqlite3.Connection:
    """Return a connection to a new scratch file with the tables of a binder, which need not survive a crash.

    Documents have room for what indexes over these fields sort by; the indexes themselves are not made.
    """
    with translated(path, making=True):
        connection = _connect(path, "rwc")
        try:
            for setting in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
                connection.execute(f"PRAGMA {setting}")
            connection.executescript(f"BEGIN;{_TABLES}COMMIT;")
            for path_of_field in fields:
                add_column(connection, path_of_field)
                _note_index(connection, path_of_field)
        except BaseException:
            connection.close()
            raise
    return connection


@contextlib.contextmanager
def attached(connection: sqlite3.Connection, paths: Sequence[Path]) -> Iterator[list[str]]:
    """Other files to be read by the same statements, up to ATTACHED_MAX, under the names that are given."""
    names: list[str] = []
    try:
        for number, path in enumerate(paths):
            connection.execute(f"ATTACH ? AS other{number}", (f"{path.absolute().as_uri()}?mode=ro",))
            names.append(f"other{number}")
        yield names
    finally:
        for name in names:
            connection.execute(f"DETACH {name}")


def connect_counts(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """Return a connection to the file with the counts of functions, whose commits do not wait for the disk.

    With `create`, a missing file is created, else raises NotFound. Waits at most COUNTS_BUSY_S for other connections.
    """
    with translated(path):
        connection = _connect(path, "rwc" if create else "rw", COUNTS_BUSY_S)
        try:
            connection.execute("PRAGMA synchronous = NORMAL")
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            if not create and application != COUNTS_APPLICATION_ID:
                raise NotFound(f"{path} has no counts", hint="its writer has not created them yet, or died before")
            if application != COUNTS_APPLICATION_ID:
                connection.execute("PRAGMA journal_mode = WAL")
                with writing(connection):
                    for statement in filter(str.strip, _COUNTS.split(";")):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {COUNTS_APPLICATION_ID}")
        except BaseException:
            connection.close()
            raise
    return connection


def _connect(path: Path, mode: str, busy_s: float = BUSY_S) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    if mode == "rwc":  # SQLite would let everybody read it
        with contextlib.suppress(OSError):  # it is there; or it cannot be made, which SQLite tells
            Disk().close(Disk().create(path))
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=busy_s, check_same_thread=False, cached_statements=64
    )
    connection.execute("PRAGMA synchronous = FULL")
    limit_cache(connection, CACHE_KIB)
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    return connection


def limit_cache(connection: sqlite3.Connection, kib: int) -> None:
    """Have a connection cache at most so many KiB of pages; what it has beyond that is released."""
    connection.execute(f"PRAGMA cache_size = {-kib}")


@contextlib.contextmanager
def writing(connection: sqlite3.Connection, give_up: Callable[[], bool] | None = None) -> Iterator[sqlite3.Connection]:
    """Return an exclusive write transaction, committed durably if the block ends without an error.

    It waits for others that write; with `give_up`, that is asked now and then whether to go on waiting.
    """
    if give_up is None:
        connection.execute("BEGIN IMMEDIATE")
    else:
        _begin(connection, give_up)
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _begin(connection: sqlite3.Connection, give_up: Callable[[], bool]) -> None:
    until_s = time.monotonic() + BUSY_S
    connection.execute(f"PRAGMA busy_timeout = {ASK_MS}")
    try:
        while not connection.in_transaction:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not busy(error) or give_up() or time.monotonic() >= until_s:
                    raise
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")


def busy(error: sqlite3.Error) -> bool:
    """Return whether others kept the file locked for too long."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextlib.contextmanager
def reading(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Return a transaction that reads: all of it sees the same state."""
    connection.execute("BEGIN")
    try:
        yield connection
    finally:
        connection.execute("ROLLBACK")


@contextlib.contextmanager
def translated(path: Path, *, making: bool = False) -> Iterator[None]:
    """Raise what SQLite refuses as errors of ours."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise translation(path, error, making=making) from error


def translation(path: Path, error: sqlite3.Error, *, making: bool = False) -> HeadwaterError:
    """Return an error of SQLite as one of ours; `making`: it happened while the file was created."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _GONE_CODES and not making and not path.exists():  # it may have been replaced while it was opened
        return NotFound(f"{path} cannot be opened: {error}", code="no_such_binder")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
        hint = "check that the directory is writable and has space"
        return Unavailable(f"{path} cannot be opened or written: {error}", hint=hint, code="read_only")
    if busy(error):
        return Unavailable(
            f"{path} is locked: {error}", hint="check for another program that writes to it", code="locked"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        hint = "delete its files while no application runs; it is then rebuilt from the log"
        return Corrupt(f"{path} is damaged: {error}", hint=hint, path=str(path))
    return Unavailable(f"{path} cannot be used: {error}", hint="fix the disk")


def quoted(name: str) -> str:
    """Return a name as SQLite takes any."""
    return '"' + name.replace('"', '""') + '"'


def column(path: str) -> str:
    """Return the column of `documents` that has what an index sorts by."""
    return quoted(f"field {_apart(path)}")


def index(path: str) -> str:
    """Return the name of the index over that column."""
    return quoted(f"index of {_apart(path)}")


def _apart(path: str) -> str:
    """Return a path as a name that stays distinct although SQLite ignores case: ^a stands for A."""
    return "".join(f"^{each.lower()}" if "A" <= each <= "Z" else "^^" if each == "^" else each for each in path)


def indexes(connection: sqlite3.Connection) -> list[str]:
    """Return the paths of the fields that have an index, sorted."""
    return [path for (path,) in connection.execute("SELECT path FROM indexes ORDER BY path")]


def declare_index(connection: sqlite3.Connection, path: str) -> None:
    """Add an index to a file that has no documents yet, inside of `writing`."""
    add_column(connection, path)
    create_index(connection, path)


def add_column(connection: sqlite3.Connection, path: str) -> None:
    """Give every document room for what an index sorts by; empty, until it is filled."""
    connection.execute(f"ALTER TABLE documents ADD COLUMN {column(path)}")


def create_index(connection: sqlite3.Connection, path: str) -> None:
    """Make the index over a column that is there, and have it known."""
    connection.execute(f"CREATE INDEX {index(path)} ON documents ({column(path)}, id)")
    _note_index(connection, path)


def _note_index(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("INSERT INTO indexes (path) VALUES (?)", (path,))


def ensure_index(connection: sqlite3.Connection, path: str) -> bool:
    """Create a missing index over a field, inside of `writing`; True if new. Raises TooLarge for one too many."""
    there = indexes(connection)
    if path in there:
        return False
    if len(there) >= BINDER_INDEXES_MAX:
        raise TooLarge(
            f"the binder already has {len(there)} indexes",
            hint="each index adds a write for each changed document",
            limit="binder_indexes_max",
            maximum=BINDER_INDEXES_MAX,
        )
    add_column(connection, path)
    _fill(connection, path)
    create_index(connection, path)
    return True


def _fill(connection: sqlite3.Connection, path: str) -> None:
    update = f"UPDATE documents SET {column(path)} = ? WHERE row = ?"  # noqa: S608  # it is quoted
    last = -1
    while rows := connection.execute(_PAGE, (last, PAGE_ROWS)).fetchall():
        last = rows[-1][0]
        keys = ((index_key(decode(data), path), row) for row, data in rows)
        connection.executemany(update, [each for each in keys if each[0] is not None])
