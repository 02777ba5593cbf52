"""Topics and binders as tables of SQL: which columns they have, and how documents are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.errors import Unsupported
from headwater.format import events
from headwater.spark.places import open_place
from headwater.spark.querying import inferring
from headwater.spark.querying.aggregating import LOG_COLUMNS
from headwater.spark.reading import fields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.document import Document
    from headwater.spark.reading.fields import Mode
    from headwater.store import Store

ID = "_id"
SAMPLE = 1000  # events or documents that tell of which types their fields are
DOCUMENTS_MAX = 8192  # in one Arrow batch


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
    return inferring.schema_of(found, [field.name for field in LOG_COLUMNS])


def _decoded(hw: Store, topic: str, partition: int, start: int, end: int) -> Iterator[Any]:
    for batch in hw.read_batches(topic, partition=partition, start=start, end=end):
        data: Any = events.table([batch], ["data"]).column("data").combine_chunks()
        yield from fields.documents(batch.piece.batch.content, data)


def binder_fields(hw: Store, binder: str) -> t.StructType:
    """Return the fields of the first documents."""
    with _found(hw, binder, SAMPLE) as found:
        return inferring.schema_of((document.data for document in found), [ID])


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
