"""The records of an archive of Parquet files: whose it is, its topics, and the manifest of each log.

Files come first, each under a name that tells its bytes; then the manifest that names them is swapped. Whoever is
killed in between leaves files that nobody reads, and which the next one deletes: they begin before the end of their
manifest, which only grows, and can never come into it. Any number of processes may archive the same log at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from headwater.address import is_directory
from headwater.errors import Conflict, Corrupt, Invalid, NotFound
from headwater.format import parquet as format
from headwater.format.archive import Root
from headwater.format.parquet import ParquetFile, ParquetManifest
from headwater.format.settings import TopicRecord
from headwater.limits import DEFAULTS, Limits
from headwater.storage.bucket.opening import open_store
from headwater.storage.bucket.probe import probe
from headwater.storage.bucket.records import Records, RecordVersion
from headwater.storage.bucket.store import ObjectStore
from headwater.storage.disk import Clock, Disk


class UnnamedFile(NamedTuple):
    """A file that no manifest names. It is `superfluous` if none ever will: then it may be deleted at any time."""

    key: str
    partition: int
    superfluous: bool


class ParquetStore:
    """The records of one archive. Safe from any thread."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.store = store
        self._clock = clock
        self._roots = Records(store, clock, Root)
        self._topics = Records(store, clock, TopicRecord)
        self._manifests = Records(store, clock, ParquetManifest)

    def owner(self) -> str:
        """The uuid of the log whose archive it is; raises NotFound if it is none."""
        found = self._roots.read(format.ROOT)
        if found is None:
            raise NotFound(
                f"{self.store.url} is not an archive of Parquet files",
                hint="is the address right? headwater archive --on spark DATA parquet:PLACE makes one",
                code="not_an_archive",
            )
        return found.record.uuid

    def begin(self, uuid: str) -> None:
        """Make the place the archive of a log (its uuid), durably. Raises Conflict if it is that of another one."""
        probe(self.store, self._clock)
        found = self._roots.read(format.ROOT)
        if found is None and self._roots.create(format.ROOT, Root(uuid)) is None:
            found = self._roots.read(format.ROOT)
        if found is not None and found.record.uuid != uuid:
            raise Conflict(
                f"{self.store.url} is the archive of another log, with the uuid {found.record.uuid}",
                hint="give each log a place of its own",
                code="archive_of_another",
                uuid=found.record.uuid,
            )

    def topics(self) -> list[TopicRecord]:
        """All topics in it, by their names, as they were when they were archived last."""
        found = [self._topics.read(f"{format.RECORDS}/{name}/topic.json") for name in self._folders()]
        return sorted((each.record for each in found if each is not None), key=lambda topic: topic.name)

    def topic(self, name: str) -> TopicRecord:
        """A topic as it was when it was archived last; raises NotFound, and Corrupt."""
        key = format.topic_key(name)
        found = self._topics.read(key)
        if found is None:
            raise NotFound(f"the archive {self.store.url} has no topic {name!r}", code="topic_not_found")
        if found.record.name != name:
            where = f"{self.store.url}/{key}"
            raise Corrupt(f"{where} is of topic {found.record.name!r}", path=where, position=0, size=0)
        return found.record

    def tell(self, topic: TopicRecord) -> None:
        """Have the archive know a topic as it is now, durably. Raises Conflict if it has another of that name."""
        key = format.topic_key(topic.name)
        while True:
            found = self._topics.read(key)
            if found is not None and found.record == topic:
                return
            if found is not None and found.record.uuid != topic.uuid:
                raise Conflict(
                    f"{self.store.url} has another topic {topic.name!r}, which was deleted in the log and made again",
                    hint="archive this one to another place, or move the folders of the old one away",
                    code="archive_diverged",
                )
            done = self._topics.create(key, topic) if found is None else self._topics.swap(key, topic, found.version)
            if done is not None:
                return

    def manifest(self, topic: TopicRecord, partition: int) -> ParquetManifest:
        """What is archived of a log, maybe nothing. Raises Corrupt if that cannot be."""
        found = self._found(topic, partition)
        return format.nothing(topic, partition) if found is None else found.record

    def extend(self, topic: TopicRecord, partition: int, parts: Sequence[ParquetFile]) -> ParquetManifest:
        """Have the manifest name files that are all in the store, durably; returns what it is then.

        Those that do not follow on what it has are left out: somebody else was first, with other bounds.
        """
        key = format.manifest_key(topic.name, partition)
        while True:
            found = self._found(topic, partition)
            manifest = format.nothing(topic, partition) if found is None else found.record
            more = _following(manifest, parts)
            if not more:
                return manifest
            longer = msgspec.structs.replace(manifest, parts=[*manifest.parts, *more])
            format.check(longer, topic, partition, f"{self.store.url}/{key}")
            if found is None:
                done = self._manifests.create(key, longer)
            else:
                done = self._manifests.swap(key, longer, found.version)
            if done is not None:
                return longer

    def sweep(self, topic: TopicRecord) -> int:
        """Delete the files of a topic that were never named and never will be; returns how many."""
        gone = [each.key for each in self.unnamed(topic) if each.superfluous]
        self.store.delete(gone)
        return len(gone)

    def unnamed(self, topic: TopicRecord) -> list[UnnamedFile]:
        """The files of a topic that no manifest names: of somebody who archives just now, or was killed.

        They are listed before the manifests are read: what is named meanwhile is not among them.
        """
        folder = format.folder_of(topic.name)
        prefixes = f"{folder}/", f"{format.RECORDS}/{folder}/"
        listed = [each.key for prefix in prefixes for each in self.store.list(prefix)]
        manifests = [self.manifest(topic, partition) for partition in range(topic.partitions)]
        named = {format.file_key(topic.name, file) for each in manifests for part in each.parts for file in part.files}
        found: list[UnnamedFile] = []
        for key in listed:
            place = format.place_in(key)
            if place is not None and key not in named:
                partition, start = place
                end = manifests[partition].end if partition < len(manifests) else -1
                found.append(UnnamedFile(key, partition, superfluous=start < end))
        return found

    def close(self) -> None:
        self.store.close()

    def _folders(self) -> list[str]:
        return list(self.store.folders(f"{format.RECORDS}/"))

    def _found(self, topic: TopicRecord, partition: int) -> RecordVersion[ParquetManifest] | None:
        key = format.manifest_key(topic.name, partition)
        found = self._manifests.read(key)
        if found is not None:
            format.check(found.record, topic, partition, f"{self.store.url}/{key}")
        return found


