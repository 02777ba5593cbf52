"""What a directory and a bucket have in common: a backend that keeps its logs itself. Safe from any thread.

`LogBackend` implements the verbs of `Backend` that need nothing but the protocol of one log (log/log.py), and what a
server needs beside them: appends that wait to be committed together, and cursors to read on from. `Directory` and
`Bucket` add what is their own: topics, transactions, retention, checks.
"""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Generic, Protocol, Unpack
from weakref import WeakSet

from headwater.backend import KnownProducers
from headwater.disk.disk import Clock, Disk
from headwater.errors import Closed, NotFound, TooLarge, enough_memory
from headwater.event import Event, Ref, Refs
from headwater.format import given
from headwater.format.events import EventBatch
from headwater.format.producers import Producer
from headwater.format.settings import TopicRecord, TopicSettings
from headwater.info import Split
from headwater.limits import Limits
from headwater.log import pending as waiting
from headwater.log import reading
from headwater.log import reading as splitting
from headwater.log.follow import LogFollow
from headwater.log.log import EventUpload, L
from headwater.log.open_topics import Catalog, OpenTopic, OpenTopics
from headwater.log.pending import PendingAppend
from headwater.log.reading import TopicRead
from headwater.log.rows import Rows
from headwater.log.topic_cursor import CursorBell, TopicCursor
from headwater.match.matcher import Selection
from headwater.position import Positions
from headwater.requests import Append, AppendMany, FilterOptions, Read, no_holder
from headwater.transaction import Transaction


class TopicCatalog(Catalog, Protocol):
    """Which topics there are, all of them."""

    def list(self) -> builtins.list[str]:
        """Return their names, sorted; empty if there are none."""


class LogMember(Protocol):
    """A member of a consumer that reads these logs, and ends with them."""

    def holds(self, event: Event) -> bool: ...
    def close(self) -> None: ...
    def after_fork(self) -> None: ...


