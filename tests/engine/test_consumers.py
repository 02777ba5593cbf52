"""Named consumers in one process: cursors, acks, failures, seeking, draining, dead letters."""

from __future__ import annotations

import gc
import os
import threading
import time
from datetime import UTC, datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from headwater.consumers.log_consumer import LogConsumer
from headwater.directory.local_log import LocalLog
from headwater.errors import Closed, Fenced, Invalid, NotFound, TooLarge, Unavailable
from headwater.event import Event
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from tests.log.unsynced import UnsyncedDisk, open_unsynced
from tests.opened import join
from tests.waiting import wait_for

QUICK = Limits(retry_ms=1, ack_ms=5)
PATIENCE_S = 20.0


@pytest.fixture
def limits() -> Limits:
    return QUICK


def fill(hw: Store, count: int, topic: str = "t", first: int = 0, **options: Any) -> None:
    hw.append_many(topic, [b"%d" % number for number in range(first, first + count)], **options)


def numbers(events: Any) -> list[int]:
    return [int(event.data) for event in events]


def cursor(hw: Store, name: str = "c", topic: str = "t", partition: int = 0) -> int:
    """The cursor that is stored."""
    found = [info for info in hw.consumers(topic) if (info.name, info.partition) == (name, partition)]
    return found[0].cursor


def now(hw: Store, **options: Any) -> LogConsumer:
    """A member that ends when there is nothing more."""
    return join(hw, "c", "t", timeout=0, **options)


# Cursors


def test_a_consumer_goes_on_where_its_acks_ended(hw: Store) -> None:
    fill(hw, 10)
    with now(hw) as consumer:
        for event in islice(consumer, 4):
            consumer.ack(event)
    with now(hw) as consumer:
        assert numbers(consumer) == [4, 5, 6, 7, 8, 9]
    with now(hw) as consumer:  # nothing was acked
        assert numbers(consumer) == [4, 5, 6, 7, 8, 9]
    assert cursor(hw) == 4


def test_consumers_do_not_know_each_other(hw: Store) -> None:
    fill(hw, 3)
    with join(hw, "a", "t", timeout=0) as one, join(hw, "b", "t", timeout=0) as two:
        one.ack(*one)
        assert numbers(two) == [0, 1, 2]
    assert (cursor(hw, "a"), cursor(hw, "b")) == (3, 0)


@pytest.mark.parametrize(("start", "expected"), [("earliest", [0, 1, 2]), ("latest", []), (2, [2])])
def test_a_new_consumer_begins_at_its_start_and_an_old_one_does_not(hw: Store, start: Any, expected: list[int]) -> None:
    fill(hw, 3)
    with now(hw, start=start) as consumer:
        assert numbers(consumer) == expected
    with now(hw, start="earliest") as consumer:
        assert numbers(consumer) == expected


def test_a_start_that_is_not_durable_is_made_so(hw: Store) -> None:
    fill(hw, 3, durability="os")
    assert hw.describe("t").partitions[0].durable == 0
    with now(hw, start="latest"):
        assert hw.describe("t").partitions[0].durable == 3


def test_acks_out_of_order_move_the_cursor_to_the_lowest_that_is_missing(hw: Store) -> None:
    fill(hw, 8)
    with now(hw) as consumer:
        events = list(consumer)
        consumer.ack(events[1], events[2])
        consumer.ack(events[5:7])
        consumer.flush()
        assert cursor(hw) == 0
        consumer.ack(events[0])
        consumer.ack(events[0])  # once is as good as twice
        consumer.flush()
        assert cursor(hw) == 3
        consumer.ack_to(events[4])
        consumer.flush()
        assert cursor(hw) == 7
    with now(hw) as consumer:
        assert numbers(consumer) == [7]


def test_ack_to_takes_a_partition_and_an_offset(hw: Store) -> None:
    hw.create("t", partitions=2)
    fill(hw, 5, partition=0)
    fill(hw, 5, partition=1)
    with now(hw) as consumer:
        assert len(list(consumer)) == 10
        consumer.ack_to((1, 2))
        assert consumer.lag() == {0: 5, 1: 2}
        with pytest.raises(Fenced):
            consumer.ack_to((1, 5))


