"""`Bucket`: the backend that keeps logs in an object store. Safe from any thread.

There is no server and no lock: any number of programs on any machines open the same bucket (docs/BUCKET.md).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import datetime
from typing import ClassVar, Protocol
from weakref import WeakSet

import msgspec

from headwater.backend import Kind, Lack
from headwater.bucket.appender import Unit
from headwater.bucket.catalog import BucketCatalog
from headwater.bucket.chain import ObjectCache
from headwater.bucket.check import check_bucket
from headwater.bucket.object_log import ObjectLog
from headwater.bucket.object_store import ObjectStore, probe
from headwater.bucket.upkeep import BucketKeeper
from headwater.disk.disk import Clock, Disk
from headwater.errors import (
    Closed,
    Corrupt,
    Denied,
    HeadwaterError,
    Invalid,
    NotFound,
    Unavailable,
    Unsupported,
    within_memory,
)
from headwater.event import Durability, Event, Ref, time_of
from headwater.format import given
from headwater.format.producers import Producer
from headwater.format.settings import Retention, TopicRecord
from headwater.info import CheckReport, DeletedSegment, MaintenanceResult, PartitionInfo, Progress, TopicInfo
from headwater.limits import DEFAULTS, Limits
from headwater.log.log_backend import LogBackend
from headwater.log.log_committer import LogCommitter
from headwater.log.reading import time_at
from headwater.requests import Append, wants_sync
from headwater.transaction import Acks, Requests, Transaction

_buckets: WeakSet[Bucket] = WeakSet()  # which cannot be used in a forked child

VIEWS_HINT = "use a directory or a server"


@within_memory()
class ObjectAppend:
    """An append to a bucket that is on its way."""

    def __init__(self, log: ObjectLog, unit: Unit) -> None:
        self._log = log
        self._unit = unit

    def done(self) -> bool:
        """Return whether it is durable, or has failed."""
        return self._unit.done

    def result(self, timeout: float | None = None) -> Ref:
        """Return where the event is, when it is durable.

        Raises what kept it from being, Unavailable if the time is over.
        """
        if not self._unit.wait(timeout):
            raise Unavailable(f"the append did not finish within {timeout:g} s", hint="keep waiting", code="pending")
        self._unit.check()
        rows = self._unit.rows[0]
        return Ref(self._log.topic, self._log.partition, rows.offset, rows.ticks, self._log.node, "fsync")


class BucketCommitter(LogCommitter[ObjectLog]):
    """Commits a transaction in a bucket: over one partition. It is one object."""

    def holder(self, event: Event, consumer: object) -> object:  # noqa: ARG002
        raise Unsupported(
            "a bucket cannot ack an event in a transaction", hint="append, then ack: this gives at-least-once delivery"
        )

    def commit(self, requests: Requests, acks: Acks) -> list[Ref]:  # noqa: ARG002  # nothing is acked
        """Append all of it, durably. Raises Unsupported if it is over several partitions: nothing is done then."""
        parts = self._parts(requests)
        logs = {id(part.log): part.log for part in parts}
        if len(logs) > 1:
            places = ", ".join(sorted({str(log.place) for log in logs.values()}))
            raise Unsupported(
                f"a transaction in a bucket is limited to one partition, not {len(logs)}: {places}",
                hint="give all events one key or partition; a directory and a server support several",
            )
        if parts:
            group = [part.rows for part in parts]
            if self._producer is not None:
                group[0].guard(group[0].expected, self._producer)
            parts[0].log.append_together(group)
        return self._refs(parts, journaled=True)


class BucketConsumers(Protocol):
    """The consumers of a bucket, as retention needs them."""

    def slowest(self, topic: TopicRecord, partition: int) -> int | None:
        """Return the lowest cursor of all consumers of a topic in a partition; None if it has none."""

    def close(self) -> None: ...


@within_memory()
class Bucket(LogBackend[ObjectLog]):
    """An open bucket."""

    kind: ClassVar[Kind] = "bucket"
    producers_max = DEFAULTS.object_producers_max
    replica = None
    lacks: ClassVar[Mapping[str, Lack]] = {
        "version": Lack("return the version of a key", "it has no index of keys; a directory and a server have one"),
        "reindex": Lack("be reindexed", "it has no index to rebuild"),
        "repair": Lack("be repaired", "restore the objects that 'headwater check' names from a copy of the bucket"),
        "archive": Lack("be archived this way", "use headwater archive --on spark"),
        "binder": Lack("keep documents", VIEWS_HINT),
        "binders": Lack("keep documents", VIEWS_HINT),
        "views": Lack("run projections and functions", VIEWS_HINT),
        "query": Lack("run queries of an application", VIEWS_HINT),
        "replication": Lack("be replicated", "all machines can reach it; a directory and a server can be replicated"),
    }
    _catalogue: BucketCatalog

    def __init__(
        self,
        store: ObjectStore,
        catalog: BucketCatalog,
        consumers: BucketConsumers,
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
        self._catalogue = catalog
        self._consumers = consumers
        self._cache = ObjectCache(limits.cache_bytes)
        self._pool: ThreadPoolExecutor | None = None
        self._closing = threading.Lock()  # protects `_closed` and the making of `_pool`
        if create:
            probe(store, clock)
            self._catalogue.init()
        self._settings = self._catalogue.open()
        if not create:  # only now, so that nothing is made where nothing is
            with contextlib.suppress(Denied):  # a process that may only read loses nothing
                probe(store, clock)
        self._keeper = BucketKeeper(self._catalogue, clock, self._threads, self._consumers.slowest)
        super().__init__(store.url, limits, disk, clock, sync=wants_sync(durability))
        _buckets.add(self)

    @property
    def address(self) -> str:
        return self._store.url

    @property
    def uuid(self) -> str:
        """Return what identifies this log, wherever it is copied."""
        return self._settings.uuid

    @property
    def archive_url(self) -> str | None:
        """Return where this log was archived to last; None if it never was."""
        return self._catalogue.archive_url()

    def remember_archive(self, url: str) -> None:
        """Store where this log is archived to, durably."""
        self._catalogue.remember_archive(url)

    # Topics

    def describe(self, topic: str) -> TopicInfo:
        """Describe a topic; lists its objects, for their number and bytes."""
        opened = self._topics.live(topic)
        described = self._catalogue.find(topic)
        return TopicInfo(
            name=described.name,
            uuid=described.uuid,
            settings=msgspec.to_builtins(described.settings),
            partitions=[partition_info(log) for log in opened.logs],
        )

    def delete(self, topic: str) -> None:
        self.check_open()
        there = self._catalogue.find(topic)
        opened = self._topics.get(topic)
        if opened.topic.uuid != there.uuid:
            self._topics.forget(opened)
            opened = self._topics.get(topic)
        # Closed before the name is free: else a program that still has the topic open could append to one that is gone,
        # and take that as durable. A death in between leaves a topic that can only be deleted.
        for log in opened.logs:
            with contextlib.suppress(NotFound):  # it is closed already
                log.finish()
        self._topics.forget(opened)
        self._catalogue.remove(opened.topic)
        for log in opened.logs:
            log.close()

    # Appending

    def append_later(self, request: Append) -> ObjectAppend:
        opened = self._open.get(request.topic) or self._topics.for_append(request.topic)
        log = opened.choose(request.key, request.partition, request.producer)
        data, limits = request.data, log.place.limits
        given.check_size(len(data) if isinstance(data, bytes) else 0, limits)
        if not isinstance(data, bytes) or len(data) > limits.blob_bytes_min:
            raise Invalid("a huge event cannot be appended in the background", hint="use store.append(…)")
        return ObjectAppend(log, log.append_later(self.rows(request, data)))

    def flush(self) -> None:
        self.check_open()
        self._flush()

    def transaction(self, sync: bool | None, producer: Producer | None) -> Transaction:  # noqa: ARG002
        """Begin a transaction; it is durable whatever `sync` says."""
        self.check_open()
        return Transaction(BucketCommitter(self, sync=True, producer=producer))

    # Keeping

    def seal(self, topic: str) -> int:
        """Make segments of all that was appended, whether it is worth it or not; returns how many."""
        return self._keeper.seal(self._topics.live(topic).logs)

    def retain(
        self,
        topic: str,
        before: int | datetime | None,
        partition: int | None,
        dry_run: bool,
        changes: Retention,
    ) -> list[DeletedSegment]:
        logs = self._topics.live_logs(topic, partition)
        return self._keeper.retain(logs, changes=changes, before=before, dry_run=dry_run)

    def maintain(self, topic: str | None = None) -> MaintenanceResult:
        """Compact, trim and collect a topic, or all of them, once; returns what was done.

        Programs that append do this by themselves, now and then; for a bucket that is no longer appended to, or
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

    # Ending

    def close(self) -> None:
        """Append what waits, stop followers, and release everything. May be called twice. Raises as `flush`."""
        for member in list(self.members):
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
        for member in list(self.members):
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
        """Return the threads that fetch."""
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


def partition_info(log: ObjectLog) -> PartitionInfo:
    """Return one partition, as `describe` has it."""
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
