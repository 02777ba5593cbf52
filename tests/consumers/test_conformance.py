"""Consumers on every backend: cursors, acks, failures, draining, positions, dead letters. Each behaviour once, here."""

from __future__ import annotations

import gc
import os
import threading
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest

from headwater.errors import Closed, Fenced, Invalid, NotFound, TooLarge, Unavailable
from headwater.event import Event
from headwater.protocols import Consumer
from headwater.store import Store
from tests.consumers.conftest import Opener
from tests.consumers.consuming import PATIENCE_S, cursor, fill, now, numbers, owners
from tests.waiting import wait_for

# Cursors


def test_a_consumer_goes_on_where_its_acks_ended(store: Store) -> None:
    fill(store, 10)
    with now(store) as consumer:
        for event in islice(consumer, 4):
            consumer.ack(event)
    with now(store) as consumer:
        assert numbers(consumer) == [4, 5, 6, 7, 8, 9]
        fill(store, 1, first=10)
        assert numbers(consumer) == [10]  # it looks, also when it found nothing just before
    with now(store) as consumer:  # nothing was acked
        assert numbers(consumer) == [4, 5, 6, 7, 8, 9, 10]
    assert cursor(store) == 4
    assert [info.failures for info in store.consumers("t")] == [0], "leaving is no failure"


def test_consumers_do_not_know_each_other(store: Store) -> None:
    fill(store, 3)
    with store.consumer("a", "t", timeout=0) as one, store.consumer("b", "t", timeout=0) as two:
        one.ack(*one)
        assert numbers(two) == [0, 1, 2]
    assert (cursor(store, "a"), cursor(store, "b")) == (3, 0)


@pytest.mark.parametrize(("start", "expected"), [("earliest", [0, 1, 2]), ("latest", []), (2, [2])])
def test_a_new_consumer_begins_at_its_start_and_an_old_one_does_not(
    store: Store, start: Any, expected: list[int]
) -> None:
    fill(store, 3)
    with now(store, start=start) as consumer:
        assert numbers(consumer) == expected
    with now(store, start="earliest") as consumer:
        assert numbers(consumer) == expected


def test_acks_out_of_order_move_the_cursor_to_the_lowest_that_is_missing(store: Store) -> None:
    fill(store, 8)
    with now(store) as consumer:
        events = list(consumer)
        consumer.ack(events[1], events[2])
        consumer.ack(events[5:7])
        consumer.flush()
        assert cursor(store) == 0
        consumer.ack(events[0])
        consumer.ack(events[0])  # once is as good as twice
        consumer.flush()
        assert cursor(store) == 3
        assert consumer.lag() == {0: 5}
        consumer.ack_to(events[4])
        consumer.flush()
        assert cursor(store) == 7
        for place in ((0, 8), (1, 0)):
            with pytest.raises(Fenced):
                consumer.ack_to(place)
    with now(store) as consumer:
        assert numbers(consumer) == [7]


def test_ack_to_takes_a_partition_and_an_offset(store: Store) -> None:
    store.create("t", partitions=2)
    fill(store, 5, partition=0)
    fill(store, 5, partition=1)
    with now(store) as consumer:
        assert len(list(consumer)) == 10
        consumer.ack_to((1, 2))
        assert consumer.lag() == {0: 5, 1: 2}
        with pytest.raises(Fenced):
            consumer.ack_to((1, 5))


def test_what_is_not_wanted_is_passed_over(store: Store) -> None:
    fill(store, 5, types=["a", "b", "a", "b", "b"])
    with now(store, type="a") as consumer:
        events = list(consumer)
        assert numbers(events) == [0, 2]
        consumer.ack(events[0])
        consumer.flush()
        assert cursor(store) == 2  # over the b between
        consumer.ack(events[1])
    assert cursor(store) == 5
    fill(store, 3, types="b")
    with now(store, type="a") as consumer:
        assert numbers(consumer) == []
        wait_for(lambda: cursor(store) == 8)  # without an ack
    fill(store, 2, types="b", durability="os")
    with now(store, type="a") as consumer:
        assert numbers(consumer) == []
        wait_for(lambda: cursor(store) == 10)  # the log was synced that far
    store.append("t", b"9", key="k", type="a")
    with now(store, type="a", key="k") as consumer:
        assert numbers(consumer) == [9]


