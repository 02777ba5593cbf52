"""The verbs on a server. `Remote` is what `headwater.open` returns for http:// and https://.

The same verbs as those of a directory, with the same meaning (docs/CLIENT.md has the few that a server does not have).
It connects when it is first asked for something. Safe from any thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, Literal, Self, Unpack
from uuid import UUID
from weakref import WeakSet

import msgspec

from headwater import position
from headwater.client.address import ServerAddress
from headwater.client.appending import RemoteAppender
from headwater.client.binder import RemoteBinder
from headwater.client.consumer import RemoteConsumer
from headwater.client.draining import drain
from headwater.client.reading import RemoteBatches, RemoteFollow, events_of, position_query
from headwater.client.replication import RemoteSource
from headwater.client.transaction import RemoteTransaction
from headwater.client.transport import NOTHING, Transport
from headwater.errors import Invalid, NotFound, Unsupported, within_memory
from headwater.event import At, Content, Durability, Event, Ref, Refs, Run, ticks_of
from headwater.format import arrow, documents, events, given
from headwater.format.column import Column
from headwater.format.events import EventBatch
from headwater.format.given import Data, Meta, Version
from headwater.format.puro_blocks import PuroFile, PuroVariant
from headwater.format.settings import Retention
from headwater.info import BinderInfo, ConsumerInfo, DeletedSegment, DrainResult, Split, TopicInfo, ViewInfo
from headwater.limits import DATA_BYTES_CEILING, DEFAULTS, SPLIT_BYTES, Limits
from headwater.requests import (
    Append,
    AppendMany,
    FilterOptions,
    ProducerLike,
    Read,
    ReadOptions,
    checked_batches,
    wants_sync,
)

if TYPE_CHECKING:
    pass

if TYPE_CHECKING:
    import pyarrow as pa

_remotes: WeakSet[Remote] = WeakSet()  # which take other producers in a forked child

_decode_topic = msgspec.json.Decoder(TopicInfo).decode
_decode_splits = msgspec.json.Decoder(list[Split]).decode
_decode_consumers = msgspec.json.Decoder(list[ConsumerInfo]).decode
_decode_binders = msgspec.json.Decoder(list[BinderInfo]).decode
_decode_views = msgspec.json.Decoder(list[ViewInfo]).decode
_decode_deleted = msgspec.json.Decoder(list[DeletedSegment]).decode


@within_memory()
class Remote:
    """An open server. Close it, or use it in a `with` statement."""

    def __init__(
        self,
        transport: Transport,
        transfer: Callable[[Remote], Any],
        *,
        durability: Durability = "fsync",
        limits: Limits = DEFAULTS,
    ) -> None:
        """`transfer` makes what exports and imports: it works with any log, and lives in a layer above this one."""
        self._transport = transport
        self._make_transfer = transfer
        # How large data may be, its topic says, which the server knows.
        self._limits = msgspec.structs.replace(limits, data_bytes_max=DATA_BYTES_CEILING)
        self._durability: Durability = "fsync" if wants_sync(durability) else "os"
        self._appends = RemoteAppender(transport, self._limits)
        self._members: WeakSet[RemoteConsumer] = WeakSet()  # which end with this object
        _remotes.add(self)

    @property
    def address(self) -> ServerAddress:
        """Where the server is."""
        return self._transport.address

    @property
    def uuid(self) -> str:
        """What identifies the log that is served, wherever it is moved."""
        told: str = self._transport.json("GET", ("version",), repeat=True)["uuid"]
        return told

    @property
    def limits(self) -> Limits:
        """What it accepts; the server may accept less."""
        return self._limits

    def replication(self) -> RemoteSource:
        """What a replica asks the server."""
        return RemoteSource(self._transport)

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

        Settings that are 0 follow the server. What each partition keeps: see `retain`.
        """
        asked = {
            "partitions": partitions,
            "segment_bytes": segment_bytes or None,
            "segment_age_ms": segment_age_ms or None,
            "data_bytes_max": data_bytes_max or None,
            "compression": None if compression == "none" else compression,
            **retention,
        }
        made: bool = self._transport.json("PUT", ("topic", topic), asked, repeat=True)
        return made

    def topics(self) -> list[str]:
        """The names of all topics that one may read, sorted; empty if there are none."""
        names: list[str] = self._transport.json("GET", ("topics",), repeat=True)
        return names

    def describe(self, topic: str) -> TopicInfo:
        """What a topic is and holds; raises NotFound."""
        return _decode_topic(self._transport.call("GET", ("topic", topic), repeat=True).body)

    def delete(self, topic: str) -> None:
        """Delete a topic and all its events, for everybody; raises NotFound. Made again, it starts afresh."""
        self._gone("DELETE", ("topic", topic))

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
        """Append one event; returns where it is once it is durable. Makes the topic if it is not there.

        As that of a directory. It is sent again when its answer was lost, and is there once for all that. If there is
        none for too long: Unavailable with the code `answer_lost`, whose `producer` says under which it may be there.
        """
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

    def submit(self, request: Append) -> Ref:
        """Append one event, as `append` does."""
        return self._appends.one(request, self._reached(request.sync))

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
        """Append many events: all or nothing in each partition. Above a limit: TooLarge, and nothing is appended.

        As that of a directory, and sent again as a single one is.
        """
        given.check_content(content)
        if not len(data):
            return Refs(topic, self._waits_for(durability), ())
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
        return self._appends.many(request, self._reached(request.sync))

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
        given.check_content(content)
        durability = self._waits_for(durability)
        parts = list(checked_batches(table, content, self._limits.pack_events))
        reached: Durability = durability if len(parts) == 1 else "os"
        runs: list[Run] = []
        for part in parts:
            batch_content, columns = arrow.columns_of(part, content)
            request = AppendMany(topic, batch_content, columns, part.num_rows, partition=partition)
            runs += self._appends.many(request, reached).runs
        if durability != reached:
            self.sync(topic)
        return Refs(topic, durability, runs)

    def append_columns(
        self,
        topic: str,
        content: Content,
        columns: dict[int, Column | None],
        count: int,
        *,
        durability: Durability | None = None,
        partition: int | None = None,
        producer: ProducerLike | None = None,
        checked: bool = False,
    ) -> Refs:
        """Like `append_many`, of events that are the columns of a batch already (format/batch.py), by their kind."""
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
        return self._appends.many(request, self._reached(request.sync))

    def transaction(
        self, *, durability: Durability | None = None, producer: ProducerLike | None = None
    ) -> RemoteTransaction:
        """Appends to any topics, and acks, all or nothing: `with hw.transaction() as tx: tx.append(…)`.

        Committed when the block ends, and discarded if it raises. Over several partitions it is always durable.
        """
        self._transport.check_open()
        told = given.check_producer(producer, self._limits)
        return RemoteTransaction(self, self._transport, self._appends, self._waits_for(durability), told, self._limits)

    def sync(self, topic: str) -> None:
        """Make all events of a topic durable that were appended with durability `os`."""
        self._transport.call("POST", ("topic", topic, "sync"), repeat=True)

    # Reading

    def read(self, topic: str, **options: Unpack[ReadOptions]) -> Iterator[Event]:
        """Return the events from `start` to before `end`; with several partitions, in order of time.

        As in a directory. They are fetched as they are asked for; a read goes on where a connection broke.
        """
        request = Read.of(topic, self._limits, **options)
        return events_of(self._batches(request, {"order": "time"}), reverse=request.reverse)

    def read_batches(self, topic: str, **options: Unpack[ReadOptions]) -> Iterator[EventBatch]:
        """Return the events batch by batch, partition after partition. In reverse, the last batch comes first."""
        return self._batches(Read.of(topic, self._limits, **options))

    def read_arrow(
        self, topic: str, *, columns: Sequence[str] | None = None, **options: Unpack[ReadOptions]
    ) -> pa.Table:
        """Return the events as one Arrow table; empty if there is nothing."""
        return events.table(self.read_batches(topic, **options), columns)

    def follow(
        self,
        topic: str,
        *,
        start: At = "latest",
        timeout: float | None = None,
        partition: int | None = None,
        **filters: Unpack[FilterOptions],
    ) -> RemoteFollow:
        """The events from `start` on, then those that come, from anybody, until `timeout` seconds bring none."""

        def wait(offsets: list[int]) -> RemoteBatches:
            request = Read.of(topic, self._limits, start=offsets, partition=partition, **filters)
            return self._batches(request, {"wait_for_more": True}, uuid=there.uuid)

        there = self._batches(Read.of(topic, self._limits, start=start, partition=partition, **filters))
        return RemoteFollow(there, wait, timeout, self._transport)

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

        As those of a directory.
        """
        query = position_query(start, end) | {"partition": partition, "split_bytes": split_bytes}
        return _decode_splits(self._transport.call("GET", ("topic", topic, "splits"), query, repeat=True).body)

    def version(self, topic: str, key: bytes | str, *, partition: int | None = None) -> int | None:
        """The offset of the key's last event; None if there is none. With several partitions, of the key's own one."""
        encoded = given.encode_key(key, self._limits)
        if encoded is None:
            raise Invalid("events without a key have no version", hint="give a key; the empty one is one too")
        query = {"key": encoded, "partition": partition}
        found: int | None = self._transport.json("GET", ("topic", topic, "version"), query, repeat=True)
        return found

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
        **filters: Unpack[FilterOptions],
    ) -> RemoteConsumer:
        """Join a named consumer of a topic, whose cursors are durable and shared by all members, wherever they run.

        As that of a directory. `lease_ms` is how long this process may be silent before others take over.
        """
        member = RemoteConsumer(
            self._transport,
            name,
            topic,
            self._limits,
            start=start,
            timeout=timeout,
            lease_ms=lease_ms,
            failures_max=failures_max,
            **filters,
        )
        self._members.add(member)
        return member

    def drain(
        self,
        consumer: str,
        topic: str,
        handler: Callable[[Event], object],
        *,
        seconds: float | None = None,
        partitions: Iterable[int] | None = None,
        **options: Any,
    ) -> DrainResult:
        """Hand what waits for a consumer to `handler`, commit, give everything back, and tell whether more waits.

        As that of a directory, with the options of `consumer`; but it waits for what other members hold, up to
        `seconds`. Raises Unsupported if `partitions` are named.
        """
        if partitions is not None:
            raise Unsupported("a server drains all partitions of a topic", hint="leave out partitions=")
        handled = drain(self.consumer(consumer, topic, **options), handler, seconds)
        return DrainResult(handled, any(info.lag for info in self.consumers(topic) if info.name == consumer))

    def consumers(self, topic: str | None = None) -> list[ConsumerInfo]:
        """Where each consumer of a topic, or of all, is in each partition, and who reads there; empty if none."""
        return _decode_consumers(self._transport.call("GET", ("consumers",), {"topic": topic}, repeat=True).body)

    def seek(self, consumer: str, topic: str, at: At, *, partition: int | None = None) -> dict[int, int]:
        """Move a consumer to another place, durably, in one partition or all; returns its new cursors.

        Members that hold these partitions lose them: late acks raise Fenced, and they go on at the new place.
        """
        asked = {"at": position.format(at), "partition": partition}
        told = self._transport.json("POST", ("consumer", consumer, topic, "seek"), value=asked, repeat=True)
        return {int(number): cursor for number, cursor in told.items()}

    def forget(self, consumer: str, topic: str) -> None:
        """Delete a consumer of a topic, durably; raises NotFound. Its members stop; joined again, it is new."""
        self._gone("DELETE", ("consumer", consumer, topic))

    def replay(self, topic: str, *, consumer: str | None = None) -> int:
        """Append what was set aside in `<topic>.dead` to the topic again, each event once; returns how many.

        With `consumer`, only what that one could not handle; the rest is then passed over.
        """
        done: int = self._transport.json("POST", ("topic", topic, "replay"), {"consumer": consumer}, repeat=False)
        return done

    def holder(self, event: Event) -> RemoteConsumer:
        """The consumer, opened here, that handed out an event."""
        found = [member for member in list(self._members) if member.holds(event)]
        if len(found) != 1:
            told = "several consumers hold" if found else "no consumer that was opened here holds"
            raise Invalid(
                f"{told} offset {event.offset} of topic {event.topic!r}, partition {event.partition}",
                hint="say which one: tx.ack(event, consumer=…)" if found else "was it taken over meanwhile?",
                code="no_holder",
            )
        return found[0]

    # Views

    def binder(self, name: str) -> RemoteBinder:
        """The documents of a binder, to be read; it need not be there yet, and reading it then raises NotFound."""
        self._transport.check_open()
        return RemoteBinder(self._transport, name)

    def binders(self) -> list[str]:
        """The names of all binders that one may read, sorted; empty if there are none."""
        found = _decode_binders(self._transport.call("GET", ("binders",), repeat=True).body)
        return [each.name for each in found]

    def views(self) -> list[ViewInfo]:
        """How the projections and functions are, of the topics that one may read."""
        return _decode_views(self._transport.call("GET", ("views",), repeat=True).body)

    def query(self, name: str, **arguments: Any) -> Any:
        """Ask a query with a name, of the application that the server runs; what it returns, as JSON has it.

        Raises NotFound if there is none, Invalid for wrong arguments, Unavailable with the code `query_failed` if it
        raises, or `application_down`.
        """
        body, headers = documents.encode(arguments), {"Content-Type": "application/json"}
        answer = self._transport.call("POST", ("query", name), body=body, headers=headers, repeat=True)
        return documents.decode(answer.body)

    # Importing and exporting, as docs/TRANSFER.md tells

    def export(
        self,
        topic: str | Sequence[str],
        target: str | os.PathLike[str] | IO[bytes],
        *,
        format: str | None = None,
        puro_variant: PuroVariant | None = None,
        progress: Callable[[int, int | None], None] | None = None,
        **filters: Any,
    ) -> int:
        """Write the events of a topic to a file here, or to an open binary one; returns how many.

        As that of a directory.
        """
        done: int = self._make_transfer(self).export(topic, target, format, puro_variant, progress, filters)
        return done

    def import_(
        self,
        topic: str | None,
        source: str | os.PathLike[str] | IO[bytes],
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
        progress: Callable[[int, int | None], None] | None = None,
        report: Callable[[PuroFile], None] | None = None,
    ) -> int:
        """Append the events of a file here to a topic, or with None each to the topic that it names; returns how many.

        As that of a directory.
        """
        done: int = self._make_transfer(self).import_(
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
        return done

    # Keeping

    def retain(
        self,
        topic: str,
        *,
        before: int | datetime | None = None,
        partition: int | None = None,
        dry_run: bool = False,
        **changes: Unpack[Retention],
    ) -> list[DeletedSegment]:
        """Delete the oldest segments that need not be kept; returns them. `dry_run` only tells which.

        As that of a directory.
        """
        if isinstance(before, datetime):
            ticks_of(before)  # which refuses one without a zone
        asked = {"before": before, "partition": partition, "dry_run": dry_run, "changes": changes}
        body = msgspec.json.encode(asked)
        return _decode_deleted(self._transport.call("POST", ("topic", topic, "retain"), body=body, repeat=dry_run).body)

    def seal(self, topic: str) -> int:
        """Not on a server, which seals by itself."""
        raise _where_it_is("seal", topic)

    def reindex(self, topic: str | None = None, progress: object = None) -> int:  # noqa: ARG002  # as a directory's
        """Not on a server: it needs the files."""
        raise _where_it_is("reindex", topic)

    def check(self, topic: str | None = None, progress: object = None) -> Any:  # noqa: ARG002  # as a directory's
        """Not on a server: it needs the files."""
        raise _where_it_is("check", topic)

    def repair(self, topic: str | None = None, *, apply: bool = False) -> Any:  # noqa: ARG002  # as a directory's
        """Not on a server: it needs the files."""
        raise _where_it_is("repair", topic)

    def after_fork(self) -> None:
        """In a forked child, where it is called by itself: appends are another's."""
        self._appends.after_fork()

    def close(self) -> None:
        """Have consumers leave, end what is under way, and let go of all connections. May be called twice."""
        try:
            for member in list(self._members):
                member.close()
        finally:
            self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _batches(self, request: Read, query: Mapping[str, Any] = NOTHING, uuid: UUID | None = None) -> RemoteBatches:
        """Begin a read. `uuid` is that of the topic, where it must be the same as before."""
        asked = {
            **position_query(request.start, request.end),
            "reverse": request.reverse or None,
            "type": request.type,
            "key": request.key,
            "match": None if request.match is None else given.encode_json(request.match),
            **query,
        }
        memory = self._limits.blob_bytes_in_memory
        return RemoteBatches(self._transport, request.topic, asked, request.partition, memory, uuid)

    def _waits_for(self, said: Durability | None) -> Durability:
        return self._reached(None if said is None else wants_sync(said))

    def _reached(self, sync: bool | None) -> Durability:
        """Return the durability that an append waits for."""
        return self._durability if sync is None else "fsync" if sync else "os"

    def _gone(self, method: str, path: tuple[str, ...]) -> None:
        """Delete something. When that was asked for twice, because the answer was lost, it may be gone already."""
        try:
            self._transport.call(method, path, repeat=True)
        except NotFound as error:
            if not error.facts.get("again"):
                raise


def _where_it_is(verb: str, topic: str | None) -> Unsupported:
    words = " ".join(filter(None, ("headwater", verb, "DIRECTORY", topic)))
    return Unsupported(
        f"a server does not {verb}", hint=f"run '{words}' where the directory is", code="needs_directory"
    )


def _after_fork() -> None:
    for remote in list(_remotes):
        remote.after_fork()


os.register_at_fork(after_in_child=_after_fork)
