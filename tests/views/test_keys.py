"""Keys of an index: their order is the documented one, that of SQLite, and never contradicts what a match compares."""

from __future__ import annotations

import math
import sqlite3
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import Binary, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.match.values import kind_of
from headwater.views.encoding import decode, encode
from headwater.views.keys import ARRAY, bounds_of, index_key, key_of, order_of
from tests.engine import matches

IN_ORDER = [
    None,
    -math.inf,
    Decimal128("-1E+300"),
    -(2**63),
    -(2**53) - 1,
    -1.5,
    0,
    Decimal128("0.1"),
    0.5,
    Int64(1),
    2**53 - 1,
    float(2**53),
    2**53 + 1,
    Decimal128("9007199254740994"),
    2**63 - 1,
    float(2**63),
    1e300,
    math.inf,
    "",
    "A",
    "a",
    "a\0",
    "ab",
    "b",
    "ü",
    "\uffff",
    "\U00010000",
    DatetimeMS(-(2**62)),
    datetime(1969, 1, 1, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2025, 3, 1, 12, tzinfo=UTC),
    DatetimeMS(2**62),
    False,
    True,
    b"",
    b"\0",
    b"a",
    Binary(b"\xff", 2),
    UUID(int=0),
    UUID(int=7),
    Binary(b"a", 128),
    ObjectId("0" * 24),
    ObjectId("1" * 24),
    Timestamp(1, 2),
    Timestamp(2, 1),
    math.nan,
    {"a": 1},
    Regex("a"),
    [1],
]

numbers = (
    st.integers(-(2**63), 2**63 - 1)
    | st.integers(2**53 - 3, 2**53 + 3)
    | st.integers(2**63 - 3, 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.floats(2.0**52, 2.0**54)
)
decimals = (
    st.decimals(allow_nan=False)
    | st.decimals(2**53 - 3, 2**53 + 3, places=17)
    | st.decimals(2**62 + 200, 2**62 + 400, places=3)
    | st.decimals(2**63 - 3, 2**63 + 3, places=2)
)
values = numbers | decimals | decimals.map(lambda value: -value) | st.integers(-(2**70), 2**70)


def stored(value: Any) -> Any:
    """What a document gives back for it."""
    return decode(encode({"a": value}))["a"]


def exact(value: Any) -> Any:
    """What a number is, as something that is compared exactly."""
    if isinstance(value, float | Decimal) and Decimal(value).is_infinite():
        return math.inf if value > 0 else -math.inf
    return Fraction(value)


def test_keys_are_in_the_order_that_is_documented() -> None:
    keys = [key_of(stored(value)) for value in IN_ORDER]
    orders = [order_of(key) for key in keys]
    assert orders == sorted(orders)
    assert len(set(keys)) == len(keys), "each of these has a key of its own"


def test_sqlite_orders_keys_as_python_does() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE keys (number INTEGER, key)")
    keys = [key_of(stored(value)) for value in IN_ORDER]
    connection.executemany("INSERT INTO keys VALUES (?, ?)", reversed(list(enumerate(keys))))
    found = connection.execute("SELECT number, key FROM keys ORDER BY key").fetchall()
    connection.close()
    assert found == list(enumerate(keys))


@given(values, values)
@example(2**62 + 100, Decimal(2**62 + 300) + Decimal("0.5"))
@example(Decimal(2**53) - Decimal("1e-15"), Decimal(2**53) - Decimal("0.4"))
@example(10**400, 1e308)
@example(-(2**63), Decimal(-(2**63)) - Decimal("0.5"))
def test_the_higher_number_never_has_the_lower_key(one: Any, other: Any) -> None:
    low, high = sorted((one, other), key=exact)
    if exact(low) == exact(high):
        assert key_of(low) == key_of(high)
    assert order_of(key_of(low)) <= order_of(key_of(high))


@given(matches.bson_scalars, matches.bson_scalars)
def test_keys_agree_with_what_a_match_compares(one: Any, other: Any) -> None:
    (kind, left), (same, right) = kind_of(stored(one)), kind_of(other)
    first, second = order_of(key_of(stored(one))), order_of(key_of(other))
    if kind == same and kind not in ("object", "array"):
        assert not (left < right and first > second)
        assert not (left == right and first != second)
        lowest, highest = map(order_of, bounds_of(other))
        assert kind == "null" or lowest <= first <= highest
    else:
        assert first != second


def test_a_path_leads_into_objects() -> None:
    document = {"by": {"name": "Ann", "age": None}, "n": 1}
    assert index_key(document, "by.name") == "Ann"
    assert index_key(document, "n") == 1
    for nothing in ("by.age", "by.nobody", "nobody", "n.x", "by.name.x", "nobody.x.y"):
        assert index_key(document, nothing) is None


@pytest.mark.parametrize("path", ["a", "a.b", "a.0", "a.b.c", "o.a", "o.a.b"])
def test_an_array_anywhere_on_the_way_is_one_key(path: str) -> None:
    document = {"a": [{"b": 1}], "o": {"a": []}}
    assert index_key(document, path) == ARRAY


def test_what_a_match_cannot_name_is_behind_the_rest_and_before_arrays() -> None:
    some: list[Any] = [{"a": 1}, MaxKey(), []]
    orders = [order_of(key_of(stored(value))) for value in some]
    assert orders == sorted(orders)
    assert key_of(stored(MaxKey())) == key_of(bson.Code("x"))
