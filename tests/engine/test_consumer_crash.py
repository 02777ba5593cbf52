"""Consumers whose maker was killed: whoever joins them later builds on something that stays."""

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
    stage.boot(stage.lose_power(stage.operations(), Loss("dropped", "dropped")))
    assert [(info.name, info.cursor) for info in stage.engines[0].consumers("t")] == [("c", 1)]
