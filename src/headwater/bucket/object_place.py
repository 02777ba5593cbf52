"""Where one log of a bucket is, who it is and how it behaves; the names of its objects are here."""

from __future__ import annotations

from uuid import UUID

import msgspec

from headwater.bucket.object_store import ObjectStore
from headwater.disk.disk import Clock, Disk
from headwater.format import names
from headwater.format.settings import TopicRecord
from headwater.limits import Limits

TOPICS = "topics/"


def topic_key(name: str) -> str:
    """Return the record that says which topic has a name."""
    return f"{TOPICS}{names.directory_of(name)}/topic"


def prefix_of(topic: TopicRecord) -> str:
    """Return what the keys of a topic begin with; one of the same name that is made later has others."""
    return f"{TOPICS}{names.directory_of(topic.name)}/{topic.uuid}/"


class ObjectPlace(msgspec.Struct, frozen=True):
    """One log."""

    store: ObjectStore
    topic: str
    partition: int
    uuid: bytes
    prefix: str  # of its topic
    disk: Disk
    clock: Clock
    limits: Limits  # with the topic's own settings laid over
    zstd: bool = False

    @classmethod
    def of(
        cls, store: ObjectStore, topic: TopicRecord, partition: int, disk: Disk, clock: Clock, limits: Limits
    ) -> ObjectPlace:
        """Return the place of one partition of a topic."""
        uuid = names.log_uuid(UUID(topic.uuid), partition)
        zstd = topic.settings.compression == "zstd"
        return cls(store, topic.name, partition, uuid, prefix_of(topic), disk, clock, limits, zstd)

    @property
    def node(self) -> int:
        return names.node_of(self.uuid)

    @property
    def meta(self) -> str:
        return f"{self.prefix}meta/{self.partition}"

    @property
    def tail(self) -> str:
        return f"{self.prefix}tail/{self.partition}"

    @property
    def stamp(self) -> str:
        """Return what is put to learn the time of the store."""
        return f"{self.prefix}stamp/{self.partition}"

    @property
    def events(self) -> str:
        """Return what the keys of its objects of events begin with."""
        return f"{self.prefix}events/{self.partition}/"

    @property
    def segments(self) -> str:
        """Return what the keys of its segments begin with."""
        return f"{self.prefix}segments/{self.partition}/"

    @property
    def blobs(self) -> str:
        """Return what the keys of its huge events begin with."""
        return f"{self.prefix}blobs/{self.partition}/"

    def events_at(self, base: int) -> str:
        return f"{self.events}{base:020d}"

    def segment(self, base: int, end: int, nonce: str) -> str:
        return f"{self.segments}{base:020d}-{end:020d}-{nonce}"

    def blob(self, id: str) -> str:
        return self.blobs + id

    def short(self, key: str) -> str:
        """Return a key without what all keys of the topic begin with."""
        return key.removeprefix(self.prefix)

    def path(self, key: str) -> str:
        """Return a key as messages name it."""
        return f"{self.store.url}/{key}"

    def __str__(self) -> str:
        return f"topic {self.topic!r}, partition {self.partition}"
