"""The one table: what is archived from Parquet, the rest from the log, each event exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

import headwater
import headwater.spark
from headwater.errors import Conflict, NotFound
from headwater.spark.reading.scan import SCHEMA
from tests.archive import tables
from tests.archive.tables import manifests
from tests.server.process import served

NAMES = [field.split()[0] for field in SCHEMA.split(",")]


def archive(data: Path, target: Path, **options: Any) -> None:
    """Archive the segments, a few of each partition: each is a task at least."""
    tables.archive(data, target, **options)


@pytest.fixture
def filled_store(tmp_path: Path) -> Iterator[headwater.Store]:
    with headwater.open(tmp_path / "data", durability="os") as opened:
        opened.create("t", partitions=3, segment_bytes=4096)
        append(opened, 200)
        yield opened


def append(hw: headwater.Store, events: int, **options: Any) -> None:
    types = [("paid", "placed", "", "zzz")[n * 4 // events] for n in range(events)]  # each in a range of its own
    keys = [None if n % 5 == 0 else f"k{n % 7}" for n in range(events)]
    metas = [{"n": str(n)} if n % 9 == 0 else None for n in range(events)]
    hw.append_many("t", [b"%d" % n * 20 for n in range(events)], types=types, keys=keys, metas=metas, **options)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    assert frame.columns == NAMES
    found = [tuple(bytes(each) if isinstance(each, bytearray) else each for each in row) for row in frame.collect()]
    return sorted(found, key=lambda row: (row[1], row[2]))


def events(hw: headwater.Store, **options: Any) -> list[tuple[Any, ...]]:
    found = [
        (
            each.topic,
            each.partition,
            each.offset,
            each.time.replace(tzinfo=None),
            str(each.id),
            each.type,
            each.key,
            each.data,
            None if each.raw_meta is None else each.raw_meta.decode(),
        )
        for each in hw.read("t", **options)
    ]
    return sorted(found, key=lambda row: (row[1], row[2]))


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times come out of Spark in the zone of this process."""
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_huge_event_is_the_same_in_the_log_and_in_the_archive(
    spark: SparkSession, filled_store: headwater.Store, tmp_path: Path
) -> None:
    filled_store.append("t", b"a" * 2_000_000, type="huge")
    archive(tmp_path / "data", tmp_path / "out", seal=True)
    filled_store.append("t", b"b" * 2_000_000, type="huge")
    frame = headwater.spark.table(spark, str(tmp_path / "data"), "t", archive=str(tmp_path / "out"))
    assert rows(frame.where("type = 'huge'")) == events(filled_store, type="huge")


def test_archive_and_live_log_are_one(spark: SparkSession, filled_store: headwater.Store, tmp_path: Path) -> None:
    archive(filled_store.path, tmp_path / "out", seal=True)
    append(filled_store, 30)
    table = headwater.spark.table(spark, str(filled_store.path), "t")  # the log knows where
    assert rows(table) == events(filled_store)
    assert table.dtypes == spark.read.format("headwater").option("topic", "t").load(str(filled_store.path)).dtypes
    assert rows(headwater.spark.table(spark, str(filled_store.path), "t", str(tmp_path / "out"))) == events(
        filled_store
    )


def test_what_is_archived_is_read_by_spark_itself(
    spark: SparkSession, filled_store: headwater.Store, tmp_path: Path
) -> None:
    archive(filled_store.path, tmp_path / "out", seal=True)
    append(filled_store, 30)
    table = headwater.spark.table(spark, str(filled_store.path), "t")
    plan = _plan(table.where("type = 'paid'").select("offset"))
    assert "FileScan parquet [offset" in plan
    assert "PushedFilters: [IsNotNull(type), EqualTo(type,paid)]" in plan
    assert "ReadSchema: struct<offset:bigint,type:string>" in plan
    assert "BatchScan headwater" in plan
    archived = table.where(~f.input_file_name().isin("")).select("partition", "offset").collect()
    ends = {log.partition: log.end for log in manifests(tmp_path / "out")}
    assert {(row.partition, row.offset) for row in archived} == {
        (partition, offset) for partition, end in ends.items() for offset in range(end)
    }


def _plan(frame: DataFrame) -> str:
    java: Any = frame._jdf
    text: str = java.queryExecution().executedPlan().toString()
    return text


def test_filters_find_the_same_as_in_the_log(
    spark: SparkSession, filled_store: headwater.Store, tmp_path: Path
) -> None:
    archive(filled_store.path, tmp_path / "out", seal=True)
    append(filled_store, 60)
    table = headwater.spark.table(spark, str(filled_store.path), "t")
    cases: list[tuple[Column, Callable[[tuple[Any, ...]], bool]]] = [
        (f.col("type") == "paid", lambda row: row[5] == "paid"),
        (f.col("key").eqNullSafe(f.lit(b"k3")), lambda row: row[6] == b"k3"),
        (f.col("key").isNull(), lambda row: row[6] is None),
        ((f.col("offset") >= 20) & (f.col("offset") < 90), lambda row: 20 <= row[2] < 90),
        (f.col("type").isin("zzz", ""), lambda row: row[5] in ("zzz", "")),
        (f.col("partition") == 1, lambda row: row[1] == 1),
    ]
    for where, wanted in cases:
        assert rows(table.where(where)) == [row for row in events(filled_store) if wanted(row)]
    middle = events(filled_store)[100][3]
    assert rows(table.where(f.col("time") >= f.lit(middle))) == [
        row for row in events(filled_store) if row[3] >= middle
    ]


