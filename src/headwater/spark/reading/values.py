"""Converts values of JSON or BSON data to types of Arrow: the exact rules. Needs no Spark.

A converter takes one value at a time. `plain_array` takes a column of which all values have the one plain type that
needs no rules; times and dates go through the same functions of Arrow in both, so that they mean the same.
"""

from __future__ import annotations

import binascii
import builtins
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from functools import lru_cache
from itertools import chain
from types import NoneType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import Invalid

Convert = Callable[[Any], Any]
Unfit = Callable[[Any, pa.DataType], None]
"""Called with a value and the type that it does not fit: returns None, which stands for it, or raises."""

_ZONED = r"[T ][0-9:.]+(Z|[+-][0-9:]+)$"
_DAY = r"^.{10}$"
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_DIGITS_MAX = 400  # before the point of a number that is made an int: no type has so many
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = _EPOCH.resolution
_PLAIN = {pa.string(): str, pa.bool_(): bool, pa.float64(): float}
_PLAIN |= dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), int)


def converter(type: Any, unfit: Unfit) -> Convert:
    """Return the function from a value to what `pa.array` takes for this type. Raises Invalid for other types."""
    types = pa.types
    for is_nested, make in ((types.is_struct, _struct), (types.is_list, _list), (types.is_map, _map)):
        if is_nested(type):
            return make(type, unfit)
    convert = _simple(type)

    def checked(value: Any) -> Any:
        found = convert(value)
        return unfit(value, type) if found is None else found

    return checked


def plain_array(found: list[Any], type: Any) -> Any:
    """Return values of the plain type of a column as an array, nulls included; None if the exact rules must decide."""
    kinds = set(map(builtins.type, found)) - {NoneType}
    if not kinds:
        return pa.nulls(len(found), type)
    types = pa.types
    array: Any = None
    try:
        if kinds == {_PLAIN.get(type)} or (types.is_decimal(type) and kinds <= {int, Decimal}):
            array = pa.array(found, type)
        elif kinds == {str} and types.is_timestamp(type):
            array = instants(pa.array(found, pa.string()), type.tz is not None)
        elif kinds == {str} and types.is_date(type):
            array = pa.array(found, pa.string()).cast(type)
        elif kinds == {float} and types.is_float32(type):
            single = pa.array(found, pa.float64()).cast(type)
            array = None if pc.any(pc.is_inf(single)).as_py() else single
        elif kinds == {list} and types.is_list(type):
            array = _plain_lists(found, type)
        elif kinds == {dict} and types.is_struct(type):
            array = _plain_structs(found, type)
    except (pa.ArrowInvalid, OverflowError):
        pass
    return array


def _plain_lists(found: list[list[Any] | None], type: Any) -> Any:
    elements = plain_array(list(chain.from_iterable(filter(None, found))), type.value_type)
    if elements is None:
        return None
    offsets: Any = pa.array(np.cumsum([0, *(len(each or ()) for each in found)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, elements, type=type, mask=_nulls(found))


def _plain_structs(found: list[dict[str, Any] | None], type: Any) -> Any:
    members = [
        plain_array([None if each is None else each.get(field.name) for each in found], field.type) for field in type
    ]
    if any(member is None for member in members):
        return None
    return pa.StructArray.from_arrays(members, fields=list(type), mask=_nulls(found))


def _nulls(found: list[Any]) -> Any:
    return pa.array([each is None for each in found], pa.bool_())


def _simple(type: Any) -> Convert:
    """Return the function that gives None for what does not fit."""
    if pa.types.is_signed_integer(type):
        bound = 1 << (type.bit_width - 1)
        return lambda value: _integer(value, bound)
    if pa.types.is_decimal(type):
        return lambda value: _decimal(value, type.precision, type.scale)
    if pa.types.is_timestamp(type):
        zoned = type.tz is not None
        return lambda value: _instant(value, zoned)
    simple: dict[pa.DataType, Convert] = {
        pa.string(): _text,
        pa.bool_(): lambda value: value if value.__class__ is bool else None,
        pa.float64(): _double,
        pa.float32(): _single,
        pa.date32(): _date,
        pa.binary(): _bytes,
        pa.null(): lambda _: None,
    }
    if type not in simple:
        raise Invalid(f"a field of data cannot be {type}", hint="use numbers, text, times, arrays, maps or structs")
    return simple[type]


def _struct(type: pa.StructType, unfit: Unfit) -> Convert:
    members = [(field.name, converter(field.type, unfit)) for field in type]

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return unfit(value, type)
        found = ((name, value.get(name), convert) for name, convert in members)
        return {name: None if member is None else convert(member) for name, member, convert in found}

    return convert


def _list(type: pa.ListType[Any], unfit: Unfit) -> Convert:
    element = converter(type.value_type, unfit)

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            return unfit(value, type)
        return [None if each is None else element(each) for each in value]

    return convert


def _map(type: pa.MapType[Any, Any], unfit: Unfit) -> Convert:
    if type.key_type != pa.string():
        raise Invalid(f"map keys in data must be text, not {type.key_type}", hint="declare map<string, …>")
    member = converter(type.item_type, unfit)

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return unfit(value, type)
        return [(name, None if each is None else member(each)) for name, each in value.items()]

    return convert


def _plain(value: Any) -> Any:
    """Return a number of BSON's own as Python's; anything else as it is."""
    to_decimal = getattr(value, "to_decimal", None)
    return value if to_decimal is None else to_decimal()


def _integer(value: Any, bound: int) -> int | None:
    """Return a whole number, however it is written, within the bound."""
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, float):
        value = Decimal(value)
    if isinstance(value, Decimal):
        if not value.is_finite() or value.adjusted() > _DIGITS_MAX or value != value.to_integral_value():
            return None
        value = int(value)
    return int(value) if -bound <= value < bound else None


def _double(value: Any) -> float | None:
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, float):
        return float(value)  # of BSON: it may be infinite
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if np.isfinite(found) else None


