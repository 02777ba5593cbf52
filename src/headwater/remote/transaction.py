"""Transactions on a server: gathered here, sent and done as one request (docs/HTTP.md, "Transactions").

It carries a producer, so that it is done once, also when its answer was lost and it is sent again: by itself for a
while, and then when `commit` is called again.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack
from uuid import UUID

import msgspec

from headwater.errors import Closed, HeadwaterError, Invalid, TooLarge, Unavailable, within_memory
from headwater.event import Content, Durability, Event, Ref, ticks_and_node
from headwater.format import given
from headwater.format.given import Data, Meta
from headwater.format.producers import Producer
from headwater.remote.appending import RemoteAppender
from headwater.remote.transport import JSON
from headwater.requests import Append, EventOptions, no_holder

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
    """Where an event is, as the server tells it."""

    topic: str
    partition: int
    offset: int
    id: str


class RefAnswers(msgspec.Struct, frozen=True):
    """The answer to a transaction."""

    refs: list[RefAnswer]
    durability: Durability


_decode = msgspec.json.Decoder(RefAnswers).decode
_encode = msgspec.json.Encoder().encode


@within_memory()
class RemoteTransaction:
    """What is to be done at once. Nothing is sent of it before `commit`; for one thread."""

    def __init__(
        self,
        remote: Remote,
        appends: RemoteAppender,
        durability: Durability,
        producer: Producer | None,
    ) -> None:
        self._remote = remote
        self._transport = remote.transport
        self._appender = appends
        self._durability = durability
        self._producer = producer
        self._limits = remote.limits
        self._appends: list[dict[str, Any]] = []
        self._acks: dict[JoinedConsumer, list[Event]] = {}
        self._members: list[tuple[SendingMember, list[Event]]] | None = None  # who acks, once it was sent
        self._size = 0
        self._over = False
        self.refs: list[Ref] = []  # where the events are, in the order of the appends, once it is committed

    def append(self, topic: str, data: Data, **options: Unpack[EventOptions]) -> None:
        """Append one event with the rest, with the options of `Store.append`.

        `expected_version` is the key's before the transaction. Raises TooLarge when the transaction outgrows its limit;
        `commit` raises it for data that is too large.
        """
        self._check()
        request = Append.of(topic, data, self._limits, **options)
        if not isinstance(request.data, bytes):
            raise Invalid("a transaction cannot append a stream", hint="append it first, then append a reference to it")
        self._grow(len(request.data) + len(request.key or b"") + len(request.meta or b""))
        append: dict[str, Any] = {
            "topic": topic,
            "type": request.type.decode(),
            "content": request.content,
            "data_base64": _base64(request.data),
            "expected_version": "none" if request.expected == given.NO_VERSION else request.expected,
        }
        if request.meta is not None:
            append["meta"] = msgspec.Raw(request.meta)
        if request.key is not None:
            append["key_base64"] = _base64(request.key)
        if request.partition is not None:
            append["partition"] = request.partition
        self._appends.append(append)

    def _grow(self, size: int) -> None:
        self._size += size
        for unit, total, limit in (
            ("bytes", self._size, "transaction_bytes_max"),
            ("events", len(self._appends) + 1, "transaction_events_max"),
        ):
            maximum: int = getattr(self._limits, limit)
            if total > maximum:
                raise TooLarge(
                    f"a transaction may have at most {maximum} {unit}",
                    hint="split it into several transactions",
                    limit=limit,
                    maximum=maximum,
                )

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
        """Append many events of a topic with the rest, in their order."""
        self._check()
        given.check_content(content)
        if not len(data):
            return
        _, columns, _ = given.encode_many(data, content, types, keys, metas, self._limits)
        given.check_columns(columns, self._limits)
        for n, each in enumerate(data):
            self.append(
                topic,
                each,
                type=types if isinstance(types, str) else types[n],
                key=None if keys is None else keys[n],
                meta=None if metas is None else metas[n],
                content=content,
                partition=partition,
            )

    def ack(self, *events: Event, consumer: JoinedConsumer | None = None) -> None:
        """Take events as handled with the rest; `consumer` is who handed them out, if that is not clear.

        Raises Invalid if no consumer that was opened here holds one. `commit` raises Fenced if it was taken over.
        """
        self._check()
        for event in events:
            self._acks.setdefault(consumer or self._holder(event), []).append(event)

    def _holder(self, event: Event) -> JoinedConsumer:
        found = [member for member in list(self._remote.members) if member.holds(event)]
        if len(found) != 1:
            raise no_holder(event, several=bool(found))
        return found[0]

    def commit(self) -> list[Ref]:
        """Do it all; durable when it returns. Raises Conflict if an expected version does not hold: nothing is done.

        Unavailable with the code `transaction_in_doubt` tells that it may be done: called again, it finds out, and does
        it if it is not. So does another transaction with the same appends and acks under the error's `producer`.
        """
        self._check()
        if self._members is None:  # else it was sent before, and must be the same
            self._members = [(consumer.sending(events), events) for consumer, events in self._acks.items()]
        self._over = True
        if not self._appends and not self._acks:
            return self.refs
        acks = [
            {"member": member.token, "partition": event.partition, "offset": event.offset}
            for member, events in self._members
            for event in events
        ]
        asked = {"appends": self._appends, "acks": acks, "durability": self._durability}
        try:
            told = self._appender.produced(self._producer, lambda producer: self._ask(asked, producer))
        except HeadwaterError as error:
            if error.code != "answer_lost":
                raise
            self._over, self._producer = False, Producer(*error.facts["producer"])
            raise _in_doubt(error) from error
        for member, events in self._members:
            member.moved(events)
        self.refs = [_ref(ref, told.durability) for ref in told.refs]
        return self.refs

    def discard(self) -> None:
        """Do nothing of it."""
        self._over = True
        self._appends, self._acks = [], {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
        elif not self._over:
            self.commit()

    def _ask(self, asked: dict[str, Any], producer: Producer) -> RefAnswers:
        said = producer.id, producer.epoch, producer.seq
        body, headers = _encode(asked | {"producer": said}), {"Content-Type": JSON}
        return _decode(
            self._transport.call(
                "POST", ("transaction",), body=body, headers=headers, repeat=True, facts={"producer": said}
            ).body
        )

    def _check(self) -> None:
        if self._over:
            raise Closed("the transaction has ended", hint="start another: hw.transaction()")
        self._transport.check_open()


def _in_doubt(error: HeadwaterError) -> Unavailable:
    return Unavailable(
        f"it is not known whether the transaction is committed: {error.message}",
        hint="call commit() again when the server can be reached; it is applied only once",
        code="transaction_in_doubt",
        **error.facts,
    )


def _ref(told: RefAnswer, durability: Durability) -> Ref:
    ticks, node = ticks_and_node(UUID(told.id))
    return Ref(told.topic, told.partition, told.offset, ticks, node, durability)


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")
