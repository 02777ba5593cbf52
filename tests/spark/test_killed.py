"""Drivers that are killed in the midst of a streaming write, and started again from their checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headwater
from tests.spark.staged import files, manifests
from tests.spark.test_sink import lines, numbers, read, stream
from tests.waiting import wait_for

BATCHES, EACH = 8, 400

START_S = 280  # of a session, and what it does, on a busy machine


def start(tmp_path: Path, format: str) -> subprocess.Popen[bytes]:
    places = (str(tmp_path / name) for name in ("in", "checkpoint", "data"))
    return subprocess.Popen([sys.executable, "-m", "tests.spark.drivers", *places, format], start_new_session=True)


def count(tmp_path: Path) -> int:
    try:
        with headwater.open(tmp_path / "data", mode="existing") as hw:
            return sum(partition.end for partition in hw.describe("orders").partitions)
    except headwater.NotFound:
        return 0


def killed_in_a_batch(tmp_path: Path) -> str:
    """Kill a driver when a part of its second batch is published; the name of the query."""
    with start(tmp_path, "dying") as driver:
        assert driver.wait(timeout=START_S) == -signal.SIGKILL
    assert EACH < count(tmp_path) < 2 * EACH  # the first batch, and some of the second
    (pending,) = (name for name in manifests(tmp_path / "data") if name.endswith(f"{1:020d}"))
    assert files(tmp_path / "data")
    return pending.partition(".")[0]


def check(tmp_path: Path, query: str, batches: int) -> None:
    found = numbers(read(tmp_path / "data"))
    assert len(found) == batches * EACH
    assert sorted(found) == list(range(batches * EACH))
    assert not files(tmp_path / "data")
    assert manifests(tmp_path / "data") == [f"{query}.{batches - 1:020d}"]


def test_a_driver_is_killed_and_nothing_is_lost_or_twice(spark: SparkSession, tmp_path: Path) -> None:
    """In the midst of publishing a batch; another driver, that of the tests, goes on from its checkpoint."""
    lines(tmp_path / "in", 3, EACH)
    query = killed_in_a_batch(tmp_path)
    stream(spark, tmp_path / "in", tmp_path / "checkpoint", tmp_path / "data", partitions=2)
    check(tmp_path, query, 3)


@pytest.mark.torture  # it starts Spark three times
@pytest.mark.timeout(900)
def test_a_driver_is_killed_twice_and_nothing_is_lost_or_twice(tmp_path: Path) -> None:
    """First when a part of a batch is published, then anywhere, from outside."""
    lines(tmp_path / "in", BATCHES, EACH)
    query = killed_in_a_batch(tmp_path)
    with start(tmp_path, "headwater") as driver:
        wait_for(lambda: count(tmp_path) > 3 * EACH, START_S)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    with start(tmp_path, "headwater") as driver:
        assert driver.wait(timeout=START_S) == 0
    check(tmp_path, query, BATCHES)
