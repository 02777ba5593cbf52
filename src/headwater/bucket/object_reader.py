"""Reading a partition of a bucket: objects and ranges of segments, fetched in parallel ahead of whoever reads on.

A `ObjectReader` belongs to one log in one process. An `ObjectCursor` moves through it and belongs to one thread. What
was compacted or trimmed while somebody read is noticed when it is missed, or when `meta` was not looked at for too
long.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from itertools import pairwise, takewhile
from typing import NamedTuple

import numpy as np

from headwater.bucket.chain import Chain
from headwater.bucket.meta import Meta, ObjectSegment
from headwater.bucket.object_place import ObjectPlace
from headwater.errors import Corrupt
from headwater.format import object as format
from headwater.format.batch import LOST, Batch, corrupt, decode
from headwater.format.object import ObjectHead
from headwater.log.log import Extents, offset_gone
from headwater.log.packing import part

HEAD_BYTES = 16 * 1024  # enough for most heads in one request
HEADS_KEPT = 4096
AHEAD_AT_FIRST = 4  # pieces: who wants many is likely to read on, and who does not pays for three requests
DOUBTS_MAX = 5  # how often what is read may turn out to be compacted meanwhile, before it is damage

TypeTest = Callable[[bytes], bool]


class FetchRange(NamedTuple):
    """A part of the log that is fetched at once: an object of events, or a range of a segment's batches."""

    base: int
    end: int
    key: str
    position: int  # of the first batch in a segment; 0 for a whole object
    size: int  # of the range; 0 for a whole object


class MissingObject(Exception):
    """What was to be fetched is not there, or cannot be believed any more: it was compacted or trimmed."""


