"""A stage for races in a bucket: time that a test moves, and a store that stops at a call to let others act.

    stage = Stage(tmp_path)
    writer, other = stage.open(), stage.open()
    with writer.store.before("create", "/events/", lambda: sleep_through(stage, other)):
        writer.append(b"late")

Everything is in one process and without sleeps. Each opened log knows only what it has looked at itself.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from headwater.bucket.catalog import BucketCatalog
from headwater.bucket.chain import ObjectCache
from headwater.bucket.compaction import compact
from headwater.bucket.directory_store import DirectoryStore
from headwater.bucket.garbage import collect
from headwater.bucket.object_log import ObjectLog
from headwater.bucket.object_store import ObjectEntry, ObjectStore, StoredObject
from headwater.bucket.trimming import trim
from headwater.disk.disk import Clock
from headwater.event import UNIX_EPOCH_TICKS
from headwater.format import object as format
from headwater.format.batch import DATA, Batch
from headwater.format.object import ObjectHead
from headwater.format.settings import TopicRecord, TopicSettings
from headwater.limits import DEFAULTS, Limits
from headwater.log.rows import Rows, encode
from headwater.log.topic_rules import Rules
from tests.log.unsynced import UnsyncedDisk

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Killed(BaseException):
    """The process of whoever does this is gone."""


class StageClock(Clock):
    """Time stands still until somebody moves it. `sleep` does."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.suspended_s = 0.0  # for which the counting clock stood still, as a suspended machine's does

    def monotonic(self) -> float:
        return 1000.0 + self.now_s - self.suspended_s

    def sleep(self, seconds: float) -> None:  # type: ignore[override]  # a function of the system in the real one
        self.now_s += seconds

    def ticks(self) -> int:
        return int((BEGIN.timestamp() + self.now_s) * 10_000_000) + UNIX_EPOCH_TICKS

    def suspend(self, seconds: float) -> None:
        self.now_s += seconds
        self.suspended_s += seconds


