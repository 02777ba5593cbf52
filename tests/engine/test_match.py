"""The language of matches: each operator, paths, kinds, what is refused, and data that is not what it claims."""

from __future__ import annotations

import builtins
import math
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from functools import reduce
from typing import Any, cast
from uuid import UUID

import bson
import msgspec
import pytest
from bson import Binary, Decimal128, Int64, ObjectId, Timestamp
from bson.code import Code
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater import match as matching
from headwater.errors import Invalid, Unsupported
from headwater.limits import (
    MATCH_BYTES_MAX,
    MATCH_DEPTH_MAX,
    MATCH_PATTERNS_MAX,
    MATCH_TERMS_MAX,
    MATCH_VALUES_MAX,
    PATTERN_BYTES_MAX,
)
from headwater.match import parse
from tests.engine import matches

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
GARBAGE = [b"", b"{", b"null", b"[1]", b'"a"', b'{"a":1}}', b"\xff", b'{"zz":"\xff"}', b'{"zz":01}', b"{'a':1}"]


def hit(match: Any, document: Any) -> bool:
    """Whether a document matches, which is the same as a document and as an event's data."""
    matcher = matching.compile(match)
    found = matcher(document)
    assert bool(matcher.hits("bson", [bson.encode(document)])) == found
    return found


def is_json(value: Any) -> bool:
    try:
        return bool(msgspec.json.decode(msgspec.json.encode(value)) == value)
    except TypeError:
        return False


# The plain interpreter


@given(matches.some_matches(matches.json_scalars), st.lists(matches.documents(matches.json_scalars), max_size=5))
@settings(max_examples=100)
def test_json_matches_as_the_plain_interpreter_says(match: dict[str, Any], documents: list[dict[str, Any]]) -> None:
    matcher = matching.compile(match)
    expected = [place for place, document in enumerate(documents) if matches.matches(match, document)]
    assert [place for place, document in enumerate(documents) if matcher(document)] == expected
    assert matcher.hits("json", [msgspec.json.encode(document) for document in documents]) == expected
    assert matching.compile(msgspec.json.encode(match).decode()).hits("json", [b"{}"]) == matcher.hits("json", [b"{}"])


@given(matches.some_matches(matches.bson_scalars), st.lists(matches.documents(matches.bson_scalars), max_size=5))
@settings(max_examples=100)
def test_bson_matches_as_the_plain_interpreter_says(match: dict[str, Any], documents: list[dict[str, Any]]) -> None:
    matcher = matching.compile(match)
    expected = [place for place, document in enumerate(documents) if matches.matches(match, document)]
    assert [place for place, document in enumerate(documents) if matcher(document)] == expected
    assert matcher.hits("bson", [bson.encode(document) for document in documents]) == expected


@given(st.lists(matches.documents(matches.json_scalars), min_size=1, max_size=4))
@settings(max_examples=60)
def test_what_is_in_json_is_found_as_the_plain_interpreter_says(documents: list[dict[str, Any]]) -> None:
    data = [msgspec.json.encode(document) for document in documents]
    for match in matches.pointed(documents[0])[:200]:
        expected = [place for place, document in enumerate(documents) if matches.matches(match, document)]
        matcher = matching.compile(match)
        assert matcher.hits("json", data) == expected
        assert [place for place, document in enumerate(documents) if matcher(document)] == expected


@given(st.lists(matches.documents(matches.bson_scalars), min_size=1, max_size=4))
@settings(max_examples=60)
def test_what_is_in_bson_is_found_as_the_plain_interpreter_says(documents: list[dict[str, Any]]) -> None:
    data = [bson.encode(document) for document in documents]
    for match in matches.pointed(documents[0])[:200]:
        expected = [place for place, document in enumerate(documents) if matches.matches(match, document)]
        assert matching.compile(match).hits("bson", data) == expected


@given(
    matches.some_matches(matches.json_scalars),
    st.lists(st.sampled_from(GARBAGE) | matches.documents(matches.json_scalars).map(msgspec.json.encode), max_size=8),
)
def test_data_that_is_not_json_never_matches_and_hides_nothing(match: dict[str, Any], data: list[bytes]) -> None:
    expected = [
        place
        for place, one in enumerate(data)
        if one not in GARBAGE and matches.matches(match, msgspec.json.decode(one))
    ]
    assert matching.compile(match).hits("json", data) == expected


