"""CALLBODY frames (docs/PROTOCOL.md), by hand: what they hold is large, and is copied once this way. Bytes only."""

from __future__ import annotations

from headwater.format.protocol import LENGTH, PREFIX

_HEAD = b"\x02type\x00\x09\x00\x00\x00CALLBODY\x00\x03frame\x00"
_DATA = b"\x05data\x00"
_MORE, _LAST = b"\x08more\x00\x01\x00\x00", b"\x08more\x00\x00\x00\x00"
_FRAME_AT = 4 + len(_HEAD)
_LENGTH_AT = _FRAME_AT + 4 + len(_DATA)
_DATA_AT = _LENGTH_AT + 5  # the length, and the subtype


def encode(data: bytes, *, more: bool) -> bytes:
    """A frame with its length, as `protocol.encode` makes it."""
    size = _DATA_AT + len(data) + len(_LAST)
    lengths = PREFIX.pack(size), LENGTH.pack(size), LENGTH.pack(size - _FRAME_AT - 1), LENGTH.pack(len(data))
    outer, whole, inner, length = lengths
    return b"".join((outer, whole, _HEAD, inner, _DATA, length, b"\0", data, _MORE if more else _LAST))


def decode(raw: bytes) -> tuple[bytes, bool] | None:
    """The data of a frame without its length, and whether there is more; None if it is not exactly as made here."""
    size = len(raw)
    if not raw.startswith(_HEAD, 4) or size < _DATA_AT + len(_LAST) or not raw.startswith(_DATA, _FRAME_AT + 4):
        return None
    more = raw.endswith(_MORE)
    length = size - _DATA_AT - len(_LAST)
    lengths = (size, size - _FRAME_AT - 1, length)
    told = (LENGTH.unpack_from(raw, at)[0] for at in (0, _FRAME_AT, _LENGTH_AT))
    if raw[_DATA_AT - 1] != 0 or tuple(told) != lengths or not (more or raw.endswith(_LAST)):
        return None
    return raw[_DATA_AT : _DATA_AT + length], more
