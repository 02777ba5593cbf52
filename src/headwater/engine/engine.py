"""The verbs on a log directory. `Engine` is what `headwater.open("data")` returns; safe from any thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Self, Unpack
from weakref import WeakSet

import msgspec

from headwater.engine import checking, dead, reading, waiting
from headwater.engine.catalogue import Catalogue, with_retention
from headwater.engine.checking import CheckReport, Progress
from headwater.engine.consumer import Consumer, Kept, place
from headwater.engine.consumers import Consumers
from headwater.engine.follow import Follow
from headwater.engine.info import partition_info
from headwater.engine.replica.marker import Marker
from headwater.engine.replica.source import LocalSource
from headwater.engine.retaining import Keeper
from headwater.engine.serving import Serving, wants_sync
from headwater.engine.topics import OpenTopic
from headwater.engine.transaction import Transaction
from headwater.engine.transfer.exporting import Progress as TransferProgress
from headwater.engine.transfer.files import Target
from headwater.engine.transfer.transfer import Transfer
from headwater.errors import HeadwaterError, Invalid, NotFound, Unavailable
from headwater.event import At, Content, Durability, Event, Ref, Refs, Run
from headwater.format import arrow, events, given
from headwater.format.events import EventBatch
from headwater.format.given import Data, Meta, Version
from headwater.format.journal import Entry
from headwater.format.producers import Producer
from headwater.format.settings import Replica, Retention, TopicSettings
from headwater.info import ConsumerInfo, Deleted, TopicInfo
from headwater.limits import DEFAULTS, Limits
from headwater.storage.disk import Clock, Disk
from headwater.storage.journal import Journal, restore
from headwater.storage.log import LocalLog
from headwater.storage.place import Place
from headwater.storage.repair import Action
from headwater.storage.rows import Rows
from headwater.storage.sealer import Sealer, seal_all
from headwater.storage.upload import Upload

if TYPE_CHECKING:
    import pyarrow as pa

_engines: WeakSet[Engine] = WeakSet()  # which must begin anew in a forked child

LEASE_MS_MIN = 50  # below, a stall of the machine would take every lease away


class Engine(Serving):
    """An open log directory. Close it, or use it in a `with` statement."""

    def __init__(
        self,
        path: Path,
        *,
        create: bool = True,
        durability: Durability = "fsync",
        limits: Limits = DEFAULTS,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        sync = wants_sync(durability)
        disk, clock = disk or Disk(), clock or Clock()
        catalogue = Catalogue(path, disk, clock, limits)
        if create:
            catalogue.init()
        self._store = catalogue.open()
        self._marker = Marker(path, disk, clock)
        self._guard = self._marker.refuse if self._marker.follows() else None  # only a replica needs to look again
        catalogue.guard = self._guard
        super().__init__(catalogue, limits, disk, clock, self._new_log, sync=sync)
        self._consumers = Consumers(path, self._disk, self._clock, limits, partial(restore, path / "journal"))
        follows = (lambda: False) if self._guard is None else self._marker.follows
        self._keeper = Keeper(self._catalogue, self._consumers.slowest, follows)
        self._sealer = Sealer(self._keeper.rolled)
        self._members: WeakSet[Consumer] = WeakSet()  # which end with this object
        self._closing = threading.Lock()  # protects `_closed`
        self._journal = Journal(path / "journal", self._disk, self._checkpoint)
        self._transfer = Transfer(self, limits, self._disk)
        _engines.add(self)
        self._journal.finish_abandoned()

    @property
    def path(self) -> Path:
        """The directory."""
        return self._catalogue.path

    @property
    def uuid(self) -> str:
        """What identifies this log directory, wherever it is moved."""
        return self._store.uuid

    def replication(self) -> LocalSource:
        """What a replica asks this directory."""
        return LocalSource(self)

    @property
    def replica(self) -> Replica | None:
        """What it is a replica of, also once it was promoted; None if it never was one."""
        return self._marker.read()

    # Topics

    def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        segment_bytes: int = 0,
        segment_age_ms: int = 0,
        data_bytes_max: int = 0,
        compression: Literal["none", "zstd"] = "none",
        **retention: Unpack[Retention],
    ) -> bool:
        """Make a topic, durably. True if it is new, False if it is there; Invalid if it has other partitions.

        Settings that are 0 follow the limits of whoever opens the log. What each partition keeps: see `retain`.
        """
        self.check_open()
        chosen = TopicSettings(
            segment_bytes=segment_bytes,
            segment_age_ms=segment_age_ms,
            data_bytes_max=data_bytes_max,
            compression=compression,
        )
        return self._catalogue.create(topic, partitions, with_retention(chosen, retention))

    def topics(self) -> list[str]:
        """The names of all topics, sorted; empty if there are none."""
        self.check_open()
        return self._catalogue.list()

    def describe(self, topic: str) -> TopicInfo:
        """What a topic is and holds; raises NotFound."""
        opened = self._topics.live(topic)
        described = self._catalogue.find(topic)  # another process may have changed what it keeps
        partitions = [partition_info(log) for log in opened.logs]
        return TopicInfo(
            name=described.name,
            uuid=described.uuid,
            settings=msgspec.to_builtins(described.settings),
            partitions=partitions,
        )

    def settings_of(self, topic: str) -> TopicSettings:
        """What a topic was made with, and keeps, as any process may have changed it; raises NotFound."""
        return self._catalogue.find(topic).settings

    def delete(self, topic: str) -> None:
        """Delete a topic and all its events, for every process; raises NotFound. Made again, it starts afresh."""
        opened = self._topics.live(topic)
        if self._guard is not None:
            self._guard()
        self._delete(opened)

    def _delete(self, opened: OpenTopic) -> None:
        with ExitStack() as stack:
            for log in opened.logs:  # in the order of partitions, as everybody who locks several
                stack.enter_context(log.deleting())
            try:
                self._catalogue.remove(opened.topic)
            except OSError as error:
                raise Unavailable(f"topic {opened.topic.name!r} cannot be deleted: {error.strerror}") from error
        self._topics.forget(opened)
        for log in opened.logs:
            log.close()

    # Appending

    def append(
        self,
        topic: str,
        data: Data | IO[bytes] | Iterator[bytes],
        *,
        type: str = "",
        key: bytes | str | None = None,
        meta: Meta | None = None,
        content: Content | None = None,
        durability: Durability | None = None,
        partition: int | None = None,
        expected_version: Version | None = None,
        producer: Producer | tuple[str, int, int] | None = None,
    ) -> Ref:
        """Append one event; returns where it is once it is durable. Makes the topic if it is not there.

        `expected_version` is the offset of the key's last event, or "none": Conflict tells the `version` if another one
        is found. `producer` is (id, epoch, seq): the same seq again returns the first answer; see docs/TRANSACTIONS.md.

        `data` may be bytes, text (str), JSON (dict or list), or, for huge events, an open binary file or an iterator of
        bytes, which is streamed with bounded memory. Appends of several threads that wait together share one sync.
        """
        opened = self._open.get(topic) or self._topics.for_append(topic)
        sync = self._sync if durability is None else wants_sync(durability)
        if content is not None:
            given.check_content(content)
        encoded_type = given.encode_type(type) if type else b""
        encoded_key = given.encode_key(key, self._limits) if key is not None else None
        encoded_meta = given.encode_meta(meta, self._limits) if meta else None
        guard = None
        if expected_version is not None or producer is not None:
            guard = (
                given.check_version(expected_version, encoded_key),
                given.check_producer(producer, self._limits),
            )
        if partition is None and opened.only:
            log = opened.only
        else:
            log = opened.choose(encoded_key, partition, guard and guard[1])
        values = encoded_type, encoded_key, encoded_meta
        if data.__class__ is not bytes and given.is_stream(data):
            log = self._topics.living(opened, log)
            pieces = given.pieces(data)  # type: ignore[arg-type]  # it is a stream
            rows = _take_all(log.upload(content or "bytes", *values, sync=sync, guard=guard), pieces)
        else:
            if data.__class__ is bytes:
                encoded, content = data, content or "bytes"
            else:
                encoded, content = given.encode_data(data, content)  # type: ignore[arg-type]  # not a stream
            limits = log.place.limits
            if len(encoded) > limits.data_bytes_max:
                given.check_size(len(encoded), limits)
            if len(encoded) > limits.blob_bytes_min:
                log = self._topics.living(opened, log)
                rows = _take_all(log.upload(content, *values, sync=sync, guard=guard), (encoded,))
            else:
                rows = Rows.one(content, sync, encoded, *values)
                if guard is not None:
                    rows.guard(*guard)
                log = self._topics.commit(opened, log, rows)
        return Ref(topic, log.place.partition, rows.offset, rows.ticks, log.node, "fsync" if sync else "os")

    def append_many(
        self,
        topic: str,
        data: Sequence[Data],
        *,
        types: Sequence[str] | str = "",
        keys: Sequence[bytes | str | None] | None = None,
        metas: Sequence[Meta | None] | None = None,
        content: Content | None = None,
        durability: Durability | None = None,
        partition: int | None = None,
        expected_version: Version | None = None,
        producer: Producer | tuple[str, int, int] | None = None,
    ) -> Refs:
        """Append many events: all or nothing in each partition. Above a limit: TooLarge, and nothing is appended.

        Without keys, all go to one partition. The references are in the order of `data`; none if that is empty.
        `expected_version` is for events that share one key. `producer` is as in `append`, in each partition.
        """
        opened = self._open.get(topic) or self._topics.for_append(topic)
        sync = self._sync if durability is None else wants_sync(durability)
        reached: Durability = "fsync" if sync else "os"
        given.check_content(content)
        if not len(data):
            return Refs(topic, reached, ())
        limits = opened.logs[0].place.limits
        content, columns, encoded_keys = given.encode_many(data, content, types, keys, metas, limits)
        parts = self._many(
            opened, content, columns, len(data), sync, partition, encoded_keys, expected_version, producer
        )
        for part in parts:
            part.log = self._topics.commit(opened, part.log, part.rows)
        return waiting.refs(topic, parts)

    def append_arrow(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch,
        *,
        content: Content | None = None,
        durability: Durability | None = None,
        partition: int | None = None,
    ) -> Refs:
        """Append the rows of an Arrow table with the columns `data` and, if there are, `key`, `type`, `meta`.

        It is split into batches as needed: what was appended before an error stays. References are grouped by batch.
        """
        opened = self._open.get(topic) or self._topics.for_append(topic)
        sync = self._sync if durability is None else wants_sync(durability)
        given.check_content(content)
        runs: list[Run] = []
        logs: dict[int, LocalLog] = {}
        for batch in arrow.split(table, self._limits.pack_events):
            parts = []
            for chosen, part in opened.spread_arrow(batch, partition):
                batch_content, columns = arrow.columns_of(part, content)
                given.check_columns(columns, chosen.place.limits)
                parts.append((chosen, Rows.many(batch_content, False, columns, part.num_rows)))
            for chosen, rows in parts:  # when all of them are checked
                log = logs[chosen.place.partition] = self._topics.commit(opened, chosen, rows)
                runs.append(Run(log.place.partition, log.node, rows.offset, rows.ticks, rows.count))
        if sync:
            for number in sorted(logs):
                logs[number].sync()
        return Refs(topic, "fsync" if sync else "os", runs)

    def transaction(
        self, *, durability: Durability | None = None, producer: Producer | tuple[str, int, int] | None = None
    ) -> Transaction:
        """Appends to any topics, and acks, all or nothing: `with hw.transaction() as tx: tx.append(…)`.

        Committed when the block ends, and discarded if it raises. Over several partitions it is always durable.
        `producer` is (id, epoch, seq): the same appends under the same seq again are done once, and have the first
        answer; see docs/TRANSACTIONS.md.
        """
        self.check_open()
        sync = self._sync if durability is None else wants_sync(durability)
        told = given.check_producer(producer, self._limits)
        return Transaction(self, self._journal, sync=sync, producer=told)

    def sync(self, topic: str) -> None:
        """Make all events of a topic durable that were appended with durability `os`."""
        for log in self._topics.live(topic).logs:
            log.sync()

    # Reading

    def read(
        self,
        topic: str,
        *,
        start: At = "earliest",
        end: At = "latest",
        partition: int | None = None,
        type: str | None = None,
        key: bytes | str | None = None,
        match: Mapping[str, Any] | None = None,
        reverse: bool = False,
    ) -> Iterator[Event]:
        """The events from `start` to before `end`, up to what is there now; with several partitions, in order of time.

        `type` is an RE2 pattern over the whole type; `match` asks for fields of JSON and BSON data (docs/MATCH.md).
        Raises NotFound for a missing topic, Invalid for a bad pattern or match, Corrupt on damage.
        """
        logs = self._topics.live(topic).chosen(partition)
        return reading.read_events(logs, start, end, self._selection(type, key, match), reverse=reverse)

    def read_batches(
        self,
        topic: str,
        *,
        start: At = "earliest",
        end: At = "latest",
        partition: int | None = None,
        type: str | None = None,
        key: bytes | str | None = None,
        match: Mapping[str, Any] | None = None,
        reverse: bool = False,
    ) -> Iterator[EventBatch]:
        """Like `read`, batch by batch, partition after partition. In reverse, the last batch comes first."""
        logs = self._topics.live(topic).chosen(partition)
        return reading.read_batches(logs, start, end, self._selection(type, key, match), reverse=reverse)

    def read_arrow(
        self,
        topic: str,
        *,
        columns: Sequence[str] | None = None,
        start: At = "earliest",
        end: At = "latest",
        partition: int | None = None,
        type: str | None = None,
        key: bytes | str | None = None,
        match: Mapping[str, Any] | None = None,
    ) -> pa.Table:
        """Like `read_batches`, as one Arrow table that points into the log's files; empty if there is nothing."""
        found = self.read_batches(topic, start=start, end=end, partition=partition, type=type, key=key, match=match)
        return events.table(found, columns)

    def version(self, topic: str, key: bytes | str, *, partition: int | None = None) -> int | None:
        """The offset of the key's last event; None if there is none. With several partitions, of the key's own one."""
        opened = self._topics.live(topic)
        encoded = given.encode_key(key, self._limits)
        if encoded is None:
            raise Invalid("events without a key have no version", hint="give a key; the empty one is one too")
        return opened.choose(encoded, partition).version(encoded)

    def follow(
        self,
        topic: str,
        *,
        start: At = "latest",
        timeout: float | None = None,
        partition: int | None = None,
        type: str | None = None,
        key: bytes | str | None = None,
        match: Mapping[str, Any] | None = None,
    ) -> Follow:
        """The events from `start` on, then those that come, from any process, until `timeout` seconds bring none."""
        logs = self._topics.live(topic).chosen(partition)
        selection = self._selection(type, key, match)
        return Follow(logs, start, selection, timeout, self._disk, self._clock, lambda: self._closed)

    # Consumers

    def consumer(
        self,
        name: str,
        topic: str,
        *,
        start: At = "earliest",
        type: str | None = None,
        key: bytes | str | None = None,
        match: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        lease_ms: int | None = None,
        failures_max: int | None = None,
        kept: Kept | None = None,
    ) -> Consumer:
        """Join a named consumer of a topic, whose cursors are durable and shared by all members, in any process.

        `start` is where a new consumer begins; one that is there goes on. What `type`, `key` and `match` do not want is
        passed over. Iterating ends when `timeout` seconds bring none. Raises NotFound for a missing topic.
        With `kept`, the truth about its cursors is elsewhere, and those stored here only follow.
        """
        opened = self._topics.live(topic)
        changes = {"lease_ms": lease_ms, "failures_max": failures_max}
        chosen = {name: value for name, value in changes.items() if value is not None}
        limits = msgspec.structs.replace(self._limits, **chosen)
        if limits.lease_ms < LEASE_MS_MIN or limits.failures_max < 1:
            raise Invalid(f"a lease has at least {LEASE_MS_MIN} ms, and an event may fail at least once")
        selection = self._selection(type, key, match)
        reading.check_id(opened.logs, start)
        cursors = self._consumers.find_or_make(
            name, opened.topic, lambda: [place(log, start, len(opened.logs)) for log in opened.logs]
        )
        aside = partial(dead.set_aside, self) if kept is None else kept.set_aside
        place_of = None if kept is None else kept.cursor
        own = self._disk, self._clock
        member = Consumer(name, opened.logs, cursors, selection, limits, *own, aside, timeout, place_of)
        self._members.add(member)
        return member

    def consumers(self, topic: str | None = None) -> list[ConsumerInfo]:
        """Where each consumer of a topic, or of all, is in each partition, and who reads there; empty if none."""
        opened = [self._topics.live(name) for name in ([topic] if topic is not None else self.topics())]
        return [info for each in opened for info in self._consumers.infos(each.topic, each.logs)]

    def seek(self, consumer: str, topic: str, at: At, *, partition: int | None = None) -> dict[int, int]:
        """Move a consumer to another place, durably, in one partition or all; returns its new cursors.

        Members that hold these partitions lose them: late acks raise Fenced, and they go on at the new place.
        """
        opened = self._topics.live(topic)
        logs = opened.chosen(partition)
        reading.check_id(logs, at)
        self._consumers.find(consumer, opened.topic)
        cursors = {log.place.partition: place(log, at, len(logs)) for log in logs}
        self._consumers.seek(consumer, opened.topic, cursors)
        for log in logs:
            log.stop_followers()  # whoever sleeps there looks around
        return cursors

    def forget(self, consumer: str, topic: str) -> None:
        """Delete a consumer of a topic, durably; raises NotFound. Its members stop; joined again, it is new."""
        self.check_open()
        self._consumers.forget(consumer, topic)

    def replay(self, topic: str, *, consumer: str | None = None) -> int:
        """Append what was set aside in `<topic>.dead` to the topic again, each event once; returns how many.

        With `consumer`, only what that one could not handle; the rest is then passed over.
        """
        return dead.replay(self, topic, consumer)

    # Importing and exporting, as docs/TRANSFER.md tells

    def export(
        self,
        topic: str | Sequence[str],
        target: Target,
        *,
        format: str | None = None,
        progress: TransferProgress | None = None,
        **filters: Any,
    ) -> int:
        """Write the events of a topic to a file, or to an open binary one; returns how many. Changes nothing here.

        `format` is `jsonl`, `arrow`, `arrows` (a stream), `parquet` or `puro`, by the suffix unless it is said; the
        first and the last can hold several topics. `filters` are those of `read_batches`. A path gets its file when
        that is whole and durable, in place of what was there. Raises TooLarge for an event that the format cannot hold.
        """
        return self._transfer.export(topic, target, format, progress, filters)

    def import_(
        self,
        topic: str | None,
        source: Target,
        *,
        format: str | None = None,
        only: str | None = None,
        content: Content | None = None,
        partition: int | None = None,
        skip: int = 0,
        keep_times: bool = False,
        data_column: str | None = None,
        key_column: str | None = None,
        type_column: str | None = None,
        progress: TransferProgress | None = None,
    ) -> int:
        """Append the events of a file to a topic, or with None each to the topic that it names; returns how many.

        All are durable when it returns. When it fails, what came before stays, durable too, and the error's `imported`
        says how many those are, its `skip` with which number to go on. Offsets and times are new; `keep_times` notes
        the old ones in meta. `only` takes the events which the file says are of one topic; `content` says what the
        data is where the file does not. Raises Corrupt for a damaged file, Invalid for what is no event.
        """
        return self._transfer.import_(
            topic,
            source,
            format,
            only=only,
            content=content,
            partition=partition,
            skip=skip,
            keep_times=keep_times,
            columns=(data_column, key_column, type_column),
            progress=progress,
        )

    # Keeping

    def seal(self, topic: str) -> int:
        """Finish the active segments of a topic, pack and index all that is finished; returns how many were sealed."""
        logs = self._topics.live(topic).logs
        for log in logs:
            log.roll(tell=False)
        return sum(seal_all(log.place) for log in logs)

    def retain(
        self,
        topic: str,
        *,
        before: int | datetime | None = None,
        partition: int | None = None,
        dry_run: bool = False,
        **changes: Unpack[Retention],
    ) -> list[Deleted]:
        """Delete the oldest segments that need not be kept; returns them. `dry_run` only tells which.

        `changes` change what the topic keeps, durably and for every process from its next roll on; each bound is for
        one partition, and 0 takes it away. `before` also deletes what ends before an offset or a time, once. The active
        segment stays, unless all its events are older than `retention_age_ms`. Without `dry_run`, what is returned is
        gone durably: a read of it raises NotFound with the code `offset_gone` and the `oldest` offset.
        """
        logs = self._topics.live(topic).chosen(partition)
        if self._guard is not None and not dry_run:
            self._guard()
        return self._keeper.retain(logs, changes=changes, before=before, dry_run=dry_run)

    def reindex(self, topic: str | None = None, progress: Progress | None = None) -> int:
        """Make the indexes of a topic, or of all, again from the segments; returns how many. They are never truth.

        `progress` is called with the bytes that are done, and all of them.
        """
        names = self.topics() if topic is None else [topic]
        return checking.reindex([log.place for name in names for log in self._topics.live(name).logs], progress)

    def check(self, topic: str | None = None, progress: Progress | None = None) -> CheckReport:
        """Verify every checksum and invariant of a topic, or of all; changes nothing.

        `progress` is called with the bytes that are done, and all of them.
        """
        self.check_open()
        return checking.check(self._catalogue, self._journal, topic, progress)

    def repair(self, topic: str | None = None, *, apply: bool = False) -> list[Action]:
        """What would mend a topic, or all; done only with `apply`. What is cut is kept beside the log."""
        self.check_open()
        if not apply:
            return checking.plan(self._catalogue, topic)
        done, names = checking.hopeless(self._catalogue, topic)
        return done + [action for name in names for log in self._topics.get(name).logs for action in log.repair()]

    @property
    def limits(self) -> Limits:
        """What it accepts."""
        return self._limits

    def topic_for(self, topic: str) -> OpenTopic:
        """The topic as it is now, for a transaction; made if it is not there."""
        opened = self._open.get(topic) or self._topics.for_append(topic)
        try:
            opened.logs[0].state()
        except NotFound:  # another process deleted it
            self._topics.forget(opened)
            opened = self._topics.for_append(topic)
        return opened

    def holder(self, event: Event) -> Consumer:
        """The consumer of this engine that handed out an event."""
        found = [member for member in list(self._members) if member.holds(event)]
        if len(found) != 1:
            told = "several consumers hold" if found else "no consumer of this engine holds"
            raise Invalid(
                f"{told} offset {event.offset} of topic {event.topic!r}, partition {event.partition}",
                hint="say which one: tx.ack(event, consumer=…)" if found else "was it taken over meanwhile?",
                code="no_holder",
            )
        return found[0]

    def after_fork(self) -> None:
        """In a forked child, where it is called by itself: begin anew, with descriptors and locks of its own."""
        self._closing = threading.Lock()
        self._journal.after_fork()
        self._sealer = Sealer(self._keeper.rolled)
        for member in list(self._members):
            member.after_fork()
        self._topics.after_fork()

    def close(self) -> None:
        """Stop followers and sealing, wait for appends under way, and let go of all files. May be called twice."""
        for member in list(self._members):
            member.close()
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._sealer.close()
        self._journal.close()
        self._topics.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _new_log(self, place: Place) -> LocalLog:
        return LocalLog(place, self._rolled, self._keeper.may_roll, self._damaged, self._guard)

    def _rolled(self, place: Place) -> None:
        self._sealer.rolled(place)

    def _damaged(self, place: Place, base: int) -> None:
        self._sealer.damaged(place, base)

    def _checkpoint(self, entries: list[Entry]) -> None:
        """Make durable in their own places what transactions have brought. What is deleted needs no more.

        Raises what the last log raised that could not, after all were tried.
        """
        failed: HeadwaterError | None = None
        for topic, partition, uuid in sorted({(s.topic, s.partition, s.uuid) for e in entries for s in e.shares}):
            try:
                opened = self._topics.known(topic)
                if partition < len(opened.logs) and opened.logs[partition].place.uuid.hex() == uuid:
                    opened.logs[partition].sync()
            except NotFound:
                pass
            except HeadwaterError as error:
                failed = error
        for path in sorted({move.path for entry in entries for move in entry.moves}):
            self._consumers.settle(path)
        if failed is not None:
            raise failed


def _after_fork() -> None:
    for engine in list(_engines):
        engine.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _take_all(upload: Upload, pieces: Iterable[bytes]) -> Rows:
    try:
        for piece in pieces:
            upload.write(piece)
        return upload.commit()
    finally:
        upload.discard()