class StageStore:
    """One program's way to the store that all share. What is put has the time of the stage."""

    def __init__(self, shared: ObjectStore, clock: StageClock, times: dict[str, datetime]) -> None:
        self._shared = shared
        self._clock = clock
        self._times = times
        self._hooks: list[tuple[str, str, bool, Callable[[], Any]]] = []
        self._lost: builtins.list[tuple[str, str]] = []
        self.deleted: builtins.list[str] = []

    @property
    def url(self) -> str:
        return self._shared.url

    @contextlib.contextmanager
    def before(self, verb: str, part: str, act: Callable[[], Any]) -> Iterator[None]:
        """Have something happen just before the first such call whose key has this part."""
        with self._hooked(verb, part, False, act):
            yield

    @contextlib.contextmanager
    def after(self, verb: str, part: str, act: Callable[[], Any]) -> Iterator[None]:
        """The same after the store has done it, and before the caller knows."""
        with self._hooked(verb, part, True, act):
            yield

    @contextlib.contextmanager
    def _hooked(self, verb: str, part: str, done: bool, act: Callable[[], Any]) -> Iterator[None]:
        hook = (verb, part, done, act)
        self._hooks.append(hook)
        yield
        assert hook not in self._hooks, f"no {verb} of {part} came"

    def _at(self, verb: str, key: str, *, done: bool = False) -> None:
        for hook in self._hooks:
            if hook[0] == verb and hook[1] in key and hook[2] == done:
                self._hooks.remove(hook)
                hook[3]()
                return

    @contextlib.contextmanager
    def losing(self, verb: str, part: str) -> Iterator[None]:
        """Lose the answer to the first such call: its client tries again, and is told that somebody was first."""
        self._lost.append((verb, part))
        yield
        assert not self._lost, f"no {verb} of {part} came"

    def _loses(self, verb: str, key: str) -> bool:
        for lost in self._lost:
            if lost[0] == verb and lost[1] in key:
                self._lost.remove(lost)
                return True
        return False

    def _now(self) -> datetime:
        return BEGIN + timedelta(seconds=self._clock.now_s)

    def get(self, key: str) -> StoredObject | None:
        self._at("get", key)
        found = self._shared.get(key)
        self._at("get", key, done=True)
        return found

    def get_range(self, key: str, start: int, length: int) -> memoryview | None:
        self._at("get_range", key)
        return self._shared.get_range(key, start, length)

    def create(self, key: str, data: bytes) -> str | None:
        self._at("create", key)
        version = self._shared.create(key, data)
        if version is not None:
            self._times[key] = self._now()
        self._at("create", key, done=True)
        return None if self._loses("create", key) else version

    def swap(self, key: str, data: bytes, version: str) -> str | None:
        self._at("swap", key)
        swapped = self._shared.swap(key, data, version)
        if swapped is not None:
            self._times[key] = self._now()
        self._at("swap", key, done=True)
        return None if self._loses("swap", key) else swapped

    def put(self, key: str, data: bytes) -> None:
        self.put_pieces(key, [data])

    def put_pieces(self, key: str, pieces: Iterable[bytes]) -> int:
        self._at("put", key)
        size = self._shared.put_pieces(key, pieces)
        self._times[key] = self._now()
        self._at("put", key, done=True)
        return size

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._at("delete", key)
            self._shared.delete([key])
            self.deleted.append(key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        self._at("list", prefix)
        for each in self._shared.list(prefix, after):
            yield each._replace(modified=self._times.get(each.key, BEGIN))

    def folders(self, prefix: str) -> builtins.list[str]:
        return list(self._shared.folders(prefix))

    def close(self) -> None:
        pass


class Opened:
    """One program's view of the one log of the stage."""

    def __init__(self, stage: Stage, limits: Limits) -> None:
        self.stage = stage
        self.store = stage.way()
        self.catalogue = BucketCatalog(self.store, stage.disk, stage.clock, limits)
        self.log = ObjectLog(self.catalogue.place(stage.topic, 0), ObjectCache(limits.cache_bytes), lambda: stage.pool)
        self.place = self.log.place
        self.knowledge = self.log.chain.knowledge

    def append(self, *data: bytes) -> list[int]:
        """Append events, each an object of its own; returns their offsets."""
        offsets = []
        for each in data:
            rows = Rows.one("bytes", True, each, b"", None, None)
            self.log.append(rows)
            offsets.append(rows.offset)
        return offsets

    def ghost(self, base: int, data: bytes, previous: str = "") -> None:
        """Put an object in a place that was freed, as one who slept for long does; it died before it looked again."""
        rows = Rows.one("bytes", True, data, b"", None, None)
        batch = encode([rows], base, self.stage.clock.ticks(), zstd=False)
        nonce = self.stage.clock.random_bytes(16).hex()
        head = ObjectHead(
            log=self.place.uuid.hex(), base=base, end=base + 1, nonce=nonce, previous=previous, size=len(batch)
        )
        assert self.store.create(self.place.events_at(base), format.encode(head, [batch])) is not None

    def read(self, start: int | None = None) -> list[bytes]:
        """All events from an offset on, up to the end."""
        begin = self.log.start() if start is None else start
        return [each for batch in self.log.batches(begin, self.log.end()) for each in datas(batch, begin)]

    def compact(self) -> int:
        return compact(self.place, self.knowledge, lambda: self.stage.pool, self.log.end())

    def trim(self, before: int) -> None:
        """Trim what ends at or before an offset. Only whole segments go."""
        trim(self.place, self.log.chain, Rules(TopicSettings(), before=before))

    def collect(self) -> int:
        return collect(self.place, self.knowledge)

    def collect_all(self) -> None:
        """Note what is superfluous and not young, let the time pass, and delete it."""
        for _ in range(3):
            self.collect()
            self.stage.clock.now_s += self.place.limits.collect_s + 1

    def objects(self) -> list[int]:
        """The offsets at which there is an object of events."""
        return [int(each.key.rpartition("/")[2]) for each in self.store.list(self.place.events)]

    def segments(self) -> list[str]:
        return [each.key.rpartition("/")[2] for each in self.store.list(self.place.segments)]


class Stage:
    """A bucket with one topic of one partition."""

    def __init__(self, path: Path, **limits: Any) -> None:
        self.clock = StageClock()
        self.disk = UnsyncedDisk()
        self.limits = Limits(**limits) if limits else DEFAULTS
        self.pool = ThreadPoolExecutor(4)
        self._shared = DirectoryStore(path / "bucket", self.disk, Clock())
        self._times: dict[str, datetime] = {}
        self._opened: list[Opened] = []
        catalogue = BucketCatalog(self.way(), self.disk, self.clock, self.limits)
        catalogue.create("t", 1, TopicSettings())
        self.topic: TopicRecord = catalogue.find("t")

    def way(self) -> StageStore:
        """Another program's way to the store."""
        return StageStore(self._shared, self.clock, self._times)

    def open(self, **limits: Any) -> Opened:
        """Another program."""
        opened = Opened(self, Limits(**limits) if limits else self.limits)
        self._opened.append(opened)
        return opened

    def close(self) -> None:
        for each in self._opened:
            each.log.close()
        self.pool.shutdown()


def datas(batch: Batch, start: int = 0) -> list[bytes]:
    """The data of the events of a batch, from an offset on."""
    column = batch.column(DATA)
    assert column is not None
    lo = max(0, start - batch.base_offset)
    values = [bytes(column.data)] * batch.count if column.offsets is None else column.values(0, batch.count)
    return [bytes(value or b"") for value in values][lo:]
