"""Aggregating tables of Arrow piece by piece, with Spark's rules for nulls, NaN and sums. Needs no log.

Each table that is added becomes a table of its groups; those are put together now and then, and in the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import Invalid

Function = Literal["count", "sum", "min", "max"]
GROUPS_MAX = 1_048_576  # rows of groups that are kept before they are put together
_MERGE: dict[Function, Function] = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}


class ColumnMeasure(NamedTuple):
    """What is computed of a column; a count is of rows, and has none."""

    function: Function
    column: str = ""


class PartialAggregate:
    """The aggregates of all tables that were added; `schema` has first the groups and then the measures.

    A sum of integers or decimals that does not fit its type raises Invalid, if that is `checked`; else it wraps.
    """

    def __init__(
        self, by: Sequence[str], measures: Sequence[ColumnMeasure], schema: pa.Schema, *, checked: bool
    ) -> None:
        self._by = list(by)
        self._measures = measures
        self._schema = schema
        self._checked = checked
        self._found: list[pa.Table] = []
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """Take the rows of a table, which has all columns that are named."""
        groups = [table.column(name) for name in self._by]
        columns = [table.column(each.column) if each.column else None for each in self._measures]
        self._keep(self._grouped(groups, [each.function for each in self._measures], columns, table.num_rows))
        if self._rows > GROUPS_MAX:
            self._merge()

    def result(self) -> Iterator[pa.RecordBatch]:
        """Yield the groups of all that was added; none if that is nothing."""
        if len(self._found) > 1:
            self._merge()
        for table in self._found:
            yield from table.combine_chunks().to_batches()

    def _merge(self) -> None:
        whole = pa.concat_tables(self._found)
        names, width = whole.column_names, len(self._by)
        groups = [whole.column(name) for name in names[:width]]
        functions = [_MERGE[each.function] for each in self._measures]
        columns: list[Any] = [whole.column(name) for name in names[width:]]
        self._found, self._rows = [], 0
        self._keep(self._grouped(groups, functions, columns, whole.num_rows))

    def _keep(self, table: pa.Table) -> None:
        self._found.append(table)
        self._rows += table.num_rows

    def _grouped(self, groups: list[Any], functions: list[Function], columns: list[Any], rows: int) -> pa.Table:
        """Return one row for each group, in the schema."""
        names = self._schema.names[: len(groups)]
        given = dict(zip(names, groups, strict=True))
        asked: list[Any] = []
        results: list[Callable[[pa.Table], Any]] = [itemgetter(name) for name in names]
        for number, (function, column) in enumerate(zip(functions, columns, strict=True)):
            need = _need(f"c{number}", function, column, rows if self._checked else 0)
            given |= need.columns
            asked += need.asked
            results.append(need.result)
        if not given:  # a count of rows alone still has to see how many there are
            given["rows"] = pa.nulls(rows)
        found = pa.table(given).unify_dictionaries().group_by(names, use_threads=False).aggregate(asked)
        fields = zip(results, self._schema, strict=True)
        return pa.Table.from_arrays(
            [_fitted(result(found), field.type) for result, field in fields], schema=self._schema
        )


class _Need(NamedTuple):
    """One measure in the terms of Arrow: columns to group, what is asked of them, and what is made of the answer."""

    columns: dict[str, Any]
    asked: list[tuple[Any, Any]]
    result: Callable[[pa.Table], Any]


def _need(name: str, function: Function, column: Any, checked_rows: int) -> _Need:
    """With a number of rows, a sum is such that it cannot wrap: in a wider type, where it might."""
    if column is None:
        return _Need({}, [([], "count_all")], itemgetter("count_all"))
    answer = itemgetter(f"{name}_{function}")
    if function == "sum":
        wide = checked_rows and not _sums_fit(column, checked_rows)
        return _Need({name: column.cast(_wider(column.type)) if wide else column}, [(name, function)], answer)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not pa.types.is_floating(column.type) or not pc.any(pc.is_nan(column)).as_py():
        return _Need({name: column}, [(name, function)], answer)
    nan: Any = pc.is_nan(column)  # which Arrow leaves out, and Spark has above all numbers
    columns = {name: pc.if_else(nan, _scalar(None, column.type), column), f"{name}_nan": nan}
    least = function == "min"

    def result(found: pa.Table) -> Any:
        value: Any = answer(found)
        some: Any = found.column(f"{name}_nan_any")
        is_nan: Any = pc.fill_null(some, False)
        if least:
            is_nan = pc.and_(is_nan, pc.is_null(value))
        return pc.if_else(is_nan, _scalar(math.nan, column.type), value)

    return _Need(columns, [(name, function), (f"{name}_nan", "any")], result)


def _scalar(value: float | None, type: Any) -> Any:
    return pa.scalar(value, type)


def _sums_fit(column: Any, rows: int) -> bool:
    """Return whether no sum of so many of the values can be too large for the type that Arrow sums them in."""
    if pa.types.is_floating(column.type):
        return True
    if pa.types.is_decimal(column.type):
        return bool(10**column.type.precision * rows < 10**38)
    bound = max(abs(each.as_py() or 0) for each in pc.min_max(column).values())
    return bool(bound * rows < 1 << 63)


def _wider(type: Any) -> Any:
    return pa.decimal256(76, type.scale) if pa.types.is_decimal(type) else pa.decimal128(38, 0)


def _fitted(column: Any, type: Any) -> Any:
    if column.type == type:
        return column
    try:
        return column.cast(type)
    except pa.ArrowInvalid:
        hint = "declare the column in the schema as a decimal with more digits, or as double"
        raise Invalid(f"a sum does not fit {type}", hint=hint, code="overflow") from None