class ObjectReader:
    """The reading side of one partition in one process. Safe from any thread."""

    def __init__(self, place: ObjectPlace, chain: Chain, pool: Callable[[], Executor]) -> None:
        self._place = place
        self._chain = chain
        self._pool = pool
        self._heads: OrderedDict[str, ObjectHead] = OrderedDict()  # replaced and looked up by single operations

    def start(self) -> int:
        """Return the oldest readable offset."""
        return self._chain.knowledge.meta().trim.offset

    def batches(self, start: int, stop: int, *, backwards: bool) -> Iterator[Batch]:
        """Yield the batches that hold the offsets from `start` to `stop`, whole."""
        return self._backwards(start, stop) if backwards else ObjectCursor(self, start).batches(stop)

    def pieces(self, start: int, stop: int) -> list[FetchRange]:
        """Return what holds the offsets from `start` to before `stop`; raises NotFound for what is gone."""
        meta = self._chain.knowledge.meta()
        if start < meta.trim.offset:
            raise offset_gone(self._place, start, meta.trim.offset)
        found: list[FetchRange] = []
        if start < meta.compacted.offset:
            for segment in meta.segments:
                if segment.end > start and segment.base < stop:
                    found += self._ranges(segment, start, stop)
        if stop > meta.compacted.offset:
            events_at, end_of = self._place.events_at, self._chain.end_of
            bases = self._chain.bases(start, stop, meta.reached.offset)
            found += [FetchRange(base, end_of(base), events_at(base), 0, 0) for base in bases]
        gaps = any(piece.end != behind.base for piece, behind in pairwise(found))
        if not found or found[0].base > start or found[-1].end < stop or gaps:
            raise MissingObject
        return found

    def fetched(self, pieces: list[FetchRange]) -> Iterator[tuple[FetchRange, memoryview]]:
        """Yield the bytes of each piece, in order, ever more of them ahead; raises Missed where one is gone."""
        if len(pieces) == 1:
            yield pieces[0], self._fetch(pieces[0])
            return
        waiting: deque[tuple[FetchRange, Future[memoryview]]] = deque()
        most = self._place.limits.fetch_threads
        ahead = min(AHEAD_AT_FIRST, most)
        rest = iter(pieces)
        try:
            while True:
                while len(waiting) < ahead and (piece := next(rest, None)) is not None:
                    waiting.append((piece, self._pool().submit(self._fetch, piece)))
                if not waiting:
                    return
                piece, future = waiting.popleft()
                yield piece, future.result()
                ahead = min(ahead * 2, most)
        finally:
            for _, future in waiting:
                future.cancel()

    def decoded(self, piece: FetchRange, data: memoryview) -> Iterator[Batch]:
        """Yield the batches of a piece, their headers verified."""
        path = self._place.path(piece.key)
        position, offset = 0, piece.base
        if not piece.size:
            head, position = format.decode(data, path)
            self._note(piece.key, head)
        end = len(data)
        while position < end:
            batch = decode(data, position, end, piece.key, piece.position)
            if batch.base_offset != offset:
                raise corrupt(f"a batch has offset {batch.base_offset} instead of {offset}", path, position, batch.size)
            offset = batch.end_offset
            position += batch.size
            yield batch
        if offset < piece.end and not piece.size:  # the next one is not where it was said to be
            raise MissingObject
        if offset != piece.end:
            raise corrupt(f"an object ends at offset {offset} instead of {piece.end}", path, 0, end)

    def end(self) -> int:
        """Return where the log ends, as far as is known."""
        return self._chain.tip.end

    def recover(self, offset: int) -> None:
        """Look again at what was missed at an offset; raises NotFound if it is gone."""
        meta = self._chain.knowledge.look()
        if offset < meta.trim.offset:
            raise offset_gone(self._place, offset, meta.trim.offset)

    def lost(self, offset: int) -> Corrupt:
        """That nothing explains why an offset is not there."""
        path = self._place.path(self._place.events_at(offset))
        return corrupt("an object is missing", path, 0, 0, (offset, offset + 1))

    def offset_at(self, ticks: int) -> int:
        """Return the first offset whose event has these ticks or later ones; the end if there is none."""
        for _ in range(DOUBTS_MAX):
            try:
                return self._offset_at(ticks)
            except MissingObject:
                self._chain.knowledge.look()
        raise self.lost(self.start())

    def extents(self, start: int, stop: int, whole: int) -> Extents:
        """Return where the offsets from `start` to before `stop` can be cut: at objects, and at ranges of segments.

        A segment that has up to `whole` bytes is not looked into.
        """
        for _ in range(DOUBTS_MAX):
            try:
                return self._extents(start, min(stop, self.end()), whole)
            except MissingObject:
                self.recover(start)
        raise self.lost(start)

    def _extents(self, start: int, stop: int, whole: int) -> Extents:
        meta = self._chain.knowledge.meta()
        if start < meta.trim.offset:
            raise offset_gone(self._place, start, meta.trim.offset)
        found: list[tuple[int, int]] = []
        for segment in meta.segments:
            if segment.end > start and segment.base < stop:
                if segment.bytes <= whole and start <= segment.base and segment.end <= stop:
                    found.append((segment.base, segment.bytes))
                else:
                    found += [(piece.base, piece.size) for piece in self._ranges(segment, start, stop)]
        if stop > max(start, meta.compacted.offset):
            bases = self._chain.bases(start, stop, meta.reached.offset)
            sizes = self._sizes(bases)
            found += [(base, sizes.get(base, 0)) for base in bases]
        if start < stop and (not found or found[0][0] > start):
            raise MissingObject
        return Extents.of([max(start, base) for base, _ in found], [size for _, size in found])

    def _sizes(self, bases: list[int]) -> dict[int, int]:
        """Return the bytes of objects of events by their first offsets, as the store lists them.

        What is gone is missing.
        """
        if not bases:
            return {}
        after = self._place.events_at(bases[0] - 1) if bases[0] else self._place.events
        listed = self._place.store.list(self._place.events, after)
        ended = takewhile(lambda each: int(each.key.rpartition("/")[2]) <= bases[-1], listed)
        return {int(each.key.rpartition("/")[2]): each.size for each in ended}

    def _offset_at(self, ticks: int) -> int:
        meta = self._chain.knowledge.meta()
        end = self._chain.advance().end
        if ticks <= meta.trim.ticks or end == meta.trim.offset:
            return meta.trim.offset
        if ticks > self._chain.tip.ticks:
            return end
        piece = self._piece_at(meta, ticks, end)
        for batch in self.decoded(piece, self._fetch(piece)):
            if batch.last_ticks >= ticks:
                return batch.base_offset + int(np.searchsorted(batch.ticks(), ticks, "left"))
        return piece.end

    def _piece_at(self, meta: Meta, ticks: int, end: int) -> FetchRange:
        """Return the piece that holds the last event before these ticks, or the first one behind them."""
        if ticks <= meta.compacted.ticks:
            for segment in meta.segments:
                if ticks <= segment.ticks and segment.end > meta.trim.offset:
                    ranges = self._ranges(segment, max(segment.base, meta.trim.offset), segment.end)
                    at = bisect_right(self._first_ticks(segment, ranges), ticks) - 1
                    return ranges[max(0, at)]
        bases = self._chain.bases(meta.reached.offset, end, meta.reached.offset)
        at = bisect_right(bases, ticks, key=lambda base: self.head(self._place.events_at(base)).previous_ticks + 1) - 1
        base = bases[max(0, at)]
        return FetchRange(base, self._chain.end_of(base), self._place.events_at(base), 0, 0)

    def _first_ticks(self, segment: ObjectSegment, ranges: list[FetchRange]) -> list[int]:
        table = self.head(self._place.segment(segment.base, segment.end, segment.nonce)).batches
        first = {offset: ticks for offset, _, ticks in table}
        return [first[piece.base] for piece in ranges]

    def _ranges(self, segment: ObjectSegment, start: int, stop: int) -> list[FetchRange]:
        """Return the parts of a segment that hold some offsets, each about as large as one request should be."""
        key = self._place.segment(segment.base, segment.end, segment.nonce)
        head = self.head(key)
        table = head.batches
        lo = max(0, bisect_right(table, start, key=lambda entry: entry[0]) - 1)
        hi = bisect_right(table, stop - 1, key=lambda entry: entry[0])
        ends = [*(entry[0] for entry in table[1:]), segment.end]
        positions = [*(entry[1] for entry in table), table[0][1] + head.size]
        found: list[FetchRange] = []
        first = lo
        for number in range(lo, hi):
            size = positions[number + 1] - positions[first]
            if number + 1 == hi or size >= self._place.limits.fetch_bytes:
                found.append(FetchRange(table[first][0], ends[number], key, positions[first], size))
                first = number + 1
        return found

    def head(self, key: str) -> ObjectHead:
        """Return the head of an object; raises Missed if it is not there."""
        head = self._heads.get(key)
        if head is not None:
            return head
        data = self._chain.cache.get(key)
        if data is None:
            data = self._place.store.get_range(key, 0, HEAD_BYTES)
            if data is not None and (size := format.head_bytes(data)) > HEAD_BYTES:
                data = self._place.store.get_range(key, 0, size)
        if data is None or not self._believed(key):
            raise MissingObject
        head = format.decode(data, self._place.path(key))[0]
        self._note(key, head)
        return head

    def _note(self, key: str, head: ObjectHead) -> None:
        self._heads[key] = head
        while len(self._heads) > HEADS_KEPT:
            try:
                self._heads.popitem(last=False)
            except KeyError:  # another thread was first
                break

    def _fetch(self, piece: FetchRange) -> memoryview:
        cache, store = self._chain.cache, self._place.store
        data = cache.get(piece.key, piece.position)
        if data is not None and len(data) >= piece.size:
            return data[: piece.size] if piece.size else data
        if piece.size:
            data = store.get_range(piece.key, piece.position, piece.size)
            if data is not None and len(data) != piece.size:
                raise corrupt("an object is cut off", self._place.path(piece.key), piece.position, piece.size)
        else:
            stored = store.get(piece.key)
            data = None if stored is None else stored.data
        if data is None or not self._believed(piece.key):
            raise MissingObject
        if not piece.size:
            self._chain.decode(piece.key, data)
        cache.put(piece.key, data, piece.position)
        return data

    def _believed(self, key: str) -> bool:
        """Return whether what was found at a key is what the log has there.

        Nobody else ever puts a segment in its place.
        """
        if not key.startswith(self._place.events):
            return True
        return self._chain.knowledge.stands(int(key.removeprefix(self._place.events)))

    def _backwards(self, start: int, stop: int) -> Iterator[Batch]:
        doubts = 0
        begun = False  # then what was handed out of a batch is not handed out again as a part of a larger one
        stop = min(stop, self.end())
        while start < stop:
            try:
                lo = max(start, self.start())
                if lo >= stop:
                    break
                for piece in reversed(self.pieces(lo, stop)):
                    for batch in reversed(list(self.decoded(piece, self._fetch(piece)))):
                        if batch.base_offset < stop and batch.end_offset > start:
                            if not batch.flags & LOST:
                                yield cut(batch, 0, stop) if begun else batch
                            stop, begun = batch.base_offset, True
                            doubts = 0
            except MissingObject:
                doubts += 1
                if doubts > DOUBTS_MAX:
                    raise self.lost(stop - 1) from None
                self.recover(stop - 1)
        if start < stop:
            raise offset_gone(self._place, start, self.start())


