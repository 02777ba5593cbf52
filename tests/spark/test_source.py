"""A topic is a table: wherever it is, whole or in part, in the columns that are asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

import headwater
from headwater.errors import Corrupt, Denied, Invalid, NotFound
from headwater.format.events import EventBatch, with_data
from headwater.spark.reading import scan
from headwater.spark.reading.scan import SCHEMA
from headwater.spark.session import open_place
from headwater.spark.source import HeadwaterSource
from tests.server.process import served

COLUMNS = ["topic", "partition", "offset", "time", "id", "type", "key", "data", "meta"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two topics and an empty one; some events have no key, some have meta, some have no type."""
    path = tmp_path_factory.mktemp("source") / "data"
    with headwater.open(path) as hw:
        hw.create("orders", partitions=2)
        hw.create("orders.new")
        hw.create("empty", partitions=3)
        for number in range(5):
            fill(hw, "orders", number)
        hw.append("orders.new", {"n": 100}, type="placed", key="k-1")
    return str(path)


def fill(hw: Any, topic: str, number: int) -> None:
    """Twenty events, four of them by themselves."""
    names = [f"k-{number}-{i}" if i % 3 else None for i in range(16)]
    types = ["placed", "paid", "", "packed"] * 4
    hw.append_many(topic, [{"n": number, "i": i} for i in range(16)], keys=names, types=types)
    for i in range(4):
        hw.append(topic, b"\xff\x00", type="raw", meta={"by": f"å{i}"})