def test_a_topic_without_an_archive_is_the_log(
    spark: SparkSession, filled_store: headwater.Store, tmp_path: Path
) -> None:
    assert rows(headwater.spark.table(spark, str(filled_store.path), "t")) == events(filled_store)
    filled_store.append("other", b"x")
    archive(filled_store.path, tmp_path / "out", seal=True, topics="other")
    assert rows(headwater.spark.table(spark, str(filled_store.path), "t")) == events(filled_store)
    archive(filled_store.path, tmp_path / "out")  # some partitions have nothing finished, maybe
    assert rows(headwater.spark.table(spark, str(filled_store.path), "t")) == events(filled_store)
    with pytest.raises(NotFound):
        headwater.spark.table(spark, str(filled_store.path), "nowhere")
    with pytest.raises(NotFound):
        headwater.spark.table(spark, str(filled_store.path), "t", str(tmp_path / "nothing"))


def test_a_partition_without_an_archive(spark: SparkSession, tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as hw:
        hw.create("t", partitions=2)
        append(hw, 10, partition=0)
        archive(hw.path, tmp_path / "out", seal=True)
        append(hw, 10, partition=1)
        append(hw, 4, partition=0)
        assert [log.end for log in manifests(tmp_path / "out")] == [10, -1]
        assert rows(headwater.spark.table(spark, str(hw.path), "t")) == events(hw)


def test_all_of_it_is_archived_and_the_live_part_is_empty(
    spark: SparkSession, filled_store: headwater.Store, tmp_path: Path
) -> None:
    archive(filled_store.path, tmp_path / "out", seal=True)
    assert rows(headwater.spark.table(spark, str(filled_store.path), "t")) == events(filled_store)


def test_what_retention_has_deleted_is_in_the_table(
    spark: SparkSession, filled_store: headwater.Store, tmp_path: Path
) -> None:
    append(filled_store, 40)
    archive(filled_store.path, tmp_path / "out", seal=True)
    expected = events(filled_store)
    assert filled_store.retain("t", retention_segments=1)
    filled_store.retain("t", retention_segments=0)
    append(filled_store, 10)
    assert all(partition.local for partition in filled_store.describe("t").partitions)
    found = rows(headwater.spark.table(spark, str(filled_store.path), "t"))
    assert found == events(filled_store)
    assert len(found) == len(expected) + 10


def test_it_is_exact_while_others_append_archive_and_delete(
    spark: SparkSession, filled_store: headwater.Store, tmp_path: Path
) -> None:
    archive(filled_store.path, tmp_path / "out", seal=True)
    append(filled_store, 50)
    table = headwater.spark.table(spark, str(filled_store.path), "t")
    expected = events(filled_store)
    archive(filled_store.path, tmp_path / "out", seal=True)  # what the table reads from the log is now archived, too
    assert rows(table) == expected
    filled_store.retain(
        "t", retention_segments=1
    )  # and deleted in the log: the table from before reads on in the archive
    filled_store.retain("t", retention_segments=0)
    assert rows(table) == expected
    assert rows(headwater.spark.table(spark, str(filled_store.path), "t")) == expected


def test_archived_and_deleted_between_two_looks(
    spark: SparkSession, filled_store: headwater.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(filled_store.path, tmp_path / "out", seal=True)
    append(filled_store, 50)
    expected = events(filled_store)
    describe = type(filled_store).describe
    done: list[bool] = []

    def between(self: Any, topic: str) -> Any:
        if not done:
            done.append(True)
            archive(filled_store.path, tmp_path / "out", seal=True)
            filled_store.retain("t", retention_segments=1)
            filled_store.retain("t", retention_segments=0)
        return describe(self, topic)

    monkeypatch.setattr(type(filled_store), "describe", between)
    assert rows(headwater.spark.table(spark, str(filled_store.path), "t")) == expected


def test_an_archive_of_another_topic_is_refused(
    spark: SparkSession, filled_store: headwater.Store, tmp_path: Path
) -> None:
    archive(filled_store.path, tmp_path / "out", seal=True)
    filled_store.delete("t")
    filled_store.append("t", b"new")
    with pytest.raises(Conflict) as raised:
        headwater.spark.table(spark, str(filled_store.path), "t", str(tmp_path / "out"))
    assert raised.value.code == "archive_diverged"
    assert rows(headwater.spark.table(spark, str(filled_store.path), "t")) == events(filled_store)


def test_odd_places_and_names(spark: SparkSession, tmp_path: Path) -> None:
    odd = tmp_path / "a [b] {c} * ü %20"
    odd.mkdir()
    with headwater.open(odd / "data") as hw:
        hw.append("_böse [x]", b"archived")
        archive(hw.path, odd / "out", seal=True)
        hw.append("_böse [x]", b"live")
        found = headwater.spark.table(spark, str(hw.path), "_böse [x]").collect()
    assert sorted(bytes(row.data) for row in found) == [b"archived", b"live"]


def test_over_a_server(spark: SparkSession, filled_store: headwater.Store, tmp_path: Path) -> None:
    archive(filled_store.path, tmp_path / "out", seal=True)
    append(filled_store, 20)
    expected = events(filled_store)
    filled_store.sync("t")  # of a server, only what is durable is read
    filled_store.close()
    with served(filled_store.path) as server:
        table = headwater.spark.table(spark, server.url, "t", str(tmp_path / "out"))
        assert rows(table) == expected
        assert rows(headwater.spark.table(spark, server.url, "t")) == expected
