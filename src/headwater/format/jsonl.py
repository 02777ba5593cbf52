"""Events as lines of JSON (docs/TRANSFER.md, "JSON lines").

An event has, in this order: `topic, partition, offset, time, id, type, key, content, data, meta`. `data` is a JSON
value for `json` and `bson` (as relaxed Extended JSON). For `text` and `bytes` it is a JSON object or array where the
data is one, else a string. What is not UTF-8 comes as base64 under another name: `data_base64`, `key_base64`. A huge
event has `data_bytes`, its size, instead of data.

`ids`, `times` and `strings` make the texts of many events at once, as rows of ASCII: lines and server-sent events are
full of them. Bytes only; safe from any thread.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Raw, UnsetType

from headwater.errors import Invalid, Unsupported
from headwater.event import UNIX_EPOCH_TICKS, Content, Event
from headwater.format.column import I64


class EventLine(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The fields of a line. On the way in all may be absent but the data; what the log itself gives is not used."""

    topic: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    time: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str = ""
    key: str | UnsetType | None = UNSET
    key_base64: str | UnsetType = UNSET
    content: Content | UnsetType = UNSET
    data: Raw | UnsetType = UNSET
    data_base64: str | UnsetType = UNSET
    data_bytes: int | UnsetType = UNSET
    meta: dict[str, str] = {}


JSON_SPACE = b" \t\r\n"
BEGINS_JSON = (b"{", b"[")  # of objects and arrays, which bytes and text may hold
_NO_META: dict[str, str] = {}
_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines
_look_at = msgspec.json.Decoder(Raw).decode
_decode_text = msgspec.json.Decoder(str).decode
decode_line = msgspec.json.Decoder(EventLine).decode
decode_lines = msgspec.json.Decoder(EventLine).decode_lines


def encode(event: Event) -> bytes:
    """Return one line for programs to read, without its end."""
    time = event.time.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
    return _encode(_line(event, time, str(event.id), *data_fields(event)))


def encode_exactly(events: list[Event]) -> bytes:
    """Lines, each with its end, from which `data_of` gives back every byte. The data must be in memory.

    Where `data` alone would not (JSON over several lines, BSON that relaxed Extended JSON changes), `data_base64`
    comes beside it.
    """
    times, ids = _times_and_ids(events)
    return _encode_lines(
        [
            _line(event, time, id, *_exact_fields(event), UNSET)
            for event, time, id in zip(events, times, ids, strict=True)
        ]
    )


def data_of(line: EventLine, content: Content | None) -> tuple[bytes, Content]:
    """Return the data of a line and what it is; `content` holds where the line does not say. Raises Invalid."""
    said = content if line.content is UNSET else line.content
    if line.data_base64 is not UNSET:
        return _from_base64(line.data_base64, "data_base64"), said or "bytes"
    if line.data is UNSET:
        if line.data_bytes is not UNSET:
            raise Invalid(
                "a huge event without its data cannot be appended", hint="'headwater export' writes its data too"
            )
        raise Invalid(
            "there is no data", hint="data or data_base64 is needed; 'headwater append --lines' takes any lines"
        )
    raw = bytes(line.data)
    if said is None:
        said = "text" if raw[:1] == b'"' else "json"
    try:
        if said == "json":
            check_json(raw)
            return raw, said
        if said == "bson":
            return to_bson(raw), said
        if raw[:1] in BEGINS_JSON:
            check_json(raw)
            return raw, said
        return _decode_text(raw).encode(), said
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the data is not {said}: {error}") from error


def key_of(line: EventLine) -> bytes | None:
    """Return the key of a line, None if it has none. Raises Invalid."""
    if line.key_base64 is not UNSET:
        return _from_base64(line.key_base64, "key_base64")
    return line.key.encode() if isinstance(line.key, str) else None


def data_fields(event: Event) -> tuple[Raw | str | UnsetType, str | UnsetType, int | UnsetType]:
    """Return what stands under `data`, `data_base64` and `data_bytes`: one of them."""
    data = event.data
    if data is None:
        return UNSET, UNSET, event.size
    try:
        if event.content == "json":
            return Raw(one_line(data)), UNSET, UNSET
        if event.content == "bson":
            return Raw(from_bson(data)), UNSET, UNSET
        if holds_json(data):
            return Raw(msgspec.json.format(data, indent=-1)), UNSET, UNSET
        return data.decode(), UNSET, UNSET
    except (ValueError, RecursionError):
        pass  # the content is what its producer called it, and need not be true
    return UNSET, _base64(data), UNSET


def check_json(data: bytes) -> None:
    """Raise ValueError or RecursionError for what is not JSON. Numbers may be as large as they are written."""
    _look_at(data)
    if not data.isascii():
        data.decode()  # which the look leaves out


def holds_json(data: bytes) -> bool:
    """Return whether data is a JSON object or array, as bytes and text may be; looks at its first sign first."""
    if data.lstrip(JSON_SPACE)[:1] not in BEGINS_JSON:
        return False
    try:
        check_json(data)
    except (ValueError, RecursionError):
        return False
    return True


def one_line(data: bytes) -> bytes:
    """JSON without white space, its numbers as written. Raises as `check_json` does."""
    check_json(data)  # formatting alone lets some damage pass
    return msgspec.json.format(data, indent=-1)


def _exact_fields(event: Event) -> tuple[Raw | str | UnsetType, str | UnsetType]:
    data, content = event.data, event.content
    assert data is not None
    if content in ("bytes", "text"):
        return _exact_text(data)
    if content == "json":
        try:
            check_json(data)
        except (ValueError, RecursionError):
            return UNSET, _base64(data)
        if _fits_a_line(data):
            return Raw(data), UNSET
    value, exact, _ = data_fields(event)
    if exact is not UNSET:
        return value, exact
    return value, UNSET if content == "bson" and _same_bson(value, data) else _base64(data)


