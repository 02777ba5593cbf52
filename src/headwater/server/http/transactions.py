"""`POST /transaction`: appends to any topics, and acks of members, all or nothing (docs/HTTP.md, "Transactions").

A request with a producer may be retried if the response is lost: the producer id makes the retry idempotent.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta

from headwater.directory.directory import Directory
from headwater.errors import Invalid
from headwater.event import Durability, Ref
from headwater.format import given, jsonl
from headwater.format.contents import CODES, numbered
from headwater.format.jsonl import EventLine
from headwater.requests import wants_sync
from headwater.server.access import require
from headwater.server.http.message import Request, Response, json
from headwater.server.member import RemoteMember, member_gone
from headwater.server.service import Service
from headwater.server.wire.decoding import decoded
from headwater.transaction import Transaction

Offset = Annotated[int, Meta(ge=0, lt=1 << 62)]
Number = Annotated[int, Meta(ge=0, lt=1 << 31)]


class AppendLine(EventLine, frozen=True, gc=False, forbid_unknown_fields=True):
    """One event, as a line of GET has it, with its topic."""

    expected_version: Offset | Literal["none"] | None = None


class MemberAck(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One event delivered to a member."""

    member: str
    partition: Number
    offset: Offset


class TransactionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole transaction. `producer` is (id, epoch, seq)."""

    appends: list[AppendLine] = []
    acks: list[MemberAck] = []
    durability: Durability | None = None
    producer: tuple[str, int, int] | None = None


class RefLine(msgspec.Struct, frozen=True, gc=False):
    """The position of an appended event."""

    topic: str
    partition: int
    offset: int
    id: str


_decode = msgspec.json.Decoder(TransactionRequest).decode


async def commit(service: Service, request: Request) -> Response:
    """Do it all, or nothing."""
    asked = decoded(_decode, await request.body(service.limits.body_bytes_max), "invalid transaction")
    for topic in {append.topic for append in asked.appends}:
        if not isinstance(topic, str):
            raise Invalid("an append has no topic", code="bad_body")
        require(request.user, request.action(), topic)
    members = {ack.member: service.members.find(ack.member, request.user.name) for ack in asked.acks}
    for topic in {member.consumer.topic for member in members.values() if member is not None}:
        require(request.user, request.action("with acks"), topic)
    refs = await service.blocking(_commit, service.backend, asked, members)
    told = [RefLine(ref.topic, ref.partition, ref.offset, str(ref.id)) for ref in refs]
    return json({"refs": told, "durability": refs[0].durability if refs else "fsync"})


def _append(transaction: Transaction, append: AppendLine) -> None:
    data, content = jsonl.data_of(append, None)
    transaction.append(
        str(append.topic),
        data,
        content=content,
        type=append.type,
        key=jsonl.key_of(append),
        meta=append.meta,
        partition=None if append.partition is UNSET else append.partition,
        expected_version=append.expected_version,
    )


def _commit(backend: Directory, asked: TransactionRequest, members: dict[str, RemoteMember | None]) -> list[Ref]:
    """In a worker's thread: what it does is a handful of syncs."""
    sync = None if asked.durability is None else wants_sync(asked.durability)
    producer = given.check_producer(asked.producer, backend.limits)
    transaction = backend.transaction(sync, producer)
    for number, append in enumerate(asked.appends):
        try:
            _append(transaction, append)
        except Invalid as error:
            raise numbered(error, number) if error.code in CODES else error from error
    for ack in asked.acks:
        member = members[ack.member]
        if member is None:  # if it was done before, the member has been free to leave
            refs = backend.recall(transaction.requests, sync, producer)
            if refs is None:
                raise member_gone()
            return refs
        transaction.ack(member.handed_out(ack.partition, ack.offset), consumer=member.consumer)
    refs = transaction.commit()
    for ack in asked.acks:
        member = members[ack.member]
        if member is not None:
            member.heard()
            member.done(ack.partition, ack.offset, ack.offset + 1)
    return refs
