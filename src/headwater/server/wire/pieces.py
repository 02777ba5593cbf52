"""Turns batches into pieces of a good size: ends a response, splits large batches and joins small ones.

    Cut(end_before=None, end_after=None, max_items=None)    .take(batch) -> EventBatch | None    .done
    cut_off(batches, cut) -> Iterator[EventBatch]           the batches up to the end
    parted(batch) -> Iterator[EventBatch]                   a large one in parts of about PIECE_BYTES
    joined(pieces) -> Iterator[bytes]                       small pieces together, up to PIECE_BYTES
    size_of(batch) -> int                                   about how many bytes a batch takes on the wire
    slices(key, encode) -> Iterator[bytes]                  what `encode` returns, in slices; equal keys, equal bytes
    encoded(batch, form, encode) -> Iterator[bytes]         `encode(batch)`, in slices if it is huge

Huge events and large documents are encoded as a whole and sent in slices, without a copy for each reader. A reader that
stops has its position and at most one slice. Encoded bytes are kept while they have readers, once for all readers of
the same key, up to `KEPT_BYTES` for the whole process; beyond that, the least recently used are dropped, and encoded
again when needed. The slice after that is longer, so that many readers at once encode each only a few times. Few are
encoded at once: each takes several times its size for a moment.

Bytes only. A `Cut` belongs to one answer, and so to one thread at a time; `slices` is safe from any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator

import numpy as np

from headwater.errors import Unavailable
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
    total = size_of(batch)
    if total <= WHOLE_BYTES:
        yield batch
        return
    sizes = np.cumsum(_sizes(batch))
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


def size_of(batch: EventBatch, fields_bytes: int = FIELDS_BYTES) -> int:
    """Return about how many bytes a batch takes on the wire, with the data of a huge event, if that goes out."""
    stored, lo, hi = batch.piece
    if stored.flags & BLOB:
        return fields_bytes + batch.huge_bytes
    if batch.rows is not None:
        return int(_sizes(batch).sum()) + (fields_bytes - FIELDS_BYTES) * len(batch)
    size = fields_bytes * (hi - lo)
    for kind in (DATA, META):
        column = stored.column(kind)
        if column is not None:
            if column.offsets is None:
                size += len(column.data) * (hi - lo)
            else:
                size += int(column.offsets[hi]) - int(column.offsets[lo])
    return size


def _sizes(batch: EventBatch) -> I64:
    """Return about how many bytes each event takes on the wire."""
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


SLICE_BYTES = 128 * 1024  # what a reader that stops holds
AGAIN_BYTES = 1024 * 1024  # the same, if it was encoded again for this slice
HUGE_BYTES = 2 * PIECE_BYTES  # what `parted` makes of events that are not huge is below
KEPT_BYTES = 32 * 1024 * 1024  # beside one that may be larger
ENCODED_AT_ONCE = 2


class _EncodedPart:
    """One huge event or document in one format, and the number of its readers."""

    __slots__ = ("data", "readers", "size")

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.readers = 0
        self.size = -1  # until it is known


class Encodings:
    """A cache of what is encoded as a whole, for its current readers."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._mutex = threading.Lock()  # protects the two below
        self._found: OrderedDict[Hashable, _EncodedPart] = OrderedDict()  # what was used last is last
        self._bytes = 0
        self._encoding = threading.Semaphore(ENCODED_AT_ONCE)

    @property
    def kept(self) -> int:
        """Return how many bytes are kept now."""
        return self._bytes

    def slices(self, key: Hashable, encode: Callable[[], bytes]) -> Generator[bytes, None, None]:
        """Yield what `encode` returns, in slices. Raises as `encode` does, also midway, if it must be called again."""
        with self._mutex:
            entry = self._found.setdefault(key, _EncodedPart())
            entry.readers += 1
        try:
            at = 0
            while at != entry.size:
                piece = [self._slice(key, entry, encode, at)]
                at += len(piece[0])
                yield piece.pop()  # so that it is not held here as well
        finally:
            with self._mutex:
                entry.readers -= 1
                if not entry.readers:
                    self._drop(entry)
                    del self._found[key]

    def _slice(self, key: Hashable, entry: _EncodedPart, encode: Callable[[], bytes], at: int) -> bytes:
        data, size = entry.data, SLICE_BYTES
        if data is None:
            with self._encoding:
                data = entry.data  # another reader may have been quicker
                if data is None:
                    data = encode()
                    self._keep(entry, data)
                    size = AGAIN_BYTES if at else SLICE_BYTES
        with self._mutex:
            self._found.move_to_end(key)
        return data[at : at + size]

    def _keep(self, entry: _EncodedPart, data: bytes) -> None:
        with self._mutex:
            if entry.size not in (-1, len(data)):
                raise Unavailable("a large event or document changed while it was being sent")
            entry.size = len(data)
            if entry.data is None:
                entry.data = data
                self._bytes += len(data)
            for other in self._found.values():
                if self._bytes <= self._kept_bytes:
                    break
                if other is not entry:
                    self._drop(other)

    def _drop(self, entry: _EncodedPart) -> None:
        if entry.data is not None:
            entry.data = None
            self._bytes -= entry.size


_ENCODINGS = Encodings()
slices = _ENCODINGS.slices


def is_huge(batch: EventBatch) -> bool:
    """Return whether a batch, or a part that `parted` made, has more than a reader that stops may hold."""
    return size_of(batch) > HUGE_BYTES


def encoded(batch: EventBatch, form: Hashable, encode: Callable[[EventBatch], bytes]) -> Iterator[bytes]:
    """The bytes of a part that `parted` made, in slices if it is huge. `form` tells apart what else encodes it."""
    if is_huge(batch):
        yield from slices((form, batch.log.node, batch.ticks().tobytes()), lambda: encode(batch))
    else:
        yield encode(batch)
