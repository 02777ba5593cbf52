"""A piece of a segment in memory, as a sequence of batches."""

from __future__ import annotations

from collections.abc import Iterator

from headwater.format.batch import Batch, corrupt, decode, torn


class SegmentWindow:
    """Readable bytes of a segment, from position `start` to `end`, in memory or mapped."""

    __slots__ = ("buffer", "end", "path", "start")

    def __init__(self, buffer: memoryview, start: int, path: str) -> None:
        self.buffer = buffer
        self.start = start
        self.end = start + len(buffer)
        self.path = path

    def batch(self, position: int) -> Batch:
        """Return the batch at a position of the file, its header verified."""
        return decode(self.buffer, position - self.start, len(self.buffer), self.path, self.start)

    def batches(self, position: int, offset: int) -> Iterator[Batch]:
        """Yield the batches from a position to the end of the window; the first begins at `offset`."""
        while position < self.end:
            batch = self.batch(position)
            if batch.base_offset != offset:
                raise corrupt(
                    f"expected offset {offset}, found {batch.base_offset}",
                    self.path,
                    position,
                    batch.size,
                )
            yield batch
            position += batch.size
            offset += batch.count

    def torn(self, position: int, offset: int) -> bool:
        """Whether a batch with this offset begins at a position, and more of it was to come than the window has."""
        return torn(self.buffer, position - self.start, offset)
