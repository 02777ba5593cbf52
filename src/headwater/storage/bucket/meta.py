"""What a partition's `meta` record says: up to where its log is trimmed and compacted, and its segments.

`Knowledge` is what this process knows of it. It is never believed for longer than `knowledge_s`, from the look to the
answer of what is built on it; so nobody takes an object that was put in a freed place for the one that was there
(docs/BUCKET.md, "The rules").
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable

import msgspec

from headwater.format.object import Told
from headwater.storage.bucket.place import ObjectPlace
from headwater.storage.bucket.records import Records
from headwater.storage.failures import deleted


class Point(msgspec.Struct, frozen=True):
    """A place between two objects, and what whoever goes on from there must know of the one before."""

    offset: int = 0
    nonce: str = ""
    ticks: int = 0
    producers: list[Told] = []


class Segment(msgspec.Struct, frozen=True):
    """A segment: `nonce` is a part of its key, `ticks` are of its last event, `bytes` those of the whole object."""

    base: int
    end: int
    nonce: str
    bytes: int
    previous_ticks: int
    ticks: int


class Meta(msgspec.Struct, frozen=True):
    """The record. What is below `trim` is gone; what is below `compacted`, and not gone, is in the segments."""

    log: str
    trim: Point = Point()
    compacted: Point = Point()
    segments: list[Segment] = []

    @property
    def reached(self) -> Point:
        """The higher of the two: below it, objects of events are superfluous."""
        return max(self.trim, self.compacted, key=lambda point: point.offset)

    def segment_of(self, offset: int) -> Segment | None:
        """The segment that holds an offset."""
        at = bisect_right(self.segments, offset, key=lambda segment: segment.base) - 1
        return self.segments[at] if at >= 0 and offset < self.segments[at].end else None


class Knowledge:
    """What this process knows of one partition's meta. Safe from any thread."""

    def __init__(self, place: ObjectPlace) -> None:
        self._place = place
        self._records = Records(place.store, place.clock, Meta)
        self._mutex = threading.Lock()  # protects the two below
        self._meta: Meta | None = None
        self._looked_s = 0.0

    def create(self) -> None:
        """Make the record of a new log. One that is there already is right, too: whoever made it was first."""
        self._records.create(self._place.meta, Meta(log=self._place.uuid.hex()))

    def meta(self) -> Meta:
        """The record, as it was at most `knowledge_s` ago. Raises NotFound if the topic was deleted and collected."""
        meta = self._meta
        return meta if meta is not None and self.fresh() else self.look()

    def fresh(self) -> bool:
        """Whether what is known may still be believed: asked again when an answer has come."""
        return self._place.clock.monotonic() - self._looked_s < self._place.limits.knowledge_s

    def look(self) -> Meta:
        """The record as it is now."""
        looked_s = self._place.clock.monotonic()
        found = self._records.read(self._place.meta)
        if found is None:
            raise deleted(self._place)
        self._note(found.record, looked_s)
        return found.record

    def change(self, change: Callable[[Meta], Meta | None]) -> Meta:
        """Swap the record for what `change` makes of it, durably; None leaves it. Returns what it is then.

        `change` may be called several times: others may have been first.
        """
        while True:
            looked_s = self._place.clock.monotonic()
            found = self._records.read(self._place.meta)
            if found is None:
                raise deleted(self._place)
            changed = change(found.record)
            if changed is None:
                self._note(found.record, looked_s)
                return found.record
            if self._records.swap(self._place.meta, changed, found.version) is not None:
                self._note(changed, looked_s)
                return changed

    def _note(self, meta: Meta, looked_s: float) -> None:
        with self._mutex:
            if looked_s > self._looked_s or self._meta is None:
                self._meta, self._looked_s = meta, looked_s
