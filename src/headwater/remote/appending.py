"""Appends as requests, and their answers as references.

Every append has a producer, the user's or one of `ProducerPool`, which makes retries idempotent. A producer has one
request at a time, and its `seq` grows; a request takes a free one, or a new one, so there are as many as requests at
once. A missing topic is created. Safe from any thread; a forked child has producers of its own.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any, TypeVar
from uuid import UUID, uuid4

import msgspec

from headwater.errors import HeadwaterError, Invalid, NotFound
from headwater.event import Durability, Ref, Refs, Run, ticks_and_node
from headwater.format import batch, frames, given
from headwater.format.batch import DATA, KEY, META, TYPE
from headwater.format.column import Column
from headwater.format.producers import Producer
from headwater.limits import Limits
from headwater.remote.transport import HttpResponse, Transport
from headwater.requests import Append, AppendMany

OCTETS = "application/octet-stream"
META_HEADER_BYTES_MAX = 4 * 1024  # above, it goes in a batch: a server, or what stands before it, bounds its headers

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

T = TypeVar("T")


class RunLine(msgspec.Struct, frozen=True):
    """Events that one request appended to one partition, in the response."""

    partition: int
    offset: int
    count: int
    id: str
    rows: list[int] | None = None


class RunLines(msgspec.Struct, frozen=True):
    """The response to an append of many events."""

    count: int
    durability: Durability
    runs: list[RunLine]


_decode_runs = msgspec.json.Decoder(RunLines).decode


class StreamBody:
    """A stream as the body of a request. A seekable one can be sent again, anything else only once."""

    def __init__(self, data: IO[bytes] | Iterator[bytes]) -> None:
        self._data = data
        self._begun = False
        self._start: int | None = None
        seekable = getattr(data, "seekable", None)
        if seekable is not None and seekable():
            self._start = data.tell()  # type: ignore[union-attr]  # what can be sought in can tell

    @property
    def repeatable(self) -> bool:
        """Return whether it can be sent, or sent again."""
        return not self._begun or self._start is not None

    def __call__(self) -> Iterator[bytes]:
        """Yield the pieces, from the beginning."""
        if self._begun:
            self._data.seek(self._start)  # type: ignore[union-attr,arg-type]  # it is repeatable
        for piece in given.pieces(self._data):
            self._begun = True
            yield piece


class RemoteAppender:
    """The appends of one opened log."""

    def __init__(self, transport: Transport, limits: Limits) -> None:
        self._transport = transport
        self._limits = limits
        self._producers = ProducerPool()

    def one(self, request: Append, durability: Durability) -> Ref:
        """Append one event."""
        query = self._query(request, durability)
        data, meta = request.data, request.meta
        if isinstance(data, bytes) and meta is not None and len(meta) > META_HEADER_BYTES_MAX:
            values = (TYPE, request.type or None), (KEY, request.key), (DATA, data), (META, meta)
            columns = {kind: None if value is None else Column(1, value) for kind, value in values}
            many = AppendMany(request.topic, request.content, columns, 1, producer=request.producer)
            ref: Ref = self._batch(many, query)[0]
            return ref
        query |= {"type": request.type.decode() or None, "key": request.key}
        headers = {"Content-Type": OCTETS}
        if meta is not None:
            headers["Headwater-Meta"] = json.dumps(msgspec.json.decode(meta))  # in ASCII, as a header is
        if request.content != "bytes":
            query["content"] = request.content
        body = data if isinstance(data, bytes) else StreamBody(data)
        answer = self._append(request, body, query, headers)
        told = answer.headers
        ticks, node = ticks_and_node(UUID(told["headwater-id"]))
        reached: Any = told["headwater-durability"]
        return Ref(request.topic, int(told["headwater-partition"]), int(answer.body), ticks, node, reached)

    def many(self, request: AppendMany, durability: Durability) -> Refs:
        """Append many events, as one batch that the server spreads over partitions."""
        given.check_columns(request.columns, self._limits)
        return self._batch(request, self._query(request, durability))

    def _query(self, request: Append | AppendMany, durability: Durability) -> dict[str, Any]:
        return {
            "partition": request.partition,
            "expected_version": "none" if request.expected == given.NO_VERSION else request.expected,
            "durability": durability,
        }

    def _batch(self, request: AppendMany, query: dict[str, Any]) -> Refs:
        stored = batch.encode(0, 0, request.count, request.content, request.columns)
        body = frames.encode(0, stored, 0, request.count)
        headers = {"Content-Type": frames.MEDIA_TYPE}
        told = _decode_runs(self._append(request, body, query, headers).body)
        runs = []
        for run in told.runs:
            ticks, node = ticks_and_node(UUID(run.id))
            runs.append(Run(run.partition, node, run.offset, ticks, run.count))
        rows = [run.rows for run in told.runs if run.rows is not None]
        return Refs(request.topic, told.durability, runs, rows if len(runs) > 1 else None)

    def produced(self, given_producer: Producer | None, ask: Callable[[Producer], T]) -> T:
        """Call `ask` with the user's producer, or one that has no request under way.

        One whose response was lost is not used again: the error has it, and the user may retry with it.
        """
        if given_producer is not None:
            return ask(given_producer)
        slot, said = self._producers.take()
        try:
            found = ask(said)
        except HeadwaterError as error:
            if error.code != "answer_lost":
                self._producers.give_back(slot)
            raise
        self._producers.give_back(slot)
        return found

    def make(self, topic: str) -> None:
        """Create a topic unless it exists."""
        try:
            self._transport.call("PUT", ("topic", topic), repeat=True)
        except Invalid as error:
            if error.code != "partitions_differ":
                raise

    def after_fork(self) -> None:
        self._producers.after_fork()

    def _append(
        self, request: Append | AppendMany, body: bytes | StreamBody, query: dict[str, Any], headers: dict[str, str]
    ) -> HttpResponse:
        create = request.create if isinstance(request, AppendMany) else True

        def ask(producer: Producer) -> HttpResponse:
            headers["Headwater-Producer"] = header_of(producer.id)
            headers["Headwater-Epoch"] = str(producer.epoch)
            headers["Headwater-Seq"] = str(producer.seq)
            told = producer.id, producer.epoch, producer.seq
            return self._post(request.topic, body, query, headers, told, create=create)

        return self.produced(request.producer, ask)

    def _post(
        self,
        topic: str,
        body: bytes | StreamBody,
        query: dict[str, Any],
        headers: dict[str, str],
        producer: tuple[str, int, int],
        *,
        create: bool,
    ) -> HttpResponse:
        streamed = isinstance(body, StreamBody)
        if streamed:
            self.make(topic)  # a stream may be gone by the time that it turns out not to be there
        repeat: Any = (lambda: body.repeatable) if isinstance(body, StreamBody) else True
        path, sent, facts = ("topic", topic, "items"), body, {"producer": producer}
        try:
            return self._transport.call("POST", path, query, body=sent, headers=headers, repeat=repeat, facts=facts)
        except NotFound as error:
            if error.code not in ("topic_not_found", "topic_deleted") or streamed or not create:
                raise
        self.make(topic)
        return self._transport.call("POST", path, query, body=sent, headers=headers, repeat=repeat, facts=facts)


def header_of(id: str) -> str:
    """Return a producer's id in a header; raises Invalid for what a header cannot hold."""
    if _CONTROL.search(id) or id != id.strip():
        raise Invalid(
            f"the producer's id {id!r} cannot be sent",
            hint="it must not contain control characters, or begin or end with a space",
        )
    return id.encode().decode("latin-1")  # headers are bytes, and these are UTF-8


class ProducerSlot:
    """A producer, and the seq of its last request."""

    __slots__ = ("id", "seq")

    def __init__(self, id: str) -> None:
        self.id = id
        self.seq = -1


class ProducerPool:
    """The producers of one opened log."""

    def __init__(self) -> None:
        self.after_fork()

    def take(self) -> tuple[ProducerSlot, Producer]:
        """Return a producer that has no request under way, and its next request."""
        with self._mutex:
            if self._free:
                slot = self._free.pop()
            else:
                slot = ProducerSlot(f"{self._name}-{self._made}")
                self._made += 1
        slot.seq += 1
        return slot, Producer(slot.id, 0, slot.seq)

    def give_back(self, slot: ProducerSlot) -> None:
        """Take back a producer whose request was answered; one whose response was lost stays with the user."""
        with self._mutex:
            self._free.append(slot)

    def after_fork(self) -> None:
        """Start over, under another name."""
        self._mutex = threading.Lock()  # protects what follows
        self._free: list[ProducerSlot] = []
        self._name = uuid4().hex
        self._made = 0
