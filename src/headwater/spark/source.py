"""The data source that Spark calls `headwater`: `spark.read.format("headwater").option("topic", …).load("data")`.

What Spark calls, and in which process, decides the shape of it: options are parsed and splits planned in a process
beside the driver; a reader is then pickled and reads one part of the plan in each task, wherever that runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from headwater.spark.reading import options, planning, scan
from headwater.spark.reading.filters import Filters
from headwater.spark.reading.options import SourceOptions
from headwater.spark.reading.scan import SCHEMA, RowShape
from headwater.spark.reading.stream import StreamReader
from headwater.spark.session import open_place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headwater.spark.writing import sink

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


class HeadwaterSource(DataSource):
    """One topic, several, or those that a pattern names."""

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        kind = FilteringReader if _pushes_filters() else BatchReader
        return kind(options.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  # Spark's name
        return StreamReader(options.parse(self.options, options.STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> sink.BatchWriter:
        from headwater.spark.writing import sink  # a process that reads does without it

        return sink.BatchWriter(sink.settings(self.options, schema, overwrite=overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> sink.StreamWriter:  # noqa: N802  # Spark's name
        from headwater.spark.writing import sink

        return sink.StreamWriter(sink.settings(self.options, schema, overwrite=overwrite, streaming=True))


class BatchReader(DataSourceReader):
    """Reads the events that were present when it was planned."""

    def __init__(self, read: SourceOptions, schema: StructType) -> None:
        self._read = read
        self._shape = RowShape(schema, read.mode)
        self._filters = Filters(schema, read.wanted)

    def partitions(self) -> list[InputPartition]:
        with open_place(self._read.address) as hw:
            return scan.read_tasks(planning.plan(hw, self._read, self._filters.narrowing))

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return scan.read_task(self._read, self._filters.wanted, self._shape, partition)


class FilteringReader(BatchReader):
    """Reads the events that pass its filters."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802  # Spark's name
        """Take over what can be; returns the rest."""
        return self._filters.take(filters)


def _pushes_filters() -> bool:
    """Return whether this is the process that Spark pushes filters down in, for which it must be set to do so.

    Everywhere else, a reader that could take filters is refused, as a reminder of that setting: even if there are none.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHING in sys.modules or (main is not None and main.name == _PUSHING)
