"""The records of an archive: the log that it belongs to, its topics, and the manifest of each partition.

Files come first, each under a name that holds a part of its SHA-256; then the manifest that names them is swapped. An
archiver that is killed in between leaves files that nothing names. They begin before the end of their manifest as soon
as another archiver has gone on, and can never come into it then: `sweep` deletes those. Any number of processes may
archive the same log at once. Safe from any thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from headwater.address import is_directory
from headwater.bucket.object_store import ObjectStore, probe
from headwater.bucket.opening import open_store
from headwater.bucket.records import Records, RecordVersion
from headwater.disk.disk import Clock, Disk
from headwater.errors import Conflict, Corrupt, Invalid, NotFound, Unsupported
from headwater.format import history as format
from headwater.format.history import ArchiveRoot, HistoryFile, HistoryManifest
from headwater.format.names import log_uuid
from headwater.format.settings import TopicRecord
from headwater.limits import DEFAULTS, Limits

LOG_ROOT = "headwater.json"  # of a log


class UnnamedFile(NamedTuple):
    """A file that no manifest names. It is `garbage` if none ever will: then it may be deleted at any time."""

    key: str
    partition: int
    garbage: bool


class HistoryStore:
    """One archive in its object store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.store = store
        self._clock = clock
        self._roots = Records(store, clock, ArchiveRoot)
        self._topics = Records(store, clock, TopicRecord)
        self._manifests = Records(store, clock, HistoryManifest)

    def owner(self) -> str:
        """Return the uuid of the log that it belongs to.

        Raises NotFound if there is no archive, Unsupported for one in the form of an earlier version.
        """
        found = self._root()
        if found is None:
            raise NotFound(
                f"{self.store.url} is not an archive",
                hint="check the address; 'headwater archive DATA URL' creates an archive",
                code="not_an_archive",
            )
        return found.uuid

    def begin(self, uuid: str) -> None:
        """Make the place the archive of a log (its uuid), durably. Raises Conflict if it belongs to another one."""
        if self._is_log():
            raise Invalid(f"{self.store.url} contains a log, so it cannot hold an archive", hint="use another location")
        probe(self.store, self._clock)
        found = self._root()
        if found is None and self._roots.create(format.ROOT, ArchiveRoot(uuid, format.FORM)) is None:
            found = self._root()
        if found is not None and found.uuid != uuid:
            raise Conflict(
                f"{self.store.url} is the archive of another log, with the uuid {found.uuid}",
                hint="use a separate location for each log, such as s3://bucket/archive-of-shop",
                code="archive_of_another",
                uuid=found.uuid,
            )

    def topics(self, name: str | None = None) -> list[TopicRecord]:
        """Return all topics by their names, or the named one, as they were when they were archived last.

        Raises NotFound for a name that is not there, and Corrupt.
        """
        found = [self.topic_at(key) for key in self.topic_keys(name)]
        if name is not None and found == [None]:
            raise NotFound(f"the archive {self.store.url} has no topic {name!r}", code="topic_not_found")
        return sorted((each for each in found if each is not None), key=lambda topic: topic.name)

    def topic_keys(self, name: str | None = None) -> list[str]:
        """Return the keys of the records of all topics, or of the named one."""
        if name is not None:
            return [format.topic_key(name)]
        return [f"{format.RECORDS}/{folder}/topic.json" for folder in self.store.folders(f"{format.RECORDS}/")]

    def topic_at(self, key: str) -> TopicRecord | None:
        """Return the topic whose record has this key; None if there is none. Raises Corrupt."""
        found = self._topics.read(key)
        if found is not None and format.topic_key(found.record.name) != key:
            where = f"{self.store.url}/{key}"
            raise Corrupt(f"{where} belongs to topic {found.record.name!r}", path=where, position=0, size=0)
        return None if found is None else found.record

    def tell(self, topic: TopicRecord) -> None:
        """Store a topic as it is now, durably. A recreated topic replaces the deleted one of its name."""
        key = format.topic_key(topic.name)
        while True:
            found = self._topics.read(key)
            if found is not None and found.record == topic:
                return
            done = self._topics.create(key, topic) if found is None else self._topics.swap(key, topic, found.version)
            if done is not None:
                return

    def manifest(self, topic: TopicRecord, partition: int) -> HistoryManifest:
        """Return what is archived of a partition, maybe nothing. Raises Corrupt if that cannot be right."""
        found = self._found(topic, partition)
        return format.nothing(topic, partition) if found is None else found.record

    def extend(self, topic: TopicRecord, partition: int, parts: Sequence[HistoryFile]) -> HistoryManifest:
        """Add files that are all in the store to the manifest, durably; returns what it is then.

        If they do not follow on what it has, it stays as it is: another archiver was first.
        """
        key = format.manifest_key(topic.name, topic.uuid, partition)
        while True:
            found = self._found(topic, partition)
            manifest = format.nothing(topic, partition) if found is None else found.record
            if manifest.parts and manifest.end != parts[0].start:
                return manifest
            longer = msgspec.structs.replace(manifest, parts=[*manifest.parts, *parts])
            self._check(longer, topic, partition)
            if found is None:
                done = self._manifests.create(key, longer)
            else:
                done = self._manifests.swap(key, longer, found.version)
            if done is not None:
                return longer

    def sweep(self, topic: TopicRecord) -> int:
        """Delete the files of a topic that no manifest names or ever will; returns how many."""
        gone = [each.key for each in self.unnamed(topic) if each.garbage]
        self.store.delete(gone)
        return len(gone)

    def unnamed(self, topic: TopicRecord) -> list[UnnamedFile]:
        """Return the files of a topic that no manifest names: an archiver is at work, or was killed.

        They are listed before the manifests are read: what is named meanwhile is not among them.
        """
        prefixes = [folder(topic.name, topic.uuid) for folder in (format.table_folder, format.record_folder)]
        listed = [each.key for prefix in prefixes for each in self.store.list(f"{prefix}/")]
        manifests = [self.manifest(topic, partition) for partition in range(topic.partitions)]
        named = {format.file_key(each, file) for each in manifests for part in each.parts for file in part.files}
        found: list[UnnamedFile] = []
        for key in listed:
            place = format.place_in(key)
            if place is not None and key not in named:
                partition, start = place
                end = manifests[partition].end if partition < len(manifests) else -1
                found.append(UnnamedFile(key, partition, garbage=start < end))
        return found

    def close(self) -> None:
        self.store.close()

    def _root(self) -> ArchiveRoot | None:
        found = self._roots.read(format.ROOT)
        if found is None and (self.store.get(format.OLD_ROOT) is None or self._is_log()):
            return None
        if found is None or found.record.form != format.FORM:
            raise format.old_form(self.store.url)
        return found.record

    def _is_log(self) -> bool:
        """Return whether it is a log, which may have a file of the same name as an archive of an earlier version."""
        return self.store.get(LOG_ROOT) is not None

    def _found(self, topic: TopicRecord, partition: int) -> RecordVersion[HistoryManifest] | None:
        found = self._manifests.read(format.manifest_key(topic.name, topic.uuid, partition))
        if found is not None:
            self._check(found.record, topic, partition)
        return found

    def _check(self, manifest: HistoryManifest, topic: TopicRecord, partition: int) -> None:
        where = f"{self.store.url}/{format.manifest_key(topic.name, topic.uuid, partition)}"
        format.check(manifest, log_uuid(UUID(topic.uuid), partition), where)


def url_of(address: str) -> str:
    """Return the address of the object store: a path becomes that of a directory, relative to the working directory."""
    return f"objects://{os.path.abspath(address)}" if is_directory(address) else address


def open_history(
    address: str, *, clock: Clock | None = None, disk: Disk | None = None, limits: Limits = DEFAULTS
) -> HistoryStore:
    """Open the archive at an address. Nothing is requested or created yet."""
    clock = clock or Clock()
    return HistoryStore(open_store(url_of(address), clock=clock, disk=disk or Disk(), limits=limits), clock)


def is_archive(address: str) -> bool:
    """Return whether an archive, of any form, is at an address of an object store or a directory."""
    with contextlib.closing(open_history(address)) as archive:
        try:
            archive.owner()
        except NotFound:
            return False
        except Unsupported:
            return True  # of an earlier version
    return True
