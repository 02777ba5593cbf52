"""What a local log has lost: the offsets of events that were damaged, and that `repair` cut out of it.

Belongs to the `LogReader` of one log in one process. Safe from several threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.directory.log_directory import LogDirectory
from headwater.format.losses import Ranges, merged, within
from headwater.format.tail import TailSlot

if TYPE_CHECKING:
    from headwater.directory.log_reader import LogReader


class Losses:
    """The lost offsets of one log."""

    def __init__(self, reader: LogReader, place: LogDirectory) -> None:
        self.place = place
        self._reader = reader
        self._marked = False  # once it is, it stays so
        self._known: tuple[int, dict[int, Ranges]] = -1, {}  # of finished segments, in one generation of the log

    def between(self, start: int, stop: int) -> Ranges:
        """Return the lost offsets from `start` to before `stop`.

        Raises Corrupt on damage, and NotFound for what is gone.
        """
        if not self._any():
            return []
        slot = self._reader.slot()
        found: Ranges = []
        offset, stop = start, min(stop, slot.visible_offset)
        while offset < stop:
            base = self._reader.base_of(offset, slot)
            found += self.of(base, slot)
            offset = self._reader.end_offset(base, slot)
        return within(merged(found), start, stop)

    def of(self, base: int, slot: TailSlot) -> Ranges:
        """Return the lost offsets of one segment."""
        if not self._any():
            return []
        if self._known[0] != slot.generation:
            self._known = slot.generation, {}  # a repair rewrote segments
        known = self._known[1]
        if base in known:
            return known[base]
        part = self._reader.archived_part(base)
        if part is not None:
            return part.lost
        index = self._reader.key_indexes.known(base, slot.generation)
        if index is not None and index.lost is not None:
            return index.lost
        segment = self._reader.segment(base, slot)
        found = segment.lost(self._reader.end_position(segment, slot))
        if base != slot.segment:
            known[base] = found
        return found

    def _any(self) -> bool:
        """Return whether the log may have lost events: nearly none has, and then no segment is looked at."""
        self._marked = self._marked or self.place.disk.inode(self.place.lost) is not None
        return self._marked
