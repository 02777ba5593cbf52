"""Reading a topic on Spark: whole, two columns of it, with the aggregate pushed into Arrow, and as the one table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import headwater
import headwater.spark
from bench.rounds import interleave, rate
from bench.spark.data import TOPIC, Events, append
from bench.table import Figure, Row, ratio_of

PARQUET = "Spark's own Parquet, zstd"
WIDE = "partition int, offset bigint, time timestamp, type string, key binary, data binary"
NARROW = "offset bigint, type string"
TAIL = 20  # a part of so many is not archived


def scans(spark: SparkSession, events: Events, rounds: int) -> list[Row]:
    samples = interleave(
        rounds,
        {
            "parquet": _rated(events, lambda: _wide(_parquet(spark, events))),
            "source": _rated(events, lambda: _wide(_source(spark, events, WIDE))),
            "narrow parquet": _rated(events, lambda: _narrow(_parquet(spark, events))),
            "narrow source": _rated(events, lambda: _narrow(_source(spark, events, NARROW))),
            "sums parquet": _rated(events, lambda: _sums(_parquet(spark, events))),
            "pushed": _rated(events, lambda: _pushed(spark, events, "type")),
            "keys parquet": _rated(events, lambda: _sums(_parquet(spark, events), "key")),
            "pushed keys": _rated(events, lambda: _pushed(spark, events, "key")),
        },
    )

    def row(name: str, ours: str, theirs: str, bound: float | None) -> Row:
        figures = Figure(samples.median(ours), "/s"), Figure(samples.median(theirs), "/s")
        target = None if bound is None else ratio_of(bound)
        return Row(name, figures[0], PARQUET, figures[1], samples.ratio(ours, theirs), target)

    return [
        row("full scan and aggregate, through the source", "source", "parquet", 0.6),
        row("the same, two columns of it", "narrow source", "narrow parquet", None),
        row("aggregate pushed into Arrow: count, sum, min, max by type", "pushed", "sums parquet", 1.5),
        row("the same by key, of 200,000", "pushed keys", "keys parquet", 1.5),
    ]


def one_table(spark: SparkSession, events: Events, rounds: int, archive: Path) -> list[Row]:
    """The archive has nearly all of it, and the tail is read from the log; beside Parquet of the same events."""
    archiving = rate(events.count, lambda: headwater.spark.archive(spark, str(events.log), str(archive)))
    with headwater.open(events.log, durability="os") as hw:
        append(hw, events.count, events.count // TAIL)
        hw.sync(TOPIC)
    whole = events.parquet.with_name("parquet-whole")
    everything = spark.read.format("headwater").option("topic", TOPIC).load(str(events.log))
    longer = Events(events.log, whole, events.count + events.count // TAIL)
    writing = rate(longer.count, lambda: everything.write.option("compression", "zstd").parquet(str(whole)))
    samples = interleave(
        rounds,
        {
            "parquet": _rated(longer, lambda: _wide(_parquet(spark, longer))),
            "table": _rated(longer, lambda: _wide(headwater.spark.table(spark, str(longer.log), TOPIC))),
        },
    )
    figures = Figure(samples.median("table"), "/s"), Figure(samples.median("parquet"), "/s")
    ratio = samples.ratio("table", "parquet")
    sizes = _bytes(archive) / events.count, _bytes(whole) / longer.count
    copy = "Spark, from the source into Parquet, zstd"
    return [
        Row("one table over archive and tail (5 %)", figures[0], PARQUET, figures[1], ratio, ratio_of(0.95)),
        Row("archive as Parquet, checked", Figure(archiving, "/s"), copy, Figure(writing, "/s"), archiving / writing),
        Row("an event in the archive", Figure(sizes[0], "B"), PARQUET, Figure(sizes[1], "B"), sizes[0] / sizes[1]),
    ]


def sizes(events: Events) -> list[Row]:
    """What an event takes on disk."""
    ours, theirs = _bytes(events.log) / events.count, _bytes(events.parquet) / events.count
    return [Row("an event in the sealed log", Figure(ours, "B"), PARQUET, Figure(theirs, "B"), ours / theirs)]


def _bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def _rated(events: Events, work: Callable[[], Any]) -> Callable[[], float]:
    return lambda: rate(events.count, work)


def _parquet(spark: SparkSession, events: Events) -> DataFrame:
    return spark.read.parquet(str(events.parquet))


def _source(spark: SparkSession, events: Events, schema: str) -> DataFrame:
    return spark.read.format("headwater").schema(schema).option("topic", TOPIC).load(str(events.log))


def _wide(frame: DataFrame) -> list[Any]:
    found = frame.groupBy("type").agg(
        f.count("*"),
        f.min("offset"),
        f.max("time"),
        f.sum("partition"),
        f.sum(f.length("key")),
        f.sum(f.length("data")),
    )
    return found.collect()


def _narrow(frame: DataFrame) -> list[Any]:
    return frame.groupBy("type").agg(f.count("*"), f.max("offset")).collect()


def _sums(frame: DataFrame, by: str = "type") -> list[Any]:
    length = f.length("data")
    return frame.groupBy(by).agg(f.count("*"), f.sum(length), f.min(length), f.max("offset")).collect()


def _pushed(spark: SparkSession, events: Events, by: str) -> list[Any]:
    found: DataFrame = headwater.spark.aggregate(
        spark, str(events.log), TOPIC, by=by, count=True, sum=["data_bytes"], min=["data_bytes"], max=["offset"]
    )
    return found.collect()
