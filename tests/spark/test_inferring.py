"""The fields of a sample, and what becomes of those that are not the same everywhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson.decimal128 import Decimal128
from hypothesis import given
from hypothesis import strategies as st

from headwater.spark import sql_tables
from headwater.spark.reading import fields


def found(*documents: Any, taken: tuple[str, ...] = ()) -> str:
    return sql_tables.schema_of(documents, taken).simpleString()


@pytest.mark.parametrize(
    ("documents", "schema"),
    [
        ([], "struct<>"),
        ([None, [1], "x", 3], "struct<>"),
        ([{"a": 1}, {"a": None}, {}], "struct<a:bigint>"),
        ([{"a": 1}, {"a": 1.5}], "struct<a:double>"),
        ([{"a": 2**63}], "struct<a:double>"),
        ([{"a": 1}, {"a": "x"}], "struct<a:string>"),
        ([{"a": True}, {"a": 1}], "struct<a:string>"),
        ([{"a": None}], "struct<a:string>"),
        ([{"a": []}, {"a": [None, 1]}, {"a": ["x"]}], "struct<a:array<string>>"),
        ([{"a": []}], "struct<a:array<string>>"),
        (
            [{"a": {"b": None}}, {"a": {"b": 1, "c": [{"d": 1}]}}],
            "struct<a:struct<b:bigint,c:array<struct<d:bigint>>>>",
        ),
        ([{"a": {}}], "struct<a:string>"),
        ([{"a": {"b": 1}}, {"a": [1]}], "struct<a:string>"),
        ([{"a": {"b": 1, "B": 2}}], "struct<a:string>"),
        ([{"a": {str(n): n for n in range(300)}}], "struct<a:string>"),
        ([{"at": datetime.now(UTC), "x": b"x", "m": Decimal128("1")}], "struct<at:timestamp,x:binary,m:decimal(38,9)>"),
        ([{"id": bson.ObjectId()}], "struct<id:string>"),
        ([{"a.b": 1, "": 2, "c": 3}], "struct<c:bigint>"),
    ],
)
def test_the_schema_of_a_sample(documents: list[Any], schema: str) -> None:
    assert found(*documents) == schema


def test_a_field_whose_name_is_taken_says_that_it_is_of_the_data() -> None:
    schema = sql_tables.schema_of([{"Type": 1, "type": 2, "a": 3, "A": 4}], ["type"])
    assert schema.names == ["data.Type", "a", "data.A"]


deep: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abAB"), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from("abAB"), deep, max_size=3), max_size=4))
def test_no_value_of_the_sample_is_lost(documents: list[Any]) -> None:
    schema = sql_tables.schema_of(documents)
    reader = fields.reader(schema)
    columns = dict(zip(reader.names, reader.of_documents(documents), strict=True))
    for name, column in columns.items():
        assert isinstance(column, pa.Array)
        for document, value in zip(documents, column.to_pylist(), strict=True):
            assert (value is None) == (document.get(name.removeprefix("data.")) is None)
