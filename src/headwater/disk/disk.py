"""The one module that opens for writing, syncs, renames, maps, locks and waits.

`Disk` and `Clock` are all that the storage layer knows of the machine. Tests replace them with ones that record,
cut, tear and fail. Methods on the hot path are the functions of `os` themselves. Errors are plain `OSError`s: the
callers, who know the topic and the offset, turn them into Headwater's own. But a directory in the place of a file is
`Corrupt`, and memory or descriptors that the system does not give are `Unavailable`, for all of them. Safe from any
thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from io import FileIO
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

from headwater.disk import shared_memory
from headwater.disk.open_files import open_files
from headwater.disk.shared_memory import map_file
from headwater.errors import Corrupt, Unavailable, out_of_memory
from headwater.event import UNIX_EPOCH_TICKS

P = ParamSpec("P")
T = TypeVar("T")

_held: set[int] = set()  # descriptors that are locked until their release
_guarded: WeakSet[FileIO] = WeakSet()  # files that are locked until they are closed


def _after_fork() -> None:
    for fd in _held:
        os.close(fd)
    _held.clear()
    for file in _guarded:
        file.close()
    _guarded.clear()


os.register_at_fork(after_in_child=_after_fork)

Word = tuple[Any, int, int]
"""A word of shared memory to wait on: the map, the position in it, and the value that was seen there."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

LOCK_POLL_S = 0.00005
LOCK_POLL_MAX_S = 0.002


class Clock:
    """Time and randomness."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    random_bytes = staticmethod(secrets.token_bytes)

    def ticks(self) -> int:
        """Return the wall clock, in ticks. It may step back; callers that need increasing ticks ensure that."""
        return time.time_ns() // 100 + UNIX_EPOCH_TICKS

    def boot_id(self) -> bytes:
        """16 bytes that change when the machine restarts, so that unsynced pages cannot have survived unnoticed."""
        return _boot_id()


@cache
def _boot_id() -> bytes:
    try:
        said = Path("/proc/sys/kernel/random/boot_id").read_bytes().decode()
        return bytes.fromhex(said.strip().replace("-", ""))
    except OSError:  # not Linux
        command = ("sysctl", "-n", "kern.boottime")
        booted = subprocess.run(command, capture_output=True, check=True).stdout  # noqa: S603  # no input from outside
        return hashlib.sha256(booted).digest()[:16]


def _sparing(call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Make a call that needs a descriptor: if the process has none left, after logs have given some back."""
    try:
        return call(*args, **named)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        if not open_files.spare():
            raise Unavailable(
                "this process has no file descriptors left",
                hint="raise its limit ('ulimit -n', or LimitNOFILE= of systemd), or use fewer connections at once",
                code="too_many_files",
            ) from error
    return call(*args, **named)


def _shared(directory: Path) -> int:
    """Return what the group of a directory may do with all that is made in it: what it may do with the directory.

    That lets in the group only, or lets it write; not so 0755, which is just a default. Others get nothing. The
    umask narrows it.
    """
    mode = os.stat(directory).st_mode
    return mode & 0o070 if mode & 0o020 or not mode & 0o007 else 0


def _open(path: Path, flags: int, mode: int = 0o600) -> int:
    return _sparing(os.open, path, flags | os.O_CLOEXEC, mode)


