"""Items, the binary form of reading: `u64 id | u32 length | data` for each event, big-endian. The id is the offset.

    encode(batches, cut=None) -> Iterator[bytes]     pieces of about 256 KiB; a huge event comes chunk by chunk
    encode_batch(batch) -> Iterator[bytes]           the same for one batch, its pieces as they come

Bytes only, but that the data of a huge event is read from its file as it is asked for. Vectorised: a batch is one
array of headers and one copy of its data, spread out to make room for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct

import numpy as np

from headwater.format.batch import BLOB, DATA
from headwater.format.column import I64, Bytes
from headwater.format.events import EventBatch
from headwater.server.wire.batches import splice, windows
from headwater.server.wire.pieces import PIECE_BYTES, Cut, cut_off, drained, parted

HEADER_BYTES = 12
_HEADER = Struct(">QI")
_HEADERS = np.dtype([("id", ">u8"), ("length", ">u4")])


def encode(batches: Iterable[EventBatch], cut: Cut | None = None) -> Iterator[bytes]:
    """Yield the items of batches, up to the end that `cut` says. Nothing for none.

    What is not yet a whole piece is held back until the batches end: for live delivery, give what is there.
    """
    pending: list[bytes] = []
    size = 0
    for batch in cut_off(batches, cut):
        huge = bool(batch.piece.batch.flags & BLOB)
        for piece in encode_batch(batch):
            pending.append(piece)
            size += len(piece)
            if size >= PIECE_BYTES or huge:
                size = 0
                yield drained(pending)
    if pending:
        yield b"".join(pending)


def encode_batch(batch: EventBatch) -> Iterator[bytes]:
    """Yield the items of one batch, in pieces."""
    stored = batch.piece.batch
    if stored.flags & BLOB:
        blob = batch.log.blob(stored)
        yield _HEADER.pack(stored.base_offset, blob.size)
        for chunk in blob.chunks():
            yield from (chunk[at : at + PIECE_BYTES] for at in range(0, len(chunk), PIECE_BYTES))
    elif stored.count == 1:
        data = stored.only(DATA) or b""
        yield _HEADER.pack(stored.base_offset, len(data)) + data
    else:
        for part in parted(batch):
            yield _packed(part)


def _packed(batch: EventBatch) -> bytes:
    source, starts, lengths = data_of(batch)
    headers = np.empty(len(batch), _HEADERS)
    headers["id"] = batch.offsets()
    headers["length"] = lengths
    at = np.cumsum(lengths + HEADER_BYTES) - lengths
    out = splice(at, source, starts, lengths, int(at[-1] + lengths[-1]))
    windows(out, HEADER_BYTES)[at - HEADER_BYTES] = headers.view(f"V{HEADER_BYTES}")
    return bytes(out)


def data_of(batch: EventBatch) -> tuple[Bytes, I64, I64]:
    """The bytes that hold the data of a batch, and where in them the data of each event begins, and how long it is."""
    stored, lo, hi = batch.piece
    column = stored.column(DATA)
    assert column is not None
    count = len(batch)
    if column.offsets is None:
        return column.data, np.zeros(count, np.int64), np.full(count, len(column.data), np.int64)
    if batch.rows is None:
        ends = column.offsets[lo : hi + 1].astype(np.int64)
        return column.data, ends[:-1], np.diff(ends)
    starts = column.offsets[batch.rows].astype(np.int64)
    return column.data, starts, column.offsets[1:][batch.rows] - starts
