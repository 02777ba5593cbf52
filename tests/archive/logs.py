"""Logs to archive: small segments, events of every kind, and stores that fail when they are told to."""

from __future__ import annotations

import builtins
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from headwater.format.archive import SegmentManifest
from headwater.storage.archive.archive import ArchiveStore

from headwater.bucket.directory_store import DirectoryStore
from headwater.bucket.object_store import ObjectStore
from headwater.disk.disk import Clock
from headwater.errors import Unavailable
from headwater.info import DeletedSegment
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from tests.log.unsynced import UnsyncedDisk
from tests.wrapped import WrappedStore

SEGMENT_BYTES = 4096
LIMITS = Limits(blob_bytes_min=2000, pack_bytes=2000, lock_wait_s=10.0, archive_look_s=0.02)
T = TypeVar("T")

TYPES = ("placed", "paid", "", "delivered")


class FailingStore(WrappedStore):
    """A store that can be out of reach, counts what is asked of it, and tells of each call before and after it."""

    def __init__(
        self, store: ObjectStore, told: Callable[[str, str, str], None] = lambda _when, _what, _key: None
    ) -> None:
        super().__init__(store)
        self.down = False
        self.calls: list[tuple[str, str]] = []
        self._told = told

    def fetched(self, suffix: str) -> builtins.list[str]:
        """The keys that were read and end so, each once, in order."""
        read = (key for what, key in self.calls if what == "get_range" and key.endswith(suffix))
        return builtins.list(dict.fromkeys(read))

    def call(self, method: str, key: str, ask: Callable[[], T]) -> T:
        self._told("before", method, key)
        self.calls.append((method, key))
        if self.down:
            raise Unavailable("the network is down")
        done = ask()
        self._told("after", method, key)
        return done


def open_engine(path: Path, limits: Limits = LIMITS, store: ObjectStore | None = None) -> Store:
    """An engine on a log directory, as a process of its own would have one; its archive is in the `store`."""
    engine = open_directory(path, limits=limits, disk=UnsyncedDisk(), clock=Clock())
    if store is not None:
        engine._archive._open = lambda _url: store
    return engine


def objects(path: Path) -> DirectoryStore:
    return DirectoryStore(path, UnsyncedDisk(), Clock())


def fill(hw: Store, events: int = 150, topic: str = "t", seed: int = 0, partitions: int = 1) -> None:
    """Append events of every kind, alone and together, so that there are many segments."""
    hw.create(topic, partitions=partitions, segment_bytes=SEGMENT_BYTES)
    chance = random.Random(seed)  # not for secrets
    left = events
    while left > 0:
        kind = chance.random()
        key = chance.choice((None, "a", "b", f"k{chance.randrange(20)}"))
        if kind < 0.03:
            hw.append(topic, chance.randbytes(5000), type="huge", key=key)
            left -= 1
        elif kind < 0.5:
            content: Any = chance.choice((b"x" * chance.randrange(300), "text", {"n": left}))
            hw.append(topic, content, type=chance.choice(TYPES), key=key, meta={"m": "1"} if kind < 0.1 else None)
            left -= 1
        else:
            many = min(left, chance.randrange(1, 12))
            hw.append_many(topic, [chance.randbytes(80)] * many, types=[chance.choice(TYPES)] * many, keys=[key] * many)
            left -= many


def everything(hw: Store, topic: str = "t", **wanted: Any) -> list[tuple[Any, ...]]:
    """All that can be told of the events that are wanted."""
    return [
        (e.partition, e.offset, e.time, e.id, e.type, e.key, e.content, e.data, e.meta)
        for e in hw.read(topic, **wanted)
    ]


def drop(hw: Store, topic: str = "t") -> list[DeletedSegment]:
    """Have retention drop all finished segments from the local disk, once."""
    deleted = hw.retain(topic, retention_segments=1)
    hw.retain(topic, retention_segments=0)
    return deleted


def manifest_of(store: ObjectStore, hw: Store, topic: str = "t", partition: int = 0) -> SegmentManifest:
    found = ArchiveStore(store, Clock()).manifest(
        hw._catalogue.find(topic), partition, hw._topics.live(topic).logs[partition].place.uuid
    )
    assert found is not None
    return found.record