def test_ack_to_under_an_older_fence_acks_nothing(hw: Store) -> None:
    fill(hw, 10)
    with now(hw) as consumer:
        assert len(list(consumer)) == 10
        fence = consumer.fences[0]
        consumer.seek(3)
        assert next(consumer).offset == 3
        with pytest.raises(Fenced):
            consumer.ack_to((0, 9), fence)
        assert consumer.lag() == {0: 7}
        consumer.ack_to((0, 4), consumer.fences[0])
        assert consumer.lag() == {0: 5}


def test_what_is_not_wanted_is_passed_over(hw: Store) -> None:
    fill(hw, 5, types=["a", "b", "a", "b", "b"])
    with now(hw, type="a") as consumer:
        events = list(consumer)
        assert numbers(events) == [0, 2]
        consumer.ack(events[0])
        consumer.flush()
        assert cursor(hw) == 2  # over the b between
        consumer.ack(events[1])
    assert cursor(hw) == 5
    fill(hw, 3, types="b")
    with now(hw, type="a") as consumer:
        assert numbers(consumer) == []
        wait_for(lambda: cursor(hw) == 8)  # without an ack
    fill(hw, 2, types="b", durability="os")
    with now(hw, type="a") as consumer:
        assert numbers(consumer) == []
        wait_for(lambda: cursor(hw) == 10)  # the log was synced that far
    hw.append("t", b"9", key="k", type="a")
    with now(hw, type="a", key="k") as consumer:
        assert numbers(consumer) == [9]


def test_an_ack_is_stored_soon_also_while_the_handler_is_busy(hw: Store) -> None:
    fill(hw, 2)
    with join(hw, "c", "t") as consumer:
        consumer.ack(next(consumer))
        wait_for(lambda: cursor(hw) == 1)


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


def test_a_topic_made_again_is_consumed_from_its_start(hw: Store) -> None:
    fill(hw, 5)
    with now(hw) as consumer:
        consumer.ack(*consumer)
    hw.delete("t")
    fill(hw, 2)
    assert hw.consumers() == []
    with now(hw) as consumer:
        assert numbers(consumer) == [0, 1]


def test_deleting_the_topic_ends_its_consumers(hw: Store) -> None:
    fill(hw, 1)
    with join(hw, "c", "t", timeout=PATIENCE_S) as consumer:
        next(consumer)
        hw.delete("t")
        with pytest.raises(NotFound):
            next(consumer)


def test_events_that_come_are_handed_out_from_all_partitions(hw: Store) -> None:
    hw.create("t", partitions=3)
    with join(hw, "c", "t", timeout=PATIENCE_S) as consumer:

        def feed() -> None:
            for number in range(30):
                fill(hw, 1, first=number, partition=number % 3)

        feeder = threading.Thread(target=feed)
        feeder.start()
        seen = []
        for event in islice(consumer, 30):
            seen.append(event)
            consumer.ack(event)
        feeder.join()
        assert sorted(numbers(seen)) == list(range(30))
        for partition in range(3):
            offsets = [event.offset for event in seen if event.partition == partition]
            assert offsets == list(range(10))
        assert consumer.lag() == {0: 0, 1: 0, 2: 0}


def test_too_many_events_that_are_not_acked_are_refused(path: Path) -> None:
    with open_unsynced(path, limits=Limits(unacked_max=5000)) as hw:
        for _ in range(3):
            fill(hw, 4096)
        with now(hw) as consumer:
            with pytest.raises(Unavailable, match="not acked"):
                list(consumer)
            consumer.ack_to((0, 8191))
            assert len(list(consumer)) == 4096


