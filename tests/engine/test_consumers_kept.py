"""Consumers whose cursors are kept elsewhere, with what is made of their events: what is stored here only follows."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from headwater.consumers.delivery_ledger import NARROWINGS
from headwater.consumers.log_consumer import LogConsumer
from headwater.errors import Conflict
from headwater.event import Event
from headwater.limits import Limits
from headwater.store import Store
from tests.consumers.consuming import cursor, fill, numbers
from tests.log.children import Child, Said
from tests.log.unsynced import open_unsynced
from tests.opened import join

LIMITS = Limits(retry_ms=1, ack_ms=5, lease_ms=100, failures_max=2)


class Elsewhere:
    """Where cursors are kept."""

    def __init__(self, *cursors: int) -> None:
        self.cursors = list(cursors)
        self.asked: list[int] = []
        self.aside: list[tuple[int, str]] = []
        self.error: Exception | None = None

    def cursor(self, partition: int) -> int:
        self.asked.append(partition)
        if self.error is not None:
            raise self.error
        return self.cursors[partition]

    def set_aside(self, consumer: LogConsumer, event: Event, error: object) -> None:
        self.aside.append((event.offset, str(error)))
        consumer.ack(event)


@pytest.fixture
def limits() -> Limits:
    return LIMITS


def all_of(hw: Store, kept: Elsewhere) -> list[int]:
    """What is handed out until there is no more, and acked."""
    with join(hw, "c", "t", timeout=0, kept=kept) as consumer:
        events = list(consumer)
        consumer.ack(events)
        return numbers(events)


def test_a_new_consumer_begins_where_it_is_told(hw: Store) -> None:
    fill(hw, 10)
    assert all_of(hw, Elsewhere(7)) == [7, 8, 9]
    assert cursor(hw) == 10


def test_a_lower_cursor_has_it_go_back_durably_under_a_new_fence(hw: Store) -> None:
    fill(hw, 10)
    assert all_of(hw, Elsewhere(0)) == list(range(10))
    before = hw.consumers("t")[0].fence
    with join(hw, "c", "t", timeout=0, kept=Elsewhere(4)) as consumer:
        assert cursor(hw) == 4  # nobody believes that what is to come again was handled
        assert hw.consumers("t")[0].fence == before + 2
        assert numbers(consumer) == [4, 5, 6, 7, 8, 9]
    assert cursor(hw) == 4


def test_a_higher_cursor_has_it_go_on(hw: Store) -> None:
    fill(hw, 10)
    with join(hw, "c", "t", timeout=0, kept=Elsewhere(0)) as consumer:
        consumer.ack(next(consumer))
    assert cursor(hw) == 1
    assert all_of(hw, Elsewhere(8)) == [8, 9]
    assert cursor(hw) == 10


def test_it_is_asked_for_each_partition_that_is_taken_and_for_no_other(hw: Store) -> None:
    hw.create("t", partitions=3)
    for partition in range(3):
        fill(hw, 5, first=10 * partition, partition=partition)
    kept = Elsewhere(1, 2, 3)
    assert sorted(all_of(hw, kept)) == [1, 2, 3, 4, 12, 13, 14, 23, 24]
    assert sorted(kept.asked) == [0, 1, 2]


def test_a_partition_that_was_moved_from_outside_is_asked_for_again(hw: Store) -> None:
    fill(hw, 5)
    kept = Elsewhere(2)
    with join(hw, "c", "t", timeout=1, kept=kept) as consumer:
        assert numbers(consumer.take(10, 1000, 0.0)) == [2, 3, 4]
        hw.seek("c", "t", 5)
        kept.cursors[0] = 3
        assert numbers([next(consumer)]) == [3]
    assert kept.asked == [0, 0]


def test_who_cannot_tell_where_to_begin_keeps_no_lease_from_others(hw: Store) -> None:
    hw.create("t", partitions=2)
    for partition in (0, 1):
        fill(hw, 4, partition=partition)
    assert sorted(all_of(hw, Elsewhere(0, 0))) == [0, 0, 1, 1, 2, 2, 3, 3]
    kept = Elsewhere(1, 1)
    kept.error = Conflict("no")
    with pytest.raises(Conflict):
        join(hw, "c", "t", kept=kept)
    assert [each.owner for each in hw.consumers("t")] == [None, None]
    with join(hw, "c", "t", timeout=0) as another:
        assert another.partitions == [0, 1]  # at once, and all of them: it is not counted as a member either


def test_an_event_that_failed_too_often_is_set_aside_there(hw: Store) -> None:
    fill(hw, 3)
    kept = Elsewhere(0)
    with join(hw, "c", "t", timeout=1, kept=kept) as consumer:
        for _ in range(2):
            event = next(consumer)
            assert event.offset == 0
            consumer.fail(event, "broken")
        assert numbers([next(consumer)]) == [1]
    assert kept.aside == [(0, "broken")]
    assert hw.topics() == ["t"]  # and not into a topic of dead letters


def test_an_event_that_ended_its_process_too_often_is_set_aside_there(path: Path) -> None:
    with open_unsynced(path, limits=LIMITS) as hw:
        fill(hw, 300)

    def dying(said: Said) -> None:
        kept = Elsewhere(5)
        with open_unsynced(path, limits=LIMITS) as mine, join(mine, "c", "t", kept=kept) as consumer:
            handed: list[int] = []
            while len(handed) < 294 and (events := consumer.take(1000, 1_000_000, 5.0)):
                if events[0].offset == 5:
                    os._exit(3)
                handed += numbers(events)
                consumer.ack(events)
            said.send((handed, kept.aside))

    heard = None
    deaths = 0
    while heard is None:
        child = Child(dying)
        with contextlib.suppress(AssertionError):
            heard = child.hear()
        deaths += heard is None
        assert deaths < 10
    assert LIMITS.failures_max <= deaths <= LIMITS.failures_max + NARROWINGS
    handed, [(offset, told)] = heard
    assert handed == list(range(6, 300))
    assert offset == 5
    assert "ended its process" in told


def test_what_may_have_ended_a_process_is_handed_out_with_care(path: Path) -> None:
    with open_unsynced(path, limits=LIMITS) as hw:
        fill(hw, 1000)

    def dying(said: object) -> None:
        del said
        with open_unsynced(path, limits=LIMITS) as mine, join(mine, "c", "t", kept=Elsewhere(0)) as consumer:
            assert len(consumer.take(1000, 1_000_000, 5.0)) == 1000
            assert not consumer.careful
            os._exit(3)

    child = Child(dying)
    child._process.join(20)
    assert child._process.exitcode == 3
    with open_unsynced(path, limits=LIMITS) as hw, join(hw, "c", "t", timeout=1, kept=Elsewhere(0)) as consumer:
        sizes = []
        while events := consumer.take(1000, 1_000_000, 1.0):
            sizes.append(len(events))
            assert consumer.careful
            consumer.ack(events)
            if events[-1].offset == 999:
                break
        assert max(sizes) == 1000 // 64
        fill(hw, 10, first=1000)
        assert len(consumer.take(1000, 1_000_000, 5.0)) == 10
        assert not consumer.careful


def test_a_log_is_secured_up_to_an_offset_and_only_if_it_need_be(hw: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(hw, 5, durability="os")
    log = hw.directory.topic_for("t").logs[0]
    with join(hw, "c", "t", timeout=0, kept=Elsewhere(0)) as consumer:
        assert log.state().secured_offset == 0
        consumer.secure(0, 0)
        assert log.state().secured_offset == 0
        consumer.secure(0, 3)
        assert log.state().secured_offset == 5
        monkeypatch.setattr(log, "sync", lambda: pytest.fail("it is durable"))
        consumer.secure(0, 5)


def test_places_tell_what_is_handed_out_next(hw: Store) -> None:
    hw.create("t", partitions=2)
    fill(hw, 10, partition=0, types=["a"] * 5 + ["b"] * 5)
    with join(hw, "c", "t", timeout=0, type="a", kept=Elsewhere(0, 0)) as consumer:
        assert consumer.places == {0: 0, 1: 0}
        assert next(consumer).offset == 0
        assert consumer.places == {0: 1, 1: 0}
        assert len(consumer.take(3, 1000, 0.0)) == 3
        assert consumer.places == {0: 4, 1: 0}
        assert len(consumer.take(3, 1000, 0.0)) == 1
        assert consumer.places == {0: 10, 1: 0}  # what is not wanted was passed