@settings(max_examples=60)
@given(st.binary(max_size=60), matches.documents(matches.bson_scalars), st.data())
def test_damaged_bson_never_raises(noise: bytes, document: dict[str, Any], data: st.DataObject) -> None:
    whole = bytearray(bson.encode(document))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    for match in ({}, {"a": {"$ne": 1}}, {"a.b": {"$gt": 1}}):
        matching.compile(match).hits("bson", [noise, bytes(whole), bytes(whole[: len(whole) // 2])])


# Operators


@pytest.mark.parametrize(
    ("asked", "matching_values", "others"),
    [
        (1, [1, 1.0, Int64(1), Decimal128("1.0"), [0, 1]], [2, "1", True, None, [[1]], {"x": 1}]),
        (True, [True, [True]], [1, "true", False]),
        ("x", ["x", ["x"]], ["X", "", None, b"x", Code("x")]),
        (None, [None, [1, None]], [0, "", False, [], {}]),
        ([1, 2], [[1, 2], [[1, 2], 3], [1.0, 2]], [[2, 1], [1, 2, 3], 1, {"0": 1, "1": 2}]),
        ({"x": 1, "y": None}, [{"y": None, "x": 1.0}, [{"x": 1, "y": None}]], [{"x": 1}, {"x": 1, "y": None, "z": 1}]),
        ({}, [{}, [{}]], [[], None, {"x": 1}]),
        ({"$eq": 1}, [1], [2]),
        ({"$ne": 1}, [2, "1", True, None, [2]], [1, [1, 2]]),
        ({"$gt": 10}, [11, 10.5, 1e300, Int64(11), Decimal128("10.1"), [1, 11], math.inf], [10, "11", True, math.nan]),
        ({"$gte": 10}, [10, 10.0], [9.99]),
        ({"$lt": 10}, [9, -1e300, -math.inf], [10, False, None]),
        ({"$lte": 10}, [10], [10.000001]),
        ({"$gt": "b"}, ["c", "ba"], ["b", "a", 5]),
        ({"$gt": False}, [True], [False, 1]),
        ({"$gt": 1, "$lt": 3}, [2, [0, 9]], [1, 3]),
        ({"$in": [1, "x", [2], None]}, [1, "x", [2], None, [7, "x"]], [2, True, "1", [3]]),
        ({"$in": []}, [], [1, None, []]),
        ({"$nin": [1, "x"]}, [2, None, []], [1, "x", [5, 1]]),
        ({"$exists": True}, [1, None, [], {}], []),
        ({"$exists": False}, [], [1, None, []]),
        ({"$regex": "^o-[0-9]+$"}, ["o-17", ["x", "o-1"]], ["no-17", "o-", 17, None]),
        ({"$regex": "ü."}, ["xüy"], ["ü"]),
        ({"$not": {"$gt": 5}}, [5, "x", None, [1]], [6, [1, 6]]),
        ({"$not": {"$regex": "a"}}, ["b", 1], ["a"]),
        ({"$not": {"$not": {"$gt": 5}}}, [6], [5]),
        ({"$not": {"$gt": 1, "$lt": 3}}, [1, 3], [2]),
    ],
)
def test_operators(asked: Any, matching_values: list[Any], others: list[Any]) -> None:
    for values, expected in ((matching_values, True), (others, False)):
        for value in values:
            assert hit({"a": asked}, {"a": value}) is expected, value
            assert hit({"x.a": asked}, {"x": {"a": value}}) is expected, value
            if is_json(value):
                found = matching.compile({"a": asked}).hits("json", [b"{}", msgspec.json.encode({"a": value})])
                assert (1 in found) is expected, value


@pytest.mark.parametrize("asked", [None, {"$ne": 1}, {"$nin": [1]}, {"$not": {"$gt": 1}}, {"$exists": False}])
def test_what_is_missing_matches_null_and_what_denies(asked: Any) -> None:
    documents: list[dict[str, Any]] = [{}, {"b": 1}, {"a": []}, {"a": 5}, {"a": "text"}, {"a": [[{"b": 2}]]}]
    for document in documents:
        assert hit({"a.b": asked}, document)
    assert hit({"a": {"$in": [None, 5]}}, {})
    assert not hit({"a": {"$nin": [None, 5]}}, {})


@pytest.mark.parametrize("asked", [1, {"$gt": 1}, {"$in": [1]}, {"$exists": True}, {"$regex": ""}, {"$ne": None}])
def test_what_is_missing_matches_nothing_else(asked: Any) -> None:
    documents: list[dict[str, Any]] = [{}, {"a": []}, {"a": 5}]
    for document in documents:
        assert not hit({"a.b": asked}, document)


def test_matches_combine() -> None:
    document = {"a": 1, "b": 2}
    assert hit({"a": 1, "b": 2}, document)
    assert not hit({"a": 1, "b": 3}, document)
    assert hit({"$and": [{"a": 1}, {"b": 2}]}, document)
    assert not hit({"$and": [{"a": 1}, {"b": 3}]}, document)
    assert hit({"$or": [{"a": 9}, {"b": 2}], "a": 1}, document)
    assert not hit({"$or": [{"a": 9}, {"b": 9}]}, document)
    assert hit({"$nor": [{"a": 9}, {"b": 9}]}, document)
    assert not hit({"$nor": [{"a": 9}, {"b": 2}]}, document)
    assert hit({"$not": {"a": 1, "b": 3}}, document)
    assert hit({"a": 1, "b": {"$gt": 1}, "c": None}, document)


def test_nothing_asked_matches_every_document_and_nothing_else() -> None:
    matcher = matching.compile({})
    assert matcher.hits("json", [b"{}", b"[]", b"1", b'{"a":1}', b"{"]) == [0, 3]
    assert matcher.hits("bson", [bson.encode({}), b""]) == [0]
    assert matcher.hits("text", [b"{}", b"[]", b"a"]) == matcher.hits("bytes", [b"{}", b"[]", b"\xff"]) == [0]
    assert matcher({})
    assert not matcher([])  # type: ignore[arg-type]  # what a view may find in the place of a document


# Paths


def test_paths_lead_through_objects_and_arrays() -> None:
    order = {"lines": [{"item": "kettle", "n": 2}, {"item": "cup", "n": 6}, 7], "by": {"name": "Ann"}, "m": [[1, 2], 3]}
    assert hit({"by.name": "Ann"}, order)
    assert hit({"lines.item": "cup"}, order)
    assert hit({"lines.1.item": "cup"}, order)
    assert not hit({"lines.0.item": "cup"}, order)
    assert hit({"lines.2": 7}, order)
    assert hit({"lines.n": {"$gt": 5}, "lines.item": "kettle"}, order)  # not of the same line
    assert hit({"m.0": 2}, order)
    assert hit({"m.0.1": 2}, order)
    assert not hit({"m": 2}, order)
    assert hit({"lines.3": None, "lines.99.item": {"$exists": False}}, order)
    assert hit({"lines.price": {"$exists": False}}, order)
    assert hit({"by": {"name": "Ann"}}, order)


def test_a_number_in_a_path_is_a_name_in_an_object_and_an_index_in_an_array() -> None:
    assert hit({"a.0": 1}, {"a": {"0": 1}})
    assert hit({"a.0": 1}, {"a": [1]})
    assert not hit({"a.0": 1}, {"a": [{"0": 1}]})
    assert hit({"0": 1}, {"0": 1})
    assert not hit({f"a.{'9' * 400}": 1}, {"a": [1]})
    assert not hit({"a.-1": 1}, {"a": [1]})
    assert not hit({"a.²": 1}, {"a": [1]})


@pytest.mark.parametrize("name", ["two words", 'a"b', "a\\b", "a\nb", "ü", "class", "f0", "self", "__init__", "a-b"])
def test_any_name_is_found_in_json(name: str) -> None:
    data = [msgspec.json.encode({name: 5, "other": "ü"}), b"{}", b'{"x":"\xff"}', b"{"]
    assert matching.compile({name: {"$gt": 4}}).hits("json", data) == [0]
    assert matching.compile({name: None}).hits("json", data) == [1]


def test_a_name_written_twice_in_json_is_its_last() -> None:
    assert matching.compile({"a": 2}).hits("json", [b'{"a":1,"a":2}', b'{"a":2,"a":1}', b'{"\\u0061":2}']) == [0, 2]


# Kinds


def test_whole_numbers_beyond_floats_are_exact() -> None:
    big = 2**53 + 1
    assert hit({"a": {"$gt": 2**53}}, {"a": big})
    assert not hit({"a": float(2**53)}, {"a": big})
    assert hit({"a": Decimal(big)}, {"a": Int64(big)})
    matcher = matching.compile({"a": 10**30 + 1})
    assert matcher.hits("json", [b'{"a":%d}' % (10**30 + 1), b'{"a":%d}' % 10**30, b'{"a":1e30}']) == [0]


def test_decimals_are_exact_and_floats_are_what_they_are() -> None:
    assert hit({"a": Decimal("0.5")}, {"a": 0.5})
    assert not hit({"a": Decimal("0.1")}, {"a": 0.1})
    assert hit({"a": {"$lt": Decimal128("0.11")}}, {"a": 0.1})
    assert hit({"a": Decimal128("0.10")}, {"a": Decimal128("0.1")})
    assert hit({"a": {"$gt": Decimal("1E+6000")}}, {"a": math.inf})


def test_nan_equals_itself_and_is_neither_above_nor_below() -> None:
    for nan in (math.nan, Decimal128("NaN"), Decimal128("sNaN")):
        for operand in (math.nan, Decimal("NaN"), Decimal("sNaN")):
            assert hit({"a": operand}, {"a": nan})
            assert hit({"a": {"$in": [operand]}}, {"a": nan})
            assert hit({"a": {"$gte": operand}}, {"a": nan})
            assert not hit({"a": {"$gt": operand}}, {"a": nan})
        assert not any(hit({"a": {name: 0}}, {"a": nan}) for name in ("$gt", "$gte", "$lt", "$lte"))
        assert hit({"a": {"$ne": 0}}, {"a": nan})
    assert not hit({"a": math.nan}, {"a": 0})


def test_dates_compare_as_moments() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5)))
    assert hit({"a": elsewhere}, {"a": NOON})
    assert hit({"a": {"$gt": NOON}}, {"a": NOON + timedelta(milliseconds=1)})
    assert not hit({"a": {"$gte": NOON}}, {"a": "2025-03-01T12:00:00Z"})
    assert matching.compile({"a": NOON})({"a": NOON.replace(tzinfo=None)})
    far = bson.encode({"a": bson.DatetimeMS(10**15), "b": 1})
    assert matching.compile({"a": {"$gt": NOON}}).hits("bson", [far]) == [0]
    assert matching.compile({"b": 1}).hits("bson", [far]) == [0]


def test_bytes_ids_and_timestamps_compare_within_their_kind() -> None:
    uuid = UUID(int=5)
    assert hit({"a": b"ab"}, {"a": b"ab"})
    assert hit({"a": {"$gt": b"a"}}, {"a": b"ab"})
    assert not hit({"a": b"ab"}, {"a": Binary(b"ab", 128)})
    assert hit({"a": uuid}, {"a": Binary(uuid.bytes, 4)})
    assert not hit({"a": uuid.bytes}, {"a": Binary(uuid.bytes, 4)})
    low, high = ObjectId("0" * 24), ObjectId("f" * 24)
    assert hit({"a": {"$gt": low}}, {"a": high})
    assert not hit({"a": "0" * 24}, {"a": low})
    assert hit({"a": {"$lt": Timestamp(2, 0)}}, {"a": Timestamp(1, 9)})


def test_what_a_match_cannot_name_is_there_and_equals_nothing() -> None:
    document = {"a": bson.Regex("x"), "b": bson.MinKey(), "c": Code("x")}
    assert hit({"a": {"$exists": True}, "b": {"$ne": 1}, "c": {"$ne": "x"}}, document)
    assert not hit({"c": {"$regex": "x"}}, document)
    assert matching.compile({"a": {"$ne": 1}})({"a": object()})


def test_a_document_of_python_may_hold_kinds_of_its_types() -> None:
    class Text(str):
        __slots__ = ()

    document = OrderedDict(a=Text("x"), b=(1, 2), c=OrderedDict(d="\ud800"))
    assert matching.compile({"a": "x", "b": 2, "c.d": {"$ne": "y"}, "c": {"$exists": True}})(document)
    assert matching.compile({"c.d": "\ud800"})(document)
    assert not matching.compile({"c.d": {"$regex": "y"}})(document)


def test_extended_json_names_values_of_bson() -> None:
    document = {"at": NOON, "by": ObjectId("0" * 24), "n": Int64(5), "price": Decimal128("1.5"), "raw": b"\x00\x01"}
    for text in (
        '{"at": {"$date": "2025-03-01T12:00:00Z"}}',
        '{"at": {"$lte": {"$date": {"$numberLong": "1740830400000"}}}}',
        '{"by": {"$oid": "000000000000000000000000"}}',
        '{"by": {"$in": [1, {"$oid": "000000000000000000000000"}]}}',
        '{"n": {"$numberLong": "5"}, "price": {"$gt": {"$numberDecimal": "1.49"}}}',
        '{"raw": {"$binary": {"base64": "AAE=", "subType": "00"}}}',
    ):
        assert hit(text, document), text
    for text in (
        '{"a": {"$oid": "x"}}',
        '{"a": {"$date": null}}',
        '{"a": {"$oid": "x", "b": 1}}',
        '{"a":{"$date":{}}}',
    ):
        assert refusal(text).code == "bad_match", text


def test_without_its_codec_bson_is_unsupported_and_json_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    really = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "bson":
            raise ImportError(name)
        return really(name, *rest)

    data = bson.encode({"a": 1})
    monkeypatch.setattr(builtins, "__import__", refuse)
    matcher = matching.compile({"a": 1})
    assert matcher.hits("json", [b'{"a":1}']) == [0]
    with pytest.raises(Unsupported, match=r"headwater\[bson\]"):
        matcher.hits("bson", [data])
    with pytest.raises(Unsupported, match=r"headwater\[bson\]"):
        matching.compile({"a": {"$oid": "0" * 24}})


# Refusals


def refusal(match: Any) -> Invalid:
    with pytest.raises(Invalid) as refused:
        matching.compile(match)
    assert refused.value.hint
    assert len(str(refused.value)) < 4 * PATTERN_BYTES_MAX
    return refused.value


def nested(depth: int) -> dict[str, Any]:
    match: dict[str, Any] = {"a": 1}
    for _ in range(depth):
        match = {"$not": match}
    return match


def circular(name: str) -> dict[str, Any]:
    value: dict[str, Any] = {}
    value[name] = [value]
    return value


def laughing() -> dict[str, Any]:
    """Few objects, but more than anybody can visit."""
    value: Any = 1
    for _ in range(MATCH_DEPTH_MAX - 2):
        value = [value, value, value]
    return {"a": value}


@pytest.mark.parametrize(
    "match",
    [
        {"$gt": 1},
        {"$where": "true"},
        {"a": {"$near": 1}},
        {"a": {"$options": "i", "$regex": "a"}},
        {"a": {"$gt": 1, "b": 2}},
        {"a": {"$or": [{"a": 1}]}},
        {"a": {"$gt": None}},
        {"a": {"$gt": [1]}},
        {"a": {"$lt": {"b": 1}}},
        {"a": {"$in": 1}},
        {"a": {"$in": {"b": 1}}},
        {"a": {"$nin": "abc"}},
        {"a": {"$exists": 1}},
        {"a": {"$exists": None}},
        {"a": {"$regex": 1}},
        {"a": {"$regex": b"a"}},
        {"a": {"$not": 1}},
        {"a": {"$not": {}}},
        {"a": {"$not": {"b": 1}}},
        {"a": {"$not": {"$gtt": 1}}},
        {"a": {"$eq": {"$gt": 1}}},
        {"a": {"b": {"$gt": 1}}},
        {"a": [{"$gt": 1}]},
        {"$and": []},
        {"$or": {"a": 1}},
        {"$nor": [1]},
        {"$not": [{"a": 1}]},
        {"$and": [{"$and": [{"a": {"$x": 1}}]}]},
        {"": 1},
        {"a..b": 1},
        {".a": 1},
        {"a.": 1},
        {1: 2},
        {"a": {1: 2}},
        {"a": {"$gt": 1, 2: 3}},
        {"a": object},
        {"a": {1, 2}},
        {"a": bson.Regex("a")},
        {"a": datetime(2025, 3, 1)},  # noqa: DTZ001 - which is refused
        [],
        None,
        5,
        "",
        "{",
        "[]",
        "1",
        '{"a": NaN}',
    ],
    ids=lambda match: repr(match)[:40],
)
def test_bad_matches_are_refused(match: Any) -> None:
    assert refusal(match).code == "bad_match"


TOO_LARGE: dict[str, Callable[[], Any]] = {
    "text of brackets": lambda: "[" * 100_000,
    "text of operators": lambda: '{"$not":' * 100_000,
    "long text": lambda: '{"a": "' + "x" * MATCH_BYTES_MAX + '"}',
    "deep operators": lambda: nested(MATCH_DEPTH_MAX + 1),
    "deep value": lambda: {"a": reduce(lambda value, _: {"b": value}, range(MATCH_DEPTH_MAX), cast(Any, 1))},
    "deep list": lambda: {"a": reduce(lambda value, _: [value], range(MATCH_DEPTH_MAX), cast(Any, 1))},
    "deep path": lambda: {".".join(["a"] * (MATCH_DEPTH_MAX + 1)): 1},
    "circular match": lambda: circular("$and"),
    "circular value": lambda: {"a": circular("b")},
    "circular Extended JSON": lambda: {"a": circular("$date")},
    "more than anybody can visit": laughing,
    "many terms": lambda: {"$or": [{"a": 1}] * (MATCH_TERMS_MAX + 1)},
    "many fields": lambda: {f"a{i}": 1 for i in range(MATCH_TERMS_MAX + 1)},
    "a long $in": lambda: {"a": {"$in": list(range(MATCH_VALUES_MAX + 1))}},
    "a long list": lambda: {"a": list(range(MATCH_VALUES_MAX + 1))},
    "long string": lambda: {"a": "x" * (MATCH_BYTES_MAX + 1)},
    "long bytes": lambda: {"a": b"x" * (MATCH_BYTES_MAX + 1)},
    "a long number": lambda: {"a": 1 << (8 * MATCH_BYTES_MAX + 8)},
    "a long name": lambda: {"x" * (MATCH_BYTES_MAX + 1): 1},
    "a long operator": lambda: {"$" + "x" * (MATCH_BYTES_MAX - 1): 1},
    "a long name in a value": lambda: {"a": {"x" * MATCH_BYTES_MAX: 1}},
    "a long operator of a field": lambda: {"a": {"$" + "x" * (MATCH_BYTES_MAX - 5): 1}},
    "many patterns": lambda: {"$or": [{"a": {"$regex": f"x{i}"}} for i in range(MATCH_PATTERNS_MAX + 1)]},
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_matches_above_a_limit_are_refused_at_once(name: str) -> None:
    began = time.monotonic()
    assert refusal(TOO_LARGE[name]()).code == "bad_match"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)",
        "(?<!a)b",
        r"(a)\1",
        r"(?P<x>a)(?P=x)",
        "(",
        "[a",
        "a**",
        "\ud800",
        "x{1001}",
        "((a{100}){10}){10}",
        r"(\pL{1,100}){1,9}",
        ".{0,999}c",
        "a" * (PATTERN_BYTES_MAX + 1),
    ],
    ids=lambda pattern: ascii(pattern)[:30],
)
def test_bad_patterns_are_refused(pattern: str) -> None:
    assert refusal({"a": {"$regex": pattern}}).code == "bad_pattern"


