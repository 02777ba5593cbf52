"""Index keys of documents: the value under a path as SQLite orders it (docs/VIEWS.md, "Binders").

Numbers are SQLite's numbers and text its text, so that its own order is ours. Everything else is a blob that begins
with the letter of its kind, behind all numbers and text. A key never contradicts the order in which a match compares:
of two values of one kind, the higher one never has the lower key. What cannot be told from its neighbours by such a
key, as decimals that no float holds, has the same one: a find then compares the documents themselves.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from headwater.errors import Invalid
from headwater.limits import FIELD_BYTES_MAX, MATCH_DEPTH_MAX
from headwater.match.values import ARRAYS, kind_of

Key = int | float | str | bytes | None
Bounds = tuple[Key, Key]

# The letters are stored: they must stay. Between two of them is room for what ends the range of the first.
DATE = b"\x10"
BOOLEAN = b"\x20"
BYTES = b"\x30"
OBJECT_ID = b"\x40"
TIMESTAMP = b"\x50"
NAN = b"\x60"
OBJECT = b"\x70"
OTHER = b"\x80"
ARRAY = b"\xf0"
"""The key of every document in which an array is on the way: any query by a path must look at these itself."""

PATHS_MAX = 1024  # whose parts are remembered
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_EXACT_MAX = 2**53  # up to here a float tells whole numbers apart
_BIAS = 2**63


def index_key(document: dict[str, Any], path: str) -> Key:
    """Return the key of a document under a path; None if there is nothing, or null."""
    value: Any = document
    for part in _parts(path):
        if isinstance(value, dict):
            value = value.get(part)
        else:
            return ARRAY if isinstance(value, ARRAYS) else None
    return key_of(value)


def key_of(value: Any) -> Key:
    """Return the key of a value."""
    key: Key = value
    cls = value.__class__
    if value is None or cls is str or (cls is int and _INT_MIN <= value <= _INT_MAX):
        return key
    kind, comparable = kind_of(value)
    if kind in _KEYS:
        return _KEYS[kind](comparable)
    assert kind.startswith("bytes ")
    data: bytes = comparable
    return BYTES + bytes((int(kind[6:]),)) + data


def bounds_of(value: Any) -> Bounds:
    """Return a range of keys, both ends included, that holds those of all values which compare with this one."""
    key = key_of(value)
    if isinstance(key, str):
        return "", b""  # a blob without bytes is behind all text, and no key
    if isinstance(key, bytes):
        return key[:1], bytes((key[0] + 1,))
    return -math.inf, math.inf


def order_of(key: Key) -> tuple[int, Any]:
    """Return a value that sorts keys in Python as SQLite sorts them."""
    cls = key.__class__
    if cls is int or cls is float:
        return 1, key
    if cls is str:
        return 2, key
    return (0, 0) if key is None else (3, key)


def checked_path(path: Any, purpose: str) -> str:
    """Return the path of a field as a user gave it; raises Invalid."""
    if not isinstance(path, str):
        raise Invalid(f"{purpose} takes the path of a field, not {type(path).__name__}", hint="as in 'by.name'")
    parts = path.split(".")
    if not all(parts):
        raise Invalid(f"the path {path[:60]!r} has an empty part", hint="separate parts with one dot, as in a.b")
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise Invalid(f"the path {path[:60]!r} is not text", hint="no document has such a field") from None
    if "\0" in path:
        raise Invalid(f"the path {path[:60]!r} contains a null character", hint="no document has such a field")
    if len(parts) > MATCH_DEPTH_MAX or size > FIELD_BYTES_MAX:
        raise Invalid(
            f"the path {path[:60]!r}… is too long", hint=f"up to {MATCH_DEPTH_MAX} parts and {FIELD_BYTES_MAX} bytes"
        )
    return path


@lru_cache(PATHS_MAX)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


def _number(value: Any) -> Key:
    """Whole numbers as they are, others as floats, so that a key never is on the wrong side of another number.

    A float is the nearest one; behind 2^53, where that could be beyond the next whole number, it is the whole part.
    """
    if isinstance(value, int) or _EXACT_MAX <= value < _BIAS or -_BIAS <= value <= -_EXACT_MAX:
        whole: int = math.floor(value)
        if _INT_MIN <= whole <= _INT_MAX:
            return whole
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _date(microseconds: int) -> bytes:
    # BSON's dates are milliseconds in 64 bits; one that was given to be compared with may be anything.
    return DATE + struct.pack(">Q", min(max(microseconds // 1000 + _BIAS, 0), 2**64 - 1))


def _timestamp(value: tuple[int, int]) -> bytes:
    return TIMESTAMP + struct.pack(">II", *value)


_KEYS: dict[str, Callable[[Any], Key]] = {
    "number": _number,
    "string": str,
    "null": lambda _: None,
    "date": _date,
    "boolean": lambda value: BOOLEAN + bytes((value,)),
    "bytes": lambda value: BYTES + b"\0" + value,
    "ObjectId": lambda value: OBJECT_ID + value,
    "timestamp": _timestamp,
    "nan": lambda _: NAN,
    "object": lambda _: OBJECT,
    "other": lambda _: OTHER,
    "array": lambda _: ARRAY,
}
