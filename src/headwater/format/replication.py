"""What a source sends a replica: its topics, and batches that follow on those it has (docs/FORMAT.md, "Replication").

Plain records, and the bytes of an answer with batches. Bytes only; nothing that comes in is believed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from struct import Struct
from typing import Annotated, Literal

import msgspec
from crc32c import crc32c

from headwater.errors import Corrupt
from headwater.format.settings import TopicSettings

MEDIA_TYPE = "application/vnd.headwater.replication"
MAGIC = b"HWREPL01"
_HEAD = Struct("<8sII")

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class LogState(msgspec.Struct, frozen=True):
    """One partition of a source: where it begins, the ticks of the event before that, and how far it is durable."""

    start: int
    ticks_before: int
    end: int


class TopicState(msgspec.Struct, frozen=True):
    """A topic of a source."""

    name: str
    uuid: str
    settings: TopicSettings
    logs: list[LogState]


class LogRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a replica requests: what follows in one log from an offset on.

    `ticks` are those of the last event it has, where it wants to know whether the source has the same one.
    """

    topic: str
    uuid: str
    partition: Number
    offset: Number
    ticks: Number | None = None


class ReplicationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question of a replica. The answer comes when there is anything, at the latest after `wait_ms`."""

    logs: list[LogRequest]
    bytes_max: Number = 8 * 1024 * 1024
    wait_ms: Number = 0


class LogShare(msgspec.Struct, frozen=True):
    """What there is of one log: whole batches, the first of which may begin before the offset of the request.

    `state`: `gone` if the topic was deleted, also if another has its name; `behind` if retention has deleted what comes
    next; `diverged` if the source never had, or has not any more, what the replica has; `damaged` for a `reason`.
    """

    number: int  # of the log in the question
    state: Literal["ok", "gone", "behind", "diverged", "damaged"] = "ok"
    start: int = 0
    end: int = 0  # up to which it is durable
    segment: int = 0  # where its active segment begins: what is before that may have lost its producers' stamps
    bytes_left: int = 0  # about how many follow on these
    size: int = 0  # of its batches in the answer
    reason: str = ""


class ReplicationResponse(msgspec.Struct, frozen=True):
    """What a source has that a replica has not: shares of logs, and the bytes of each. Nothing if nothing came."""

    ticks: int  # the time there
    shares: list[LogShare]
    data: list[memoryview]


class _ResponseTable(msgspec.Struct, frozen=True):
    ticks: int
    shares: list[LogShare]


_encode = msgspec.json.Encoder().encode
_decode_table = msgspec.json.Decoder(_ResponseTable).decode
decode_question = msgspec.json.Decoder(ReplicationRequest).decode
decode_topics = msgspec.json.Decoder(list[TopicState]).decode


def encode(answer: ReplicationResponse) -> bytes:
    """Encode an answer: `magic, size of the table u32, CRC of the table u32`, the table as JSON, the batches."""
    table = _encode(_ResponseTable(answer.ticks, answer.shares))
    return b"".join((_HEAD.pack(MAGIC, len(table), crc32c(table)), table, *answer.data))


def decode(stored: bytes, asked: Sequence[LogRequest]) -> ReplicationResponse:
    """Return the answer to a question; raises Corrupt if it is not one. The batches carry their own checksums."""
    try:
        magic, size, crc = _HEAD.unpack_from(stored)
        table = stored[_HEAD.size : _HEAD.size + size]
        if magic != MAGIC or len(table) != size or crc32c(table) != crc:
            raise _damaged("the table of a response is damaged", stored)
        told = _decode_table(table)
    except (struct.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(f"a response does not parse: {error}", stored) from error
    at = _HEAD.size + size
    view = memoryview(stored)
    data: list[memoryview] = []
    for share in told.shares:
        if not 0 <= share.number < len(asked) or not 0 <= share.size <= len(stored) - at:
            raise _damaged("a response does not match its request", stored)
        data.append(view[at : at + share.size])
        at += share.size
    if at != len(stored):
        raise _damaged("a response has bytes after its end", stored)
    return ReplicationResponse(told.ticks, told.shares, data)


def _damaged(reason: str, stored: bytes) -> Corrupt:
    return Corrupt(reason, position=0, size=len(stored))
