"""Requests to a store, as frozen records that are checked once, here.

Every entry point decodes into them: the verbs of Python, HTTP, TCP, transactions, functions, the command line, import
and Spark. A record holds bytes as a batch stores them, so nothing behind it encodes or checks again; what depends on
the topic (its partitions, its own limits) is checked where the topic is open. A new option of `append` is a field here,
a line in `AppendOptions`, and one line for each wire. Immutable; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, TypedDict, Unpack

import msgspec

from headwater.errors import Invalid
from headwater.event import Content, Durability, Event
from headwater.format import given
from headwater.format.batch import DATA, KEY
from headwater.format.column import Column
from headwater.format.contents import check_column, check_data
from headwater.format.given import Data, Meta, Version
from headwater.format.producers import Producer
from headwater.limits import Limits
from headwater.position import Position, Positions

ProducerLike = Producer | tuple[str, int, int]
"""A producer: its id, epoch and seq."""


class EventOptions(TypedDict, total=False):
    """The options of one event: those of `append` that a transaction takes, too."""

    type: str
    key: bytes | str | None
    meta: Meta | None
    content: Content | None
    partition: int | None
    expected_version: Version | None


class AppendOptions(EventOptions, total=False):
    """The options of `append`."""

    durability: Durability | None
    producer: ProducerLike | None


class ManyOptions(TypedDict, total=False):
    """The options of `append_many` that a transaction takes, too: `types`, `keys` and `metas` are for each event."""

    types: Sequence[str] | str
    keys: Sequence[bytes | str | None] | None
    metas: Sequence[Meta | None] | None
    content: Content | None
    partition: int | None


class FilterOptions(TypedDict, total=False):
    """The filters of `read`, of followers and of consumers."""

    type: str | None
    key: bytes | str | None
    match: Mapping[str, Any] | None


class ReadOptions(FilterOptions, total=False):
    """The options of `read`."""

    start: Positions
    end: Positions
    partition: int | None
    reverse: bool


class ConsumeOptions(FilterOptions, total=False):
    """The options of `consumer`, which `drain` takes, too."""

    start: Position
    timeout: float | None
    lease_ms: int | None
    failures_max: int | None


class Read(msgspec.Struct, frozen=True):
    """The events to read: from where to where, and which of them."""

    topic: str
    start: Positions = "earliest"
    end: Positions = "latest"
    partition: int | None = None
    reverse: bool = False
    type: str | None = None  # an RE2 pattern over the whole type
    key: bytes | None = None
    match: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, topic: str, limits: Limits, **options: Unpack[ReadOptions]) -> Read:
        """Check what a user gives; raises Invalid and TooLarge. Pattern and match are checked as they are compiled."""
        if options.get("key") is not None:
            options["key"] = given.encode_key(options["key"], limits)
        return cls(topic, **options)  # type: ignore[arg-type]  # the key is bytes now


class Consume(msgspec.Struct, frozen=True):
    """The consumer to join, and the events that it wants."""

    consumer: str
    topic: str
    start: Position = "earliest"  # of a consumer that is new
    timeout: float | None = None
    lease_ms: int | None = None
    failures_max: int | None = None
    type: str | None = None
    key: bytes | None = None
    match: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, consumer: str, topic: str, limits: Limits, **options: Unpack[ConsumeOptions]) -> Consume:
        """Check what a user gives; raises Invalid and TooLarge. Pattern and match are checked as they are compiled."""
        if options.get("key") is not None:
            options["key"] = given.encode_key(options["key"], limits)
        return cls(consumer, topic, **options)  # type: ignore[arg-type]  # the key is bytes now


class Drain(Consume, frozen=True):
    """The consumer to drain: for how many seconds, and of which partitions; None means: all there is, of all."""

    seconds: float | None = None
    partitions: frozenset[int] | None = None


class Append(msgspec.Struct, frozen=True, gc=False):
    """One event to append."""

    topic: str
    data: bytes | IO[bytes] | Iterator[bytes]  # a file or an iterator for a huge event
    content: Content
    type: bytes = b""
    key: bytes | None = None
    meta: bytes | None = None
    partition: int | None = None
    sync: bool | None = None  # None: as the store was opened
    expected: int | None = None  # the key's version; -1: it must have none
    producer: Producer | None = None
    as_stored: bool = False  # a stream that is copied from a log, and is not checked against its content

    @classmethod
    def of(
        cls,
        topic: str,
        data: Data | IO[bytes] | Iterator[bytes],
        limits: Limits,
        *,
        type: str = "",
        key: bytes | str | None = None,
        meta: Meta | None = None,
        content: Content | None = None,
        durability: Durability | None = None,
        partition: int | None = None,
        expected_version: Version | None = None,
        producer: ProducerLike | None = None,
        checked: bool = False,
    ) -> Append:
        """Check and encode what a user gives; raises Invalid and TooLarge. A stream is checked as it is read.

        `checked` says that the data is known to be what its content says.
        """
        if content is not None:
            given.check_content(content)
        encoded: Any
        if data.__class__ is bytes:
            encoded, content = data, content or "bytes"
            if content != "bytes" and not checked:
                check_data(encoded, content)
        elif given.is_stream(data):
            encoded, content = data, content or "bytes"
        else:
            encoded, content = given.encode_data(data, content)  # type: ignore[arg-type]  # it is not a stream
        encoded_key = given.encode_key(key, limits) if key is not None else None
        return cls(
            topic,
            encoded,
            content,
            given.encode_type(type) if type else b"",
            encoded_key,
            given.encode_meta(meta, limits) if meta else None,
            partition,
            wants_sync(durability) if durability is not None else None,
            given.check_version(expected_version, encoded_key) if expected_version is not None else None,
            given.check_producer(producer, limits) if producer is not None else None,
        )


class AppendMany(msgspec.Struct, frozen=True, gc=False):
    """Many events to append to one topic: all or nothing in each partition."""

    topic: str
    content: Content
    columns: dict[int, Column | None]
    count: int
    partition: int | None = None
    sync: bool | None = None
    key: bytes | None = None  # of all events, where a version is expected
    expected: int | None = None
    producer: Producer | None = None
    create: bool = True  # the topic, if it is missing

    @classmethod
    def of(
        cls,
        topic: str,
        content: Content,
        columns: dict[int, Column | None],
        count: int,
        limits: Limits,
        *,
        durability: Durability | None = None,
        partition: int | None = None,
        expected_version: Version | None = None,
        producer: ProducerLike | None = None,
        checked: bool = False,
        create: bool = True,
        first: int = 0,
    ) -> AppendMany:
        """Check the options for columns; raises Invalid. Their sizes are checked where the topic is open.

        `checked` says that the data is known to be what its content says; `first` is the index of the first event in
        what the user gave.
        """
        if not checked:
            check_column(columns[DATA], content, first=first)
        key = None
        if expected_version is not None:
            key = _only_key(columns.get(KEY))
        sync = wants_sync(durability) if durability is not None else None
        expected = given.check_version(expected_version, key)
        stamp = given.check_producer(producer, limits) if producer is not None else None
        return cls(topic, content, columns, count, partition, sync, key, expected, stamp, create)

    @classmethod
    def of_events(
        cls,
        topic: str,
        data: Sequence[Data],
        limits: Limits,
        *,
        types: Sequence[str] | str = "",
        keys: Sequence[bytes | str | None] | None = None,
        metas: Sequence[Meta | None] | None = None,
        content: Content | None = None,
        durability: Durability | None = None,
        partition: int | None = None,
        expected_version: Version | None = None,
        producer: ProducerLike | None = None,
    ) -> AppendMany:
        """Check and encode many events that a user gives; raises Invalid and TooLarge. Of none, nothing is expected."""
        given.check_content(content)
        if len(data):
            content, columns = given.encode_many(data, content, types, keys, metas, limits)
        else:
            content, columns, expected_version = content or "bytes", {}, None
        return cls.of(
            topic,
            content,
            columns,
            len(data),
            limits,
            durability=durability,
            partition=partition,
            expected_version=expected_version,
            producer=producer,
            checked=True,
        )


def wants_sync(durability: str) -> bool:
    """Tell whether appends of a durability are synced; raises Invalid for an unknown one."""
    if durability not in ("fsync", "os"):
        raise Invalid(f"durability {durability!r} is unknown", hint="it is 'fsync' or 'os'")
    return durability == "fsync"


def no_holder(event: Event, *, several: bool) -> Invalid:
    """Return the error for an event that is acked in a transaction, and not held by exactly one consumer."""
    held = "several consumers hold" if several else "no consumer that was opened here holds"
    return Invalid(
        f"{held} offset {event.offset} of topic {event.topic!r}, partition {event.partition}",
        hint="name the consumer: tx.ack(event, consumer=…)" if several else "another member may have taken it over",
        code="no_holder",
    )


def _only_key(keys: Column | None) -> bytes | None:
    """Return the key that all events share; raises Invalid if they have several."""
    distinct = set() if keys is None else set(keys.values(0, keys.count))
    if len(distinct) > 1:
        hint = "append them one by one, or in a transaction"
        raise Invalid("expected_version applies to one key, but the events have several", hint=hint)
    return distinct.pop() if distinct else None
