"""What a local log has lost: offsets that `repair` cut out because their events were damaged, and missing segments.

A segment that should exist and does not is told from those that retention deleted, and from those that never existed.
`Losses` belongs to the `LogReader` of one log in one process. Safe from several threads.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from headwater.directory import local_manifest
from headwater.directory.log_directory import LogDirectory
from headwater.directory.segment import SegmentFile
from headwater.errors import Corrupt, HeadwaterError
from headwater.format import tail as tail_format
from headwater.format.losses import Ranges, merged, within
from headwater.format.names import offset_of
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


def missing(place: LogDirectory, start: int, end: int) -> Corrupt:
    """Return the error for the segment that begins at `start` and is not there; its events end before `end`."""
    path = str(place.segment(start))
    which = f"offsets {start} to {end - 1}" if end > start else f"the events from offset {start} on"
    return Corrupt(
        f"{place}: segment {path} is missing, with {which}",
        hint="restore it from a backup or the archive; 'headwater repair' marks its events as lost",
        path=path,
        position=0,
        size=0,
        offsets=(start, end),
        reason=f"the segment is missing, with {which}",
    )


def beginning(place: LogDirectory, oldest: int) -> Corrupt | None:
    """Return what is missing before the `oldest` segment; None if nothing is. List the segments before this call.

    A log that an earlier version shortened has no mark: where its topic has a retention, it may begin anywhere.
    """
    if not oldest:
        return None
    marked = place.marked()
    if oldest <= (marked or 0) or (marked is None and place.trimmed) or _archived_end(place) >= oldest:
        return None
    return missing(place, marked or 0, oldest)


def ending(place: LogDirectory, last: SegmentFile, end: int) -> Corrupt | None:
    """Return what is missing behind the `last` segment, whose events end at `end`; None if it can be the active one."""
    blobs = [offset for name in place.disk.names(place.path) if (offset := offset_of(name, "blobs")) is not None]
    beyond = [base for base in blobs if base > last.base and place.disk.names(place.blobs(base))]
    archived = _archived_end(place)
    if last.header.packed or last.index() is not None or beyond or archived > end:
        return missing(place, end, max(end, archived))
    return None


def survey(place: LogDirectory) -> tuple[list[int], list[Corrupt]]:
    """Return the first offsets of the segments, an active one that is missing among them, and what is missing.

    A gap in the middle is not among them: it shows where the segment before it ends.
    """
    slot = _newest(place)
    bases = place.segments()
    if not bases:
        return [], []
    gaps = [gap] if (gap := beginning(place, bases[0])) is not None else []
    if slot is not None and slot.segment > bases[-1]:
        now = _newest(place)
        if now is not None and now.segment == slot.segment and place.disk.inode(place.segment(slot.segment)) is None:
            gaps.append(missing(place, slot.segment, now.visible_offset))
            bases.append(slot.segment)
    elif slot is None or slot.segment < bases[-1] or slot.boot_id != place.clock.boot_id():
        gap = _ending(place, bases[-1])
        if gap is not None and place.segments()[-1:] == bases[-1:]:  # else a roll came in between
            gaps.append(gap)
    return bases, gaps


def _ending(place: LogDirectory, base: int) -> Corrupt | None:
    with contextlib.suppress(HeadwaterError):  # its damage is found by the process that reads it
        last = SegmentFile(place, base)
        try:
            return ending(place, last, last.end_offset())
        finally:
            last.close()
    return None


def _archived_end(place: LogDirectory) -> int:
    """Return where the archive of a log ends, as far as the directory knows; 0 if there is none."""
    with contextlib.suppress(HeadwaterError):
        known = local_manifest.read(place)
        return max(known.end, 0) if known is not None else 0
    return 0


def _newest(place: LogDirectory) -> TailSlot | None:
    with contextlib.suppress(OSError, Corrupt):
        return tail_format.newest(place.disk.read_file(place.tail))
    return None
