"""The input of one task of a batch or a stream, as Spark sends it from the plan to the worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from headwater.spark.places import open_place
from headwater.spark.reading import scan

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.spark.reading.options import SourceOptions
    from headwater.spark.reading.scan import EventFilter, PlannedSplit
    from headwater.spark.reading.shaping import RowShape

TASK_BYTES_MIN = 4 * 1024 * 1024  # smaller splits are read by one task together: starting one costs more than they do


class ReadTask(InputPartition):
    """The splits that one task reads."""

    def __init__(self, pieces: Sequence[PlannedSplit]) -> None:
        super().__init__(None)
        self.pieces = pieces


def parts(pieces: Iterable[PlannedSplit]) -> list[InputPartition]:
    """Return a part for each split, or for several small ones that follow each other."""
    gathered: list[list[PlannedSplit]] = []
    size = 0
    for piece in pieces:
        if not gathered or size + piece.split.bytes > TASK_BYTES_MIN:
            gathered.append([])
            size = 0
        gathered[-1].append(piece)
        size += piece.split.bytes
    return [ReadTask(each) for each in gathered]


def read(
    read: SourceOptions, wanted: EventFilter, shape: RowShape, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """The wanted rows of a part; none if there is nothing to read at all, for which Spark makes a part of its own."""
    if not isinstance(partition, ReadTask):
        return
    with open_place(read.address) as hw:
        loss, data = read.fail_on_data_loss, shape.has_data
        for gathered in scan.pieces(hw, partition.pieces, wanted, fail_on_data_loss=loss, data=data):
            yield from shape.batches(gathered)