def test_acks_may_come_from_many_threads(hw: Store) -> None:
    fill(hw, 2000)
    with now(hw) as consumer:
        events = list(consumer)
        threads = [threading.Thread(target=consumer.ack, args=(events[number::4],)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert cursor(hw) == 2000


# Failures


def test_a_failed_event_comes_again_before_the_others_of_its_partition(hw: Store) -> None:
    fill(hw, 4)
    with join(hw, "c", "t", timeout=PATIENCE_S) as consumer:
        seen, failed = [], 0
        for event in consumer:
            seen.append(int(event.data or b""))
            if event.offset == 1 and failed < 3:
                failed += 1
                assert consumer.fail(event, "not yet") is False
                assert consumer.failures(event) == failed
            else:
                consumer.ack(event)
            if event.offset == 3:
                break
    assert seen == [0, 1, 1, 1, 1, 2, 3]
    assert cursor(hw) == 4


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


def test_an_event_that_keeps_failing_is_set_aside_with_its_error(hw: Store) -> None:
    hw.append("t", {"total": 1}, type="placed", key="o-17", meta={"source": "web"})
    fill(hw, 1, first=7)

    def handle(event: Event) -> None:
        if event.type == "placed":
            raise ValueError("no such customer")

    with now(hw, failures_max=3) as consumer:
        assert consumer.drain(handle) == 1
    (dead,) = hw.read("t.dead")
    assert (dead.type, dead.key, dead.value, dead.content) == ("placed", b"o-17", {"total": 1}, "json")
    assert dead.meta == {
        "source": "web",
        "dead_error": "ValueError: no such customer",
        "dead_topic": "t",
        "dead_partition": "0",
        "dead_offset": "0",
        "dead_consumer": "c",
        "dead_failures": "3",
    }
    assert cursor(hw) == 2


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


def test_failures_are_remembered_over_members(hw: Store) -> None:
    fill(hw, 2)
    for _ in range(2):
        with now(hw) as consumer:
            consumer.fail(next(consumer))
    assert hw.consumers("t")[0].failures == 2
    with now(hw, failures_max=3) as consumer:
        assert consumer.fail(next(consumer), "again")
        assert numbers(consumer) == [1]


def test_an_event_whose_handler_ends_the_program_by_an_error_is_set_aside_in_the_end(hw: Store) -> None:
    fill(hw, 3)

    def handle_until_it_breaks() -> None:
        with now(hw, failures_max=3) as consumer:
            for event in consumer:
                consumer.ack(event) if event.offset != 1 else 1 / 0

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            handle_until_it_breaks()
    with now(hw, failures_max=3) as consumer:
        assert numbers(consumer) == [2]
    assert [event.meta["dead_offset"] for event in hw.read("t.dead")] == ["1"]


def leave_by(hw: Store, error: BaseException) -> None:
    with now(hw) as consumer:
        next(consumer)
        raise error


def test_leaving_the_loop_is_no_failure(hw: Store) -> None:
    fill(hw, 1)
    for error in (KeyboardInterrupt(), Unavailable("a full disk")):
        with pytest.raises(type(error)):
            leave_by(hw, error)
    assert hw.consumers("t")[0].failures == 0


def test_dead_events_are_replayed_once(hw: Store) -> None:
    hw.create("t", partitions=3)
    hw.append("t", "a", key="k", meta={"m": "1"})
    hw.append("t", "b", partition=2)
    with now(hw, failures_max=1) as consumer:
        for event in consumer:
            consumer.fail(event, "no")
    assert hw.replay("t") == 2
    assert hw.replay("t") == 0
    events = list(hw.read("t"))
    assert [(event.partition, event.key, event.value, event.meta) for event in events[2:]] == [
        (event.partition, event.key, event.value, event.meta) for event in events[:2]
    ]
    with now(hw, failures_max=1) as consumer:
        assert len(list(consumer)) == 2
        consumer.fail(events[2], "still")
    with join(hw, "other", "t", timeout=0, failures_max=1) as consumer:
        consumer.fail(next(consumer))
    assert hw.replay("t", consumer="other") == 1


def test_a_topic_without_dead_events_replays_none(hw: Store) -> None:
    fill(hw, 1)
    assert hw.replay("t") == 0
    with pytest.raises(NotFound):
        hw.replay("nothing")


# Draining


def test_drain_ends_at_what_was_there(hw: Store) -> None:
    hw.create("t", partitions=2)
    fill(hw, 3, partition=0)
    fill(hw, 3, partition=1)
    with join(hw, "c", "t") as consumer:
        seen = 0
        for event in consumer.drain():
            seen += 1
            consumer.ack(event)
            fill(hw, 1, partition=event.partition)
            assert seen < 1000
        assert seen >= 6
        assert consumer.drain(lambda _: None) >= 1
        assert consumer.lag() == {0: 0, 1: 0}


def test_drain_sleeps_while_it_waits_for_others(hw: Store) -> None:
    hw.create("t", partitions=2)
    fill(hw, 1, partition=0)
    fill(hw, 1, partition=1)
    with join(hw, "c", "t", timeout=0.3) as one, join(hw, "c", "t") as two:
        wait_for(lambda: len(_tended(one).partitions) == len(_tended(two).partitions) == 1)
        events = one.drain()
        one.ack(next(events))
        fill(hw, 1, partition=0)  # behind what is drained
        fill(hw, 1, partition=1)
        began = time.thread_time()
        assert list(events) == []  # the other has not acked
        assert time.thread_time() - began < 0.15


def test_drain_of_what_is_drained_hands_out_nothing(hw: Store) -> None:
    hw.create("t", partitions=2)
    with join(hw, "c", "t") as consumer:
        assert list(consumer.drain()) == []
        assert consumer.drain(print) == 0


def test_drain_waits_for_partitions_of_others(hw: Store) -> None:
    hw.create("t", partitions=2)
    fill(hw, 1, partition=0)
    fill(hw, 1, partition=1)
    with join(hw, "c", "t", timeout=PATIENCE_S) as one, join(hw, "c", "t") as two:
        wait_for(lambda: len(_tended(one).partitions) == len(_tended(two).partitions) == 1)
        done = []
        thread = threading.Thread(target=lambda: done.append(two.drain(lambda _: None)))
        thread.start()
        event = next(one)
        wait_for(lambda: two.lag()[two.partitions[0]] == 0)
        assert thread.is_alive()
        one.ack(event)
        thread.join(PATIENCE_S)
        assert done == [1]


def _tended(consumer: LogConsumer) -> LogConsumer:
    """After what iterating does now and then."""
    consumer._member.tend(claim=True)
    return consumer


# Places


def test_seek_goes_back_and_forth_durably(hw: Store) -> None:
    for number in range(10):
        fill(hw, 1, first=number)
    with now(hw) as consumer:
        events = list(consumer)
        consumer.ack(*events)
        fence = consumer.fences[0]
        assert consumer.seek(3) == {0: 3}
        assert cursor(hw) == 3
        assert consumer.fences[0] > fence
        with pytest.raises(Fenced):
            consumer.ack(events[9])
        assert numbers(consumer) == [3, 4, 5, 6, 7, 8, 9]
        consumer.seek("latest")
        assert numbers(consumer) == []
        consumer.seek(events[5].time)
        assert numbers(consumer)[:1] == [5]
        consumer.seek(events[7].id)
        assert numbers(consumer)[:1] == [7]
        consumer.seek(0, partition=0)
        with pytest.raises(Invalid, match="beyond the end"):
            consumer.seek(11)
        assert numbers(consumer)[:1] == [0]


def test_seeking_in_the_midst_of_a_chunk_drops_the_rest_of_it(hw: Store) -> None:
    fill(hw, 10)
    with now(hw) as consumer:
        assert numbers(islice(consumer, 2)) == [0, 1]
        consumer.seek(7)
        assert numbers(consumer) == [7, 8, 9]


def test_seek_of_the_engine_moves_members_too(hw: Store) -> None:
    fill(hw, 6)
    with join(hw, "c", "t", timeout=PATIENCE_S) as consumer:
        first = next(consumer)
        fence = consumer.fences[0]
        consumer.ack(first)
        consumer.flush()
        assert hw.seek("c", "t", 4) == {0: 4}
        consumer.ack(next(consumer))  # taken, and too late
        with pytest.raises(Fenced):
            consumer.flush()
        assert next(consumer).offset == 4
        assert consumer.fences[0] > fence + 1
        with pytest.raises(Fenced):
            consumer.ack(first)
    assert cursor(hw) == 4


def test_a_sleeping_member_notices_a_seek(hw: Store) -> None:
    fill(hw, 3)
    with join(hw, "c", "t", timeout=PATIENCE_S, lease_ms=60_000) as consumer:
        consumer.ack(*islice(consumer, 3))
        seeking = threading.Timer(0.05, lambda: hw.seek("c", "t", datetime(2000, 1, 1, tzinfo=UTC)))
        seeking.start()
        assert next(consumer).offset == 0
        seeking.join()


def test_seek_in_several_partitions_needs_a_time_or_a_partition(hw: Store) -> None:
    hw.create("t", partitions=2)
    fill(hw, 3, partition=0)
    with now(hw) as consumer:
        consumer.ack(*consumer)
        with pytest.raises(Invalid, match="partition"):
            consumer.seek(1)
        assert consumer.seek(1, partition=0) == {0: 1}
        assert consumer.seek("earliest") == {0: 0, 1: 0}
    with pytest.raises(Invalid, match="partition"):
        hw.seek("c", "t", 1)
    assert hw.seek("c", "t", 2, partition=0) == {0: 2}
    with pytest.raises(NotFound):
        hw.seek("c", "t", 0, partition=5)


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


# Listing and deleting


def test_consumers_tells_where_everybody_is(hw: Store) -> None:
    hw.create("t", partitions=2)
    fill(hw, 3, partition=1)
    fill(hw, 1, topic="u")
    with join(hw, "Größe/1", "t", timeout=0) as consumer:
        consumer.ack(next(consumer))
        consumer.flush()
        one, two = hw.consumers("t")
        assert (one.name, one.topic, one.partition, one.cursor, one.end, one.lag) == ("Größe/1", "t", 0, 0, 0, 0)
        assert (two.partition, two.cursor, two.end, two.lag, two.owner) == (1, 1, 3, 2, consumer.id)
        assert 0 < two.lease_ms <= 10_000
    assert [info.owner for info in hw.consumers()] == [None, None]
    with join(hw, "b", "u"):
        assert [(info.name, info.topic) for info in hw.consumers()] == [("Größe/1", "t"), ("Größe/1", "t"), ("b", "u")]


def test_a_forgotten_consumer_is_gone_and_its_members_stop(hw: Store) -> None:
    fill(hw, 3)
    with join(hw, "c", "t", timeout=PATIENCE_S, lease_ms=200) as consumer:
        event = next(consumer)
        hw.forget("c", "t")
        assert hw.consumers() == []
        with pytest.raises(NotFound):
            list(consumer)
        wait_for(lambda: not consumer.partitions)
        with pytest.raises(Fenced):
            consumer.ack(event)
    with pytest.raises(NotFound):
        hw.forget("c", "t")
    with pytest.raises(NotFound):
        hw.seek("c", "t", 0)
    with now(hw) as consumer:
        assert numbers(consumer) == [0, 1, 2]


@pytest.mark.parametrize("name", ["", "x" * 65, "\ud800"])
def test_bad_names_are_refused(hw: Store, name: str) -> None:
    fill(hw, 1)
    with pytest.raises(Invalid):
        join(hw, name, "t")


def test_names_are_limited_so_that_they_can_be_read_back(hw: Store) -> None:
    fill(hw, 1)
    name = "ö/" * 21
    with join(hw, name, "t"):
        assert hw.consumers()[0].name == name
    with pytest.raises(TooLarge):
        join(hw, "ö" * 33, "t")


def test_bad_options_are_refused(hw: Store) -> None:
    fill(hw, 1)
    bad: list[dict[str, Any]] = [{"lease_ms": 1}, {"failures_max": 0}, {"start": 17}, {"type": "("}]
    for options in bad:
        with pytest.raises(Invalid):
            join(hw, "c", "t", **options)
    with pytest.raises(NotFound):
        join(hw, "c", "nothing")


# Ending


def test_closing_ends_iterations_and_refuses_acks(hw: Store) -> None:
    fill(hw, 3)
    consumer = join(hw, "c", "t")
    event = next(consumer)
    consumer.close()
    consumer.close()
    assert list(consumer) == []
    with pytest.raises(Fenced):
        consumer.ack(event)
    with pytest.raises(Closed):
        consumer.flush()
    assert hw.consumers()[0].owner is None


def test_closing_the_log_closes_its_consumers(path: Path) -> None:
    with open_unsynced(path) as hw:
        fill(hw, 3)
        consumer = join(hw, "c", "t")
        consumer.ack(next(consumer))
    with open_unsynced(path) as hw:
        assert (cursor(hw), hw.consumers()[0].owner) == (1, None)


def test_stop_ends_an_iteration_that_waits(hw: Store) -> None:
    hw.create("t")
    with join(hw, "c", "t") as consumer:
        stopping = threading.Timer(0.05, consumer.stop)
        stopping.start()
        assert list(consumer) == []


def test_a_consumer_that_is_dropped_leaves_no_thread(hw: Store) -> None:
    fill(hw, 1)
    consumer = join(hw, "dropped", "t", lease_ms=60)
    next(consumer)
    del consumer
    gc.collect()
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name == "headwater-dropped"])


