"""What retention keeps for real consumers, and what a consumer does when it was too slow."""

from __future__ import annotations

from itertools import islice

import pytest

from headwater.errors import Unavailable
from headwater.store import Store

SEGMENT_BYTES = 4096
EVENT = b"x" * 1000


@pytest.fixture(autouse=True)
def topics(hw: Store) -> None:
    hw.create("t", segment_bytes=SEGMENT_BYTES)


def fill(hw: Store, count: int) -> None:
    for _ in range(count):
        hw.append("t", EVENT)


def take(hw: Store, name: str, count: int) -> None:
    with hw.consumer(name, "t", timeout=0) as consumer:
        consumer.ack(list(islice(consumer, count)))


def start(hw: Store) -> int:
    return hw.describe("t").partitions[0].start


def test_nothing_is_deleted_that_the_slowest_consumer_has_not_passed(hw: Store) -> None:
    fill(hw, 30)
    take(hw, "quick", 30)
    take(hw, "slow", 11)
    hw.retain("t", retention_segments=1, retention_consumers=True)
    assert 0 < start(hw) <= 11
    [slow] = [info for info in hw.consumers("t") if info.name == "slow"]
    assert slow.cursor == 11
    take(hw, "slow", 19)
    hw.retain("t")
    assert start(hw) > 11
    hw.forget("slow", "t")
    hw.forget("quick", "t")
    hw.retain("t", retention_consumers=False)
    assert hw.describe("t").partitions[0].segments == 1


def test_a_consumer_that_was_too_slow_goes_on_at_the_oldest_and_tells(hw: Store) -> None:
    fill(hw, 30)
    take(hw, "slow", 2)
    hw.retain("t", retention_consumers=True, retention_bytes_hard=3 * SEGMENT_BYTES, overflow="delete")
    oldest = start(hw)
    assert oldest > 2
    with hw.consumer("slow", "t", timeout=0) as consumer:
        events = list(consumer)
        assert [event.offset for event in events] == list(range(oldest, 30))
        assert consumer.skipped == oldest - 2
        consumer.ack(events)
    assert hw.consumers("t")[0].cursor == 30


def test_appends_are_refused_until_the_slowest_consumer_has_caught_up(hw: Store) -> None:
    take(hw, "slow", 0)
    hard = 3 * SEGMENT_BYTES
    hw.retain("t", retention_segments=1, retention_consumers=True, retention_bytes_hard=hard, overflow="refuse")
    with pytest.raises(Unavailable) as refused:
        fill(hw, 30)
    assert refused.value.code == "log_full"
    end = hw.describe("t").partitions[0].end
    assert 0 < end < 30
    take(hw, "slow", end)
    hw.retain("t")
    assert hw.append("t", EVENT).offset == end
