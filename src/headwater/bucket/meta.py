"""What a partition's `meta` record says: up to where its log is trimmed and compacted, and its segments.

`Knowledge` is what this process knows of it. It is never believed for longer than `knowledge_s`, from the look to the
answer of what is built on it, by the clock that counts on and by the one on the wall: the first may stand still while
a machine is suspended, as functions in a cloud are. So nobody takes an object that was put in a freed place for the one
that was there (docs/BUCKET.md, "The rules").
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from headwater.bucket.object_place import ObjectPlace
from headwater.bucket.records import Records
from headwater.format.object import ProducerRecord
from headwater.log.failures import deleted

TICKS_PER_S = 10_000_000


class Point(msgspec.Struct, frozen=True):
    """A place between two objects, and what the process that goes on from there must know of the one before."""

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
    """What was found to be garbage, and will be for ever: it is deleted when this has stood for `collect_s`.

    Those are the objects of events below `offset`, and the keys `doomed` (without the topic's prefix) of segments and
    huge events that nothing names. `at` is the time of the store, in ms, read after all that was found.
    """

    offset: int = 0
    at: int = 0
    doomed: list[str] = []


class Meta(msgspec.Struct, frozen=True):
    """The record. What is below `trim` is gone; what is below `compacted`, and not gone, is in the segments."""

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
    """A look: what was seen, and when it began, by both clocks."""

    meta: Meta
    looked_s: float
    looked_ticks: int


class Knowledge:
    """What this process knows of one partition's meta. Safe from any thread."""

    def __init__(self, place: ObjectPlace) -> None:
        self._place = place
        self._records = Records(place.store, place.clock, Meta)
        self._mutex = threading.Lock()  # protects what is below; read as a whole, so that no look is taken for another
        self._known: _MetaSnapshot | None = None

    def create(self) -> None:
        """Make the record of a new log. One that is there already is right, too: the process that made it was first."""
        self._records.create(self._place.meta, Meta(log=self._place.uuid.hex()))

    def meta(self) -> Meta:
        """Return the record, as it was at most `knowledge_s` ago.

        Raises NotFound if the topic was deleted and collected.
        """
        known = self._known
        return known.meta if known is not None and self._fresh(known) else self.look()

    def stands(self, base: int) -> bool:
        """Return whether what was found or put as the object of events at `base`, or missed there, can be believed.

        Asked when the answer has come. If so, nobody has freed that place before: what is garbage is deleted only
        below the mark, long after that was made. Else a sleeper may have put an object there that is in no log. It is
        not enough that what is known is new: another thread may have looked since this one chose the place.
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
        """Swap the record for what `change` makes of it, durably; None leaves it. Returns what it is then.

        `change` may be called several times: others may have been first, or the answer to a swap was lost, and then
        it sees what it has made itself.
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
        """Return whether a look may still be believed."""
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
