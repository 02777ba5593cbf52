"""The verbs that are the same wherever a log is kept. Safe from any thread.

`Engine`, a directory, and `Bucket`, an object store, add what is their own: transactions, retention, checks.
"""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, Self, Unpack
from weakref import WeakSet

from headwater.engine import dead, draining, reading, splitting, waiting
from headwater.engine.appends import Transaction
from headwater.engine.consumer import Consumer, ExternalCursors, place, places
from headwater.engine.consumers import Consumers, consumer_limits
from headwater.engine.follow import Follow
from headwater.engine.leases import Leases
from headwater.engine.log import EventUpload, L
from headwater.engine.rules import with_retention
from headwater.engine.serving import ServedTopics
from headwater.engine.topics import Catalog, OpenTopic
from headwater.engine.transfer.exporting import Progress as TransferProgress
from headwater.engine.transfer.files import Target
from headwater.engine.transfer.puro import Report as TransferReport
from headwater.engine.transfer.transfer import Transfer
from headwater.errors import Corrupt, Invalid, NotFound, Unsupported, enough_memory, out_of_memory, within_memory
from headwater.event import At, Content, Durability, Event, Ref, Refs, Run
from headwater.format import arrow, events, given
from headwater.format.column import Column
from headwater.format.events import EventBatch
from headwater.format.given import Data, Meta, Version
from headwater.format.producers import Producer
from headwater.format.puro_blocks import PuroVariant
from headwater.format.settings import Retention, TopicRecord, TopicSettings
from headwater.info import ConsumerInfo, DrainResult, Split, TopicInfo
from headwater.limits import SPLIT_BYTES, Limits
from headwater.match.selection import Selection
from headwater.position import Positions
from headwater.requests import Append, AppendMany, FilterOptions, Read, ReadOptions, checked_batches, wants_sync
from headwater.storage.disk import Clock, Disk
from headwater.storage.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa


class TopicCatalog(Catalog, Protocol):
    """Which topics there are, all of them."""

    def list(self) -> builtins.list[str]:
        """Their names, sorted; empty if there are none."""