def test_what_is_just_within_the_limits_is_taken() -> None:
    assert matching.compile(nested(MATCH_DEPTH_MAX - 1))({"a": 1}) is bool(MATCH_DEPTH_MAX % 2)
    assert matching.compile({"a": {"$in": list(range(MATCH_VALUES_MAX))}})({"a": MATCH_VALUES_MAX - 1})
    assert matching.compile({"$and": [{"a": {"$gt": i}} for i in range(MATCH_TERMS_MAX)]})({"a": 1000})
    assert not matching.compile({"$and": [{"a": {"$gt": i}} for i in range(MATCH_TERMS_MAX)]})({"a": 200})
    assert matching.compile({"$or": [{"a": {"$regex": f"^x{i}$"}} for i in range(MATCH_PATTERNS_MAX)]})({"a": "x7"})
    deep = {".".join(["a"] * MATCH_DEPTH_MAX): 1}
    document: Any = 1
    for _ in range(MATCH_DEPTH_MAX):
        document = {"a": [document]}
    assert matching.compile(deep)(document)


def test_a_match_may_be_changed_after_it_was_compiled() -> None:
    wanted = {"x": [1]}
    matcher = matching.compile({"a": wanted})
    wanted["x"].append(2)
    assert matcher({"a": {"x": [1]}})


