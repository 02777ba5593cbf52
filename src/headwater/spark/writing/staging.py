"""Staged writes: events between the tasks of a job and its commit, one file for each attempt of a task, and a manifest.

A file holds encoded batches (docs/FORMAT.md, "Staged writes"), each of one topic and partition, in the order of its
rows. It is put by the store as a whole, under a name that no other attempt has, so no partial file is visible. What
a job publishes is in its manifest, which is created only if there is none: of all runs of a batch, one counts.

A directory and a bucket keep it inside, below `staging/`; for a server it is wherever the option `staging` says. Needs
no Spark.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from headwater.address import is_bucket, is_directory
from headwater.bucket.directory_store import DirectoryStore
from headwater.bucket.garbage import delete_all
from headwater.bucket.object_store import ObjectEntry, ObjectStore
from headwater.bucket.opening import open_store
from headwater.bucket.records import Records, RecordVersion
from headwater.disk.disk import Clock, Disk
from headwater.errors import Invalid
from headwater.event import UNIX_EPOCH_TICKS

TICKS_PER_S = 10_000_000
FOLDER = "staging"
ORPHAN_S = 7 * 86_400.0  # files that no manifest names go after this
JOB_S_MAX = ORPHAN_S / 2  # older files are not published any more: a sweep cannot delete younger ones


class StagedWrite(msgspec.Struct, frozen=True):
    """Identifies a write: of all attempts with the same name and batch, one is published."""

    name: str
    batch: int = 0

    @classmethod
    def of_query(cls, query: str, batch: int) -> StagedWrite:
        """Return a batch of a streaming query, which is run again after a crash."""
        return cls(f"query-{query}", batch)

    @classmethod
    def of_transaction(cls, transaction: str) -> StagedWrite:
        """Return a batch write with a name of its own, which may be run again."""
        return cls(f"transaction-{hashlib.sha256(transaction.encode()).hexdigest()[:32]}")

    @classmethod
    def once(cls) -> StagedWrite:
        """Return a batch write that cannot be run again."""
        return cls(f"once-{os.urandom(16).hex()}")

    @property
    def repeatable(self) -> bool:
        """Return whether another run of it may come."""
        return not self.name.startswith("once-")

    @property
    def streaming(self) -> bool:
        """Return whether it is a batch of a query."""
        return self.name.startswith("query-")

    @property
    def key(self) -> str:
        """Return the name of its manifest, which is also the prefix of its files."""
        return f"{self.name}.{self.batch:020d}"


class StagedBatch(msgspec.Struct, frozen=True, array_like=True):
    """One encoded batch of a staged file."""

    file: str
    position: int
    size: int
    count: int


class StagedPartition(msgspec.Struct, frozen=True):
    """What goes to one partition, in order. `topic_uuid` and `partitions` are of the topic that it was meant for."""

    topic: str
    topic_uuid: str
    partitions: int
    partition: int
    end: int  # of the partition, before anything of this was published
    chunks: list[StagedBatch]


class WriteManifest(msgspec.Struct, frozen=True):
    """The contents of a write. Of one that is `finished`, only the counts are kept."""

    created_ms: int
    events: int
    destinations: list[StagedPartition] = []
    title: str = ""  # the transaction or the query, for people
    finished: bool = False

    def files(self) -> set[str]:
        """Return the keys of all files that it names."""
        return {chunk.file for destination in self.destinations for chunk in destination.chunks}


class StagingArea:
    """The staged files and manifests at one place. Safe from any thread, process and machine."""

    def __init__(self, store: ObjectStore, prefix: str, clock: Clock) -> None:
        self._store = store
        self._prefix = prefix
        self._clock = clock
        self._manifests = Records(store, clock, WriteManifest)

    @classmethod
    def at(cls, address: str, *, durable: bool = True) -> StagingArea:
        """Return the one of a directory or a bucket. If it need not be `durable`, files are not synced."""
        clock = Clock()
        if is_bucket(address):
            return cls(open_store(address, clock=clock, disk=Disk()), f"{FOLDER}/", clock)
        if not is_directory(address):
            raise Invalid(f"cannot stage files at {address!r}", hint="use a directory, s3://… or objects:///…")
        disk = Disk() if durable else _UnsyncedDisk()
        return cls(DirectoryStore(Path(address) / FOLDER, disk, clock), "", clock)

    @property
    def far(self) -> bool:
        """Return whether a read waits for a server."""
        return not isinstance(self._store, DirectoryStore)

    def new_file(self, write: StagedWrite) -> str:
        """Return the key of a file that no other attempt has."""
        return f"{self._files(write)}{os.urandom(8).hex()}"

    def put(self, file: str, pieces: Iterable[bytes]) -> None:
        """Put the pieces as one file. If taking a piece raises, nothing is put."""
        self._store.put_pieces(file, pieces)

    def read(self, chunk: StagedBatch) -> memoryview | None:
        """Return the bytes of a chunk, fewer where the file ends; None if that is gone."""
        return self._store.get_range(chunk.file, chunk.position, chunk.size)

    def files(self, write: StagedWrite) -> dict[str, ObjectEntry]:
        """Return the files of a write, of all its attempts and runs."""
        return {each.key: each for each in self._store.list(self._files(write))}

    def manifest(self, write: StagedWrite) -> RecordVersion[WriteManifest] | None:
        """Return the manifest; None if there is none."""
        return self._manifests.read(self._manifest(write))

    def create(self, write: StagedWrite, manifest: WriteManifest) -> RecordVersion[WriteManifest] | None:
        """Put a manifest, durably; None if there is one."""
        version = self._manifests.create(self._manifest(write), manifest)
        return None if version is None else RecordVersion(manifest, version)

    def finish(self, write: StagedWrite, found: RecordVersion[WriteManifest]) -> None:
        """Note durably that all of it is published. Files may go then, and the manifests of earlier batches."""
        done = WriteManifest(found.record.created_ms, found.record.events, title=found.record.title, finished=True)
        self._manifests.swap(self._manifest(write), done, found.version)  # otherwise another process has done so

    def passed(self, write: StagedWrite) -> bool:
        """Return whether a later batch of the same query was begun, and so this one finished."""
        return next(self._store.list(f"{self._prefix}manifests/{write.name}.", self._manifest(write)), None) is not None

    def drop(self, write: StagedWrite) -> None:
        """Delete the files of a write, of all its attempts and runs."""
        delete_all(self._store, self.files(write))

    def drop_files(self, files: Iterable[str]) -> None:
        """Delete some files."""
        delete_all(self._store, files)

    def drop_manifest(self, write: StagedWrite) -> None:
        """Forget a write that cannot be run again."""
        self._store.delete([self._manifest(write)])

    def drop_earlier(self, write: StagedWrite) -> None:
        """Forget the batches of a query before this one."""
        listed = self._store.list(f"{self._prefix}manifests/{write.name}.")
        delete_all(self._store, [each.key for each in listed if each.key < self._manifest(write)])

    def sweep(self, age_s: float = ORPHAN_S) -> int:
        """Delete files that are old and named by no manifest that is to be finished; returns how many."""
        old = self._older("files/", age_s)
        if not old:
            return 0
        delete_all(self._store, self._older("manifests/once-", age_s))
        return delete_all(self._store, set(old) - self._named())

    def now(self) -> datetime:
        """Return the time, as files have it."""
        return datetime.fromtimestamp((self._clock.ticks() - UNIX_EPOCH_TICKS) / TICKS_PER_S, UTC)

    def close(self) -> None:
        """Let go of it."""
        self._store.close()

    def _named(self) -> set[str]:
        """Return the files that are named by manifests."""
        named: set[str] = set()
        for each in self._store.list(f"{self._prefix}manifests/"):
            found = self._manifests.read(each.key)
            named |= found.record.files() if found is not None else set()
        return named

    def _older(self, folder: str, age_s: float) -> list[str]:
        now, listed = self.now(), self._store.list(self._prefix + folder)
        return [each.key for each in listed if (now - each.modified).total_seconds() > age_s]

    def _files(self, write: StagedWrite) -> str:
        return f"{self._prefix}files/{write.key}."

    def _manifest(self, write: StagedWrite) -> str:
        return f"{self._prefix}manifests/{write.key}"


class _UnsyncedDisk(Disk):
    """Files that need not survive a crash, because their only user does not: nothing is synced."""

    def fdatasync(self, _fd: Any) -> None:
        """Do nothing."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing."""
