"""The connections through which a binder is read: as many as are in use at once, each to the file that is read now.

Every operation takes a free one, and looks first where the binder's link leads: a rebuilt binder is seen at once. A
connection is used by one thread at a time, and never by a forked child of the process that opened it.

A `BinderWatch` waits for a binder to be made, changed, or replaced by a rebuilt one. SQLite sends no notification, so
it polls, ever less often: a poll is one read of a link and of a number in shared memory, some ten microseconds.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from headwater.disk.disk import Clock
from headwater.errors import Closed, HeadwaterError, NotFound, Unavailable
from headwater.store import Store
from headwater.views import database
from headwater.views.files import Files, generation

FREE_MAX = 8  # idle connections that are kept: each has a cache, and three descriptors
SPARING_KIB = 256  # of pages that a connection caches which is held for a slow client
OPENED_TRIES = 100  # files that may be replaced while they are being opened, before it is given up

_inherited: list[object] = []  # SQLite forbids a forked child to touch, and so to close, the connections of its parent
PAUSE_MIN_S = 0.0005  # a projection takes about as long for a commit
PAUSE_MAX_S = 0.02  # fifty looks a second take a thousandth of a core
PAUSE_GROWTH = 1.5


class BinderReader:
    """A connection to one file of a binder. `file` is its name, `generation` which of the binder's files it is."""

    __slots__ = ("_spares", "connection", "file", "generation", "pid")

    def __init__(self, connection: sqlite3.Connection, file: str, pid: int) -> None:
        self.connection = connection
        self.file = file
        self.generation = generation(file)
        self.pid = pid
        self._spares = False

    def spare(self) -> None:
        """Cache few pages until it is given back: it may be held for long, and reads most pages once."""
        if not self._spares:
            database.limit_cache(self.connection, SPARING_KIB)
            self._spares = True

    def spare_no_more(self) -> None:
        """Cache as many pages as other connections do."""
        if self._spares:
            database.limit_cache(self.connection, database.CACHE_KIB)
            self._spares = False

    def begin(self) -> None:
        """Begin a transaction. It sees what is there at its first look, and nothing that comes later."""
        self.connection.execute("BEGIN")

    def end(self) -> None:
        """End it, if one was begun."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def version(self) -> int:
        """Return a number that changes when another connection has committed."""
        (found,) = self.connection.execute("PRAGMA data_version").fetchone()
        return int(found)


class Pool:
    """The free connections to one binder. Safe from any thread: taking and giving back are one step each."""

    def __init__(self, hw: Store, files: Files, name: str) -> None:
        self.name = name
        self._hw = hw
        self._files = files
        self._link = str(files.link(name))  # raises for a bad name
        self._readlink = hw.directory.disk.readlink
        self._free: deque[BinderReader] = deque()
        self._pid = os.getpid()
        self._closed = threading.Event()

    def file(self) -> str:
        """Return the name of the file that is read now; raises NotFound if there is no such binder."""
        try:
            return self._readlink(self._link)
        except OSError:
            return self._files.current(self.name).name

    def take(self) -> BinderReader:
        """Return a connection to the current file, to be given back. Raises NotFound if there is no such binder."""
        self._hw.directory.check_open()
        pid = os.getpid()
        if pid != self._pid:
            _inherited.append(self._free)
            self._free, self._pid = deque(), pid
        file = self.file()
        while self._free:
            try:
                reader = self._free.pop()
            except IndexError:  # another thread was first
                break
            if reader.file == file:
                return reader
            self.discard(reader)
        return self._open()

    def give(self, reader: BinderReader) -> None:
        """Take back a connection; what was begun with it is ended."""
        if reader.pid != os.getpid():
            _inherited.append(reader)
            return
        if reader.connection.in_transaction:
            reader.connection.execute("ROLLBACK")
        if len(self._free) >= FREE_MAX:
            self.discard(reader)
            return
        reader.spare_no_more()
        self._free.append(reader)
        if self._closed.is_set():  # before, or in between
            self.close()

    def check(self, reader: BinderReader) -> None:
        """Raise Closed if a connection in use must not be used any more."""
        self._hw.directory.check_open()
        if reader.pid != os.getpid():
            raise Closed(
                "this was started by the parent of a forked process", hint="start it again in the child process"
            )

    def translation(self, reader: BinderReader, error: sqlite3.Error) -> HeadwaterError:
        """Return an error of SQLite as one of ours."""
        return database.translation(self.path(reader), error)

    def path(self, reader: BinderReader) -> Path:
        """Return the path of the file that a connection reads."""
        return self._files.path / reader.file

    def discard(self, reader: BinderReader) -> None:
        """Close a connection instead of giving it back: it failed, or is not needed."""
        if reader.pid != os.getpid():
            _inherited.append(reader)
        else:
            reader.connection.close()

    def close(self) -> None:
        """Close all connections, those in use when they are given back. May be called twice."""
        self._closed.set()
        while self._free:
            try:
                self.discard(self._free.pop())
            except IndexError:
                return

    def _open(self) -> BinderReader:
        """Open the file that is read now.

        It may be replaced, and then removed, at any moment, also between opening it and what SQLite keeps beside it,
        and whatever goes wrong then means nothing. It is removed only when the link leads elsewhere: what still is the
        one that is read when it is open, or could not be opened, was not removed before.
        """
        for _ in range(OPENED_TRIES):
            file = self.file()
            try:
                connection = database.connect(self._files.path / file)
            except HeadwaterError:
                if self.file() == file:
                    raise
                continue
            try:
                if self.file() == file:
                    return BinderReader(connection, file, os.getpid())
            except BaseException:
                connection.close()
                raise
            connection.close()
        raise Unavailable(f"binder {self.name!r} is replaced too often", hint="check what rebuilds it")


class BinderWatch:
    """One connection to the file that is read now, and what was seen of it last. For one thread; close it."""

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._reader: BinderReader | None = None
        self._seen = 0

    def look(self) -> BinderReader | None:
        """Return a connection to the file that is read now; None if there is none. It stays the watch's own."""
        try:
            file = self._pool.file()
        except NotFound:
            return None
        reader = self._reader
        if reader is None or reader.file != file:
            self.close()
            try:
                reader = self._reader = self._pool.take()
            except NotFound:
                return None
        self._pool.check(reader)
        self._seen = reader.version()  # before the caller reads: what is committed after that is another change
        return reader

    def wait(self, deadline: float | None, over: Callable[[], bool]) -> bool:
        """Sleep until something has changed since the last look; False if the time is over first, or it is `over`."""
        pause = PAUSE_MIN_S
        while not over():
            if self._changed():
                return True
            if deadline is not None:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    return False
                pause = min(pause, left)
            self._clock.sleep(pause)
            pause = min(pause * PAUSE_GROWTH, PAUSE_MAX_S)
        return False

    def handed_over(self) -> BinderReader:
        """Return the connection of the last look, which is the caller's to give back from now on."""
        reader, self._reader = self._reader, None
        assert reader is not None
        return reader

    def close(self, *, broken: bool = False) -> None:
        """Give the connection back."""
        reader, self._reader = self._reader, None
        if reader is not None:
            (self._pool.discard if broken else self._pool.give)(reader)

    def _changed(self) -> bool:
        try:
            file = self._pool.file()
        except NotFound:
            return False
        reader = self._reader
        return reader is None or reader.file != file or reader.version() != self._seen
