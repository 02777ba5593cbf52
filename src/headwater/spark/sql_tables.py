"""Topics and binders as tables of SQL: which columns they have, and how documents are read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from datetime import datetime
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.errors import Unsupported
from headwater.format import events
from headwater.spark.aggregating import LOG_COLUMNS
from headwater.spark.reading import fields
from headwater.spark.session import open_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.document import Document
    from headwater.spark.reading.fields import Mode
    from headwater.store import Store


ID = "_id"
SAMPLE = 1000  # events or documents that tell of which types their fields are
DOCUMENTS_MAX = 8192  # in one Arrow batch
DEPTH_MAX = 8
FIELDS_MAX = 200  # of an object: one with more is a map of something, and stays text
_TEXT = t.StringType()
_UNKNOWN = t.NullType()


def binders(hw: Store) -> list[str]:
    """Return the binders that there are; none where there cannot be any."""
    try:
        return hw.binders()
    except Unsupported:
        return []


def topic_fields(hw: Store, topic: str) -> t.StructType:
    """Return the fields of a sample: half of it the oldest events of all partitions, half of it the newest."""
    partitions = hw.describe(topic).partitions
    share = max(1, SAMPLE // 2 // len(partitions))
    found: list[Any] = []
    for each in partitions:
        middle = max(each.start, each.end - share)
        for start, end in ((each.start, min(each.start + share, middle)), (middle, each.end)):
            if start < end:
                found += _decoded(hw, topic, each.partition, start, end)
    return schema_of(found, [field.name for field in LOG_COLUMNS])


def _decoded(hw: Store, topic: str, partition: int, start: int, end: int) -> Iterator[Any]:
    for batch in hw.read_batches(topic, partition=partition, start=start, end=end):
        data: Any = events.table([batch], ["data"]).column("data").combine_chunks()
        yield from fields.documents(batch.piece.batch.content, data)


def binder_fields(hw: Store, binder: str) -> t.StructType:
    """Return the fields of the first documents."""
    with _found(hw, binder, SAMPLE) as found:
        return schema_of((document.data for document in found), [ID])


def _found(hw: Store, binder: str, limit: int | None = None) -> AbstractContextManager[Iterator[Document]]:
    found: Any = hw.binder(binder).find(limit=limit)
    return closing(found)


def documents(spark: SparkSession, address: str, binder: str, schema: t.StructType, mode: Mode) -> DataFrame:
    """Yield the documents of a binder, all of one moment, read by one task: `_id` and the fields of the schema."""
    whole = t.StructType([t.StructField(ID, t.StringType()), *schema])

    def run(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = fields.reader(schema, mode)
        arrow = to_arrow_schema(whole, timezone="UTC")
        with open_place(address) as hw, _found(hw, binder) as found:
            while some := list(islice(found, DOCUMENTS_MAX)):
                ids = [document.id for document in some]
                columns = reader.of_documents([document.data for document in some], ids.__getitem__)
                yield pa.RecordBatch.from_arrays([pa.array(ids, pa.string()), *columns], schema=arrow)

    return spark.range(0, 1, 1, 1).mapInArrow(run, whole)


def schema_of(documents: Iterable[Any], taken: Collection[str] = ()) -> t.StructType:
    """Return the fields of all objects among the documents, in the order in which they come.

    Spark does not distinguish cases: a field whose name is taken, or another's, is called `data.` and its name. One
    whose name has a dot cannot be named, and is left out.
    """
    fields: dict[str, t.DataType] = {}
    for document in documents:
        if isinstance(document, Mapping):
            for name, value in document.items():
                fields[name] = _merged(fields.get(name, _UNKNOWN), _type(value, 1))
    names = {name.lower() for name in taken}
    found = []
    for name, type in fields.items():
        called = f"data.{name}" if name.lower() in names else name
        if name and "." not in name and called.lower() not in names:
            names.add(called.lower())
            found.append(t.StructField(called, _whole(type)))
    return t.StructType(found)


def _type(value: Any, depth: int) -> t.DataType:
    """Return the type of a value; that of null fits any other."""
    if value is None:
        return _UNKNOWN
    if isinstance(value, Mapping):
        return _object(value, depth)
    if isinstance(value, list):
        element: t.DataType = _UNKNOWN
        for each in value:
            element = _merged(element, _type(each, depth + 1))
        return t.ArrayType(element) if depth < DEPTH_MAX else _TEXT
    return _simple(value)


def _simple(value: Any) -> t.DataType:
    if isinstance(value, bool):
        return t.BooleanType()
    if isinstance(value, int):
        return t.LongType() if -(1 << 63) <= value < 1 << 63 else t.DoubleType()
    return t.DoubleType() if isinstance(value, float | Decimal) else _of_bson(value)


def _of_bson(value: Any) -> t.DataType:
    """Return the type of what only BSON has, and of text."""
    if isinstance(value, datetime) or value.__class__.__name__ == "DatetimeMS":
        return t.TimestampType()
    if isinstance(value, bytes):
        return t.BinaryType()
    return t.DecimalType(38, 9) if hasattr(value, "to_decimal") else _TEXT


def _object(value: Mapping[str, Any], depth: int) -> t.DataType:
    if depth >= DEPTH_MAX:
        return _TEXT
    return _struct({name: _type(each, depth + 1) for name, each in value.items()})


def _struct(fields: Mapping[str, t.DataType]) -> t.DataType:
    if len({name.lower() for name in fields}) < len(fields) or len(fields) > FIELDS_MAX:
        return _TEXT
    return t.StructType([t.StructField(name, type) for name, type in fields.items()])


def _merged(one: t.DataType, other: t.DataType) -> t.DataType:
    """Return the type that holds the values of both."""
    if isinstance(one, t.NullType) or one == other:
        return other
    if isinstance(other, t.NullType):
        return one
    if isinstance(one, t.NumericType) and isinstance(other, t.NumericType):
        return t.DoubleType()
    if isinstance(one, t.ArrayType) and isinstance(other, t.ArrayType):
        return t.ArrayType(_merged(one.elementType, other.elementType))
    if isinstance(one, t.StructType) and isinstance(other, t.StructType):
        fields: dict[str, t.DataType] = {}
        for field in (*one, *other):
            fields[field.name] = _merged(fields.get(field.name, _UNKNOWN), field.dataType)
        return _struct(fields)
    return _TEXT


def _whole(type: t.DataType) -> t.DataType:
    """Return the type with text for all of which nothing is known: what was always null, and empty objects."""
    if isinstance(type, t.ArrayType):
        return t.ArrayType(_whole(type.elementType))
    if isinstance(type, t.StructType) and type.fields:
        return t.StructType([t.StructField(field.name, _whole(field.dataType)) for field in type])
    return _TEXT if isinstance(type, t.NullType | t.StructType) else type