def _exact_text(data: bytes) -> tuple[Raw | str | UnsetType, str | UnsetType]:
    """Return the fields of bytes or text; JSON that a line would change is a string, which keeps every byte."""
    if _fits_a_line(data) and holds_json(data):
        return Raw(data), UNSET
    try:
        return data.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, _base64(data)


def _fits_a_line(data: bytes) -> bool:
    """Return whether JSON can be written into a line as it is, and read from it byte for byte."""
    return b"\n" not in data and b"\r" not in data and data[:1] not in b" \t" and data[-1:] not in b" \t"


def _line(
    event: Event, time: str, id: str, data: Raw | str | UnsetType, exact: str | UnsetType, size: int | UnsetType
) -> EventLine:
    key: str | UnsetType | None = None
    key_base64: str | UnsetType = UNSET
    if event.key is not None:
        try:
            key = event.key.decode()
        except UnicodeDecodeError:
            key, key_base64 = UNSET, _base64(event.key)
    return EventLine(
        event.topic,
        event.partition,
        event.offset,
        time,
        id,
        event.type,
        key,
        key_base64,
        event.content,
        data,  # type: ignore[arg-type]  # on the way out text need not be encoded apart
        exact,
        size,
        _NO_META if event.raw_meta is None else event.meta,
    )


def _times_and_ids(events: list[Event]) -> tuple[list[str], list[str]]:
    """Return the texts of times and ids, as `encode` has them, made for all events at once."""
    ticks = np.fromiter((event.ticks for event in events), np.int64, len(events))
    nodes = np.fromiter((event.node for event in events), np.uint64, len(events))
    return _texts(times(ticks)), _texts(ids(ticks, nodes))


def _texts(rows: U8) -> list[str]:
    return [text.decode("ascii") for text in strings(rows)]


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def _from_base64(text: str, field: str) -> bytes:
    try:
        return a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError as error:
        raise Invalid(f"{field} is not base64: {error}") from error


def from_bson(data: bytes) -> bytes:
    """Return a BSON document in relaxed Extended JSON; raises ValueError."""
    bson, json_util = _codec()
    try:
        told: str = json_util.dumps(bson.decode(data), json_options=json_util.RELAXED_JSON_OPTIONS)
    except (bson.errors.BSONError, TypeError) as error:
        raise ValueError(str(error)) from error
    return told.encode()


def to_bson(raw: bytes) -> bytes:
    """Return the BSON of a document in Extended JSON; raises ValueError."""
    bson, json_util = _codec()
    try:
        document = json_util.loads(raw.decode())
        if not isinstance(document, dict):
            raise TypeError("a document must be an object")
        encoded: bytes = bson.encode(document)
    except (bson.errors.BSONError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error
    return encoded


def _same_bson(told: Any, data: bytes) -> bool:
    try:
        return to_bson(bytes(told)) == data
    except (ValueError, RecursionError):
        return False


def _codec() -> tuple[Any, Any]:
    try:
        import bson
        from bson import json_util
    except ImportError as error:
        raise Unsupported("BSON needs pymongo", hint="pip install 'headwater[bson]'") from error
    return bson, json_util


U8 = npt.NDArray[np.uint8]
ID_BYTES = 36
TIME_BYTES = 27
_TICKS_PER_SECOND = 10_000_000
_GROUPS = ((0, 0, 8), (9, 8, 12), (14, 12, 16), (19, 16, 20), (24, 20, 32))  # of the digits of a UUID, between hyphens


def ids(ticks: I64, nodes: int | npt.NDArray[np.uint64]) -> U8:
    """Return the ids of events, one in each row, as `str(id_of(ticks, node))` has them."""
    count = len(ticks)
    halves = np.empty((count, 2), ">u8")
    halves[:, 0] = (ticks >> 12) << 16 | 0x6000 | (ticks & 0x0FFF)
    halves[:, 1] = (np.uint64(nodes) if isinstance(nodes, int) else nodes) | np.uint64(2 << 62)
    digits = np.frombuffer(halves.tobytes().hex().encode(), np.uint8).reshape(count, 32)
    found = np.full((count, ID_BYTES), ord("-"), np.uint8)
    for at, lo, hi in _GROUPS:
        found[:, at : at + hi - lo] = digits[:, lo:hi]
    return found


def times(ticks: I64) -> U8:
    """Return the times of events, one in each row: ISO 8601 in UTC with six digits of a second and a `Z`."""
    count = len(ticks)
    since = ticks - UNIX_EPOCH_TICKS
    seconds = since // _TICKS_PER_SECOND
    begins = np.flatnonzero(np.diff(seconds, prepend=seconds[:1] - 1))  # neighbours are mostly of the same second
    texts = np.datetime_as_string(seconds[begins].astype("datetime64[s]")).astype("S19")
    found = np.empty((count, TIME_BYTES), np.uint8)
    rows = texts.view(np.uint8).reshape(len(begins), 19)
    found[:, :19] = np.repeat(rows, np.diff(begins, append=count), axis=0)
    found[:, 19] = ord(".")
    rest = (since - seconds * _TICKS_PER_SECOND) // 10
    for at in range(25, 19, -1):
        rest, digit = np.divmod(rest, 10)
        found[:, at] = digit + ord("0")
    found[:, 26] = ord("Z")
    return found


def strings(rows: U8) -> list[bytes]:
    """Return the rows as byte strings."""
    whole, width = rows.tobytes(), rows.shape[1]
    return [whole[at : at + width] for at in range(0, len(whole), width)]
