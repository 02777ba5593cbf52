"""A topic as a stream of Spark: `spark.readStream.format("headwater").option("topic", …).load("data")`.

Spark asks how far a stream may go, notes that in its checkpoint, and has that range read, again after a crash. So what
a position names is durable, and the same two positions always mean the same events. The reader lives in one process
beside the driver for as long as the query; tasks only read. It does not rely on notices of a commit or of the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headwater.address import kind_of
from headwater.errors import NotFound
from headwater.info import TopicInfo
from headwater.spark.reading import planning, positions, scan
from headwater.spark.reading.options import SourceOptions
from headwater.spark.reading.positions import Positions, TopicProgress
from headwater.spark.reading.scan import PlannedSplit, RowShape, remade
from headwater.spark.session import open_place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headwater.store import Store

# Spark asks a hundred times a second whether there is more: this is how old an answer may be. Each look at a bucket
# is paid for.
LOOK_S, SERVER_LOOK_S, BUCKET_LOOK_S = 0.05, 0.1, 1.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is durable, as far as it may go in one trigger."""

    def __init__(self, read: SourceOptions, schema: StructType) -> None:
        self._read = read
        self._shape = RowShape(schema, read.mode)
        self._hw: Store | None = None
        self._first: Positions | None = None
        self._last: Positions | None = None
        self._there: dict[str, TopicInfo] = {}
        self._look_after = 0.0

    # What Spark asks beside the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name, as those below
        """Return where a new query begins. Asked again, it is the same."""
        if self._first is None:
            hw = self._open()
            self._look()
            starts = {topic: planning.begin(hw, info, self._read) for topic, info in self._there.items()}
            self._first = {topic: TopicProgress(self._there[topic].uuid, at, at) for topic, at in starts.items()}
        return positions.told(self._first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one of the two bounds; where both are given, `latestOffset` keeps both."""
        if self._read.events_max is not None:
            return ReadMaxRows(self._read.events_max)
        return ReadAllAvailable() if self._read.bytes_max is None else ReadMaxBytes(self._read.bytes_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next trigger may go from there: all that is durable, unless less was asked for."""
        before = positions.understood(start)
        self._look()
        loss = self._read.fail_on_data_loss
        after = self._last = positions.latest(before, self._there, fail_on_data_loss=loss)
        if not isinstance(limit, ReadAllAvailable):
            if self._read.events_max is not None:
                after = positions.within_events(before, after, self._read.events_max)
            if self._read.bytes_max is not None:
                after = positions.within_bytes(self._open(), before, after, self._there, self._read.bytes_max)
        return positions.told(after)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Go no further than what is durable now, however long the query takes."""
        self._look()
        self._look_after = float("inf")

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return all that was durable at the last look, for Spark's own reports."""
        return None if self._last is None else positions.told(self._last)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks for exactly this range. Raises NotFound if retention has deleted a part, unless allowed."""
        before, after = positions.understood(start), positions.understood(end)
        starts = positions.begun(before, after)
        found = [piece for topic, reached in after.items() for piece in self._pieces(topic, starts[topic], reached)]
        return scan.read_tasks(found)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the last commit may never come."""

    def stop(self) -> None:
        """Let go of the log."""
        if self._hw is not None:
            self._hw.close()
            self._hw = None

    # What a task asks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one part."""
        return scan.read_task(self._read, self._read.wanted, self._shape, partition)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_hw": None}

    def _open(self) -> Store:
        if self._hw is None:
            self._hw = open_place(self._read.address)
        return self._hw

    def _look(self) -> None:
        """See what there is, unless that was seen a moment ago."""
        if time.monotonic() < self._look_after:
            return
        hw = self._open()
        topics = self._read.chosen(hw.topics() if self._read.has_pattern else ())
        there: dict[str, TopicInfo] = {}
        for topic in topics:
            try:
                there[topic] = planning.look(hw, topic)
            except NotFound:  # deleted since, or never made: only the latter is wrong whatever losses are allowed
                if self._first is None and topic in self._read.topics:
                    raise
        self._there = there
        self._look_after = time.monotonic() + _look_s(self._read.address)

    def _pieces(self, topic: str, starts: list[int], reached: TopicProgress) -> list[PlannedSplit]:
        hw, read = self._open(), self._read
        try:
            found = planning.pieces(hw, topic, reached.uuid, starts, reached.end, read.split_bytes)
        except NotFound as error:
            if error.code == "offset_gone":
                return self._pieces(topic, planning.held(hw.describe(topic), starts, read), reached)
            if read.fail_on_data_loss:
                raise
            return []
        covered = {piece.split.partition: piece.split.end for piece in found}
        for number, (start, end) in enumerate(zip(starts, reached.end, strict=True)):
            if covered.get(number, start) < end:
                self._lost(topic, reached.uuid, number, end)
        return found

    def _lost(self, topic: str, uuid: str, number: int, end: int) -> None:
        """Return the error for a missing position: an older state of the log was restored, or it is another topic."""
        if self._open().describe(topic).uuid != uuid:
            raise remade(topic)
        if self._read.fail_on_data_loss:
            raise NotFound(
                f"topic {topic!r}, partition {number} ends before offset {end}, which the stream has reached",
                hint="if an older copy of the log was restored, start again with a new checkpoint",
                code="offset_gone",
            )


def _look_s(address: str) -> float:
    return {"directory": LOOK_S, "server": SERVER_LOOK_S, "bucket": BUCKET_LOOK_S}[kind_of(address)]
