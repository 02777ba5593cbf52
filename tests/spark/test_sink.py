"""Writing DataFrames into topics, batch and streaming, as users call it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession, functions

import headwater
from headwater.event import Event
from tests.server.serving import serving
from tests.spark.staged import files, manifests

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def write(frame: DataFrame, address: str | Path, topic: str | None = "orders", **options: Any) -> None:
    writer = frame.write.format("headwater").options(**options).mode("append")
    (writer if topic is None else writer.option("topic", topic)).save(str(address))


def read(address: str | Path, topic: str = "orders", **options: Any) -> list[Event]:
    with headwater.open(str(address)) as hw:
        return list(hw.read(topic, **options))


def numbers(events: list[Event]) -> list[int]:
    return [int(event.data or b"") for event in events]


def counted(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).select(functions.col("id").cast("string").alias("data"))


# What is written


def test_all_columns(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("""
        SELECT * FROM VALUES
          (unhex('00ff'), unhex('01'), 'made', '{"by":"me"}'),
          (unhex(''), NULL, NULL, NULL),
          (unhex('07'), unhex(''), 'made', '{}')
        AS t(data, key, type, meta)""").coalesce(1)
    write(frame, tmp_path / "data")
    found = read(tmp_path / "data")
    assert [(event.data, event.key, event.type, event.content) for event in found] == [
        (b"\x00\xff", b"\x01", "made", "bytes"),
        (b"", None, "", "bytes"),
        (b"\x07", b"", "made", "bytes"),
    ]
    assert [dict(event.meta) for event in found] == [{"by": "me"}, {}, {}]


def test_text_is_text_unless_the_content_says_what_it_is(spark: SparkSession, tmp_path: Path) -> None:
    write(spark.sql("SELECT '{}' AS data"), tmp_path / "data")
    write(spark.sql("SELECT '{}' AS data, map('a', 'b\\n') AS meta"), tmp_path / "data", content="json")
    text, document = read(tmp_path / "data")
    assert (text.content, document.content, dict(document.meta)) == ("text", "json", {"a": "b\n"})


def test_events_of_a_key_are_where_append_puts_them(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(0, 500, 1, 2).selectExpr("cast(id AS string) AS data", "concat('customer ', id % 50) AS key")
    write(frame, tmp_path / "data", partitions=5)
    with headwater.open(tmp_path / "data") as hw:
        hw.create("appended", partitions=5)
        for event in list(hw.read("orders")):
            assert hw.append("appended", event.data or b"", key=event.key).partition == event.partition


def test_events_without_a_key_go_to_all_partitions(spark: SparkSession, tmp_path: Path) -> None:
    write(counted(spark, 100, 4), tmp_path / "data", partitions=4)
    assert sorted(numbers(read(tmp_path / "data"))) == list(range(100))
    assert all(len(read(tmp_path / "data", partition=partition)) == 25 for partition in range(4))


def test_the_order_of_a_task_is_kept_in_each_partition(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(0, 50_000, 1, 1).selectExpr("cast(id AS string) AS data", "cast(id % 100 AS string) AS key")
    write(frame, tmp_path / "data", partitions=3)
    found = [numbers(read(tmp_path / "data", partition=partition)) for partition in range(3)]
    assert all(part == sorted(part) for part in found)
    assert sorted(number for part in found for number in part) == list(range(50_000))


def test_a_column_says_the_topic_and_another_the_partition(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(0, 30, 1, 2).selectExpr(
        "cast(id AS string) AS data",
        "CASE id % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'b' END AS topic",
        "cast(id % 2 AS int) AS partition",
    )
    write(frame, tmp_path / "data", "rest", partitions=2)
    for rest, topic in enumerate(("a", "b", "rest")):
        for partition in range(2):
            found = numbers(read(tmp_path / "data", topic, partition=partition))
            assert sorted(found) == [n for n in range(30) if n % 3 == rest and n % 2 == partition]


def test_columns_become_the_fields_of_json(spark: SparkSession, tmp_path: Path) -> None:
    """As `to_json` has them, but for times, which are in UTC whatever the session's zone is, and bytes."""
    frame = spark.sql("""
        SELECT key, type, id, name, price, paid, tags, by, counts, amount FROM VALUES
          ('k', 'made', 1L, 'a "quoted"\\n\\u00e9 text', 1.5D, true, array('x', NULL, 'y"'),
            named_struct('name', 'me', 'n', 1), map('a', 1), cast(12.50 AS decimal(10, 2))),
          (NULL, NULL, NULL, NULL, -2.0D, NULL, array(), NULL, NULL, NULL),
          ('', '', NULL, '', NULL, false, NULL, named_struct('name', NULL, 'n', NULL), map(), cast(0 AS decimal(10, 2)))
        AS t(key, type, id, name, price, paid, tags, by, counts, amount)""").coalesce(1)
    expected = [
        row.text
        for row in frame.select(functions.to_json(functions.struct(*frame.columns[2:])).alias("text")).collect()
    ]
    write(frame, tmp_path / "data")
    found = read(tmp_path / "data")
    assert [json.loads(event.data or b"") for event in found] == [json.loads(text) for text in expected]
    assert [event.data for event in found] == [text.encode() for text in expected]
    assert {event.content for event in found} == {"json"}
    assert [(event.key, event.type) for event in found] == [(b"k", "made"), (None, ""), (b"", "")]


