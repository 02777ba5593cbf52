"""`Store`: every verb, declared, typed and documented once, wherever the data is. Safe from any thread.

A verb makes a request of its arguments (`requests.py`), which checks them, and hands it to the backend: a directory, a
bucket or a server. `headwater.open` puts a store together (`opening.py`). What a backend lacks raises Unsupported here,
from the backend's own list.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, Self, Unpack, cast
from weakref import WeakSet

from msgspec import structs

from headwater.backend import Backend, ConsumerVerbs, QueryVerbs, ViewVerbs
from headwater.consumers.draining import drain
from headwater.directory.directory import Directory
from headwater.directory.repair import Action
from headwater.disk.disk import Disk
from headwater.errors import Closed, HeadwaterError, Invalid, Unsupported, enough_memory, out_of_memory, within_memory
from headwater.event import Content, Durability, Event, Ref, Refs, Run
from headwater.format import arrow, events, given
from headwater.format.events import EventBatch
from headwater.format.given import Data, Meta, Version
from headwater.format.puro_blocks import PuroFile, PuroVariant
from headwater.format.settings import Replica, Retention, TopicSettings
from headwater.info import (
    ArchivedRange,
    CheckReport,
    ConsumerInfo,
    DeletedSegment,
    DrainResult,
    MaintenanceResult,
    Split,
    TopicInfo,
    ViewInfo,
)
from headwater.limits import SPLIT_BYTES, Limits
from headwater.log.log_backend import LogBackend
from headwater.log.topic_rules import with_retention
from headwater.position import Position, Positions
from headwater.protocols import AppendHandle, Binder, Consumer, Follow
from headwater.replication.source import ReplicationSource
from headwater.requests import (
    Append,
    AppendMany,
    AppendOptions,
    Consume,
    ConsumeOptions,
    Drain,
    FilterOptions,
    ProducerLike,
    Read,
    ReadOptions,
    wants_sync,
)
from headwater.transaction import Transaction
from headwater.transfer import exporting, importing
from headwater.transfer.chunks import ImportOptions

if TYPE_CHECKING:
    import pyarrow as pa

File = str | Path | IO[bytes]
Progress = Callable[[int, int], None]
"""Called with how much is done, and how much there is in all."""
TransferProgress = Callable[[int, int | None], None]
_log = logging.getLogger("headwater")
_stores: WeakSet[Store] = WeakSet()  # a program may end without closing them
PLACES = {"directory": "a directory", "bucket": "a bucket", "server": "a server"}


class UpkeepVerbs(Protocol):
    """The verbs that not every backend has: `Backend.lacks` names those that one does not have."""

    def seal(self, topic: str) -> int: ...
    def check(self, topic: str | None, progress: Progress | None) -> CheckReport: ...
    def repair(self, topic: str | None, *, apply: bool) -> list[Action]: ...
    def reindex(self, topic: str | None, progress: Progress | None) -> int: ...
    def maintain(self, topic: str | None) -> MaintenanceResult: ...


@within_memory("append", "append_later")
class Store:
    """An event log: topics, consumers and documents, in a directory, in a bucket or behind a server.

    `headwater.open` returns one. Close it, or use it in a `with` statement. Every method may be called from any thread.
    Not every place has every method: `can` says which ones this store has, and the others raise Unsupported
    (docs/BACKENDS.md). Errors are subclasses of `HeadwaterError`, with a `code` and a `hint`.

        with headwater.open("data") as store:
            store.append("orders", {"total": 12}, key="customer-7")
            for event in store.read("orders", key="customer-7"):
                print(event.offset, event.value)

    Topics: create, topics, describe, delete. Appending: append, append_many, append_arrow, append_later, transaction.
    Reading: read, read_batches, read_arrow, follow, splits, version. Consumers: consumer, drain, consumers, seek,
    forget, replay. Documents: binder, binders, views, query. Files: export, import_. Upkeep: retain, seal, archive,
    check, repair, reindex, maintain, sync, flush.
    """

    def __init__(
        self,
        backend: Backend,
        consumers: ConsumerVerbs,
        source: Callable[[], ReplicationSource] | None = None,
    ) -> None:
        """Put a store together; programs call `headwater.open`. `source` makes what a replica copies from."""
        self.backend = backend
        """The backend, for code that extends Headwater."""
        self.consumption = consumers
        """The verbs of consumers, for code that extends Headwater."""
        self.attached_views: ViewVerbs | None = None
        self._source = source
        _stores.add(self)

    # What it is

    @property
    def address(self) -> str:
        """The address of the data, as `headwater.open` takes it."""
        return self.backend.address

    @property
    def uuid(self) -> str:
        """The id of this log, wherever it is moved."""
        return self.backend.uuid

    @property
    def limits(self) -> Limits:
        """The limits of what the store accepts."""
        return self.backend.limits

    @property
    def path(self) -> Path:
        """The directory; raises Unsupported if the data is not in one."""
        return self.directory.path

    @property
    def directory(self) -> Directory:
        """The backend of a store in a directory, for code that extends Headwater; raises Unsupported elsewhere."""
        if isinstance(self.backend, Directory):
            return self.backend
        raise self._needs("a directory")

    @property
    def logs(self) -> LogBackend[Any]:
        """The backend of a store that keeps its logs itself; raises Unsupported for a server."""
        if isinstance(self.backend, LogBackend):
            return self.backend
        raise self._needs("a directory or a bucket")

    def _needs(self, place: str) -> Unsupported:
        return Unsupported(
            f"this needs {place}, but {self.address} is {PLACES[self.backend.kind]}",
            hint=f"run it where it can open {place}",
            code="verb_unsupported",
        )

    def can(self, verb: str) -> bool:
        """Return whether this store has a method, by its name; those that it does not have raise Unsupported."""
        return verb not in self.backend.lacks

    def _require(self, verb: str) -> UpkeepVerbs:
        """Return the backend, for a verb that it has; raises Unsupported if it lacks it."""
        lack = self.backend.lacks.get(verb)
        if lack is not None:
            place = PLACES[self.backend.kind]
            raise Unsupported(f"{place} cannot {lack.what}", hint=lack.hint, code="verb_unsupported", verb=verb)
        return cast("UpkeepVerbs", self.backend)

    @property
    def archive_url(self) -> str | None:
        """The address of the archive; None if there is none, or if that cannot be known from here."""
        return self.backend.archive_url

    @property
    def replica(self) -> Replica | None:
        """The log that this one is a replica of, even after it was promoted; None if it never was one."""
        return self.backend.replica

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
        """Create a topic, durably. True if it is new, False if it exists; Invalid if it has other partitions.

        The number of partitions never changes. Settings that are 0 follow the limits of the program that opens the
        log. `retain` explains the retention, which bounds what each partition keeps.
        """
        settings = TopicSettings(
            segment_bytes=segment_bytes,
            segment_age_ms=segment_age_ms,
            data_bytes_max=data_bytes_max,
            compression=compression,
        )
        return self.backend.create(topic, partitions, with_retention(settings, retention))

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted; empty if there are none. On a server, those that you may read."""
        return self.backend.topics()

    def describe(self, topic: str) -> TopicInfo:
        """Return the settings of a topic and what its partitions hold; raises NotFound."""
        return self.backend.describe(topic)

    def delete(self, topic: str) -> None:
        """Delete a topic and all its events, for every process; raises NotFound.

        A topic that is created later under the same name is another one: it starts at offset 0.
        """
        self.backend.delete(topic)

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
        producer: ProducerLike | None = None,
    ) -> Ref:
        """Append one event and return where it is, once it is durable. Creates the topic if it is missing.

        `data` is bytes, text (str) or JSON (dict or list); for a huge event, an open binary file or an iterator of
        bytes, which is streamed with bounded memory. `content` says what bytes are: `bytes` (anything), `text` (UTF-8),
        `json` or `bson`; Invalid if they are not. JSON and BSON are checked in memory, as a whole.

        `type` and `meta` describe the event. `key` chooses the partition, unless `partition` does. `durability` is
        `fsync` or `os`; None means: as the store was opened. Appends of several threads that wait together share one
        sync.

        `expected_version` is the offset of the key's last event, or "none": raises Conflict, which has the actual
        `version`, if there is another. `producer` is (id, epoch, seq): an append with a seq that was used before
        returns the first answer (docs/TRANSACTIONS.md). Raises Invalid, and TooLarge above a limit.
        """
        try:
            request = Append.of(
                topic,
                data,
                self.backend.limits,
                type=type,
                key=key,
                meta=meta,
                content=content,
                durability=durability,
                partition=partition,
                expected_version=expected_version,
                producer=producer,
            )
            return self.backend.append(request)
        except MemoryError as error:
            raise out_of_memory("append failed") from error

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
        producer: ProducerLike | None = None,
    ) -> Refs:
        """Append many events, all or nothing in each partition, and return where they are, once they are durable.

        `types`, `keys` and `metas` have a value for each event; `types` may also be one for all. Without keys, all
        events go to one partition. The references are in the order of `data`; none if that is empty. Raises Invalid,
        whose `index` names the first event that is not what `content` says, and TooLarge above a limit: nothing is
        appended. `expected_version` is for events that share one key. The other options are those of `append`.
        """
        request = AppendMany.of_events(
            topic,
            data,
            self.backend.limits,
            types=types,
            keys=keys,
            metas=metas,
            content=content,
            durability=durability,
            partition=partition,
            expected_version=expected_version,
            producer=producer,
        )
        return self.backend.append_many(request)

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
        """Append the rows of an Arrow table with the column `data` and, optionally, `key`, `type` and `meta`.

        The table is split into batches as needed: what was appended before an error stays. The references are grouped
        by batch. All is durable when this returns. Data that is not what `content` says raises Invalid, whose `index`
        names the first such row.
        """
        given.check_content(content)
        parts = arrow.split(table, self.backend.limits.pack_events)
        sync = None if durability is None else wants_sync(durability)
        refs = self.backend.append_many(AppendMany(topic, "bytes", {}, 0, sync=sync))  # creates the topic
        reached = refs.durability
        runs: list[Run] = []
        first = 0
        for part in parts:
            part_content, columns = arrow.columns_of(part, content)
            request = AppendMany.of(
                topic,
                part_content,
                columns,
                part.num_rows,
                self.backend.limits,
                durability=durability if len(parts) == 1 else "os",
                partition=partition,
                first=first,
            )
            first += part.num_rows
            runs += self.backend.append_many(request).runs
        if len(parts) > 1 and reached == "fsync":
            self.backend.sync(topic)
        return Refs(topic, reached, runs)

    def append_later(self, topic: str, data: Data, **options: Unpack[AppendOptions]) -> AppendHandle:
        """Append one event in the background, together with others that come soon, and return at once.

        `result()` of the handle waits until the event is appended, returns where it is, and raises what kept it from
        being appended. `flush()` waits for all of them. Nothing is durable before one of these, or `close()`, has
        returned. Events wait for `linger_ms`, or until there are `linger_bytes`; those of one topic keep their order.
        Blocks while `buffer_bytes` are pending. The options are those of `append`; huge events are refused with
        TooLarge.
        """
        try:
            return self.backend.append_later(Append.of(topic, data, self.backend.limits, **options))
        except MemoryError as error:
            raise out_of_memory("append_later failed") from error

    def flush(self) -> None:
        """Wait until everything given to `append_later` is appended.

        Raises the first error that kept an event from being appended, unless `result()` has raised it.
        """
        self.backend.flush()

    def transaction(self, *, durability: Durability | None = None, producer: ProducerLike | None = None) -> Transaction:
        """Begin a transaction: appends to any topics, and acks, that happen together or not at all.

        `with store.transaction() as tx: tx.append(…)` commits when the block ends, and discards if it raises. Over
        several partitions it is always durable; in a bucket it is limited to one partition. `producer` is (id, epoch,
        seq): a transaction with the same appends and a seq that was used before is committed once, and returns the
        first answer (docs/TRANSACTIONS.md).
        """
        sync = None if durability is None else wants_sync(durability)
        return self.backend.transaction(sync, given.check_producer(producer, self.backend.limits))

    def sync(self, topic: str) -> None:
        """Make durable all events of a topic that were appended with durability `os`."""
        self.backend.sync(topic)

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
        """Return an iterator over the events from `start` to before `end`, at most to the end of the topic now.

        Events of several partitions come in the order of time. A position is an offset, a time, an event's id,
        "earliest" or "latest"; or a list with an offset for each partition. `type` is an RE2 pattern over the whole
        type; `match` compares fields of JSON and BSON data (docs/MATCH.md). Raises NotFound for a missing topic,
        Invalid for a bad pattern or match, Corrupt on damage.
        """
        request = Read.of(
            topic,
            self.backend.limits,
            start=start,
            end=end,
            partition=partition,
            type=type,
            key=key,
            match=match,
            reverse=reverse,
        )
        return self.backend.read(request)

    def read_batches(self, topic: str, **options: Unpack[ReadOptions]) -> Iterator[EventBatch]:
        """Return an iterator over the events, batch by batch, one partition after the other.

        In reverse, the last batch comes first. The options are those of `read`.
        """
        return self.backend.read_batches(Read.of(topic, self.backend.limits, **options))

    @enough_memory("the events cannot be read as one table")
    def read_arrow(
        self, topic: str, *, columns: Sequence[str] | None = None, **options: Unpack[ReadOptions]
    ) -> pa.Table:
        """Return the events as one Arrow table; empty if there are none.

        From a directory it is made without a copy: it points into the log's files. `columns` lists the columns to
        read; the other options are those of `read`.
        """
        return events.table(self.read_batches(topic, **options), columns)

    def follow(
        self,
        topic: str,
        *,
        start: Positions = "latest",
        timeout: float | None = None,
        partition: int | None = None,
        **filters: Unpack[FilterOptions],
    ) -> Follow:
        """Return an iterator over the events from `start` on, which waits for those that any process appends.

        Ends when `timeout` seconds pass without an event. The filters are `type`, `key` and `match`, as in `read`.
        """
        request = Read.of(topic, self.backend.limits, start=start, partition=partition, **filters)
        return self.backend.follow(request, timeout)

    def splits(
        self,
        topic: str,
        *,
        start: Positions = "earliest",
        end: Positions = "latest",
        partition: int | None = None,
        split_bytes: int = SPLIT_BYTES,
    ) -> list[Split]:
        """Cut a topic into splits of about `split_bytes`, for workers to read in parallel; empty if there are none.

        They are in order, partition after partition, cut between batches, and go from `start` to before `end`, at most
        to what is durable now. No event is read for that. Raises NotFound for a missing topic, and with the code
        `offset_gone` for an offset that retention has deleted.
        """
        return self.backend.splits(topic, start, end, partition, split_bytes)

    def version(self, topic: str, key: bytes | str, *, partition: int | None = None) -> int | None:
        """Return the offset of the key's last event; None if there is none.

        With several partitions, it looks into the one that the key's hash chooses, unless `partition` says another.
        """
        encoded = given.encode_key(key, self.backend.limits)
        if encoded is None:
            raise Invalid("events without a key have no version", hint="give a key; the empty key is valid, too")
        self._require("version")
        return self.backend.version(topic, encoded, partition)

    # Consumers

    def consumer(self, name: str, topic: str, **options: Unpack[ConsumeOptions]) -> Consumer:
        """Join a named consumer of a topic, whose cursors are durable and shared by all members, in any process.

        `start` is where a new consumer begins ("earliest" unless given); an existing one continues. Iterating ends when
        `timeout` seconds pass without an event. `lease_ms` is how long this member may be silent before others take
        over its partitions; `failures_max`, how often an event may fail before it is dead-lettered. The filters
        `type`, `key` and `match` are those of `read`. Raises NotFound for a missing topic. See docs/CONSUMERS.md.
        """
        return self.consumption.join(Consume.of(name, topic, self.backend.limits, **options))

    def drain(
        self,
        consumer: str,
        topic: str,
        handler: Callable[[Event], object],
        *,
        seconds: float | None = None,
        partitions: Iterable[int] | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> DrainResult:
        """Call `handler` for each event that waits for a consumer; returns how many it took, and whether more wait.

        For a function that is started now and then. It takes the partitions that are free, or only those of
        `partitions`; those that others hold are left to them, and count as more while something waits there. An event
        is acked when the handler returns, and has failed if it raises. Ends when it has caught up, or after `seconds`,
        between two events. All acks are durable, and the leases released, when it returns. The other options
        are those of `consumer`.
        """
        request = Consume.of(consumer, topic, self.backend.limits, **options)
        chosen = None if partitions is None else frozenset(partitions)
        visit = self.consumption.visit(Drain(**structs.asdict(request), seconds=seconds, partitions=chosen))
        return drain(visit, handler, seconds)

    def consumers(self, topic: str | None = None) -> list[ConsumerInfo]:
        """Return the cursor, lag and owner of each consumer of a topic, or of all, by partition; empty if none.

        A damaged consumer is in the list with its `error`; so is a damaged topic, without a consumer's name.
        """
        return self.consumption.infos(topic)

    def seek(self, consumer: str, topic: str, at: Position, *, partition: int | None = None) -> dict[int, int]:
        """Move a consumer to a position, durably, in one partition or all; returns its new cursors.

        Members that hold these partitions lose them: late acks raise Fenced, and they continue at the new position.
        """
        return self.consumption.seek(consumer, topic, at, partition)

    def forget(self, consumer: str, topic: str) -> None:
        """Delete a consumer of a topic, durably; raises NotFound. Its members stop. Joining again creates a new one."""
        self.consumption.forget(consumer, topic)

    def replay(self, topic: str, *, consumer: str | None = None) -> int:
        """Append the dead letters of a topic (`<topic>.dead`) to it again, each once; returns how many.

        With `consumer`, only those of that consumer; the others are skipped.
        """
        return self.consumption.replay(topic, consumer)

    # Documents

    def binder(self, name: str) -> Binder:
        """Return the documents of a binder, for reading. Reading raises NotFound until a projection creates it."""
        return self._views("binder").binder(name)

    def binders(self) -> list[str]:
        """Return the names of all binders, sorted; empty if there are none."""
        return self._views("binders").binders()

    def views(self) -> list[ViewInfo]:
        """Return the state of all projections and functions, by name within their binders; empty if there are none."""
        return self._views("views").views()

    def query(self, name: str, **arguments: Any) -> Any:
        """Run a named query of the application that the server runs, and return its result, decoded from JSON.

        Raises NotFound if there is no such query, Invalid for wrong arguments, Unavailable with the code `query_failed`
        if it raises, or `application_down`. Only on a server; elsewhere, call `app.ask`.
        """
        return cast("QueryVerbs", self._views("query")).query(name, arguments)

    def _views(self, verb: str) -> ViewVerbs:
        self._require(verb)
        assert self.attached_views is not None, "opening.py attaches them where the backend has them"
        return self.attached_views

    # Import and export

    def export(
        self,
        topic: str | Sequence[str],
        target: File,
        *,
        format: str | None = None,
        puro_variant: PuroVariant | None = None,
        progress: TransferProgress | None = None,
        **filters: Any,
    ) -> int:
        """Write the events of a topic to a file, given by its path or open for writing bytes; returns how many.

        `format` is `jsonl`, `arrow`, `arrows` (a stream), `parquet` or `puro`; by default the suffix decides. `jsonl`
        and `puro` can hold several topics. `filters` are the options of `read`. A file at the path is replaced when
        the new one is complete and durable. `puro_variant` is `messages` (the default), `blocks`,
        `sized-blocks` or `documented`. Raises TooLarge for an event that the format cannot hold. See docs/TRANSFER.md.
        """
        topics = [topic] if isinstance(topic, str) else list(topic)
        return exporting.export(self, self._disk(), topics, target, format, puro_variant, progress, filters)

    def import_(
        self,
        topic: str | None,
        source: File,
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
        report: Callable[[PuroFile], None] | None = None,
    ) -> int:
        """Append the events of a file to a topic, or with None each to the topic that it names; returns how many.

        All are durable when it returns. If it fails, the events before the error stay, and are durable; the error's
        `imported` says how many, and its `skip` is the value of `skip` to continue with. Offsets and times are new;
        `keep_times` keeps the old ones in meta. `only` takes the events of one topic of the file; `content`
        says what the data is where the file does not. `report` is called once with a `PuroFile`, the summary of
        a Puro file, after all of it was read. Raises Corrupt for a damaged file, Invalid for a record that is
        not an event. See docs/TRANSFER.md.
        """
        given.check_content(content)
        columns = data_column, key_column, type_column
        wanted = ImportOptions(content, keep_times, topic is None or only is not None, *columns)
        limits = self.backend.limits
        sink = importing.ImportSink(self, limits, topic, only, partition, skip)
        return importing.import_file(self._disk(), limits, source, format, wanted, sink, progress, report)

    def _disk(self) -> Disk:
        return self.backend.disk if isinstance(self.backend, LogBackend) else Disk()

    # Upkeep

    def retain(
        self,
        topic: str,
        *,
        before: int | datetime | None = None,
        partition: int | None = None,
        dry_run: bool = False,
        **changes: Unpack[Retention],
    ) -> list[DeletedSegment]:
        """Delete the oldest segments that retention does not keep, and return them; with `dry_run`, only return them.

        `changes` change the retention of the topic, durably and for every process from its next roll on: each bound is
        for one partition, and 0 removes it. `before` also deletes what ends before an offset or a time, once. The
        active segment stays, unless all its events are older than `retention_age_ms`. Without `dry_run`, what is
        returned is deleted durably: reading it raises NotFound with the code `offset_gone` and the `oldest` offset. Of
        a log with an archive, only what is archived is deleted, and then read from there; Unavailable if the archive
        is out of reach. A bucket raises Unsupported for a hard bound.
        """
        return self.backend.retain(topic, before, partition, dry_run, changes)

    def seal(self, topic: str) -> int:
        """Finish the active segments of a topic, pack and index all that is finished; returns how many were sealed.

        Waits for what another process or thread is sealing; Unavailable if that takes too long. In a bucket it compacts
        all that was appended.
        """
        return self._require("seal").seal(topic)

    def archive(
        self,
        url: str | None = None,
        *,
        topic: str | None = None,
        seal: bool = False,
        progress: Progress | None = None,
    ) -> list[ArchivedRange]:
        """Write all finished segments that are not archived yet to an archive, as Parquet files; returns what it wrote.

        The directory remembers the `url` (a path, `s3://…`, `objects:///…`), which may be left out then: from the first
        call on, retention deletes only what is archived, and reads continue there in every process. `seal` finishes the
        active segments first. Raises Conflict for an archive of another log, Unsupported without pyarrow, Unavailable.
        See docs/HISTORY.md.
        """
        self._require("archive")
        from headwater.history.archiver import archiver_of  # it needs an extra

        return archiver_of(self.directory, url, topic=topic).once(seal=seal, progress=progress)

    def check(self, topic: str | None = None, progress: Progress | None = None) -> CheckReport:
        """Verify every checksum and invariant of a topic, or of all; changes nothing."""
        return self._require("check").check(topic, progress)

    def repair(self, topic: str | None = None, *, apply: bool = False) -> list[Action]:
        """Return the actions that repair a topic, or all; `apply` does them. What is cut is kept beside the log."""
        return self._require("repair").repair(topic, apply=apply)

    def reindex(self, topic: str | None = None, progress: Progress | None = None) -> int:
        """Rebuild the indexes of a topic, or of all, from the segments; returns how many."""
        return self._require("reindex").reindex(topic, progress)

    def maintain(self, topic: str | None = None) -> MaintenanceResult:
        """Compact, trim and collect the garbage of a topic, or of all, once. Only in a bucket.

        Programs that append do this by themselves now and then. This is for a bucket that is no longer appended to,
        or whose writers have `compact_objects=0`. May run at any time, and several times at once.
        """
        return self._require("maintain").maintain(topic)

    def replication(self) -> ReplicationSource:
        """Return the source that a replica copies from; see `headwater.replicate`."""
        self._require("replication")
        assert self._source is not None, "opening.py gives one where the backend has it"
        return self._source()

    # Ending

    def close(self) -> None:
        """Stop followers and consumers, wait for appends under way, and release everything. May be called twice.

        In a bucket, what was given to `append_later` is appended first; raises as `flush`.
        """
        try:
            self.backend.close()
        finally:
            if self.attached_views is not None:
                self.attached_views.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<headwater.Store {self.address}>"


@atexit.register
def _flush_all() -> None:
    """Append what still waits in the background when a program ends without closing its stores."""
    for store in list(_stores):
        try:
            store.flush()
        except Closed:
            pass
        except HeadwaterError as error:
            _log.error("events that were given to append_later are not appended to %s: %s", store.address, error)
