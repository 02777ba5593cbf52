"""The events that Spark works on: the same in a topic, in an archive with a tail, and in Parquet that Spark wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import headwater

TOPIC = "orders"
PARTITIONS = 4
KEYS = 200_000
TYPES = pa.array(["placed", "paid", "packed", "shipped", "returned"])
STEP = 500_000  # events that are made at a time
APPEND = 10_000  # events in one batch, as from a busy writer
_join: Any = pc.binary_join_element_wise  # typed for arrays alone, and takes scalars as well


@dataclass(frozen=True)
class Events:
    """Where they are, and how many."""

    log: Path
    parquet: Path
    count: int


def orders(first: int, count: int) -> pa.Table:
    """Events of about 100 bytes of JSON, of many customers; which ones follows from `first`."""
    random = np.random.default_rng(first)
    customers = (KEYS * random.random(count) ** 2).astype(np.int64)
    cents = random.integers(100, 100_000, count)
    parts = [
        '{"order":',
        _text(np.arange(first, first + count)),
        ',"customer":',
        _text(customers),
        ',"cents":',
        _text(cents),
        ',"product":"p-',
        _text(random.integers(0, 100, count)),
        '","note":"',
        _text(random.integers(10**14, 10**15, count)),
        '"}',
    ]
    data = _join(*parts, "")
    keys = _join("c-", _text(customers), "")
    types = TYPES.take(random.integers(0, len(TYPES), count))
    return pa.table({"data": data.cast(pa.binary()), "key": keys.cast(pa.binary()), "type": types})


def _text(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    return pa.array(numbers).cast(pa.string())


def fill(log: Path, count: int) -> None:
    """A sealed log with so many events."""
    with headwater.open(log, durability="os") as hw:
        hw.create(TOPIC, partitions=PARTITIONS)
        append(hw, 0, count)
        hw.seal(TOPIC)


def append(hw: headwater.Store, first: int, count: int) -> None:
    for start in range(first, first + count, STEP):
        made = orders(start, min(STEP, first + count - start))
        for lo in range(0, made.num_rows, APPEND):
            hw.append_arrow(TOPIC, made.slice(lo, APPEND), content="json")


def make(spark: SparkSession, directory: Path, count: int) -> Events:
    """The log, and the same events as Spark's own Parquet, compressed with zstd."""
    log, parquet = directory / "log", directory / "parquet"
    fill(log, count)
    frame = spark.read.format("headwater").option("topic", TOPIC).load(str(log))
    frame.write.option("compression", "zstd").parquet(str(parquet))
    return Events(log, parquet, count)
