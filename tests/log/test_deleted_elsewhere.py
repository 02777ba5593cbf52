"""A topic that another process deletes and makes again, many times, leaves nobody stuck with the old one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import HeadwaterError, NotFound, Unavailable
from headwater.event import Event
from headwater.store import Store
from tests.log.children import Child, Said
from tests.log.unsynced import open_unsynced
from tests.opened import join

ROUNDS = 150
RETRYABLE = {"locked", "topic_deleted", "topic_not_found", "not_found", "offset_gone", "consumer_not_found"}


def append(hw: Store, number: int) -> None:
    hw.append("t", b"%d" % number, durability="os")


def append_durably(hw: Store, number: int) -> None:
    hw.append("t", b"%d" % number, key=b"k", producer=(f"p{random.random()}", 1, 1))


def append_many(hw: Store, number: int) -> None:
    hw.append_many("t", [b"%d" % number, b"more"])


def transact(hw: Store, number: int) -> None:
    with hw.transaction() as tx:
        tx.append("t", b"%d" % number)
        tx.append("other", b"")


def read(hw: Store, _: int) -> None:
    assert all(isinstance(event, Event) for event in hw.read("t"))


def consume(hw: Store, _: int) -> None:
    with join(hw, "c", "t") as consumer:
        for event in consumer.take(5, 1 << 20, 0.0):
            consumer.ack(event)


def follow(hw: Store, _: int) -> None:
    for _event in hw.follow("t", timeout=0.001):
        pass


WORKS: list[Callable[[Store, int], Any]] = [append, append_durably, append_many, transact, read, consume, follow]


def working(path: Path, work: Callable[[Store, int], Any]) -> Callable[[Said], list[str]]:
    """Do it again and again until told to stop; tells what was raised that is none of what a caller can handle."""

    def run(said: Said) -> list[str]:
        odd: list[str] = []
        with open_unsynced(path) as hw:
            said.send("ready")
            number = 0
            while not said._pipe.poll():
                number += 1
                try:
                    work(hw, number)
                except (NotFound, Unavailable) as error:
                    if error.code not in RETRYABLE:
                        odd.append(repr(error) + error.code)
                except HeadwaterError as error:
                    odd.append(repr(error))
            said.recv()
            said.send("stopped")
            said.recv()  # the topic stays as it is from now on
            for _ in range(3):
                work(hw, 0)
        return odd

    return run


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_whoever_uses_a_topic_goes_on_with_the_one_that_was_made_again(tmp_path: Path, work: Any) -> None:
    path = tmp_path / "data"
    with open_unsynced(path) as hw:
        hw.create("t")
        hw.append("other", b"")
        children = [Child(working(path, work)) for _ in range(3)]
        for child in children:
            assert child.hear() == "ready"
        for number in range(ROUNDS):
            hw.delete("t")
            hw.create("t")
            if number % 3 == 0:
                hw.append("t", b"made again")
        for child in children:
            child.tell()
            assert child.hear() == "stopped"
        hw.delete("t")
        hw.create("t")
        hw.append("t", b"the last")
        for child in children:
            child.tell()
        odd = [child.result() for child in children]
        assert not any(odd), odd[0][:3]
        (partition,) = hw.describe("t").partitions
        events = list(hw.read("t"))
        assert [event.offset for event in events] == list(range(partition.end))
        added = {"append": 9, "append_durably": 9, "append_many": 18, "transact": 9}.get(work.__name__, 0)
        assert len(events) == 1 + added
        assert not hw.check().damaged
