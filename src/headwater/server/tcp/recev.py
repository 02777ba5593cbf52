"""RECEV frames (docs/PROTOCOL.md, "RECEV"): events as bytes, many at once.

    encode(sub_id, batches, frame_max) -> Encoded            of an iterator, some batches at a time
    encode_events(sub_id, events, frame_max) -> Encoded      of events that were read before

The fixed fields of all frames are one array, filled in column by column; what has a length of its own stands behind
them, and one join makes the bytes. An event of BSON is sent as it is stored, if the codec can decode it: what is stored
may be older than the check of what comes in, and a client could not read past it. Batches that were found to be sound
are remembered. Bytes only, but that the data of a huge event is read from its file; safe from any thread. Needs the
codec of BSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, groupby, repeat
from typing import Any, NamedTuple

import msgspec
import numpy as np
from bson.binary import Binary
from bson.int64 import Int64

from headwater.errors import HeadwaterError, TooLarge
from headwater.event import UNIX_EPOCH_TICKS, Content, Event
from headwater.format import protocol
from headwater.format.batch import BLOB, DATA, KEY, META, TYPE
from headwater.format.codec import codec
from headwater.format.column import I64
from headwater.format.contents import is_bson
from headwater.format.events import EventBatch
from headwater.limits import FRAME_DEPTH_MAX
from headwater.server.tcp.subscription import Frames
from headwater.server.wire.pieces import slices

CHUNK_BYTES = 256 * 1024  # encoded at once: enough to vectorise, and little to be held for a slow client
CHECKED_MAX = 4096  # batches of BSON that are known to be sound: about 1 MB
SMALL = 16  # events of a batch below which they are cheaper as objects, gathered over many batches
TICKS_PER_MS = 10_000
SHALLOW_BYTES = protocol.LEVEL_BYTES_MIN * (FRAME_DEPTH_MAX - 2)  # an event is on the third level of its frame

# The fixed fields of a frame, with gaps; before them, what ends the frame before.
_END = b"\0\0"
_HEAD = (
    _END
    + protocol.encode(
        "RECEV",
        {
            "subID": 0x11111111,
            "seqNo": Int64(0x2222222222222222),
            "timestamp": Int64(0x3333333333333333),
            "partition": 0x44444444,
            "id": Binary(b"\x55" * 16, protocol.UUID_SUBTYPE),
        },
    )[: -len(_END)]
)
_DOCUMENT_AT = len(_END) + 4
_FRAME_AT = _HEAD.index(b"\x03frame\0") + 7
_ID_AT = _HEAD.index(b"\x55" * 16)
_ROW = np.dtype(
    {
        "names": ["prefix", "document", "frame", "sub", "seq", "time", "partition", "high", "low"],
        "formats": [">u4", "<i4", "<i4", "<i4", "<i8", "<i8", "<i4", ">u8", ">u8"],
        "offsets": [
            *(len(_END), _DOCUMENT_AT, _FRAME_AT, _HEAD.index(b"\x11" * 4), _HEAD.index(b"\x22" * 8)),
            *(_HEAD.index(b"\x33" * 8), _HEAD.index(b"\x44" * 4), _ID_AT, _ID_AT + 8),
        ],
        "itemsize": len(_HEAD),
    }
)
_EVENT = b"\x03event\0"
_checked: dict[tuple[int | None, ...], int] = {}  # by batch, how many of its events from the first on are sound BSON
_decode_json = msgspec.json.Decoder().decode
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode
_CANNOT = (ValueError, TypeError, OverflowError, RecursionError, HeadwaterError)  # and what the codec has of its own


def _by_place(event: Event) -> tuple[int, Content, bool]:
    return event.partition, event.content, event.data is None


class EventFrames(NamedTuple):
    """Frames, by partition and in their order; `error` if an event after them cannot be sent at all."""

    frames: list[Frames]
    error: HeadwaterError | None = None


class EventColumns(NamedTuple):
    """Some events of one partition and content. `types` may be one for all; `keys` and `metas` are None for none."""

    partition: int
    node: int
    offsets: I64
    ticks: I64
    types: bytes | Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    metas: Sequence[bytes | None] | None
    content: Content
    data: Sequence[bytes]
    sound: bool = False  # its data is known to be BSON


def encode(sub_id: int, batches: Iterator[EventBatch], frame_max: int) -> EventFrames:
    """Return the frames of the next batches, about `CHUNK_BYTES` of them. No frames when there are no more batches."""
    found: list[Frames] = []
    few: list[Event] = []  # of small batches
    size = 0
    for batch in batches:
        some: EventFrames | None = None
        if len(batch) < SMALL and not batch.piece.batch.flags & BLOB:
            few += batch.events()
            size += batch.size
        else:
            before = encode_events(sub_id, few, frame_max)
            few = []
            found += before.frames
            if before.error is not None:
                return EventFrames(found, before.error)
            some = _encode_batch(sub_id, batch, frame_max)
            found += some.frames
            size += sum(len(each.data) for each in some.frames)
        if size >= CHUNK_BYTES or (some is not None and some.error is not None):
            break
    else:
        some = None
    rest = encode_events(sub_id, few, frame_max)
    return EventFrames(found + rest.frames, rest.error or (some.error if some is not None else None))


def encode_events(sub_id: int, events: Sequence[Event], frame_max: int) -> EventFrames:
    """Return the frames of events, in their order, up to one that is too large. Those without data are huge."""
    found: list[Frames] = []
    for (partition, content, huge), same in groupby(events, _by_place):
        run = list(same)
        if huge:
            error = _encode_huge(sub_id, run, frame_max, found)
        else:
            columns = EventColumns(
                partition,
                run[0].node,
                np.array([event.offset for event in run], np.int64),
                np.array([event.ticks for event in run], np.int64),
                [event.type.encode() for event in run],
                [event.key for event in run],
                [event.raw_meta for event in run],
                content,
                [event.data or b"" for event in run],
            )
            frames, error = _frames(sub_id, columns, frame_max)
            found += frames
        if error is not None:
            return EventFrames(found, error)
    return EventFrames(found)


def _encode_huge(sub_id: int, events: Sequence[Event], frame_max: int, found: list[Frames]) -> HeadwaterError | None:
    """Add the frame of each huge event to those found; returns what is wrong with the first that cannot be sent."""
    for event in events:
        if event.size > frame_max:
            return too_large(event.partition, event.offset, event.size, frame_max)
        make = partial(_huge_frame, sub_id, event, frame_max)
        pieces = slices(("recev", sub_id, frame_max, event.node, event.ticks), make)
        try:
            first = next(pieces)  # which tells whether it fits
        except TooLarge as error:
            return error
        found.append(Frames(b"", (), event.partition, [event.offset], chain((first,), pieces)))
    return None


def _huge_frame(sub_id: int, event: Event, frame_max: int) -> bytes:
    """Return the frame of a huge event, whose data is read for it; raises TooLarge."""
    whole = msgspec.structs.replace(event, data=b"".join(event.chunks()))
    frames, error = encode_events(sub_id, [whole], frame_max)
    if error is not None:
        raise error
    return frames[0].data


def _encode_batch(sub_id: int, batch: EventBatch, frame_max: int) -> EventFrames:
    stored = batch.piece.batch
    if stored.flags & BLOB:
        return encode_events(sub_id, batch.events(load=False), frame_max)
    data, types, keys, metas = (stored.column(kind) for kind in (DATA, TYPE, KEY, META))
    assert data is not None
    values = [value or b"" for value in batch.values(data)]
    columns = EventColumns(
        batch.partition,
        batch.log.node,
        batch.offsets(),
        batch.ticks(),
        b"" if types is None else bytes(types.data) if types.offsets is None else batch.values(types),
        None if keys is None else batch.values(keys),
        None if metas is None else batch.values(metas),
        stored.content,
        values,
        stored.content == "bson" and _is_sound(batch, values),
    )
    return _frames(sub_id, columns, frame_max)


def _is_sound(batch: EventBatch, values: Sequence[bytes]) -> bool:
    """Return whether the data of a batch is BSON: looked at once, for all subscribers and redeliveries."""
    stored, lo, hi = batch.piece
    key = batch.log.node, batch.partition, stored.base_offset, stored.base_ticks, stored.crc(DATA)
    checked = _checked.get(key, 0)
    if hi <= checked:
        return True
    if not is_bson(values):
        return False
    if lo <= checked and not batch.picked:
        if len(_checked) >= CHECKED_MAX:
            _checked.clear()
        _checked[key] = hi
    return True


def _frames(sub_id: int, columns: EventColumns, frame_max: int) -> EventFrames:
    """Return the frames of events of one partition and content."""
    count = len(columns.offsets)
    documents = columns.data if columns.sound else _documents(columns.content, columns.data)
    wrong = _wrong(columns.content, columns.data, documents)
    types, type_sizes = _types(columns.types)
    sizes = np.fromiter(map(len, documents), np.int64, count) + type_sizes
    parts: list[Any] = [types]
    if columns.keys is not None and any(key is not None for key in columns.keys):
        keys = [_key(key) for key in columns.keys]
        parts.append(keys)
        sizes += np.fromiter(map(len, keys), np.int64, count)
    if columns.metas is not None and any(columns.metas):
        metas = [_meta(meta) for meta in columns.metas]
        parts.append(metas)
        sizes += np.fromiter(map(len, metas), np.int64, count)
    if any(wrong):
        parts.append(wrong)
        sizes += np.fromiter(map(len, wrong), np.int64, count)
    sizes += len(_HEAD) + len(_EVENT)  # with what ends the frame, as the head has what ends the one before
    fitting = sizes - 4 <= frame_max
    if not fitting.all():
        first = int(np.argmin(fitting))
        error = too_large(columns.partition, int(columns.offsets[first]), len(documents[first]), frame_max)
        before = _frames(sub_id, _cut(columns, first), frame_max) if first else EventFrames([])
        return EventFrames(before.frames, error)
    heads = _heads(sub_id, columns, sizes)
    heads[0] = heads[0][len(_END) :]
    pieces = zip(heads, *parts, repeat(_EVENT), documents, strict=False)
    data = b"".join(chain(chain.from_iterable(pieces), (_END,)))
    ends = np.cumsum(sizes).tolist()
    return EventFrames([Frames(data, ends, columns.partition, columns.offsets.tolist())])


def _heads(sub_id: int, columns: EventColumns, sizes: I64) -> list[bytes]:
    """Return the fixed fields of each frame, which has so many bytes in all."""
    rows = np.frombuffer(bytearray(_HEAD * len(sizes)), _ROW)
    whole, ticks = sizes - 4, columns.ticks
    rows["prefix"] = whole
    rows["document"] = whole
    rows["frame"] = whole - (_FRAME_AT - _DOCUMENT_AT) - 1
    rows["sub"] = sub_id
    rows["seq"] = columns.offsets
    rows["time"] = (ticks - UNIX_EPOCH_TICKS) // TICKS_PER_MS
    rows["partition"] = columns.partition
    rows["high"] = (ticks >> 12) << 16 | 0x6000 | ticks & 0x0FFF
    rows["low"] = 2 << 62 | columns.node
    whole_bytes, width = rows.tobytes(), len(_HEAD)
    return [whole_bytes[at : at + width] for at in range(0, len(whole_bytes), width)]


def _cut(columns: EventColumns, count: int) -> EventColumns:
    """Return the first events of some."""
    return columns._replace(
        offsets=columns.offsets[:count],
        ticks=columns.ticks[:count],
        types=columns.types if isinstance(columns.types, bytes) else columns.types[:count],
        keys=None if columns.keys is None else columns.keys[:count],
        metas=None if columns.metas is None else columns.metas[:count],
        data=columns.data[:count],
    )


# Fields with a length of their own


def _types(types: bytes | Sequence[bytes | None]) -> tuple[Any, Any]:
    """Return the field `eventType` of each event, or of all of them again and again, and its size."""
    if isinstance(types, bytes):
        field = _text(b"eventType", types)
        return repeat(field), len(field)
    fields = {type: _text(b"eventType", type or b"") for type in set(types)}
    each = [fields[type] for type in types]
    return each, np.fromiter(map(len, each), np.int64, len(each))


def _text(name: bytes, value: bytes) -> bytes:
    return b"\x02%b\0%b%b\0" % (name, protocol.LENGTH.pack(len(value) + 1), value)


def _key(key: bytes | None) -> bytes:
    """Return the field `key`: text where it can be, nothing without a key."""
    if key is None:
        return b""
    try:
        key.decode()
    except UnicodeDecodeError:
        return b"\x05key\0%b\0%b" % (protocol.LENGTH.pack(len(key)), key)
    return _text(b"key", key)


def _meta(meta: bytes | None) -> bytes:
    """Return the field `meta`. A name with a zero byte, which BSON cannot hold, is left out."""
    if not meta:
        return b""
    told = {name: value for name, value in _decode_meta(meta).items() if "\0" not in name}
    return b"\x03meta\0" + _encoded(told)


# Events as documents

_BYTES = b"\x02content\0\x06\0\0\0bytes\0"


def _documents(content: Content, values: Sequence[bytes]) -> Sequence[bytes]:
    """Return each event as a document."""
    if content == "bson":
        return values if is_bson(values) else [each if is_bson([each]) else _encoded({"data": each}) for each in values]
    if content == "json":
        return [_of_json(each) for each in values]
    if content == "text":
        return [_of_text(each) for each in values]
    return [_encoded({"data": each}) for each in values]


def _wrong(content: Content, values: Sequence[bytes], documents: Sequence[bytes]) -> Sequence[bytes]:
    """Return the field `content` of each event that is not what its producer called it, and comes as binary."""
    if documents is values:
        return ()
    if content == "bson":
        return [b"" if document is value else _BYTES for value, document in zip(values, documents, strict=True)]
    if content == "bytes":
        return ()
    return [_BYTES if document[4] == protocol.BINARY else b"" for document in documents]


def _of_json(value: bytes) -> bytes:
    try:
        found = _decode_json(value)
        document = _encoded(found if isinstance(found, dict) else {"data": found})
        if len(document) > SHALLOW_BYTES:
            protocol.check_depth(_nested(_nested(document)))
    except (*_CANNOT, codec().damage):
        return _of_text(value)
    return document


def _nested(document: bytes) -> bytes:
    """Return a document in another."""
    return protocol.LENGTH.pack(len(document) + 7) + b"\x03\0" + document + b"\0"


def _of_text(value: bytes) -> bytes:
    try:
        return _encoded({"data": value.decode()})
    except UnicodeDecodeError:
        return _encoded({"data": value})


def _encoded(document: dict[str, Any]) -> bytes:
    found = codec()
    return found.encode(document, False, found.encoding)


def too_large(partition: int, offset: int, size: int, frame_max: int) -> TooLarge:
    """Return the error for an event that does not fit into a frame."""
    return TooLarge(
        f"event {offset} of partition {partition} has {size} bytes; a frame may have at most {frame_max}",
        hint="read it over HTTP, and subscribe after it",
        code="too_large",
        limit="frame_bytes_max",
        maximum=frame_max,
        partition=partition,
        offset=offset,
    )
