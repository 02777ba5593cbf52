"""Batches between a server and a client (docs/FORMAT.md, "Frames"): each in a frame that says which events are meant.

`encode` gives the bytes of a frame; a `Decoder` takes the bytes of a body as they come, and believes nothing: what a
frame or its batch claims is compared with a ceiling before memory is taken for it. The columns of a batch are verified
when they are looked at, or all with `Batch.validate`. Bytes only; a decoder belongs to one thread.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from headwater.errors import Corrupt, TooLarge, Unsupported
from headwater.format import batch as format
from headwater.format.batch import LOST, Batch
from headwater.format.column import I64
from headwater.limits import BATCH_BYTES_CEILING

MEDIA_TYPE = "application/vnd.headwater.batches"
MAGIC = b"HWF1"
ALL = 0xFFFFFFFF  # instead of a number of rows: all from `lo` to `hi`; must stay
EVENTS_MAX = 1 << 24  # of a batch: none has nearly so many, and a column that is constant can claim any number
_HEAD = Struct("<4sIIIIIII")
HEAD_BYTES = _HEAD.size


class Frame(NamedTuple):
    """Some events of a batch: those from `lo` to `hi`, or only `rows` of them."""

    partition: int
    batch: Batch
    lo: int
    hi: int
    rows: I64 | None


def encode(partition: int, stored: bytes | memoryview, lo: int, hi: int, rows: I64 | None = None) -> bytes:
    """Return the bytes of a frame around a stored batch."""
    return head(partition, len(stored), lo, hi, rows) + stored


def head(partition: int, size: int, lo: int, hi: int, rows: I64 | None = None) -> bytes:
    """Return what stands before a stored batch of this size in its frame."""
    picked = b"" if rows is None else rows.astype("<u4").tobytes()
    picked += bytes(-len(picked) & 7)
    count = ALL if rows is None else len(rows)
    fields = _HEAD.pack(MAGIC, 0, size, partition, lo, hi, count, 0)
    crc = crc32c(picked, crc32c(fields[8:]))
    return b"".join((MAGIC, crc.to_bytes(4, "little"), fields[8:], picked))


class Decoder:
    """Finds the frames in bytes that come in pieces. It holds what has come of one frame, and no more."""

    def __init__(self, *, bytes_max: int = BATCH_BYTES_CEILING, events_max: int = EVENTS_MAX) -> None:
        """`bytes_max` and `events_max` are the ceilings of one frame."""
        self._bytes = bytearray()
        self._bytes_max = bytes_max
        self._events_max = events_max

    def feed(self, piece: bytes) -> list[Frame]:
        """Return the frames that are whole now; raises Corrupt, TooLarge or Unsupported."""
        self._bytes += piece
        found: list[Frame] = []
        at = 0
        whole = memoryview(bytes(self._bytes)) if self._whole(0) else memoryview(b"")
        while size := self._whole(at):
            found.append(_decode(whole[at : at + size], self._events_max))
            at += size
        del self._bytes[:at]
        return found

    def finish(self) -> None:
        """Raise Corrupt if a frame was cut off."""
        if self._bytes:
            raise Corrupt("the batches end in the middle of a frame", position=0, size=len(self._bytes))

    def _whole(self, at: int) -> int:
        """Return the size of the frame at a place; 0 if it is not there as a whole."""
        if len(self._bytes) - at < HEAD_BYTES:
            return 0
        magic, _, stored, _, _, _, count, _ = _HEAD.unpack_from(self._bytes, at)
        if magic != MAGIC:
            raise Corrupt("no frame begins here", position=at, size=HEAD_BYTES)
        size: int = HEAD_BYTES + (0 if count == ALL else (count * 4 + 7) & ~7) + stored
        if size > self._bytes_max:
            raise TooLarge(
                f"a frame claims {size} bytes; the limit is {self._bytes_max}",
                limit="batch_bytes_max",
                maximum=self._bytes_max,
                size=size,
            )
        return size if len(self._bytes) - at >= size else 0


def _decode(frame: memoryview, events_max: int) -> Frame:
    _, crc, stored, partition, lo, hi, count, reserved = _HEAD.unpack_from(frame)
    start = len(frame) - stored
    if crc32c(frame[8:start]) != crc:
        raise Corrupt("the checksum of a frame is wrong", position=0, size=start)
    if reserved:
        raise Unsupported(f"a frame has the flags {reserved:#x}", hint="upgrade headwater to read it")
    batch = format.decode(frame, start, len(frame))
    if batch.count > events_max:
        raise TooLarge(
            f"a batch claims {batch.count} events; the limit is {events_max}",
            limit="batch_events_max",
            maximum=events_max,
            size=batch.count,
        )
    rows = None if count == ALL else np.frombuffer(frame, "<u4", count, HEAD_BYTES).astype(np.int64)
    fits = lo < hi <= batch.count and batch.size == stored and not batch.flags & LOST
    if not fits or (rows is not None and not _picks(rows, lo, hi)):
        raise Corrupt("a frame does not fit its batch", position=0, size=len(frame))
    return Frame(partition, batch, lo, hi, rows)


def _picks(rows: I64, lo: int, hi: int) -> bool:
    return len(rows) > 0 and bool(lo <= rows[0] and rows[-1] < hi and (rows[1:] > rows[:-1]).all())
