"""Engines whose disk does not wait for the medium: tests of the log's logic lose no power, and need no patience."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwater.disk.disk import Disk
from headwater.opening import open_directory
from headwater.store import Store


class UnsyncedDisk(Disk):
    """As the real one, but a sync returns at once."""

    fdatasync = staticmethod(lambda fd: None)  # noqa: ARG005  (the name is the interface)

    def write_synced(self, fd: int, data: bytes, position: int) -> None:
        self.write(fd, data, position)
        self.fdatasync(fd)

    def sync_directory(self, path: Path) -> None:
        pass


def open_unsynced(path: Path, **options: Any) -> Store:
    return open_directory(path, disk=UnsyncedDisk(), **options)
