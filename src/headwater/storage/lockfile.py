"""A lock in a file of its own, for what is rarely done: making and deleting topics and consumers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from headwater.errors import Unavailable
from headwater.storage.disk import Clock, Disk, wait_for_lock


@contextlib.contextmanager
def locked(path: Path, disk: Disk, clock: Clock, wait_s: float) -> Iterator[None]:
    """Hold the lock, whose file is made if it is not there; raises Unavailable if others keep it for too long."""
    with contextlib.suppress(FileExistsError):
        disk.close(disk.create(path))
    fd = disk.open_write(path)
    try:
        if not wait_for_lock(disk.hold, fd, clock, wait_s):
            raise Unavailable(
                f"{path} is locked by another process",
                hint=f"is one stopped or stuck? 'fuser {path}' names it",
                code="locked",
            )
        yield
    finally:
        disk.release(fd)
