"""The `meta` record of a partition: up to where its log is trimmed and compacted, and its segments; heads of segments.

`Knowledge` is the copy of this process. It is used for at most `knowledge_s`, from the read to the response of the
request that relies on it, by the monotonic clock and the wall clock: the first may stop while a machine is suspended,
as cloud functions are. So an object that was put in a freed place is never taken for the one before it
(docs/BUCKET.md, "The rules").
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from headwater.bucket.object_place import ObjectPlace
from headwater.bucket.records import Records
from headwater.format import object as format
from headwater.format.object import ObjectHead, ProducerRecord
from headwater.log.log import deleted

TICKS_PER_S = 10_000_000
HEAD_BYTES = 16 * 1024  # enough for most heads in one request


class Point(msgspec.Struct, frozen=True):
    """A place between two objects, and what a process that continues there must know of the object before it."""

    offset: int = 0
    nonce: str = ""
    ticks: int = 0
    producers: list[ProducerRecord] = []


class ObjectSegment(msgspec.Struct, frozen=True):
    """A segment: `nonce` is a part of its key, `ticks` are of its last event, `bytes` those of the whole object.

    `blobs` are the bytes of the huge events that it names.
    """

    base: int
    end: int
    nonce: str
    bytes: int
    previous_ticks: int
    ticks: int
    blobs: int = 0


class Mark(msgspec.Struct, frozen=True):
    """What is garbage for ever: it is deleted when the mark is `collect_s` old.

    Garbage are the objects of events below `offset`, and `doomed`: keys (without the topic's prefix) of segments and
    huge events that nothing names. `at` is the time of the store, in ms, read after the garbage was found.
    """

    offset: int = 0
    at: int = 0
    doomed: list[str] = []


class Meta(msgspec.Struct, frozen=True):
    """The record. Events below `trim` are gone; those from there to `compacted` are in the segments."""

    log: str
    trim: Point = Point()
    compacted: Point = Point()
    segments: list[ObjectSegment] = []
    mark: Mark = Mark()

    @property
    def reached(self) -> Point:
        """Return the higher of the two: below it, objects of events are garbage."""
        return max(self.trim, self.compacted, key=lambda point: point.offset)

    def segment_of(self, offset: int) -> ObjectSegment | None:
        """Return the segment that holds an offset."""
        at = bisect_right(self.segments, offset, key=lambda segment: segment.base) - 1
        return self.segments[at] if at >= 0 and offset < self.segments[at].end else None


class _MetaSnapshot(NamedTuple):
    """One read of the record, and when it began, by both clocks."""

    meta: Meta
    looked_s: float
    looked_ticks: int


class Knowledge:
    """The copy of one partition's meta record in this process. Safe from any thread."""

    def __init__(self, place: ObjectPlace) -> None:
        self._place = place
        self._records = Records(place.store, place.clock, Meta)
        self._mutex = threading.Lock()  # protects `_known`, which is replaced as a whole
        self._known: _MetaSnapshot | None = None

    def create(self) -> None:
        """Create the record of a new log, unless another process has."""
        self._records.create(self._place.meta, Meta(log=self._place.uuid.hex()))

    def meta(self) -> Meta:
        """Return the record, as it was at most `knowledge_s` ago.

        Raises NotFound if the topic was deleted and collected.
        """
        known = self._known
        return known.meta if known is not None and self._fresh(known) else self.look()

    def stands(self, base: int) -> bool:
        """Return whether the result of a get or put of the object of events at `base` can be trusted.

        To be called after the response. If so, that place was never freed: garbage is deleted only below the mark, long
        after the mark was made. Otherwise a process that was suspended may have put an object there that is in no log.
        A fresh copy alone proves nothing: another thread may have read it after this one chose the place.
        """
        return base >= self.meta().mark.offset

    def look(self) -> Meta:
        """Return the record as it is now."""
        now = self._now()
        found = self._records.read(self._place.meta)
        if found is None:
            raise deleted(self._place)
        self._note(found.record, now)
        return found.record

    def change(self, change: Callable[[Meta], Meta | None]) -> Meta:
        """Replace the record by what `change` returns, durably, unless that is None; return the record after it.

        `change` may be called several times: if another process was first, or if the response to a swap was lost, in
        which case it sees its own result.
        """
        while True:
            now = self._now()
            found = self._records.read(self._place.meta)
            if found is None:
                raise deleted(self._place)
            changed = change(found.record)
            if changed is None:
                self._note(found.record, now)
                return found.record
            if self._records.swap(self._place.meta, changed, found.version) is not None:
                self._note(changed, now)
                return changed

    def _fresh(self, known: _MetaSnapshot) -> bool:
        """Return whether a read is recent enough to be used."""
        now_s, now_ticks = self._now()
        knowledge_s = self._place.limits.knowledge_s
        slept = now_ticks - known.looked_ticks
        return now_s - known.looked_s < knowledge_s and -TICKS_PER_S < slept < knowledge_s * TICKS_PER_S

    def _now(self) -> tuple[float, int]:
        return self._place.clock.monotonic(), self._place.clock.ticks()

    def _note(self, meta: Meta, now: tuple[float, int]) -> None:
        with self._mutex:
            if self._known is None or now[0] >= self._known.looked_s:
                self._known = _MetaSnapshot(meta, *now)


def packed_in(place: ObjectPlace, meta: Meta, base: int, nonce: str) -> bool:
    """Return whether the object of events with this nonce was at `base`, and is in a segment now.

    False also if it is trimmed: then nothing shows any more which object it was.
    """
    while (segment := meta.segment_of(base)) is not None:
        found = table_of(place, segment)
        if found is not None:
            return found.get(base) == nonce
        meta = Knowledge(place).look()  # the segment was merged with others meanwhile
    return False


def read_head(place: ObjectPlace, key: str) -> tuple[ObjectHead, int] | None:
    """Return the head of an object, verified, and where its batches begin; None if it is not there."""
    data = place.store.get_range(key, 0, HEAD_BYTES)
    if data is not None and (size := format.head_bytes(data)) > len(data) >= format.PREFIX_BYTES:
        data = place.store.get_range(key, 0, size)
    return None if data is None else format.decode(data, place.path(key))


def table_of(place: ObjectPlace, segment: ObjectSegment) -> dict[int, str] | None:
    """Return the nonces of the objects that a segment was made of, by their first offsets; None if it is not there."""
    key = place.segment(segment.base, segment.end, segment.nonce)
    found = read_head(place, key)
    if found is None:
        return None
    head, start = found
    stored = place.store.get_range(key, start + head.size, format.TABLE_ENTRY_BYTES * head.objects + 4)
    return None if stored is None else format.decode_table(stored, place.path(key))
