"""One event as an EMIT frame, and the answer as a reference (docs/PROTOCOL.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from headwater.event import Content, Ref, ticks_and_node
from headwater.format.codec import codec
from headwater.format.producers import Producer
from headwater.format.protocol import BINARY, DOCUMENT, LENGTH, PREFIX, STRING
from headwater.limits import MIB

DATA_BYTES_MAX = MIB  # above, it goes as the body of a request, in pieces: a frame is held in memory as a whole
# What a server says of an event that a frame cannot hold: bytes that are not what `content` says.
UNFIT = ("bad_frame", "too_deep")
INT32, INT64 = 1 << 31, 1 << 63

_HEAD = b"\x02type\x00\x05\x00\x00\x00EMIT\x00\x03frame\x00"
_EVENT = {"bson": bytes((DOCUMENT,)) + b"event\0", "bytes": bytes((BINARY,)) + b"event\0"}
_TEXT = bytes((STRING,)) + b"event\0"
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode


def encode(
    topic: str, data: bytes, content: Content, meta: bytes | None, query: Mapping[str, Any], producer: Producer
) -> bytes | None:
    """The frame that appends an event; None if there can be none, and it must be asked for as over HTTP.

    `query` is what a request would say of it: type, key, partition, expected_version and durability.
    """
    expected, partition = query["expected_version"], query["partition"]
    if not topic or len(data) > DATA_BYTES_MAX or not _fits(partition, INT32) or not _fits(expected, INT64):
        return None
    fields: dict[str, Any] = {"streamName": topic, "eventType": query["type"] or ""}
    if query["key"] is not None:
        fields["key"] = query["key"]
    if partition is not None:
        fields["partition"] = partition
    if expected is not None:
        fields["expectedVersion"] = -1 if expected == "none" else expected
    if meta is not None:
        fields["meta"] = _decode_meta(meta)
    fields["durability"] = query["durability"]
    fields["producer"] = {"id": producer.id, "epoch": producer.epoch, "seq": producer.seq}
    if content != "bson":
        fields["content"] = content
    found = codec()
    try:
        told = found.encode(fields, False, found.encoding)
    except (found.damage, OverflowError, ValueError):  # a name in `meta` that BSON cannot hold
        return None
    return _frame(told[4:-1] + _event(data, content))


def ref_of(topic: str, told: Mapping[str, Any], durability: Any) -> Ref:
    """Where the event is. Raises KeyError or ValueError for an answer that does not tell it."""
    id = told["id"]
    ticks, node = ticks_and_node(id if isinstance(id, UUID) else UUID(bytes=bytes(id)))
    return Ref(topic, int(told["partition"]), int(told["offset"]), ticks, node, durability)


def _fits(number: object, most: int) -> bool:
    return number is None or number == "none" or (isinstance(number, int) and 0 <= number < most)


def _event(data: bytes, content: Content) -> bytes:
    """The field that holds the event."""
    if content == "bson":
        return _EVENT["bson"] + data
    if content == "bytes":
        return _EVENT["bytes"] + LENGTH.pack(len(data)) + b"\0" + data
    return _TEXT + LENGTH.pack(len(data) + 1) + data + b"\0"


def _frame(fields: bytes) -> bytes:
    inner = len(fields) + 5
    size = 4 + len(_HEAD) + inner + 1
    return b"".join((PREFIX.pack(size), LENGTH.pack(size), _HEAD, LENGTH.pack(inner), fields, b"\0\0"))
