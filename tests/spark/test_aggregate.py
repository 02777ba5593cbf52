"""Aggregates that are pushed into Arrow are what Spark's own groupBy finds over the same topic."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import bson
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import headwater
import headwater.spark
from headwater import Invalid, NotFound
from headwater.spark import aggregating

FIELDS = "n bigint, price decimal(10, 2), at timestamp, tag string, `by.name` string, ok boolean, x double"
LOG = "partition int, offset bigint, time timestamp, type string, key binary, data_bytes bigint"


def source(spark: SparkSession, address: Path, schema: str = f"{LOG}, {FIELDS}", **options: str) -> DataFrame:
    return spark.read.format("headwater").schema(schema).options(topic="orders", **options).load(str(address))


def plain(frame: DataFrame) -> list[str]:
    return sorted(repr(tuple(row)) for row in frame.collect())


def fill(address: Path, events: list[tuple[Any, ...]], partitions: int = 2) -> None:
    with headwater.open(address) as hw:
        hw.create("orders", partitions=partitions)
        for key, type, document in events:
            content = "bson" if isinstance(document.get("x"), float) else "json"
            data = bson.encode(document) if content == "bson" else json.dumps(document, default=str).encode()
            hw.append("orders", data, key=key, type=type, content=content)  # type: ignore[arg-type]  # one of the two


def some_events(count: int) -> list[tuple[Any, ...]]:
    """Events with all that is odd: fields that are missing, null or of another type, no key, NaN."""
    draw = random.Random(8)
    choices: dict[str, list[Any]] = {
        "n": [None, 1, -(2**55), 2**55, "odd"],
        "price": [0.25, -999.99, "7.5", 1e9],
        "at": ["2024-02-29T10:00:00+02:00", "2024-02-29", "no time"],
        "tag": ["", "a", "ü"],
        "by": [{"name": "x"}, {"name": "y"}, {}, None],
        "ok": [True, False],
    }
    found = []
    for _ in range(count):
        document = {name: draw.choice(values) for name, values in choices.items() if draw.random() < 0.7}
        if draw.random() < 0.3:
            document["x"] = draw.choice([float("nan"), 1.5, -0.5, float("inf")])
        found.append((draw.choice([None, b"a", b"b", b""]), draw.choice(["", "paid", "sent"]), document))
    return found


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    address = tmp_path_factory.mktemp("orders")
    fill(address, some_events(400))
    return address


@pytest.mark.parametrize("by", ["type", "key", [], ["by.name", "partition"], ["price", "ok", "x"]], ids=str)
def test_it_is_what_spark_finds(spark: SparkSession, orders: Path, by: Any) -> None:
    sums = ["n", "price", "data_bytes", "partition"]
    ends = ["offset", "time", "tag", "key", "price", "at", "n", "ok", "x", "type"]
    found = headwater.spark.aggregate(spark, str(orders), "orders", by=by, sum=sums, min=ends, max=ends, schema=FIELDS)
    columns = [f"`{name}`" for name in ([by] if isinstance(by, str) else by)]
    expected = (
        source(spark, orders)
        .groupBy(*columns)
        .agg(
            f.count("*").alias("count"),
            *[f.sum(name).alias(f"sum({name})") for name in sums],
            *[f.min(name).alias(f"min({name})") for name in ends],
            *[f.max(name).alias(f"max({name})") for name in ends],
        )
    )
    assert found.dtypes == expected.dtypes
    assert plain(found) == plain(expected)


def test_an_empty_topic_has_no_groups_and_a_count_of_0(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, [])
    assert headwater.spark.aggregate(spark, str(tmp_path), "orders", by="type").collect() == []
    ((count, total),) = headwater.spark.aggregate(spark, str(tmp_path), "orders", sum="offset").collect()
    assert (count, total) == (0, None)


def test_only_what_the_options_of_a_read_choose_is_aggregated(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, [(b"k%d" % (n % 3), "paid" if n % 2 else "sent", {"n": n}) for n in range(20)], partitions=1)

    def total(**chosen: Any) -> list[Any]:
        found = headwater.spark.aggregate(spark, str(tmp_path), "orders", sum="n", schema="n bigint", **chosen)
        return [tuple(row) for row in found.collect()]

    assert total(start=5, end=10) == [(5, 5 + 6 + 7 + 8 + 9)]
    assert total(start={0: 18}) == [(2, 18 + 19)]
    assert total(type="paid", key=b"k1") == [(4, 1 + 7 + 13 + 19)]
    assert total(match={"n": {"$gt": 16}}) == [(3, 17 + 18 + 19)]
    assert total(end="2001-01-01T00:00:00Z") == [(0, None)]


def test_huge_events_are_aggregated_as_well(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, [(b"k", "", {"n": 1, "note": "x" * 2_000_000}), (b"k", "", {"n": 2})])
    found = headwater.spark.aggregate(spark, str(tmp_path), "orders", sum=["n", "data_bytes"], schema="n bigint")
    ((count, total, size),) = found.collect()
    assert (count, total) == (2, 3)
    assert size > 2_000_000


def test_many_pieces_are_many_tasks(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, [(b"k", "", {"n": n}) for n in range(50)], partitions=3)
    frames = []
    for most in (1, 1024**3):
        monkeypatch.setattr(aggregating, "TASK_BYTES_MAX", most)
        frames.append(headwater.spark.aggregate(spark, str(tmp_path), "orders", by="partition", max="offset"))
    one, two = frames
    assert plain(one) == plain(two)


def test_a_sum_that_is_too_large_is_an_error_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, [(None, "", {"n": 2**62}), (None, "", {"n": 2**62})], partitions=1)
    with pytest.raises(PythonException, match="a sum does not fit int64"):
        headwater.spark.aggregate(spark, str(tmp_path), "orders", sum="n", schema="n bigint").collect()
    wide = headwater.spark.aggregate(spark, str(tmp_path), "orders", count=False, sum="n", schema="n decimal(20, 0)")
    assert wide.collect()[0][0] == Decimal(2**63)


def test_a_field_that_is_called_as_a_column_of_the_log(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, [(None, "of log", {"type": "of data"})])
    found = headwater.spark.aggregate(
        spark, str(tmp_path), "orders", by=["type", "data.type"], schema="`data.type` string"
    )
    assert [tuple(row) for row in found.collect()] == [("of log", "of data", 1)]


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"by": "nothing"}, "unknown column 'nothing'"),
        ({"count": False}, "no aggregate is given"),
        ({"sum": "type"}, "type is string, which cannot be summed"),
        ({"min": "tags", "schema": "tags array<int>"}, "tags is array<int>, which cannot be ordered"),
        ({"start": "nowhere"}, "not a position"),
        ({"mode": "loud"}, "mode must be permissive or failfast"),
    ],
)
def test_what_cannot_be_aggregated_is_refused(
    spark: SparkSession, tmp_path: Path, chosen: dict[str, Any], why: str
) -> None:
    fill(tmp_path, [])
    with pytest.raises(Invalid, match=why):
        headwater.spark.aggregate(spark, str(tmp_path), "orders", **chosen)


def test_a_topic_that_is_not_there_is_told_at_once(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, [])
    with pytest.raises(NotFound, match="nothing"):
        headwater.spark.aggregate(spark, str(tmp_path), "nothing")
