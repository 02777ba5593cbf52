"""A segment file (docs/FORMAT.md, "Segment"): its header, and a piece of it in memory as a sequence of batches.

Also the footer of a blob file, which holds the data of one huge event ("Blob").
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import msgspec
import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from headwater.errors import Corrupt, Unsupported
from headwater.format.batch import Batch, corrupt, torn
from headwater.format.batch import decode as decode_batch

MAGIC = b"HWSEGMNT"
VERSION = 1
PACKED, PRODUCERS = 1, 2  # flags; must stay

_HEADER = Struct("<8sHHI16sqqqI")
HEADER_BYTES = 64


class SegmentHeader(msgspec.Struct, frozen=True, gc=False):
    """The first 64 bytes of a segment."""

    file_id: int
    log_uuid: bytes
    base_offset: int
    previous_ticks: int
    begun_ticks: int
    packed: bool = False
    producers: bool = False  # a snapshot of the producers, as of its first offset, is beside it

    def encode(self) -> bytes:
        flags = (PACKED if self.packed else 0) | (PRODUCERS if self.producers else 0)
        head = _HEADER.pack(
            MAGIC,
            VERSION,
            flags,
            self.file_id,
            self.log_uuid,
            self.base_offset,
            self.previous_ticks,
            self.begun_ticks,
            0,
        )
        return head + crc32c(head).to_bytes(4, "little")


def decode(stored: bytes | memoryview) -> SegmentHeader:
    if len(stored) < HEADER_BYTES:
        raise Corrupt("the header of a segment is cut off", position=0, size=len(stored))
    head = stored[: HEADER_BYTES - 4]
    magic, version, flags, file_id, uuid, base, previous, begun, _ = _HEADER.unpack(head)
    if magic != MAGIC or crc32c(head) != int.from_bytes(stored[HEADER_BYTES - 4 : HEADER_BYTES], "little"):
        raise Corrupt("the header of a segment is damaged", position=0, size=HEADER_BYTES)
    if version != VERSION or flags & ~(PACKED | PRODUCERS):
        raise Unsupported(
            f"a segment has version {version} and flags {flags:#x}", hint="upgrade headwater to read this log"
        )
    return SegmentHeader(file_id, uuid, base, previous, begun, bool(flags & PACKED), bool(flags & PRODUCERS))


class SegmentWindow:
    """Readable bytes of a segment, from position `start` to `end`, in memory or mapped."""

    __slots__ = ("buffer", "end", "path", "start")

    def __init__(self, buffer: memoryview, start: int, path: str) -> None:
        self.buffer = buffer
        self.start = start
        self.end = start + len(buffer)
        self.path = path

    def batch(self, position: int) -> Batch:
        """Return the batch at a position of the file, its header verified."""
        return decode_batch(self.buffer, position - self.start, len(self.buffer), self.path, self.start)

    def batches(self, position: int, offset: int) -> Iterator[Batch]:
        """Yield the batches from a position to the end of the window; the first begins at `offset`."""
        while position < self.end:
            batch = self.batch(position)
            if batch.base_offset != offset:
                raise corrupt(
                    f"expected offset {offset}, found {batch.base_offset}",
                    self.path,
                    position,
                    batch.size,
                )
            yield batch
            position += batch.size
            offset += batch.count

    def torn(self, position: int, offset: int) -> bool:
        """Return whether a batch with this offset begins at a position, and ends behind the window."""
        return torn(self.buffer, position - self.start, offset)


BLOB_MAGIC = b"HWBLOB01"
_FOOTER = Struct("<8sQIII")
FOOTER_BYTES = 32


def table_crc(crcs: npt.NDArray[np.uint32]) -> int:
    return crc32c(crcs.tobytes())


def encode_trailer(size: int, chunk_bytes: int, crcs: npt.NDArray[np.uint32]) -> bytes:
    """Return what follows the data: the table of CRCs and the footer."""
    footer = _FOOTER.pack(BLOB_MAGIC, size, chunk_bytes, table_crc(crcs), 0)
    return crcs.tobytes() + footer + crc32c(footer).to_bytes(4, "little")


def decode_trailer(stored: bytes, reference: tuple[int, int, int]) -> npt.NDArray[np.uint32]:
    """Return the CRC of each chunk, after checking all against the reference in the batch."""
    size, chunk_bytes, crc = reference
    expected = -(-size // chunk_bytes) * 4 + FOOTER_BYTES
    footer = stored[-FOOTER_BYTES:-4]
    if len(stored) != expected or crc32c(footer).to_bytes(4, "little") != stored[-4:]:
        raise Corrupt("the footer of a blob is damaged", position=size, size=expected)
    if _FOOTER.unpack(footer) != (BLOB_MAGIC, size, chunk_bytes, crc, 0) or crc32c(stored[:-FOOTER_BYTES]) != crc:
        raise Corrupt("a blob does not match the reference in its event", position=size, size=expected)
    return np.frombuffer(stored, np.uint32, (expected - FOOTER_BYTES) // 4)
