"""Waiting for a binder to change, or to be made, or replaced by a rebuilt one: by looking, cheaply and ever less often.

SQLite sends no notification. A poll is one read of a link and of a number in shared memory, some ten microseconds.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.disk.disk import Clock
from headwater.errors import NotFound
from headwater.views.pool import BinderReader, Pool

PAUSE_MIN_S = 0.0005  # a projection takes about as long for a commit
PAUSE_MAX_S = 0.02  # fifty looks a second take a thousandth of a core
PAUSE_GROWTH = 1.5


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
