"""`headwater pipeline run`: in this process over the shared session, and in others that are killed and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

import headwater
from headwater.cli.app import cli
from headwater.spark.pipelines import runs
from tests.cli.conftest import PROGRAM
from tests.server.process import served
from tests.waiting import wait_for

PATIENCE_S = 240.0  # for another process that starts a Spark of its own
EVENTS = 2000

SHOP = """
    import headwater
    from pyspark.sql import functions as f

    app = headwater.App()
    chosen = {"mode": "stream", "schema": "n bigint", "every": 2, "options": {"maxEventsPerTrigger": 400}}

    @app.pipeline("orders", to="topic:copy", **chosen)
    def copy(orders):
        return orders.select("n", "key")

    @app.pipeline("orders", to="parquet:lake", **chosen)
    def lake(orders):
        return orders.select("n", "type")

    @app.pipeline("orders", to="binder:keys", **chosen)
    def keys(orders):
        by_key = orders.groupBy(f.col("key").cast("string").alias("_id"))
        return by_key.agg(f.count("n").alias("count"), f.sum("n").alias("sum"))

    @app.pipeline("orders", to="parquet:total", schema="n bigint")
    def total(orders):
        return orders.agg(f.sum("n").alias("sum"))

    @app.pipeline("orders", to="parquet:bad")
    def bad(orders):
        raise RuntimeError("no tea")
"""


@pytest.fixture
def shop_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_on_spark.py").write_text(dedent(SHOP))
    with headwater.open(tmp_path / "data") as hw:
        hw.create("orders", partitions=2)
    append(tmp_path, 0, 30)
    return tmp_path


def append(shop: Path, first: int, end: int) -> None:
    with headwater.open(shop / "data") as hw:
        for number in range(first, end):
            hw.append("orders", {"n": number}, key=f"k-{number % 7}", type="sold", durability="os")


def headwater_(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, words, prog_name="headwater")
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def test_pipelines_run_by_name_and_tell_what_they_did(spark: SparkSession, shop_directory: Path) -> None:
    result = headwater_("pipeline", "run", "shop_on_spark.py", "--only", "total", "--only", "copy")
    assert "total: 30 events → 1 row in parquet:total" in result.stdout
    assert "copy: 30 events → 30 rows in topic:copy" in result.stdout
    assert spark.read.parquet(str(shop_directory / "total")).first()[0] == sum(range(30))  # type: ignore[index]
    assert not (shop_directory / "lake").exists()
    result = headwater_("pipeline", "run", "shop_on_spark.py", "data", "--only", "copy")
    assert "copy: nothing new" in result.stdout
    assert "idle" in headwater_("pipeline", "status").stdout


def test_one_that_fails_is_told_with_its_name_and_why(spark: SparkSession, shop_directory: Path) -> None:
    assert spark.version
    result = headwater_("pipeline", "run", "shop_on_spark.py", "--only", "bad", code=1)
    assert "pipeline 'bad' failed: RuntimeError: no tea (shop_on_spark.py, line 27)" in result.stderr
    assert "Traceback" not in result.stderr
    assert "\tat " not in result.stderr
    assert "no tea" in headwater_("pipeline", "status", str(shop_directory / "data"), code=1).stdout


def test_a_file_may_hold_the_token_for_a_server(
    spark: SparkSession, shop_directory: Path, users_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark.version
    (shop_directory / "token").write_text(os.environ["HEADWATER_TOKEN"])
    with headwater.open(shop_directory / "data") as hw:
        hw.sync("orders")
    monkeypatch.delenv("HEADWATER_TOKEN")  # of this process: workers have it from when the session began
    with served(shop_directory / "data", "--auth", str(users_file)) as server:
        words = ["pipeline", "run", "shop_on_spark.py", server.url, "--only", "total", "--checkpoints", "state"]
        assert "credentials required" in headwater_(*words, code=1).stderr
        assert "total: 30 events" in headwater_(*words, "--token-file", "token").stdout


# A process of its own, with all that it starts. How a topic's stream survives that is in test_killed.py.


def started(shop: Path) -> subprocess.Popen[bytes]:
    words = ["pipeline", "run", "shop_on_spark.py", "--follow", "--only", "lake", "--only", "keys"]
    settings = ["--master", "local[2]", "--memory", "512m", "--config", "spark.sql.shuffle.partitions=2"]
    with (shop / "output").open("ab") as output:
        return subprocess.Popen([*PROGRAM, *words, *settings], cwd=shop, stderr=output, start_new_session=True)


def wait_until(shop: Path, process: subprocess.Popen[bytes], reached: Callable[[int], bool]) -> None:
    """Until both have come so far."""

    def have_come_so_far() -> bool:
        assert process.poll() is None, (shop / "output").read_text()
        found = [sum(each.reached.get("orders", {}).values()) for each in runs.statuses(shop / "data/pipelines")]
        return len(found) == 2 and all(map(reached, found))

    wait_for(have_come_so_far, PATIENCE_S)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.timeout(600)
@pytest.mark.torture  # it starts Spark three times
def test_streams_that_are_killed_go_on_with_nothing_lost_and_nothing_twice(
    spark: SparkSession, shop_directory: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    append(shop_directory, 30, EVENTS)
    killed = started(shop_directory)
    processes.append(killed)
    wait_until(shop_directory, killed, lambda events: events >= 400)
    os.killpg(killed.pid, signal.SIGKILL)  # with the Spark that it has started
    killed.wait()
    assert {each.state for each in runs.statuses(shop_directory / "data/pipelines")} == {"interrupted"}
    stopped = started(shop_directory)
    processes.append(stopped)
    wait_until(shop_directory, stopped, lambda events: events == EVENTS)
    append(shop_directory, EVENTS, EVENTS + 100)
    wait_until(shop_directory, stopped, lambda events: events == EVENTS + 100)
    stopped.send_signal(signal.SIGINT)
    assert stopped.wait(PATIENCE_S) == 0, (shop_directory / "output").read_text()
    assert {each.state for each in runs.statuses(shop_directory / "data/pipelines")} == {"idle"}
    _check(spark, shop_directory, EVENTS + 100)


def _check(spark: SparkSession, shop: Path, count: int) -> None:
    assert [row.n for row in spark.read.parquet(str(shop / "lake")).orderBy("n").collect()] == list(range(count))
    with headwater.open(shop / "data") as hw:
        found = {document.id: document.data for document in hw.binder("keys").find()}
    counts = Counter(number % 7 for number in range(count))
    sums = {key: sum(range(key, count, 7)) for key in range(7)}
    assert found == {f"k-{key}": {"count": counts[key], "sum": sums[key]} for key in range(7)}