class Disk:
    """Files, directories, maps and locks."""

    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    fdatasync = staticmethod(getattr(os, "fdatasync", os.fsync))
    truncate = staticmethod(os.ftruncate)
    close = staticmethod(os.close)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    link = staticmethod(os.link)
    symlink = staticmethod(os.symlink)
    readlink = staticmethod(os.readlink)

    def mkdir(self, path: Path, *, ordinary: bool = False) -> None:
        """Make a directory for this user, and for a group where the one above is shared with it.

        An `ordinary` one is for users that the umask lets in: what is in it is not the log's.
        """
        os.mkdir(path, 0o777 if ordinary else 0o700 | _shared(path.parent))

    def make_root(self, path: Path, like: Path | None = None) -> None:
        """Make a directory for this user alone, wherever it is; or with the mode of another, if that is there."""
        self.mkdir(path)
        mode = os.stat(path).st_mode & 0o7700
        if like is not None:
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(like).st_mode & 0o7777
        os.chmod(path, mode)

    def exchange(self, one: Path, other: Path) -> None:
        """Give two files or directories the name of the other, at once. Raises OSError where the system cannot."""
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename is None:
            raise OSError(errno.ENOSYS, "two names cannot be exchanged here")
        if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(one), None, str(other))

    def open_read(self, path: Path) -> int:
        fd = _open(path, os.O_RDONLY)
        if stat.S_ISDIR(os.fstat(fd).st_mode):  # which opens, and then cannot be read
            os.close(fd)
            raise _not_a_file(path)
        return fd

    def open_directory(self, path: Path) -> int:
        """Open a directory, to sync or to lock it."""
        return _open(path, os.O_RDONLY | os.O_DIRECTORY)

    def open_write(self, path: Path) -> int:
        """Open an existing file for reading and writing."""
        try:
            return _open(path, os.O_RDWR)
        except IsADirectoryError as error:
            raise _not_a_file(path) from error

    def create(self, path: Path) -> int:
        """Make a new file for this user, and for a group where the directory is shared with it; it must not exist."""
        return _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600 | _shared(path.parent) & 0o060)

    def create_ordinary(self, path: Path) -> int:
        """Make a new file for users that the umask lets read it; it must not exist."""
        return _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)

    def create_private(self, path: Path) -> int:
        """Make a new file that only this user may read; it must not exist."""
        return _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)

    def open_append(self, path: Path) -> int:
        """Open a file, made if it is not there, whose writes go to its end: a log for people, which is not synced."""
        return _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)

    def append(self, fd: int, data: bytes) -> None:
        """Write all of it where the descriptor is."""
        done = os.write(fd, data)
        while done < len(data):
            done += os.write(fd, memoryview(data)[done:])

    def size(self, fd: int) -> int:
        return os.lseek(fd, 0, os.SEEK_END)

    def inode(self, where: int | Path) -> int | None:
        """Return what identifies the file behind a descriptor or a path; None if there is none.

        A file that no process holds open may leave its number to the next, so the time of its last change is included.
        """
        try:
            found = os.stat(where)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_ino << 64 | found.st_mtime_ns

    def file_size(self, path: Path) -> int:
        """Return bytes of a file; 0 if it is not there."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return 0

    def mode(self, path: Path) -> int:
        """Return who may read and write a file, as nine bits."""
        return os.stat(path).st_mode & 0o777

    def writable(self, path: Path) -> bool:
        """Return whether this user may write the file: not on read-only media."""
        return os.access(path, os.W_OK)

    def write(self, fd: int, data: bytes, position: int) -> None:
        """Write all of it: a short write, as a full disk makes, is tried again so that its error shows."""
        done = self.pwrite(fd, data, position)
        while done < len(data):
            done += self.pwrite(fd, memoryview(data)[done:], position + done)

    def write_synced(self, fd: int, data: bytes, position: int) -> None:
        """Write all of it, and return when that is durable: in one call where the system has one."""
        written = os.pwritev(fd, (data,), position, os.RWF_DSYNC) if hasattr(os, "RWF_DSYNC") else 0
        if written < len(data):
            self.write(fd, data[written:], position + written)
            self.fdatasync(fd)

    def reserve(self, fd: int, position: int, end: int) -> None:
        """Have zeros there, if the system can: a sync is quicker when it need not change the size of the file."""
        if hasattr(os, "posix_fallocate"):
            with contextlib.suppress(OSError):
                os.posix_fallocate(fd, position, end - position)

    def read_file(self, path: Path) -> bytes:
        try:
            return _sparing(path.read_bytes)
        except IsADirectoryError as error:
            raise _not_a_file(path) from error
        except MemoryError as error:
            raise out_of_memory(f"{path} cannot be read") from error

    def is_directory(self, path: Path) -> bool:
        """Return whether a directory has this name."""
        return path.is_dir()

    def names(self, path: Path | int) -> list[str]:
        """Return what a directory holds; nothing if it is not there."""
        try:
            return _sparing(lambda: os.listdir(path))
        except FileNotFoundError:
            return []

    def sizes(self, path: Path) -> dict[str, int]:
        """Return what a directory holds, and the bytes of each; nothing if it is not there."""
        found: dict[str, int] = {}
        with contextlib.suppress(FileNotFoundError), _sparing(os.scandir, path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    found[entry.name] = entry.stat().st_size
        return found

    def entries(self, path: Path) -> list[tuple[str, bool]]:
        """Return what a directory holds, and whether each is a directory; nothing if there is no such directory."""
        try:
            with _sparing(os.scandir, path) as entries:
                return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def status(self, where: int | Path) -> os.stat_result:
        """Return the size and the times of a file, by its descriptor or its path."""
        return os.stat(where)

    def touch(self, path: Path) -> None:
        """Note that a file was used just now; it must be there."""
        os.utime(path)

    def used_ns(self, path: Path) -> int:
        """Return when a file was touched or written last, in nanoseconds; it must be there."""
        return os.stat(path).st_mtime_ns

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def sync_directory(self, path: Path) -> None:
        fd = self.open_directory(path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace(self, path: Path, data: bytes, *, sync: bool = True, private: bool = False) -> None:
        """Put a whole file in place, or leave what was there: temporary file, sync, rename, sync of the directory.

        A private one may be read by this user alone, or by users who could read the one before.
        """
        with self.replacing(path, sync=sync, private=private) as fd:
            self.write(fd, data, 0)

    @contextlib.contextmanager
    def replacing(
        self, path: Path, *, sync: bool = True, private: bool = False, ordinary: bool = False
    ) -> Iterator[int]:
        """A new file to write, which takes the name `path` when the block ends, durably; if that raises, it is gone.

        An `ordinary` one may be read by users that the umask lets.
        """
        make = self.create_private if private else self.create_ordinary if ordinary else self.create
        temporary, fd = self.create_temporary(path, make)
        unlock = self.unlocking(fd)  # which is C: a signal handler may keep `release` from beginning
        try:
            if private:
                self._keep_owner(path, fd)
            yield fd
            if sync:
                self.fdatasync(fd)
            self.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise
        finally:
            unlock()
            self.release(fd)
        if sync:
            self.sync_directory(path.parent)

    def _keep_owner(self, path: Path, fd: int) -> None:
        """Give a new file the owner, group and mode of the one that it replaces, if there is one and we may."""
        with contextlib.suppress(FileNotFoundError, PermissionError):
            found = os.stat(path)
            os.fchown(fd, found.st_uid, found.st_gid)  # first: a mode for one group must not serve another
            os.fchmod(fd, found.st_mode & 0o777)

    def create_temporary(self, path: Path, make: Callable[[Path], int] | None = None) -> tuple[Path, int]:
        """Return a new file beside `path`, locked until its `release` so that no process removes it as abandoned."""
        while True:
            temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
            fd = (make or self.create)(temporary)
            if self.hold(fd) and self.inode(temporary) is not None:
                return temporary, fd
            self.release(fd)  # a sweeper came between making and locking it

    def map(self, fd: int, size: int, *, write: bool = False) -> memoryview:
        """Map the beginning of an open file, which may be closed then."""
        try:
            return map_file(fd, size, write=write)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise out_of_memory(f"{size} bytes of a file cannot be mapped") from error

    def store(self, mapped: memoryview | mmap.mmap, position: int, data: bytes) -> None:
        """Write into a shared map; other processes see it at once, the disk some time later."""
        mapped[position : position + len(data)] = data

    def try_lock(self, fd: int) -> bool:
        """Take the exclusive lock of an open file, if it is free. It ends with the process that holds it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)

    def unlocking(self, fd: int) -> Callable[[], object]:
        """Return what unlocks an open file, locked or not, for a `finally`: in C, so that no signal comes before it."""
        return partial(fcntl.flock, fd, fcntl.LOCK_UN)

    def guard(self, fd: int) -> FileIO:
        """Return the file of a descriptor, closed and so unlocked at the end of its `with`, and in a forked child.

        That `with` is C: a signal handler that raises comes before it or after it, and never leaves the file locked.
        """
        file = FileIO(fd, "r")
        _guarded.add(file)
        _held.discard(fd)
        return file

    def hold(self, fd: int) -> bool:
        """Like `try_lock`, for an open file that is locked until its `release`; a forked child does not inherit it."""
        if not self.try_lock(fd):
            return False
        _held.add(fd)
        return True

    def release(self, fd: int) -> None:
        """Unlock and close a file. Unlocked first: a child that was forked just now may have a copy of it."""
        if fd in _held:
            self.unlock(fd)
            _held.discard(fd)
        self.close(fd)

    def shared_word(self) -> mmap.mmap:
        """Return a word of memory of this process alone that its threads can wait on."""
        return mmap.mmap(-1, mmap.PAGESIZE)

    def wake(self, mapped: Any, position: int) -> None:
        """Wake the threads that wait on the word at `position` of a shared map, in any process."""
        shared_memory.wake(mapped, position)

    def wait(self, words: Sequence[Word], timeout_s: float) -> None:
        """Sleep until one of the words (map, position, expected value) changes and is woken, or the time is over."""
        shared_memory.wait(words, timeout_s)