def test_a_forked_child_has_none_of_its_parents_leases(hw: Store) -> None:
    fill(hw, 3)
    with now(hw) as consumer:
        event = next(consumer)
        child = os.fork()
        if not child:
            code = 1
            try:
                assert consumer.partitions == []
                assert list(consumer) == []
                consumer.ack(event)
            except Fenced:
                consumer.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        consumer.ack(event)
    assert cursor(hw) == 1


# For those who hand out to others


def test_take_hands_out_what_is_there_a_part_at_a_time(hw: Store) -> None:
    hw.create("t", partitions=2)
    fill(hw, 7, partition=1)
    with join(hw, "c", "t") as consumer:
        first = consumer.take(3, 1000, PATIENCE_S)
        assert [(event.partition, event.offset) for event in first] == [(1, 0), (1, 1), (1, 2)]
        assert consumer.places == {0: 0, 1: 3}
        assert len(consumer.take(100, 2, 0)) == 2  # of a byte each
        consumer.fail(first[1])
        assert consumer.places[1] == 1  # it comes again
        assert [event.offset for event in consumer.take(100, 1000, PATIENCE_S)] == [1]
        assert [event.offset for event in consumer.take(100, 1000, 0)] == [5, 6]
        assert consumer.take(100, 1000, 0) == []
        assert consumer.places == {0: 0, 1: 7}