def test_type_key_and_match_choose_events_together(store: Store) -> None:
    for number in range(6):
        store.append("t", {"n": number}, type="ab"[number % 2], key=b"\xff" if number > 2 else None)
    with now(store, type="a", key=b"\xff", match={"n": {"$gt": 1}}) as consumer:
        assert [event.offset for event in consumer] == [4]
        consumer.ack_to((0, 4))
        wait_for(lambda: cursor(store) == 6)


def test_an_ack_is_stored_soon_also_while_the_handler_is_busy(store: Store) -> None:
    fill(store, 2)
    with store.consumer("c", "t") as consumer:
        consumer.ack(next(consumer))
        wait_for(lambda: cursor(store) == 1)


def test_a_topic_made_again_is_consumed_from_its_start(store: Store) -> None:
    fill(store, 5)
    with now(store) as consumer:
        consumer.ack(*consumer)
    store.delete("t")
    fill(store, 2)
    assert store.consumers() == []
    with now(store) as consumer:
        assert numbers(consumer) == [0, 1]


def test_deleting_the_topic_ends_its_consumers(store: Store) -> None:
    fill(store, 1)
    with store.consumer("c", "t", timeout=PATIENCE_S) as consumer:
        next(consumer)
        store.delete("t")
        with pytest.raises(NotFound):
            next(consumer)


def test_events_that_come_are_handed_out_from_all_partitions(store: Store) -> None:
    store.create("t", partitions=3)
    with store.consumer("c", "t", timeout=PATIENCE_S) as consumer:

        def feed() -> None:
            for number in range(30):
                fill(store, 1, first=number, partition=number % 3)

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


