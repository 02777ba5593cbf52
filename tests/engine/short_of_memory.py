"""Memory that runs out anywhere in a verb is told as Headwater tells it, and the log goes on."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.errors import HeadwaterError, Unavailable
from headwater.store import Store
from tests.log.interrupting import raised
from tests.log.unsynced import open_unsynced
from tests.server.serving import Server

# errors.py turns it into an error, and has no memory to lose.
ROOMS = ("directory/", "bucket/", "remote/", "consumers/", "log/", "disk/", "format/", "requests.py", "event.py")
WITHIN = tuple(f"headwater/{part}" for part in ROOMS)

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(params=["directory", "bucket", "server"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, server: Server) -> Iterator[Store]:
    if request.param == "directory":
        opened: Store = open_unsynced(tmp_path / "data")
    else:
        opened = headwater.open(f"objects://{tmp_path}/objects" if request.param == "bucket" else server.url)
    with opened:
        opened.create("t")
        for number in range(3):
            opened.append("t", {"n": number}, key=b"k")
        yield opened


def in_transaction(hw: Any) -> None:
    with hw.transaction() as tx:
        tx.append("t", {"n": 1})
        tx.append_many("t", [{"n": 2}])


def follow(hw: Any) -> None:
    with hw.follow("t", start="earliest", timeout=0) as following:
        for _ in following:
            pass


def consume(hw: Any) -> None:
    with hw.consumer(secrets.token_hex(4), "t") as consumer:  # another one: what failed may have left a lease
        for event in consumer.drain():
            consumer.ack(event)


VERBS: dict[str, Callable[[Any], object]] = {
    "append": lambda hw: hw.append("t", {"n": 1}, key="k", type="made", meta={"a": "b"}),
    "append of bytes": lambda hw: hw.append("t", b"bytes"),
    "append_many": lambda hw: hw.append_many("t", [{"n": 1}, {"n": 2}]),
    "create": lambda hw: hw.create("t"),
    "describe": lambda hw: hw.describe("t"),
    "read": lambda hw: list(hw.read("t", end=3)),
    "read_batches": lambda hw: list(hw.read_batches("t", end=3)),
    "transaction": in_transaction,
    "follow": follow,
    "consumer": consume,
}


@pytest.mark.parametrize("name", VERBS)
def test_no_verb_raises_a_memory_error(opened: Store, name: str) -> None:
    refused = 0
    for number in accumulate(repeat(0), lambda before, _: before + 1 + before // 5):  # ever farther apart
        try:
            if not raised(MemoryError, lambda: VERBS[name](opened), number, WITHIN):
                break
        except HeadwaterError as error:
            refused += error.code == "out_of_memory"
    assert refused > 0
    with contextlib.suppress(Unavailable):  # a bucket that knows less than before looks again
        opened.append("t", b"after")
    opened.append("t", b"after")
    assert [event.data for event in opened.read("t")][-1] == b"after"
