"""Appends that are gathered, and then are there together or not at all: what every kind of transaction begins with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack

from headwater.errors import Closed, TooLarge, within_memory
from headwater.event import Content, Durability, Event, Ref
from headwater.format import given
from headwater.format.batch import KEY
from headwater.format.given import Data, Meta
from headwater.format.producers import Producer
from headwater.limits import Limits
from headwater.log.log import L
from headwater.log.rows import Rows
from headwater.requests import Append, EventOptions

if TYPE_CHECKING:
    from headwater.log.log_backend import LogBackend
    from headwater.log.open_topics import OpenTopic


@within_memory()
class LogTransaction(Generic[L]):
    """What is to be done at once. Nothing is seen or kept of it before `commit`; for one thread."""

    def __init__(self, backend: LogBackend[L], *, sync: bool, producer: Producer | None = None) -> None:
        self._backend = backend
        self._sync = sync
        self._producer = producer
        self._topics: dict[str, OpenTopic[L]] = {}
        self._appends: list[tuple[L, Rows]] = []
        self._size = self._count = 0
        self._over = False
        self.refs: list[Ref] = []  # where the events are, in the order of the appends, once it is committed

    def append(self, topic: str, data: Data, **options: Unpack[EventOptions]) -> None:
        """Append one event with the rest, with the options of `Store.append`.

        `expected_version` is the key's before the transaction. Raises TooLarge for data that would need a file of its
        own, and when the transaction outgrows its limit.
        """
        self.add(Append.of(topic, data, self._backend.limits, **options))

    def add(self, request: Append) -> None:
        """Append one event with the rest; its durability and producer are those of the transaction."""
        self._check()
        log = self._opened(request.topic).choose(request.key, request.partition, self._producer)
        size = len(request.data) if isinstance(request.data, bytes) else self._backend.limits.blob_bytes_min + 1
        given.check_size(size, log.place.limits)
        check_data(size, self._backend.limits)
        assert isinstance(request.data, bytes)
        rows = Rows.one(request.content, self._sync, request.data, request.type, request.key, request.meta)
        if request.expected is not None:
            rows.guard(request.expected, None)
        self._add(log, rows)

    def append_many(
        self,
        topic: str,
        data: Sequence[Data],
        *,
        types: Sequence[str] | str = "",
        keys: Sequence[bytes | str | None] | None = None,
        metas: Sequence[Meta | None] | None = None,
        content: Content | None = None,
        partition: int | None = None,
    ) -> None:
        """Append many events of a topic with the rest, as `Store.append_many` does; their `refs` are by partition."""
        self._check()
        given.check_content(content)
        if not len(data):
            return
        opened = self._opened(topic)
        limits = opened.logs[0].place.limits
        content, columns, _ = given.encode_many(data, content, types, keys, metas, limits)
        given.check_columns(columns, limits)
        column = columns[KEY]
        if opened.only is not None or partition is not None or column is None:
            self._add(
                opened.choose(None, partition, self._producer), Rows.many(content, self._sync, columns, len(data))
            )
            return
        for log, where in opened.spread(column, self._producer):
            some = {kind: None if column is None else column.pick(where) for kind, column in columns.items()}
            self._add(log, Rows.many(content, self._sync, some, len(where)))

    @abstractmethod
    def ack(self, *events: Event, consumer: Any = None) -> None:
        """Mark events as handled with the rest; `consumer` is the one that handed them out, if several did."""

    @abstractmethod
    def commit(self) -> list[Ref]:
        """Do it all; durable when it returns."""

    @property
    def appended(self) -> int:
        """Return how many events it appends."""
        return self._count

    def discard(self) -> None:
        """Do nothing of it."""
        self._over = True
        self._appends = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
        elif not self._over:
            self.commit()

    def _settled(self, *, journaled: bool) -> list[Ref]:
        durability: Durability = "fsync" if self._sync or journaled else "os"
        self.refs = [
            Ref(log.place.topic, log.place.partition, rows.offset + n, rows.ticks + n, log.node, durability)
            for log, rows in self._appends
            for n in range(rows.count)
        ]
        return self.refs

    def _opened(self, topic: str) -> OpenTopic[L]:
        opened = self._topics.get(topic)
        if opened is None:
            opened = self._topics[topic] = self._backend.topic_for(topic)
        return opened

    def _add(self, log: L, rows: Rows) -> None:
        self._grow(rows.size + len(rows.key or b"") + len(rows.meta or b""), rows.count)
        self._appends.append((log, rows))

    def _grow(self, size: int, count: int) -> None:
        size, count = self._size + size, self._count + count
        check_growth(size, count, self._backend.limits)
        self._size, self._count = size, count

    def _check(self) -> None:
        if self._over:
            raise Closed("the transaction has ended", hint="start another: hw.transaction()")
        self._backend.check_open()


def check_data(size: int, limits: Limits) -> None:
    """Raise TooLarge for data of one event that would need a file of its own."""
    if size > limits.blob_bytes_min:
        raise TooLarge(
            f"data has {size} bytes; in a transaction the limit is {limits.blob_bytes_min}",
            hint="append it first, then append a reference to it in the transaction",
            limit="blob_bytes_min",
            maximum=limits.blob_bytes_min,
        )


def check_growth(size: int, count: int, limits: Limits) -> None:
    """Raise TooLarge for more bytes of data, keys and meta, or more events, than one transaction may have."""
    if size > limits.transaction_bytes_max:
        raise _too_large("bytes", "transaction_bytes_max", limits.transaction_bytes_max)
    if count > limits.transaction_events_max:
        raise _too_large("events", "transaction_events_max", limits.transaction_events_max)


def _too_large(unit: str, limit: str, maximum: int) -> TooLarge:
    message, hint = f"a transaction may have at most {maximum} {unit}", "split it into several transactions"
    return TooLarge(message, hint=hint, limit=limit, maximum=maximum)
