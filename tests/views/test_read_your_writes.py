"""Reading what one has written: reads that wait until the projections have passed an event."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from headwater.errors import Closed, Invalid, Unavailable
from headwater.event import Refs
from headwater.store import Store
from tests.opened import binder_of
from tests.views.filling import Filling, ids

ANN: dict[str, dict[str, Any] | None] = {"ann": {"total": 1}}


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


class Waiter:
    """A read in another thread, of which a test can tell that it has looked and waits."""

    def __init__(self, hw: Store, threads: ThreadPoolExecutor, read: Callable[[], Any]) -> None:
        self._slept = threading.Event()
        sleep = hw.directory.clock.sleep

        def note(seconds: float) -> None:
            self._slept.set()
            sleep(seconds)

        hw.directory.clock.sleep = note  # type: ignore[assignment]
        self._result: Future[Any] = threads.submit(read)

    def waits(self) -> bool:
        self._slept.clear()
        return self._slept.wait(10) and not self._result.done()

    def result(self) -> Any:
        return self._result.result(10)


def test_get_find_and_count_wait_until_an_event_is_passed(
    hw: Store, filling: Filling, threads: ThreadPoolExecutor
) -> None:
    ref = hw.append("orders", b"1")
    filling.fold_from("orders")
    binder = binder_of(hw, "baskets")
    reads: list[Callable[[], Any]] = [
        lambda: binder.get("ann", at_least=ref).data,  # type: ignore[union-attr]
        lambda: ids(binder.find(at_least=ref)),
        lambda: binder.count(at_least=ref),
    ]
    waiting = [Waiter(hw, threads, read) for read in reads]
    assert all(each.waits() for each in waiting)
    filling.put(ANN, passed=ref)
    assert [each.result() for each in waiting] == [{"total": 1}, ["ann"], 1]
    assert all(not free.connection.in_transaction for free in binder._pool._free)


def test_what_is_passed_is_read_at_once(hw: Store, filling: Filling) -> None:
    first, second = hw.append("orders", b"1"), hw.append("orders", b"2")
    filling.fold_from("orders")
    filling.put(ANN, passed=first)
    (event,) = hw.read("orders", end=1)
    binder = binder_of(hw, "baskets")
    passed: list[Any] = [first, event, 0, [first], [first, event], (), hw.append_many("other", [])]
    for at_least in passed:
        assert binder.get("ann", at_least=at_least, timeout=0) is not None
    behind: list[Any] = [second, 1, 17, [first, second], [second, first]]
    for at_least in behind:
        with pytest.raises(Unavailable) as late:
            binder.get("ann", at_least=at_least, timeout=0)
        assert late.value.code == "view_behind"


def test_the_error_tells_how_far_it_is(hw: Store, filling: Filling) -> None:
    hw.create("orders", partitions=2)
    first = hw.append("orders", b"1", partition=1)
    second = hw.append("orders", b"2", partition=1)
    filling.fold_from("orders")
    filling.put(ANN, passed=first)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="'basket' is at offset 1 of topic 'orders', partition 1, not yet past 1"):
        binder_of(hw, "baskets").find(at_least=second, timeout=0.05)
    assert 0.05 <= time.monotonic() - began < 5


def test_every_partition_of_many_events_is_waited_for(hw: Store, filling: Filling) -> None:
    hw.create("orders", partitions=4)
    refs = hw.append_many("orders", [b"x"] * 40, keys=[b"%d" % number for number in range(40)])
    assert isinstance(refs, Refs)
    filling.fold_from("orders")
    last = {ref.partition: ref for ref in refs}
    assert len(last) == 4
    binder = binder_of(hw, "baskets")
    for ref in reversed(refs):
        filling.pass_(ref)  # at the end, only the first of each partition
    for ref in last.values():
        for at_least in (refs, list(refs)):
            with pytest.raises(Unavailable):
                binder.count(at_least=at_least, timeout=0)
        filling.pass_(ref)
    assert binder.count(at_least=refs, timeout=0) == binder.count(at_least=list(refs), timeout=0) == 0


def test_every_projection_of_the_topic_is_waited_for_and_those_of_others_are_not(hw: Store, filling: Filling) -> None:
    ref, other = hw.append("orders", b"1"), hw.append("payments", b"1")
    filling.fold_from("orders", "one")
    filling.fold_from("orders", "two")
    filling.fold_from("payments", "three")
    binder = binder_of(hw, "baskets")
    filling.pass_(ref, "one")
    with pytest.raises(Unavailable, match="'two'"):
        binder.count(at_least=ref, timeout=0)
    filling.pass_(ref, "two")
    assert binder.count(at_least=ref, timeout=0) == 0
    with pytest.raises(Unavailable, match="'three'"):
        binder.count(at_least=[ref, other], timeout=0)
    filling.pass_(other, "three")
    assert binder.count(at_least=[ref, other], timeout=0) == 0


def test_a_projection_that_was_stopped_is_not_waited_for(
    hw: Store, filling: Filling, threads: ThreadPoolExecutor
) -> None:
    passed, ref = hw.append("orders", b"1"), hw.append("orders", b"2")
    filling.fold_from("orders")
    filling.put(ANN, passed=passed)
    binder = binder_of(hw, "baskets")
    waiting = Waiter(hw, threads, lambda: binder.get("ann", at_least=ref))
    assert waiting.waits()
    filling.stop(ref, "KeyError: 'price'")
    for read in (waiting.result, lambda: binder.get("ann", at_least=ref)):
        with pytest.raises(Unavailable, match="offset 1 of partition 0: KeyError: 'price'") as stopped:
            read()
        assert stopped.value.code == "projection_stopped"
    assert binder.get("ann", at_least=passed) is not None, "what it has passed is there"


def test_a_binder_that_is_not_there_yet_is_waited_for(hw: Store, threads: ThreadPoolExecutor) -> None:
    ref = hw.append("orders", b"1")
    binder = binder_of(hw, "baskets")
    with pytest.raises(Unavailable, match="binder 'baskets' does not exist yet") as late:
        binder.get("ann", at_least=ref, timeout=0.01)
    assert late.value.code == "view_behind"
    waiting = Waiter(hw, threads, lambda: binder.get("ann", at_least=ref))
    assert waiting.waits()
    with Filling(hw) as filling:
        assert waiting.waits()
        filling.fold_from("orders")
        assert waiting.waits()
        filling.put(ANN, passed=ref)
        assert waiting.result().data == {"total": 1}


def test_a_rebuilt_binder_that_takes_the_place_is_looked_at(
    hw: Store, filling: Filling, threads: ThreadPoolExecutor
) -> None:
    ref = hw.append("orders", b"1")
    filling.fold_from("orders")
    filling.put(ANN)
    waiting = Waiter(hw, threads, lambda: binder_of(hw, "baskets").get("ann", at_least=ref))
    assert waiting.waits()
    filling.rebuild({"ann": {"total": 2}})
    assert waiting.waits()
    filling.pass_(ref)
    assert waiting.result().data == {"total": 2}


def test_the_read_sees_the_moment_in_which_it_was_passed(hw: Store, filling: Filling) -> None:
    ref = hw.append("orders", b"1")
    filling.fold_from("orders")
    filling.put(ANN, passed=ref)
    found = binder_of(hw, "baskets").find(at_least=ref)
    filling.rebuild({})
    filling.put({"bob": {}})
    assert ids(found) == ["ann"]


def test_events_of_a_topic_that_was_made_again_are_not_taken_for_those_of_the_old_one(
    hw: Store, filling: Filling
) -> None:
    old = hw.append("orders", b"1")
    filling.fold_from("orders")
    filling.put(ANN, passed=old)
    hw.delete("orders")
    new = hw.append("orders", b"1")
    assert new.offset == old.offset
    with pytest.raises(Unavailable, match="older topic") as late:
        binder_of(hw, "baskets").get("ann", at_least=new, timeout=0)
    assert late.value.code == "view_behind"


def test_an_event_of_another_topic_is_refused(hw: Store, filling: Filling) -> None:
    hw.create("orders")
    other = hw.append("letters", b"1")
    filling.fold_from("orders")
    with pytest.raises(Invalid, match="filled from 'orders', not from 'letters'"):
        binder_of(hw, "baskets").count(at_least=other, timeout=0)


def test_a_projection_may_be_made_known_while_one_waits_for_it(
    hw: Store, filling: Filling, threads: ThreadPoolExecutor
) -> None:
    hw.create("orders")
    filling.fold_from("orders", "one")
    other = hw.append("letters", b"1")
    waiting = Waiter(hw, threads, lambda: binder_of(hw, "baskets").count(at_least=other))
    assert waiting.waits()
    filling.fold_from("letters", "two")
    assert waiting.waits()
    filling.pass_(other, "two")
    assert waiting.result() == 0


def test_an_offset_alone_is_refused_where_it_says_too_little(hw: Store, filling: Filling) -> None:
    hw.create("orders", partitions=2)
    filling.fold_from("orders")
    binder = binder_of(hw, "baskets")
    with pytest.raises(Invalid, match="2 partitions"):
        binder.count(at_least=0, timeout=0)
    hw.create("letters")
    filling.fold_from("letters", "other")
    with pytest.raises(Invalid, match="2 topics"):
        binder.count(at_least=0, timeout=0)


@pytest.mark.parametrize("at_least", [-1, True, "7", b"7", 1.5, ["7"], [1], {"a": 1}])
def test_what_names_no_event_is_refused(hw: Store, filling: Filling, at_least: Any) -> None:
    hw.create("orders")
    filling.fold_from("orders")
    with pytest.raises(Invalid):
        binder_of(hw, "baskets").count(at_least=at_least)


def test_who_waits_is_told_when_the_log_is_closed(hw: Store, filling: Filling, threads: ThreadPoolExecutor) -> None:
    ref = hw.append("orders", b"1")
    filling.fold_from("orders")
    waiting = Waiter(hw, threads, lambda: binder_of(hw, "baskets").get("ann", at_least=ref, timeout=60))
    assert waiting.waits()
    hw.close()
    with pytest.raises(Closed):
        waiting.result()
