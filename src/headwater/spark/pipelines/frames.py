"""The input of a pipeline: a DataFrame for each of its topics, from its start to a fixed end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headwater.errors import Invalid
from headwater.spark.pipelines.runs import Ends, Status, between
from headwater.spark.reading import options, planning, positions
from headwater.spark.reading.positions import Positions
from headwater.views.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.store import Store

COLUMNS = "partition int, offset bigint, time timestamp, type string, key binary"  # beside the fields of a schema


def bounds(hw: Store, address: str, pipeline: Pipeline) -> tuple[Ends, Ends]:
    """Return where a batch begins and ends in each partition of each topic, if it is run now. Raises NotFound."""
    starts: Ends = {}
    ends: Ends = {}
    for topic in pipeline.topics:
        read = options.parse({**pipeline.options, "path": address, "topic": topic, "start": str(pipeline.start)})
        for name in read.chosen(hw.topics() if read.has_pattern else ()):
            info = planning.look(hw, name)
            starts[name] = dict(enumerate(planning.begin(hw, info, read)))
            ends[name] = {each.partition: each.durable for each in info.partitions}
    return starts, ends


def frames(spark: SparkSession, address: str, pipeline: Pipeline, ends: Ends | None) -> list[DataFrame]:
    """Return a frame for each topic: up to these ends, or without them, as a stream."""
    return [_frame(spark, address, pipeline, topic, ends) for topic in pipeline.topics]


def lag(hw: Store, status: Status) -> int:
    """Return how many events are there that a pipeline has not passed; none of a topic that is not there."""
    left = 0
    for topic in status.topics:
        read = options.parse({"path": "-", "topic": topic})
        for name in set(hw.topics()).intersection(read.chosen(hw.topics())):
            reached = status.reached.get(name, {})
            for each in hw.describe(name).partitions:
                left += max(0, each.end - max(each.start, reached.get(each.partition, 0)))
    return left


def passed(progress: Any) -> tuple[int, Ends]:
    """Return how many events a batch of a stream has passed, and where it ends, from what Spark tells of it."""
    events, reached = 0, Ends()
    for source in progress["sources"]:
        before, after = _positions(source["startOffset"]), _positions(source["endOffset"])
        starts = positions.begun(before, after)
        ends = {topic: dict(enumerate(each.end)) for topic, each in after.items()}
        events += between({topic: dict(enumerate(at)) for topic, at in starts.items()}, ends)
        reached |= ends
    return events, reached


def _positions(told: Any) -> Positions:
    """Return a position as Spark tells it: as text, or nothing before the first batch of all."""
    found = json.loads(told) if isinstance(told, str) else told
    return positions.understood(found or {})


def _frame(spark: SparkSession, address: str, pipeline: Pipeline, topic: str, ends: Ends | None) -> DataFrame:
    reader: Any = spark.readStream if ends is None else spark.read
    chosen = {**pipeline.options, "topic": topic, "start": str(pipeline.start)}
    if ends:
        read = options.parse({"path": address, "topic": topic})
        ours = {name: ends[name] for name in read.chosen(ends) if name in ends}
        if ours:
            chosen["end"] = json.dumps(ours)
    if topic in pipeline.schema:
        reader = reader.schema(_schema(pipeline.schema[topic]))
    frame: DataFrame = reader.format("headwater").options(**chosen).load(address)
    return frame


def _schema(fields: str) -> StructType:
    """Return the fields that are wanted, and before them the columns of the log that a pipeline always has."""
    from pyspark.sql.types import StructType

    usual, wanted = StructType.fromDDL(COLUMNS), StructType.fromDDL(fields)
    assert isinstance(usual, StructType)
    if not isinstance(wanted, StructType):
        raise Invalid(f"schema {fields!r} names no columns", hint='as in "product string, cents bigint"')
    return StructType([*(each for each in usual if each.name not in wanted.names), *wanted])