class LogBackend(Generic[L]):
    """Topics of logs, open. Its subclasses are the backends; they set the catalog first."""

    _catalogue: TopicCatalog
    producers_max: ClassVar[int]  # which a log remembers

    def __init__(self, name: str, limits: Limits, disk: Disk, clock: Clock, *, sync: bool) -> None:
        """`sync` says whether appends are durable unless they say otherwise; `name` is for messages."""
        self._name = name
        self._limits = limits
        self.disk = disk
        self.clock = clock
        self._sync = sync
        self._closed = False
        self._topics: OpenTopics[L] = OpenTopics(self._catalogue, limits, self._new_log, self.check_open)
        self._open = self._topics.open  # for appends, which look there first
        self.members: WeakSet[LogMember] = WeakSet()  # which end with this object

    @abstractmethod
    def _new_log(self, topic: TopicRecord, partition: int) -> L:
        """Open one partition of a topic."""

    @abstractmethod
    def transaction(self, sync: bool | None, producer: Producer | None) -> Transaction:
        """Begin appends that happen together or not at all."""

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def closed(self) -> bool:
        """Return whether it was closed."""
        return self._closed

    def check_open(self) -> None:
        """Raise Closed if it was closed."""
        if self._closed:
            raise Closed(f"{self._name} was closed")

    # Topics

    def create(self, topic: str, partitions: int, settings: TopicSettings) -> bool:
        self.check_open()
        return self._catalogue.create(topic, partitions, settings)

    def topics(self) -> list[str]:
        self.check_open()
        return self._catalogue.list()

    def topic(self, name: str) -> TopicRecord:
        """Return what a topic is now: its uuid, its settings, how many partitions; raises NotFound."""
        return self._topics.live(name).topic

    def opened(self, name: str, partition: int | None = None) -> OpenTopic[L]:
        """Return a topic as it is now, with its logs; raises NotFound. With a partition, only that one is looked at."""
        return self._topics.live(name, partition)

    def topic_for(self, topic: str) -> OpenTopic[L]:
        """Return a topic as it is now, for a transaction; it is created if it is missing."""
        opened = self._open.get(topic) or self._topics.for_append(topic)
        if opened.deleted():
            self._topics.forget(opened)
            opened = self._topics.for_append(topic)
        return opened

    # Appending

    def append(self, request: Append) -> Ref:
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
                rows = self.rows(request, data)
                try:
                    log.append(rows)
                except NotFound:
                    log = self._topics.commit_to_successor(opened, log, rows)
        place = log.place
        return Ref(place.topic, place.partition, rows.offset, rows.ticks, log.node, "fsync" if rows.sync else "os")

    def append_many(self, request: AppendMany) -> Refs:
        if not request.create:
            parts = self.prepare_many(request)
            self.commit(parts)
            return waiting.refs(request.topic, parts)
        opened = self._open.get(request.topic) or self._topics.for_append(request.topic)
        if not request.count:
            return Refs(request.topic, "fsync" if self._wants_sync(request.sync) else "os", ())
        parts = waiting.many(opened, request, sync=self._wants_sync(request.sync))
        for part in parts:
            part.log = self._topics.commit(opened, opened.logs[part.log.partition], part.rows)
        return waiting.refs(request.topic, parts)

    def producers(self, topic: str, partition: int) -> KnownProducers:
        return KnownProducers(self.partition_log(topic, partition).producers()[1].keys(), self.producers_max)

    def sync(self, topic: str) -> None:
        for log in self._topics.live(topic).logs:
            log.sync()

    def holder(self, event: Event) -> LogMember:
        """Return the consumer that handed out an event; raises Invalid if that is not one of those opened here."""
        found = [member for member in list(self.members) if member.holds(event)]
        if len(found) != 1:
            raise no_holder(event, several=bool(found))
        return found[0]

    # Appends that wait to be committed together

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
        return PendingAppend(opened, log, self.rows(request, data))

    def prepare_many(self, request: AppendMany) -> list[PendingAppend]:
        """Return appends of many events that wait for `commit`: one for each partition that they go to."""
        opened = self._open.get(request.topic) or self._topics.get(request.topic)
        return waiting.many(opened, request, sync=self._wants_sync(request.sync))

    def commit(self, group: Sequence[PendingAppend]) -> None:
        """Commit appends that wait, those of one log with one sync; each has its place then, or its `error`."""
        self.check_open()
        waiting.commit(self._topics, group)

    def upload(self, request: Append) -> tuple[EventUpload, L]:
        """Return an upload of one event of any size, whose pieces follow, and its log; raises as `prepare`."""
        opened = self._topics.live(request.topic)
        log = opened.choose(request.key, request.partition, request.producer)
        return self._upload(log, request), log

    def rows(self, request: Append, data: bytes) -> Rows:
        """Return the rows of an append of one event."""
        rows = Rows(request.content, self._sync if request.sync is None else request.sync)  # as `Rows.one`, less a call
        rows.data, rows.type, rows.key, rows.meta = data, request.type, request.key, request.meta
        rows.size = len(data)
        if request.expected is not None or request.producer is not None:
            rows.guard(request.expected, request.producer)
        return rows

    # Reading

    def read(self, request: Read) -> Iterator[Event]:
        logs = self._topics.live_logs(request.topic, request.partition)
        return reading.read_events(logs, request, _selection(request))

    def read_batches(self, request: Read) -> Iterator[EventBatch]:
        logs = self._topics.live_logs(request.topic, request.partition)
        return reading.read_batches(logs, request, _selection(request))

    def follow(self, request: Read, timeout: float | None) -> LogFollow:
        logs = self._topics.live_logs(request.topic, request.partition)
        starts = reading.begin(logs, request.start)
        return LogFollow(logs, starts, _selection(request), timeout, self.disk, self.clock, lambda: self._closed)

    def splits(
        self, topic: str, start: Positions, end: Positions, partition: int | None, split_bytes: int
    ) -> list[Split]:
        return splitting.splits(self._topics.live_logs(topic, partition), start, end, split_bytes)

    @enough_memory("the key cannot be looked up")
    def version(self, topic: str, key: bytes, partition: int | None) -> int | None:
        return self._topics.live(topic).choose(key, partition).version(key)

    def span(self, request: Read, *, by_time: bool = False) -> TopicRead:
        """Return a read by batches that has not begun, with where it begins and ends.

        `by_time`: batches of several partitions come in the order of their first events; in reverse, of their last.
        """
        opened = self._topics.live(request.topic, request.partition)
        logs = opened.chosen(request.partition)
        return reading.span(
            opened.topic.uuid,
            logs,
            request.start,
            request.end,
            _selection(request),
            reverse=request.reverse,
            by_time=by_time,
        )

    def cursor(
        self,
        topic: str,
        *,
        start: Positions = "earliest",
        partition: int | None = None,
        **filters: Unpack[FilterOptions],
    ) -> TopicCursor:
        """Return a cursor that moves through a topic as its user takes events; raises as `read_batches`."""
        opened = self._topics.live(topic, partition)
        logs = opened.chosen(partition)
        selection = _selection(Read.of(topic, self._limits, **filters))
        return TopicCursor(topic, opened.topic.uuid, logs, reading.begin(logs, start), selection)

    def partition_log(self, topic: str, partition: int) -> L:
        """Return one log of a topic as it is now; raises NotFound."""
        return self._topics.live_logs(topic, partition)[0]

    def bell(self) -> CursorBell:
        """Return what a thread sleeps on until one of its cursors has more."""
        return CursorBell(self.disk, self.clock)

    def _upload(self, log: L, request: Append) -> EventUpload:
        values = request.type, request.key, request.meta
        sync = self._wants_sync(request.sync)
        return log.upload(request.content, *values, sync=sync, guard=(request.expected, request.producer))

    def _wants_sync(self, sync: bool | None) -> bool:
        return self._sync if sync is None else sync


def _selection(request: Read) -> Selection:
    """Compile the filters of a request; raises Invalid for a bad pattern or match."""
    return Selection(request.type, request.key, request.match)


@enough_memory("a huge event cannot be appended")
def _take_all(upload: EventUpload, pieces: Iterable[bytes]) -> Rows:
    try:
        for piece in pieces:
            upload.write(piece)
        return upload.commit()
    finally:
        upload.discard()


def _cannot_wait(data: object, limits: Limits) -> TooLarge:
    size = len(data) if isinstance(data, bytes) else 0
    given.check_size(size, limits)
    return TooLarge(f"{size} bytes are too many to append in the background", hint="use append", limit="blob_bytes_min")
