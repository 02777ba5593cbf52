"""The one session that the tests of Spark share. They are all run by one process, so that no second one is started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.people import add
from tests.servers import shared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
SHORT_SESSION = """
import headwater.spark
spark = headwater.spark.session("local[2]", quick=True, memory="512m")
spark.range(9).selectExpr("id % 2 AS odd").groupBy("odd").count().collect()
spark.stop()
"""
TIMEOUT_S = 240  # the first to run waits for Spark to start; one that is ended in a call leaves others no session


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "spark" in fixtures:
            item.add_marker(pytest.mark.xdist_group("spark"))
        if "java_classes" in fixtures and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file of users for servers: one may do everything, and its token is in the environment of the session."""
    path = tmp_path_factory.mktemp("users") / "users.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWATER_TOKEN", add(path, "spark", token=True))
        yield path


@pytest.fixture(scope="session")
def java_classes() -> None:
    """The archive of the classes that Spark loads, which each session of a new machine would make for itself.

    A session that finds it takes a sixth of the processor time to start and to end; so the first test that starts one
    has a short session make it, while other processes of the run go on with other tests.
    """
    shared("java_classes", make_java_classes)


def make_java_classes(_: Path) -> dict[str, Any]:
    from headwater.spark import installation

    if not list(installation.java_home().glob("*-quick.jsa")):
        # Java keeps the pipe until it has written the archive and ends.
        subprocess.run([sys.executable, "-c", SHORT_SESSION], capture_output=True, timeout=TIMEOUT_S, check=True)
    return {}


@pytest.fixture(scope="session")
def spark_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's processes work, for ever: relative paths mean the same to all only for who is there, too."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(spark_directory: Path, users_file: Path, java_classes: None) -> Iterator[SparkSession]:  # noqa: ARG001  # are first
    import headwater.spark

    config = {"spark.sql.warehouse.dir": str(spark_directory / "warehouse"), "spark.sql.shuffle.partitions": "2"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(spark_directory)
        patch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")  # what tests define is imported in workers
        session = headwater.spark.session("local[2,3]", quick=True, memory="512m", config=config)
    yield session
    session.stop()
