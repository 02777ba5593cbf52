"""Cursors, leases and members of consumers in records that are created once and then only swapped.

`SharedCursors` and `Coordinator` are the protocols of such a place. `BucketCoordinator` keeps the records in the bucket
itself (docs/BUCKET.md, "Consumers"), `dynamodb.py` in a table. Of two members that swap a record, one wins. The clocks
of two machines are never compared: a contender watches by its own clock whether the record changes. A member's sign of
life in a bucket is a small object that only it writes; its time of change decides how partitions are shared, never
which member owns one. Safe from any thread and machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol
from urllib.parse import unquote

import msgspec

from headwater.bucket.object_place import prefix_of
from headwater.bucket.object_store import ObjectStore
from headwater.bucket.records import Records
from headwater.disk.disk import Clock
from headwater.format import names
from headwater.format.settings import TopicRecord


class CursorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The cursor of one partition, and its lease.

    `owner` is the member that took it last, empty if it was released; with `lease_ms` 0 it is free. `beat` grows with
    every write. `reached`, `failing` and `failures`: how far events were handed out, and what failed.
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
    """One consumer of one topic: a record for each partition, and signs of life of its members."""

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
        """Return the last sign of each member, also of those that died, in the order of their names."""

    def leave(self, members: Iterable[str]) -> None:
        """Forget members."""


class Coordinator(Protocol):
    """All consumers of one log."""

    def names(self, topic: TopicRecord) -> list[str]:
        """Return the names of all consumers of a topic, sorted."""

    def consumer(self, topic: TopicRecord, name: str) -> SharedCursors:
        """Return the cursors of a consumer, which need not exist. Sends no request."""

    def close(self) -> None:
        """Release connections. May be called twice."""


class BucketCoordinator:
    """All consumers of the topics in a store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._records = Records(store, clock, CursorRecord)

    def names(self, topic: TopicRecord) -> list[str]:
        """Return the names of all consumers of a topic, sorted."""
        prefix = f"{prefix_of(topic)}consumers/"
        # Not by its folders: one may be named for a while when what was in it is deleted.
        return sorted({unquote(each.key.removeprefix(prefix).partition("/")[0]) for each in self._store.list(prefix)})

    def consumer(self, topic: TopicRecord, name: str) -> BucketCursors:
        """Return the cursors of a consumer."""
        prefix, folder = prefix_of(topic), names.directory_of(name)
        return BucketCursors(self._store, self._records, f"{prefix}consumers/{folder}/", f"{prefix}members/{folder}/")

    def close(self) -> None:
        """Do nothing: the store is closed where it was opened."""


class BucketCursors:
    """The cursors of one consumer of one topic."""

    def __init__(self, store: ObjectStore, records: Records[CursorRecord], cursors: str, members: str) -> None:
        self._store = store
        self._records = records
        self._cursors = cursors
        self._members = members
        self._signs = 0

    @property
    def url(self) -> str:
        """Return where the records are."""
        return f"{self._store.url}/{self._cursors}"

    def partitions(self) -> set[int]:
        """Return those that have a record."""
        found = (listed.key.removeprefix(self._cursors) for listed in self._store.list(self._cursors))
        return {int(name) for name in found if name.isascii() and name.isdecimal()}

    def read(self, partition: int) -> CursorVersion | None:
        """Return the record; None if there is none."""
        found = self._records.read(self._key(partition))
        return None if found is None else CursorVersion(*found)

    def create(self, partition: int, record: CursorRecord) -> None:
        """Put a record where none is; one that is there stays."""
        self._records.create(self._key(partition), record)

    def swap(self, partition: int, record: CursorRecord, version: str) -> str | None:
        """Replace a record that was found with this version; None if it has changed."""
        return self._records.swap(self._key(partition), record, version)

    def delete(self) -> None:
        """Delete all records, and the signs of members."""
        self._store.delete([listed.key for listed in self._store.list(self._cursors)])
        self._store.delete([listed.key for listed in self._store.list(self._members)])

    def sign(self, member: str, lease_ms: int) -> None:
        """Give a sign of life: its key has the lease, so that others only need to list.

        The size changes each time, as stores give times in whole seconds.
        """
        self._signs += 1
        self._store.put(f"{self._members}{member}-{lease_ms}", b"alive\n" + b"." * (self._signs % 2))

    def signs(self) -> dict[str, Sign]:
        """Return the last sign of each member."""
        found = {}
        for listed in self._store.list(self._members):
            member, _, lease_ms = listed.key.removeprefix(self._members).partition("-")
            if lease_ms.isascii() and lease_ms.isdecimal():
                found[member] = Sign(f"{listed.modified.isoformat()} {listed.size}", int(lease_ms))
        return found

    def leave(self, members: Iterable[str]) -> None:
        """Forget members."""
        leaving = set(members)
        listed = (each.key for each in self._store.list(self._members))
        self._store.delete([key for key in listed if key.removeprefix(self._members).partition("-")[0] in leaving])

    def _key(self, partition: int) -> str:
        return f"{self._cursors}{partition}"
