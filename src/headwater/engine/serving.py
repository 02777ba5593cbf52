"""What a server needs of a log beside the verbs of users: appends that wait for others, and places to read on from.

`ServedTopics` is the part of `Engine` that has it; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Unpack

from headwater.engine import reading, waiting
from headwater.engine.cursor import CursorBell, TopicCursor
from headwater.engine.log import EventUpload, L
from headwater.engine.reading import TopicRead
from headwater.engine.topics import Catalog, OpenTopics
from headwater.engine.waiting import PendingAppend
from headwater.errors import Closed, TooLarge
from headwater.event import At, Content
from headwater.format import given
from headwater.format.settings import TopicRecord
from headwater.limits import Limits
from headwater.match.selection import Selection
from headwater.requests import Append, AppendMany, FilterOptions
from headwater.storage.disk import Clock, Disk
from headwater.storage.rows import Rows


class ServedTopics(Generic[L]):
    """The part of an open log that servers use. `Engine` makes it."""

    def __init__(
        self,
        name: str,
        catalogue: Catalog,
        limits: Limits,
        disk: Disk,
        clock: Clock,
        new_log: Callable[[TopicRecord, int], L],
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
        self._topics: OpenTopics[L] = OpenTopics(catalogue, limits, new_log, self.check_open)
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

    def prepare(self, request: Append) -> PendingAppend:
        """Return an append of one event that waits for `commit`, which may take many at once; raises as `append`.

        The topic must be there, else NotFound; the data is in memory and not huge, else TooLarge.
        """
        opened = self._open.get(request.topic) or self._topics.get(request.topic)
        partition, producer, data = request.partition, request.producer, request.data
        log = opened.only if partition is None and opened.only else opened.choose(request.key, partition, producer)
        limits = log.place.limits
        if not isinstance(data, bytes) or len(data) > limits.blob_bytes_min or len(data) > limits.data_bytes_max:
            raise _cannot_wait(data, limits)
        return PendingAppend(opened, log, self._rows(request, data))

    def _rows(self, request: Append, data: bytes) -> Rows:
        sync = self._sync if request.sync is None else request.sync
        rows = Rows.one(request.content, sync, data, request.type, request.key, request.meta)
        if request.expected is not None or request.producer is not None:
            rows.guard(request.expected, request.producer)
        return rows

    def prepare_encoded(
        self, topic: str, data: bytes, type: bytes, key: bytes | None, content: Content
    ) -> PendingAppend:
        """The same for one whose type and key are bytes, and were checked: as little as can be done for an event."""
        opened = self._open.get(topic) or self._topics.get(topic)
        log = opened.only or opened.choose(key, None)
        limits = log.place.limits
        if len(data) > limits.blob_bytes_min or len(data) > limits.data_bytes_max:
            raise _cannot_wait(data, limits)
        return PendingAppend(opened, log, Rows.one(content, self._sync, data, type, key))

    def upload(self, request: Append) -> tuple[EventUpload, L]:
        """Return an upload of one event of any size, whose pieces follow, and its log; raises as `prepare`."""
        opened = self._topics.live(request.topic)
        log = opened.choose(request.key, request.partition, request.producer)
        return self._upload(log, request), log

    def _upload(self, log: L, request: Append) -> EventUpload:
        values = request.type, request.key, request.meta
        sync = self._sync if request.sync is None else request.sync
        return log.upload(request.content, *values, sync=sync, guard=(request.expected, request.producer))

    def prepare_many(self, request: AppendMany) -> list[PendingAppend]:
        """Return appends of many events that wait for `commit`: one for each partition that they go to."""
        opened = self._open.get(request.topic) or self._topics.get(request.topic)
        return waiting.many(opened, request, sync=self._sync if request.sync is None else request.sync)

    def commit(self, group: Sequence[PendingAppend]) -> None:
        """Commit appends that wait, those of one log with one sync; each has its place then, or its `error`."""
        self.check_open()
        waiting.commit(self._topics, group)

    def span(
        self,
        topic: str,
        *,
        start: At | Sequence[int] = "earliest",
        end: At | Sequence[int] = "latest",
        partition: int | None = None,
        reverse: bool = False,
        by_time: bool = False,
        **filters: Unpack[FilterOptions],
    ) -> TopicRead:
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
        **filters: Unpack[FilterOptions],
    ) -> TopicCursor:
        """A place that moves through a topic as its user takes events; `start` may also be offsets, one a partition.

        Raises as `read_batches`.
        """
        opened = self._topics.live(topic, partition)
        logs = opened.chosen(partition)
        selection = self._selection(**filters)
        return TopicCursor(topic, opened.topic.uuid, logs, reading.begin(logs, start), selection)

    def topic(self, name: str) -> TopicRecord:
        """What a topic is now: its uuid, its settings, how many partitions; raises NotFound."""
        return self._topics.live(name).topic

    def partition_log(self, topic: str, partition: int) -> L:
        """One log of a topic as it is now, for who copies it; raises NotFound."""
        return self._topics.live_logs(topic, partition)[0]

    def partition_logs(self, topic: str) -> tuple[TopicRecord, list[L]]:
        """A topic and all its logs, as they are now; raises NotFound."""
        opened = self._topics.live(topic)
        return opened.topic, opened.logs

    def bell(self) -> CursorBell:
        """What a thread sleeps on until one of its cursors has more."""
        return CursorBell(self._disk, self._clock)

    def _selection(self, **filters: Unpack[FilterOptions]) -> Selection:
        """Compile filters; raises Invalid for a bad pattern or match."""
        return Selection(filters.get("type"), given.encode_key(filters.get("key"), self._limits), filters.get("match"))


def _cannot_wait(data: object, limits: Limits) -> TooLarge:
    size = len(data) if isinstance(data, bytes) else 0
    given.check_size(size, limits)
    return TooLarge(f"{size} bytes cannot wait", hint="append them alone", limit="blob_bytes_min")
