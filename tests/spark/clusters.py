"""A job on executors of their own, run as a program: `python -m tests.spark.clusters LOG`. Prints what it found as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

import headwater.spark

COUNT, TASKS = 20_000, 4


def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of a task fails when its rows are handed on, and so staged."""
    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.attemptNumber() == 0 and context.partitionId() == 1:
        raise RuntimeError("the first attempt fails")


def main(address: str) -> None:
    config = {
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = headwater.spark.session("local-cluster[2,1,512]", quick=True, memory="512m", config=config)
    rows = spark.range(0, COUNT, 1, TASKS).selectExpr("cast(id AS string) AS data", "cast(id % 97 AS string) AS key")
    flaky = rows.mapInArrow(fails_once, rows.schema)
    flaky.write.format("headwater").option("topic", "orders").option("partitions", 3).mode("append").save(address)
    read = spark.read.format("headwater").option("topic", "orders").load(address)
    found = read.selectExpr("count(*) AS count", "count(DISTINCT data) AS distinct").first()
    workers = spark.sparkContext.range(8, numSlices=8).map(lambda _: __import__("os").getppid()).distinct().count()
    assert found is not None
    print(json.dumps({"count": found["count"], "distinct": found["distinct"], "executors": workers}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
