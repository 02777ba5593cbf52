"""The frames of the protocol over TCP (docs/PROTOCOL.md): a length, and a BSON document `{type, frame}`.

    encode("PING", {}) -> bytes                 with its length
    decode(raw) -> ("PING", {})                 without it

`elements` finds the fields of a document without decoding them, so that an event can be kept byte for byte. Bytes only;
safe from any thread. Needs the codec of BSON.
"""

from __future__ import annotations

import struct
from typing import Any

from headwater.errors import Invalid
from headwater.format.codec import codec
from headwater.limits import FRAME_DEPTH_MAX

VERSION = "1.0"
PREFIX = struct.Struct(">I")  # the length of a frame
LENGTH = struct.Struct("<i")  # of a document, an array, a string
DOUBLE, STRING, DOCUMENT, ARRAY, BINARY, BOOLEAN, INT32, INT64 = 0x01, 0x02, 0x03, 0x04, 0x05, 0x08, 0x10, 0x12
UUID_SUBTYPE = 4
LEVEL_BYTES_MIN = 7  # of one more level of nesting: a type, a name's end, a length, an end

_FIXED = {0x01: 8, 0x06: 0, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16, 0x7F: 0, 0xFF: 0}
_TEXTS = frozenset((0x02, 0x0D, 0x0E))  # a length, without itself, and so many bytes
_NESTED = frozenset((DOCUMENT, ARRAY))


def encode(type: str, frame: dict[str, Any]) -> bytes:
    """A frame with its length."""
    found = codec()
    raw = found.encode({"type": type, "frame": frame}, False, found.encoding)
    return PREFIX.pack(len(raw)) + raw


def decode(raw: bytes) -> tuple[str, dict[str, Any]]:
    """The type and the body of a frame; raises Invalid with the code `bad_frame` or `too_deep`."""
    check_depth(raw)
    found = codec()
    try:
        whole = found.decode(raw, found.options)
    except (found.damage, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise bad_frame(f"it is not BSON: {error}") from error
    type, frame = whole.get("type"), whole.get("frame")
    if not isinstance(type, str) or not isinstance(frame, dict):
        raise bad_frame("it is not {type: <string>, frame: <document>}")
    return type, frame


def elements(raw: bytes, start: int) -> dict[bytes, tuple[int, int, int]]:
    """The fields of the document that begins at `start`: by name, the type and where the value begins and ends.

    Raises Invalid with the code `bad_frame` for what is not BSON on this level; of a name that comes twice, too.
    """
    found: dict[bytes, tuple[int, int, int]] = {}
    try:
        end = start + LENGTH.unpack_from(raw, start)[0] - 1
        at = start + 4
        if not at <= end < len(raw) or raw[end] != 0:
            raise bad_frame("a document does not end where it says")
        while at < end:
            kind = raw[at]
            named = raw.index(0, at + 1, end)
            value = named + 1
            name = raw[at + 1 : named]
            at = value + _size(raw, kind, value)
            if at > end or name in found:
                raise bad_frame(f"the field {name[:40]!r} is twice in it" if at <= end else "a value does not end")
            found[name] = kind, value, at
    except (struct.error, ValueError, IndexError) as error:
        raise bad_frame("it is cut short") from error
    if at != end:
        raise bad_frame("a document does not end where it says")
    return found


def check_depth(raw: bytes) -> None:
    """Raise Invalid with the code `too_deep` for what is nested too deep to be decoded by recursion.

    What is too short to be, or has too few bytes that could begin a level, is not looked at.
    """
    if len(raw) <= LEVEL_BYTES_MIN * FRAME_DEPTH_MAX:
        return
    if raw.count(DOCUMENT) + raw.count(ARRAY) + raw.count(0x0F) < FRAME_DEPTH_MAX:
        return
    depths = [(0, 1)]
    while depths:
        start, depth = depths.pop()
        if depth > FRAME_DEPTH_MAX:
            raise Invalid(f"it is nested deeper than {FRAME_DEPTH_MAX} levels", code="too_deep")
        for kind, value, _ in elements(raw, start).values():
            if kind in _NESTED:
                depths.append((value, depth + 1))
            elif kind == 0x0F:  # a length, a text, and a document
                depths.append((value + 8 + LENGTH.unpack_from(raw, value + 4)[0], depth + 1))


def bad_frame(reason: str) -> Invalid:
    return Invalid(f"the frame cannot be read: {reason}", code="bad_frame")


def _size(raw: bytes, kind: int, at: int) -> int:
    """How many bytes a value has."""
    size = _FIXED.get(kind)
    if size is not None:
        return size
    if kind == 0x0B:  # two texts that end with a zero
        return raw.index(0, raw.index(0, at) + 1) + 1 - at
    told: int = LENGTH.unpack_from(raw, at)[0]
    if kind in _TEXTS:
        size = 4 + told
    elif kind in _NESTED or kind == 0x0F:
        size = told
    elif kind == BINARY:
        size = 5 + told
    elif kind == 0x0C:
        size = 16 + told
    else:
        raise bad_frame(f"there is no type {kind:#x}")
    if told < 0 or (kind in _NESTED and told < 5):
        raise bad_frame("a length is wrong")
    return size
