"""An object store in a directory, for tests, for one machine, and for file systems that several machines share.

A key is a path below the directory. An object is whole from its first moment: it is written and synced under a
temporary name, then linked (`create`, which fails if the name is taken) or renamed to its own. Whatever replaces or
deletes an object holds the lock of its key meanwhile, so that `swap` compares and replaces in one step; `create` needs
none, as link(2) is one step, and nobody frees a name during a swap. The file system must have link(2), atomic rename(2)
and flock(2) that reach all who share it: local ones and NFS do.

Directories are made as needed and stay, also when they are empty. If they were removed, one could be made again by
another process, not durable yet, while this process remembers that it is.

What is found may be so new that whoever put it has not synced its directory yet. It is not given out before that is
done: a caller would act on what a power loss takes away.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from stat import S_ISDIR
from typing import NoReturn, TypeVar

from headwater.bucket.object_store import RESERVED, ObjectEntry, StoredObject, checked_key, checked_prefix
from headwater.disk.disk import Clock, Disk, locked
from headwater.errors import Corrupt, HeadwaterError, Invalid, Unavailable, Unsupported
from headwater.event import UNIX_EPOCH_TICKS
from headwater.limits import DEFAULTS

LOCKS = 256  # two keys that share one only wait for each other
DIRECTORIES_MAX = 100_000  # of which something is remembered
YOUNG_NS = 60_000_000_000  # what is older is on the disk by itself: file systems write their journals every few seconds
TIME_STEP_NS = 50_000_000  # file systems stamp with a clock that may stand still for some milliseconds
FINGERPRINT_BYTES = 65_536
UNLINKABLE = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # as file systems say it that have no links

T = TypeVar("T")


class DirectoryStore:
    """A store (`store.py`) in a directory, which is made with the first object. Safe from any thread and process."""

    def __init__(self, path: Path, disk: Disk, clock: Clock, lock_wait_s: float = DEFAULTS.lock_wait_s) -> None:
        self.path = path.absolute()
        self._disk = disk
        self._clock = clock
        self._lock_wait_s = lock_wait_s
        self._temporary = self.path / RESERVED / "temporary"
        self._locks = self.path / RESERVED / "locks"
        self._ready: set[Path] = set()  # directories that are there, durably
        self._synced: dict[Path, int] = {}  # directories, and the time in ns when a sync of each began
        self._swept = False

    @property
    def url(self) -> str:
        """Return where it is."""
        return f"objects://{self.path}"

    def get(self, key: str) -> StoredObject | None:
        """Return the object; None if it is not there."""
        return self._read(key, self._whole)

    def get_range(self, key: str, start: int, length: int) -> memoryview | None:
        """Return some bytes of an object, fewer where it ends; None if it is not there."""
        return self._read(key, lambda fd: self._bytes(fd, start, min(length, self._disk.size(fd) - start)))

    def create(self, key: str, data: bytes) -> str | None:
        """Put an object where none is; None if one is there."""
        path = self._path(key)
        with self._written(key, [data]) as (temporary, fd), self._failures(key):
            try:
                if not self._linked(temporary, path):
                    return None
            finally:
                self._forget(temporary)
            self._disk.sync_directory(path.parent)
            return self._version(fd, memoryview(data))

    def swap(self, key: str, data: bytes, version: str) -> str | None:
        """Replace an object if it still has this version; None if it has another one, or is gone."""
        path = self._path(key)
        with self._written(key, [data]) as (temporary, fd), self._failures(key):
            with self._locked(key):
                found = self.get(key)
                if found is None or found.version != version:
                    self._forget(temporary)
                    return None
                self._rename(temporary, path)
            return self._version(fd, memoryview(data))

    def put(self, key: str, data: bytes) -> None:
        """Put an object, whatever was there."""
        self.put_pieces(key, [data])

    def put_pieces(self, key: str, pieces: Iterable[bytes]) -> int:
        """Put an object of any size, whatever was there; returns the number of its bytes."""
        path = self._path(key)
        with self._written(key, pieces) as (temporary, fd), self._failures(key), self._locked(key):
            self._rename(temporary, path)
            return self._disk.size(fd)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are passed over."""
        changed: set[Path] = set()
        for key in keys:
            path = self._path(key)
            with self._failures(key), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._disk.status(path)  # so that no lock is made where there is no store
                with self._locked(key):
                    self._disk.unlink(path)
                changed.add(path.parent)
        for directory in changed:
            with self._failures(str(directory)):
                self._disk.sync_directory(directory)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        """Yield all objects whose keys begin so, behind the key `after`, in the order of their keys."""
        checked_prefix(prefix)
        for key in self._keys(prefix.rpartition("/")[0], prefix, after):
            with self._failures(key), contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                found = self._disk.status(self.path / key)
                yield ObjectEntry(key, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))

    def folders(self, prefix: str) -> builtins.list[str]:
        """Return the next parts of the keys that begin with `prefix`, if they go on behind them; sorted, each once."""
        checked_prefix(prefix)
        directories = [name for name, is_directory in self._entries(prefix.rstrip("/")) if is_directory]
        return sorted(name for name in directories if any(True for _ in self._keys(prefix + name, "", "")))

    def close(self) -> None:
        """Nothing is held."""

    def _path(self, key: str) -> Path:
        return self.path / checked_key(key)

    def _read(self, key: str, take: Callable[[int], T]) -> T | None:
        path = self._path(key)
        with self._failures(key):
            try:
                fd = self._disk.open_read(path)
            except (
                FileNotFoundError,
                NotADirectoryError,
                Corrupt,
            ):  # the last: other keys have this one before a slash
                return None
            try:
                self._settle(path.parent, self._disk.status(fd).st_ctime_ns)
                return take(fd)
            finally:
                self._disk.close(fd)

    def _settle(self, directory: Path, changed_ns: int) -> None:
        """See that the name of an object which got it at that time is durable."""
        now = (self._clock.ticks() - UNIX_EPOCH_TICKS) * 100
        if now - changed_ns > YOUNG_NS or changed_ns < self._synced.get(directory, 0) - TIME_STEP_NS:
            return
        self._disk.sync_directory(directory)
        if len(self._synced) >= DIRECTORIES_MAX:
            self._synced.clear()
        self._synced[directory] = now

    def _whole(self, fd: int) -> StoredObject:
        data = self._bytes(fd, 0, self._disk.size(fd))
        return StoredObject(data, self._version(fd, data))

    def _bytes(self, fd: int, start: int, length: int) -> memoryview:
        """Return bytes of a file. The system returns at most 2 GiB at once, so a large object takes several calls."""
        if start < 0 or length <= 0:
            return memoryview(b"")
        data = self._disk.pread(fd, length, start)
        while len(data) < length and (more := self._disk.pread(fd, length - len(data), start + len(data))):
            data += more
        return memoryview(data)

    def _version(self, fd: int, data: memoryview) -> str:
        """Return a fingerprint of the file and its bytes.

        Neither is enough alone: a new file may get the number and, within a step of the clock, the time of an old one;
        bytes may come again. What is swapped has a random nonce in it (`records.py`), so its bytes never do. Only the
        two ends of a large object are looked at, as those are not swapped, and reading must not cost a hash of all.
        """
        ends = data if len(data) <= 2 * FINGERPRINT_BYTES else data[:FINGERPRINT_BYTES]
        fingerprint = hashlib.sha256(ends)
        if len(ends) < len(data):
            fingerprint.update(data[-FINGERPRINT_BYTES:])
        return f"{self._disk.inode(fd):x}-{len(data):x}-{fingerprint.hexdigest()[:32]}"

    @contextlib.contextmanager
    def _written(self, key: str, pieces: Iterable[bytes]) -> Iterator[tuple[Path, int]]:
        """A temporary file with these bytes, synced; it is locked, so that nobody sweeps it."""
        with self._failures(key):
            temporary, fd = self._into(self._temporary, lambda: self._disk.create_temporary(self._temporary / "object"))
            if not self._swept:
                self._sweep()
        try:
            position = 0
            for piece in pieces:  # what fails in there is not the disk's fault
                with self._failures(key):
                    self._disk.write(fd, piece, position)
                position += len(piece)
            with self._failures(key):
                self._disk.fdatasync(fd)
            yield temporary, fd
        except BaseException:
            self._forget(temporary)
            raise
        finally:
            self._disk.release(fd)

    def _linked(self, temporary: Path, path: Path) -> bool:
        """Give a file its name, if that is free."""
        try:
            self._into(path.parent, lambda: self._disk.link(temporary, path))
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile: whoever asked looks, and asks again
                if S_ISDIR(self._disk.status(path).st_mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
            return False
        except OSError as error:
            if error.errno not in UNLINKABLE:
                raise
            raise Unsupported(
                f"{self.url}: its file system has no hard links, which conditional writes need",
                hint="use a directory on another file system, such as ext4, XFS or NFS",
                code="no_conditional_writes",
            ) from error
        return True

    def _rename(self, temporary: Path, path: Path) -> None:
        self._into(path.parent, lambda: self._disk.rename(temporary, path))
        self._disk.sync_directory(path.parent)

    def _into(self, directory: Path, enter: Callable[[], T]) -> T:
        """Give a file a name in a directory, which is made if it is not there."""
        try:
            if directory in self._ready:
                return enter()
        except FileNotFoundError:  # it was removed by hand
            self._ready.clear()
        self._make(directory)
        return enter()

    def _make(self, directory: Path) -> None:
        """Have the directory, durably. One that is there may be new and not durable: who made it may be dead."""
        if directory in self._ready:
            return
        inside = self.path in directory.parents
        if inside or self._disk.inode(directory.parent) is None:
            self._make(directory.parent)
        with contextlib.suppress(FileExistsError):
            (self._disk.mkdir if inside else self._disk.make_root)(directory)
        try:
            self._disk.sync_directory(directory.parent)
        except PermissionError:
            if inside:  # else a directory above the store is closed to us: then it was not us who made this one
                raise
        if len(self._ready) >= DIRECTORIES_MAX:
            self._ready.clear()
        self._ready.add(directory)

    def _sweep(self) -> None:
        """Remove what killed processes were writing: temporary files whose lock nobody holds."""
        self._swept = True
        for name in self._disk.names(self._temporary):
            with contextlib.suppress(FileNotFoundError):
                fd = self._disk.open_write(self._temporary / name)
                try:
                    if self._disk.hold(fd):
                        self._forget(self._temporary / name)
                finally:
                    self._disk.release(fd)

    def _forget(self, temporary: Path) -> None:
        with contextlib.suppress(OSError):  # the next process sweeps
            self._disk.unlink(temporary)

    def _locked(self, key: str) -> FileIO:
        self._make(self._locks)
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) % LOCKS
        return locked(self._locks / f"{number:02x}", self._disk, self._clock, self._lock_wait_s)

    def _keys(self, directory: str, prefix: str, after: str) -> Iterator[str]:
        """Yield the keys below a directory, in order. Directories that hold none of those asked for are not opened."""
        start = f"{directory}/" if directory else ""
        found = self._entries(directory)
        for name in sorted(f"{name}/" if is_directory else name for name, is_directory in found):
            key = start + name
            if not name.endswith("/"):
                if key.startswith(prefix) and key > after:
                    yield key
            elif key.startswith(prefix) and (key > after or after.startswith(key)):
                yield from self._keys(key[:-1], prefix, after)

    def _entries(self, directory: str) -> Sequence[tuple[str, bool]]:
        with self._failures(directory):
            found = self._disk.entries(self.path / directory)
        return found if directory else [entry for entry in found if entry[0] != RESERVED]

    @contextlib.contextmanager
    def _failures(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._raise(f"{self.url}/{key}", error)

    def _raise(self, where: str, error: OSError) -> NoReturn:
        if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
            raise Invalid(
                f"{where}: a part of this key is an object, or the key is a folder: {error.strerror}",
                hint="in a directory, 'a' and 'a/b' cannot both be objects",
                code="key_is_folder",
            ) from error
        kinds: dict[int | None, tuple[str, str]] = {
            errno.ENOSPC: ("disk_full", "the disk is full: free some space"),
            errno.EDQUOT: ("disk_full", "the quota is used up: free some space"),
            errno.EACCES: ("read_only", "to write, make it writable for this user"),
            errno.EPERM: ("read_only", "to write, make it writable for this user"),
            errno.EROFS: ("read_only", "to write, make it writable for this user"),
        }
        code, hint = kinds.get(error.errno, ("disk_failed", "check the disk"))
        failed: HeadwaterError = Unavailable(
            f"{where}: {error.strerror or error}", hint=hint, code=code, errno=error.errno
        )
        raise failed from error
