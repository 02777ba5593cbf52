"""What a match means, written as plainly as can be, and strategies for documents and matches.

The interpreter shares nothing with the engine: it walks the match anew for each document, and compares numbers as
fractions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import re2
from bson import Decimal128, Int64, ObjectId
from hypothesis import strategies as st

MISSING = object()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def matches(match: dict[str, Any], document: Any) -> bool:
    return isinstance(document, dict) and all(_holds(name, asked, document) for name, asked in match.items())


def _holds(name: str, asked: Any, document: dict[str, Any]) -> bool:
    if name == "$and":
        return all(matches(one, document) for one in asked)
    if name == "$or":
        return any(matches(one, document) for one in asked)
    if name == "$nor":
        return not any(matches(one, document) for one in asked)
    if name == "$not":
        return not matches(asked, document)
    return _asked(_found(document, name.split(".")), asked)


def _found(value: Any, path: list[str]) -> list[Any]:
    """All that a path leads to."""
    if not path:
        return [value]
    if isinstance(value, dict):
        return _found(value.get(path[0], MISSING), path[1:])
    if isinstance(value, list):
        if path[0].isdigit():
            index = int(path[0])
            return _found(value[index] if index < len(value) else MISSING, path[1:])
        objects = [element for element in value if isinstance(element, dict)]
        if objects:
            return [found for one in objects for found in _found(one, path)]
    return _found(MISSING, path[1:])


def _asked(found: list[Any], asked: Any) -> bool:
    if isinstance(asked, dict) and any(name.startswith("$") for name in asked):
        return all(_operator(found, name, operand) for name, operand in asked.items())
    return _operator(found, "$eq", asked)


def _operator(found: list[Any], name: str, operand: Any) -> bool:  # noqa: PLR0911 - as below
    candidates = [*found, *(element for value in found if isinstance(value, list) for element in value)]
    if name == "$eq":
        return any(_same(value, operand) or (operand is None and value is MISSING) for value in candidates)
    if name == "$ne":
        return not _operator(found, "$eq", operand)
    if name == "$in":
        return any(_operator(found, "$eq", one) for one in operand)
    if name == "$nin":
        return not _operator(found, "$in", operand)
    if name == "$exists":
        return any(value is not MISSING for value in found) is operand
    if name == "$regex":
        return any(isinstance(value, str) and re2.search(operand, value) is not None for value in candidates)
    if name == "$not":
        return not _asked(found, operand)
    return any(_ordered(value, name, operand) for value in candidates)


def _same(value: Any, operand: Any) -> bool:
    if isinstance(operand, dict):
        return (
            isinstance(value, dict)
            and value.keys() == operand.keys()
            and all(_same(value[k], operand[k]) for k in operand)
        )
    if isinstance(operand, list):
        return isinstance(value, list) and len(value) == len(operand) and all(map(_same, value, operand))
    kind, key = _plain(value)
    return (kind, key) == _plain(operand) and kind not in ("object", "array", "missing")


def _ordered(value: Any, name: str, operand: Any) -> bool:
    (kind, left), (other, right) = _plain(value), _plain(operand)
    if kind != other or kind in ("object", "array", "missing", "null"):
        return False
    if kind == "nan":
        return name in ("$gte", "$lte")
    holds: bool = {"$gt": left > right, "$gte": left >= right, "$lt": left < right, "$lte": left <= right}[name]
    return holds


def _plain(value: Any) -> tuple[str, Any]:  # noqa: PLR0911 - one line for each kind is what makes it plain
    if value is MISSING:
        return "missing", 0
    if value is None:
        return "null", 0
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, Decimal128):
        value = value.to_decimal()
    if (isinstance(value, Decimal) and value.is_nan()) or (isinstance(value, float) and math.isnan(value)):
        return "nan", 0
    if isinstance(value, float | Decimal) and Decimal(value).is_infinite():  # math.isinf would round to a float
        return "number", Fraction(10) ** 7000 * (1 if value > 0 else -1)  # beyond the largest Decimal128
    if isinstance(value, int | float | Decimal):
        return "number", Fraction(value)
    if isinstance(value, datetime):
        return "date", (value if value.tzinfo else value.replace(tzinfo=UTC)) - EPOCH
    if isinstance(value, ObjectId):
        return "id", str(value)
    return type(value).__name__, value if isinstance(value, str | bytes) else None


def pointed(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Matches that ask, with every operator, for what is in a document: a wrong answer to one of them is a bug."""
    found: list[dict[str, Any]] = []
    for path, value in _places(document, ()):
        operators = ["$eq", "$ne", "$exists"]
        if value is not None and not isinstance(value, dict | list):
            operators += ["$gt", "$gte", "$lt", "$lte"]
        asked = [{name: True if name == "$exists" else value} for name in operators]
        asked += [{"$in": [value, "none"]}, {"$nin": [value]}]
        found += [{".".join(path): one} for one in asked]
    return found


