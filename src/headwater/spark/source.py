"""The data source that Spark calls `headwater`: `spark.read.format("headwater").option("topic", …).load("data")`.

What Spark calls, and in which process, decides the shape of it: options are parsed and splits planned in a process
beside the driver; a reader is then pickled and reads one part of the plan in each task, wherever that runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headwater.spark import options, planning, scan, sink
from headwater.spark.options import ReadOptions
from headwater.spark.places import open_place
from headwater.spark.scan import Piece
from headwater.spark.shaping import SCHEMA, Shape

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class HeadwaterSource(DataSource):
    """One topic, several, or those that a pattern names."""

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> Reader:
        return Reader(options.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> sink.Writer:
        return sink.Writer(sink.settings(self.options, schema, overwrite=overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> sink.StreamWriter:  # noqa: N802  # Spark's name
        return sink.StreamWriter(sink.settings(self.options, schema, overwrite=overwrite, streaming=True))


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = pieces


class Reader(DataSourceReader):
    """Reads what was there when it was planned."""

    def __init__(self, read: ReadOptions, schema: StructType) -> None:
        self._read = read
        self._shape = Shape(schema, read.mode)

    def partitions(self) -> list[InputPartition]:
        with open_place(self._read.address) as hw:
            return [Part(pieces) for pieces in planning.plan(hw, self._read)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read(self._read, self._shape, partition)


def read(read: ReadOptions, shape: Shape, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """The rows of one part; none if there is nothing to read at all, for which Spark makes a part of its own."""
    if not isinstance(partition, Part):
        return
    with open_place(read.address) as hw:
        for gathered in scan.pieces(hw, partition.pieces, read.wanted, fail_on_data_loss=read.fail_on_data_loss):
            yield from shape.batches(gathered)