def _single(value: Any) -> float | None:
    found = _double(value)
    if found is None or not np.isfinite(found):
        return found
    with np.errstate(over="ignore"):
        return found if np.isfinite(np.float32(found)) else None


def _decimal(value: Any, precision: int, scale: int) -> Decimal | None:
    """Return a number, or the text of one, rounded half up to the scale; None if it has too many digits before it."""
    value = _plain(value)
    if isinstance(value, str):
        value = Decimal(value) if _NUMBER.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not number.is_finite() or (number and number.adjusted() >= precision - scale + 1):
        return None
    with localcontext(prec=precision + 2, rounding=ROUND_HALF_UP):
        try:
            found = number.quantize(Decimal(1).scaleb(-scale))
        except InvalidOperation:
            return None
    return found if len(found.as_tuple().digits) <= precision else None


def _text(value: Any) -> str | None:
    """Return text as it is, and anything else as JSON: a field whose values have several types is text."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict | list | int | float | Decimal):
        return _encode(value).decode()
    return _other(value)


def _other(value: Any) -> str:
    """Return the text of what only BSON has."""
    if isinstance(value, datetime):
        return value.isoformat()
    return bytes(value).hex() if isinstance(value, bytes) else str(_plain(value))


_encode = msgspec.json.Encoder(decimal_format="number", enc_hook=_other).encode


def _instant(value: Any, zoned: bool) -> int | None:
    """Return microseconds since 1970, of a time of BSON or a text in ISO 8601."""
    if isinstance(value, str):
        return _instant_of(value, zoned)
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MICROSECOND
    if value.__class__.__name__ == "DatetimeMS":  # of BSON, outside the years of Python
        found = int(value) * 1000
        return found if -(1 << 63) <= found < 1 << 63 else None
    return None


@lru_cache(4096)
def _instant_of(text: str, zoned: bool) -> int | None:
    try:
        found: int = instants(pa.array([text], pa.string()), zoned).cast(pa.int64())[0].as_py()
    except pa.ArrowInvalid:
        return None
    return found


def instants(texts: Any, zoned: bool) -> Any:
    """Return texts in ISO 8601 as times; UTC where they have no zone. Raises ArrowInvalid for other texts."""
    type = pa.timestamp("us", "UTC") if zoned else pa.timestamp("us")
    try:
        return texts.cast(type)
    except pa.ArrowInvalid:
        pass
    short: Any = pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]+", r"\1")
    has_zone: Any = pc.match_substring_regex(short, _ZONED)
    timed: Any = pc.if_else(
        pc.match_substring_regex(short, _DAY), pc.binary_join_element_wise(short, "T00:00:00", ""), short
    )
    whole: Any = pc.if_else(has_zone, short, pc.binary_join_element_wise(timed, "Z", ""))
    found = whole.cast(pa.timestamp("us", "UTC"))
    return found if zoned else found.cast(type)


def _date(value: Any) -> int | None:
    if isinstance(value, datetime):
        return (value - _EPOCH).days
    return _date_of(value) if isinstance(value, str) else None


@lru_cache(4096)
def _date_of(text: str) -> int | None:
    try:
        return pa.array([text], pa.string()).cast(pa.date32()).cast(pa.int32())[0].as_py()
    except pa.ArrowInvalid:
        return None


def _bytes(value: Any) -> bytes | None:
    """Return the bytes of a BSON value, or of a text in base64."""
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, str):
        try:
            return from_base64(value)
        except ValueError:
            return None
    found = getattr(value, "binary", None) or getattr(value, "bytes", None)  # an ObjectId or a UUID
    return found if isinstance(found, bytes) else None


def from_base64(text: str) -> bytes:
    """Return the bytes of a text; raises ValueError where it is none in base64."""
    return binascii.a2b_base64(text, strict_mode=True)
