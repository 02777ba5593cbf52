"""Profiles of hypothesis: `default` for every run, `torture` for `make torture`. And what tests share."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from headwater import Limits, Store
from headwater.limits import DEFAULTS
from headwater.opening import open_directory
from tests.log.unsynced import UnsyncedDisk

pytest_plugins = ["tests.server.fixtures", "tests.servers", "tests.spark_session"]

# No deadline: the time of one example says more about the machine's other work than about the code.
# The same examples each time, so that a failure is of the change that is tested; `torture` draws new ones.
settings.register_profile("default", deadline=None, max_examples=100, derandomize=True)
settings.register_profile("torture", deadline=None, max_examples=5_000)
settings.load_profile("default")

# A shell has what it runs in the background ignore Ctrl-C, and so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long, so that no process of a run ends long before another."""
    items.sort(key=turn)


def turn(item: pytest.Item) -> int:
    """When a test comes: first the group of Spark, which one process runs, then those with a timeout of their own.

    Those that start a Java of their own come after other long ones: the group has made an archive of classes by then.
    """
    if item.get_closest_marker("xdist_group"):
        return 0
    if "java_classes" in getattr(item, "fixturenames", ()):
        return 2
    return 1 if item.get_closest_marker("timeout") else 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where `hw` is; nothing is there before."""
    return tmp_path / "data"


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a name that no other test uses; the topic is not created."""
    return f"topic of {request.node.name}"


@pytest.fixture
def limits() -> Limits:
    """The limits of `hw`; a module that needs others defines this fixture."""
    return DEFAULTS


@pytest.fixture
def hw(path: Path, limits: Limits) -> Iterator[Store]:
    """An open directory without topics, whose disk does not wait for the medium."""
    with open_directory(path, limits=limits, disk=UnsyncedDisk()) as opened:
        yield opened