def load(spark: SparkSession, path: str, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("headwater").options(**{"topic": "orders", **options})
    return (reader if schema is None else reader.schema(schema)).load(path)


def read_here(path: str, schema: StructType, **options: str) -> list[dict[str, Any]]:
    """The rows, read in this process: an error of a task would be tried three times on Spark."""
    reader = HeadwaterSource({"path": path, "topic": "orders", **options}).reader(schema)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """All rows, in order; times in UTC, whatever the machine thinks."""
    micros = f.unix_micros("time").alias("time") if "time" in frame.columns else None
    columns: list[Any] = [micros if name == "time" else name for name in frame.columns]
    found = [tuple(row) for row in frame.select(columns).collect()]
    return sorted(tuple(bytes(each) if isinstance(each, bytearray) else each for each in row) for row in found)


def expected(hw: Any, topic: str, **filters: Any) -> list[tuple[Any, ...]]:
    return sorted(
        (
            event.topic,
            event.partition,
            event.offset,
            (event.time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6,
            str(event.id),
            event.type,
            event.key,
            event.data,
            event.raw_meta.decode() if event.raw_meta is not None else None,
        )
        for event in hw.read(topic, **filters)
    )


def test_a_topic_is_a_table(spark: SparkSession, address: str) -> None:
    frame = load(spark, address)
    assert frame.columns == COLUMNS
    assert frame.schema.simpleString().replace("struct<", "").rstrip(">").replace(",", ", ").replace(":", " ") == SCHEMA
    with headwater.open(address) as hw:
        assert rows(frame) == expected(hw, "orders")


def test_several_topics_and_patterns(spark: SparkSession, address: str) -> None:
    assert {row[0] for row in rows(load(spark, address, topic="orders, orders.new"))} == {"orders", "orders.new"}
    with headwater.open(address) as hw:
        both = sorted(expected(hw, "orders") + expected(hw, "orders.new"))
    assert rows(load(spark, address, topic="ord*")) == both
    assert rows(load(spark, address, topic="orders?new,empty")) == [row for row in both if row[0] == "orders.new"]


def test_what_is_empty_is_an_empty_table(spark: SparkSession, address: str) -> None:
    assert load(spark, address, topic="empty").count() == 0
    assert load(spark, address, topic="nobody*").count() == 0
    assert load(spark, address, type="nothing").count() == 0
    assert load(spark, address, start="latest").groupBy("type").count().collect() == []


def test_a_topic_that_is_not_there_is_an_error(spark: SparkSession, address: str, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="topic 'nowhere'"):
        load(spark, address, topic="nowhere").collect()
    with pytest.raises(PySparkException, match="unknown option 'topik' — did you mean topic"):
        load(spark, address, topik="nowhere").collect()
    with pytest.raises(PySparkException, match="NotFound"):
        load(spark, str(tmp_path / "none")).collect()
    assert not (tmp_path / "none").exists()


def test_start_and_end_by_offset_and_time(spark: SparkSession, address: str) -> None:
    with headwater.open(address) as hw:
        events = sorted(hw.read("orders"), key=lambda event: event.ticks)
        middle, late = events[30].time, events[50].time
        found = rows(load(spark, address, start=middle.isoformat(), end=late.replace(tzinfo=None).isoformat()))
        assert found == expected(hw, "orders", start=middle, end=late)
        assert found
    offsets = {(row[1], row[2]) for row in rows(load(spark, address, start='{"0": 7}', end='{"0": 9, "1": 2}'))}
    assert offsets == {(0, 7), (0, 8), (1, 0), (1, 1)}
    assert len(rows(load(spark, address, topic="orders.new", start="0", end="1"))) == 1
    assert rows(load(spark, address, topic="orders.new", start="1")) == []


def test_an_offset_belongs_to_a_partition(spark: SparkSession, address: str) -> None:
    with pytest.raises(PySparkException, match="2 partitions, but start 5 is a single offset"):
        load(spark, address, start="5").collect()
    with pytest.raises(PySparkException, match="partition 9, but topic 'orders' has 2"):
        load(spark, address, end='{"9": 1}').collect()


def test_type_key_and_match_are_those_of_read(spark: SparkSession, address: str) -> None:
    with headwater.open(address) as hw:
        assert rows(load(spark, address, type="pa.*")) == expected(hw, "orders", type="pa.*")
        assert rows(load(spark, address, key="k-3-4")) == expected(hw, "orders", key="k-3-4")
        match = {"n": {"$gte": 3}, "i": 5}
        assert rows(load(spark, address, match=json.dumps(match))) == expected(hw, "orders", match=match)
        assert len(expected(hw, "orders", match=match)) == 2


def test_times_are_the_same_in_any_time_zone(spark: SparkSession, address: str) -> None:
    with headwater.open(address) as hw:
        first = min(hw.read("orders"), key=lambda event: event.ticks)
    frame = load(spark, address, "time timestamp, ticks bigint")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        told = frame.selectExpr("min(ticks) as ticks", "cast(min(time) as string) as text").first()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert told is not None
    assert told.ticks == first.ticks
    assert datetime.fromisoformat(f"{told.text}+09:00") == first.time


def test_a_schema_takes_only_the_columns_that_it_names(spark: SparkSession, address: str) -> None:
    schema = "ticks bigint, offset bigint, content string, data_bytes bigint, partition int"
    frame = load(spark, address, schema)
    with headwater.open(address) as hw:
        wanted = [(e.ticks, e.offset, e.content, e.size, e.partition) for e in hw.read("orders")]
    assert rows(frame) == sorted(wanted)
    assert frame.columns == ["ticks", "offset", "content", "data_bytes", "partition"]


def test_bytes_may_be_read_as_text_and_what_is_none_is_null(spark: SparkSession, address: str) -> None:
    found = load(spark, address, "key string, data string, type string").where("type = 'raw'").distinct().collect()
    assert [tuple(row) for row in found] == [(None, None, "raw")]
    with pytest.raises(Corrupt, match="data of some events is not string"):
        read_here(address, StructType().add("data", "string"), mode="failfast")


def test_a_column_cannot_be_what_it_is_not(spark: SparkSession, address: str) -> None:
    with pytest.raises(PySparkException, match="column key cannot be"):
        load(spark, address, "key array<int>").collect()
    with pytest.raises(Invalid, match="key is null in some events"):
        read_here(address, StructType().add("key", "binary", nullable=False))
    with pytest.raises(Invalid, match="the schema has no columns"):
        read_here(address, StructType())


def test_fields_of_the_data_are_columns(spark: SparkSession, address: str) -> None:
    found = load(spark, address, "offset bigint, n int, i int, type string", topic="orders.new").collect()
    assert [tuple(row) for row in found] == [(0, 100, None, "placed")]


def test_poison_has_no_fields(spark: SparkSession, address: str) -> None:
    found = load(spark, address, "n int, type string").where("type = 'raw'").distinct().collect()
    assert [tuple(row) for row in found] == [(None, "raw")]
    with pytest.raises(Invalid, match=r"topic 'orders', partition \d, offset \d+: its data is bytes"):
        read_here(address, StructType().add("n", "integer"), mode="failfast")


def test_what_is_visible_is_read_though_nobody_has_synced_it(spark: SparkSession, tmp_path: Path) -> None:
    with headwater.open(tmp_path, durability="os") as hw:
        hw.append_many("orders", [b"1", b"2"])
        (partition,) = hw.describe("orders").partitions
        assert partition.durable == 0
        assert load(spark, str(tmp_path)).count() == 2


def test_a_huge_event_has_its_data_and_fields_and_can_be_written(spark: SparkSession, elsewhere: str) -> None:
    note = "x" * 3_000_000
    with open_place(elsewhere, mode="create") as hw:
        hw.append("orders", {"n": 1, "note": note}, key="a", type="large", meta={"by": "us"})
        hw.append("orders", {"n": 2, "note": ""}, key="b")
        before = [(event.key, event.type, event.value, event.meta) for event in hw.read("orders")]
        found = load(spark, elsewhere, "n int, note string, data_bytes bigint").orderBy("n").collect()
        assert [(row.n, row.note) for row in found] == [(1, note), (2, "")]
        assert found[0].data_bytes > len(note)
        assert rows(load(spark, elsewhere)) == expected(hw, "orders")
        assert load(spark, elsewhere).where("length(data) > 1000000").count() == 1
        frame = load(spark, elsewhere, "key binary, type string, data binary, meta string").orderBy("type")
        frame.write.format("headwater").options(topic="copy", content="json").mode("append").save(elsewhere)
        copied = [(event.key, event.type, event.value, event.meta) for event in hw.read("copy")]
    assert sorted(copied, key=repr) == sorted(before, key=repr)


def test_data_that_is_too_large_for_a_column_is_null_and_its_size_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "COLUMN_DATA_BYTES_MAX", 2_000_000)
    with headwater.open(tmp_path) as hw:
        for size in (2_000_001, 2_000_000, 5):
            hw.append("orders", bytes(size))
    schema = StructType().add("data", "binary").add("data_bytes", "long")
    found = read_here(str(tmp_path), schema)
    assert [row["data"] for row in found] == [None, bytes(2_000_000), bytes(5)]
    assert [row["data_bytes"] for row in found] == [2_000_001, 2_000_000, 5]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_huge_data_that_retention_deletes_meanwhile_is_lost_as_any(
    tmp_path: Path, fail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headwater.open(tmp_path) as hw:
        hw.append("orders", bytes(2_000_000))
        hw.seal("orders")
        hw.append("orders", b"kept")
        load_data = with_data

        def too_late(batch: EventBatch, bytes_max: int) -> EventBatch:
            hw.retain("orders", before=1)
            return load_data(batch, bytes_max)

        monkeypatch.setattr(scan, "with_data", too_late)
        schema = StructType().add("data", "binary")
        if fail == "true":
            with pytest.raises(NotFound, match="offset 0 is gone"):
                read_here(str(tmp_path), schema)
        else:
            assert read_here(str(tmp_path), schema, failOnDataLoss="false") == [{"data": b"kept"}]


def test_huge_data_is_not_read_by_who_does_not_want_it(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.append("orders", bytes(2_000_000))
    for blob in tmp_path.rglob("*.blob"):
        blob.unlink()
    schema = StructType().add("offset", "long").add("data_bytes", "long")
    assert read_here(str(tmp_path), schema) == [{"offset": 0, "data_bytes": 2_000_000}]


def test_retention_that_has_passed_the_start_is_an_error_unless_losses_are_allowed(
    spark: SparkSession, tmp_path: Path
) -> None:
    with headwater.open(tmp_path) as hw:
        hw.create("orders", segment_bytes=4096)
        for number in range(10):
            hw.append("orders", bytes(3000), type=str(number))
        hw.retain("orders", retention_segments=2)
        (partition,) = hw.describe("orders").partitions
        assert partition.start > 2
        left = [event.offset for event in hw.read("orders")]
    with pytest.raises(PySparkException, match="offset 2 is gone; the oldest is"):
        load(spark, str(tmp_path), start="2").collect()
    found = load(spark, str(tmp_path), "offset bigint", start="2", failOnDataLoss="false")
    assert [row[0] for row in rows(found)] == left
    assert [row[0] for row in rows(load(spark, str(tmp_path), "offset bigint"))] == left


def test_splits_are_read_by_tasks_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        for _ in range(40):
            hw.append("orders", bytes(1_000_000))
    frame = load(spark, str(tmp_path), "offset bigint", splitBytes="8000000")
    assert 4 <= frame.rdd.getNumPartitions() <= 6
    assert [row[0] for row in rows(frame)] == list(range(40))


def test_small_partitions_share_a_task(spark: SparkSession, address: str) -> None:
    assert load(spark, address, topic="*").rdd.getNumPartitions() == 1


def test_sql_makes_a_table_of_it(spark: SparkSession, address: str) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW from_sql USING headwater OPTIONS (path '{address}', topic 'orders')")
    try:
        assert spark.sql("SELECT count(*) FROM from_sql").first()[0] == 100  # type: ignore[index]  # there is one row
    finally:
        spark.catalog.dropTempView("from_sql")


@pytest.fixture(params=["objects", "s3", "server"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path, users_file: Path) -> Iterator[str]:
    """The address of another place, which has nothing yet. The server asks who it is."""
    if request.param == "objects":
        yield f"objects://{tmp_path / 'objects'}"
    elif request.param == "s3":
        yield request.getfixturevalue("s3_url")
    else:
        with served(tmp_path / "data", "--auth", str(users_file)) as server:
            with headwater.open(server.url) as stranger, pytest.raises(Denied):
                stranger.topics()
            yield server.url


def test_a_bucket_and_a_server_are_read_as_well(spark: SparkSession, elsewhere: str) -> None:
    with open_place(elsewhere, mode="create") as hw:
        hw.create("orders", partitions=2)
        fill(hw, "orders", 1)
        fill(hw, "orders", 2)
        assert rows(load(spark, elsewhere)) == expected(hw, "orders")
        middle = sorted(hw.read("orders"), key=lambda event: event.ticks)[20].time
        assert rows(load(spark, elsewhere, type="raw", start=middle.isoformat())) == expected(
            hw, "orders", type="raw", start=middle
        )


def test_a_task_imports_no_more_than_it_needs(address: str) -> None:
    """Each worker of Spark imports what it needs anew: what is not needed would cost more than a small read."""
    program = (
        "import sys, pyspark_headwater\n"
        "from pyspark.sql.types import LongType, StringType, StructType\n"
        f"source = pyspark_headwater.DefaultSource({{'path': {address!r}, 'topic': 'orders', 'type': 'p.*'}})\n"
        "reader = source.reader(StructType().add('offset', LongType()).add('type', StringType()))\n"
        "print(sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)))\n"
        "unneeded = 'pandas', 'headwater.spark.writing.sink', 'headwater.spark.reading.fields', 'headwater.remote'\n"
        "print([name for name in unneeded if name in sys.modules])\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert told.stdout.split("\n")[:2] == ["60", "[]"], told.stderr
