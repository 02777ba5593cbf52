"""What other rooms hand to a `Directory` when it is opened: its consumers, its archive, and whether it is a replica."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from headwater.directory.archived import ArchivedSegments
from headwater.directory.log_directory import LogDirectory
from headwater.format.history import HistoryManifest
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
