"""The verbs on a log directory. `Engine` is what `headwater.open("data")` returns; safe from any thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count as counter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Self
from weakref import WeakSet

import msgspec
import numpy as np

from headwater.engine import appending, batches, checking, reading
from headwater.engine.appending import Data, Meta
from headwater.engine.batches import EventBatch
from headwater.engine.catalogue import Catalogue
from headwater.engine.checking import CheckReport, Progress
from headwater.engine.follow import Follow
from headwater.engine.info import TopicInfo, partition_info
from headwater.engine.reading import At
from headwater.engine.selection import Selection
from headwater.errors import Closed, Invalid, NotFound, Unavailable
from headwater.event import Content, Durability, Event, Ref, Refs, Run
from headwater.format import arrow
from headwater.format.names import partition_of, partitions_of
from headwater.format.settings import Topic, TopicSettings
from headwater.limits import DEFAULTS, Limits
from headwater.storage.disk import Clock, Disk
from headwater.storage.log import LocalLog
from headwater.storage.place import Place
from headwater.storage.repair import Action
from headwater.storage.rows import Rows
from headwater.storage.sealer import Sealer, seal_all

if TYPE_CHECKING:
    import pyarrow as pa

_engines: WeakSet[Engine] = WeakSet()  # which must begin anew in a forked child

ARROW_BYTES = 8 * 1024 * 1024  # how much of a table goes into one batch


class OpenTopic:
    """A topic in use: its settings and one log per partition."""

    __slots__ = ("logs", "only", "rounds", "topic")

    def __init__(self, topic: Topic, logs: list[LocalLog]) -> None:
        self.topic = topic
        self.logs = logs
        self.only = logs[0] if len(logs) == 1 else None
        self.rounds = counter()

    def chosen(self, partition: int | None) -> list[LocalLog]:
        """The log of one partition, or all of them."""
        if partition is None:
            return self.logs
        if not 0 <= partition < len(self.logs):
            raise NotFound(
                f"topic {self.topic.name!r} has no partition {partition}",
                hint=f"it has {len(self.logs)}, from 0",
                code="partition_not_found",
            )
        return [self.logs[partition]]


class Engine:
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
        self._sync = _wants_sync(durability)
        self._limits = limits
        self._disk = disk or Disk()
        self._clock = clock or Clock()
        self._catalogue = Catalogue(path, self._disk, self._clock, limits)
        if create:
            self._catalogue.init()
        self._store = self._catalogue.open()
        self._sealer = Sealer()
        self._mutex = threading.Lock()  # protects `_open`
        self._open: dict[str, OpenTopic] = {}
        self._closed = False
        _engines.add(self)

    @property
    def path(self) -> Path:
        """The directory."""
        return self._catalogue.path

    @property
    def uuid(self) -> str:
        """What identifies this log directory, wherever it is moved."""
        return self._store.uuid

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
    ) -> bool:
        """Make a topic, durably. True if it is new, False if it is there; Invalid if it has other partitions.

        Settings that are 0 follow the limits of whoever opens the log.
        """
        self._check_open()
        chosen = TopicSettings(
            segment_bytes=segment_bytes,
            segment_age_ms=segment_age_ms,
            data_bytes_max=data_bytes_max,
            compression=compression,
        )
        return self._catalogue.create(topic, partitions, chosen)

    def topics(self) -> list[str]:
        """The names of all topics, sorted; empty if there are none."""
        self._check_open()
        return self._catalogue.list()

    def describe(self, topic: str) -> TopicInfo:
        """What a topic is and holds; raises NotFound."""
        opened = self._live(topic)
        described = opened.topic
        partitions = [partition_info(log) for log in opened.logs]
        return TopicInfo(
            name=described.name,
            uuid=described.uuid,
            settings=msgspec.to_builtins(described.settings),
            partitions=partitions,
        )

    def delete(self, topic: str) -> None:
        """Delete a topic and all its events, for every process; raises NotFound. Made again, it starts afresh."""
        opened = self._live(topic)
        with ExitStack() as stack:
            for log in opened.logs:  # in the order of partitions, as everybody who locks several
                stack.enter_context(log.deleting())
            try:
                self._catalogue.remove(opened.topic)
            except OSError as error:
                raise Unavailable(f"topic {topic!r} cannot be deleted: {error.strerror}") from error
        self._forget(opened)
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
    ) -> Ref:
        """Append one event; returns where it is once it is durable. Makes the topic if it is not there.

        `data` may be bytes, text (str), JSON (dict or list), or, for huge events, an open binary file or an iterator of
        bytes, which is streamed with bounded memory. Appends of several threads that wait together share one sync.
        """
        opened = self._open.get(topic) or self._topic_for_append(topic)
        sync = self._sync if durability is None else _wants_sync(durability)
        if content is not None:
            appending.check_content(content)
        encoded_type = appending.encode_type(type) if type else b""
        encoded_key = appending.encode_key(key, self._limits) if key is not None else None
        encoded_meta = appending.encode_meta(meta, self._limits) if meta else None
        log = opened.only if partition is None and opened.only else self._choose(opened, encoded_key, partition)
        if data.__class__ is not bytes and appending.is_stream(data):
            log = self._living(opened, log)
            pieces = appending.pieces(data)  # type: ignore[arg-type]  # it is a stream
            rows = log.append_stream(pieces, content or "bytes", encoded_type, encoded_key, encoded_meta, sync=sync)
        else:
            if data.__class__ is bytes:
                encoded, content = data, content or "bytes"
            else:
                encoded, content = appending.encode_data(data, content)  # type: ignore[arg-type]  # not a stream
            limits = log.place.limits
            if len(encoded) > limits.data_bytes_max:
                appending.check_size(len(encoded), limits)
            if len(encoded) > limits.blob_bytes_min:
                whole = iter((encoded,))
                log = self._living(opened, log)
                rows = log.append_stream(whole, content, encoded_type, encoded_key, encoded_meta, sync=sync)
            else:
                rows = Rows.one(content, sync, encoded, encoded_type, encoded_key, encoded_meta)
                log = self._commit(opened, log, rows)
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
    ) -> Refs:
        """Append many events: all or nothing in each partition. Above a limit: TooLarge, and nothing is appended.

        Without keys, all go to one partition. The references are in the order of `data`; none if that is empty.
        """
        opened = self._open.get(topic) or self._topic_for_append(topic)
        sync = self._sync if durability is None else _wants_sync(durability)
        reached: Durability = "fsync" if sync else "os"
        appending.check_content(content)
        if not len(data):
            return Refs(topic, reached, ())
        limits = opened.logs[0].place.limits
        content, columns, encoded_keys = appending.encode_many(data, content, types, keys, metas, limits)
        if len(opened.logs) == 1 or partition is not None or encoded_keys is None:
            log = self._choose(opened, None, partition)
            rows = Rows.many(content, sync, columns, len(data))
            log = self._commit(opened, log, rows)
            return Refs(topic, reached, [Run(log.place.partition, log.node, rows.offset, rows.ticks, rows.count)])
        runs, places = [], []
        for chosen, where in self._spread(opened, encoded_keys):
            some = {kind: None if column is None else column.pick(where) for kind, column in columns.items()}
            rows = Rows.many(content, sync, some, len(where))
            log = self._commit(opened, chosen, rows)
            runs.append(Run(log.place.partition, log.node, rows.offset, rows.ticks, rows.count))
            places.append(where.tolist())
        return Refs(topic, reached, runs, places)

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
        pa = arrow.pyarrow()
        opened = self._open.get(topic) or self._topic_for_append(topic)
        sync = self._sync if durability is None else _wants_sync(durability)
        appending.check_content(content)
        whole: Any = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
        rows_per_batch = max(1, min(self._limits.pack_events, ARROW_BYTES * whole.num_rows // max(1, whole.nbytes)))
        runs: list[Run] = []
        logs: dict[int, LocalLog] = {}
        for batch in whole.to_batches(max_chunksize=rows_per_batch):
            if not batch.num_rows:
                continue
            for chosen, part in self._spread_arrow(opened, batch, partition):
                batch_content, columns = arrow.columns_of(part, content)
                appending.check_columns(columns, chosen.place.limits)
                rows = Rows.many(batch_content, False, columns, part.num_rows)
                log = logs[chosen.place.partition] = self._commit(opened, chosen, rows)
                runs.append(Run(log.place.partition, log.node, rows.offset, rows.ticks, rows.count))
        if sync:
            for number in sorted(logs):
                logs[number].sync()
        return Refs(topic, "fsync" if sync else "os", runs)

    def sync(self, topic: str) -> None:
        """Make all events of a topic durable that were appended with durability `os`."""
        for log in self._live(topic).logs:
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
        reverse: bool = False,
    ) -> Iterator[Event]:
        """The events from `start` to before `end`, up to what is there now; with several partitions, in order of time.

        `type` is an RE2 pattern over the whole type. Raises NotFound for a missing topic, Corrupt on damage.
        """
        logs = self._live(topic).chosen(partition)
        return reading.read_events(logs, start, end, self._selection(type, key), reverse=reverse)

    def read_batches(
        self,
        topic: str,
        *,
        start: At = "earliest",
        end: At = "latest",
        partition: int | None = None,
        type: str | None = None,
        key: bytes | str | None = None,
        reverse: bool = False,
    ) -> Iterator[EventBatch]:
        """Like `read`, batch by batch, partition after partition. In reverse, the last batch comes first."""
        logs = self._live(topic).chosen(partition)
        return reading.read_batches(logs, start, end, self._selection(type, key), reverse=reverse)

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
    ) -> pa.Table:
        """Like `read_batches`, as one Arrow table that points into the log's files; empty if there is nothing."""
        found = self.read_batches(topic, start=start, end=end, partition=partition, type=type, key=key)
        return batches.table(found, columns)

    def version(self, topic: str, key: bytes | str, *, partition: int | None = None) -> int | None:
        """The offset of the key's last event; None if there is none. With several partitions, of the key's own one."""
        opened = self._live(topic)
        encoded = appending.encode_key(key, self._limits)
        if encoded is None:
            raise Invalid("events without a key have no version", hint="give a key; the empty one is one too")
        return self._choose(opened, encoded, partition).version(encoded)

    def follow(
        self,
        topic: str,
        *,
        start: At = "latest",
        timeout: float | None = None,
        partition: int | None = None,
        type: str | None = None,
        key: bytes | str | None = None,
    ) -> Follow:
        """The events from `start` on, then those that come, from any process, until `timeout` seconds bring none."""
        logs = self._live(topic).chosen(partition)
        selection = self._selection(type, key)
        return Follow(logs, start, selection, timeout, self._disk, self._clock, lambda: self._closed)

    # Keeping

    def seal(self, topic: str) -> int:
        """Finish the active segments of a topic, pack and index all that is finished; returns how many were sealed."""
        logs = self._live(topic).logs
        for log in logs:
            log.roll(tell=False)
        return sum(seal_all(log.place) for log in logs)

    def reindex(self, topic: str | None = None, progress: Progress | None = None) -> int:
        """Make the indexes of a topic, or of all, again from the segments; returns how many. They are never truth.

        `progress` is called with the bytes that are done, and all of them.
        """
        names = self.topics() if topic is None else [topic]
        return checking.reindex([log.place for name in names for log in self._live(name).logs], progress)

    def check(self, topic: str | None = None, progress: Progress | None = None) -> CheckReport:
        """Verify every checksum and invariant of a topic, or of all; changes nothing.

        `progress` is called with the bytes that are done, and all of them.
        """
        self._check_open()
        return checking.check(self._catalogue, topic, progress)

    def repair(self, topic: str | None = None, *, apply: bool = False) -> list[Action]:
        """What would mend a topic, or all; done only with `apply`. What is cut is kept beside the log."""
        self._check_open()
        if not apply:
            return checking.plan(self._catalogue, topic)
        done, names = checking.hopeless(self._catalogue, topic)
        return done + [action for name in names for log in self._topic(name).logs for action in log.repair()]

    def after_fork(self) -> None:
        """In a forked child, where it is called by itself: begin anew, with descriptors and locks of its own."""
        self._mutex = threading.Lock()
        self._sealer = Sealer()
        for opened in self._open.values():
            for log in opened.logs:
                log.after_fork()

    def close(self) -> None:
        """Stop followers and sealing, wait for appends under way, and let go of all files. May be called twice."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            opened = list(self._open.values())
            self._open.clear()
        self._sealer.close()
        for topic in opened:
            for log in topic.logs:
                log.stop_followers()
                log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.path} was closed")

    def _topic(self, name: str) -> OpenTopic:
        opened = self._open.get(name)
        if opened is None:
            self._check_open()
            topic = self._catalogue.find(name)
            with self._mutex:
                opened = self._open.get(name)
                if opened is None:
                    if len(self._open) >= self._limits.open_topics_max:
                        raise Unavailable(
                            f"{len(self._open)} topics are open",
                            hint="raise open_topics_max, or open the log again",
                            code="too_many_open_topics",
                        )
                    places = [self._catalogue.place(topic, number) for number in range(topic.partitions)]
                    logs = [LocalLog(place, self._rolled, self._damaged) for place in places]
                    opened = self._open[name] = OpenTopic(topic, logs)
        return opened

    def _rolled(self, place: Place) -> None:
        self._sealer.rolled(place)

    def _damaged(self, place: Place, base: int) -> None:
        self._sealer.damaged(place, base)

    def _live(self, name: str) -> OpenTopic:
        """The topic as it is now, also when another process deleted it and made it again."""
        opened = self._topic(name)
        try:
            opened.logs[0].state()
        except NotFound:
            self._forget(opened)
            opened = self._topic(name)
        return opened

    def _topic_for_append(self, name: str) -> OpenTopic:
        try:
            return self._topic(name)
        except NotFound:
            self.create(name)
            return self._topic(name)

    def _forget(self, opened: OpenTopic) -> None:
        with self._mutex:
            if self._open.get(opened.topic.name) is opened:
                del self._open[opened.topic.name]

    def _commit(self, opened: OpenTopic, log: LocalLog, rows: Rows) -> LocalLog:
        """Append; if the topic was deleted meanwhile, to the one of that name that comes after it. Returns the log."""
        try:
            log.append(rows)
        except NotFound:
            log = self._successor(opened, log)
            log.append(rows)
        return log

    def _living(self, opened: OpenTopic, log: LocalLog) -> LocalLog:
        """The log, or the one that came after it if its topic was deleted: for streams, which cannot be read twice."""
        try:
            log.state()
        except NotFound:
            log = self._successor(opened, log)
        return log

    def _successor(self, opened: OpenTopic, log: LocalLog) -> LocalLog:
        """The same partition of the topic that took the name of a deleted one; NotFound if it has other partitions."""
        self._forget(opened)
        successor = self._topic_for_append(opened.topic.name)
        if len(successor.logs) != len(opened.logs):
            raise NotFound(f"topic {opened.topic.name!r} was deleted, and made again with other partitions")
        return successor.logs[log.place.partition]

    def _choose(self, opened: OpenTopic, key: bytes | None, partition: int | None) -> LocalLog:
        logs = opened.logs
        if len(logs) == 1 and not partition:
            return logs[0]
        if partition is not None:
            return opened.chosen(partition)[0]
        if key is not None:
            return logs[partition_of(key, len(logs))]
        return logs[next(opened.rounds) % len(logs)]

    def _spread(
        self, opened: OpenTopic, keys: Sequence[bytes | None]
    ) -> Iterator[tuple[LocalLog, np.ndarray[Any, np.dtype[np.int64]]]]:
        """Which events go to which partition: by the hash of the key; those without one, together, in turn."""
        partitions = partitions_of([key or b"" for key in keys], len(opened.logs))
        missing = np.fromiter((key is None for key in keys), np.bool_, len(keys))
        if missing.any():
            partitions[missing] = next(opened.rounds) % len(opened.logs)
        for number in np.unique(partitions).tolist():
            yield opened.logs[number], np.flatnonzero(partitions == number)

    def _spread_arrow(self, opened: OpenTopic, batch: Any, partition: int | None) -> Iterator[tuple[LocalLog, Any]]:
        if len(opened.logs) == 1 or partition is not None or "key" not in batch.schema.names:
            yield self._choose(opened, None, partition), batch
            return
        for log, where in self._spread(opened, arrow.values_of(batch.column("key"))):
            yield log, batch.take(arrow.pyarrow().array(where))

    def _selection(self, type: str | None, key: bytes | str | None) -> Selection:
        return Selection(type, appending.encode_key(key, self._limits))


def _after_fork() -> None:
    for engine in list(_engines):
        engine.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _wants_sync(durability: str) -> bool:
    if durability not in ("fsync", "os"):
        raise Invalid(f"durability {durability!r} is unknown", hint="it is 'fsync' or 'os'")
    return durability == "fsync"
