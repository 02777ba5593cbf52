"""What was fetched from an archive, kept on the local disk up to a number of bytes.

`archived/<folder>/<offset>.*` below the log directory: the files of one offset come and go together. They are made in
a directory of their own, verified, and moved to their names when all of them are there, the one that is looked for
last. Those that were used least recently go first; a reader keeps what it has open. All of it may be deleted at any
time. Safe from any thread and process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from headwater.disk.disk import Clock, Disk, locked
from headwater.errors import Unavailable
from headwater.limits import Limits

MAKING = ".making"  # the suffix of a directory whose files are being made; a locked file of its name is beside it


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

    def folder(self, log: bytes, what: str = "") -> Path:
        """Return where the files of a log (its uuid) are: its segments, or something else of it."""
        return self.path / f"{log.hex()}{what}"

    def get(self, path: Path, size: int, make: Callable[[Path], None]) -> None:
        """Have a file, made if it is not there. No lock is held meanwhile but that of this file in this process.

        `make` puts it, and others of the same offset, into a directory; `size` is about how large they are. What it
        raises is passed on, and nothing is left. Raises Unavailable if the disk does not take it.
        """
        if self._used(path):
            return
        with self._mutex:
            turn = self._fetching.setdefault(path, threading.Lock())
        try:
            with turn:
                if not self._used(path):
                    self._make(path, size, make)
        finally:
            with self._mutex:
                self._fetching.pop(path, None)

    def drop(self, path: Path) -> None:
        """Remove a file, so that it is made again when it is needed."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path)

    def forget(self, log: bytes) -> None:
        """Remove the files of a log."""
        for name in self._disk.names(self.path):
            if name.startswith(log.hex()):
                self._disk.remove_tree(self.path / name)

    def after_fork(self) -> None:
        """Begin anew in a forked child: threads of the parent are not here."""
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

    def _make(self, path: Path, size: int, make: Callable[[Path], None]) -> None:
        with self._failures():
            with contextlib.suppress(FileExistsError):
                self._disk.mkdir(self.path)
            with self._locked():
                self._make_room(size)
                marker, fd = self._disk.create_temporary(self.path / path.name)
            making = marker.with_name(f"{marker.name}{MAKING}")
        try:
            with self._failures():
                self._disk.mkdir(making)
                make(making)
                with self._locked():
                    self._make_room(0)
                    self._move(making, path)
        finally:
            with contextlib.suppress(OSError):
                self._disk.remove_tree(making)
                self._disk.unlink(marker)
            self._disk.release(fd)

    def _move(self, making: Path, path: Path) -> None:
        """Give what was made its names, the one of the file that is looked for last."""
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(path.parent)
        for name, is_directory in sorted(self._disk.entries(making), key=lambda entry: entry[0] == path.name):
            if is_directory and self._disk.names(making / name):
                self._disk.remove_tree(path.parent / name)
            if not is_directory or self._disk.names(making / name):
                self._disk.rename(making / name, path.parent / name)

    def _locked(self) -> contextlib.AbstractContextManager[object]:
        return locked(self.path / ".lock", self._disk, self._clock, self._lock_wait_s)

    def _make_room(self, size: int) -> None:
        """Remove what was used least recently, until so much fits. What is larger than the bound is there alone."""
        total = size
        found: list[tuple[int, int, list[Path]]] = []
        for name, is_directory in self._disk.entries(self.path):
            path = self.path / name
            if name.endswith(".tmp") and self._abandoned(path):
                continue
            if name.endswith(MAKING):
                total += self._bytes(path)
            elif is_directory:
                found += self._groups(path)
        total += sum(size for _, size, _ in found)
        for _, bytes_there, paths in sorted(found):
            if total <= self._bytes_max:
                break
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.remove_tree(path) if self._disk.is_directory(path) else self._disk.unlink(path)
            total -= bytes_there

    def _groups(self, folder: Path) -> Iterator[tuple[int, int, list[Path]]]:
        """Yield when the files of each offset were used last, how large they are, and all of them."""
        groups: dict[str, list[Path]] = {}
        for name in sorted(self._disk.names(folder), key=lambda name: not name.endswith(".log")):
            groups.setdefault(name.partition(".")[0], []).append(folder / name)
        for paths in groups.values():
            with contextlib.suppress(FileNotFoundError):
                yield max(map(self._disk.used_ns, paths)), sum(map(self._bytes, paths)), paths

    def _bytes(self, path: Path) -> int:
        if not self._disk.is_directory(path):
            return self._disk.file_size(path)
        return sum(self._bytes(path / name) for name in self._disk.names(path))

    def _abandoned(self, path: Path) -> bool:
        """Remove what a process has left that is gone; False if it lives."""
        try:
            fd = self._disk.open_write(path)
        except FileNotFoundError:
            return True
        try:
            if not self._disk.hold(fd):
                return False
            self._disk.remove_tree(path.with_name(f"{path.name}{MAKING}"))
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
                f"the archive cache {self.path} cannot be written: {error.strerror or error}",
                hint="is there space, and is the directory writable for this user?",
                code="archive_cache",
            ) from error