def test_times_and_bytes_in_json(spark: SparkSession, tmp_path: Path) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        frame = spark.sql("""SELECT TIMESTAMP'2026-01-01 09:00:00.25' AS at, TIMESTAMP_NTZ'2026-01-01 09:00:00' AS wall,
            DATE'2026-01-02' AS day, unhex('00ff') AS raw, double('NaN') AS odd, double('-Infinity') AS low""")
        write(frame, tmp_path / "data")
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
    (event,) = read(tmp_path / "data")
    assert json.loads(event.data or b"") == {
        "at": "2026-01-01T00:00:00.250000Z",
        "wall": "2026-01-01T09:00:00.000000",
        "day": "2026-01-02",
        "raw": "AP8=",
        "odd": "NaN",
        "low": "-Infinity",
    }


def test_an_empty_frame_makes_its_topic(spark: SparkSession, tmp_path: Path) -> None:
    write(counted(spark, 0), tmp_path / "data", partitions=3)
    with headwater.open(tmp_path / "data") as hw:
        assert len(hw.describe("orders").partitions) == 3
        assert list(hw.read("orders")) == []


def test_what_cannot_be_written_is_refused_before_a_task_begins(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="unknown option 'topics'"):
        write(counted(spark, 1), tmp_path / "data", topics="orders")
    writer = counted(spark, 1).write.format("headwater").option("topic", "orders")
    with pytest.raises(Exception, match="cannot be overwritten"):
        writer.mode("overwrite").save(str(tmp_path / "data"))
    assert not (tmp_path / "data").exists()


# Once


