"""`headwater archive --on spark`: from a directory, a bucket and a server, to a directory and a bucket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater
import headwater.spark
from headwater.errors import Corrupt
from headwater.history.check import check_archive_at
from headwater.history.records import open_history
from tests.archive.tables import archived, files, logged, manifests
from tests.cli.conftest import Run, run
from tests.server.process import served
from tests.servers import Seaweed
from tests.waiting import wait_for

__all__ = ["run"]  # a fixture

EVENTS = 600


def fill(hw: headwater.Store) -> None:
    hw.create("t", partitions=2, segment_bytes=4096)
    for lo in range(0, EVENTS, 50):
        many = range(lo, lo + 50)
        hw.append_many(
            "t",
            [{"n": n, "note": "x" * 100} for n in many],
            keys=[f"k{n % 7}" for n in many],
            types=[f"y{n % 3}" for n in many],
        )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with headwater.open(tmp_path / "data", durability="os") as hw:
        fill(hw)
        hw.append("t", b"z" * 2_000_000, meta={"huge": "yes"})
        hw.append("t", "last")
    return tmp_path / "data"


@pytest.fixture
def opened(data: Path) -> Iterator[headwater.Store]:
    with headwater.open(data) as hw:
        yield hw


def test_all_of_a_directory_and_again_nothing(spark: SparkSession, opened: headwater.Store, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    target = str(tmp_path / "out")

    def progress(done: int, total: int) -> None:
        told.append((done, total))

    done = headwater.spark.archive(spark, str(opened.path), target, seal=True, progress=progress)
    assert len(done) > 4
    assert sum(each.end - each.first for each in done) == EVENTS + 2
    assert archived(tmp_path / "out").equals(logged(opened))
    assert told[-1][0] == told[-1][1]
    assert headwater.spark.archive(spark, str(opened.path), target, seal=True) == []
    assert not check_archive_at(target).findings


def test_spark_reads_it_as_plain_parquet(spark: SparkSession, opened: headwater.Store, tmp_path: Path) -> None:
    headwater.spark.archive(spark, str(opened.path), str(tmp_path / "out"), seal=True)
    frame = spark.read.parquet(f"{tmp_path}/out/t/*")
    assert frame.dtypes[:9] == [
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("time", "timestamp"),
        ("id", "string"),
        ("type", "string"),
        ("key", "binary"),
        ("data", "binary"),
        ("meta", "string"),
    ]
    rows = frame.orderBy("partition", "offset").collect()
    expected = logged(opened).to_pylist()
    assert [(row.id, row.type, row.key, row.data, row.meta, row.content, row.ticks) for row in rows] == [
        tuple(row[name] for name in ("id", "type", "key", "data", "meta", "content", "ticks")) for row in expected
    ]


def test_what_a_task_finds_damaged_the_driver_tells(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    with headwater.open(data) as hw:
        hw.seal("t")
    harmed = sorted((data / "topics" / "t" / "0").glob("*.log"))[1]
    stored = bytearray(harmed.read_bytes())
    stored[len(stored) // 2] ^= 1
    harmed.write_bytes(stored)
    with pytest.raises(Corrupt, match="checksum") as raised:
        headwater.spark.archive(spark, str(data), str(tmp_path / "out"), seal=True)
    assert raised.value.path == str(harmed)
    assert manifests(tmp_path / "out")[0].end == int(harmed.stem)
    assert not check_archive_at(str(tmp_path / "out")).damaged


KILLED = """
import sys
import headwater.spark
spark = headwater.spark.session("local[2]", quick=True, memory="512m")
headwater.spark.archive(spark, sys.argv[1], sys.argv[2], seal=True)
print("all of it", flush=True)
"""


def test_killed_in_the_midst_it_goes_on(spark: SparkSession, opened: headwater.Store, tmp_path: Path) -> None:
    target = str(tmp_path / "out")
    command = [sys.executable, "-c", KILLED, str(opened.path), target]
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, env=environment)
    try:
        wait_for(lambda: _begun(target) or process.poll() is not None, 60)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # Python, Java and the workers
        output, _ = process.communicate()
    assert b"all of it" not in output
    before = sum(log.end for log in manifests(tmp_path / "out") if log.parts)
    assert 0 < before < EVENTS + 2
    headwater.spark.archive(spark, str(opened.path), target, seal=True)
    assert archived(tmp_path / "out").equals(logged(opened))
    assert {*(tmp_path / "out").rglob("*.parquet")} == {*files(tmp_path / "out")}
    assert not check_archive_at(target).findings


def _begun(target: str) -> bool:
    store = open_history(target)
    return any(store.manifest(topic, number).parts for topic in store.topics() for number in range(topic.partitions))


def test_from_a_server(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    with served(data) as server:
        target = str(tmp_path / "out")
        finished = headwater.spark.archive(spark, server.url, target)
        rest = headwater.spark.archive(spark, server.url, target, seal=True, file_bytes=3000)
        assert finished  # the server tells what is
        assert rest
        assert headwater.spark.archive(spark, server.url, target, seal=True) == []
    with headwater.open(data) as hw:
        assert archived(tmp_path / "out").equals(logged(hw))


def test_from_a_bucket_to_a_bucket_and_back(spark: SparkSession, seaweed: Seaweed, tmp_path: Path) -> None:
    source, target = (seaweed.url(f"{tmp_path.name}-{os.getpid()}/{name}") for name in ("log", "out"))
    with headwater.open(source) as hw:
        fill(hw)
        expected = _told(hw)
        headwater.spark.archive(spark, source, target, seal=True, file_bytes=10_000)
        assert headwater.spark.archive(spark, source, target, seal=True) == []
    assert not check_archive_at(target).findings
    headwater.restore(target, tmp_path / "back")
    with headwater.open(tmp_path / "back") as back:
        assert _told(back) == expected
    table = headwater.spark.table(spark, source, "t")
    assert {(row.partition, row.offset, row.id) for row in table.collect()} == {each[:3] for each in expected}


def _told(hw: Any) -> set[tuple[Any, ...]]:
    return {(each.partition, each.offset, str(each.id), each.type, each.key, each.data) for each in hw.read("t")}


def test_the_command(spark: SparkSession, run: Run, data: Path, tmp_path: Path) -> None:
    assert spark.version  # which the command finds
    target = str(tmp_path / "out")
    (told,) = run("archive", "--on", "spark", data, target, "--seal", "--json").objects
    assert told["events"] == EVENTS + 2
    assert told["archived"][0]["topic"] == "t"
    assert run("archive", "--on", "spark", data, "--seal").lines[0].startswith("✓ all finished segments are already in")
    run("append", data, "t", "more")
    assert run("archive", "--on", "spark", data, "--seal").lines[0].startswith("✓ archived 1 event in 1 file")
    assert run("check", target).lines[0].startswith(f"✓ all good: 1 topic, 2 partitions, {EVENTS + 3} events")
    run("restore", target, tmp_path / "back")
    assert run("read", tmp_path / "back", "t", "--json").out == run("read", data, "t", "--json").out
    path = files(tmp_path / "out")[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert "cut short" in run("check", target, code=1).out


def test_what_the_command_refuses_before_spark_starts(run: Run, data: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "out")
    for words, told in [
        (("--on", "spark", data), "was never archived"),
        (("--on", "spark", tmp_path / "nowhere", target), "is not a log"),
        (("--on", "spark", data, target, "--topic", "nowhere"), "nowhere"),
    ]:
        ran = run("archive", *words, code=1 if "nowhere" in str(words) else 2)
        assert told in ran.err, ran.err
    assert not (tmp_path / "out").exists()
