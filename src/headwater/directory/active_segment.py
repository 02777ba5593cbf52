"""The file that a log is appended to: written, synced, given reserved space, and ended.

Errors are plain `OSError`s: `HeldLog` freezes the log for all processes when a write or a sync fails. Used by the
process and thread that hold the log's lock.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from headwater.directory.log_directory import LogDirectory
from headwater.directory.segment import read_header
from headwater.format.segment import HEADER_BYTES, SegmentHeader
from headwater.format.tail import TailSlot

TICKS_PER_MS = 10_000
RESERVE_BYTES_MIN, RESERVE_BYTES_MAX = 16 * 1024, 4 * 1024 * 1024


class ActiveSegment:
    """The open file of the active segment, and its header."""

    def __init__(self, place: LogDirectory) -> None:
        self.header = SegmentHeader(0, place.uuid, 0, 0, 0)  # until one is open
        self.ends_ticks = 0  # when it is too old to be appended to
        self._place = place
        self._disk = place.disk
        self._pwrite = place.disk.pwrite
        self._bytes_max = place.limits.segment_bytes
        self._age_ticks = place.limits.segment_age_ms * TICKS_PER_MS
        self._fd = -1
        self._reserved_to = 0

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def open(self, base: int) -> None:
        """Open the segment that begins at an offset; raises OSError, and Corrupt if its header is damaged."""
        self._use(self._disk.open_write(self._place.segment(base)))
        self._begin(read_header(self._place, base))

    def replace(self, fd: int, header: SegmentHeader) -> None:
        """Continue in a new segment, which is open."""
        self._use(fd)
        self._begin(header)

    def is_full(self, slot: TailSlot, size: int, ticks: int) -> bool:
        """Return whether a batch of this size must go to a new segment. An empty segment takes any batch."""
        return slot.visible_position > HEADER_BYTES and (
            slot.visible_position + size > self._bytes_max or ticks > self.ends_ticks
        )

    def is_intact(self, end: int) -> bool:
        """Return whether the file reaches to the end of its last batch, with only reserved zeros behind that."""
        return self._disk.size(self._fd) >= end and not any(self._disk.pread(self._fd, 8, end))

    def write(self, data: bytes, position: int) -> None:
        """Write a batch behind the last one."""
        end = position + len(data)
        if end > self._reserved_to:
            self._reserve(position, end)
        written = self._pwrite(self._fd, data, position)
        if written < len(data):  # a full disk: try the rest, so that its error shows
            self._disk.write(self._fd, data[written:], position + written)

    def write_synced(self, data: bytes, position: int) -> None:
        """Write a batch behind the last one, and return when it is durable. All before it must be durable."""
        end = position + len(data)
        if end > self._reserved_to:
            self._reserve(position, end)
        self._disk.write_synced(self._fd, data, position)

    def sync(self) -> None:
        """Make all that was written durable."""
        self._disk.fdatasync(self._fd)

    def cut(self, end: int) -> None:
        """Remove reserved space and whatever else is behind the last batch."""
        if self._disk.size(self._fd) > end:
            self._disk.truncate(self._fd, end)

    def place_blob(self, spooled: Path, offset: int) -> None:
        """Move a spooled blob to its offset in this segment, before the batch that names it is written."""
        blobs = self._place.blobs(self.header.base_offset)
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(blobs)
        self._disk.rename(spooled, blobs / f"{offset:020d}.blob")
        self._disk.sync_directory(blobs)
        self._disk.sync_directory(self._place.path)  # each time: the process that made it may have died before

    def close(self) -> None:
        """Close the file; `open` opens one again."""
        self._use(-1)

    def _use(self, fd: int) -> None:
        """Swap the descriptor before the old one is closed: a fork may come in between."""
        self._reserved_to = 0
        fd, self._fd = self._fd, fd
        if fd >= 0:
            self._disk.close(fd)

    def _begin(self, header: SegmentHeader) -> None:
        self.header = header
        self.ends_ticks = header.begun_ticks + self._age_ticks

    def _reserve(self, position: int, end: int) -> None:
        """Reserve a quarter more than there is, within bounds, so that most syncs find the file's size unchanged."""
        more = min(max(end // 4, RESERVE_BYTES_MIN), RESERVE_BYTES_MAX)
        self._reserved_to = max(end, min(end + more, self._bytes_max))
        self._disk.reserve(self._fd, position, self._reserved_to)
