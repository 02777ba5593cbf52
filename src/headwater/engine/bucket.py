"""The verbs on a bucket. `Bucket` is what `headwater.open("s3://…")` returns; safe from any thread.

There is no server and no lock: any number of programs on any machines open the same bucket (docs/BUCKET.md).
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import datetime
from typing import Any, Unpack
from weakref import WeakSet

import msgspec

from headwater.engine.appends import Transaction
from headwater.engine.bucket_catalogue import BucketCatalog
from headwater.engine.bucket_checking import check_bucket
from headwater.engine.bucket_keeper import BucketKeeper
from headwater.engine.checking import CheckReport
from headwater.engine.consumer import Consumer
from headwater.engine.coordinated_consumers import CoordinatedConsumers
from headwater.engine.info import time_at
from headwater.engine.verbs import Verbs
from headwater.errors import Closed, Corrupt, Denied, HeadwaterError, Invalid, NotFound, Unavailable, Unsupported
from headwater.event import Content, Durability, Event, Ref, time_of
from headwater.format import given
from headwater.format.given import Data, Meta
from headwater.format.producers import Producer
from headwater.format.settings import Retention, TopicRecord
from headwater.history import location
from headwater.history.archiver import Progress
from headwater.info import DeletedSegment, MaintenanceResult, PartitionInfo, TopicInfo
from headwater.limits import DEFAULTS, Limits
from headwater.requests import wants_sync
from headwater.storage.bucket.appender import Unit
from headwater.storage.bucket.cache import ObjectCache
from headwater.storage.bucket.coordinator import BucketCoordinator
from headwater.storage.bucket.log import ObjectLog
from headwater.storage.bucket.opening import open_store
from headwater.storage.bucket.probe import probe
from headwater.storage.bucket.store import ObjectStore
from headwater.storage.coordinator import Coordinator
from headwater.storage.disk import Clock, Disk
from headwater.storage.rows import Rows

_buckets: WeakSet[Bucket] = WeakSet()  # which cannot be used in a forked child

VIEWS_HINT = "use a directory or a server"


class AppendHandle:
    """An append that is on its way. `result()` waits until it is durable; safe from any thread."""

    def __init__(self, log: ObjectLog, unit: Unit) -> None:
        self._log = log
        self._unit = unit

    def done(self) -> bool:
        """Whether it is durable, or has failed."""
        return self._unit.done

    def result(self, timeout: float | None = None) -> Ref:
        """Where the event is, when it is durable; raises what kept it from being, Unavailable if the time is over."""
        if not self._unit.wait(timeout):
            raise Unavailable(f"the append is not done after {timeout:g} s", hint="wait on", code="pending")
        self._unit.check()
        rows = self._unit.rows[0]
        return Ref(self._log.topic, self._log.partition, rows.offset, rows.ticks, self._log.node, "fsync")


class BucketTransaction(Transaction[ObjectLog]):
    """A transaction in a bucket: over one partition. It is one object."""

    def ack(self, *events: Event, consumer: Consumer | None = None) -> None:  # noqa: ARG002
        """Not to be had: raises Unsupported."""
        raise Unsupported(
            "a bucket cannot ack an event in a transaction", hint="append, then ack: it is done at least once"
        )

    def commit(self) -> list[Ref]:
        """Append all of it, durably. Raises Unsupported if it is over several partitions: nothing is done then."""
        self._check()
        logs = {id(log): log for log, _ in self._appends}
        if len(logs) > 1:
            places = ", ".join(sorted({str(log.place) for log in logs.values()}))
            raise Unsupported(
                f"a transaction in a bucket is over one partition, not {len(logs)}: {places}",
                hint="give all events one key or partition; a directory and a server have transactions over several",
            )
        self._over = True
        if self._appends:
            group = [rows for _, rows in self._appends]
            if self._producer is not None:
                group[0].guard(group[0].expected, self._producer)
            (log,) = logs.values()
            log.append_together(group)
        return self._settled(journaled=True)


class Bucket(Verbs[ObjectLog]):
    """An open bucket. Close it, or use it in a `with` statement: what waits to be appended is then."""

    has_versions = False  # of keys: they would need an index
    _catalogue: BucketCatalog
    _consumers: CoordinatedConsumers

    def __init__(
        self,
        store: ObjectStore,
        coordinator: Coordinator,
        *,
        create: bool = True,
        durability: Durability = "fsync",
        limits: Limits = DEFAULTS,
        patient: bool = False,
        disk: Disk,
        clock: Clock,
    ) -> None:
        """`patient`: those who wait for an append linger, too, so that many threads share an object."""
        self._store = store
        self._patient = patient
        self._catalogue = BucketCatalog(store, disk, clock, limits)
        self._consumers = CoordinatedConsumers(coordinator, clock, limits, self._catalogue.find)
        self._cache = ObjectCache(limits.cache_bytes)
        self._pool: ThreadPoolExecutor | None = None
        self._closing = threading.Lock()  # protects `_closed` and the making of `_pool`
        if create:
            probe(store, clock)
            self._catalogue.init()
        self._settings = self._catalogue.open()
        if not create:  # only now, so that nothing is made where nothing is
            with contextlib.suppress(Denied):  # whoever may only read loses nothing
                probe(store, clock)
        self._keeper = BucketKeeper(self._catalogue, clock, self._threads, self._consumers.slowest)
        super().__init__(store.url, limits, disk, clock, sync=wants_sync(durability))
        _buckets.add(self)

    @property
    def url(self) -> str:
        """Where it is."""
        return self._store.url

    @property
    def uuid(self) -> str:
        """What identifies this log, wherever it is copied."""
        return self._settings.uuid

    @property
    def archive_url(self) -> str | None:
        """Where this log was archived to last; None if it never was."""
        return location.read(self._store, self._clock)

    def remember_archive(self, url: str) -> None:
        """Store where this log is archived to, durably."""
        location.write(self._store, self._clock, url)

    # Topics

    def describe(self, topic: str) -> TopicInfo:
        """What a topic is and holds; raises NotFound. Lists its objects, to tell their number and bytes."""
        opened = self._topics.live(topic)
        described = self._catalogue.find(topic)
        return TopicInfo(
            name=described.name,
            uuid=described.uuid,
            settings=msgspec.to_builtins(described.settings),
            partitions=[partition_info(log) for log in opened.logs],
        )

    def delete(self, topic: str) -> None:
        """Delete a topic and all its events, for everybody; raises NotFound. Made again, it starts afresh."""
        self.check_open()
        there = self._catalogue.find(topic)
        opened = self._topics.get(topic)
        if opened.topic.uuid != there.uuid:
            self._topics.forget(opened)
            opened = self._topics.get(topic)
        # Closed before the name is free: else whoever still has the topic open could append to one that is gone, and be
        # told that it is durable. Who died in between left a topic that can only be deleted.
        for log in opened.logs:
            with contextlib.suppress(NotFound):  # it is closed already
                log.finish()
        self._topics.forget(opened)
        self._catalogue.remove(opened.topic)
        for log in opened.logs:
            log.close()

    # Appending

    def append_later(
        self,
        topic: str,
        data: Data,
        *,
        type: str = "",
        key: bytes | str | None = None,
        meta: Meta | None = None,
        content: Content | None = None,
        partition: int | None = None,
        producer: Producer | tuple[str, int, int] | None = None,
    ) -> AppendHandle:
        """Append one event with others that come soon, and go on meanwhile: fewer objects, at a fraction of the price.

        They linger for `linger_ms`, or until there are `linger_bytes`. Nothing is durable before
        `AppendHandle.result()`, `flush()` or `close()` has returned. Waits while `buffer_bytes` are on their way.
        """
        opened = self._open.get(topic) or self._topics.for_append(topic)
        given.check_content(content)
        encoded, content = given.encode_data(data, content)
        encoded_key = given.encode_key(key, self._limits)
        told = given.check_producer(producer, self._limits)
        log = opened.choose(encoded_key, partition, told)
        given.check_size(len(encoded), log.place.limits)
        if len(encoded) > log.place.limits.blob_bytes_min:
            raise Invalid("a huge event cannot wait for others", hint="append it alone: hw.append(…)")
        values = given.encode_type(type), encoded_key, given.encode_meta(meta, self._limits)
        rows = Rows.one(content, True, encoded, *values)
        rows.guard(None, told)
        return AppendHandle(log, log.append_later(rows))

    def flush(self) -> None:
        """Append all that waits; it is durable when this returns. Raises why something is not, unless that was told."""
        self.check_open()
        self._flush()

    def transaction(
        self, *, durability: Durability | None = None, producer: Producer | tuple[str, int, int] | None = None
    ) -> BucketTransaction:
        """Appends to one partition, all or nothing: `with hw.transaction() as tx: tx.append(…)`.

        Committed when the block ends, and discarded if it raises. Over several partitions it raises Unsupported.
        """
        self.check_open()
        if durability is not None:
            wants_sync(durability)
        return BucketTransaction(self, sync=True, producer=given.check_producer(producer, self._limits))

    # Keeping

    def seal(self, topic: str) -> int:
        """Make segments of all that was appended, whether it is worth it or not; returns how many."""
        return self._keeper.seal(self._topics.live(topic).logs)

    def retain(
        self,
        topic: str,
        *,
        before: int | datetime | None = None,
        partition: int | None = None,
        dry_run: bool = False,
        **changes: Unpack[Retention],
    ) -> list[DeletedSegment]:
        """Trim the oldest segments that need not be kept; returns them. `dry_run` only tells which.

        As in a directory; what is not compacted yet is the active segment. What is returned is gone durably: a read of
        it raises NotFound with the code `offset_gone` and the `oldest` offset, for others within `knowledge_s`. Its
        objects are deleted after `collect_s`. Raises Unsupported for a hard bound.
        """
        logs = self._topics.live_logs(topic, partition)
        return self._keeper.retain(logs, changes=changes, before=before, dry_run=dry_run)

    def maintain(self, topic: str | None = None) -> MaintenanceResult:
        """Compact, trim and collect a topic, or all of them, once; returns what was done.

        Programs that append do this by themselves, now and then; for a bucket that nobody appends to any more, or
        whose writers have `compact_objects=0`. May run at any time, and several times at once.
        """
        done = MaintenanceResult()
        failed: HeadwaterError | None = None
        for name in self.topics() if topic is None else [topic]:
            try:
                opened = self._topics.live(name)
                one = self._keeper.maintain(self._catalogue.find(name), opened.logs)
                done.segments += one.segments
                done.trimmed += one.trimmed
                done.collected += one.collected
            except NotFound:
                if topic is not None:  # else it was deleted meanwhile
                    raise
            except (Corrupt, Unsupported) as error:
                failed = error  # the others go on
        if failed is not None:
            raise failed
        done.collected += self._keeper.sweep(topic)
        return done

    def check(self, topic: str | None = None, progress: Progress | None = None) -> CheckReport:
        """Fetch every object, and verify every checksum and invariant of a topic, or of all; changes nothing.

        `progress` is called with the bytes that are done, and all of them.
        """
        self.check_open()
        return check_bucket(self._catalogue, topic, progress)

    # What a bucket cannot do; docs/BUCKET.md has the table

    def reindex(self, topic: str | None = None, progress: object = None) -> int:  # noqa: ARG002  # as a directory's
        """Not to be had: raises Unsupported. A bucket has no index."""
        raise _cannot("reindex", "a bucket has no index that could be made again")

    def repair(self, topic: str | None = None, *, apply: bool = False) -> Any:  # noqa: ARG002  # as a directory's
        """Not to be had: raises Unsupported. An object is there as it was put, or it is not."""
        raise _cannot("repair", "restore the objects that 'headwater check' names from a copy of the bucket")

    def binder(self, name: str) -> Any:  # noqa: ARG002  # as a directory's
        """Not to be had: raises Unsupported. Documents need a directory."""
        raise _cannot("keep documents", VIEWS_HINT)

    def binders(self) -> list[str]:
        """Not to be had: raises Unsupported."""
        raise _cannot("keep documents", VIEWS_HINT)

    def views(self) -> Any:
        """Not to be had: raises Unsupported."""
        raise _cannot("run projections and functions", VIEWS_HINT)

    def replication(self) -> Any:
        """Not to be had: raises Unsupported."""
        raise _cannot("be replicated", "it is where all machines can reach it; a directory and a server can be")

    # Ending

    def close(self) -> None:
        """Append what waits, stop followers, and let go of everything. May be called twice. Raises as `flush`."""
        for member in list(self._members):
            member.close()
        with self._closing:
            if self._closed:
                return
            self._closed = True
            pool, self._pool = self._pool, None
        try:
            self._flush()
        finally:
            self._keeper.close()
            self._topics.close()
            if pool is not None:
                pool.shutdown(cancel_futures=True)
            self._consumers.close()
            self._store.close()

    def after_fork(self) -> None:
        """In a forked child, where it is called by itself: what the parent opened cannot be used, nor be closed."""
        self._name += ", which was opened before this process was forked,"
        self._closing = threading.Lock()
        self._closed = True
        self._open.clear()
        for member in list(self._members):
            member.after_fork()

    def _flush(self) -> None:
        failed: HeadwaterError | None = None
        for opened in list(self._open.values()):
            for log in opened.logs:
                try:
                    log.flush()
                except HeadwaterError as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def _new_log(self, topic: TopicRecord, partition: int) -> ObjectLog:
        place = self._catalogue.place(topic, partition)
        return ObjectLog(place, self._cache, self._threads, patient=self._patient, was_put=self._keeper.was_put)

    def _threads(self) -> Executor:
        """The threads that fetch."""
        with self._closing:
            if self._closed:
                raise Closed(f"{self._name} was closed")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._limits.fetch_threads, thread_name_prefix="headwater-fetch")
            return self._pool


def _after_fork() -> None:
    for bucket in list(_buckets):
        bucket.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def open_bucket(
    url: str,
    *,
    create: bool = True,
    durability: Durability = "fsync",
    limits: Limits = DEFAULTS,
    linger_ms: int | None = None,
    coordinator: str | None = None,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Bucket:
    """The log at an address of an object store; `headwater.open` tells the rest."""
    disk, clock = disk or Disk(), clock or Clock()
    if linger_ms is not None:
        limits = msgspec.structs.replace(limits, linger_ms=linger_ms)
    store = open_store(url, clock=clock, disk=disk, limits=limits)
    options: dict[str, Any] = {"limits": limits, "disk": disk, "clock": clock, "patient": linger_ms is not None}
    return Bucket(store, open_coordinator(coordinator, store, clock), create=create, durability=durability, **options)


def open_coordinator(address: str | None, store: ObjectStore, clock: Clock) -> Coordinator:
    """Where the consumers of a bucket keep their cursors: in the bucket, or at an address of their own."""
    if address is None:
        return BucketCoordinator(store, clock)
    from headwater.storage.dynamodb import DynamoCoordinator, is_dynamodb

    if not is_dynamodb(address):
        hint = "it is dynamodb://table?region=…, or, left out, the bucket itself"
        raise Unsupported(f"{address!r} is no coordinator", hint=hint)
    return DynamoCoordinator(address, clock)


def _cannot(what: str, hint: str) -> Unsupported:
    return Unsupported(f"a bucket cannot {what}", hint=hint, code="bucket_cannot")


def partition_info(log: ObjectLog) -> PartitionInfo:
    """What `describe` tells of one partition."""
    place, start = log.place, log.start()
    state = log.state()  # after it: it may be trimmed meanwhile, and an end only grows
    meta = log.chain.knowledge.meta()
    objects = [each.size for each in place.store.list(place.events) if each.key >= place.events_at(meta.reached.offset)]
    segments = [each.bytes for each in meta.segments]
    blobs = [each.size for each in place.store.list(place.blobs)]
    return PartitionInfo(
        place.partition,
        start,
        state.visible_offset,
        state.visible_offset,
        len(objects) + len(segments),
        len(segments),
        sum(objects) + sum(segments) + sum(blobs),
        time_at(log, start, state.visible_offset),
        time_of(state.last_ticks).isoformat() if state.last_ticks else None,
        "open",
        [],
        finished=meta.reached.offset,
    )
