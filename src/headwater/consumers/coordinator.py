"""Where consumers keep their cursors when there is no file to lock: records that are created once, then only swapped.

`bucket_coordinator.py` keeps them in the bucket itself, `dynamodb.py` in a table. No clock of any machine is compared
with another's: whoever wants a lease watches by its own clock whether the record changes. Safe from any thread and
machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec

from headwater.format.settings import TopicRecord


class CursorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The cursor of one partition, and its lease.

    `owner` is who took it last, empty if it was given back; with `lease_ms` 0 it is free. `beat` grows with every
    write. `reached`, `failing` and `failures` are as in a directory: how far events were handed out, and what failed.
    """

    cursor: int
    fence: int = 0
    owner: str = ""
    lease_ms: int = 0
    beat: int = 0
    reached: int = 0
    failing: int = 0
    failures: int = 0

    @property
    def free(self) -> bool:
        """Return whether it may be taken at once."""
        return not self.owner or not self.lease_ms

    def failures_at(self, offset: int) -> int:
        """Return how often the event at an offset has failed."""
        return self.failures if self.failing == offset else 0


class CursorVersion(NamedTuple):
    """A record as it was found. `version` changes with every write, and is for the next swap."""

    record: CursorRecord
    version: str


class Sign(NamedTuple):
    """The last sign of life of a member: `mark` changes with each. It means to give the next within `lease_ms`."""

    mark: str
    lease_ms: int


class SharedCursors(Protocol):
    """What is kept of one consumer of one topic: a record for each partition, and signs of life of its members."""

    @property
    def url(self) -> str:
        """Return where it is, for messages."""

    def partitions(self) -> set[int]:
        """Return those that have a record; empty if there is no such consumer."""

    def read(self, partition: int) -> CursorVersion | None:
        """Return the record; None if there is none."""

    def create(self, partition: int, record: CursorRecord) -> None:
        """Put a record where none is, durably; one that is there stays."""

    def swap(self, partition: int, record: CursorRecord, version: str) -> str | None:
        """Replace the record that was found with this version, durably: the new version, or None if it has changed.

        None after an answer that was lost may also mean that this record was there, and another one replaced it since.
        """

    def delete(self) -> None:
        """Delete all records, durably."""

    def sign(self, member: str, lease_ms: int) -> None:
        """Give a sign of life."""

    def signs(self) -> dict[str, Sign]:
        """Return the last sign of each member, also of those who died, in the order of their names."""

    def leave(self, members: Iterable[str]) -> None:
        """Forget members."""


class Coordinator(Protocol):
    """All consumers of one log."""

    def names(self, topic: TopicRecord) -> list[str]:
        """Return the names of all consumers of a topic, sorted."""

    def consumer(self, topic: TopicRecord, name: str) -> SharedCursors:
        """Return what is kept of one, if it is there. Asks nothing of the network."""

    def close(self) -> None:
        """Release connections. May be called twice."""