def test_parse_gives_what_compile_takes() -> None:
    assert parse('{"a": {"$gt": 1}}') == parse(b'{"a": {"$gt": 1}}') == {"a": {"$gt": 1}}


# Data that is out to hurt


@pytest.mark.parametrize(("open_", "close"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("closed", [True, False])
def test_depth_bombs_in_json_never_match(open_: bytes, close: bytes, closed: bool) -> None:
    levels = 100_000
    bomb = open_ * levels + b"1" + (close * levels if closed else b"")
    data = [b'{"a":1}', b'{"b":' + bomb + b',"a":1}', b'{"a":' + bomb + b"}", bomb, b'{"a":1}']
    for match in ({"a": 1}, {"a": 1, "b": {"$ne": 2}}, {"a.a.a": None, "a": 1}):
        assert matching.compile(match).hits("json", data) == [0, 4]


@pytest.mark.parametrize("kind", [b"\x03", b"\x04"])
def test_depth_bombs_in_bson_never_match(kind: bytes) -> None:
    levels, size, heads = 100_000, 5, []
    for _ in range(levels):
        size += 8
        heads.append(struct.pack("<i", size) + kind + b"a\0")
    bomb = b"".join(reversed(heads)) + b"\5\0\0\0\0" + bytes(levels)
    fine = bson.encode({"a": 1})
    assert matching.compile({"a": {"$ne": 2}}).hits("bson", [fine, bomb, fine]) == [0, 2]


def test_numbers_beyond_floats_hide_an_event_only_from_who_asks_for_them() -> None:
    data = [b'{"a":1,"b":1e999}', b'{"a":1,"b":%s}' % (b"9" * 5000)]
    assert matching.compile({"a": 1}).hits("json", data) == [0, 1]
    assert matching.compile({"a": 1, "b": {"$exists": True}}).hits("json", data) == []


def test_text_that_is_not_utf8_hides_an_event_wherever_it_stands() -> None:
    data = [b'{"a":1,"b":"\xff"}', b'{"\xff":0,"a":1}', b'{"a":1,"b":"\xc3\xbc"}', b'{"a":1,"b":["\xed\xa0\x80"]}']
    assert matching.compile({"a": 1}).hits("json", data) == [2]
    assert matching.compile({"c": None}).hits("json", data) == [2]


def test_patterns_that_stall_others_take_linear_time() -> None:
    """These take hours where a pattern is tried in every way; RE2 takes milliseconds."""
    text = "a" * 3000
    for pattern in ("(a+)+$", "(a|a)*b", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y", "(a?){50}a{50}b"):
        matcher = matching.compile({"t": {"$regex": pattern}})
        began = time.monotonic()
        matcher.hits("json", [msgspec.json.encode({"t": text + "!"})] * 20)
        assert time.monotonic() - began < 5, pattern


def test_many_threads_compile_and_use_matches_at_once() -> None:
    barrier = threading.Barrier(8)
    wrong: list[int] = []

    def work(number: int) -> None:
        barrier.wait(10)
        for i in range(40):
            matcher = matching.compile({f"name{i}": {"$gte": i}, f"thread{number}": 1})
            if matcher.hits("json", [b'{"name%d":%d,"thread%d":1}' % (i, i, number), b"{}"]) != [0]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
