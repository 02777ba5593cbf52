"""The records of a bucket: that it is a log, its topics, and where it is archived.

Topics are created, found, listed and deleted by any process. One swapped record says which topic has a name. A topic
exists from the moment its record does, until the record says that it is deleted; its objects are deleted later
(docs/BUCKET.md).
"""

from __future__ import annotations

import builtins
from uuid import UUID

import msgspec

from headwater.bucket.garbage import all_older, delete_all, time_of
from headwater.bucket.meta import Knowledge
from headwater.bucket.object_place import TOPICS, ObjectPlace, topic_key
from headwater.bucket.object_store import PREFIX, ObjectStore
from headwater.bucket.records import Records, RecordVersion
from headwater.disk.disk import Clock, Disk
from headwater.errors import Conflict, Corrupt, HeadwaterError, Invalid, NotFound, Unsupported
from headwater.format import names
from headwater.format.history import FORM, ArchiveAddress
from headwater.format.settings import LogSettings, Retention, TopicRecord, TopicSettings
from headwater.limits import Limits
from headwater.log.topic_rules import check_topic, checked_name, limits_of, not_found, same, with_retention

SETTINGS = "headwater.json"
ARCHIVE = "archived-to.json"  # where the log was archived to last; it may be deleted
STAMP = "stamp"  # what is put to learn the time of the store


class TopicName(msgspec.Struct, frozen=True):
    """Which topic has a name: none, if it was deleted."""

    topic: TopicRecord | None = None
    deleted: str = ""  # the uuid of the one that had it last


