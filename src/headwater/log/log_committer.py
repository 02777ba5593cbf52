"""`LogCommitter`: the appends of one transaction as rows for logs; what a directory and a bucket share of a commit."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, NamedTuple

from headwater.event import Durability, Ref
from headwater.format import given
from headwater.format.batch import KEY
from headwater.format.column import I64
from headwater.format.producers import Producer
from headwater.limits import Limits
from headwater.log.log import L
from headwater.log.rows import Rows
from headwater.requests import Append, AppendMany
from headwater.transaction import Requests, check_data

if TYPE_CHECKING:
    from headwater.log.log_backend import LogBackend
    from headwater.log.open_topics import OpenTopic


class TransactionPart(NamedTuple, Generic[L]):
    """Events of one request that go to one log: the first of the request is the transaction's `first` event.

    `where` says which events of the request they are; None means all.
    """

    log: L
    rows: Rows
    first: int
    where: I64 | None = None


class LogCommitter(Generic[L]):
    """The base of the committers of a directory and a bucket; for one thread."""

    def __init__(self, backend: LogBackend[L], *, sync: bool, producer: Producer | None = None) -> None:
        self._backend = backend
        self._sync = sync
        self._producer = producer
        self._topics: dict[str, OpenTopic[L]] = {}  # as they were when they were first named

    @property
    def limits(self) -> Limits:
        return self._backend.limits

    def check_open(self) -> None:
        self._backend.check_open()

    def admit(self, request: Append | AppendMany) -> None:
        """Open the topic, which is created if it is missing, and check the request by the topic's own limits."""
        opened = self._opened(request.topic)
        if request.partition is not None:
            opened.chosen(request.partition)
        limits = opened.logs[0].place.limits
        if isinstance(request, AppendMany):
            given.check_columns(request.columns, limits)
            return
        size = len(request.data) if isinstance(request.data, bytes) else self._backend.limits.blob_bytes_min + 1
        given.check_size(size, limits)
        check_data(size, self._backend.limits)

    def absorb(self, other: LogCommitter[L]) -> None:
        self._topics |= other._topics

    def _parts(self, requests: Requests) -> list[TransactionPart[L]]:
        """Return what each log gets, in the order of the requests."""
        parts: list[TransactionPart[L]] = []
        first = 0
        for request in requests:
            opened = self._opened(request.topic)
            if isinstance(request, AppendMany):
                parts += self._many(opened, request, first)
                first += request.count
                continue
            log = opened.choose(request.key, request.partition, self._producer)
            assert isinstance(request.data, bytes)
            rows = Rows.one(request.content, self._sync, request.data, request.type, request.key, request.meta)
            if request.expected is not None:
                rows.guard(request.expected, None)
            parts.append(TransactionPart(log, rows, first))
            first += 1
        return parts

    def _many(self, opened: OpenTopic[L], request: AppendMany, first: int) -> Iterator[TransactionPart[L]]:
        content, columns, keys = request.content, request.columns, request.columns.get(KEY)
        if opened.only is not None or request.partition is not None or keys is None:
            log = opened.choose(None, request.partition, self._producer)
            yield TransactionPart(log, Rows.many(content, self._sync, columns, request.count), first)
            return
        for log, where in opened.spread(keys, self._producer):
            some = {kind: None if column is None else column.pick(where) for kind, column in columns.items()}
            yield TransactionPart(log, Rows.many(content, self._sync, some, len(where)), first, where)

    def _refs(self, parts: list[TransactionPart[L]], *, journaled: bool) -> list[Ref]:
        """Return where the events are, in the order of the requests, after they were committed."""
        durability: Durability = "fsync" if self._sync or journaled else "os"
        refs = [
            Ref(log.place.topic, log.place.partition, rows.offset + n, rows.ticks + n, log.node, durability)
            for log, rows, _, _ in parts
            for n in range(rows.count)
        ]
        if all(part.where is None for part in parts):
            return refs
        spread = [range(rows.count) if where is None else where.tolist() for _, rows, _, where in parts]
        order = [part.first + at for part, places in zip(parts, spread, strict=True) for at in places]
        return [ref for _, ref in sorted(zip(order, refs, strict=True), key=itemgetter(0))]

    def _opened(self, topic: str) -> OpenTopic[L]:
        opened = self._topics.get(topic)
        if opened is None:
            opened = self._topics[topic] = self._backend.topic_for(topic)
        return opened
