"""The frames of the protocol over TCP (docs/PROTOCOL.md): a length, and a BSON document `{type, frame}`.

    encode("PING", {}) -> bytes                 with its length
    decode(raw) -> ("PING", {})                 without it

`event_of` finds the event of a frame, so that it can be stored byte for byte. Whatever the bytes are, nothing here
recurses, and the time is linear in their number. Bytes only; safe from any thread. Needs the codec of BSON.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from headwater.errors import Invalid, TooLarge
from headwater.format.codec import codec
from headwater.limits import FRAME_DEPTH_MAX, FRAME_FIELDS_BYTES_MAX

VERSION = "1.0"
PREFIX = struct.Struct(">I")  # the length of a frame
LENGTH = struct.Struct("<i")  # of a document, an array, a string
DOUBLE, STRING, DOCUMENT, ARRAY, BINARY, BOOLEAN, INT32, INT64 = 0x01, 0x02, 0x03, 0x04, 0x05, 0x08, 0x10, 0x12
UUID_SUBTYPE = 4
LEVEL_BYTES_MIN = 7  # of one more level of nesting: a type, a name's end, a length, an end
SHALLOW_BYTES = LEVEL_BYTES_MIN * (FRAME_DEPTH_MAX - 1)  # a frame of so many bytes cannot be nested too deep
EMPTY = b"\x05\0\0\0\0"
PIECE_BYTES = 64 * 1024  # that are decoded at once: nobody else has the interpreter meanwhile

_CODE = 0x0F  # a text and a document, with a length of both
_FIXED = {0x01: 8, 0x06: 0, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16, 0x7F: 0, 0xFF: 0}
_TEXTS = frozenset((0x02, 0x0D, 0x0E))  # a length, without itself, and so many bytes
_NESTED = frozenset((DOCUMENT, ARRAY))
_LEVELS = frozenset((DOCUMENT, ARRAY, _CODE))
_TYPE = b"\x02type\0"  # how the document of a frame begins, as nearly all clients write it
_TYPE_AT = 4 + len(_TYPE)
_BODY = b"\x03frame\0"
_BODY_AT = _TYPE_AT + 4 + len(_BODY)  # without the type itself
_EVENT = frozenset((b"event\0", b"Event\0"))
_length = LENGTH.unpack_from


def encode(type: str, frame: dict[str, Any]) -> bytes:
    """Return a frame with its length."""
    found = codec()
    raw = found.encode({"type": type, "frame": frame}, False, found.encoding)
    return PREFIX.pack(len(raw)) + raw


def encode_around(type: str, frame: dict[str, Any], name: str, document: bytes) -> bytes:
    """Return a frame with one field more, the last: a document that is BSON already, and is not looked into."""
    found = codec()
    raw = found.encode({"type": type, "frame": frame}, False, found.encoding)
    field = b"\x03" + name.encode() + b"\0" + document
    size, at = len(raw) + len(field), 4 + 6 + 4 + len(type) + 1 + 7  # of the length of the inner document
    inner = LENGTH.pack(size - at - 1)
    return b"".join((PREFIX.pack(size), LENGTH.pack(size), raw[4:at], inner, raw[at + 4 : -2], field, b"\0\0"))


def decode(raw: bytes) -> tuple[str, dict[str, Any]]:
    """Return the type and the body of a frame; raises Invalid with the code `bad_frame` or `too_deep`."""
    check_depth(raw)
    return _type_and_body(_decoded(raw))


def decode_bodies(raws: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return the bodies of frames that arrived together, decoded in one call; raises as `decode`.

    On an error, the caller cannot know which frame is at fault and decodes them one by one. Not all is checked that
    `decode` checks: `event_of` does the rest.
    """
    if len(raws) == 1:
        raw = raws[0]
        if len(raw) > SHALLOW_BYTES:
            check_depth(raw)
        body = _decoded(raw).get("frame")
        if body.__class__ is not dict:
            raise _no_frame()
        return [body]
    for raw in raws:
        size = len(raw)
        if size < 5 or _length(raw)[0] != size:  # the others would be read from the wrong place
            raise bad_frame("a document does not end where it says")
        if size > SHALLOW_BYTES:
            check_depth(raw)
    found = codec()
    try:
        bodies = [whole.get("frame") for whole in found.decode_all(b"".join(raws), found.options)]
    except (found.damage, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise bad_frame(f"it is not BSON: {error}") from error
    for body in bodies:
        if body.__class__ is not dict:
            raise _no_frame()
    return bodies  # type: ignore[return-value]  # each is a dict


def decode_large(raw: bytes) -> tuple[str, dict[str, Any]]:
    """Return the type and the body of a large frame, without keeping other threads waiting for long.

    The event of an EMIT is only checked, and is an empty document in the body. In any other frame, what is large must
    be text or binary. Raises as `decode`, and TooLarge if it is not.
    """
    check_depth(raw)
    type, start = parts(raw)
    if type == b"EMIT":
        body = b"".join(_without_event(raw, start))
        return "EMIT", _decoded(_document(body))
    nested = sum(after - value for _, kind, value, after in _walk(raw, start, len(raw)) if kind in _LEVELS)
    if nested > FRAME_FIELDS_BYTES_MAX:
        raise TooLarge(
            f"the fields of the frame have {nested} bytes; the limit is {FRAME_FIELDS_BYTES_MAX}",
            limit="FRAME_FIELDS_BYTES_MAX",
            maximum=FRAME_FIELDS_BYTES_MAX,
        )
    return decode(raw)


def event_of(raw: bytes, fields: int) -> bytes | None:
    """Return the document `event` of a decoded frame byte for byte; None if it has none.

    `fields` is how many fields were decoded: if the frame has more, one comes twice, and Invalid, `bad_frame`, is
    raised. Nothing else is checked, because decoding did that.
    """
    at = _BODY_AT + _length(raw, _TYPE_AT)[0]
    usual = raw.startswith(_TYPE, 4) and raw.startswith(_BODY, at - len(_BODY))
    if not (usual and at + _length(raw, at)[0] == len(raw) - 1):
        at = parts(raw)[1]
    end = at + _length(raw, at)[0] - 1
    at += 4
    event = None
    while at < end:
        fields -= 1
        kind, value = raw[at], raw.index(0, at + 1) + 1
        if kind == STRING:
            at = value + 4 + _length(raw, value)[0]
        elif kind == DOCUMENT:
            after = value + _length(raw, value)[0]
            if raw[at + 1 : value] in _EVENT:
                event = raw[value:after]
            at = after
        else:
            at = value + _size(raw, kind, value)
    if fields:
        raise bad_frame("a field occurs twice")
    return event


def parts(raw: bytes) -> tuple[bytes, int]:
    """Return the type of a frame, and where its body begins; raises Invalid, `bad_frame`, for what is no frame at all.

    Nothing is decoded, and of the body, nothing is looked at.
    """
    outer = [(raw[at + 1 : value - 1], kind, value, after) for at, kind, value, after in _walk(raw, 0, len(raw))]
    fields = {name: span for name, *span in outer}
    kinds = tuple(fields.get(name, (0, 0, 0))[0] for name in (b"type", b"frame"))
    if len(outer) != 2 or kinds != (STRING, DOCUMENT) or _length(raw)[0] != len(raw):
        raise _no_frame()
    _, start, end = fields[b"type"]
    return raw[start + 4 : end - 1], fields[b"frame"][1]


def check_depth(raw: bytes, depth: int = 1) -> None:
    """Raise Invalid with the code `too_deep` for what is nested too deep to be decoded by recursion.

    `depth` is the level of the document itself. What is too short to be too deep, or has too few bytes that could begin
    a level, is not looked at: it may be anything. Raises `bad_frame` for what is found not to be BSON meanwhile.
    """
    levels = FRAME_DEPTH_MAX - depth
    if len(raw) <= LEVEL_BYTES_MIN * levels:
        return
    if raw.count(DOCUMENT) + raw.count(ARRAY) + raw.count(_CODE) < levels:
        return
    at = 4
    try:
        ends = [_end(raw, 0, len(raw))]
        while ends:
            end = ends[-1]
            if at == end:
                ends.pop()
                at += 1
                continue
            kind = raw[at]
            at = raw.index(0, at + 1, end) + 1
            size = _size(raw, kind, at)
            if at + size > end:
                raise bad_frame("a value does not end")
            left = levels - len(ends)
            if kind not in _LEVELS or (left >= 0 and size <= LEVEL_BYTES_MIN * left):
                at += size  # it has no levels, or not enough bytes for so many
                continue
            if left < 0:
                raise Invalid(f"it is nested deeper than {FRAME_DEPTH_MAX} levels", code="too_deep")
            start = at if kind != _CODE else _scope(raw, at, at + size)
            ends.append(_end(raw, start, at + size))
            at = start + 4
    except (struct.error, ValueError, IndexError) as error:
        raise bad_frame("it is cut short") from error


def check(raw: bytes, start: int = 0, end: int | None = None) -> None:
    """Raise Invalid, `bad_frame`, for a document that the codec cannot decode; of any size, but not nested too deep.

    A large one is decoded piece by piece: as a whole it would take some thirty times its size in memory, and keep all
    other threads waiting.
    """
    waiting = [(start, len(raw) if end is None else end)]
    while waiting:
        start, end = waiting.pop()
        if end - start <= PIECE_BYTES:
            _decoded(raw[start:end])
            continue
        first = last = start + 4  # of the fields that are decoded together
        for at, kind, value, after in _walk(raw, start, end):
            if after - first > PIECE_BYTES:
                _decoded(_document(raw[first:last]))
                first = at
            last = after
            if after - first > PIECE_BYTES and kind in _LEVELS:  # it is alone, and too large itself
                inner = value if kind != _CODE else _scope(raw, value, after)
                # What is around it, with an empty document in its place.
                _decoded(_document(raw[at:value] + (EMPTY if inner == value else _code(raw[value + 4 : inner]))))
                waiting.append((inner, after))
                first = after
        _decoded(_document(raw[first:last]))


def bad_frame(reason: str) -> Invalid:
    return Invalid(f"the frame cannot be read: {reason}", code="bad_frame")


def _type_and_body(whole: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    type, frame = whole.get("type"), whole.get("frame")
    if len(whole) != 2 or type.__class__ is not str or frame.__class__ is not dict:
        raise _no_frame()
    return type, frame


def _no_frame() -> Invalid:
    return bad_frame("it is not {type: <string>, frame: <document>}")


def _decoded(raw: bytes) -> dict[str, Any]:
    found = codec()
    try:
        return found.decode(raw, found.options)
    except (found.damage, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise bad_frame(f"it is not BSON: {error}") from error


def _without_event(raw: bytes, start: int) -> Iterator[bytes]:
    """Yield the fields of the body that begins at `start`, with an empty document for the event, which is checked."""
    for at, kind, value, after in _walk(raw, start, len(raw)):
        if kind == DOCUMENT and raw[at + 1 : value] in _EVENT:
            check(raw, value, after)
            yield raw[at:value] + EMPTY
        else:
            yield raw[at:after]


def _document(fields: bytes) -> bytes:
    """Return the document of these fields."""
    return LENGTH.pack(len(fields) + 5) + fields + b"\0"


def _code(text: bytes) -> bytes:
    """Code with an empty scope; `text` has its length before it."""
    return LENGTH.pack(4 + len(text) + len(EMPTY)) + text + EMPTY


def _walk(raw: bytes, start: int, most: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a document that ends before `most`: where each begins, its type, where its value begins and ends.

    Raises Invalid with the code `bad_frame` for what is not BSON on this level.
    """
    try:
        end = _end(raw, start, most)
        at = start + 4
        while at < end:
            kind = raw[at]
            value = raw.index(0, at + 1, end) + 1
            after = value + _size(raw, kind, value)
            if after > end:
                raise bad_frame("a value does not end")
            yield at, kind, value, after
            at = after
    except (struct.error, ValueError, IndexError) as error:
        raise bad_frame("it is cut short") from error


def _end(raw: bytes, start: int, most: int) -> int:
    """Return where the zero is that ends a document; it is before `most`."""
    end = start + int(LENGTH.unpack_from(raw, start)[0]) - 1
    if not start + 4 <= end < most or raw[end] != 0:
        raise bad_frame("a document does not end where it says")
    return end


def _scope(raw: bytes, at: int, after: int) -> int:
    """Return where the document of code with a scope begins, which ends with it."""
    size: int = LENGTH.unpack_from(raw, at + 4)[0]
    start = at + 8 + size
    if size < 1 or start + 5 > after or start + LENGTH.unpack_from(raw, start)[0] != after:
        raise bad_frame("a length is wrong")
    return start


def _size(raw: bytes, kind: int, at: int) -> int:
    """Return how many bytes a value has."""
    size = _FIXED.get(kind)
    if size is not None:
        return size
    if kind == 0x0B:  # two texts that end with a zero
        return raw.index(0, raw.index(0, at) + 1) + 1 - at
    told: int = LENGTH.unpack_from(raw, at)[0]
    if kind in _TEXTS:
        size, least = 4 + told, 1
    elif kind in _NESTED:
        size, least = told, 5
    elif kind == _CODE:
        size, least = told, 14
    elif kind == BINARY:
        size, least = 5 + told, 0
    elif kind == 0x0C:
        size, least = 16 + told, 1
    else:
        raise bad_frame(f"there is no type {kind:#x}")
    if told < least:
        raise bad_frame("a length is wrong")
    return size
