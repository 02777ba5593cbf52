"""Consumers of a directory: what is durable, its limits, and what transactions store."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headwater.consumers.log_consumer import LogConsumer
from headwater.directory.local_log import LocalLog
from headwater.errors import Fenced, Invalid, NotFound, Unavailable
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from tests.consumers.consuming import cursor, fill, numbers
from tests.log.unsynced import UnsyncedDisk, open_unsynced
from tests.opened import join


@pytest.fixture
def limits() -> Limits:
    return Limits(retry_ms=1, ack_ms=5)


def now(hw: Store, **options: Any) -> LogConsumer:
    """A member that ends when there is nothing more."""
    return join(hw, "c", "t", timeout=0, **options)


def test_a_start_that_is_not_durable_is_made_so(hw: Store) -> None:
    fill(hw, 3, durability="os")
    assert hw.describe("t").partitions[0].durable == 0
    with now(hw, start="latest"):
        assert hw.describe("t").partitions[0].durable == 3


def test_a_flushed_ack_is_synced(path: Path) -> None:
    class Counting(UnsyncedDisk):
        synced = 0

        def fdatasync(self, _: int) -> None:  # type: ignore[override]  # fewer options than os has
            self.synced += 1

    disk = Counting()
    with open_directory(path, disk=disk, limits=Limits(ack_ms=60_000)) as hw:
        fill(hw, 3)
        with now(hw) as consumer:
            consumer.ack(next(consumer))
            before, stored = disk.synced, cursor(hw)
            consumer.flush()
            assert (stored, cursor(hw)) == (0, 1)
            assert disk.synced > before


def test_the_log_is_durable_as_far_as_a_cursor_is_stored(tmp_path: Path) -> None:
    never = Limits(ack_ms=3_600_000)  # nothing is stored before it is flushed
    with open_unsynced(tmp_path / "data", limits=never) as hw:
        hw.create("t")
        with join(hw, "c", "t", timeout=5) as consumer:
            fill(hw, 3, durability="os")
            consumer.ack(next(consumer))
            assert hw.describe("t").partitions[0].durable == 0
            consumer.flush()
            assert hw.describe("t").partitions[0].durable >= 1


def test_too_many_events_that_are_not_acked_are_refused(path: Path) -> None:
    with open_unsynced(path, limits=Limits(unacked_max=5000)) as hw:
        for _ in range(3):
            fill(hw, 4096)
        with now(hw) as consumer:
            with pytest.raises(Unavailable, match="not acked"):
                list(consumer)
            consumer.ack_to((0, 8191))
            assert len(list(consumer)) == 4096


def test_other_partitions_go_on_while_a_failed_event_waits(path: Path) -> None:
    with open_unsynced(path, limits=Limits(retry_ms=60_000, retry_ms_max=60_000)) as hw:
        hw.create("t", partitions=2)
        fill(hw, 3, partition=0)
        fill(hw, 3, partition=1)
        with now(hw) as consumer:
            seen = []
            for event in consumer:
                seen.append((event.partition, event.offset))
                if event.partition == 0:
                    consumer.fail(event)
            assert sorted(seen) == [(0, 0), (1, 0), (1, 1), (1, 2)]


def test_retries_wait_longer_each_time(path: Path) -> None:
    with open_unsynced(path, limits=Limits(retry_ms=20, retry_ms_max=50, failures_max=5)) as hw:
        fill(hw, 1)
        with join(hw, "c", "t", timeout=1) as consumer:
            times = []
            for event in consumer:
                times.append(time.monotonic())
                if consumer.fail(event):
                    break
    pauses = [after - before for before, after in pairwise(times)]
    assert len(pauses) == 4
    for pause, least in zip(pauses, (0.02, 0.04, 0.05, 0.05), strict=True):
        assert pause >= least


def test_a_huge_event_with_much_meta_can_be_set_aside(path: Path) -> None:
    limits = Limits(retry_ms=1, blob_bytes_min=1000, blob_bytes_in_memory=1000, data_bytes_max=2000, failures_max=1)
    with open_unsynced(path, limits=limits) as hw:
        hw.create("t", data_bytes_max=10_000)
        hw.append("t", b"x" * 9000, meta={"much": "x" * (64 * 1024 - 20)})
        with now(hw) as consumer:
            assert consumer.fail(next(consumer), "no")
        (dead,) = hw.read("t.dead")
        assert b"".join(dead.chunks()) == b"x" * 9000
        assert dead.meta["dead_offset"] == "0"


def test_what_retention_took_is_skipped_and_told(
    hw: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(hw, 10)
    reading = LocalLog.cursor

    def from_four(log: LocalLog, offset: int) -> Any:
        if offset < 4:
            found = reading(log, offset)
            monkeypatch.setattr(found, "batches", _gone, raising=False)
            return found
        return reading(log, offset)

    def _gone(*_: object) -> Any:
        raise NotFound("gone", code="offset_gone", oldest=4)

    monkeypatch.setattr(LocalLog, "cursor", from_four)
    with now(hw) as consumer:
        assert numbers(consumer) == [4, 5, 6, 7, 8, 9]
        assert consumer.skipped == 4
    assert "4 events of topic 't', partition 0 are gone" in caplog.text
    assert cursor(hw) == 4


def test_moves_name_what_a_transaction_stores_and_change_nothing(hw: Store) -> None:
    fill(hw, 6, durability="os")
    with now(hw) as consumer:
        events = list(consumer)
        consumer.ack(events[0])
        (move,) = consumer.moves(events[1:3])
        assert (move.partition, move.cursor, move.fence) == (0, 3, consumer.fences[0])
        assert hw.describe("t").partitions[0].durable >= 3
        assert consumer.lag() == {0: 5}
        with pytest.raises(Invalid, match="order"):
            consumer.moves([events[2]])
        with move.cursors.held():
            move.cursors.owned(0, move.owner, move.fence)
            move.cursors.put(0, move.cursors.next(0, cursor=move.cursor))
        consumer.flush()  # what it knows is older, and does not take the cursor back
        assert cursor(hw) == 3
        consumer.moved([move])
        assert consumer.lag() == {0: 3}
        assert consumer.moves([events[3]])[0].cursor == 4
        consumer.seek(0)
        with pytest.raises(Fenced):
            consumer.moves([events[4]])
