"""Where batches continue behind damage, as far as that can be proven. Only reads; belongs to one walk over a segment.

Bytes that look like a batch prove nothing: they may be the data of an event, which anybody chooses who may append. So
nothing is searched for. Three facts hold whatever events contain, and each leads to the true start of a batch:

- Batches follow each other without gaps. A sound header at such a place says where the next one begins.
- Each ends with its size. From where the batches end, this leads back over whole batches, and so over their data.
- The index of a sealed segment is a file of its own.

What none of them leads to is not taken for a batch, sound as it may look: it is lost, and repair keeps its bytes.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from headwater.directory.segment import SegmentFile
from headwater.errors import HeadwaterError
from headwater.format.batch import BATCH_BYTES_MIN, COUNT_MAX, MAGIC, Batch, peek, size_before
from headwater.format.segment import HEADER_BYTES, SegmentWindow


class Boundary(NamedTuple):
    """The position where a batch begins, and the offset of its first event."""

    position: int
    offset: int


class Boundaries:
    """The boundaries behind the damage of one segment, whose batches end at `stop`."""

    def __init__(self, segment: SegmentFile, window: SegmentWindow, stop: int, end_offset: int | None) -> None:
        """`end_offset` is where the offsets end; None if that is unknown, as without a tail."""
        self._segment = segment
        self._window = window
        self._stop = stop
        self._end_offset = end_offset
        self._runs: list[Boundary] | None = None  # found at the first damage: later ones lie behind it

    def behind(self, position: int, offset: int) -> Boundary | None:
        """Return where the next batch begins behind a damaged one, which begins there.

        None if that cannot be proven.
        """
        with contextlib.suppress(HeadwaterError):
            batch = self._window.batch(position)  # its header is sound
            if batch.base_offset == offset:
                return Boundary(batch.end_position, batch.end_offset)
        damaged = Boundary(position, offset)
        if self._end_offset is None and self._window.torn(position, offset):
            return None  # the rest is what was written of its data
        if self._runs is None:
            self._runs = self._runs_behind(damaged)
        found = [run for run in self._runs if run.position > position and run.offset > offset]
        found += self._indexed(damaged)
        return min(found, default=None)

    def _runs_behind(self, damaged: Boundary) -> list[Boundary]:
        """Return where each run of sound batches begins, walking back from the end to the damage."""
        runs: list[Boundary] = []
        position, offset, running = self._stop, self._end_offset, False
        most = offset  # where a run may end at most: damage behind it has one event at least
        while position - damaged.position >= BATCH_BYTES_MIN:
            size = size_before(self._window.buffer, position - self._window.start)
            start = position - size
            if size & 7 or size < BATCH_BYTES_MIN or start <= damaged.position:
                break
            batch = self._sound(start, size)
            if batch is not None:
                fits = batch.end_offset == offset if offset is not None else most is None or batch.end_offset <= most
                if not fits or not _has_room(damaged, batch):
                    break
                begin = Boundary(start, batch.base_offset)
                runs[-1:] = [begin] if running else [*runs[-1:], begin]
                offset, running = batch.base_offset, True
            elif self._begins(start, size):
                known = offset if offset is not None else most
                most = known - 1 if known is not None else None
                offset, running = None, False
            else:
                break  # the size itself is damaged: it leads anywhere
            position = start
        return runs

    def _sound(self, position: int, size: int) -> Batch | None:
        try:
            batch = self._window.batch(position)
            batch.validate()
        except HeadwaterError:
            return None
        return batch if batch.size == size else None

    def _begins(self, position: int, size: int) -> bool:
        """Return whether a damaged batch of this size begins here, by what is left of its header."""
        at = position - self._window.start
        return self._window.buffer[at : at + len(MAGIC)] == MAGIC or peek(self._window.buffer, at)[0] == size

    def _indexed(self, damaged: Boundary) -> list[Boundary]:
        """Return the next sound batch behind the damage by the index; none if it does not tell of the damaged one."""
        index = self._segment.index()
        if index is None:
            return []
        told = [Boundary(*each) for each in zip(index.positions.tolist(), index.offsets.tolist(), strict=True)]
        if damaged not in told or told[0] != (HEADER_BYTES, self._segment.base):
            return []
        for boundary in told[told.index(damaged) + 1 :]:
            if not (damaged.position < boundary.position < self._stop and damaged.offset < boundary.offset):
                return []
            try:
                next(self._window.batches(*boundary))
            except HeadwaterError:
                continue
            return [boundary]
        return []


def _has_room(damaged: Boundary, batch: Batch) -> bool:
    """Return whether the bytes between the damage and a batch can hold the offsets between them, one at least."""
    most = (batch.position - damaged.position) // BATCH_BYTES_MIN * COUNT_MAX
    return damaged.offset < batch.base_offset <= damaged.offset + most
