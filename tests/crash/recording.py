"""A disk that writes down everything that changes it, in one order for all who share it.

The files are real ones below `root`; the trace is what `machine` replays up to any operation, to say what a crash at
that moment leaves. Locks, waits and reads pass through. For one thread at a time.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, NamedTuple

from headwater.disk.disk import Clock, Disk

EPOCH_TICKS = 139_000_000_000_000_000  # some day in 2023
BOOT = bytes(range(16))


class Op(NamedTuple):
    """One operation. Paths are relative to the root; `file` is a number of our own, as inodes are used again."""

    kind: str
    path: str = ""
    target: str = ""
    file: int = 0
    position: int = 0
    data: bytes = b""
    note: Any = None  # of a mark: what the workload began or was told


class RecordingDisk(Disk):
    """Real files below `root`, and the trace of what was done to them."""

    def __init__(self, root: Path, files: dict[int, int] | None = None) -> None:
        """`files` are the numbers, by inode, of files that are there already."""
        self.trace: list[Op] = []
        self._root = os.fspath(root)
        self._files = dict(files or {})
        self._next = max(self._files.values(), default=0) + 1
        self._open: dict[int, int] = {}
        self._maps: dict[int, tuple[memoryview, int]] = {}  # the map is held so that its id is not used again

    def mark(self, note: object) -> None:
        """Put a mark of the workload into the trace."""
        self.trace.append(Op("mark", note=note))

    def create(self, path: Path) -> int:
        fd = super().create(path)
        number = self._files[os.fstat(fd).st_ino] = self._next
        self._next += 1
        self._open[fd] = number
        self.trace.append(Op("create", self._relative(path), file=number))
        return fd

    def open_read(self, path: Path) -> int:
        fd = super().open_read(path)
        self._open[fd] = self._files.get(os.fstat(fd).st_ino, 0)  # what was there before is only read
        return fd

    def open_write(self, path: Path) -> int:
        fd = super().open_write(path)
        self._open[fd] = self._files[os.fstat(fd).st_ino]
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        os.close(fd)

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        done = os.pwrite(fd, data, position)
        self.trace.append(Op("write", file=self._open[fd], position=position, data=bytes(data[:done])))
        return done

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]  # fewer options than os has
        self.trace.append(Op("sync", file=self._open[fd]))

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)
        self.trace.append(Op("truncate", file=self._open[fd], position=size))

    def write_synced(self, fd: int, data: bytes, position: int) -> None:
        self.write(fd, data, position)
        self.fdatasync(fd)

    def reserve(self, fd: int, position: int, end: int) -> None:
        assert position <= self.size(fd), "a hole would be left"
        if end > self.size(fd):
            RecordingDisk.truncate(self, fd, end)

    def rename(self, path: Path, target: Path) -> None:  # type: ignore[override]  # fewer options than os has
        os.rename(path, target)
        self.trace.append(Op("rename", self._relative(path), self._relative(target)))

    def link(self, path: Path, target: Path) -> None:  # type: ignore[override]  # fewer options than os has
        os.link(path, target)
        self.trace.append(Op("link", self._relative(path), self._relative(target)))

    def unlink(self, path: Path) -> None:  # type: ignore[override]  # fewer options than os has
        os.unlink(path)
        self.trace.append(Op("unlink", self._relative(path)))

    def mkdir(self, path: Path) -> None:  # type: ignore[override]  # fewer options than os has
        os.mkdir(path)
        self.trace.append(Op("mkdir", self._relative(path)))

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)
        self.trace.append(Op("unlink", self._relative(path)))

    def remove_tree(self, path: Path) -> None:
        """File after file, the directories after what they held."""
        for directory, _, names in os.walk(path, topdown=False):
            for name in names:
                self.unlink(Path(directory, name))
            self.rmdir(Path(directory))

    def sync_directory(self, path: Path) -> None:
        if not os.path.isdir(path):
            raise NotADirectoryError(path)
        self.trace.append(Op("sync directory", self._relative(path)))

    def map(self, fd: int, size: int, *, write: bool = False) -> memoryview:
        mapped = super().map(fd, size, write=write)
        if write:
            self._maps[id(mapped)] = mapped, self._open[fd]
        return mapped

    def store(self, mapped: memoryview | mmap.mmap, position: int, data: bytes) -> None:
        super().store(mapped, position, data)
        self.trace.append(Op("store", file=self._maps[id(mapped)][1], position=position, data=bytes(data)))

    def _relative(self, path: Path) -> str:
        return os.path.relpath(path, self._root)


class SteadyClock(Clock):
    """Time that moves a little at each look, and a boot id of the test's choice."""

    def __init__(self, boot_id: bytes = BOOT, ticks: int = EPOCH_TICKS) -> None:
        self._boot_id = boot_id
        self._ticks = ticks

    def ticks(self) -> int:
        self._ticks += 1_000
        return self._ticks

    def boot_id(self) -> bytes:
        return self._boot_id
