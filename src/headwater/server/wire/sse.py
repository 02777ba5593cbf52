r"""Server-sent events: frames of `id:`, `event:` and `data:` lines, and the cursors that are their ids.

    encode(batch, cursor=None) -> bytes     the frames of a topic's events; ids are UUIDs, or texts of a cursor
    encode_bus(batch) -> bytes              the frames of the bus: an id is the event's UUIDv6, UTF-8 data is as it is
    encode_all(batches, cut=None, *, cursor=None, bus=False) -> Iterator[bytes]      the same for many, in pieces
    Cursor(offsets, uuid)                   where a reader of several partitions is: the next offset of each
    cursor_encode(offsets, uuid) -> str     cursor_decode(text, uuid) -> list[int]
    last_event_id(text, uuid) -> UUID | list[int]      what a client sends to resume: an event's id, or a cursor
    gap(after, oldest) -> bytes, comment(text) -> bytes, retry(ms) -> bytes, HEARTBEAT

- `data:` there is one for each line of the data, whether it ends with `\n`, `\r\n` or `\r`: the stream cannot tell them
  apart, and a reader gets `\n`. JSON means the same after that; text may not.
- Text and JSON are as they are stored, BSON is relaxed Extended JSON, bytes are base64; on the bus, bytes are as they
  are too. What is not UTF-8, or no BSON, whatever its producer called it, is base64: the stream must be UTF-8.
- `event:` is the type, and is left out for an empty one. Line feeds and carriage returns in a type, which would end the
  line, are written `%0A` and `%0D`.
- A huge event above the limit for memory comes as an event `headwater.huge`, with its type, offset and size as JSON.

Bytes only; safe from any thread, but a `Cursor` belongs to one reader.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from uuid import UUID

import msgspec
import numpy as np

from headwater.errors import Invalid
from headwater.event import Content, Event, ticks_and_node
from headwater.format import jsonl, texts
from headwater.format.batch import BLOB, DATA, TYPE
from headwater.format.column import I64
from headwater.format.events import EventBatch
from headwater.limits import PARTITIONS_MAX
from headwater.server.wire.pieces import Cut, cut_off, joined, parted

HEARTBEAT = b":\n\n"
CURSOR_VERSION = 1
_CURSOR_HEADER = Struct(">BBH8s")
_CURSOR_HEAD = _CURSOR_HEADER.size
_TOPIC_BYTES = 8
_CURSOR_CHARS_MAX = (_CURSOR_HEAD + PARTITIONS_MAX * 8 + 2) // 3 * 4
_BREAKS = re.compile(rb"\r\n|\r|\n").sub
_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_+/", b"+/!!")
_encode = msgspec.json.Encoder().encode


class Cursor:
    """The next offset of each partition of a topic, for a reader of all of them. `str()` is its text."""

    def __init__(self, offsets: Sequence[int], uuid: UUID) -> None:
        self.offsets = list(offsets)
        self.uuid = uuid

    def __str__(self) -> str:
        return cursor_encode(self.offsets, self.uuid)

    def texts(self, partition: int, offsets: I64) -> list[bytes]:
        """The texts of the cursor after each of the events, which the cursor is moved past."""
        found = _texts(self.offsets, self.uuid, partition, offsets + 1)
        self.offsets[partition] = int(offsets[-1]) + 1
        return found


def encode(batch: EventBatch, cursor: Cursor | None = None) -> bytes:
    """A frame for each event of a topic. Without a cursor, which only several partitions need, ids are UUIDs."""
    ids = _ids(batch) if cursor is None else cursor.texts(batch.partition, batch.offsets())
    return _frames(batch, ids, bus=False)


def encode_bus(batch: EventBatch) -> bytes:
    """A frame for each event of the bus."""
    return _frames(batch, _ids(batch), bus=True)


def encode_all(
    batches: Iterable[EventBatch], cut: Cut | None = None, *, cursor: Cursor | None = None, bus: bool = False
) -> Iterator[bytes]:
    """The frames of many batches, in pieces. What is not a whole piece is held back until the batches end."""
    parts = (part for batch in cut_off(batches, cut) for part in parted(batch))
    return joined(encode_bus(part) if bus else encode(part, cursor) for part in parts)


def comment(text: str = "") -> bytes:
    """A line that readers pass over."""
    return b": %b\n\n" % _one_line(text.encode())


def retry(milliseconds: int) -> bytes:
    """How long a reader is to wait before it connects again."""
    return b"retry: %d\n\n" % milliseconds


def gap(after: str, oldest: str | None) -> bytes:
    """The event which tells that what followed the id `after` is gone, and which event is the oldest, if any."""
    return b"event: headwater.gap\ndata: %b\n\n" % _encode({"after": after, "oldest": oldest})


# Frames


def _ids(batch: EventBatch) -> list[bytes]:
    return texts.strings(texts.ids(batch.ticks(), batch.log.node))


def _frames(batch: EventBatch, ids: list[bytes], *, bus: bool) -> bytes:
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


def _huge(event: Event, id: bytes, bus: bool) -> bytes:
    if event.data is None:
        told = {"type": event.type, "partition": event.partition, "offset": event.offset, "data_bytes": event.size}
        return b"id: %b\nevent: headwater.huge\ndata: %b\n\n" % (id, _encode(told))
    (data,) = _data(event.content, [event.data], bus)
    return b"id: %b\n%bdata: %b\n\n" % (id, _event_line(event.type.encode()), data)


def _data(content: Content, values: list[bytes], bus: bool) -> list[bytes]:
    """What follows `data: `, with its further lines."""
    if content == "bson":
        return [_extended(value) for value in values]
    if content == "bytes" and not bus:
        return [b2a_base64(value, newline=False) for value in values]
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
    """The text of a cursor: the next offset of each partition of the topic with that uuid."""
    return _texts(offsets, uuid, 0, np.array(offsets[:1], np.int64))[0].decode("ascii")


def cursor_decode(text: str, uuid: UUID) -> list[int]:
    """The offsets of a cursor. Raises Invalid for what is none, and for one of another topic."""
    if len(text) % 4 or not _CURSOR_HEAD < len(text) <= _CURSOR_CHARS_MAX:
        raise _no_cursor(text)
    try:
        raw = a2b_base64(text.encode("ascii").translate(_FROM_URL), strict_mode=True)
    except ValueError as error:
        raise _no_cursor(text) from error
    version, width, count, topic = _CURSOR_HEADER.unpack_from(raw)
    if version != CURSOR_VERSION:
        raise Invalid(f"a cursor has version {version}", hint="begin anew, or upgrade the server", code="bad_cursor")
    if not 1 <= width <= 8 or not count or len(raw) != _padded(_CURSOR_HEAD + count * width):
        raise _no_cursor(text)
    if topic != uuid.bytes[:_TOPIC_BYTES]:
        raise Invalid(
            "the cursor is of another topic", hint="a topic that was made again begins anew", code="cursor_of_another"
        )
    at = range(_CURSOR_HEAD, _CURSOR_HEAD + count * width, width)
    offsets = [int.from_bytes(raw[begin : begin + width], "big") for begin in at]
    if max(offsets) >= 1 << 63:
        raise _no_cursor(text)
    return offsets


def last_event_id(text: str, uuid: UUID) -> UUID | list[int]:
    """From where a reader resumes: after the event with this id, or at these offsets. Raises Invalid."""
    if len(text) == texts.ID_BYTES and text[8:24:5] == "----":
        try:
            id = UUID(text)
        except ValueError as error:
            raise _no_cursor(text) from error
        ticks_and_node(id)  # raises for one that is not an event's
        return id
    return cursor_decode(text, uuid)


def _texts(offsets: Sequence[int], uuid: UUID, partition: int, moved: I64) -> list[bytes]:
    """The texts of cursors that differ in one partition, which is at each of the offsets `moved`."""
    width = max(1, -(-max(*offsets, int(moved[-1])).bit_length() // 8))
    size = _CURSOR_HEAD + len(offsets) * width
    head = _CURSOR_HEADER.pack(CURSOR_VERSION, width, len(offsets), uuid.bytes[:_TOPIC_BYTES])
    rows = np.zeros((len(moved), _padded(size)), np.uint8)
    rows[:, :_CURSOR_HEAD] = np.frombuffer(head, np.uint8)
    rows[:, _CURSOR_HEAD:size] = _digits(np.array(offsets, np.int64), width).ravel()
    at = _CURSOR_HEAD + partition * width
    rows[:, at : at + width] = _digits(moved, width)
    whole = b2a_base64(rows.tobytes(), newline=False).translate(_TO_URL)
    return texts.strings(np.frombuffer(whole, np.uint8).reshape(len(moved), -1))


def _digits(numbers: I64, width: int) -> texts.U8:
    return numbers.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - width :]


def _padded(size: int) -> int:
    return -(-size // 3) * 3


def _no_cursor(text: str) -> Invalid:
    return Invalid(
        f"{text[:40]!r} is neither an event's id nor a cursor",
        hint="send back the id of the last event as it came",
        code="bad_cursor",
    )
