"""Transactions on a server: gathered here, sent as one request, done once however often that must be sent.

The request carries a producer (docs/TRANSACTIONS.md), so that after a lost answer it is sent again. If there is none for
too long, `commit` raises Unavailable with the code `transaction_in_doubt`, and may be called again: it is the same request.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import msgspec

from headwater.client.consumer import RemoteConsumer
from headwater.client.membership import Membership
from headwater.client.producers import Producers, Slot
from headwater.client.transport import JSON, Transport
from headwater.errors import Closed, HeadwaterError, TooLarge, Unavailable
from headwater.event import Content, Durability, Event, Ref, ticks_and_node
from headwater.format import given
from headwater.format.given import Data, Meta, Version
from headwater.format.producers import Producer
from headwater.limits import Limits

IN_DOUBT = "transaction_in_doubt"


class ToldRef(msgspec.Struct, frozen=True):
    """Where an event is, as the server tells it."""

    topic: str
    partition: int
    offset: int
    id: UUID


class Told(msgspec.Struct, frozen=True):
    """The server's answer."""

    refs: list[ToldRef]
    durability: Durability


_decode = msgspec.json.Decoder(Told).decode
_encode = msgspec.json.Encoder().encode


class RemoteTransaction:
    """What is to be done at once. Nothing is sent before `commit`; for one thread."""

    def __init__(
        self,
        transport: Transport,
        producers: Producers,
        holder: Callable[[Event], RemoteConsumer],
        limits: Limits,
        durability: Durability,
        producer: Producer | tuple[str, int, int] | None = None,
    ) -> None:
        """`holder` tells who handed out an event; raises Invalid if nobody did."""
        self._transport = transport
        self._producers = producers
        self._holder = holder
        self._limits = limits
        self._durability = durability
        self._producer = given.check_producer(producer, limits)
        self._slot: Slot | None = None
        self._body: bytes | None = None  # once it was sent
        self._appends: list[dict[str, Any]] = []
        self._acks: dict[RemoteConsumer, list[Event]] = {}
        self._sent: list[tuple[Membership, list[Event]]] = []
        self._size = 0
        self._over = False
        self.refs: list[Ref] = []  # where the events are, in the order of the appends, once it is committed

    def append(
        self,
        topic: str,
        data: Data,
        *,
        type: str = "",
        key: bytes | str | None = None,
        meta: Meta | None = None,
        content: Content | None = None,
        partition: int | None = None,
        expected_version: Version | None = None,
    ) -> None:
        """Append one event with the rest. `expected_version` is the key's before the transaction.

        Raises TooLarge for data that would need a file of its own, and when the transaction outgrows its limit.
        """
        self._check()
        given.check_content(content)
        encoded, content = given.encode_data(data, content)
        if len(encoded) > self._limits.blob_bytes_min:
            raise TooLarge(
                f"data has {len(encoded)} bytes, and in a transaction may have {self._limits.blob_bytes_min}",
                hint="append it first, and let the transaction tell where it is",
                limit="blob_bytes_min",
                maximum=self._limits.blob_bytes_min,
            )
        encoded_key = given.encode_key(key, self._limits)
        encoded_meta = given.encode_meta(meta, self._limits)
        given.encode_type(type)
        given.check_version(expected_version, encoded_key)
        append: dict[str, Any] = {"topic": topic, "type": type, "content": content}
        append["data_base64"] = base64.b64encode(encoded).decode()
        if encoded_key is not None:
            append["key_base64"] = base64.b64encode(encoded_key).decode()
        if meta:
            append["meta"] = dict(meta)
        if partition is not None:
            append["partition"] = partition
        if expected_version is not None:
            append["expected_version"] = expected_version
        self._add(append, len(encoded) + len(encoded_key or b"") + len(encoded_meta or b""))

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
        """Append many events of a topic with the rest; their `refs` are in the order of `data`."""
        self._check()
        if not len(data):
            return
        given.encode_many(
            data, content, types, keys, metas, self._limits
        )  # all of them are checked before one is taken
        for number, each in enumerate(data):
            self.append(
                topic,
                each,
                type=types if isinstance(types, str) else types[number],
                key=None if keys is None else keys[number],
                meta=None if metas is None else metas[number],
                content=content,
                partition=partition,
            )

    def ack(self, *events: Event, consumer: RemoteConsumer | None = None) -> None:
        """Take events as handled with the rest; `consumer` is who handed them out, if that is not clear.

        Raises Invalid if no consumer of this log holds one. `commit` raises Fenced if it was taken over.
        """
        self._check()
        for event in events:
            self._acks.setdefault(consumer or self._holder(event), []).append(event)

    def commit(self) -> list[Ref]:
        """Do it all; durable when it returns. Raises Conflict if an expected version does not hold: nothing is done.

        Unavailable with the code `transaction_in_doubt` says that it may be done: called again, it finds out, and does
        it if it is not. Any other error says that nothing was done.
        """
        self._check()
        if self._body is None:
            self._body = self._request()
        headers = {"Content-Type": JSON}
        try:
            answer = self._transport.call("POST", ("transaction",), body=self._body, headers=headers, repeat=True)
        except HeadwaterError as error:
            if error.code == "answer_lost":
                raise _in_doubt(error) from error
            self._end()
            raise
        self._end()
        told = _decode(answer.body)
        for member, events in self._sent:
            member.moved(events)
        self.refs = [
            Ref(ref.topic, ref.partition, ref.offset, *ticks_and_node(ref.id), told.durability) for ref in told.refs
        ]
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

    def _request(self) -> bytes:
        acks = []
        for consumer, events in self._acks.items():
            member = consumer.sending(events)
            self._sent.append((member, events))
            acks += [{"member": member.token, "partition": e.partition, "offset": e.offset} for e in events]
        if self._producer is None:
            self._slot, self._producer = self._producers.take()
        producer = self._producer.id, self._producer.epoch, self._producer.seq
        asked = {"appends": self._appends, "acks": acks, "durability": self._durability, "producer": producer}
        return _encode(asked)

    def _end(self) -> None:
        """It was answered: the producer has time for the next."""
        self._over = True
        if self._slot is not None:
            self._producers.give_back(self._slot)

    def _add(self, append: dict[str, Any], size: int) -> None:
        limits = self._limits
        if self._size + size > limits.transaction_bytes_max:
            raise _too_large("bytes", "transaction_bytes_max", limits.transaction_bytes_max)
        if len(self._appends) >= limits.transaction_events_max:
            raise _too_large("events", "transaction_events_max", limits.transaction_events_max)
        self._size += size
        self._appends.append(append)

    def _check(self) -> None:
        if self._over:
            raise Closed("the transaction is over", hint="begin another: hw.transaction()")


def _too_large(unit: str, limit: str, maximum: int) -> TooLarge:
    return TooLarge(f"a transaction may have {maximum} {unit}", hint="make several of it", limit=limit, maximum=maximum)


def _in_doubt(error: HeadwaterError) -> Unavailable:
    return Unavailable(
        f"whether the transaction is committed is not known: {error.message}",
        hint="call commit() again when the server can be reached: it is done once",
        code=IN_DOUBT,
    )
