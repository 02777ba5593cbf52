"""The splits that a task of a batch or a stream reads, and how it reads them.

A split is a range of offsets of one partition, whose ends are pinned when the job is planned. Batches are put together
to `ROWS_MAX` rows, because crossing to the JVM costs as much for a small one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from pyspark.sql.datasource import InputPartition

from headwater.errors import Conflict, NotFound
from headwater.format.events import with_data
from headwater.format.names import log_uuid, node_of
from headwater.info import Split
from headwater.limits import COLUMN_DATA_BYTES_MAX
from headwater.spark.session import ROWS_MAX, open_place

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.format.events import EventBatch
    from headwater.spark.reading.options import SourceOptions
    from headwater.spark.reading.shaping import RowShape
    from headwater.store import Store


BATCH_BYTES_MAX = 16 * 1024 * 1024  # of one Arrow batch: a few huge events are not kept together
TASK_BYTES_MIN = 4 * 1024 * 1024  # smaller splits are read by one task together: starting one costs more than they do


class EventFilter(msgspec.Struct, frozen=True):
    """A filter of the events of a split; everything by default."""

    type: str | None = None
    key: bytes | None = None
    match: Mapping[str, Any] | None = None


EVERYTHING = EventFilter()


class PlannedSplit(msgspec.Struct, frozen=True):
    """A split, and the node that the ids of its events share: that of another topic with the same name differs."""

    split: Split
    node: int


def nodes(uuid: str, partitions: int) -> list[int]:
    """Return the node of each partition of a topic."""
    return [node_of(log_uuid(UUID(uuid), number)) for number in range(partitions)]


def pieces(
    hw: Store,
    pieces: Iterable[PlannedSplit],
    wanted: EventFilter = EVERYTHING,
    *,
    fail_on_data_loss: bool = True,
    data: bool = True,
) -> Iterator[list[EventBatch]]:
    """Yield the wanted batches of several splits in order, gathered; those of huge events with their `data`.

    Raises NotFound with the code `offset_gone` where retention has come in between, unless losses are allowed, and
    Conflict with the code `topic_remade` if a topic was deleted and made again.
    """
    bytes_max = COLUMN_DATA_BYTES_MAX if data else -1
    return _gathered(batch for piece in pieces for batch in _checked(hw, piece, wanted, fail_on_data_loss, bytes_max))


def remade(topic: str) -> Conflict:
    """Return the error for a topic that is another one than before."""
    return Conflict(
        f"topic {topic!r} was deleted and recreated: its events are different",
        hint="start again; a stream needs a new checkpoint",
        code="topic_remade",
    )


def _checked(
    hw: Store, piece: PlannedSplit, wanted: EventFilter, fail_on_data_loss: bool, bytes_max: int
) -> Iterator[EventBatch]:
    """Yield the wanted batches of a split that was planned before, perhaps long ago and by another process.

    Huge events have their data, if that is not above `bytes_max`.
    """
    split, seen = piece.split, False
    while split.start < split.end:
        try:
            for batch in _stored(hw, split, wanted):
                if batch.log.node != piece.node:
                    raise remade(split.topic)
                seen = True
                whole = with_data(batch, bytes_max)
                split = msgspec.structs.replace(split, start=batch.end_offset)
                yield whole
            break
        except NotFound as error:
            oldest = error.facts.get("oldest", 0)
            if fail_on_data_loss or error.code != "offset_gone" or oldest <= split.start:
                raise
            split = msgspec.structs.replace(split, start=oldest)
    if not seen and nodes(hw.describe(split.topic).uuid, split.partition + 1)[-1] != piece.node:
        raise remade(split.topic)  # no event has told of which topic it is


def _stored(hw: Store, split: Split, wanted: EventFilter) -> Iterator[EventBatch]:
    return hw.read_batches(
        split.topic,
        partition=split.partition,
        start=split.start,
        end=split.end,
        type=wanted.type,
        key=wanted.key,
        match=wanted.match,
    )


def _gathered(batches: Iterable[EventBatch]) -> Iterator[list[EventBatch]]:
    """Yield batches together, up to the size of one Arrow batch."""
    gathered: list[EventBatch] = []
    rows = size = 0
    for batch in batches:
        if gathered and (rows + len(batch) > ROWS_MAX or size + batch.size > BATCH_BYTES_MAX):
            yield gathered
            gathered, rows, size = [], 0, 0
        gathered.append(batch)
        rows += len(batch)
        size += batch.size
    if gathered:
        yield gathered


class ReadTask(InputPartition):
    """The splits that one task reads."""

    def __init__(self, pieces: Sequence[PlannedSplit]) -> None:
        super().__init__(None)
        self.pieces = pieces


def read_tasks(pieces: Iterable[PlannedSplit]) -> list[InputPartition]:
    """Return a task for each split, or for several small ones that follow each other."""
    gathered: list[list[PlannedSplit]] = []
    size = 0
    for piece in pieces:
        if not gathered or size + piece.split.bytes > TASK_BYTES_MIN:
            gathered.append([])
            size = 0
        gathered[-1].append(piece)
        size += piece.split.bytes
    return [ReadTask(each) for each in gathered]


def read_task(
    read: SourceOptions, wanted: EventFilter, shape: RowShape, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of a task; none for the empty task that Spark makes if there is nothing to read."""
    if not isinstance(partition, ReadTask):
        return
    with open_place(read.address) as hw:
        loss, data = read.fail_on_data_loss, shape.has_data
        for gathered in pieces(hw, partition.pieces, wanted, fail_on_data_loss=loss, data=data):
            yield from shape.batches(gathered)
