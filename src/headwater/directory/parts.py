"""What other rooms hand to a `Directory` when it is opened: its consumers, its archive, and whether it is a replica.

`headwater.history` implements `ArchivedSegments`: events that are in an archive and not on the local disk. Archived
files lead up to the oldest local segment, and each is read as a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from headwater.directory.keys import KeyIndexes
from headwater.directory.log_directory import LogDirectory
from headwater.directory.segment import SegmentFile
from headwater.format.history import HistoryFile, HistoryManifest, LocalManifest
from headwater.format.settings import Replica, TopicRecord


class ConsumerFiles(Protocol):
    """The consumers of a directory, as retention and transactions need them."""

    def slowest(self, topic: TopicRecord, partition: int) -> int | None:
        """Return the lowest cursor of all consumers of a topic in a partition; None if it has none."""

    def settle(self, file: str) -> None:
        """Make durable what transactions have brought to a consumer's file, by its path; nothing if it is gone."""


class LocalArchive(Protocol):
    """The archive of a directory, if it has one."""

    def url(self) -> str | None:
        """Return where it is; None if the directory has none."""

    def begin(self, address: str | None, uuid: str) -> Any:
        """Make a place the archive of this directory, durably, and return it; None: the one it has."""

    def open(self) -> Any:
        """Return the archive; raises NotFound if the directory has none, Unavailable if it is out of reach."""

    def reader(self, place: LogDirectory) -> ArchivedSegments:
        """Return the reader of what is archived of one log."""

    def covered(self, place: LogDirectory, topic: TopicRecord) -> HistoryManifest:
        """Return what the store says is archived of a log, after the directory has a durable copy."""

    def forget(self, uuid: bytes) -> None:
        """Drop what was fetched of a log that is deleted."""

    def close(self) -> None: ...
    def after_fork(self) -> None: ...


class ReplicaState(Protocol):
    """Whether a directory is a replica."""

    def read(self) -> Replica | None:
        """Return what the directory is a replica of, or was; None if it never was one."""

    def follows(self) -> bool:
        """Tell whether it is a replica that was not promoted."""

    def refuse(self) -> None:
        """Raise Unavailable while it is a replica."""


class DirectoryParts(NamedTuple):
    """What a directory is put together from."""

    consumers: ConsumerFiles
    archive: LocalArchive
    replica: ReplicaState


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
