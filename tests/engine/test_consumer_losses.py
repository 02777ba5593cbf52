"""Consumers that something is taken from: by a crash of their maker, or by retention."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.machine import Loss
from tests.engine.stage import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def test_a_consumer_whose_maker_was_killed_is_durable_for_whoever_joins_it(stage: Stage) -> None:
    stage.engines[0].append_many("t", [b"a", b"b"])
    stage.begin()
    stage.engines[0].consumer("c", "t", timeout=0)
    [renamed] = [n for n, op in enumerate(stage.disk.trace) if op.target.endswith("consumers/c/t")]
    stage.kill(renamed + 1)
    stage.begin()
    consumer = stage.engines[0].consumer("c", "t", timeout=0)
    consumer.ack(next(consumer))
    consumer.flush()
    stage.boot(stage.lose_power(stage.operations())(Loss("dropped", "dropped")))
    assert [(info.name, info.cursor) for info in stage.engines[0].consumers("t")] == [("c", 1)]


def test_a_consumer_without_time_goes_on_after_what_retention_took(stage: Stage) -> None:
    hw = stage.engines[0]
    for number in range(30):
        hw.append("t", b"%d" % number)
    consumer = hw.consumer("c", "t", timeout=0)
    [deleted, *_] = hw.retain("t", before=30)
    start = hw.describe("t").partitions[0].start
    assert deleted.first == 0
    assert [event.offset for event in consumer] == list(range(start, 30))
    assert consumer.skipped == start