class ObjectCursor:
    """A place in a log that moves forward over batches."""

    def __init__(self, reader: ObjectReader, offset: int) -> None:
        self.offset = offset
        self.lost = 0  # a bucket is never repaired
        self._reader = reader

    def batches(self, stop: int, _types: TypeTest | None = None, _key: bytes | None = None) -> Iterator[Batch]:
        """Yield the batches from here to the one that holds `stop - 1`, moving along; ends at the known end of the log.

        There is no index in a bucket: a reader that wants types or a key finds them among all.
        """
        reader = self._reader
        doubts = 0
        begun = False  # then what was handed out of a batch is not handed out again as a part of a larger one
        stop = min(stop, reader.end())
        while self.offset < stop:
            try:
                for piece, data in reader.fetched(reader.pieces(self.offset, stop)):
                    for batch in reader.decoded(piece, data):
                        if batch.end_offset <= self.offset:
                            continue
                        if batch.base_offset >= stop:
                            break
                        lo, self.offset = self.offset, batch.end_offset
                        doubts = 0
                        if not batch.flags & LOST:
                            yield cut(batch, lo, batch.end_offset) if begun else batch
                        begun = True
            except MissingObject:
                doubts += 1
                if doubts > DOUBTS_MAX:
                    raise reader.lost(self.offset) from None
                reader.recover(self.offset)


def cut(batch: Batch, start: int, stop: int) -> Batch:
    """Return the part of a batch from an offset to before another; the batch itself if it has nothing else."""
    lo, hi = max(0, start - batch.base_offset), min(batch.count, stop - batch.base_offset)
    if (lo, hi) == (0, batch.count):
        return batch
    data = memoryview(part(batch, lo, hi, zstd=False))
    return decode(data, 0, len(data), batch.path)
