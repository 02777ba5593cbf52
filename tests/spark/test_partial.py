"""Aggregates that are put together piece by piece, beside a plain loop over all rows."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import Invalid
from headwater.spark import aggregating
from headwater.spark.aggregating import ColumnMeasure, PartialAggregate

TYPE_OF: dict[str, pa.DataType] = {
    "g": pa.string(),
    "i": pa.int64(),
    "d": pa.float64(),
    "m": pa.decimal128(10, 2),
    "s": pa.string(),
}
ROWS = pa.schema(TYPE_OF)
ASKED: dict[str, list[aggregating.Function]] = {
    "i": ["sum", "min", "max"],
    "d": ["min", "max"],
    "m": ["sum", "min", "max"],
    "s": ["min", "max"],
    "g": ["min", "max"],
}
MEASURES = [
    ColumnMeasure("count"),
    *(ColumnMeasure(function, column) for column, each in ASKED.items() for function in each),
]
TYPES = {("sum", "m"): pa.decimal128(20, 2)}
numbers = st.none() | st.integers(-(2**60), 2**60)
floats = st.none() | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.5, -2.0])
decimals = st.none() | st.decimals(-99999999, 99999999, places=2)
rows = st.tuples(
    st.sampled_from([None, "", "a", "b"]), numbers, floats, decimals, st.none() | st.sampled_from(["", "x", "ü"])
)


def schema_of(by: list[str], measures: list[ColumnMeasure]) -> pa.Schema:
    found = [(f"g{number}", ROWS.field(name).type) for number, name in enumerate(by)]
    for number, each in enumerate(measures):
        usual = ROWS.field(each.column).type if each.column else pa.int64()
        found.append((f"m{number}", TYPES.get((each.function, each.column), usual)))
    return pa.schema(found)


def table_of(many: list[tuple[Any, ...]]) -> pa.Table:
    columns = zip(*many, strict=True)
    table = pa.table([pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)], schema=ROWS)
    return table.set_column(0, "g", table.column("g").dictionary_encode())  # as the log has types


def run(
    tables: list[list[tuple[Any, ...]]], by: list[str], measures: list[ColumnMeasure], checked: bool = True
) -> list[Any]:
    found = PartialAggregate(by, measures, schema_of(by, measures), checked=checked)
    for each in tables:
        found.add(table_of(each))
    batches = list(found.result())
    assert all(batch.schema == schema_of(by, measures) for batch in batches)
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def reference(tables: list[list[tuple[Any, ...]]], by: list[str]) -> list[tuple[Any, ...]]:
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in (row for each in tables for row in each):
        named = dict(zip(ROWS.names, row, strict=True))
        groups.setdefault(tuple(named[name] for name in by), []).append(named)
    found = []
    for group, members in groups.items():
        values = [_measured(measure, [row.get(measure.column) for row in members]) for measure in MEASURES]
        found.append((*group, *values))
    return found


def _measured(measure: ColumnMeasure, values: list[Any]) -> Any:
    if measure.function == "count":
        return len(values)
    present = [value for value in values if value is not None]
    if not present:
        return None
    if measure.function == "sum":
        return sum(present)
    order = lambda value: (isinstance(value, float) and math.isnan(value), value)  # noqa: E731  # NaN is above all
    return min(present, key=order) if measure.function == "min" else max(present, key=order)


@pytest.mark.parametrize("by", [["g"], [], ["g", "s"]])
@given(tables=st.lists(st.lists(rows, min_size=1, max_size=6), min_size=1, max_size=4), merged=st.booleans())
def test_pieces_together_are_what_one_loop_finds(by: list[str], tables: list[Any], merged: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregating, "GROUPS_MAX", 1 if merged else 1000)
        found = run(tables, by, MEASURES)
    assert sorted(map(repr, found)) == sorted(map(repr, reference(tables, by)))


def test_nothing_has_no_groups() -> None:
    assert run([], ["g"], MEASURES) == []


def test_a_count_needs_no_column() -> None:
    assert run([[("a", 1, 1.0, None, None)] * 3], [], [ColumnMeasure("count")]) == [(3,)]


@pytest.mark.parametrize("tables", [[2**62] * 3, [[2**62], [2**62]]])
def test_a_sum_that_is_too_large_is_an_error(tables: list[Any]) -> None:
    given = [
        [("a", number, None, None, None) for number in (each if isinstance(each, list) else [each])] for each in tables
    ]
    joined = [[row for each in given for row in each]]
    for whole in (given, joined):
        with pytest.raises(Invalid, match="a sum does not fit int64") as caught:
            run(whole, ["g"], [ColumnMeasure("sum", "i")])
        assert caught.value.code == "overflow"
        ((_, wrapped),) = run(whole, ["g"], [ColumnMeasure("sum", "i")], checked=False)
        assert wrapped == (len(joined[0]) * 2**62 + 2**63) % 2**64 - 2**63


def test_a_sum_that_only_might_be_too_large_is_exact() -> None:
    values = [2**63 - 1, -(2**63), 5, 2**62, -(2**62)]
    assert run([[("a", value, None, None, None) for value in values]], ["g"], [ColumnMeasure("sum", "i")]) == [("a", 4)]


def test_a_sum_of_decimals_that_is_too_large_is_an_error() -> None:
    schema = pa.schema([("m0", pa.decimal128(38, 0))])
    found = PartialAggregate([], [ColumnMeasure("sum", "m")], schema, checked=True)
    with pytest.raises(Invalid, match="does not fit decimal128"):
        found.add(pa.table({"m": pa.array([Decimal("9" * 38)] * 2, pa.decimal128(38, 0))}))
