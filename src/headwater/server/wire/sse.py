r"""Server-sent events: frames of `id:`, `event:` and `data:` lines, and the cursors that are their ids.

    encode(batch, ids=None, *, bus=False) -> bytes     the frame of each event; ids are UUIDs, unless others are given
    told(name, value) -> bytes                         an event of the server's own, without an id: its data is JSON
    retry(milliseconds) -> bytes                       a line that belongs to the event that follows
    HEARTBEAT                                          a comment, which may come before any event
    cursor_encode(offsets, uuid) -> str                where a reader of several partitions is, as an id
    cursor_decode(text, uuid) -> list[int]
    cursor_texts(offsets, uuid, partition, moved) -> list[bytes]       the ids of events of one partition

- `data:` there is one for each line of the data, whether it ends with `\n`, `\r\n` or `\r`: the stream cannot tell them
  apart, and a reader gets `\n`. JSON means the same after that; text may not.
- Text and JSON are as they are stored, BSON is relaxed Extended JSON. Bytes that are a JSON object or array are as they
  are stored, other bytes are base64, which begins with neither sign; on the bus, bytes are as they are too. What is not
  UTF-8, or no BSON, whatever its producer called it, is base64: the stream must be UTF-8.
- `event:` is the type, and is left out for an empty one. Line feeds and carriage returns in a type, which would end the
  line, are written `%0A` and `%0D`.
- A huge event above the limit for memory comes as an event `headwater.huge`, with its type, offset and size as JSON.

An empty line comes after an event and nowhere else. By the standard, a block without data is no event; but httpx-sse,
`@microsoft/fetch-event-source` and r3labs/sse hand their users an empty one for it, some also for a comment.

Bytes only; safe from any thread.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from struct import Struct
from typing import Any
from uuid import UUID

import msgspec
import numpy as np

from headwater.errors import Invalid
from headwater.event import Content, Event
from headwater.format import jsonl
from headwater.format.batch import BLOB, DATA, TYPE
from headwater.format.column import I64
from headwater.format.events import EventBatch
from headwater.limits import PARTITIONS_MAX

HEARTBEAT = b":\n"
CURSOR_VERSION = 1
_CURSOR_HEADER = Struct(">BBH8s")
_CURSOR_HEAD = _CURSOR_HEADER.size
_TOPIC_BYTES = 8
_CURSOR_CHARS_MAX = (_CURSOR_HEAD + PARTITIONS_MAX * 8 + 2) // 3 * 4
_BREAKS = re.compile(rb"\r\n|\r|\n").sub
_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_+/", b"+/!!")
_encode = msgspec.json.Encoder().encode


def encode(batch: EventBatch, ids: Sequence[bytes] | None = None, *, bus: bool = False) -> bytes:
    """Return the frame of each event, as a topic gives it, or as the bus does."""
    if ids is None:
        ids = jsonl.strings(jsonl.ids(batch.ticks(), batch.log.node))
    stored = batch.piece.batch
    if stored.flags & BLOB:
        return b"".join([_huge(event, id, bus) for event, id in zip(batch.events(), ids, strict=True)])
    column = stored.column(DATA)
    assert column is not None
    values = _data(stored.content, [value or b"" for value in batch.values(column)], bus)
    types = stored.column(TYPE)
    if types is None or types.offsets is None:
        line = _event_line(b"" if types is None else bytes(types.data))
        frame = b"id: %b\n" + line.replace(b"%", b"%%") + b"data: %b\n\n"
        return b"".join([frame % each for each in zip(ids, values, strict=True)])
    names = batch.values(types)
    lines = {name: _event_line(name or b"") for name in set(names)}
    each_line = [lines[name] for name in names]
    return b"".join([b"id: %b\n%bdata: %b\n\n" % each for each in zip(ids, each_line, values, strict=True)])


def told(name: str, value: Any) -> bytes:
    """Return an event of the server. It has no id: a client that reconnects before the next event gets it again."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(value))


def retry(milliseconds: int) -> bytes:
    """Return how long a reader is to wait before it connects again: a line, to be written with the first event."""
    return b"retry: %d\n" % milliseconds


def _huge(event: Event, id: bytes, bus: bool) -> bytes:
    if event.data is None:
        told = {"type": event.type, "partition": event.partition, "offset": event.offset, "data_bytes": event.size}
        return b"id: %b\nevent: headwater.huge\ndata: %b\n\n" % (id, _encode(told))
    (data,) = _data(event.content, [event.data], bus)
    return b"id: %b\n%bdata: %b\n\n" % (id, _event_line(event.type.encode()), data)