def _not_a_file(path: Path) -> Corrupt:
    return Corrupt(
        f"{path} is a directory, but must be a file",
        hint="move it away, and restore the file from a backup",
        path=str(path),
        position=0,
        size=0,
        reason="it is a directory, but must be a file",
    )


def wait_for_lock(
    take: Callable[[int], bool], fd: int, clock: Clock, wait_s: float, each_time: Callable[[], None] | None = None
) -> bool:
    """Try to `take` a lock until the time is over. Polled, because a blocking flock(2) knows no time-out."""
    deadline = clock.monotonic() + wait_s
    pause = LOCK_POLL_S
    while not take(fd):
        if each_time is not None:
            each_time()
        if clock.monotonic() > deadline:
            return False
        clock.sleep(pause)
        pause = min(pause * 1.2, LOCK_POLL_MAX_S)
    return True


def locked(path: Path, disk: Disk, clock: Clock, wait_s: float) -> FileIO:
    """Take the lock until the `with` of what is returned ends; raises Unavailable if others keep it for too long.

    The file is made if it is not there.
    """
    with contextlib.suppress(FileExistsError):
        disk.close(disk.create(path))
    file = disk.guard(disk.open_write(path))
    try:
        if not wait_for_lock(disk.try_lock, file.fileno(), clock, wait_s):
            raise Unavailable(
                f"{path} is locked by another process",
                hint=f"is a process stopped or stuck? 'fuser {path}' shows it",
                code="locked",
            )
    except BaseException:
        file.close()
        raise
    return file


def is_locked(fd: int, disk: Disk) -> bool:
    """Tell whether another process, or another thread, has the lock of an open file, which is closed."""
    with disk.guard(fd) as file:
        return not disk.try_lock(file.fileno())
