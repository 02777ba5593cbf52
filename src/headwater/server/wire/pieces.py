"""Turns batches into pieces of a good size: ends a response, splits large batches and joins small ones.

    Cut(end_before=None, end_after=None, max_items=None)    .take(batch) -> EventBatch | None    .done
    cut_off(batches, cut) -> Iterator[EventBatch]           the batches up to the end
    parted(batch) -> Iterator[EventBatch]                   a large one in parts of about PIECE_BYTES
    joined(pieces) -> Iterator[bytes]                       small pieces together, up to PIECE_BYTES
    size_of(batch) -> int                                   about how many bytes a batch takes on the wire

Bytes only. A `Cut` belongs to one answer, and so to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from headwater.format.batch import BLOB, DATA, META
from headwater.format.column import I64
from headwater.format.events import EventBatch

PIECE_BYTES = 256 * 1024  # enough for a system call to be worth it, and little for a slow client to hold back
WHOLE_BYTES = 2 * PIECE_BYTES  # up to this, a batch is encoded as a whole: a call costs too
FIELDS_BYTES = 128  # of an event on the wire, beside its data and meta: about


class Cut:
    """The end of a response: before an offset, after one, or after a number of events; whichever comes first.

    Offsets are compared by their order, so an end that no event has is an end too. For batches of one partition that
    come forwards.
    """

    __slots__ = ("_end", "_left", "_passed")

    def __init__(
        self, end_before: int | None = None, end_after: int | None = None, max_items: int | None = None
    ) -> None:
        ends = [end for end in (end_before, None if end_after is None else end_after + 1) if end is not None]
        self._end = min(ends, default=None)
        self._left = max_items
        self._passed = self._end == 0

    @property
    def done(self) -> bool:
        """Return whether nothing that comes can be part of the answer."""
        return self._passed or self._left == 0

    @property
    def bounded(self) -> bool:
        """Return whether it ends anything at all."""
        return self._end is not None or self._left is not None

    @property
    def end(self) -> int | None:
        """Return the offset before which the answer ends; None if no offset ends it."""
        return self._end

    def reach(self, offset: int) -> None:
        """Note that nothing below this offset will come, as when events were left out by a filter."""
        if self._end is not None and offset >= self._end:
            self._passed = True

    def take(self, batch: EventBatch) -> EventBatch | None:
        """Return the part of a batch that belongs to the response; None if nothing does."""
        if self.done:
            return None
        count = len(batch)
        if self._end is not None:
            stored, lo, hi = batch.piece
            inside = self._end - stored.base_offset
            count = min(count, inside - lo) if batch.rows is None else int(np.searchsorted(batch.rows, inside))
            self.reach(stored.base_offset + hi)
        if self._left is not None:
            count = min(count, self._left)
            self._left -= max(count, 0)
        if count <= 0:
            return None
        return batch if count == len(batch) else batch.part(0, count)


def cut_off(batches: Iterable[EventBatch], cut: Cut | None) -> Iterator[EventBatch]:
    """Yield the batches up to the end of the answer. None is asked for after that."""
    if cut is None:
        yield from batches
        return
    each = iter(batches)
    while not cut.done and (batch := next(each, None)) is not None:
        taken = cut.take(batch)
        if taken is not None:
            yield taken


def parted(batch: EventBatch) -> Iterator[EventBatch]:
    """Yield the batch, as a whole up to `WHOLE_BYTES`, else in parts of about `PIECE_BYTES`."""
    if len(batch) == 1 or batch.piece.batch.flags & BLOB:
        yield batch
        return
    sizes = np.cumsum(_sizes(batch))
    total = int(sizes[-1])
    if total <= WHOLE_BYTES:
        yield batch
        return
    ends = np.unique(np.searchsorted(sizes, np.arange(PIECE_BYTES, total, PIECE_BYTES)) + 1).tolist()
    del sizes  # which is not small, and would be held for a slow client
    lo = 0
    for hi in [*ends, len(batch)]:
        if hi > lo:
            yield batch.part(lo, hi)
            lo = hi


def joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Neighbours together, so that each piece but the last has `PIECE_BYTES` or more. None is given for none."""
    pending: list[bytes] = []
    size = 0
    for piece in pieces:
        pending.append(piece)
        size += len(piece)
        del piece
        if size >= PIECE_BYTES:
            size = 0
            yield pending.pop() if len(pending) == 1 else drained(pending)
    if size:
        yield drained(pending)


def drained(pieces: list[bytes]) -> bytes:
    """Return all of them as one, and keep no reference to it."""
    whole = b"".join(pieces)
    pieces.clear()
    return whole


def size_of(batch: EventBatch) -> int:
    """About how many bytes a batch takes on the wire, with the data of a huge event, if that goes out."""
    stored = batch.piece.batch
    return FIELDS_BYTES + batch.huge_bytes if stored.flags & BLOB else int(_sizes(batch).sum())


def _sizes(batch: EventBatch) -> I64:
    """About how many bytes each event takes on the wire."""
    stored, lo, hi = batch.piece
    sizes = np.full(len(batch), FIELDS_BYTES, np.int64)
    for kind in (DATA, META):
        column = stored.column(kind)
        if column is not None:
            if column.offsets is None:
                sizes += len(column.data)
            else:
                lengths = np.diff(column.offsets)
                sizes += lengths[lo:hi] if batch.rows is None else lengths[batch.rows]
    return sizes
