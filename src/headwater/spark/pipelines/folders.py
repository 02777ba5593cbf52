"""A directory of Parquet files that a pipeline writes. Needs no Spark: others write the files.

As a whole, it is written beside the one that is read, and takes its place at once. Batch by batch, the files of a batch
are written beside it, become certain by one rename of their directory, and are then moved in, one by one: a crash
before that has no effect, and after a crash behind it the next run finishes the rest.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from headwater.disk.disk import Disk
from headwater.errors import Conflict

SUFFIX = ".parquet"

Write = Callable[[Path], object]
"""Writes Parquet files to a directory, which is not there yet."""


class FolderProgress(msgspec.Struct, frozen=True):
    """The last batch of a run whose files are all in place."""

    run: str
    batch: int


class PipelineFolder:
    """The directory `path` of one pipeline. `notes` is the file that records the progress of its batches."""

    def __init__(self, path: Path, notes: Path, disk: Disk | None = None) -> None:
        self.path = path.absolute()
        self._notes = notes
        self._disk = disk or Disk()
        self._beside = self.path.with_name(f".{self.path.name}.batches")

    def check(self) -> None:
        """Raise Conflict if there is anything but Parquet in it, which must not be replaced."""
        if self._disk.inode(self.path) is None:
            return
        others = [file for file in files_in(self._disk, self.path) if not file.name.endswith(SUFFIX) and _kept(file)]
        if others or not self.path.is_dir():
            found = str(others[0].relative_to(self.path)) if others else "no directory"
            raise Conflict(
                f"{self.path} is {found}" if not others else f"{self.path} holds {found}, which is not Parquet",
                hint="a pipeline replaces the whole directory: give it one of its own",
                code="not_parquet",
            )

    def replace(self, write: Write) -> int:
        """Replace the whole content of the folder, atomically and durably; return how many rows it has."""
        put_back(self._disk, self.path)
        staged = self._staged(write, "new")
        rows = _rows(self._disk, staged)
        take_place(self._disk, staged, self.path)
        self._disk.remove_tree(self._beside)
        return rows

    def put(self, run: str, batch: int, write: Write) -> int | None:
        """Add what is written, durably, unless this was done before; how many rows, None if it was.

        The first batch of a run that is not known replaces whatever an earlier run has left.
        """
        reached = self._reached()
        known = reached is not None and reached.run == run
        rows = None
        if reached is None or not known or reached.batch < batch:
            rows = self._add(f"{run}-{batch}", write) if known else self.replace(write)
            self._disk.replace(self._notes, msgspec.json.encode(FolderProgress(run, batch)))
        self._disk.remove_tree(self._beside)
        return rows

    def _add(self, name: str, write: Write) -> int:
        certain = self._beside / name
        if self._disk.inode(certain) is None:
            staged = self._staged(write, "new")
            with contextlib.suppress(FileExistsError):
                self._disk.mkdir(self._beside, ordinary=True)
                self._disk.sync_directory(self.path.parent)
            self._disk.rename(staged, certain)
            self._disk.sync_directory(self._beside)
        rows = _rows(self._disk, certain)
        for file in list(files_in(self._disk, certain)):
            place = self.path / file.relative_to(certain)
            self._make(place.parent)
            self._disk.rename(file, place)
            self._disk.sync_directory(place.parent)
        return rows

    def _make(self, directory: Path) -> None:
        """Create a directory below ours, for a partition of Spark."""
        if self._disk.inode(directory) is None:
            self._make(directory.parent)
            self._disk.mkdir(directory, ordinary=True)
            self._disk.sync_directory(directory.parent)

    def _staged(self, write: Write, name: str) -> Path:
        """Yield a directory beside ours with the written files, durable and without the files of Spark itself."""
        staged = self.path.with_name(f".{self.path.name}.{name}")
        self._disk.remove_tree(staged)
        write(staged)
        for file in list(files_in(self._disk, staged)):
            if not file.name.endswith(SUFFIX):
                self._disk.unlink(file)
        sync_tree(self._disk, staged)
        return staged

    def _reached(self) -> FolderProgress | None:
        try:
            return msgspec.json.decode(self._disk.read_file(self._notes), type=FolderProgress)
        except FileNotFoundError:
            return None


def _kept(file: Path) -> bool:
    """Return whether it is something that a person may have put there, and not a mark or a checksum of Spark's."""
    return not file.name.startswith(("_SUCCESS", "."))


def _rows(disk: Disk, path: Path) -> int:
    from pyarrow import parquet

    return sum(parquet.read_metadata(file).num_rows for file in files_in(disk, path))


_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV)  # a system, or a file system, without the exchange


def files_in(disk: Disk, path: Path) -> Iterator[Path]:
    """Yield all files in a directory and those below it, sorted within each; nothing if it is not there."""
    for name, is_directory in sorted(disk.entries(path)):
        if is_directory:
            yield from files_in(disk, path / name)
        else:
            yield path / name


def sync_tree(disk: Disk, path: Path) -> None:
    """Make a directory and all that is below it durable."""
    for name, is_directory in disk.entries(path):
        if is_directory:
            sync_tree(disk, path / name)
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
