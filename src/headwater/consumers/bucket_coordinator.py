"""Cursors, leases and members of consumers in the bucket itself (docs/BUCKET.md, "Consumers").

A record is swapped, so that of two who want it one wins. A member's sign of life is a small object that only it puts:
its time of change tells that it lives. That decides how partitions are shared, never who owns one.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

from headwater.bucket.object_place import prefix_of
from headwater.bucket.object_store import ObjectStore
from headwater.bucket.records import Records
from headwater.consumers.coordinator import CursorRecord, CursorVersion, Sign
from headwater.disk.disk import Clock
from headwater.format import names
from headwater.format.settings import TopicRecord


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
        """Return what is kept of one."""
        prefix, folder = prefix_of(topic), names.directory_of(name)
        return BucketCursors(self._store, self._records, f"{prefix}consumers/{folder}/", f"{prefix}members/{folder}/")

    def close(self) -> None:
        """The store is closed by who opened it."""


class BucketCursors:
    """What is kept of one consumer of one topic."""

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
        """Give a sign of life: the name tells of the lease, so that a list is all that others need.

        The size changes each time: stores tell times in whole seconds.
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
