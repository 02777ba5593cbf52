"""A topic is a table."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import headwater


def test_a_topic_is_a_table(spark: SparkSession, tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as hw:
        hw.create("orders", partitions=2)
        hw.append_many("orders", [b"a", b"b", b"c"], keys=["1", "2", "3"], types=["x", "y", "x"])
        expected = {
            (event.partition, event.offset, str(event.id), event.type, event.key) for event in hw.read("orders")
        }
    frame = spark.read.format("headwater").option("topic", "orders").load(str(tmp_path / "data"))
    found = {(row.partition, row.offset, row.id, row.type, bytes(row.key)) for row in frame.collect()}
    assert found == expected
