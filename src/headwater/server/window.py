"""The unacknowledged events of a remote member, which limit how much its client must hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.event import Event

CHUNK_EVENTS = 1024  # what is encoded and handed to the loop at once; large enough to vectorise
CHUNK_BYTES = 256 * 1024


class AckWindow:
    """The unacknowledged offsets and bytes by partition. Protected by its member's lock."""

    def __init__(self, events_max: int, bytes_max: int) -> None:
        self.events = 0
        self.bytes = 0
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._sizes: dict[int, dict[int, int]] = {}
        self._fences: dict[int, int] = {}

    @property
    def full(self) -> bool:
        return self.events >= self._events_max or self.bytes >= self._bytes_max

    @property
    def room(self) -> tuple[int, int]:
        """Return how many events and bytes may be sent next; the last event of them may have more than is left."""
        return min(CHUNK_EVENTS, self._events_max - self.events), min(CHUNK_BYTES, self._bytes_max - self.bytes)

    def add(self, events: Sequence[Event], in_memory: int) -> None:
        """Add events that are sent; an event that failed may be there already. Data above `in_memory` is not sent."""
        sizes = self._sizes.setdefault(events[0].partition, {})
        for event in events:
            size = event.size if event.size <= in_memory else 0
            self.bytes += size - sizes.get(event.offset, 0)
            self.events += event.offset not in sizes
            sizes[event.offset] = size

    def done(self, partition: int, first: int, end: int) -> None:
        """Remove events that are acked, or not held any more; offsets that are not in the window are fine."""
        sizes = self._sizes.get(partition, {})
        offsets = range(first, end)
        for offset in offsets if len(offsets) <= len(sizes) else list(sizes):
            if offset in offsets and (size := sizes.pop(offset, None)) is not None:
                self.events -= 1
                self.bytes -= size

    def hold(self, fences: Mapping[int, int]) -> bool:
        """Forget partitions that were lost or taken again; returns whether there were any."""
        lost = False
        for partition, fence in self._fences.items():
            if fences.get(partition) != fence:
                lost = True
                for size in self._sizes.pop(partition, {}).values():
                    self.events -= 1
                    self.bytes -= size
        self._fences = dict(fences)
        return lost
