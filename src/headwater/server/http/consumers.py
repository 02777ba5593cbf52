"""Consumers over HTTP: join one and read as its member, ack, seek, list, forget (docs/HTTP.md, "Consumers")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headwater import position
from headwater.errors import Invalid
from headwater.event import Event
from headwater.format import jsonl
from headwater.position import Position
from headwater.server.access import require
from headwater.server.http.errors import error_line
from headwater.server.http.message import QueryParameters, Request, Response, json
from headwater.server.member import Formats, MemberState, Settlement
from headwater.server.service import Service
from headwater.server.wire.decoding import decoded
from headwater.server.wire.encodings import slices

NDJSON = "application/x-ndjson"
SMALL_BODY = 64 * 1024

Offset = Annotated[int, Meta(ge=0, lt=1 << 62)]
Number = Annotated[int, Meta(ge=0, lt=1 << 31)]


class Seek(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The new position of a consumer."""

    at: int | str
    partition: Number | None = None


class AckRange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """[partition, offset], or [partition, first, end] for all that was handed out from `first` to before `end`."""

    partition: Number
    offset: Offset
    end: Offset | None = None


class Acks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Acknowledgements and failures of events delivered to a member; renews its lease, and with `leave` ends it."""

    member: str
    acks: list[AckRange] = []
    to: list[tuple[Number, Offset]] = []
    fails: list[tuple[Number, Offset, str]] = []
    flush: bool = False
    seek: Seek | None = None
    look: bool = False
    leave: bool = False


class AckResult(msgspec.Struct, frozen=True):
    """The response: for each failure whether the event was dead-lettered; new cursors; the state of the member."""

    aside: list[bool]
    state: MemberState
    cursors: dict[int, int] = {}


_decode_acks = msgspec.json.Decoder(Acks).decode
_decode_seek = msgspec.json.Decoder(Seek).decode
_decode_match = msgspec.json.Decoder(dict[str, object]).decode


async def list_consumers(service: Service, request: Request) -> Response:
    """Return where each consumer is, of the topics that the user may read."""
    topic = request.query.text("topic")
    found = await service.blocking(service.store.consumers, topic)
    return json([msgspec.to_builtins(each) for each in found if request.user.may("read", each.topic)])


async def join(service: Service, request: Request) -> Response:
    """Join a consumer, and stream what its member is handed until the connection ends."""
    query = request.query
    formats = _formats(request)
    timeout = query.seconds("timeout")
    options: dict[str, Any] = {
        "start": _start(query),
        "type": query.text("type"),
        "key": query.data("key"),
        "match": _match(query),
        "lease_ms": query.number("lease_ms"),
        "failures_max": query.number("failures_max"),
    }
    joining = service.blocking(
        service.members.join,
        request.user.name,
        request.name,
        request.path[2],
        formats,
        instead=query.text("instead"),
        timeout=timeout,
        **options,
    )
    member = await joining
    headers = (
        ("content-type", formats.media_type),
        ("headwater-member", member.token),
        ("headwater-owner", member.consumer.id),
        ("headwater-lease", str(round(member.lease_s * 1000))),
    )
    return Response(200, headers, member)


async def settle(service: Service, request: Request) -> Response:
    """Take acks and failures; whatever it says, the member is known to live."""
    said = decoded(_decode_acks, await request.body(service.limits.acks_bytes_max))
    if said.seek is not None:
        require(request.user, request.action("with seek"), request.path[2])
    member = service.members.get(said.member, request.user.name, request.name, request.path[2])
    acks = [(each.partition, each.offset, each.offset + 1 if each.end is None else each.end) for each in said.acks]
    settlement = Settlement(acks, said.to, said.fails, said.flush or said.leave)
    if acks or said.to or said.fails or settlement.flush:
        aside = await service.blocking(member.settle, settlement)
    else:
        aside = []
        member.heard()
    if said.leave:
        member.leave()
        await service.blocking(member.join)
        return json(AckResult(aside, member.state))
    if said.seek is not None:
        cursors, state = await member.seek(position.parse(said.seek.at), said.seek.partition)
        return json(AckResult(aside, state, cursors))
    return json(AckResult(aside, await member.look() if said.look else member.state))


async def seek(service: Service, request: Request) -> Response:
    """Move a consumer to another place, durably."""
    said = decoded(_decode_seek, await request.body(SMALL_BODY))
    place = position.parse(said.at)
    topic = request.path[2]
    cursors = await service.blocking(service.store.seek, request.name, topic, place, partition=said.partition)
    return json(cursors)


async def forget(service: Service, request: Request) -> Response:
    """Delete a consumer; its members end."""
    await service.blocking(service.store.forget, request.name, request.path[2])
    return json(True)


def _start(query: QueryParameters) -> Position:
    said = query.text("start")
    return "earliest" if said is None else position.parse(said)


def _match(query: QueryParameters) -> dict[str, object] | None:
    said = query.data("match")
    return None if said is None else decoded(_decode_match, said)


def _formats(request: Request) -> Formats:
    wanted = [each.partition(";")[0].strip() for each in request.headers.get("accept", "*/*").split(",")]
    if {NDJSON, "*/*", "application/*"}.isdisjoint(wanted):
        raise Invalid("a member's events are only available as lines", hint=f"accept {NDJSON}", code="not_acceptable")
    return LINES


def _lines(events: Sequence[Event], in_memory: int) -> Iterator[bytes]:
    for huge, some in groupby(events, lambda event: event.data is None):
        for event in some if huge else ():
            if event.size > in_memory:  # it is sent with its size only; the client reads the data from the topic
                yield jsonl.encode(event) + b"\n"
            else:
                yield from slices(("member", event.node, event.ticks), partial(_huge_line, event))
        if not huge:
            yield jsonl.encode_exactly(list(some))


def _huge_line(event: Event) -> bytes:
    return jsonl.encode_exactly([msgspec.structs.replace(event, data=b"".join(event.chunks()))])


LINES = Formats(NDJSON, _lines, b"\n", error_line)