class BucketCatalog:
    """One bucket. Safe from any thread, process and machine: it keeps no state of its own."""

    def __init__(self, store: ObjectStore, disk: Disk, clock: Clock, limits: Limits) -> None:
        self._store = store
        self._disk = disk
        self._clock = clock
        self._limits = limits
        self._records = Records(store, clock, TopicName)
        self._settings = Records(store, clock, LogSettings)
        self._archives = Records(store, clock, ArchiveAddress)

    def init(self) -> None:
        """Make the place a log, unless it is one. One with other things in it is refused."""
        if self._settings.read(SETTINGS) is not None:
            return
        strangers = (each.key for each in self._store.list("") if not each.key.startswith(PREFIX))
        stranger = next(strangers, SETTINGS)
        if stranger != SETTINGS:
            raise Invalid(
                f"{self._store.url} is not a log: it contains {stranger!r}",
                hint="use a prefix that nothing else uses",
                code="not_a_log",
            )
        self._settings.create(SETTINGS, LogSettings(uuid=str(self._random_uuid())))

    def open(self) -> LogSettings:
        """Check that the place is a log that this version understands."""
        found = self._settings.read(SETTINGS)
        if found is None:
            raise NotFound(
                f"{self._store.url} is not a log",
                hint="to create one, open it without mode='existing'",
                code="not_a_log",
            )
        return found.record

    def archive_url(self) -> str | None:
        """Return where the log was archived to last; None if it never was."""
        found = self._archives.read(ARCHIVE)
        return None if found is None else found.record.url

    def remember_archive(self, url: str) -> None:
        """Store where the log is archived to, durably. Raises Conflict if other processes keep changing it."""
        record = ArchiveAddress(form=FORM, url=url)
        for _ in range(10):
            found = self._archives.read(ARCHIVE)
            if found is not None and found.record.url == url:
                return
            if found is None:
                done = self._archives.create(ARCHIVE, record)
            else:
                done = self._archives.swap(ARCHIVE, record, found.version)
            if done is not None:
                return
        raise Conflict(f"{self._store.url}: other processes are changing its archive location at the same time")

    def create(self, name: str, partitions: int, chosen: TopicSettings) -> bool:
        """Make a topic; False if it is there, with the same number of partitions. Durable when it returns."""
        check_topic(name, partitions, chosen, self._limits)
        _check_bounds(chosen)
        while True:
            found = self._records.read(topic_key(name))
            if found is not None and found.record.topic is not None:
                return same(found.record.topic, partitions)
            topic = TopicRecord(name=name, uuid=str(self._random_uuid()), partitions=partitions, settings=chosen)
            for partition in range(partitions):
                Knowledge(self.place(topic, partition)).create()
            if self._put(name, TopicName(topic), found):
                return True

    def find(self, name: str) -> TopicRecord:
        """Return the topic; raises NotFound."""
        return self._find(name)[0]

    def list(self) -> list[str]:
        """Return the names of all topics, sorted. Of those whose records are damaged too: whoever opens one is told."""
        topics, broken = self._survey()
        damaged = (names.topic_of(folder) for folder, _ in broken)
        return sorted({*(topic.name for topic in topics), *(name for name in damaged if name is not None)})

    @property
    def url(self) -> str:
        """Return where it is, for messages."""
        return self._store.url

    def survey(self, name: str | None = None) -> tuple[builtins.list[TopicRecord], builtins.list[HeadwaterError]]:
        """Return one topic or all, in the order of their names, and what is wrong with the records of others."""
        if name is not None:
            return [self.find(name)], []
        topics, broken = self._survey()
        return sorted(topics, key=lambda topic: topic.name), [error for _, error in broken]

    def _survey(self) -> tuple[builtins.list[TopicRecord], builtins.list[tuple[str, HeadwaterError]]]:
        """Return all topics, and the folders whose records cannot be read."""
        topics: builtins.list[TopicRecord] = []
        broken: builtins.list[tuple[str, HeadwaterError]] = []
        for folder in self._store.folders(TOPICS):
            try:
                found = self._records.read(f"{TOPICS}{folder}/topic")
            except (Corrupt, Unsupported) as error:
                broken.append((folder, error))
                continue
            if found is not None and found.record.topic is not None:
                topics.append(found.record.topic)
        return topics, broken

    def change(self, name: str, changes: Retention) -> TopicRecord:
        """Change the retention of a topic, durably; returns what it is then. Raises NotFound, and Invalid."""
        while True:
            topic, found = self._find(name)
            topic = msgspec.structs.replace(topic, settings=with_retention(topic.settings, changes))
            check_topic(name, topic.partitions, topic.settings, self._limits)
            _check_bounds(topic.settings)
            if self._put(name, TopicName(topic), found):
                return topic

    def remove(self, topic: TopicRecord) -> None:
        """Take a topic's name away; raises NotFound if another process has done so."""
        while True:
            there, found = self._find(topic.name)
            if there.uuid != topic.uuid:
                raise not_found(topic.name, self._store.url)
            if self._put(topic.name, TopicName(None, topic.uuid), found):
                return

    def sweep(self, name: str | None = None) -> int:
        """Delete what is left of topics that were deleted, or never came to be; returns how many objects went."""
        folders = self._store.folders(TOPICS) if name is None else [names.directory_of(name)]
        return sum(self._sweep(f"{TOPICS}{folder}/") for folder in folders)

    def place(self, topic: TopicRecord, partition: int) -> ObjectPlace:
        """Return where a partition's log is."""
        own = limits_of(topic, self._limits)
        return ObjectPlace.of(self._store, topic, partition, self._disk, self._clock, own)

    def _sweep(self, folder: str) -> int:
        """Delete what is below one name, and not of the topic that has it, if that has been so for long enough.

        Who makes a topic puts its `meta` before the name is given to it, and may sleep in between. So the record is
        swapped before anything is deleted: whoever saw it before cannot swap it any more, and begins with a new uuid.
        """
        found = self._records.read(folder + "topic")
        named = found.record if found is not None else TopicName()
        alive = named.topic.uuid if named.topic is not None else ""
        left = [uuid for uuid in self._store.folders(folder) if uuid != alive]
        if not left:
            return 0
        now = time_of(self._store, STAMP)
        changed = [each.modified for each in self._store.list(folder + "topic") if each.key == folder + "topic"]
        older_s = self._limits.collect_s
        if any((now - each).total_seconds() < older_s for each in changed):
            return 0
        old = [
            uuid for uuid in left if uuid == named.deleted or all_older(self._store, f"{folder}{uuid}/", now, older_s)
        ]
        if not old:
            return 0
        key = folder + "topic"
        put = self._records.create(key, named) if found is None else self._records.swap(key, named, found.version)
        if put is None:
            return 0
        return sum(delete_all(self._store, (each.key for each in self._store.list(f"{folder}{uuid}/"))) for uuid in old)

    def _find(self, name: str) -> tuple[TopicRecord, RecordVersion[TopicName]]:
        found = self._records.read(topic_key(checked_name(name, self._limits)))
        if found is None or found.record.topic is None:
            raise not_found(name, self._store.url)
        if found.record.topic.name != name:
            raise Conflict(f"the key of topic {name!r} is taken by {found.record.topic.name!r}", code="name_taken")
        return found.record.topic, found

    def _put(self, name: str, named: TopicName, found: RecordVersion[TopicName] | None) -> bool:
        key = topic_key(name)
        put = self._records.create(key, named) if found is None else self._records.swap(key, named, found.version)
        return put is not None

    def _random_uuid(self) -> UUID:
        return UUID(bytes=self._clock.random_bytes(16), version=4)


def _check_bounds(chosen: TopicSettings) -> None:
    """Raise Unsupported for a bound that a bucket does not have."""
    if chosen.retention_bytes_hard:
        raise Unsupported(
            "a bucket has no hard limit: its bytes are not counted before each append",
            hint="use retention_bytes, which each compaction enforces",
            code="verb_unsupported",
        )