def _data(content: Content, values: list[bytes], bus: bool) -> list[bytes]:
    """Return what follows `data: `, with its further lines."""
    if content == "bson":
        return [_extended(value) for value in values]
    if content == "bytes" and not bus:
        return [_text(value) if jsonl.holds_json(value) else b2a_base64(value, newline=False) for value in values]
    raw = b"".join(values)
    if raw.isascii() and b"\n" not in raw and b"\r" not in raw:
        return values
    return [_text(value) for value in values]


def _text(value: bytes) -> bytes:
    try:
        value.decode()
    except UnicodeDecodeError:
        return b2a_base64(value, newline=False)
    return _BREAKS(b"\ndata: ", value)


def _extended(value: bytes) -> bytes:
    try:
        return jsonl.from_bson(value)
    except (ValueError, RecursionError):
        return b2a_base64(value, newline=False)


def _event_line(type: bytes) -> bytes:
    return b"event: %b\n" % _one_line(type) if type else b""


def _one_line(text: bytes) -> bytes:
    return text.replace(b"\n", b"%0A").replace(b"\r", b"%0D")


# Cursors: `version u8 | width u8 | partitions u16 | first 8 bytes of the topic's uuid | offsets`, big-endian, each
# offset as wide as the largest needs, filled up with zeros to a multiple of 3, in base64url.


def cursor_encode(offsets: Sequence[int], uuid: UUID) -> str:
    """Return the text of a cursor: the next offset of each partition of the topic with that uuid."""
    return cursor_texts(offsets, uuid, 0, np.array(offsets[:1], np.int64))[0].decode("ascii")


def cursor_decode(text: str, uuid: UUID) -> list[int]:
    """Return the offsets of a cursor. Raises Invalid for what is none, and for one of another topic."""
    if len(text) % 4 or not _CURSOR_HEAD < len(text) <= _CURSOR_CHARS_MAX:
        raise _no_cursor(text)
    try:
        raw = a2b_base64(text.encode("ascii").translate(_FROM_URL), strict_mode=True)
    except ValueError as error:
        raise _no_cursor(text) from error
    version, width, count, topic = _CURSOR_HEADER.unpack_from(raw)
    if version != CURSOR_VERSION:
        raise Invalid(
            f"unsupported cursor version {version}", hint="start again, or upgrade the server", code="bad_event_id"
        )
    if not 1 <= width <= 8 or not count or len(raw) != _padded(_CURSOR_HEAD + count * width):
        raise _no_cursor(text)
    if topic != uuid.bytes[:_TOPIC_BYTES]:
        raise Invalid(
            "the cursor belongs to another topic",
            hint="start again if the topic was deleted and recreated",
            code="cursor_of_another",
        )
    at = range(_CURSOR_HEAD, _CURSOR_HEAD + count * width, width)
    offsets = [int.from_bytes(raw[begin : begin + width], "big") for begin in at]
    if max(offsets) >= 1 << 63:
        raise _no_cursor(text)
    return offsets


def cursor_texts(offsets: Sequence[int], uuid: UUID, partition: int, moved: I64) -> list[bytes]:
    """Return the texts of cursors that differ in one partition, which is at each of the offsets `moved`."""
    width = max(1, -(-max(*offsets, int(moved[-1])).bit_length() // 8))
    size = _CURSOR_HEAD + len(offsets) * width
    head = _CURSOR_HEADER.pack(CURSOR_VERSION, width, len(offsets), uuid.bytes[:_TOPIC_BYTES])
    rows = np.zeros((len(moved), _padded(size)), np.uint8)
    rows[:, :_CURSOR_HEAD] = np.frombuffer(head, np.uint8)
    rows[:, _CURSOR_HEAD:size] = _digits(np.array(offsets, np.int64), width).ravel()
    at = _CURSOR_HEAD + partition * width
    rows[:, at : at + width] = _digits(moved, width)
    whole = b2a_base64(rows.tobytes(), newline=False).translate(_TO_URL)
    return jsonl.strings(np.frombuffer(whole, np.uint8).reshape(len(moved), -1))


def _digits(numbers: I64, width: int) -> jsonl.U8:
    return numbers.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - width :]


def _padded(size: int) -> int:
    return -(-size // 3) * 3


def _no_cursor(text: str) -> Invalid:
    return Invalid(
        f"{text[:40]!r} is neither an event's id nor a cursor",
        hint="send the id of the last event unchanged",
        code="bad_event_id",
    )