def test_wake_ends_a_take_that_waits_and_not_the_next(hw: Store) -> None:
    hw.create("t")
    with join(hw, "c", "t") as consumer:
        waking = threading.Timer(0.05, consumer.wake)
        waking.start()
        assert consumer.take(1, 1, PATIENCE_S) == []
        waking.join()
        fill(hw, 1)
        assert len(consumer.take(1, 1, PATIENCE_S)) == 1
        consumer.stop()
        assert consumer.take(1, 1, PATIENCE_S) == []


def test_a_range_of_what_was_handed_out_is_acked(hw: Store) -> None:
    fill(hw, 10, types=["a", "b"] * 5)
    with now(hw, type="a") as consumer:
        with pytest.raises(Fenced):
            consumer.ack_range(0, 0, 1)
        assert numbers(consumer) == [0, 2, 4, 6, 8]
        consumer.ack_range(0, 4, 7)
        consumer.flush()
        assert cursor(hw) == 0
        consumer.ack_range(0, 0, 4)
        consumer.flush()
        assert cursor(hw) == 8
        for first, end in ((0, 11), (5, 5), (1 << 62, (1 << 62) + 1)):
            with pytest.raises(Fenced):
                consumer.ack_range(0, first, end)
        consumer.ack_range(0, 0, 10)
        consumer.seek(8)
        with pytest.raises(Fenced):
            consumer.ack_range(0, 7, 9)  # of the fence before
    assert cursor(hw) == 8


# For transactions


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