def _following(manifest: ParquetManifest, parts: Sequence[ParquetFile]) -> list[ParquetFile]:
    """The files that follow on what a manifest has, without a gap."""
    found: list[ParquetFile] = []
    end = manifest.end
    for part in parts:
        if part.start == end or (end < 0 and not found):
            found.append(part)
            end = part.end
        elif part.start > end:
            break
    return found


def is_parquet(address: str) -> bool:
    """Whether an address is that of an archive of Parquet files."""
    return address.startswith(format.PREFIX)


def url_of(address: str) -> str:
    """The address of the object store that `parquet:…` names: a path is that of a directory, from here."""
    place = address.removeprefix(format.PREFIX)
    if not place:
        raise Invalid(f"{address!r} names no place", hint="parquet:out/, or parquet:s3://bucket/prefix")
    return f"objects://{os.path.abspath(place)}" if is_directory(place) else place


def open_parquet(
    address: str, *, clock: Clock | None = None, disk: Disk | None = None, limits: Limits = DEFAULTS
) -> ParquetStore:
    """The archive at `parquet:…`, or at the address of its store. Nothing is asked of it yet, and nothing made."""
    clock = clock or Clock()
    return ParquetStore(open_store(url_of(address), clock=clock, disk=disk or Disk(), limits=limits), clock)
