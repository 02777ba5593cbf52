"""A lock in a file of its own, for what is rarely done: making and deleting topics and consumers."""

from __future__ import annotations

import contextlib
from io import FileIO
from pathlib import Path

from headwater.disk.disk import Clock, Disk, wait_for_lock
from headwater.errors import Unavailable


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
