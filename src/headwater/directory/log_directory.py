"""Where one log lives, who it is and how it behaves: what its writer, reader, sealer and checker share."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from headwater.disk.disk import Clock, Disk
from headwater.format.names import file_of, node_of, offset_of
from headwater.limits import Limits


class LogDirectory(msgspec.Struct, frozen=True):
    """One log. The names of its files are here."""

    path: Path
    topic: str
    partition: int
    uuid: bytes
    disk: Disk
    clock: Clock
    limits: Limits  # with the topic's own settings laid over
    zstd: bool = False
    trimmed: bool = False  # its topic has a retention, which may have deleted its oldest segments

    @property
    def node(self) -> int:
        return node_of(self.uuid)

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def tail(self) -> Path:
        return self.path / "tail"

    @property
    def journal(self) -> Path:
        """Return where transactions over several logs of this directory are written down."""
        return self.path.parent.parent.parent / "journal"

    @property
    def archived(self) -> Path:
        """Return what is known to be in the archive of this directory."""
        return self.path / "archived.json"

    @property
    def lost(self) -> Path:
        """Return what is there, empty, if the log may have lost events."""
        return self.path / "lost"

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    def segment(self, base: int) -> Path:
        return self.path / file_of(base, "log")

    def index(self, base: int) -> Path:
        return self.path / file_of(base, "index")

    def producers(self, base: int) -> Path:
        return self.path / file_of(base, "producers")

    def blobs(self, base: int) -> Path:
        return self.path / file_of(base, "blobs")

    def cut(self, base: int, position: int, number: int = 1) -> Path:
        """Return where bytes are kept that were cut from a segment; `number` counts the cuts at that position."""
        return self.path / file_of(base, f"cut-{position}" if number == 1 else f"cut-{position}-{number}")

    def keep(self, base: int, position: int, data: bytes) -> Path:
        """Keep bytes that are about to be cut from a segment, durably, beside those of earlier cuts; returns where."""
        number = 1
        while self.disk.inode(self.cut(base, position, number)) is not None:
            if self.disk.read_file(self.cut(base, position, number)) == data:
                break  # an earlier recovery came this far
            number += 1
        self.disk.replace(self.cut(base, position, number), data)
        return self.cut(base, position, number)

    def mark_lost(self) -> None:
        """Note, durably, that the log may have lost events: before the first batch that stands for some is written."""
        if self.disk.inode(self.lost) is None:
            with contextlib.suppress(FileExistsError):
                self.disk.close(self.disk.create(self.lost))
            self.disk.sync_directory(self.path)

    def beside(self, path: Path) -> Path:
        """Return where to keep a damaged file that is about to be replaced: a name that nothing has yet."""
        number = 1
        while self.disk.inode(path.with_name(f"{path.name}.cut-{number}")) is not None:
            number += 1
        return path.with_name(f"{path.name}.cut-{number}")

    def mark(self, base: int) -> None:
        """Say that the log may begin at this offset, before its older segments go. The caller syncs the directory."""
        with contextlib.suppress(FileExistsError):
            self.disk.close(self.disk.create(self.path / file_of(base, "oldest")))

    def marked(self) -> int | None:
        """Return the highest offset that the log may begin at; None if it was never shortened."""
        marks = (offset_of(name, "oldest") for name in self.disk.names(self.path))
        return max((base for base in marks if base is not None), default=None)

    def make_room(self, path: Path) -> None:
        """Move a directory away that is in the place of a file which is made again; it is kept beside that."""
        if self.disk.is_directory(path):
            self.disk.rename(path, self.beside(path))

    def segments(self) -> list[int]:
        """Return the first offsets of all segments, ascending.

        The directory is read twice: on some file systems a large one that is read while a packed segment takes the
        place of the old may show neither of them, and each segment is packed only once.
        """
        names = {*self.disk.names(self.path), *self.disk.names(self.path)}
        return sorted(base for name in names if (base := offset_of(name, "log")) is not None)

    def __str__(self) -> str:
        return f"topic {self.topic!r}, partition {self.partition}"
