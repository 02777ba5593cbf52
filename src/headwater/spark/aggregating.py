"""Counts, sums, least and greatest values of a topic, by any of its columns: `headwater.spark.aggregate`.

Each task aggregates its part of the log in Arrow, and only that crosses to the JVM, where Spark puts the parts
together. What comes out is what Spark's own `groupBy` gives over the same topic: null is a group, and ignored in what
is aggregated; a sum that is too large is an error unless ANSI mode is off; NaN is the greatest number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.errors import Invalid
from headwater.format import events
from headwater.requests import FilterOptions
from headwater.spark.reading import options, planning, scan
from headwater.spark.reading.scan import RowShape
from headwater.spark.session import ROWS_MAX, open_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.format.events import EventBatch
    from headwater.spark.reading.fields import Mode
    from headwater.spark.reading.options import SourceOptions
    from headwater.spark.reading.scan import PlannedSplit


Names = str | Sequence[str]
At = str | int | datetime | Mapping[Any, Any]

LOG_COLUMNS = t.StructType(
    [
        t.StructField("topic", t.StringType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("time", t.TimestampType()),
        t.StructField("id", t.StringType()),
        t.StructField("type", t.StringType()),
        t.StructField("key", t.BinaryType()),
        t.StructField("data", t.BinaryType()),
        t.StructField("meta", t.StringType()),
        t.StructField("content", t.StringType()),
        t.StructField("ticks", t.LongType()),
        t.StructField("data_bytes", t.LongType()),
    ]
)
"""All columns that the log itself has, in the types that Spark has them in."""

GATHERED_ROWS = 8 * ROWS_MAX  # that are aggregated at once: with many groups, fewer rows cross
TASKS_PER_CORE = 2  # starting one costs as much as aggregating half a million events
TASK_BYTES_MAX = 1024 * 1024 * 1024  # of the log: so much is read again when a task fails
_CHEAPEST = "partition"  # of the log's columns, to see how many rows there are
_ORDERED = (t.NumericType, t.StringType, t.BinaryType, t.BooleanType, t.DateType, t.TimestampType, t.TimestampNTZType)
Function = Literal["count", "sum", "min", "max"]
GROUPS_MAX = 1_048_576  # rows of groups that are kept before they are put together
_MERGE: dict[Function, Function] = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}


def aggregate(
    spark: SparkSession,
    address: str,
    topic: str,
    *,
    by: Names = (),
    count: bool = True,
    sum: Names = (),
    min: Names = (),
    max: Names = (),
    schema: str | t.StructType = "",
    start: At = "earliest",
    end: At = "latest",
    mode: str = "permissive",
    **filters: Unpack[FilterOptions],
) -> DataFrame:
    """Return one row for each group, or one for all: `count`, `sum(x)`, `min(x)` and `max(x)` as Spark would name them.

    Columns are the log's, `data_bytes` among them, and fields of JSON or BSON data that `schema` names with their
    types. `start`, `end`, `type`, `key`, `match` and `mode` are the options of a read; what is there now is read,
    however often the frame is used. Raises Invalid for columns that are not there or have no sum or order, and what a
    read of the topic raises.
    """
    key, match = filters.get("key"), filters.get("match")
    given: dict[str, str | None] = {
        "path": address,
        "topic": topic,
        "start": _text(start),
        "end": _text(end),
        "mode": mode,
    }
    given |= {"key": key.decode() if isinstance(key, bytes) else key, "match": None if match is None else _text(match)}
    given |= {"type": filters.get("type")}
    read = options.parse({name: text for name, text in given.items() if text is not None})
    known = _known(schema)
    groups = [_column(known, name) for name in _names(by)]
    measures = [_MeasureColumn("count", None, "count", t.LongType())] if count else []
    asked: dict[Function, Names] = {"sum": sum, "min": min, "max": max}
    measures += [_measured(known, function, name) for function, names in asked.items() for name in _names(names)]
    if not measures:
        raise Invalid("no aggregate is given", hint="give count=True, or columns for sum, min or max")
    with open_place(read.address) as hw:
        pieces = planning.plan(hw, read)
    tasks = _tasks(pieces, TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    checked = spark.conf.get("spark.sql.ansi.enabled") == "true"
    return _merged(_parts(spark, _Work(read, tasks, groups, measures, checked)), groups, measures)


def _names(given: Names) -> list[str]:
    return [given] if isinstance(given, str) else list(dict.fromkeys(given))


def _text(at: Any) -> str:
    if isinstance(at, datetime):
        return at.isoformat()
    return at if isinstance(at, str) else msgspec.json.encode(at).decode()


def _known(schema: str | t.StructType) -> dict[str, t.StructField]:
    """Return all columns that there are, by their names."""
    fields: Any = schema
    if isinstance(schema, str):
        fields = t.StructType.fromDDL(schema) if schema.strip() else ()
    return {field.name: field for field in (*LOG_COLUMNS, *fields)}


def _column(known: Mapping[str, t.StructField], name: str) -> t.StructField:
    if name not in known:
        raise Invalid(f"unknown column {name!r}", hint="declare fields of the data in schema, with their types")
    return known[name]


class _MeasureColumn(NamedTuple):
    """What is asked of a column, what comes of it in a part, and in the end."""

    function: Function
    field: t.StructField | None
    name: str
    type: t.DataType


def _measured(known: Mapping[str, t.StructField], function: Function, name: str) -> _MeasureColumn:
    field = _column(known, name)
    kind = field.dataType
    if function != "sum":
        if not isinstance(kind, _ORDERED):
            raise Invalid(f"{name} is {kind.simpleString()}, which cannot be ordered")
    elif isinstance(kind, t.DecimalType):
        kind = t.DecimalType(min(38, kind.precision + 10), kind.scale)
    elif isinstance(kind, t.NumericType):
        kind = t.DoubleType() if isinstance(kind, t.FractionalType) else t.LongType()
    else:
        raise Invalid(f"{name} is {kind.simpleString()}, which cannot be summed", hint="use a numeric column")
    return _MeasureColumn(function, field, f"{function}({name})", kind)


class _Work(NamedTuple):
    """What all tasks do, and the pieces of each."""

    read: SourceOptions
    tasks: Sequence[Sequence[PlannedSplit]]
    groups: Sequence[t.StructField]
    measures: Sequence[_MeasureColumn]
    checked: bool  # whether a sum that is too large is an error

    @property
    def schema(self) -> t.StructType:
        """Return the schema of a part: the groups and the measures, numbered, because a name may be anything."""
        fields = [t.StructField(f"g{number}", group.dataType) for number, group in enumerate(self.groups)]
        return t.StructType(fields + [t.StructField(f"m{n}", each.type) for n, each in enumerate(self.measures)])


def _tasks(pieces: Sequence[PlannedSplit], wanted: int) -> list[list[PlannedSplit]]:
    """Return the pieces in about so many tasks, in order, or in more where those would be huge."""
    whole = sum(piece.split.bytes for piece in pieces)
    share = min(TASK_BYTES_MAX, whole // wanted + 1)
    found: list[list[PlannedSplit]] = []
    size = share
    for piece in pieces:
        if size >= share:
            found.append([])
            size = 0
        found[-1].append(piece)
        size += piece.split.bytes
    return found


def _parts(spark: SparkSession, work: _Work) -> DataFrame:
    """Yield the aggregates that each task makes."""
    count = len(work.tasks)
    if not count:
        return spark.createDataFrame([], work.schema)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in map(int, batch.column(0).to_numpy()):
                yield from _aggregated(work, work.tasks[number])

    return spark.range(0, count, 1, count).mapInArrow(run, work.schema)


def _merged(parts: DataFrame, groups: Sequence[t.StructField], measures: Sequence[_MeasureColumn]) -> DataFrame:
    merge = {"count": f.sum, "sum": f.sum, "min": f.min, "max": f.max}
    by = [f.col(f"g{number}") for number in range(len(groups))]
    found = [merge[each.function](f"m{number}").cast(each.type) for number, each in enumerate(measures)]
    whole = [
        f.coalesce(column, f.lit(0)) if each.function == "count" else column
        for column, each in zip(found, measures, strict=True)
    ]
    named = [column.alias(f"m{number}") for number, column in enumerate(whole)]
    frame = parts.groupBy(*by).agg(*named)
    return frame.toDF(*[group.name for group in groups], *[each.name for each in measures])


def _aggregated(work: _Work, pieces: Sequence[PlannedSplit]) -> Iterator[pa.RecordBatch]:
    """Yield the groups of some pieces."""
    arrow = to_arrow_schema(work.schema, timezone="UTC")
    columns = {field.name: field for field in (*work.groups, *(each.field for each in work.measures if each.field))}
    read = _Columns(list(columns.values()), work.read.mode)
    measures = [ColumnMeasure(each.function, each.field.name if each.field else "") for each in work.measures]
    partial = PartialAggregate([group.name for group in work.groups], measures, arrow, checked=work.checked)
    waiting: list[pa.Table] = []
    rows = 0
    with open_place(work.read.address) as hw:
        loss, data = work.read.fail_on_data_loss, read.has_data
        for gathered in scan.pieces(hw, pieces, work.read.wanted, fail_on_data_loss=loss, data=data):
            waiting.append(read.table(gathered))
            rows += waiting[-1].num_rows
            if rows >= GATHERED_ROWS:
                partial.add(pa.concat_tables(waiting))
                waiting, rows = [], 0
        if waiting:
            partial.add(pa.concat_tables(waiting))
        yield from partial.result()  # keys may lie in files of the log, which are open until here


class _Columns:
    """Reads the columns that are needed: types with their dictionary, as the log has them, the others as Spark does."""

    def __init__(self, fields: Sequence[t.StructField], mode: Mode) -> None:
        others = [field for field in fields if field.name != "type"]
        self._own = ["type"] if len(others) < len(fields) else [_CHEAPEST]
        self._shape = RowShape(t.StructType(others), mode) if others else None
        self.has_data = self._shape is not None and self._shape.has_data

    def table(self, gathered: list[EventBatch]) -> pa.Table:
        found = events.table(gathered, self._own)
        if self._shape is None:
            return found
        others = pa.Table.from_batches(self._shape.batches(gathered))
        return others if self._own == [_CHEAPEST] else others.append_column("type", found.column("type"))


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
