"""Encodes huge events and large documents as a whole and sends them in slices, without a copy for each reader.

    slices(key, encode) -> Iterator[bytes]      what `encode` returns, in slices; equal keys must encode to equal bytes
    encoded(batch, form, encode)                `encode(batch)`, in slices if it is huge; `form` names what encode does

A reader that stops has its position and at most one slice. Encoded bytes are kept while they have readers, once for
all readers of the same key, up to `KEPT_BYTES` for the whole process; beyond that, the least recently used are dropped,
and encoded again when needed. The slice after that is longer, so that many readers at once encode each only a few
times. Few are encoded at once: each takes several times its size for a moment. Safe from any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterator

from headwater.errors import Unavailable
from headwater.format.events import EventBatch
from headwater.server.wire.pieces import PIECE_BYTES, size_of

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
        """What `encode` returns, in slices. Raises what it raises, also in the midst, if it must be called again."""
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
