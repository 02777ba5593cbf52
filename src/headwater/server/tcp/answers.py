"""Response frames: the fields of a RESPONSE, and the encoding of errors."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import numpy as np
from bson.binary import Binary
from bson.int64 import Int64

from headwater.errors import HeadwaterError, Unavailable, out_of_memory
from headwater.event import Ref
from headwater.format import protocol
from headwater.log.pending import PendingAppend
from headwater.server.http.errors import kind_of

OK = protocol.encode("RESPONSE", {"ok": True})
_FACT_TYPES = (str, int, float, bool, bytes, type(None))
_FEW = 8  # answers that are packed one by one: below, arrays cost more than they save

# The answer to an EMIT, with gaps for the offset, the partition and the id. All have one length.
_EMITTED = protocol.encode(
    "RESPONSE",
    {"ok": True, "offset": Int64(0x1111111111111111), "partition": 0x22222222, "id": Binary(b"\x33" * 16, 4)},
)
_OFFSET_AT = _EMITTED.index(b"\x11" * 8)
_PARTITION_AT = _EMITTED.index(b"\x22" * 4)
_ID_AT = _EMITTED.index(b"\x33" * 16)
_ONE = struct.Struct(
    f"<{_OFFSET_AT}sq{_PARTITION_AT - _OFFSET_AT - 8}si{_ID_AT - _PARTITION_AT - 4}s16s{len(_EMITTED) - _ID_AT - 16}s"
)
_PARTS = (
    _EMITTED[:_OFFSET_AT],
    _EMITTED[_OFFSET_AT + 8 : _PARTITION_AT],
    _EMITTED[_PARTITION_AT + 4 : _ID_AT],
    _EMITTED[_ID_AT + 16 :],
)
_ROW = np.dtype(
    {
        "names": ["offset", "partition", "time", "low", "node"],
        "formats": ["<i8", "<i4", ">u4", ">u4", ">u8"],
        "offsets": [_OFFSET_AT, _PARTITION_AT, _ID_AT, _ID_AT + 4, _ID_AT + 8],
        "itemsize": len(_EMITTED),
    }
)


def response(type: str = "RESPONSE", **fields: Any) -> bytes:
    """Return a response that reports success."""
    return protocol.encode(type, {"ok": True, **fields})


def failure(error: BaseException, type: str = "RESPONSE", **fields: Any) -> bytes:
    """Return an answer that it was not. What is not an error of ours tells nothing of the server's insides."""
    return protocol.encode(type, {**fields, "ok": False, **told(error)})


def told(error: BaseException) -> dict[str, Any]:
    """Return the fields that tell of an error."""
    if isinstance(error, MemoryError):
        error = out_of_memory("the server cannot respond")
    if not isinstance(error, HeadwaterError):
        error = Unavailable("the server failed", hint="see the server's log", code="internal")
    fields: dict[str, Any] = {"errCode": error.code, "errMsg": error.message, "errKind": kind_of(error)}
    facts = {name: _fact(fact) for name, fact in error.facts.items()}
    if error.hint:
        fields["errHint"] = error.hint
    if facts:
        fields["errFacts"] = facts
    return fields


def emitted(waiting: PendingAppend) -> bytes:
    """Return the answers to the EMITs whose events one append holds, in their order, once it is committed."""
    rows, log = waiting.rows, waiting.log
    offset, ticks, count, partition = rows.offset, rows.ticks, rows.count, log.place.partition
    node = 2 << 62 | log.node
    first, second, third, last = _PARTS
    pack = _ONE.pack
    if count == 1:
        return pack(first, offset, second, partition, third, _id(ticks, node), last)
    if count <= _FEW:
        return b"".join(
            pack(first, offset + n, second, partition, third, _id(ticks + n, node), last) for n in range(count)
        )
    answers = np.frombuffer(bytearray(_EMITTED * count), _ROW)
    numbers = np.arange(count, dtype=np.int64)
    times = numbers + ticks
    answers["offset"] = numbers + offset
    answers["partition"] = partition
    answers["time"] = times >> 28
    answers["low"] = (times >> 12 & 0xFFFF) << 16 | 0x6000 | times & 0x0FFF
    answers["node"] = node
    return answers.tobytes()


def ref_fields(ref: Ref) -> dict[str, Any]:
    """Return where an event is, in an answer."""
    id: UUID = ref.id
    return {
        "streamName": ref.topic,
        "partition": ref.partition,
        "offset": Int64(ref.offset),
        "id": Binary(id.bytes, protocol.UUID_SUBTYPE),
    }


def _id(ticks: int, node: int) -> bytes:
    high = (ticks >> 12) << 16 | 0x6000 | ticks & 0x0FFF
    return (high << 64 | node).to_bytes(16, "big")


def _fact(fact: object) -> object:
    """What a fact is in BSON: numbers of Python have no end, and some facts are objects."""
    if isinstance(fact, int) and not isinstance(fact, bool) and not -(1 << 63) <= fact < 1 << 63:
        return str(fact)
    if isinstance(fact, list | tuple):
        return [_fact(each) for each in fact]
    return fact if isinstance(fact, _FACT_TYPES) else str(fact)
