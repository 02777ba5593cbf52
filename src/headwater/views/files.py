"""The files of binders: the current one, and its replacement.

`binders/<name>.sqlite` is a link to the file that is read, `<name>.<generation>.sqlite`. Replacing the link is what
makes a rebuilt binder the current one, atomically. A reader of the old file continues with it until its next check.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from urllib.parse import unquote

from headwater.disk.disk import Clock, Disk, is_locked, locked
from headwater.errors import Invalid, NotFound, TooLarge, Unavailable
from headwater.format import names
from headwater.limits import BINDER_NAME_BYTES_MAX
from headwater.store import Store
from headwater.views import database

SUFFIX = ".sqlite"
COMPANIONS = ("", "-wal", "-shm")  # files that SQLite keeps beside each other


class Files:
    """The directory `binders` of a log. Safe from any thread and process: it keeps no state."""

    def __init__(self, root: Path, disk: Disk, clock: Clock, lock_wait_s: float) -> None:
        self.path = root / "binders"
        self._root = root
        self._disk = disk
        self._clock = clock
        self._lock_wait_s = lock_wait_s

    @classmethod
    def of(cls, store: Store) -> Files:
        """Return the binder files of an open store."""
        directory = store.directory
        return cls(directory.path, directory.disk, directory.clock, store.limits.lock_wait_s)

    def names(self) -> list[str]:
        """Return the names of all binders, sorted."""
        found = (name.removesuffix(SUFFIX) for name in self._disk.names(self.path) if name.endswith(SUFFIX))
        return sorted(unquote(stem) for stem in found if "." not in stem)

    def link(self, name: str) -> Path:
        """Return the path under which a binder's file is always found."""
        if not name:
            raise Invalid("a binder needs a name", hint="as in hw.binder('baskets')")
        encoded = names.utf8(name, "a binder's name")
        if len(encoded) > BINDER_NAME_BYTES_MAX:
            raise TooLarge(
                f"a binder's name has {len(encoded)} bytes",
                limit="binder_name_bytes_max",
                maximum=BINDER_NAME_BYTES_MAX,
            )
        return self.path / f"{_escaped(name)}{SUFFIX}"

    def current(self, name: str) -> Path:
        """Return the file that is read now; raises NotFound if there is no such binder."""
        link = self.link(name)
        try:
            before = None
            while (found := self._disk.readlink(link)) != before:
                if self._disk.inode(self.path / found) is not None:
                    return self.path / found
                before = found  # it was replaced in between and removed; otherwise the file was deleted by hand
        except OSError:
            pass  # there is no link
        raise NotFound(
            f"no such binder: {name!r}",
            hint="projections create binders: headwater views run --app …",
            code="no_such_binder",
        )

    def ensure(self, name: str) -> Path:
        """Return the file that is read now; made, empty and durable, if there is no such binder."""
        with contextlib.suppress(NotFound):
            return self.current(name)
        with self.building(name) as file:
            with contextlib.suppress(NotFound):
                return self.current(name)  # another process was first
            self.take_place(name, file)
            return file

    @contextlib.contextmanager
    def building(self, name: str, *, wait: bool = True) -> Iterator[Path]:
        """Create a new, empty file beside the current one, in one process at a time; removed unless it takes its place.

        Raises Unavailable with the code `locked` while another process builds, at once unless `wait`.
        """
        link = self.link(name)
        self._make_directory()
        with self._locked(name, self._lock_wait_s if wait else 0.0):
            self._sweep(name)
            file = self.path / f"{link.stem}.{self._clock.random_bytes(8).hex()}{SUFFIX}"
            database.create(file)
            try:
                yield file
            finally:
                self._sweep(name)

    def is_building(self, name: str) -> bool:
        """Return whether another process, or another thread, builds a new file now. Does not block."""
        try:
            fd = self._disk.open_write(self._lock(name))
        except OSError:
            return False  # it was never locked, or is not ours to lock
        return is_locked(fd, self._disk)

    def take_place(self, name: str, file: Path) -> None:
        """Make a file the one that is read, atomically and durably. The caller is `building` it, and it is closed."""
        link = self.link(name)
        temporary = self.path / f"{link.name}.{self._clock.random_bytes(4).hex()}.tmp"
        try:
            self._disk.sync_directory(self.path)
            self._disk.symlink(file.name, temporary)
            self._disk.rename(temporary, link)
            self._disk.sync_directory(self.path)
        except OSError as error:
            raise Unavailable(
                f"binder {name!r} cannot be moved into place: {error.strerror}", hint="fix the disk"
            ) from error

    def tidy(self, name: str) -> None:
        """Remove what a process that was killed has left, unless another builds just now."""
        with contextlib.suppress(Unavailable), self._locked(name, 0.0):
            self._sweep(name)

    def bytes(self, file: Path) -> int:
        """Return the bytes of a file and of what SQLite keeps beside it."""
        return sum(self._disk.file_size(file.with_name(file.name + companion)) for companion in COMPANIONS)

    def _lock(self, name: str) -> Path:
        return self.path / f".{self.link(name).stem}.lock"

    def _locked(self, name: str, wait_s: float) -> FileIO:
        lock = self._lock(name)
        try:
            return locked(lock, self._disk, self._clock, wait_s)
        except OSError as error:
            raise _read_only(lock, error) from error

    def _sweep(self, name: str) -> None:
        """Remove the files of a binder that are not read: of rebuilds that ended early, or that were replaced."""
        stem = self.link(name).stem
        current = ""
        with contextlib.suppress(NotFound):
            current = self.current(name).name
        for found in sorted(self._disk.names(self.path)):  # a file goes before those beside it: then it is not opened
            base = found.removesuffix("-wal").removesuffix("-shm").removesuffix("-journal")
            ours = base.startswith(f"{stem}.") and base not in (f"{stem}{SUFFIX}", current)
            if ours and (base.endswith((SUFFIX, ".tmp"))):
                with contextlib.suppress(OSError):
                    self._disk.unlink(self.path / found)

    def _make_directory(self) -> None:
        try:
            with contextlib.suppress(FileExistsError):
                self._disk.mkdir(self.path)
                self._disk.sync_directory(self._root)
        except OSError as error:
            raise _read_only(self.path, error) from error


def _read_only(path: Path, error: OSError) -> Unavailable:
    hint = "check that the directory is writable and has space"
    return Unavailable(f"{path} cannot be created: {error.strerror}", hint=hint, code="read_only")


def generation(file: str) -> str:
    """Return which of the files that a binder has had this is, from its name."""
    return file.split(".")[-2]


def _escaped(name: str) -> str:
    """Return a file's name without dots, which part the generation from the name."""
    return names.directory_of(name).replace(".", "%2E")