def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task whose first attempt dies when half of its rows were handed on."""
    context = TaskContext.get()
    assert context is not None
    for number, batch in enumerate(batches):
        if number == 1 and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")
        yield batch


def test_a_task_that_fails_is_tried_again_and_written_once(spark: SparkSession, tmp_path: Path) -> None:
    frame = counted(spark, 150_000).mapInArrow(fails_once, "data string")
    write(frame, tmp_path / "data", partitions=2)
    assert sorted(numbers(read(tmp_path / "data"))) == list(range(150_000))
    assert not files(tmp_path / "data")
    assert not manifests(tmp_path / "data")


def always_fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        if context.partitionId() == 1:
            raise RuntimeError("this one never works")
        yield batch


def test_a_job_that_fails_writes_nothing_and_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="this one never works"):
        write(counted(spark, 1000).mapInArrow(always_fails, "data string"), tmp_path / "data")
    assert read(tmp_path / "data") == []
    assert not files(tmp_path / "data")


def test_a_transaction_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("monday", "monday", "tuesday"):
        write(counted(spark, 100), tmp_path / "data", transaction=name)
    assert sorted(numbers(read(tmp_path / "data"))) == sorted([*range(100)] * 2)
    assert len(manifests(tmp_path / "data")) == 2
    write(counted(spark, 100), tmp_path / "data")
    write(counted(spark, 100), tmp_path / "data")
    assert len(read(tmp_path / "data")) == 400


# Streams


def lines(directory: Path, count: int, each: int = 500) -> None:
    """So many files of numbers, each of them a batch of a stream."""
    directory.mkdir(exist_ok=True)
    for number in range(count):
        text = "".join(f"{line}\n" for line in range(number * each, (number + 1) * each))
        (directory / f"{number:03d}.txt").write_text(text)


def stream(
    spark: SparkSession, directory: Path, checkpoint: Path, address: str | Path, **options: Any
) -> StreamingQuery:
    source = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(directory))
    keyed = source.selectExpr("value AS data", "cast(value % 10 AS string) AS key")
    sink = keyed.writeStream.format("headwater").option("topic", "orders").options(**options)
    query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(str(address))
    query.awaitTermination(120)
    assert query.exception() is None
    return query


def test_a_stream_writes_every_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    lines(tmp_path / "in", 3)
    query = stream(spark, tmp_path / "in", tmp_path / "checkpoint", tmp_path / "data", partitions=2)
    assert sorted(numbers(read(tmp_path / "data"))) == list(range(1500))
    assert manifests(tmp_path / "data") == [f"query-{query.id}.{2:020d}"]
    assert not files(tmp_path / "data")


def test_a_batch_that_was_published_is_not_when_it_runs_again(spark: SparkSession, tmp_path: Path) -> None:
    """The driver died when the batch was there, and before Spark had noted that."""
    lines(tmp_path / "in", 3)
    checkpoint = tmp_path / "checkpoint"
    stream(spark, tmp_path / "in", checkpoint, tmp_path / "data")
    for left in ("2", ".2.crc"):
        (checkpoint / "commits" / left).unlink(missing_ok=True)
    query = stream(spark, tmp_path / "in", checkpoint, tmp_path / "data")
    assert query.lastProgress is not None
    assert query.lastProgress["batchId"] >= 2
    assert sorted(numbers(read(tmp_path / "data"))) == list(range(1500))
    assert not files(tmp_path / "data")


# Other places


def test_a_server_as_a_sink(spark: SparkSession, tmp_path: Path) -> None:
    lines(tmp_path / "in", 2)
    with serving(tmp_path / "served") as server:
        write(counted(spark, 10_000), server.url)
        assert sorted(numbers(read(server.url))) == list(range(10_000))
        for _ in range(2):
            write(counted(spark, 10), server.url, "named", transaction="t", staging=str(tmp_path / "place"))
        assert sorted(numbers(read(server.url, "named"))) == list(range(10))
        query = stream(
            spark,
            tmp_path / "in",
            tmp_path / "checkpoint",
            server.url,
            staging=str(tmp_path / "place"),
            topic="streamed",
        )
        assert sorted(numbers(read(server.url, "streamed"))) == list(range(1000))
        assert f"query-{query.id}.{1:020d}" in manifests(tmp_path / "place")


def test_a_bucket_as_sink_and_source(spark: SparkSession, tmp_path: Path, s3_url: str) -> None:
    lines(tmp_path / "in", 2)
    headwater.open(s3_url).close()
    stream(spark, tmp_path / "in", tmp_path / "checkpoint", s3_url, partitions=2)
    write(counted(spark, 1000), s3_url, "batch", transaction="t")
    write(counted(spark, 1000), s3_url, "batch", transaction="t")
    frame = spark.read.format("headwater").option("topic", "batch").load(s3_url)
    assert sorted(int(row.data) for row in frame.select("data").collect()) == list(range(1000))
    assert sorted(numbers(read(s3_url))) == list(range(1000))
