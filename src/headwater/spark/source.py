"""The data source that Spark calls `headwater`: `spark.read.format("headwater").option("topic", …).load("data")`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.info import Split
from headwater.spark import scan, sink
from headwater.spark.places import absolute, open_place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SCHEMA = (
    "topic string, partition int, offset bigint, time timestamp, id string, type string, key binary, data binary,"
    " meta string"
)


class HeadwaterSource(DataSource):
    """One topic, several, or those that a pattern names."""

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> Reader:
        return Reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> sink.Writer:
        return sink.Writer(sink.settings(self.options, schema, overwrite=overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> sink.StreamWriter:  # noqa: N802  # Spark's name
        return sink.StreamWriter(sink.settings(self.options, schema, overwrite=overwrite, streaming=True))


class _Part(InputPartition):
    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


class Reader(DataSourceReader):
    """Reads what was there when it was made."""

    def __init__(self, options: Any, schema: StructType) -> None:
        self._address = absolute(options["path"])
        self._topic = options["topic"]
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        with open_place(self._address) as hw:
            return [_Part(split) for split in scan.plan(hw, self._topic)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Part):
            return
        with open_place(self._address) as hw:
            for table in scan.tables(hw, partition.split, self._schema.names):
                yield from table.cast(self._schema).combine_chunks().to_batches()
