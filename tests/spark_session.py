"""The one session that the tests of Spark share. They are all run by one process, so that no second one is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.server.people import add

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file of users for servers: one may do everything, and its token is in the environment of the session."""
    path = tmp_path_factory.mktemp("users") / "users.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWATER_TOKEN", add(path, "spark", token=True))
        yield path


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, users: Path) -> Iterator[SparkSession]:  # noqa: ARG001  # first
    import headwater.spark

    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    config = {"spark.sql.warehouse.dir": str(warehouse), "spark.sql.shuffle.partitions": "2"}
    session = headwater.spark.session("local[2,3]", quick=True, memory="512m", config=config)
    yield session
    session.stop()