def _places(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each value in a document under the paths that lead to it: in an array with its number, and without."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _places(member, (*path, name))
    if isinstance(value, list):
        for number, element in enumerate(value):
            yield from _places(element, (*path, str(number)))
            yield from _places(element, path)


# Few names and values, some more often than others: what is drawn for a match shall be found in documents.
names = st.sampled_from(["a", "a", "a", "b", "b", "0", "1", "two words", 'a "quoted" name', "ü"])
paths = st.lists(names, min_size=1, max_size=2).map(".".join) | st.lists(names, max_size=4).map(
    lambda p: ".".join(["a", *p])
)
integers = st.integers(0, 2) | st.sampled_from([-1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)])
texts = st.sampled_from(["", "a", "b", "ab", "A", "ü", "1"])
json_scalars = st.none() | st.booleans() | integers | st.sampled_from([0.0, -0.0, 0.5, 1.0, 2.0**53, 1e300]) | texts
times = st.sampled_from([0, 1, 1000, -5]).map(lambda ms: EPOCH + timedelta(milliseconds=ms))
bson_scalars = (
    json_scalars
    | st.sampled_from([math.nan, math.inf, -math.inf])
    | st.sampled_from(["1", "0.5", "NaN", "sNaN", "Infinity", "9007199254740993", "1E+6000"]).map(Decimal128)
    | st.sampled_from([Int64(1), Int64(2**53 + 1), b"", b"a", ObjectId("0" * 24), ObjectId("1" * 24)])
    | times
)


def documents(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = st.lists(scalars, max_size=3)
    nested = st.recursive(
        scalars | arrays,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, min_size=1, max_size=3),
        max_leaves=8,
    )
    return st.dictionaries(names, nested, min_size=1, max_size=4)


def some_matches(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(names, scalars | st.lists(scalars), max_size=2)
    operands = {
        **dict.fromkeys(("$eq", "$ne"), values),
        **dict.fromkeys(("$gt", "$gte", "$lt", "$lte"), scalars.filter(lambda value: value is not None)),
        **dict.fromkeys(("$in", "$nin"), st.lists(values, max_size=4)),
        "$exists": st.booleans(),
        "$regex": st.sampled_from(["a", "^a$", "b|ü", "", "(?i)^A"]),
    }
    one = st.sampled_from(sorted(operands)).flatmap(lambda name: st.fixed_dictionaries({name: operands[name]}))
    operators = one | st.tuples(one, one).map(lambda two: {**two[0], **two[1]})
    fields = st.dictionaries(paths, scalars | values | operators | operators.map(lambda one: {"$not": one}), max_size=2)
    return st.recursive(
        fields,
        lambda inner: (
            st.dictionaries(st.sampled_from(["$and", "$or", "$nor"]), st.lists(inner, min_size=1, max_size=2))
            | inner.map(lambda one: {"$not": one})
        ),
        max_leaves=3,
    )
