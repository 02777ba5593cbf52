"""What a match compares: values by their kind (docs/MATCH.md, "Kinds").

`kind_of` turns a value of a document into its kind and something that Python compares exactly within that kind. Tests
are plain functions from a value to a bool; none of them raises, whatever the value. How deep they recurse depends on
the match, which is bounded, never on the document. Immutable once made: safe from any thread.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

Test = Callable[[Any], bool]
Each = Callable[[Iterable[Any]], list[bool]]
Kinded = tuple[str, Any]

MISSING = msgspec.UNSET
ARRAYS = (list, tuple)
UNORDERED = frozenset({"null", "object", "array"})
OTHER: Kinded = ("other", None)  # equals nothing, because no operand has this kind

_NAIVE_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - BSON's codec gives naive times, which are UTC
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def kind_of(value: Any) -> Kinded:
    """Return the kind of a value and what to compare within it; `other` for what a match cannot name."""
    cls = value.__class__
    convert = _CONVERT.get(cls)
    if convert is None:
        convert = _converter(cls)
    return convert(value)


def equal(operand: Any) -> Test:
    """Return whether a value is the same: by kind, and for objects and arrays all the way down."""
    kind, wanted = kind_of(operand)
    if kind == "object":
        members = {name: equal(member) for name, member in operand.items()}
        return lambda value: _same_object(value, members)
    if kind == "array":
        elements = [equal(element) for element in operand]
        return lambda value: _same_array(value, elements)
    return lambda value: kind_of(value) == (kind, wanted)


def ordered(compare: Callable[[Any, Any], Any], operand: Any) -> Test:
    """Return whether a value of the operand's kind is above or below it."""
    kind, bound = kind_of(operand)

    def test(value: Any) -> bool:
        found, key = kind_of(value)
        return found == kind and bool(compare(key, bound))

    return test


def member(operands: Sequence[Any]) -> Test:
    """Return whether a value is one of many, in the same time however many they are (objects and arrays aside)."""
    nested = [equal(operand) for operand in operands if kind_of(operand)[0] in ("object", "array")]
    wanted = frozenset(kinded for kinded in map(kind_of, operands) if kinded[0] not in ("object", "array"))
    if not nested:
        return lambda value: kind_of(value) in wanted
    return lambda value: kind_of(value) in wanted or any(test(value) for test in nested)


def quickly(compare: Callable[[Any, Any], Any], operand: Any, test: Test) -> tuple[Test, Each]:
    """Return the test, for one value and for many, that compares plain numbers or text in place.

    `test` does the rest.
    """
    kind, bound = kind_of(operand)
    if bound.__class__ not in (int, float, str) or kind not in ("number", "string"):
        return test, lambda values: list(map(test, values))
    a, b = (int, float) if kind == "number" else (str, str)

    def quick(value: Any) -> bool:
        return compare(value, bound) if (t := value.__class__) is a or t is b else test(value)

    return quick, _EACH[compare](bound, a, b, test)


def _same_object(value: Any, members: Mapping[str, Test]) -> bool:
    if not isinstance(value, dict) or len(value) != len(members):
        return False
    return all(name in value and test(value[name]) for name, test in members.items())


def _same_array(value: Any, elements: Sequence[Test]) -> bool:
    if not isinstance(value, ARRAYS) or len(value) != len(elements):
        return False
    return all(test(element) for test, element in zip(elements, value, strict=True))


# A comparison is written out for each operator, because a call for each value would cost as much as decoding it.
_EACH: dict[Any, Callable[[Any, type, type, Test], Each]] = {
    operator.gt: lambda x, a, b, test: (
        lambda values: [v > x if (t := v.__class__) is a or t is b else test(v) for v in values]
    ),
    operator.ge: lambda x, a, b, test: (
        lambda values: [v >= x if (t := v.__class__) is a or t is b else test(v) for v in values]
    ),
    operator.lt: lambda x, a, b, test: (
        lambda values: [v < x if (t := v.__class__) is a or t is b else test(v) for v in values]
    ),
    operator.le: lambda x, a, b, test: (
        lambda values: [v <= x if (t := v.__class__) is a or t is b else test(v) for v in values]
    ),
    operator.eq: lambda x, a, b, test: (
        lambda values: [v == x if (t := v.__class__) is a or t is b else test(v) for v in values]
    ),
}


def _number(value: Any) -> Kinded:
    # NaN is a kind of its own with one value: it equals itself, and is neither above nor below any number.
    return ("number", value) if value == value else ("nan", 0)  # noqa: PLR0124 - only NaN differs from itself


def _decimal(value: Decimal) -> Kinded:
    return ("nan", 0) if value.is_nan() else ("number", value)


def _date(value: datetime) -> Kinded:
    """In microseconds. A time without a zone is UTC, as BSON's codec gives it."""
    return "date", (value - (_NAIVE_EPOCH if value.tzinfo is None else _EPOCH)) // _MICROSECOND


_CONVERT: dict[type, Callable[[Any], Kinded]] = {
    type(None): lambda _: ("null", 0),
    type(MISSING): lambda _: OTHER,
    bool: lambda value: ("boolean", value),
    int: lambda value: ("number", value),
    float: _number,
    Decimal: _decimal,
    str: lambda value: ("string", value),
    bytes: lambda value: ("bytes", value),
    datetime: _date,
    UUID: lambda value: ("bytes 4", value.bytes),
    dict: lambda _: ("object", None),
    list: lambda _: ("array", None),
    tuple: lambda _: ("array", None),
}
_BASES = tuple(_CONVERT.items())

# By name, so that nothing is imported: who has such a value has the codec.
_BSON: dict[str, Callable[[Any], Kinded]] = {
    "Int64": lambda value: ("number", int(value)),
    "Decimal128": lambda value: _decimal(value.to_decimal()),
    "ObjectId": lambda value: ("ObjectId", value.binary),
    "Binary": lambda value: (f"bytes {value.subtype}" if value.subtype else "bytes", bytes(value)),
    "Timestamp": lambda value: ("timestamp", (value.time, value.inc)),
    "DatetimeMS": lambda value: ("date", int(value) * 1000),
    "SON": lambda _: ("object", None),
}


def _converter(cls: type) -> Callable[[Any], Kinded]:
    """Return what converts a class that was not met before: one of BSON's, or a kind of int, str, dict and so on."""
    if cls.__module__.partition(".")[0] == "bson":
        convert = _CONVERT[cls] = _BSON.get(cls.__name__, lambda _: OTHER)  # there are few of them
        return convert
    for base, convert in _BASES:
        if issubclass(cls, base):
            return convert
    return lambda _: OTHER
