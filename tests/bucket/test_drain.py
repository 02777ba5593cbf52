"""Draining: what a function does that is woken when there is something to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater.event import Event
from headwater.limits import Limits
from headwater.store import Store
from tests.bucket.conftest import Opener, hooks_of
from tests.opened import join
from tests.waiting import wait_for

LIMITS = Limits(retry_ms=1, lease_ms=2000, follow_ms=20)


@pytest.fixture(params=["directory", "objects"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "data") if request.param == "directory" else f"objects://{tmp_path}/objects"


@pytest.fixture
def either(address: str) -> Iterator[Store]:
    with opened(address) as hw:
        hw.create("t", partitions=3)
        yield hw


def opened(address: str) -> Store:
    return headwater.open(address, limits=LIMITS)


def fill(hw: Store, count: int, partition: int = 0, first: int = 0) -> None:
    hw.append_many("t", [b"%d" % number for number in range(first, first + count)], partition=partition)


def test_all_is_handled_and_given_back(either: Store) -> None:
    for partition in range(3):
        fill(either, 5, partition)
    seen: list[tuple[int, int]] = []
    drained = either.drain("c", "t", lambda event: seen.append((event.partition, event.offset)))
    assert (drained.handled, drained.more, bool(drained)) == (15, False, False)
    assert sorted(seen) == [(partition, offset) for partition in range(3) for offset in range(5)]
    for info in either.consumers("t"):
        assert (info.cursor, info.lag, info.owner) == (5, 0, None)
    assert either.drain("c", "t", lambda _: None) == headwater.DrainResult(0, False)


def test_partitions_in_which_nothing_waits_are_not_touched(either: Store) -> None:
    fill(either, 5, 1)
    either.drain("c", "t", lambda _: None)
    assert [info.fence for info in either.consumers("t")] == [0, 1, 0]


def test_only_the_partitions_that_are_named_are_drained(either: Store) -> None:
    fill(either, 5, 1)
    fill(either, 5, 2)
    assert either.drain("c", "t", lambda _: None, partitions=[1]) == headwater.DrainResult(5, False)
    assert either.drain("c", "t", lambda _: None) == headwater.DrainResult(5, False)


def test_what_fails_is_tried_again_and_set_aside(either: Store) -> None:
    fill(either, 3)
    tries: list[int] = []

    def handle(event: Event) -> None:
        tries.append(event.offset)
        if event.offset == 1:
            raise ValueError("no")

    assert either.drain("c", "t", handle, failures_max=3) == headwater.DrainResult(2, False)
    assert tries.count(1) == 3
    (dead,) = either.read("t.dead")
    assert dead.meta["dead_offset"] == "1"


def test_the_time_ends_it_between_two_events_and_nothing_is_lost(either: Store) -> None:
    fill(either, 50)
    seen: list[int] = []

    def slow(event: Event) -> None:
        seen.append(event.offset)
        time.sleep(0.02)

    drained = either.drain("c", "t", slow, seconds=0.2)
    assert drained.more
    assert 0 < drained.handled < 50
    assert either.consumers("t")[0].cursor == drained.handled == len(seen)
    assert either.drain("c", "t", slow) == headwater.DrainResult(50 - drained.handled, False)
    assert seen == list(range(50))


def test_with_seconds_it_looks_again_when_it_has_caught_up(either: Store) -> None:
    fill(either, 1)

    def handle(event: Event) -> None:
        if event.offset < 5:
            fill(either, 1)

    assert either.drain("c", "t", handle, seconds=60) == headwater.DrainResult(6, False)


def test_without_seconds_it_ends_where_the_end_was_and_tells_of_more(either: Store) -> None:
    fill(either, 1)
    assert either.drain("c", "t", lambda _: fill(either, 1)) == headwater.DrainResult(1, True)


def test_what_somebody_else_holds_is_left_to_him_and_counts_as_more(either: Store, address: str) -> None:
    fill(either, 5, 0)
    fill(either, 5, 1)
    with opened(address) as other:
        with other.consumer("c", "t", lease_ms=4000) as holder:  # lives, and handles nothing
            assert holder.partitions == [0, 1, 2]
            began_s = time.monotonic()
            assert either.drain("c", "t", lambda _: None) == headwater.DrainResult(0, True)
            assert time.monotonic() - began_s < 4.0  # less than its lease
        assert either.drain("c", "t", lambda _: None) == headwater.DrainResult(10, False)


def test_what_a_dead_one_held_is_taken_over(either: Store, address: str) -> None:
    fill(either, 5)
    with opened(address) as other:
        dead = join(other, "c", "t", lease_ms=700)
        next(dead)
        dead._member.closed = True  # its thread ends, and nothing is given back
        dead._member._wake.set()
        assert either.drain("c", "t", lambda _: None) == headwater.DrainResult(5, False)
        assert either.consumers("t")[0].fence == 2


def test_an_event_that_comes_when_another_one_is_about_to_end_is_not_stranded(either: Store, address: str) -> None:
    """Whoever is woken by each append, and comes again when more waits, handles all: whatever the others do."""
    handled: list[int] = []
    mutex = threading.Lock()

    def woken() -> None:
        with opened(address) as own:
            while own.drain("c", "t", note, seconds=20):
                pass

    def note(event: Event) -> None:
        with mutex:
            handled.append(event.offset)

    threads = []
    for number in range(6):
        fill(either, 1, first=number)
        threads.append(threading.Thread(target=woken))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert set(handled) == set(range(6))
    wait_for(lambda: either.consumers("t")[0].lag == 0)


def test_a_warm_function_asks_for_little(opener: Opener) -> None:
    writer, warm = opener(), opener()
    writer.create("t", partitions=3)
    fill(writer, 5)
    assert warm.drain("c", "t", lambda _: None) == headwater.DrainResult(5, False)
    asked = hooks_of(warm).asked
    asked.clear()
    assert warm.drain("c", "t", lambda _: None) == headwater.DrainResult(0, False)
    assert asked.pop("get") <= 2 * 3 + 1
    assert asked == {"list": 1}
    fill(writer, 5)
    asked.clear()
    assert warm.drain("c", "t", lambda _: None) == headwater.DrainResult(5, False)
    assert asked.pop("get") <= 2 * 3 + 1 + 11
    assert asked == {"list": 1, "swap": 3}  # taken, handed out, committed and given back


def test_a_missing_topic_and_a_wrong_partition_are_told(either: Store) -> None:
    with pytest.raises(headwater.NotFound):
        either.drain("c", "nope", lambda _: None)
    with pytest.raises(headwater.NotFound):
        either.drain("c", "t", lambda _: None, partitions=[3])
