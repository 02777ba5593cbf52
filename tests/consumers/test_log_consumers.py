"""Consumers of a directory and a bucket: what a server and a projection use of `LogConsumer`."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from headwater.consumers.log_consumer import LogConsumer
from headwater.errors import Fenced, Unavailable
from headwater.store import Store
from tests.consumers.consuming import PATIENCE_S, cursor, fill, numbers
from tests.opened import join
from tests.waiting import wait_for

pytestmark = pytest.mark.parametrize("kind", ["directory", "bucket"], indirect=True)


def log_now(store: Store, **options: Any) -> LogConsumer:
    """A member that ends when there is nothing more."""
    return join(store, "c", "t", timeout=0, **options)


def _tended(consumer: LogConsumer) -> LogConsumer:
    """After what iterating does now and then."""
    consumer._member.tend(claim=True)
    return consumer


def test_ack_to_under_an_older_fence_acks_nothing(store: Store) -> None:
    fill(store, 10)
    with log_now(store) as consumer:
        assert len(list(consumer)) == 10
        fence = consumer.fences[0]
        consumer.seek(3)
        assert next(consumer).offset == 3
        with pytest.raises(Fenced):
            consumer.ack_to((0, 9), fence)
        assert consumer.lag() == {0: 7}
        consumer.ack_to((0, 4), consumer.fences[0])
        assert consumer.lag() == {0: 5}


def test_drain_sleeps_while_it_waits_for_others(store: Store) -> None:
    store.create("t", partitions=2)
    fill(store, 1, partition=0)
    fill(store, 1, partition=1)
    with join(store, "c", "t", timeout=0.3) as one, join(store, "c", "t") as two:
        wait_for(lambda: len(_tended(one).partitions) == len(_tended(two).partitions) == 1)
        events = one.drain()
        one.ack(next(events))
        fill(store, 1, partition=0)  # behind what is drained
        fill(store, 1, partition=1)
        began = time.thread_time()
        assert list(events) == []  # the other has not acked
        assert time.thread_time() - began < 0.15


def test_seek_of_the_engine_moves_members_too(store: Store) -> None:
    fill(store, 6)
    with join(store, "c", "t", timeout=PATIENCE_S) as consumer:
        first = next(consumer)
        fence = consumer.fences[0]
        consumer.ack(first)
        consumer.flush()
        assert store.seek("c", "t", 4) == {0: 4}
        consumer.ack(next(consumer))  # taken, and too late
        with pytest.raises(Fenced):
            consumer.flush()
        assert next(consumer).offset == 4
        assert consumer.fences[0] > fence + 1
        with pytest.raises(Fenced):
            consumer.ack(first)
    assert cursor(store) == 4


def test_take_hands_out_what_is_there_a_part_at_a_time(store: Store) -> None:
    store.create("t", partitions=2)
    fill(store, 7, partition=1)
    with join(store, "c", "t") as consumer:
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


def test_wake_ends_a_take_that_waits_and_not_the_next(store: Store) -> None:
    store.create("t")
    with join(store, "c", "t") as consumer:
        waking = threading.Timer(0.05, consumer.wake)
        waking.start()
        assert consumer.take(1, 1, PATIENCE_S) == []
        waking.join()
        fill(store, 1)
        assert len(consumer.take(1, 1, PATIENCE_S)) == 1
        consumer.stop()
        assert consumer.take(1, 1, PATIENCE_S) == []


def test_a_range_of_what_was_handed_out_is_acked(store: Store) -> None:
    fill(store, 10, types=["a", "b"] * 5)
    with log_now(store, type="a") as consumer:
        with pytest.raises(Fenced):
            consumer.ack_range(0, 0, 1)
        assert numbers(consumer) == [0, 2, 4, 6, 8]
        consumer.ack_range(0, 4, 7)
        consumer.flush()
        assert cursor(store) == 0
        consumer.ack_range(0, 0, 4)
        consumer.flush()
        assert cursor(store) == 8
        for first, end in ((0, 11), (5, 5), (1 << 62, (1 << 62) + 1)):
            with pytest.raises(Fenced):
                consumer.ack_range(0, first, end)
        consumer.ack_range(0, 0, 10)
        consumer.seek(8)
        with pytest.raises(Fenced):
            consumer.ack_range(0, 7, 9)  # of the fence before
    assert cursor(store) == 8


def test_an_event_is_dead_lettered_once_however_long_that_takes(store: Store) -> None:
    fill(store, 1)
    with log_now(store, failures_max=1) as consumer:
        event = next(consumer)
        append = consumer._append_aside

        def slowly(*dead: Any) -> None:
            over_s = time.monotonic() + 0.01  # longer than the pause before a retry
            wait_for(lambda: time.monotonic() > over_s)
            assert consumer.take(1, 1, 0) == []
            append(*dead)

        consumer._append_aside = slowly
        assert consumer.fail(event, "no")
    assert len(list(store.read("t.dead"))) == 1
    assert cursor(store) == 1


def test_an_event_that_cannot_be_dead_lettered_is_delivered_again(store: Store) -> None:
    fill(store, 1)
    with log_now(store, failures_max=1) as consumer:
        event = next(consumer)

        def refused(*_: Any) -> None:
            raise Unavailable("the disk is full")

        append, consumer._append_aside = consumer._append_aside, refused
        with pytest.raises(Unavailable):
            consumer.fail(event, "no")
        consumer._append_aside = append
        wait_for(lambda: consumer.take(1, 1, 0) == [] and "t.dead" in store.topics())  # before it is handed out
    assert [each.meta["dead_failures"] for each in store.read("t.dead")] == ["1"]


def test_what_was_handed_out_before_a_seek_cannot_be_acked(store: Store) -> None:
    fill(store, 10)
    with log_now(store) as consumer:
        events = list(consumer)
        consumer.seek(3)
        with pytest.raises(Fenced):
            consumer.ack(events[9])
