"""The fields of request frames, and the encoding of response frames.

`FrameFields` gives typed access to the fields of a request; an invalid one raises Invalid with the code `bad_field`.
`response`, `failure` and `emitted` encode responses. Bytes only; safe from any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from uuid import UUID

import numpy as np
from bson.binary import Binary
from bson.int64 import Int64

from headwater.errors import HeadwaterError, Invalid, Unavailable, out_of_memory
from headwater.event import Ref
from headwater.format import protocol
from headwater.log.pending import PendingAppend
from headwater.server.http.errors import kind_of

INT32 = (1 << 31) - 1
INT64 = (1 << 63) - 1
OK = protocol.encode("RESPONSE", {"ok": True})


class FrameFields:
    """The fields of one frame. A getter returns None for an absent field, and raises Invalid if it is `needed`."""

    __slots__ = ("_values", "type")

    def __init__(self, type: str, values: Mapping[str, Any], names: tuple[str, ...]) -> None:
        """`names` are the fields that the frame may have; clients may capitalize their first letter."""
        self.type = type
        self._values = values if _set_of(names).issuperset(values) else self._renamed(values, names)

    def _renamed(self, values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        """Return the values with the first letter of each name in lower case; raises Invalid for an unknown name."""
        found: dict[str, Any] = {}
        for said, value in values.items():
            name = small(said)
            if name not in names:
                there = f"known fields: {', '.join(names)}" if names else "it takes no fields"
                raise self.wrong(f"has an unknown field {said[:40]!r}", hint=there)
            if name in found:
                raise self.wrong(f"has {name!r} twice")
            found[name] = value
        return found

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def isdisjoint(self, names: frozenset[str]) -> bool:
        """Return whether the frame has none of these fields."""
        return names.isdisjoint(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def wrong(self, what: str, *, hint: str = "") -> Invalid:
        """Return the error for an invalid field of this frame."""
        return Invalid(f"{self.type} {what}", hint=hint, code="bad_field")

    def text(self, name: str, *, needed: bool = False) -> str | None:
        value = self._get(name, needed)
        if value is not None and value.__class__ is not str:  # code of BSON is a string of another class
            raise self.wrong(f"needs a string for {name!r}")
        return value

    def integer(self, name: str, *, least: int = 0, most: int = INT64, needed: bool = False) -> int | None:
        """Return an integer. A double without a fraction is one, too: some languages have no other numbers."""
        value = self._get(name, needed)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(f"needs a whole number from {least} to {most} for {name!r}")
        return int(value)

    def flag(self, name: str) -> bool:
        value = self._get(name, False)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(f"needs true or false for {name!r}")
        return bool(value)

    def document(self, name: str, *, needed: bool = False) -> dict[str, Any] | None:
        value = self._get(name, needed)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(f"needs a document for {name!r}")
        return value

    def data(self, name: str) -> bytes | str | None:
        """Return bytes or text. Binary data of any subtype, including a UUID, is bytes."""
        value = self._get(name, False)
        if isinstance(value, UUID):
            return value.bytes
        if isinstance(value, bytes):
            return bytes(value)
        if value is not None and value.__class__ is not str:
            raise self.wrong(f"needs binary data or a string for {name!r}")
        return value

    def value(self, name: str) -> Any:
        """Return a value of any type."""
        return self._get(name, False)

    def _get(self, name: str, needed: bool) -> Any:
        value = self._values.get(name)
        if value is None and needed:
            raise self.wrong(f"needs {name!r}")
        return value


@cache
def _set_of(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(names)


def too_many(what: str, limit: str, maximum: int, *, hint: str) -> Unavailable:
    """Return the error for a connection that has the maximum number of something open."""
    message = f"a connection may have at most {maximum} {what} at once"
    return Unavailable(message, hint=hint, code="too_many", limit=limit, maximum=maximum)


def small(name: str) -> str:
    """Return a field's name with its first letter in lower case."""
    return name[:1].lower() + name[1:]


# Responses

_FACT_TYPES = (str, int, float, bool, bytes, type(None))
_FEW = 8  # responses that are packed one by one: for so few, arrays are slower

# The response to an EMIT, with gaps for the offset, the partition and the id. All have one length.
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
    """Return a response that reports an error. Unexpected exceptions expose no internals of the server."""
    return protocol.encode(type, {**fields, "ok": False, **told(error)})


def told(error: BaseException) -> dict[str, Any]:
    """Return the fields of a response that describe an error."""
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
    """Return the responses to the EMITs of one committed append, in their order."""
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
    """Return the fields of a response that say where an event is."""
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
    """Return a fact of an error as BSON can hold it: large integers and unknown objects become text."""
    if isinstance(fact, int) and not isinstance(fact, bool) and not -(1 << 63) <= fact < 1 << 63:
        return str(fact)
    if isinstance(fact, list | tuple):
        return [_fact(each) for each in fact]
    return fact if isinstance(fact, _FACT_TYPES) else str(fact)
