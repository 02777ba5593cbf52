"""Files of an export or import: their format, writing one atomically, reading one with bounded memory.

Everything that is written to a path goes through `Disk`. The errors of a path that the user gave (a directory that
is not there, a full disk) are plain `OSError`s, as those of `open` are.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, cast

from headwater.disk.disk import Disk
from headwater.errors import Invalid, TooLarge
from headwater.event import Event
from headwater.format.events import EventBatch

Format = Literal["jsonl", "arrow", "arrows", "parquet", "puro"]
Target = str | os.PathLike[str] | IO[bytes]

SUFFIXES: dict[Format, tuple[str, ...]] = {
    "jsonl": (".jsonl", ".ndjson"),
    "arrow": (".arrow", ".feather"),
    "arrows": (".arrows",),
    "parquet": (".parquet", ".pq"),
    "puro": (".puro",),
}
BUFFER_BYTES = 1024 * 1024
PIECE_BYTES = 16 * 1024 * 1024  # of one read, whatever a length in the file claims
TAIL_BYTES = 8


def format_of(target: Target, format: str | None) -> Format:
    """Return the format that was named, or else the one of the path's suffix; raises Invalid."""
    if format is None:
        name = "" if _is_file(target) else os.fspath(cast("str", target))
        suffix = Path(name).suffix.lower()
        for each, suffixes in SUFFIXES.items():
            if suffix in suffixes:
                return each
        known = ", ".join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
        what = f"the suffix of {name!r}" if name else "a stream"
        raise Invalid(f"{what} does not determine a format", hint=f"give the format, or a name that ends with {known}")
    if format not in SUFFIXES:
        raise Invalid(f"there is no format {format!r}", hint=f"formats are {', '.join(SUFFIXES)}")
    return format


@contextlib.contextmanager
def written(disk: Disk, target: Target) -> Iterator[IO[bytes]]:
    """Yield a file to write to. A path gets its file, durable and complete, when the block ends without an error.

    An open file is written to as it comes, and neither synced nor closed.
    """
    if _is_file(target):
        yield cast("IO[bytes]", target)
        return
    path = Path(os.path.realpath(cast("str", target)))  # through a link, so that it stays one
    if path.exists() and not path.is_file():
        raise Invalid(f"{path} is not a regular file", hint="an export replaces a file; write a stream to -")
    with disk.replacing(path, ordinary=True) as fd, io.BufferedWriter(_OutputFile(disk, fd), BUFFER_BYTES) as out:
        yield cast("IO[bytes]", out)


class _OutputFile(io.RawIOBase):
    """Writes to a descriptor of `Disk`, from the beginning on."""

    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk = disk
        self._fd = fd
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._disk.write(self._fd, bytes(data), self._position)
        self._position += len(data)
        return len(data)


class Input:
    """The file that an import reads, also through pyarrow. Counts bytes, and never allocates what a length claims.

    `size` is None for what cannot be sought in: a pipe.
    """

    closed = False

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self.name = name
        self.position = 0
        self.tail = b""  # the last bytes that were read
        self.size: int | None = None
        with contextlib.suppress(OSError, AttributeError):
            begin = file.tell()
            self.size = file.seek(0, os.SEEK_END)
            self.position = file.seek(begin)

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, or all; fewer only at the end."""
        pieces: list[bytes] = []
        missing = size if size >= 0 else float("inf")
        while missing and (piece := self._file.read(int(min(missing, PIECE_BYTES)))):
            pieces.append(piece)
            missing -= len(piece)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.position += len(data)
        self.tail = (self.tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.size is not None

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        self.position = self._file.seek(position, whence)
        return self.position

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        """Do nothing: the file is only read."""

    def close(self) -> None:
        """Do nothing: the caller that opened the file closes it."""


@contextlib.contextmanager
def read(disk: Disk, source: Target) -> Iterator[Input]:
    """Open the file to import: a path, or an open binary file, which stays open."""
    if _is_file(source):
        yield Input(cast("IO[bytes]", source), str(getattr(source, "name", "the stream")))
        return
    path = Path(os.fspath(cast("str", source)))
    with open(disk.open_read(path), "rb", BUFFER_BYTES) as file:
        yield Input(file, str(path))


def _is_file(target: object) -> bool:
    return not isinstance(target, str | os.PathLike)


def events_of(batch: EventBatch) -> list[Event]:
    """Return the events. Raises TooLarge for a huge one rather than write it without its data."""
    events = batch.events()
    if len(events) == 1 and events[0].data is None:
        raise too_large(events[0], "blob_bytes_in_memory", batch.log.blob_bytes_in_memory)
    return events


def too_large(event: Event, limit: str, maximum: int) -> TooLarge:
    """Return the error for an event that does not fit into an export, with its place."""
    hints = {"blob_bytes_in_memory": "raise that limit, or leave the event out and save its data separately"}
    return TooLarge(
        f"event {event.partition}:{event.offset} of topic {event.topic!r} has {event.size} bytes of data, "
        f"and an export can hold up to {maximum}",
        hint=hints.get(limit, "use another format"),
        limit=limit,
        maximum=maximum,
        size=event.size,
        topic=event.topic,
        partition=event.partition,
        offset=event.offset,
    )
