"""A disk on which one operation fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, NamedTuple

from tests.crash.recording import Op, RecordingDisk


class Fault(NamedTuple):
    """The operation `kind` fails at its `number`th call; a short write writes half of it first."""

    kind: str
    number: int
    errno: int
    truncate: bool = True  # whether what was written can be cut off again

    def __str__(self) -> str:
        return f"{self.kind} {self.number}{'' if self.truncate else ', no truncate'}"


class FaultyDisk(RecordingDisk):
    """Fails once as `fault` says, after it was set, and then works again."""

    def __init__(self, root: Path, files: dict[int, int] | None = None) -> None:
        super().__init__(root, files)
        self.fault: Fault | None = None
        self.failed = False
        self.calls = 0

    def set(self, fault: Fault | None) -> None:
        self.fault, self.failed, self.calls = fault, False, 0

    def create(self, path: Path) -> int:
        self._check("create")
        return super().create(path)

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        if self.fault is not None and self.fault.kind == "short write":
            if self.failed and self.calls == self.fault.number:
                self.calls += 1
                raise OSError(self.fault.errno, os.strerror(self.fault.errno))
            if not self.failed and self._due("short write"):
                return super().pwrite(fd, data[: len(data) // 2], position)
        self._check("write")
        return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        try:
            self._check("sync")
        except OSError:
            self.trace.append(Op("failed sync", file=self._open[fd]))
            raise
        super().fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        if self.failed and self.fault is not None and not self.fault.truncate:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(fd, size)

    def rename(self, path: Path, target: Path) -> None:  # type: ignore[override]
        self._check("rename")
        super().rename(path, target)

    def mkdir(self, path: Path) -> None:  # type: ignore[override]
        self._check("mkdir")
        super().mkdir(path)

    def sync_directory(self, path: Path) -> None:
        self._check("sync directory")
        super().sync_directory(path)

    def _check(self, kind: str) -> None:
        if self._due(kind):
            assert self.fault is not None
            raise OSError(self.fault.errno, os.strerror(self.fault.errno))

    def _due(self, kind: str) -> bool:
        """Whether this call is the one that fails."""
        if self.fault is None or self.failed or kind != self.fault.kind:
            return False
        self.failed = self.calls == self.fault.number
        self.calls += not self.failed
        return self.failed