@within_memory("append", "submit")
class Verbs(ServedTopics[L]):
    """An open log. Close it, or use it in a `with` statement."""

    _catalogue: TopicCatalog
    _consumers: Consumers

    def __init__(self, name: str, limits: Limits, disk: Disk, clock: Clock, *, sync: bool) -> None:
        """Whoever inherits from it has set `_catalogue` and `_consumers`. The rest is as `ServedTopics` tells."""
        super().__init__(name, self._catalogue, limits, disk, clock, self._new_log, sync=sync)
        self._members: WeakSet[Consumer] = WeakSet()  # which end with this object
        self._transfer = Transfer(self, limits, disk)

    @abstractmethod
    def _new_log(self, topic: TopicRecord, partition: int) -> L:
        """Open one partition of a topic."""

    @abstractmethod
    def transaction(
        self, *, durability: Durability | None = None, producer: Producer | tuple[str, int, int] | None = None
    ) -> Transaction[L]:
        """Appends that are there together or not at all."""

    @abstractmethod
    def close(self) -> None:
        """Stop followers, wait for appends under way, and let go of everything. May be called twice."""

    @abstractmethod
    def describe(self, topic: str) -> TopicInfo:
        """What a topic is and holds; raises NotFound."""

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
        bytes, which is streamed with bounded memory; JSON and BSON are held as a whole, as they are checked. Appends of
        several threads that wait together share one sync.

        Raises Invalid for data that is not what `content` says: `json`, `text` (UTF-8), `bson`; `bytes` takes anything.
        """
        try:
            request = Append.of(
                topic,
                data,
                self._limits,
                type=type,
                key=key,
                meta=meta,
                content=content,
                durability=durability,
                partition=partition,
                expected_version=expected_version,
                producer=producer,
            )
            return self.submit(request)
        except MemoryError as error:
            raise out_of_memory("append failed") from error

    def submit(self, request: Append) -> Ref:
        """Append one event, as `append` does."""
        opened = self._open.get(request.topic) or self._topics.for_append(request.topic)
        partition, producer, data = request.partition, request.producer, request.data
        log = opened.only if partition is None and opened.only else opened.choose(request.key, partition, producer)
        if not isinstance(data, bytes):
            log = self._topics.living(opened, log)
            content = None if request.as_stored else request.content
            pieces = given.checked_pieces(data, content, log.place.limits)
            rows = _take_all(self._upload(log, request), pieces)
        else:
            limits = log.place.limits
            if len(data) > limits.data_bytes_max:
                given.check_size(len(data), limits)
            if len(data) > limits.blob_bytes_min:
                log = self._topics.living(opened, log)
                rows = _take_all(self._upload(log, request), (data,))
            else:
                rows = self._rows(request, data)
                log = self._topics.commit(opened, log, rows)
        place = log.place
        return Ref(place.topic, place.partition, rows.offset, rows.ticks, log.node, "fsync" if rows.sync else "os")

    @enough_memory("the events cannot be appended")
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
        Data that is not what `content` says raises Invalid, whose `index` names the first such event.
        `expected_version` is for events that share one key. `producer` is as in `append`, in each partition.
        """
        given.check_content(content)
        if not len(data):
            self._topics.for_append(topic)
            return Refs(topic, "fsync" if self._wants_sync(durability) else "os", ())
        content, columns, encoded_keys = given.encode_many(data, content, types, keys, metas, self._limits)
        request = AppendMany.of(
            topic,
            content,
            columns,
            len(data),
            self._limits,
            keys=encoded_keys,
            durability=durability,
            partition=partition,
            expected_version=expected_version,
            producer=producer,
            checked=True,
        )
        return self.submit_many(request)

    def submit_many(self, request: AppendMany) -> Refs:
        """Append many events, as `append_many` does."""
        opened = self._open.get(request.topic) or self._topics.for_append(request.topic)
        parts = waiting.many(opened, request, sync=self._sync if request.sync is None else request.sync)
        for part in parts:
            part.log = self._topics.commit(opened, opened.logs[part.log.partition], part.rows)
        return waiting.refs(request.topic, parts)

    @enough_memory("the table cannot be appended")
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
        Data that is not what `content` says raises Invalid, whose `index` names the first such row.
        """
        opened = self._open.get(topic) or self._topics.for_append(topic)
        sync = self._wants_sync(durability)
        given.check_content(content)
        runs: list[Run] = []
        logs: dict[int, L] = {}
        for batch in checked_batches(table, content, self._limits.pack_events):
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

    def append_columns(
        self,
        topic: str,
        content: Content,
        columns: dict[int, Column | None],
        count: int,
        *,
        durability: Durability | None = None,
        partition: int | None = None,
        producer: Producer | tuple[str, int, int] | None = None,
        checked: bool = False,
    ) -> Refs:
        """Like `append_many`, of events that are the columns of a batch already (format/batch.py), by their kind.

        The topic must be there, else NotFound. `checked` says that the data is known to be what its content says.
        """
        request = AppendMany.of(
            topic,
            content,
            columns,
            count,
            self._limits,
            durability=durability,
            partition=partition,
            producer=producer,
            checked=checked,
        )
        parts = self.prepare_many(request)
        self.commit(parts)
        return waiting.refs(topic, parts)

    def sync(self, topic: str) -> None:
        """Make all events of a topic durable that were appended with durability `os`."""
        for log in self._topics.live(topic).logs:
            log.sync()

    # Reading

    def read(
        self,
        topic: str,
        *,
        start: Positions = "earliest",
        end: Positions = "latest",
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
        request = Read.of(
            topic,
            self._limits,
            start=start,
            end=end,
            partition=partition,
            type=type,
            key=key,
            match=match,
            reverse=reverse,
        )
        logs = self._topics.live_logs(topic, partition)
        return reading.read_events(logs, request, Selection(request.type, request.key, request.match))

    def read_batches(self, topic: str, **options: Unpack[ReadOptions]) -> Iterator[EventBatch]:
        """Return the events batch by batch, partition after partition, with the options of `read`.

        In reverse, the last batch comes first.
        """
        request = Read.of(topic, self._limits, **options)
        logs = self._topics.live_logs(topic, request.partition)
        return reading.read_batches(logs, request, Selection(request.type, request.key, request.match))

    @enough_memory("the events cannot be read as one table")
    def read_arrow(
        self, topic: str, *, columns: Sequence[str] | None = None, **options: Unpack[ReadOptions]
    ) -> pa.Table:
        """Return the events as one Arrow table that points into the log's files; empty if there is nothing.

        `columns` names those that are wanted; the other options are those of `read_batches`.
        """
        return events.table(self.read_batches(topic, **options), columns)

    def splits(
        self,
        topic: str,
        *,
        start: At | Sequence[int] = "earliest",
        end: At | Sequence[int] = "latest",
        partition: int | None = None,
        split_bytes: int = SPLIT_BYTES,
    ) -> list[Split]:
        """Parts of a topic for different workers to read, each about `split_bytes` large; empty if there is nothing.

        They are in order, partition after partition, cut between batches, and go from `start` to before `end`, at most
        to what is durable now. Both may be a list, too: an offset for each partition. No event is read for that.
        Raises NotFound for a missing topic, and for an offset that retention has deleted (`offset_gone`).
        """
        return splitting.splits(self._topics.live_logs(topic, partition), start, end, split_bytes)

    @enough_memory("the key cannot be looked for")
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
        **filters: Unpack[FilterOptions],
    ) -> Follow:
        """The events from `start` on, then those that come, from any process, until `timeout` seconds bring none."""
        logs = self._topics.live_logs(topic, partition)
        selection = self._selection(**filters)
        return Follow(logs, start, selection, timeout, self._disk, self._clock, lambda: self._closed)

    # Consumers

    def consumer(
        self,
        name: str,
        topic: str,
        *,
        start: At = "earliest",
        timeout: float | None = None,
        lease_ms: int | None = None,
        failures_max: int | None = None,
        kept: ExternalCursors | None = None,
        **filters: Unpack[FilterOptions],
    ) -> Consumer:
        """Join a named consumer of a topic, whose cursors are durable and shared by all members, in any process.

        `start` is where a new consumer begins; one that is there goes on. What `type`, `key` and `match` do not want is
        passed over. Iterating ends when `timeout` seconds bring none. Raises NotFound for a missing topic.
        With `kept`, the truth about its cursors is elsewhere, and those stored here only follow.
        """
        opened = self._topics.live(topic)
        limits = consumer_limits(self._limits, lease_ms, failures_max)
        selection = self._selection(**filters)
        leases = self._leases(name, opened, limits, start)
        return self._joined(name, opened, selection, limits, leases, timeout, kept)

    def drain(
        self,
        consumer: str,
        topic: str,
        handler: Callable[[Event], object],
        *,
        seconds: float | None = None,
        partitions: Iterable[int] | None = None,
        start: At = "earliest",
        lease_ms: int | None = None,
        failures_max: int | None = None,
        **filters: Unpack[FilterOptions],
    ) -> DrainResult:
        """Hand what waits for a consumer to `handler`, commit, give everything back, and tell whether more waits.

        For a function that is woken now and then. It takes the partitions that are free, or only those of `partitions`;
        those that others hold are left to them, and count as more while something waits there. What the handler returns
        from is acked, what it raises is a failure, as in `Consumer.drain`. It ends when it has caught up, or after
        `seconds`, between two events. All acks are durable when it returns. The rest is as in `consumer`.
        """
        opened = self._topics.live(topic)
        numbers = sorted({*partitions}) if partitions is not None else range(len(opened.logs))
        logs = [log for number in numbers for log in opened.chosen(number)]
        limits = consumer_limits(self._limits, lease_ms, failures_max)
        selection = self._selection(**filters)
        leases = self._leases(consumer, opened, limits, start, guest=())

        def join(leases: Leases) -> Consumer:
            return self._joined(consumer, opened, selection, limits, leases)

        return draining.drain(join, leases, logs, handler, seconds, self._clock)

    def consumers(self, topic: str | None = None) -> list[ConsumerInfo]:
        """Where each consumer of a topic, or of all, is in each partition, and who reads there; empty if none.

        What is damaged is among them, with the `error`: a consumer's file, or, without a name, a topic of several.
        """
        found: list[ConsumerInfo] = []
        for name in [topic] if topic is not None else self.topics():
            try:
                opened = self._topics.live(name)
                found += self._consumers.infos(opened.topic, opened.logs)
            except NotFound:
                if topic is not None:  # else it was deleted meanwhile
                    raise
            except (Corrupt, Unsupported) as error:
                if topic is not None:
                    raise
                found.append(ConsumerInfo.damaged("", name, -1, error))
        return found

    def seek(self, consumer: str, topic: str, at: At, *, partition: int | None = None) -> dict[int, int]:
        """Move a consumer to another place, durably, in one partition or all; returns its new cursors.

        Members that hold these partitions lose them: late acks raise Fenced, and they go on at the new place.
        """
        opened = self._topics.live(topic)
        logs = opened.chosen(partition)
        reading.check_id(logs, at)
        self._consumers.check(consumer, opened.topic)
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

    def _wants_sync(self, durability: Durability | None) -> bool:
        return self._sync if durability is None else wants_sync(durability)

    def _leases(
        self, name: str, opened: OpenTopic[L], limits: Limits, start: At, guest: Sequence[int] | None = None
    ) -> Leases:
        """The part of a new member or guest of a consumer, which is made if it is new."""
        reading.check_id(opened.logs, start)
        return self._consumers.join(name, opened.topic, limits.lease_ms, partial(places, opened.logs, start), guest)

    def _joined(
        self,
        name: str,
        opened: OpenTopic[L],
        selection: Selection,
        limits: Limits,
        leases: Leases,
        timeout: float | None = None,
        kept: ExternalCursors | None = None,
    ) -> Consumer:
        aside = partial(dead.set_aside, self) if kept is None else kept.set_aside
        place_of = None if kept is None else kept.cursor
        own = self._disk, self._clock
        member = Consumer(name, opened.logs, leases, selection, limits, *own, aside, timeout, place_of)
        self._members.add(member)
        return member

    # Importing and exporting, as docs/TRANSFER.md tells

    def export(
        self,
        topic: str | Sequence[str],
        target: Target,
        *,
        format: str | None = None,
        puro_variant: PuroVariant | None = None,
        progress: TransferProgress | None = None,
        **filters: Any,
    ) -> int:
        """Write the events of a topic to a file, or to an open binary one; returns how many. Changes nothing here.

        `format` is `jsonl`, `arrow`, `arrows` (a stream), `parquet` or `puro`, by the suffix unless it is said; the
        first and the last can hold several topics. `filters` are those of `read_batches`. A path gets its file when
        that is whole and durable, in place of what was there. `puro_variant` is `messages` (the default), `blocks`,
        `sized-blocks` or `documented`. Raises TooLarge for an event that the format cannot hold.
        """
        return self._transfer.export(topic, target, format, puro_variant, progress, filters)

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
        report: TransferReport | None = None,
    ) -> int:
        """Append the events of a file to a topic, or with None each to the topic that it names; returns how many.

        All are durable when it returns. When it fails, what came before stays, durable too, and the error's `imported`
        says how many those are, its `skip` with which number to go on. Offsets and times are new; `keep_times` notes
        the old ones in meta. `only` takes the events which the file says are of one topic; `content` says what the
        data is where the file does not. `report` is called once with a `PuroFile`, the summary of a Puro file,
        after all of it was read. Raises Corrupt for a damaged file, Invalid for what is no event.
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
            report=report,
        )

    # For transactions and consumers

    @property
    def limits(self) -> Limits:
        """What it accepts."""
        return self._limits

    def topic_for(self, topic: str) -> OpenTopic[L]:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@enough_memory("a huge event cannot be appended")
def _take_all(upload: EventUpload, pieces: Iterable[bytes]) -> Rows:
    try:
        for piece in pieces:
            upload.write(piece)
        return upload.commit()
    finally:
        upload.discard()
