"""Writing into a topic, from topic to topic as a stream, and a projection folded anew, all on Spark."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headwater
import headwater.spark
from bench.rounds import interleave, rate
from bench.spark.data import KEYS, TOPIC, Events, append
from bench.table import Figure, Row, at_least, at_most, ratio_of

COPY = "copy"
PER_TRIGGER = 1_000_000

app = headwater.App()


@app.projection(TOPIC, "customers")
def customer_of(doc: dict[str, Any] | None, event: headwater.Event) -> dict[str, Any]:
    order = event.value
    doc = doc or {"orders": 0, "cents": 0}
    doc["orders"] += 1
    doc["cents"] += order["cents"]
    return doc


def writes(spark: SparkSession, events: Events, rounds: int, directory: Path) -> list[Row]:
    """The same columns of the same frame, into a topic and into Parquet; each round into a new place."""
    frame = spark.read.parquet(str(events.parquet)).select("key", "type", "data")
    number = itertools.count()

    def to_topic() -> float:
        place = directory / f"written-{next(number)}"
        with headwater.open(place) as hw:
            hw.create(COPY, partitions=4)
        writer = frame.write.format("headwater").option("topic", COPY).option("content", "json").mode("append")
        found = rate(events.count, lambda: writer.save(str(place)))
        with headwater.open(place) as hw:
            assert hw.describe(COPY).events == events.count
        shutil.rmtree(place)
        return found

    def to_parquet() -> float:
        place = directory / f"written-{next(number)}"
        found = rate(events.count, lambda: frame.write.parquet(str(place)))
        shutil.rmtree(place)
        return found

    samples = interleave(rounds, {"topic": to_topic, "parquet": to_parquet})
    figures = Figure(samples.median("topic"), "/s"), Figure(samples.median("parquet"), "/s")
    ratio = samples.ratio("topic", "parquet")
    return [Row("write into a topic, durable", figures[0], "Spark writes Parquet", figures[1], ratio, ratio_of(1.0))]


def streams(spark: SparkSession, events: Events, directory: Path) -> list[Row]:
    """From topic to topic, all that is there, at once and in pieces; then a small tail, again and again."""
    with headwater.open(events.log) as hw:
        count = hw.describe(TOPIC).events
    pieces = rate(count, lambda: _stream(spark, events, directory / "pieces", {"maxEventsPerTrigger": PER_TRIGGER}))
    whole = rate(count, lambda: _stream(spark, events, directory / "whole", {}))
    small = []
    for round in range(3):
        with headwater.open(events.log) as hw:
            append(hw, 10 * events.count + round * 1000, 1000)
        began = time.perf_counter()
        _stream(spark, events, directory / "whole", {})
        small.append(time.perf_counter() - began)
    for place, expected in (("pieces", count), ("whole", count + 3000)):
        with headwater.open(directory / place / "log") as hw:
            assert hw.describe(COPY).events == expected
    return [
        Row("streaming, from topic to topic, durable", Figure(whole, "/s"), target=at_least(500_000, "/s")),
        Row("the same in triggers of 1,000,000", Figure(pieces, "/s")),
        Row("AvailableNow over a tail of 1,000, warm", Figure(sorted(small)[1], "s"), target=at_most(3.0, "s")),
    ]


def _stream(spark: SparkSession, events: Events, place: Path, options: dict[str, int]) -> None:
    """Run the stream into a place of its own until it has done what is there."""
    copy = place / "log"
    if not copy.exists():
        place.mkdir()
        with headwater.open(copy) as hw:
            hw.create(COPY, partitions=4)
    source = spark.readStream.format("headwater").schema("key binary, type string, data binary")
    frame = source.option("topic", TOPIC).options(**options).load(str(events.log))
    sink = frame.writeStream.format("headwater").option("topic", COPY).option("content", "json")
    query = sink.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start(str(copy))
    query.awaitTermination()


def folds(spark: SparkSession, events: Events, rounds: int) -> list[Row]:
    """The binder of all customers, folded anew from the whole history and put in place, durable."""
    with headwater.open(events.log) as hw:
        count = hw.describe(TOPIC).events
        rebuild = {"fold": lambda: rate(count, lambda: headwater.spark.rebuild(spark, hw, app, "customers"))}
        samples = interleave(rounds, rebuild)
        documents = hw.binder("customers").count()
    name = f"projection rebuilt on Spark, {documents:,} documents of up to {KEYS:,}"
    return [Row(name, Figure(samples.median("fold"), "/s"), target=at_least(500_000, "/s"))]
