"""What the reader of a local log needs to know of events that are in an archive, and not on the local disk.

`headwater.history` implements it. Archived files lead up to the oldest local segment, each is read as a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from headwater.directory.keys import KeyIndexes
from headwater.directory.segment import SegmentFile
from headwater.format.history import HistoryFile, LocalManifest


class ArchivedSegments(Protocol):
    """What is archived of one log. Safe from several threads."""

    @property
    def key_indexes(self) -> KeyIndexes:
        """Return the key indexes of the segments that were fetched."""

    def known(self) -> LocalManifest | None:
        """Return what is archived, as far as the directory knows; None if nothing is."""

    def before(self, local: int) -> list[int]:
        """Return the first offsets of the segments that lead up to `local`, the oldest on the local disk."""

    def part(self, base: int) -> HistoryFile | None:
        """Return what is archived as the segment that begins with this offset; None if nothing is."""

    def may_hold(self, base: int, types: Callable[[bytes], bool] | None, hash: int | None) -> bool:
        """Tell whether an archived segment may hold a wanted type and a key of this hash. Fetches its index alone."""

    def open(self, base: int) -> SegmentFile:
        """Return an archived segment, fetched if need be. Raises Unavailable if the archive is out of reach."""

    def blob(self, base: int, offset: int, reference: tuple[int, int, int]) -> Iterator[bytes] | None:
        """Return the verified chunks of a huge event; None if it is not archived."""

    def close(self) -> None:
        """Release the files; batches that were handed out stay valid."""

    def after_fork(self) -> None:
        """Drop, in a forked child, what another thread of the parent may have been changing."""