def test_acks_may_come_from_many_threads(store: Store) -> None:
    fill(store, 2000)
    with now(store) as consumer:
        events = list(consumer)
        threads = [threading.Thread(target=consumer.ack, args=(events[number::4],)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert cursor(store) == 2000


# Failures


def test_a_failed_event_comes_again_before_the_others_of_its_partition(store: Store) -> None:
    fill(store, 4)
    with store.consumer("c", "t", timeout=PATIENCE_S) as consumer:
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
    assert cursor(store) == 4


def test_an_event_that_keeps_failing_is_set_aside_with_its_error(store: Store) -> None:
    store.append("t", {"total": 1}, type="placed", key="o-17", meta={"source": "web"})
    fill(store, 1, first=7)

    def handle(event: Event) -> None:
        if event.type == "placed":
            raise ValueError("no such customer")

    with now(store, failures_max=3) as consumer:
        assert consumer.drain(handle) == 1
    (dead,) = store.read("t.dead")
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
    assert cursor(store) == 2


def test_failures_are_remembered_over_members(store: Store) -> None:
    fill(store, 2)
    for _ in range(2):
        with now(store) as consumer:
            consumer.fail(next(consumer))
    assert store.consumers("t")[0].failures == 2
    with now(store, failures_max=3) as consumer:
        assert consumer.fail(next(consumer), "again")
        assert numbers(consumer) == [1]


def test_an_event_whose_handler_ends_the_program_by_an_error_is_set_aside_in_the_end(store: Store) -> None:
    fill(store, 3)

    def handle_until_it_breaks() -> None:
        with now(store, failures_max=3) as consumer:
            for event in consumer:
                consumer.ack(event) if event.offset != 1 else 1 / 0

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            handle_until_it_breaks()
    with now(store, failures_max=3) as consumer:
        assert numbers(consumer) == [2]
    assert [event.meta["dead_offset"] for event in store.read("t.dead")] == ["1"]


def leave_by(store: Store, error: BaseException) -> None:
    with now(store) as consumer:
        next(consumer)
        raise error


def test_leaving_the_loop_is_no_failure(store: Store) -> None:
    fill(store, 1)
    for error in (KeyboardInterrupt(), Unavailable("a full disk")):
        with pytest.raises(type(error)):
            leave_by(store, error)
    assert store.consumers("t")[0].failures == 0


def test_dead_events_are_replayed_once(store: Store) -> None:
    store.create("t", partitions=3)
    store.append("t", "a", key="k", meta={"m": "1"})
    store.append("t", "b", partition=2)
    with now(store, failures_max=1) as consumer:
        for event in consumer:
            consumer.fail(event, "no")
    assert store.replay("t") == 2
    assert store.replay("t") == 0
    events = list(store.read("t"))
    assert [(event.partition, event.key, event.value, event.meta) for event in events[2:]] == [
        (event.partition, event.key, event.value, event.meta) for event in events[:2]
    ]
    with now(store, failures_max=1) as consumer:
        assert len(list(consumer)) == 2
        consumer.fail(events[2], "still")
    with store.consumer("other", "t", timeout=0, failures_max=1) as consumer:
        consumer.fail(next(consumer))
    assert store.replay("t", consumer="other") == 1


def test_a_topic_without_dead_events_replays_none(store: Store) -> None:
    fill(store, 1)
    assert store.replay("t") == 0
    with pytest.raises(NotFound):
        store.replay("nothing")


# Draining and sharing


def test_drain_ends_at_what_was_there(store: Store) -> None:
    store.create("t", partitions=2)
    fill(store, 3, partition=0)
    fill(store, 3, partition=1)
    with store.consumer("c", "t") as consumer:
        seen = 0
        for event in consumer.drain():
            seen += 1
            consumer.ack(event)
            fill(store, 1, partition=event.partition)
            assert seen < 1000
        assert seen >= 6
        assert consumer.drain(lambda _: None) >= 1
        assert consumer.lag() == {0: 0, 1: 0}


def test_drain_of_what_is_drained_hands_out_nothing(store: Store) -> None:
    store.create("t", partitions=2)
    with store.consumer("c", "t") as consumer:
        assert list(consumer.drain()) == []
        assert consumer.drain(print) == 0


def test_drain_tries_again_what_failed(store: Store) -> None:
    store.create("t", partitions=2)
    fill(store, 30, partition=0)
    fill(store, 30, partition=1)
    failed: set[tuple[int, int]] = set()

    def handle(event: Event) -> None:
        place = event.partition, event.offset
        if event.offset == 7 and place not in failed:
            failed.add(place)
            raise ValueError("not yet")

    with store.consumer("c", "t") as consumer:
        assert consumer.drain(handle) == 60
        assert len(failed) == 2
        assert consumer.lag() == {0: 0, 1: 0}


def test_drain_waits_for_partitions_of_others(store: Store) -> None:
    store.create("t", partitions=2)
    fill(store, 1, partition=0)
    fill(store, 1, partition=1)
    with store.consumer("c", "t", lease_ms=600) as one:
        first = [next(one), next(one)]
        with store.consumer("c", "t", lease_ms=600) as two:
            done: list[int] = []
            thread = threading.Thread(target=lambda: done.append(two.drain(lambda _: None)))
            thread.start()
            one.ack(first[0])
            wait_for(lambda: len(two.partitions) == 1)
            assert thread.is_alive()
            one.ack(first[1])
            one.flush()
            thread.join(PATIENCE_S)
            assert done == [0]


def test_members_share_the_partitions_and_take_over_what_is_left(store: Store) -> None:
    store.create("t", partitions=4)
    for partition in range(4):
        fill(store, 3, partition=partition)
    options: Any = {"timeout": PATIENCE_S, "lease_ms": 600}
    with store.consumer("c", "t", **options) as one, store.consumer("c", "t", **options) as two:
        assert one.id != two.id
        seen: list[tuple[int, int]] = []

        def work(consumer: Consumer) -> None:
            for event in consumer:
                seen.append((event.partition, event.offset))
                consumer.ack(event)

        threads = [threading.Thread(target=work, args=(each,)) for each in (one, two)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(one.partitions) == len(two.partitions) == 2)
        assert not set(one.partitions) & set(two.partitions)
        wait_for(lambda: one.lag() == dict.fromkeys(range(4), 0))
        assert sorted(set(seen)) == [(partition, offset) for partition in range(4) for offset in range(3)]
        two.stop()
        threads[1].join(PATIENCE_S)
        two.close()
        wait_for(lambda: len(one.partitions) == 4)
        one.stop()
        threads[0].join(PATIENCE_S)


# Positions


def test_seek_goes_back_and_forth_durably(store: Store) -> None:
    for number in range(10):
        fill(store, 1, first=number)
    with now(store) as consumer:
        events = list(consumer)
        consumer.ack(*events)
        fence = consumer.fences[0]
        assert consumer.seek(3) == {0: 3}
        assert cursor(store) == 3
        assert consumer.fences[0] > fence
        with pytest.raises(Fenced):
            consumer.ack(events[2])
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
        with pytest.raises(Fenced):
            consumer.seek(0, partition=7)
        assert numbers(consumer)[:1] == [0]


def test_a_seek_of_the_store_refuses_late_acks(store: Store) -> None:
    fill(store, 6)

    def ack_late(consumer: Consumer, event: Event) -> None:
        consumer.ack(event)  # a client may take it, and be refused
        consumer.flush()

    with store.consumer("c", "t", timeout=PATIENCE_S) as consumer:
        events = list(islice(consumer, 6))
        assert store.seek("c", "t", 4) == {0: 4}
        assert next(consumer).offset == 4
        with pytest.raises(Fenced):
            ack_late(consumer, events[0])
        consumer.flush()
    assert cursor(store) == 4


def test_seeking_in_the_midst_of_a_chunk_drops_the_rest_of_it(store: Store) -> None:
    fill(store, 10)
    with now(store) as consumer:
        assert numbers(islice(consumer, 2)) == [0, 1]
        consumer.seek(7)
        assert numbers(consumer) == [7, 8, 9]


def test_a_sleeping_member_notices_a_seek(store: Store) -> None:
    fill(store, 3)
    with store.consumer("c", "t", timeout=PATIENCE_S, lease_ms=60_000) as consumer:
        consumer.ack(*islice(consumer, 3))
        seeking = threading.Timer(0.05, lambda: store.seek("c", "t", datetime(2000, 1, 1, tzinfo=UTC)))
        seeking.start()
        assert next(consumer).offset == 0
        seeking.join()


def test_seek_in_several_partitions_needs_a_time_or_a_partition(store: Store) -> None:
    store.create("t", partitions=2)
    fill(store, 3, partition=0)
    with now(store) as consumer:
        consumer.ack(*consumer)
        with pytest.raises(Invalid, match="partition"):
            consumer.seek(1)
        assert consumer.seek(1, partition=0) == {0: 1}
        assert consumer.seek("earliest") == {0: 0, 1: 0}
    with pytest.raises(Invalid, match="partition"):
        store.seek("c", "t", 1)
    assert store.seek("c", "t", 2, partition=0) == {0: 2}
    with pytest.raises(NotFound):
        store.seek("c", "t", 0, partition=5)


# Listing and deleting


def test_consumers_tells_where_everybody_is(store: Store) -> None:
    store.create("t", partitions=2)
    fill(store, 3, partition=1)
    fill(store, 1, topic="u")
    with store.consumer("Größe/1", "t", timeout=0) as consumer:
        consumer.ack(next(consumer))
        consumer.flush()
        one, two = store.consumers("t")
        assert (one.name, one.topic, one.partition, one.cursor, one.end, one.lag) == ("Größe/1", "t", 0, 0, 0, 0)
        assert (two.partition, two.cursor, two.end, two.lag, two.owner) == (1, 1, 3, 2, consumer.id)
        assert 0 < two.lease_ms <= 10_000
    assert [info.owner for info in store.consumers()] == [None, None]
    with store.consumer("b", "u"):
        assert [(info.name, info.topic) for info in store.consumers()] == [
            ("Größe/1", "t"),
            ("Größe/1", "t"),
            ("b", "u"),
        ]


def test_a_forgotten_consumer_is_gone_and_its_members_stop(store: Store) -> None:
    fill(store, 3)
    with store.consumer("c", "t", timeout=PATIENCE_S, lease_ms=200) as consumer:
        event = next(consumer)
        store.forget("c", "t")
        assert store.consumers() == []
        with pytest.raises(NotFound):
            list(consumer)
        wait_for(lambda: not consumer.partitions)
        with pytest.raises(Fenced):
            consumer.ack(event)
    with pytest.raises(NotFound):
        store.forget("c", "t")
    with pytest.raises(NotFound):
        store.seek("c", "t", 0)
    with now(store) as consumer:
        assert numbers(consumer) == [0, 1, 2]


@pytest.mark.parametrize("name", ["", "x" * 65, "\ud800"])
def test_bad_names_are_refused(store: Store, name: str) -> None:
    fill(store, 1)
    with pytest.raises(Invalid):
        store.consumer(name, "t")


def test_names_are_limited_so_that_they_can_be_read_back(store: Store) -> None:
    fill(store, 1)
    name = "ö/" * 21
    with store.consumer(name, "t"):
        assert store.consumers()[0].name == name
    with pytest.raises(TooLarge):
        store.consumer("ö" * 33, "t")


def test_bad_options_are_refused(store: Store) -> None:
    fill(store, 1)
    bad: list[dict[str, Any]] = [{"lease_ms": 1}, {"failures_max": 0}, {"start": 17}, {"type": "("}]
    for options in bad:
        with pytest.raises(Invalid):
            store.consumer("c", "t", **options)
    with pytest.raises(NotFound):
        store.consumer("c", "nothing")
    other = Event("another", 0, 0, 0, "", None, b"", "bytes", 0)
    with now(store) as consumer, pytest.raises(Invalid):
        consumer.ack(other)


# Ending


def test_closing_ends_iterations_and_refuses_acks(store: Store) -> None:
    fill(store, 3)
    consumer = store.consumer("c", "t")
    event = next(consumer)
    consumer.close()
    consumer.close()
    assert list(consumer) == []
    with pytest.raises(Fenced):
        consumer.ack(event)
    with pytest.raises(Closed):
        consumer.flush()
    assert owners(store) == [None]


def test_closing_the_store_closes_its_consumers(store: Store, opener: Opener) -> None:
    fill(store, 3)
    with opener() as other:
        consumer = other.consumer("c", "t")
        consumer.ack(next(consumer))
    assert (cursor(store), owners(store)) == (1, [None])


def test_stop_ends_an_iteration_that_waits(store: Store) -> None:
    store.create("t")
    with store.consumer("c", "t") as consumer:
        stopping = threading.Timer(0.05, consumer.stop)
        stopping.start()
        assert list(consumer) == []


def test_what_was_handed_out_can_be_acked_after_stop(store: Store) -> None:
    fill(store, 1)
    with store.consumer("c", "t") as consumer:
        event = next(consumer)
        consumer.stop()
        assert list(consumer) == []
        consumer.ack(event)
    assert cursor(store) == 1


def test_a_consumer_that_is_dropped_leaves_no_thread(store: Store) -> None:
    fill(store, 1)
    consumer = store.consumer("dropped", "t", lease_ms=60)
    next(consumer)
    del consumer
    gc.collect()
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("headwater-dropped")])


@pytest.mark.parametrize("kind", ["directory", "server"], indirect=True)  # a bucket is opened again in a child
def test_a_forked_child_has_none_of_its_parents_leases(store: Store) -> None:
    fill(store, 3)
    with now(store) as consumer:
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
    assert cursor(store) == 1
