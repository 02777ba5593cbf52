"""Whole directories that others read: a new one takes the place of the old one, durably, and at once where it can.

Who writes the files may be another program, which syncs nothing: this is done here, before anything gets its name.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from headwater.disk.disk import Disk

_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV)  # a system, or a file system, without the exchange


def files(disk: Disk, path: Path) -> Iterator[Path]:
    """Yield all files in a directory and those below it, sorted within each; nothing if it is not there."""
    for name, is_directory in sorted(disk.entries(path)):
        if is_directory:
            yield from files(disk, path / name)
        else:
            yield path / name


def sync(disk: Disk, path: Path) -> None:
    """Make a directory and all that is below it durable."""
    for name, is_directory in disk.entries(path):
        if is_directory:
            sync(disk, path / name)
        else:
            fd = disk.open_read(path / name)
            try:
                disk.fdatasync(fd)
            finally:
                disk.close(fd)
    disk.sync_directory(path)


def take_place(disk: Disk, new: Path, path: Path) -> None:
    """Have `path` be the directory `new`, which is durable, and forget what was there. Both are in the same directory.

    Where names cannot be exchanged there is none for a moment; `put_back` is for the next start after a crash in it.
    """
    if disk.inode(path) is None:
        disk.rename(new, path)
    else:
        try:
            disk.exchange(new, path)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            disk.remove_tree(_old(path))
            disk.rename(path, _old(path))
            disk.rename(new, path)
    disk.sync_directory(path.parent)
    for leftover in (new, _old(path)):
        disk.remove_tree(leftover)


def put_back(disk: Disk, path: Path) -> None:
    """Undo what a crash has left of `take_place`."""
    if disk.inode(path) is None:
        with contextlib.suppress(FileNotFoundError):
            disk.rename(_old(path), path)
            disk.sync_directory(path.parent)


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")
