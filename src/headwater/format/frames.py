"""Batches between a server and a client (docs/HTTP.md, "Batches"): each in a frame that says which events are meant.

`encode` gives the bytes of a frame; a `Decoder` takes the bytes of an answer as they come. Bytes only; a decoder
belongs to one thread.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from headwater.errors import Corrupt, TooLarge
from headwater.format import batch as format
from headwater.format.batch import Batch
from headwater.format.column import I64
from headwater.limits import BATCH_BYTES_CEILING

MEDIA_TYPE = "application/vnd.headwater.batches"
MAGIC = b"HWF1"
ALL = 0xFFFFFFFF  # instead of a number of rows: all from `lo` to `hi`
EVENTS_MAX = 1 << 24  # of a batch: none has nearly so many, and a column that is constant can claim any number
_HEAD = Struct("<4sIIIIII4x")


class Frame(NamedTuple):
    """Some events of a batch: those from `lo` to `hi`, or only `rows` of them."""

    partition: int
    batch: Batch
    lo: int
    hi: int
    rows: I64 | None


def encode(partition: int, stored: bytes | memoryview, lo: int, hi: int, rows: I64 | None = None) -> bytes:
    """The bytes of a frame around a stored batch."""
    picked = b"" if rows is None else rows.astype("<u4").tobytes()
    picked += bytes(-len(picked) & 7)
    count = ALL if rows is None else len(rows)
    head = _HEAD.pack(MAGIC, 0, len(stored), partition, lo, hi, count)
    crc = crc32c(picked, crc32c(head[8:]))
    return b"".join((MAGIC, crc.to_bytes(4, "little"), head[8:], picked, stored))


class Decoder:
    """Finds the frames in bytes that come in pieces."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, piece: bytes) -> list[Frame]:
        """The frames that are whole now; raises Corrupt."""
        self._bytes += piece
        found: list[Frame] = []
        at = 0
        whole = memoryview(bytes(self._bytes)) if self._whole(0) else memoryview(b"")
        while size := self._whole(at):
            found.append(_decode(whole[at : at + size]))
            at += size
        del self._bytes[:at]
        return found

    def finish(self) -> None:
        """Raise Corrupt if a frame was cut off."""
        if self._bytes:
            raise Corrupt("the batches end in the midst of a frame", position=0, size=len(self._bytes))

    def _whole(self, at: int) -> int:
        """The size of the frame at a place; 0 if it is not there as a whole."""
        if len(self._bytes) - at < _HEAD.size:
            return 0
        magic, _, stored, _, _, _, count = _HEAD.unpack_from(self._bytes, at)
        if magic != MAGIC:
            raise Corrupt("no frame begins here", position=at, size=_HEAD.size)
        if stored > BATCH_BYTES_CEILING or EVENTS_MAX < count != ALL:
            raise TooLarge("a frame is larger than any batch", limit="batch_bytes_ceiling", maximum=BATCH_BYTES_CEILING)
        size: int = _HEAD.size + (0 if count == ALL else (count * 4 + 7) & ~7) + stored
        return size if len(self._bytes) - at >= size else 0


def _decode(frame: memoryview) -> Frame:
    _, crc, stored, partition, lo, hi, count = _HEAD.unpack_from(frame)
    start = len(frame) - stored
    if crc32c(frame[8:start]) != crc:
        raise Corrupt("the checksum of a frame is wrong", position=0, size=start)
    batch = format.decode(frame, start, len(frame))
    rows = None if count == ALL else np.frombuffer(frame, "<u4", count, _HEAD.size).astype(np.int64)
    fits = lo < hi <= batch.count <= EVENTS_MAX and batch.size == stored
    if not fits or (rows is not None and not _picks(rows, lo, hi)):
        raise Corrupt("a frame does not fit its batch", position=0, size=len(frame))
    return Frame(partition, batch, lo, hi, rows)


def _picks(rows: I64, lo: int, hi: int) -> bool:
    return len(rows) > 0 and bool(lo <= rows[0] and rows[-1] < hi and (rows[1:] > rows[:-1]).all())
