"""Committing a transaction on a server, as one request (docs/HTTP.md, "Transactions").

It carries a producer, which makes retries idempotent: it is retried for a while if the response is lost, and once more
whenever `commit` is called again.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, cast
from uuid import UUID

import msgspec

from headwater.errors import HeadwaterError, Invalid, Unavailable
from headwater.event import Durability, Event, Ref, ticks_and_node
from headwater.format import given
from headwater.format.batch import DATA, KEY, META, TYPE
from headwater.format.column import Column
from headwater.format.producers import Producer
from headwater.limits import Limits
from headwater.remote.appending import RemoteAppender
from headwater.remote.transport import JSON
from headwater.requests import Append, AppendMany, no_holder
from headwater.transaction import Acks, Requests

if TYPE_CHECKING:
    from headwater.remote.remote import Remote


class SendingMember(Protocol):
    """The membership that events came by."""

    @property
    def token(self) -> str: ...
    def moved(self, events: Iterable[Event]) -> None: ...


class JoinedConsumer(Protocol):
    """A consumer of this server, opened here."""

    def holds(self, event: Event) -> bool: ...
    def sending(self, events: Iterable[Event]) -> SendingMember: ...
    def close(self) -> None: ...


class RefAnswer(msgspec.Struct, frozen=True, gc=False):
    """The place of an event, in the response."""

    topic: str
    partition: int
    offset: int
    id: str


class RefAnswers(msgspec.Struct, frozen=True):
    """The response to a transaction."""

    refs: list[RefAnswer]
    durability: Durability


_decode = msgspec.json.Decoder(RefAnswers).decode
_encode = msgspec.json.Encoder().encode


class RemoteCommitter:
    """Commits a transaction on a server. Nothing is sent before that; for one thread."""

    def __init__(
        self, remote: Remote, appends: RemoteAppender, durability: Durability, producer: Producer | None
    ) -> None:
        self._remote = remote
        self._transport = remote.transport
        self._appender = appends
        self._durability = durability
        self._producer = producer
        self._members: list[tuple[SendingMember, list[Event]]] | None = None  # that ack, once it was sent

    @property
    def limits(self) -> Limits:
        return self._remote.limits

    def check_open(self) -> None:
        self._transport.check_open()

    def admit(self, request: Append | AppendMany) -> None:
        """Refuse a stream; the server checks the rest by the limits of the topic."""
        if isinstance(request, AppendMany):
            given.check_columns(request.columns, self.limits)
        elif not isinstance(request.data, bytes):
            raise Invalid("a transaction cannot append a stream", hint="append it first, then append a reference to it")

    def absorb(self, other: object) -> None:
        """Do nothing: nothing is kept of a request before it is sent."""

    def holder(self, event: Event, consumer: object) -> object:
        if consumer is not None:
            return consumer
        found = [member for member in list(self._remote.members) if member.holds(event)]
        if len(found) != 1:
            raise no_holder(event, several=bool(found))
        return found[0]

    def commit(self, requests: Requests, acks: Acks) -> list[Ref]:
        if self._members is None:  # else it was sent before, and must be the same
            self._members = [(cast(JoinedConsumer, each).sending(events), events) for each, events in acks.items()]
        if not requests and not acks:
            return []
        sent_acks = [
            {"member": member.token, "partition": event.partition, "offset": event.offset}
            for member, events in self._members
            for event in events
        ]
        lines = [line for request in requests for line in _lines(request)]
        asked = {"appends": lines, "acks": sent_acks, "durability": self._durability}
        try:
            answer = self._appender.produced(self._producer, lambda producer: self._send(asked, producer))
        except HeadwaterError as error:
            if error.code != "answer_lost":
                raise
            self._producer = Producer(*error.facts["producer"])
            raise _in_doubt(error) from error
        for member, events in self._members:
            member.moved(events)
        return [_ref(ref, answer.durability) for ref in answer.refs]

    def _send(self, asked: dict[str, Any], producer: Producer) -> RefAnswers:
        stamp = producer.id, producer.epoch, producer.seq
        body, headers = _encode(asked | {"producer": stamp}), {"Content-Type": JSON}
        return _decode(
            self._transport.call(
                "POST", ("transaction",), body=body, headers=headers, repeat=True, facts={"producer": stamp}
            ).body
        )


def _lines(request: Append | AppendMany) -> Iterator[dict[str, Any]]:
    """Yield the events of a request as the server takes them (docs/HTTP.md, "Transactions")."""
    if isinstance(request, Append):
        rows: Iterable[tuple[Any, ...]] = [(request.type, request.key, request.data, request.meta)]
    else:
        columns, count = request.columns, request.count
        rows = zip(*(_values(columns.get(kind), count) for kind in (TYPE, KEY, DATA, META)), strict=True)
    for type, key, data, meta in rows:
        line: dict[str, Any] = {
            "topic": request.topic,
            "type": (type or b"").decode(),
            "content": request.content,
            "data_base64": _base64(data),
            "expected_version": "none" if request.expected == given.NO_VERSION else request.expected,
        }
        if meta is not None:
            line["meta"] = msgspec.Raw(meta)
        if key is not None:
            line["key_base64"] = _base64(key)
        if request.partition is not None:
            line["partition"] = request.partition
        yield line


def _values(column: Column | None, count: int) -> list[bytes | None]:
    return [None] * count if column is None else column.values(0, count)


def _in_doubt(error: HeadwaterError) -> Unavailable:
    return Unavailable(
        f"it is not known whether the transaction is committed: {error.message}",
        hint="call commit() again when the server can be reached; it is applied only once",
        code="transaction_in_doubt",
        **error.facts,
    )


def _ref(answer: RefAnswer, durability: Durability) -> Ref:
    ticks, node = ticks_and_node(UUID(answer.id))
    return Ref(answer.topic, answer.partition, answer.offset, ticks, node, durability)


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")
