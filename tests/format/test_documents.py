"""Documents on the wire: what is encoded comes back, with and without the codec of BSON."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import bson
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.document import Change, Document
from headwater.format import documents
from tests.strategies import unicode_text

dates = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)).map(  # noqa: DTZ001
    lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)  # as BSON has them
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | unicode_text
    | dates
    | st.binary(max_size=20)
    | st.uuids()
    | st.binary(min_size=12, max_size=12).map(bson.ObjectId)
    | st.decimals(places=3, allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9).map(
        lambda number: bson.Decimal128(str(number))
    )
)
names = unicode_text.filter(lambda name: not name.startswith("$"))
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))
datas = st.dictionaries(names, values, max_size=4)
found = st.builds(Document, unicode_text, st.integers(0, 2**63 - 1), datas)
changes = st.one_of(
    st.builds(Change, st.just("put"), unicode_text, unicode_text, st.integers(0, 2**63 - 1), datas),
    st.builds(Change, st.just("delete"), unicode_text, unicode_text),
    st.builds(Change, st.just("reset"), unicode_text),
)


@given(found)
def test_a_document_comes_back_as_it_was(document: Document) -> None:
    line = documents.encode(document)
    assert b"\n" not in line
    assert documents.decode_document(line) == document
    assert set(json.loads(line)) == {"id", "version", "data"}


@given(changes)
def test_a_change_comes_back_as_it_was(change: Change) -> None:
    line = documents.encode_change(change)
    assert b"\n" not in line
    assert documents.decode_change(line) == change


@given(st.binary(max_size=60) | found.map(documents.encode).flatmap(lambda line: st.just(line[: len(line) // 2])))
def test_what_is_no_document_is_refused(line: bytes) -> None:
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
        documents.decode_document(line)


@given(values)
def test_values_without_the_codec_stay_what_extended_json_makes_of_them(value: Any) -> None:
    line = documents.encode({"data": value})
    documents._loads.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_codec", lambda: (None, None))
        try:
            assert documents.decode(line) == json.loads(line)
        finally:
            documents._loads.cache_clear()


def test_numbers_that_json_lacks_are_told_exactly() -> None:
    document = Document("a", 1, {"up": math.inf, "down": -math.inf, "none": math.nan, "in": [{"deep": math.inf}]})
    back = documents.decode_document(documents.encode(document)).data
    assert (back["up"], back["down"], back["in"]) == (math.inf, -math.inf, [{"deep": math.inf}])
    assert math.isnan(back["none"])
    assert documents.decode(documents.encode([document]))[0]["data"]["up"] == math.inf


def test_fields_that_only_look_like_extended_json_stay_as_they_are() -> None:
    document = Document("a", 1, {"$date": "next week", "b": {"$oid": 3}})
    assert documents.decode_document(documents.encode(document)) == document


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError):
        documents.encode(object())
