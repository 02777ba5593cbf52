"""Files that were fetched from an archive, kept on the local disk up to a number of bytes.

`archived/<log uuid>/<file>` below the log directory. A file is made under a temporary name, verified, synced and
renamed, so one that has its name is whole. Those that were used least lately go first; whoever has one open keeps it.
All of it may be deleted at any time. Safe from any thread and process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from headwater.errors import Unavailable
from headwater.limits import Limits
from headwater.storage.disk import Clock, Disk
from headwater.storage.lockfile import locked


class ArchiveCache:
    """The fetched files of one log directory."""

    def __init__(self, path: Path, disk: Disk, clock: Clock, limits: Limits) -> None:
        self.path = path
        self._disk = disk
        self._clock = clock
        self._bytes_max = limits.archive_cache_bytes
        self._lock_wait_s = limits.lock_wait_s
        self._mutex = threading.Lock()  # protects `_fetching`
        self._fetching: dict[Path, threading.Lock] = {}  # so that the threads of a process fetch a file once

    def folder(self, log: bytes) -> Path:
        """Where the files of a log (its uuid) are."""
        return self.path / log.hex()

    def get(self, path: Path, size: int, fetch: Callable[[], Iterable[bytes]]) -> None:
        """Have a file, fetched if it is not there. No lock is held meanwhile but that of this file in this process.

        What `fetch` raises is passed on, and nothing is left. Raises Unavailable if the disk does not take it.
        """
        if self._used(path):
            return
        with self._mutex:
            turn = self._fetching.setdefault(path, threading.Lock())
        try:
            with turn:
                if not self._used(path):
                    self._fetch(path, size, fetch)
        finally:
            with self._mutex:
                self._fetching.pop(path, None)

    def forget(self, log: bytes) -> None:
        """Remove the files of a log."""
        self._disk.remove_tree(self.folder(log))

    def after_fork(self) -> None:
        """In a forked child: threads of the parent are not here."""
        self._mutex = threading.Lock()
        self._fetching = {}

    def _used(self, path: Path) -> bool:
        try:
            self._disk.touch(path)
        except PermissionError:  # of another user, who made it: the oldest is then the first that was fetched
            return self._disk.inode(path) is not None
        except OSError:
            return False
        return True

    def _fetch(self, path: Path, size: int, fetch: Callable[[], Iterable[bytes]]) -> None:
        with self._failures():
            temporary, fd = self._reserve(path, size)
        try:
            position = 0
            for piece in fetch():  # which verifies all of it before it ends
                with self._failures():
                    self._disk.write(fd, piece, position)
                position += len(piece)
            with self._failures():
                # A rename without it could leave zeros under this name after a power loss.
                self._disk.fdatasync(fd)
                self._disk.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self._disk.unlink(temporary)
            raise
        finally:
            self._disk.release(fd)

    def _reserve(self, path: Path, size: int) -> tuple[Path, int]:
        """Make room, and a temporary file that takes it up, so that others who fetch count it."""
        for folder in (self.path, path.parent):
            with contextlib.suppress(FileExistsError):
                self._disk.mkdir(folder)
        with locked(self.path / ".lock", self._disk, self._clock, self._lock_wait_s):
            self._make_room(size)
            with contextlib.suppress(FileExistsError):
                self._disk.mkdir(path.parent)
            temporary, fd = self._disk.create_temporary(path)
            self._disk.truncate(fd, size)
        return temporary, fd

    def _make_room(self, size: int) -> None:
        """Remove what was used least lately, until so much fits. A file that is larger than all may be is alone."""
        found: list[tuple[int, int, Path]] = []
        total = 0
        for folder in (name for name in self._disk.names(self.path) if not name.startswith(".")):
            for name, bytes_there in self._disk.sizes(self.path / folder).items():
                path = self.path / folder / name
                if name.endswith(".tmp") and self._abandoned(path):
                    continue
                total += bytes_there
                if not name.endswith(".tmp"):
                    with contextlib.suppress(FileNotFoundError):
                        found.append((self._disk.used_ns(path), bytes_there, path))
        for _, bytes_there, path in sorted(found):
            if total + size <= self._bytes_max:
                break
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(path)
            total -= bytes_there

    def _abandoned(self, path: Path) -> bool:
        """Remove a temporary file whose process is gone; False if it lives."""
        try:
            fd = self._disk.open_write(path)
        except FileNotFoundError:
            return True
        try:
            if not self._disk.hold(fd):
                return False
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(path)
        finally:
            self._disk.release(fd)
        return True

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unavailable(
                f"what is fetched from the archive cannot be kept in {self.path}: {error.strerror or error}",
                hint="is there space, and is the directory writable for this user?",
                code="archive_cache",
            ) from error
