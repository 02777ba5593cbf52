"""Huge events: spooled to a file of their own as they arrive, read back in verified chunks (docs/FORMAT.md, "Blob").

No lock of the log is held while one arrives. A spool file is locked by the process that fills it, so that others can
tell an orphan from one that is still growing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from crc32c import crc32c

from headwater.directory.failures import unavailable
from headwater.directory.log_directory import LogDirectory
from headwater.errors import Corrupt
from headwater.format import segment as format
from headwater.format.batch import corrupt, encode_blob_reference
from headwater.format.names import offset_of
from headwater.limits import BLOB_CHUNK_BYTES
from headwater.log.log import deleted, offset_gone, too_large

FromArchive = Callable[[int, int, tuple[int, int, int]], Iterator[bytes] | None]
"""The chunks of a huge event, by its segment, offset and reference; None if the archive does not have it."""


class BlobSpool:
    """A huge event on its way in, written in chunks. `reference` is what its batch will hold; close it in any case."""

    def __init__(self, place: LogDirectory) -> None:
        self.size = 0
        self.reference = b""
        self._pending = bytearray()  # of the next chunk
        self._crcs: list[int] = []
        self._place = place
        self._disk = place.disk
        with self._spooling():
            with contextlib.suppress(FileExistsError):
                place.disk.mkdir(place.spool)
            self.path, self._fd = place.disk.create_temporary(place.spool / "event")

    def write(self, piece: bytes) -> None:
        """Take the next piece of the data. Raises TooLarge above the topic's limit."""
        bytes_max = self._place.limits.data_bytes_max
        if self.size + len(self._pending) + len(piece) > bytes_max:
            raise too_large(bytes_max)
        at = 0
        while at < len(piece):
            taken = piece[at : at + BLOB_CHUNK_BYTES - len(self._pending)]
            self._pending += taken
            at += len(taken)
            if len(self._pending) == BLOB_CHUNK_BYTES:
                self._write_chunk()

    def finish(self) -> None:
        """Write what is left and the checksums, and sync: `reference` can be committed then."""
        if self._pending:
            self._write_chunk()
        table = np.array(self._crcs, np.uint32)
        with self._spooling():
            self._disk.write(self._fd, format.encode_trailer(self.size, BLOB_CHUNK_BYTES, table), self.size)
            # Whatever the durability: a later sync of the segment makes the batch that names this file durable.
            self._disk.fdatasync(self._fd)
        self.reference = encode_blob_reference(self.size, BLOB_CHUNK_BYTES, format.table_crc(table))

    def _write_chunk(self) -> None:
        chunk = bytes(self._pending)
        with self._spooling():
            self._disk.write(self._fd, chunk, self.size)
        self._crcs.append(crc32c(chunk))
        self.size += len(chunk)
        self._pending.clear()

    def close(self) -> None:
        """Release the file, and remove it if it is still in the spool."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self.path)
        self._disk.release(self._fd)

    @contextlib.contextmanager
    def _spooling(self) -> Iterator[None]:
        """Around our own writes alone: an error of the stream that is being read is the caller's."""
        try:
            yield
        except OSError as error:
            if self._disk.inode(self._place.path) is None:
                raise deleted(self._place) from error
            raise unavailable(self._place, "a huge event cannot be stored", error) from error


class StoredBlob:
    """The data of a huge event, in its file."""

    def __init__(
        self, place: LogDirectory, path: Path, reference: tuple[int, int, int], archived: FromArchive | None = None
    ) -> None:
        """`archived` gives its chunks where the file is not here any more."""
        self.size = reference[0]
        self._archived = archived
        self._place = place
        self._disk = place.disk
        self._path = path
        self._reference = reference

    def chunks(self) -> Iterator[bytes]:
        """Yield the data in pieces of at most 1 MiB, each verified before it is handed out; raises Corrupt.

        Raises NotFound if retention has deleted it, and it is not in the archive.
        """
        size, chunk_bytes, _ = self._reference
        try:
            fd = self._disk.open_read(self._path)
        except FileNotFoundError as error:
            offset = offset_of(self._path.name, "blob") or 0
            archived = self._archived and self._archived(int(self._path.parent.stem), offset, self._reference)
            if archived is not None:
                yield from archived
                return
            if self._disk.inode(self._path.parent.with_suffix(".log")) is None:
                bases = self._place.segments()
                raise (offset_gone(self._place, offset, bases[0]) if bases else deleted(self._place)) from error
            raise corrupt("the data of a huge event is missing", str(self._path), 0, size) from error
        try:
            trailer = self._disk.pread(fd, self._disk.size(fd) - size, size) if self._disk.size(fd) > size else b""
            try:
                crcs = format.decode_trailer(trailer, self._reference)
            except Corrupt as error:
                raise corrupt(error.message, str(self._path), size, len(trailer)) from None
            for number, crc in enumerate(crcs.tolist()):
                position = number * chunk_bytes
                chunk = self._disk.pread(fd, min(chunk_bytes, size - position), position)
                if crc32c(chunk) != crc:
                    raise corrupt("the checksum of a chunk is wrong", str(self._path), position, len(chunk))
                yield chunk
        finally:
            self._disk.close(fd)
