"""What a server needs of a log beside the verbs of users: appends that wait for others, and places to read on from.

`Serving` is the part of `Engine` that has it; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

from headwater.engine import reading, waiting
from headwater.engine.cursor import Bell, TopicCursor
from headwater.engine.log import L, Upload
from headwater.engine.reading import Span
from headwater.engine.selection import Selection
from headwater.engine.topics import Catalogue, OpenTopic, Topics
from headwater.engine.waiting import Waiting
from headwater.errors import Closed, Invalid, TooLarge
from headwater.event import At, Content, Durability
from headwater.format import given
from headwater.format.batch import DATA
from headwater.format.column import Column
from headwater.format.contents import check_column
from headwater.format.given import Meta, Version
from headwater.format.producers import Producer
from headwater.format.settings import Topic
from headwater.limits import Limits
from headwater.storage.disk import Clock, Disk
from headwater.storage.rows import Rows


class Serving(Generic[L]):
    """The part of an open log that servers use. `Engine` makes it."""

    def __init__(
        self,
        name: str,
        catalogue: Catalogue,
        limits: Limits,
        disk: Disk,
        clock: Clock,
        new_log: Callable[[Topic, int], L],
        *,
        sync: bool,
    ) -> None:
        """`sync` says whether appends are durable unless they say otherwise; `name` is for messages."""
        self._name = name
        self._limits = limits
        self._disk = disk
        self._clock = clock
        self._sync = sync
        self._closed = False
        self._topics: Topics[L] = Topics(catalogue, limits, new_log, self.check_open)
        self._open = self._topics.open  # for appends, which look there first

    @property
    def disk(self) -> Disk:
        """Through which all of its files are written."""
        return self._disk

    @property
    def clock(self) -> Clock:
        """The time it goes by."""
        return self._clock

    def check_open(self) -> None:
        """Raise Closed if it was closed."""
        if self._closed:
            raise Closed(f"{self._name} was closed")

    def prepare(
        self,
        topic: str,
        data: bytes,
        *,
        type: str = "",
        key: bytes | None = None,
        meta: Meta | None = None,
        content: Content = "bytes",
        durability: Durability | None = None,
        partition: int | None = None,
        expected_version: Version | None = None,
        producer: Producer | tuple[str, int, int] | None = None,
    ) -> Waiting:
        """An append of one event that waits for `commit`, which may take many at once. Raises what `append` raises.

        The topic must be there, else NotFound; the data is what its content says, and not huge, else TooLarge.
        """
        opened = self._open.get(topic) or self._topics.get(topic)
        told = given.check_producer(producer, self._limits) if producer is not None else None
        log = opened.only if partition is None and opened.only else opened.choose(key, partition, told)
        limits = log.place.limits
        if len(data) > limits.blob_bytes_min or len(data) > limits.data_bytes_max:
            given.check_size(len(data), limits)
            raise TooLarge(f"{len(data)} bytes cannot wait", hint="append them alone", limit="blob_bytes_min")
        if key is not None:
            key = given.encode_key(key, limits)
        encoded_meta = given.encode_meta(meta, limits) if meta else None
        sync = self._sync if durability is None else wants_sync(durability)
        rows = Rows.one(content, sync, data, given.encode_type(type) if type else b"", key, encoded_meta)
        if expected_version is not None or producer is not None:
            rows.guard(given.check_version(expected_version, key), told)
        return Waiting(opened, log, rows)

    def prepare_encoded(self, topic: str, data: bytes, type: bytes, key: bytes | None, content: Content) -> Waiting:
        """The same for one whose type and key are bytes, and were checked: as little as can be done for an event."""
        opened = self._open.get(topic) or self._topics.get(topic)
        log = opened.only or opened.choose(key, None)
        limits = log.place.limits
        if len(data) > limits.blob_bytes_min or len(data) > limits.data_bytes_max:
            given.check_size(len(data), limits)
            raise TooLarge(f"{len(data)} bytes cannot wait", hint="append them alone", limit="blob_bytes_min")
        return Waiting(opened, log, Rows.one(content, self._sync, data, type, key))

    def upload(
        self,
        topic: str,
        *,
        type: str = "",
        key: bytes | None = None,
        meta: Meta | None = None,
        content: Content = "bytes",
        durability: Durability | None = None,
        partition: int | None = None,
        expected_version: Version | None = None,
        producer: Producer | tuple[str, int, int] | None = None,
    ) -> tuple[Upload, L]:
        """One event of any size whose pieces are yet to come, and the log that it goes to. Raises as `prepare`."""
        opened = self._topics.live(topic)
        encoded_key = given.encode_key(key, self._limits)
        guard = (
            given.check_version(expected_version, encoded_key),
            given.check_producer(producer, self._limits),
        )
        log = opened.choose(encoded_key, partition, guard[1])
        values = given.encode_type(type), encoded_key, given.encode_meta(meta, self._limits)
        sync = self._sync if durability is None else wants_sync(durability)
        return log.upload(content, *values, sync=sync, guard=guard), log

    def prepare_many(
        self,
        topic: str,
        content: Content,
        columns: dict[int, Column | None],
        count: int,
        *,
        durability: Durability | None = None,
        partition: int | None = None,
        expected_version: Version | None = None,
        producer: Producer | tuple[str, int, int] | None = None,
        checked: bool = False,
    ) -> list[Waiting]:
        """The same for many events, as columns by their kind: one append for each partition that they go to.

        `checked` says that the data is known to be what its content says. Raises Invalid for BSON that is none.
        """
        opened = self._open.get(topic) or self._topics.get(topic)
        limits = opened.logs[0].place.limits
        given.check_columns(columns, limits)
        if content == "bson" and not checked:
            check_column(columns[DATA])
        sync = self._sync if durability is None else wants_sync(durability)
        spread = len(opened.logs) > 1 and partition is None
        keys = waiting.keys_of(columns, count) if spread or expected_version is not None else None
        return self._many(opened, content, columns, count, sync, partition, keys, expected_version, producer)

    def commit(self, group: Sequence[Waiting]) -> None:
        """Commit appends that wait, those of one log with one sync; each has its place then, or its `error`."""
        self.check_open()
        waiting.commit(self._topics, group)

    def _many(
        self,
        opened: OpenTopic[L],
        content: Content,
        columns: dict[int, Column | None],
        count: int,
        sync: bool,
        partition: int | None,
        keys: Sequence[bytes | None] | None,
        expected_version: Version | None,
        producer: Producer | tuple[str, int, int] | None,
    ) -> list[Waiting]:
        limits = opened.logs[0].place.limits
        key = waiting.only_key(keys) if expected_version is not None else None
        guard = given.check_version(expected_version, key), given.check_producer(producer, limits)
        return waiting.many(
            opened, content, columns, count, sync=sync, partition=partition, keys=keys, only_key=key, guard=guard
        )

    def span(
        self,
        topic: str,
        *,
        start: At | Sequence[int] = "earliest",
        end: At | Sequence[int] = "latest",
        partition: int | None = None,
        reverse: bool = False,
        by_time: bool = False,
        **filters: Any,
    ) -> Span:
        """Like `read_batches`, with where it begins and ends, which may also be an offset for each partition.

        `by_time`: batches of several partitions come in the order of their first events; in reverse, of their last.
        """
        opened = self._topics.live(topic, partition)
        logs, selection = opened.chosen(partition), self._selection(**filters)
        return reading.span(opened.topic.uuid, logs, start, end, selection, reverse=reverse, by_time=by_time)

    def cursor(
        self,
        topic: str,
        *,
        start: At | Sequence[int] = "earliest",
        partition: int | None = None,
        type: str | None = None,
        key: bytes | str | None = None,
        match: Mapping[str, Any] | None = None,
    ) -> TopicCursor:
        """A place that moves through a topic as its user takes events; `start` may also be offsets, one a partition.

        Raises as `read_batches`.
        """
        opened = self._topics.live(topic, partition)
        logs = opened.chosen(partition)
        selection = self._selection(type, key, match)
        return TopicCursor(topic, opened.topic.uuid, logs, reading.begin(logs, start), selection)

    def topic(self, name: str) -> Topic:
        """What a topic is now: its uuid, its settings, how many partitions; raises NotFound."""
        return self._topics.live(name).topic

    def partition_log(self, topic: str, partition: int) -> L:
        """One log of a topic as it is now, for who copies it; raises NotFound."""
        return self._topics.live_logs(topic, partition)[0]

    def partition_logs(self, topic: str) -> tuple[Topic, list[L]]:
        """A topic and all its logs, as they are now; raises NotFound."""
        opened = self._topics.live(topic)
        return opened.topic, opened.logs

    def bell(self) -> Bell:
        """What a thread sleeps on until one of its cursors has more."""
        return Bell(self._disk, self._clock)

    def _selection(self, type: str | None, key: bytes | str | None, match: Mapping[str, Any] | None) -> Selection:
        return Selection(type, given.encode_key(key, self._limits), match)


def wants_sync(durability: str) -> bool:
    """Whether a durability means that appends are synced; raises Invalid for an unknown one."""
    if durability not in ("fsync", "os"):
        raise Invalid(f"durability {durability!r} is unknown", hint="it is 'fsync' or 'os'")
    return durability == "fsync"
