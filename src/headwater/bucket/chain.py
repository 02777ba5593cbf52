"""The objects of one partition, as far as this process knows them: which exist, where the log ends, and their bytes.

Every object names the one before it by its nonce. The next key is the end of the last object, so a process that knows
one object knows where the next will be (docs/BUCKET.md, "The rules"). Safe from any thread.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from typing import NamedTuple

import msgspec

from headwater.bucket.meta import Knowledge, Meta, Point
from headwater.bucket.object_place import ObjectPlace
from headwater.disk.disk import Word
from headwater.errors import Corrupt, HeadwaterError
from headwater.format import object as format
from headwater.format.object import ObjectHead, ProducerRecord
from headwater.log.log import deleted

TAIL_OBJECTS = 64  # a hint of the end is put after so many objects, so that opening the log lists at most so many
SLOWER = 1.5  # each poll that finds nothing lets the next one wait so much longer


class Hint(msgspec.Struct):
    """What `tail` says: an object that was the last one when it was put."""

    base: int


_hints = msgspec.json.Decoder(Hint)


class Tip(NamedTuple):
    """Where the log ends, and what the next object must know of the one before."""

    end: int
    nonce: str
    ticks: int
    producers: list[ProducerRecord]

    @classmethod
    def of(cls, point: Point) -> Tip:
        return cls(point.offset, point.nonce, point.ticks, point.producers)


class Chain:
    """What this process knows of one partition."""

    def __init__(self, place: ObjectPlace, cache: ObjectCache) -> None:
        self.knowledge = Knowledge(place)
        self.cache = cache
        self._place = place
        self._advancing = threading.RLock()  # one look at the end at a time; protects what is below
        self._tip: Tip | None = None
        self._bases: list[int] = []  # of the objects of events that are known, ascending
        self._known_from = 0  # all from here to the tip are in `_bases`
        self._hinted = 0  # objects since the last hint
        self._closed = False  # the topic was deleted
        self._look_s = 0.0  # when to look again, for those who do so again and again
        self._pause_s = 0.0
        self._word = place.disk.shared_word()

    @property
    def tip(self) -> Tip:
        """Return where the log ends, as far as is known; looks only if nothing is."""
        tip = self._tip
        return tip if tip is not None and not self._closed else self.advance()

    def advance(self) -> Tip:
        """Return where the log ends now. Raises NotFound if the topic was deleted."""
        with self._advancing:
            if self._closed:
                raise deleted(self._place)
            tip = self._tip or self._begin()
            doubts = 0
            while True:
                meta = self.knowledge.meta()
                if meta.reached.offset > tip.end:  # this process slept while what it knew was collected
                    tip = self._begin()
                stored = self._place.store.get(self._place.events_at(tip.end))
                if not self.knowledge.stands(tip.end):
                    continue
                if stored is None:
                    return tip
                head = self.decode(self._place.events_at(tip.end), stored.data)
                if head.previous != tip.nonce:
                    doubts += 1
                    if doubts > 1:
                        raise self._broken(head, tip)
                    self.knowledge.look()
                    tip = self._begin()
                    continue
                self.cache.put(self._place.events_at(tip.end), stored.data)
                tip = self.take(head)

    def take(self, head: ObjectHead) -> Tip:
        """Note an object that was found or put at the tip; one that is known already changes nothing."""
        with self._advancing:
            tip = self._tip
            if tip is None or head.base != tip.end:
                return self.tip
            if head.closed:
                self._closed = True
                self.wake()
                raise deleted(self._place)
            tip = self._tip = Tip(head.end, head.nonce, head.ticks, head.producers)
            insort(self._bases, head.base)
            if len(self._bases) % TAIL_OBJECTS == 0:
                self._forget()
        self.wake()
        return tip

    def seen(self) -> int:
        """Return the end, for callers that poll: it looks ever more rarely while nothing comes."""
        now_s = self._place.clock.monotonic()
        if self._tip is not None and now_s < self._look_s and not self._closed:
            return self._tip.end
        before = -1 if self._tip is None else self._tip.end
        end = self.advance().end
        limits = self._place.limits
        with self._advancing:
            longer_s = min(self._pause_s * SLOWER, limits.follow_ms_max / 1000)
            self._pause_s = limits.follow_ms / 1000 if end != before or not self._pause_s else longer_s
            self._look_s = self._place.clock.monotonic() + self._pause_s
        return end

    def until_look_s(self) -> float:
        """In how many seconds `seen` looks again."""
        return max(0.0, self._look_s - self._place.clock.monotonic())

    def bases(self, start: int, stop: int, reached: int) -> list[int]:
        """Return the objects of events that hold the offsets from `start` to before `stop`, by their first ones.

        What is below `reached`, compacted or trimmed as `meta` said when the caller looked, is not among them.
        """
        self.tip  # noqa: B018  # the objects up to it are known then
        with self._advancing:
            start = max(start, reached)
            if start < self._known_from:
                self._list(reached)
            lo = max(0, bisect_right(self._bases, start) - 1)
            return [base for base in self._bases[lo : bisect_left(self._bases, stop)] if base >= reached]

    def end_of(self, base: int) -> int:
        """Return where the object of events with this first offset ends."""
        with self._advancing:
            at = bisect_right(self._bases, base)
            return self._bases[at] if at < len(self._bases) else self.tip.end

    def decode(self, key: str, data: memoryview) -> ObjectHead:
        """Return the head of an object of this log; raises Corrupt for another's."""
        head, position = format.decode(data, self._place.path(key))
        if head.log != self._place.uuid.hex() or position + head.size > len(data):
            told = "belongs to another log" if head.log != self._place.uuid.hex() else "is cut off"
            path = self._place.path(key)
            raise Corrupt(f"an object {told}: {path}", path=path, position=0, size=len(data), reason=told)
        return head

    def hint(self) -> None:
        """Put a hint where the end is, now and then; best effort."""
        with self._advancing:
            self._hinted += 1
            if self._hinted < TAIL_OBJECTS or not self._bases:
                return
            self._hinted = 0
            hint = Hint(self._bases[-1])
        try:
            self._place.store.put(self._place.tail, msgspec.json.encode(hint))
        except HeadwaterError:  # it is only a hint
            return

    # To sleep on

    def expect(self) -> Word:
        """Return the word that changes when this process appends or is told to look around."""
        return self._word, 0, int.from_bytes(self._word[:4], "little")

    def wake(self) -> None:
        """Wake all threads that sleep on it; they look at once."""
        self._look_s = 0.0
        value = int.from_bytes(self._word[:4], "little")
        self._place.disk.store(self._word, 0, ((value + 1) & 0xFFFFFFFF).to_bytes(4, "little"))
        self._place.disk.wake(self._word, 0)

    def _begin(self) -> Tip:
        """Find the end from what the store says: its hint, or a list."""
        self._tip = None
        while True:
            meta = self.knowledge.look()
            tip = self._from(meta, self._hinted_base(meta)) or self._from(meta, meta.reached.offset)
            if not self.knowledge.stands(meta.reached.offset):
                continue
            self._tip = tip or Tip.of(meta.reached)
            return self._tip

    def _forget(self) -> None:
        """Release the objects that are compacted or trimmed, or a process that goes on would remember ever more."""
        reached = self.knowledge.meta().reached.offset
        del self._bases[: bisect_left(self._bases, reached)]
        self._known_from = max(self._known_from, reached)

    def _from(self, meta: Meta, base: int) -> Tip | None:
        """Return the end as a list from an object on shows it; None if that has nothing."""
        self._list(base)
        if not self._bases:
            return None
        key = self._place.events_at(self._bases[-1])
        stored = self._place.store.get(key)
        if stored is None or not self.knowledge.stands(self._bases[-1]):  # all was collected meanwhile: look again
            self._bases = []
            self._known_from = meta.reached.offset
            return None
        head = self.decode(key, stored.data)
        if head.closed:
            self._closed = True
            raise deleted(self._place)
        self.cache.put(key, stored.data)
        return Tip(head.end, head.nonce, head.ticks, head.producers)

    def _list(self, base: int) -> None:
        after = self._place.events_at(base - 1) if base else self._place.events
        tip_end = self._tip.end if self._tip is not None else None
        found = [int(each.key.rpartition("/")[2]) for each in self._place.store.list(self._place.events, after)]
        self._bases = sorted(each for each in found if tip_end is None or each < tip_end)
        self._known_from = base

    def _hinted_base(self, meta: Meta) -> int:
        stored = self._place.store.get(self._place.tail)
        if stored is None:
            return meta.reached.offset
        try:
            return max(meta.reached.offset, _hints.decode(stored.data).base)
        except msgspec.DecodeError:
            return meta.reached.offset

    def _broken(self, head: ObjectHead, tip: Tip) -> Corrupt:
        path = self._place.path(self._place.events_at(head.base))
        return Corrupt(
            f"an object does not follow the one before it: {path}",
            hint="run 'headwater check'",
            path=path,
            position=0,
            size=0,
            reason="the chain is broken",
            offsets=(tip.end, head.end),
        )


class ObjectCache:
    """The most recently used bytes of objects, by key and position: objects never change. Safe from any thread."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._mutex = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """Return the number of bytes in the cache."""
        return self._size

    def get(self, key: str, position: int = 0) -> memoryview | None:
        with self._mutex:
            found = self._kept.get((key, position))
            if found is not None:
                self._kept.move_to_end((key, position))
            return found

    def put(self, key: str, data: memoryview, position: int = 0) -> None:
        """Add some bytes, and evict the least recently used. Bytes above a quarter of the limit are not cached."""
        if len(data) * 4 > self._bytes_max:
            return
        with self._mutex:
            before = self._kept.pop((key, position), None)
            self._size += len(data) - (0 if before is None else len(before))
            self._kept[key, position] = data
            while self._size > self._bytes_max:
                self._size -= len(self._kept.popitem(last=False)[1])

    def drop(self, key: str, position: int = 0) -> None:
        """Remove bytes that turned out to belong to another object."""
        with self._mutex:
            before = self._kept.pop((key, position), None)
            self._size -= 0 if before is None else len(before)
