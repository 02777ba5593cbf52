"""Appending to a bucket: what becomes one object, when, and what happens when answers are lost or the store is slow."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headwater import Aggregate, Repository
from headwater.errors import Closed, Conflict, Fenced, Invalid, NotFound, TooLarge, Unavailable, Unsupported
from headwater.limits import Limits
from headwater.store import Store
from tests.bucket.conftest import Opener, hooks_of
from tests.waiting import wait_for


def objects(hw: Store, topic: str = "t") -> list[str]:
    """The keys of the objects of events of a topic."""
    return [
        each.key for each in hooks_of(hw).within.list("topics/") if f"/{topic}/" in each.key and "/events/" in each.key
    ]


def datas(hw: Store, topic: str = "t") -> list[bytes | None]:
    return [event.data for event in hw.read(topic)]


# Lingering


def test_what_is_appended_later_shares_an_object(opener: Opener) -> None:
    hw = opener(limits=Limits(linger_ms=60_000))
    pending = [hw.append_later("t", b"%d" % number, type="n", key=b"k", meta={"a": "b"}) for number in range(50)]
    assert not any(each.done() for each in pending)
    hw.flush()
    assert [each.result(0).offset for each in pending] == list(range(50))
    assert len(objects(hw)) == 1
    events = list(hw.read("t"))
    assert [event.data for event in events] == [b"%d" % number for number in range(50)]
    assert {(event.type, event.key, event.content) for event in events} == {("n", b"k", "bytes")}
    assert [(ref.id, ref.time) for ref in (each.result() for each in pending)] == [(e.id, e.time) for e in events]


def test_lingering_ends_with_the_time(opener: Opener) -> None:
    hw = opener(limits=Limits(linger_ms=20))
    pending = [hw.append_later("t", b"%d" % number) for number in range(5)]
    assert [each.result(10).offset for each in pending] == [0, 1, 2, 3, 4]


def test_lingering_ends_with_the_size(opener: Opener) -> None:
    hw = opener(limits=Limits(linger_ms=60_000, linger_bytes=1000))
    first = hw.append_later("t", b"x" * 400)
    assert not first.done()
    second = hw.append_later("t", b"x" * 700)
    assert (first.result(10).offset, second.result(10).offset) == (0, 1)
    assert len(objects(hw)) == 1


def test_an_append_that_is_waited_for_does_not_linger_and_takes_others_along(opener: Opener) -> None:
    hw = opener(limits=Limits(linger_ms=60_000))
    later = hw.append_later("t", b"later")
    assert hw.append("t", b"now").offset == 1
    assert later.result(0).offset == 0
    assert len(objects(hw)) == 1


def test_who_waits_lingers_too_if_that_was_asked_for(opener: Opener) -> None:
    hw = opener(limits=Limits(linger_ms=300), patient=True)
    hw.create("t")
    offsets: list[int] = []
    threads = [threading.Thread(target=lambda: offsets.append(hw.append("t", b"x").offset)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(8))
    assert len(objects(hw)) < 8


def test_closing_appends_what_waits(opener: Opener) -> None:
    hw = opener(limits=Limits(linger_ms=60_000))
    pending = [hw.append_later("t", b"%d" % number) for number in range(3)]
    hw.close()
    assert [each.result(0).offset for each in pending] == [0, 1, 2]
    assert datas(opener()) == [b"0", b"1", b"2"]
    with pytest.raises(Closed):
        hw.append_later("t", b"")


def test_what_is_appended_later_goes_to_the_partition_of_its_key(opener: Opener) -> None:
    hw = opener()
    hw.create("t", partitions=4)
    pending = [hw.append_later("t", b"%d" % number, key=b"%d" % (number % 7)) for number in range(70)]
    hw.flush()
    refs = [each.result() for each in pending]
    assert {(event.partition, event.offset, event.data) for event in hw.read("t")} == {
        (ref.partition, ref.offset, b"%d" % number) for number, ref in enumerate(refs)
    }
    assert len({ref.partition for ref in refs}) > 1


@pytest.mark.parametrize(
    ("options", "error"), [({"data": b"x" * 2_000_000}, Invalid), ({"data": b"", "key": b"x" * 5000}, TooLarge)]
)
def test_what_cannot_be_appended_is_refused_at_once(
    bucket: Store, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        bucket.append_later("t", **options)
    bucket.create("t")
    assert list(bucket.read("t")) == []


# Pressure


def test_whoever_appends_faster_than_the_store_takes_waits(opener: Opener) -> None:
    hw = opener(limits=Limits(linger_ms=0, buffer_bytes=1000, object_bytes=100))
    hw.append("t", b"first")
    stopped, go_on = threading.Event(), threading.Event()

    def stop(method: str, key: str) -> None:
        if method == "create" and "/events/" in key:
            stopped.set()
            go_on.wait()

    hooks_of(hw).before = stop
    hw.append_later("t", b"x" * 100)
    assert stopped.wait(10)
    for _ in range(10):
        hw.append_later("t", b"x" * 100)  # these fit the buffer
    blocked = threading.Thread(target=lambda: hw.append_later("t", b"last"))
    blocked.start()
    blocked.join(0.2)
    assert blocked.is_alive()
    go_on.set()
    blocked.join(10)
    assert not blocked.is_alive()
    hw.flush()
    assert len(datas(hw)) == 13


def test_one_object_of_a_partition_is_on_its_way_at_a_time(opener: Opener) -> None:
    hw = opener(limits=Limits(object_bytes=1))
    hw.create("t")
    under_way, most = 0, 0
    counting = threading.Lock()

    def begin(method: str, key: str) -> None:
        nonlocal under_way, most
        if method == "create" and "/events/" in key:
            with counting:
                under_way += 1
                most = max(most, under_way)

    def end(method: str, key: str) -> None:
        nonlocal under_way
        if method == "create" and "/events/" in key:
            with counting:
                under_way -= 1

    hooks_of(hw).before, hooks_of(hw).after = begin, end
    threads = [threading.Thread(target=lambda: [hw.append("t", b"x") for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert [event.offset for event in hw.read("t")] == list(range(40))


# Lost answers and other writers


def test_an_answer_that_was_lost_appends_nothing_twice(opener: Opener) -> None:
    """The request is sent again, and the store says that somebody was first: that was this very write."""
    hw = opener()
    hooks_of(hw).loses = lambda method, key: method == "create" and "/events/" in key
    refs = [hw.append("t", b"%d" % number) for number in range(10)]
    refs += hw.append_many("t", [b"10", b"11"])
    assert [ref.offset for ref in refs] == list(range(12))
    assert datas(hw) == datas(opener()) == [b"%d" % number for number in range(12)]


def test_a_store_that_says_that_one_is_there_which_is_not_is_asked_again(opener: Opener) -> None:
    """As S3 does with 409 when two come at once, though neither landed."""
    hw = opener()
    hw.append("t", b"0")
    store = hooks_of(hw)
    create, refusals = store.create, iter([True, True, False])
    store.create = lambda key, data: (  # type: ignore[method-assign]
        None if "/events/" in key and next(refusals, False) else create(key, data)
    )
    assert hw.append("t", b"1").offset == 1
    assert datas(opener()) == [b"0", b"1"]


def test_who_comes_second_goes_behind(opener: Opener) -> None:
    one, other = opener(), opener()
    one.append("t", b"0")
    assert other.append("t", b"1").offset == 1
    for number in range(2, 8):
        assert (one, other)[number % 2].append("t", b"%d" % number).offset == number
    events = list(opener().read("t"))
    assert [event.data for event in events] == [b"%d" % number for number in range(8)]
    assert all(a.ticks < b.ticks for a, b in itertools.pairwise(events))


def test_another_writer_in_the_midst_of_an_append_is_gone_behind(opener: Opener) -> None:
    one, other = opener(), opener()
    one.append("t", b"0")
    between = iter([[b"1", b"2"], [b"3"]])

    def come_between(method: str, key: str) -> None:
        if method == "create" and "/events/" in key:
            other.append_many("t", next(between, []))

    hooks_of(one).before = come_between
    assert one.append("t", b"4").offset == 4
    assert datas(opener()) == [b"0", b"1", b"2", b"3", b"4"]


def test_what_the_store_does_not_take_is_told_and_the_next_goes_on(opener: Opener) -> None:
    hw = opener()
    hw.append("t", b"0")

    def fail(method: str, key: str) -> None:
        if method == "create" and "/events/" in key:
            raise Unavailable("the store is away", code="store_unavailable")

    hooks_of(hw).before = fail
    with pytest.raises(Unavailable, match="away"):
        hw.append("t", b"lost")
    pending = hw.append_later("t", b"lost")
    with pytest.raises(Unavailable, match="away"):
        pending.result(10)
    hooks_of(hw).before = lambda _method, _key: None
    assert hw.append("t", b"1").offset == 1
    assert datas(hw) == [b"0", b"1"]


def test_an_interrupted_append_holds_nobody_up(bucket: Store) -> None:
    bucket.append("t", b"0")
    flusher = threading.Thread(target=bucket.flush)

    def interrupt(method: str, key: str) -> None:
        if method == "create" and "/events/" in key:
            flusher.start()
            wait_for(lambda: bucket.logs._topics.get("t").logs[0]._appender._flushing)
            raise KeyboardInterrupt

    hooks_of(bucket).before = interrupt
    with pytest.raises(KeyboardInterrupt):
        bucket.append("t", b"1")
    flusher.join(10)
    assert not flusher.is_alive()
    hooks_of(bucket).before = lambda _method, _key: None
    assert bucket.append("t", b"1").offset == 1


@pytest.mark.parametrize("end", ["flush", "close"])
def test_what_failed_is_told_at_the_end_if_nobody_asked(opener: Opener, end: str) -> None:
    hw = opener(limits=Limits(linger_ms=60_000))
    hw.append("t", b"0")

    def fail(method: str, key: str) -> None:
        if method == "create" and "/events/" in key:
            raise Unavailable("the store is away", code="store_unavailable")

    hooks_of(hw).before = fail
    hw.append_later("t", b"lost")
    with pytest.raises(Unavailable, match="away"):
        getattr(hw, end)()
    hooks_of(hw).before = lambda _method, _key: None
    if end == "flush":
        hw.flush()  # it was told once
    hw.close()
    assert datas(opener()) == [b"0"]


def test_a_result_that_takes_too_long_can_be_asked_for_again(opener: Opener) -> None:
    hw = opener(limits=Limits(linger_ms=60_000))
    pending = hw.append_later("t", b"x")
    with pytest.raises(Unavailable) as caught:
        pending.result(0.01)
    assert caught.value.code == "pending"
    hw.flush()
    assert pending.result().offset == 0


# Producers


def test_a_request_of_a_producer_is_done_once_also_by_another_process(opener: Opener) -> None:
    hw = opener()
    first = hw.append("t", b"a", producer=("p", 1, 1))
    many = hw.append_many("t", [b"b", b"c"], producer=("p", 1, 2))
    for each in (hw, opener()):
        assert each.append("t", b"a", producer=("p", 1, 1)) == first
        assert [ref.offset for ref in each.append_many("t", [b"b", b"c"], producer=("p", 1, 2))] == [1, 2]
    assert list(many) == list(hw.append_many("t", [b"b", b"c"], producer=("p", 1, 2)))
    assert datas(hw) == [b"a", b"b", b"c"]


def test_an_old_epoch_is_fenced_and_a_forgotten_request_is_a_conflict(opener: Opener) -> None:
    hw, other = opener(), opener()
    for seq in range(8):
        hw.append("t", b"%d" % seq, producer=("p", 1, seq))
    with pytest.raises(Conflict) as caught:
        other.append("t", b"0", producer=("p", 1, 0))
    assert caught.value.code == "seq_forgotten"
    other.append("t", b"new", producer=("p", 2, 8))
    with pytest.raises(Fenced) as fenced:
        hw.append("t", b"old", producer=("p", 1, 9))
    assert (fenced.value.code, fenced.value.epoch) == ("old_epoch", 2)
    assert len(datas(hw)) == 9


def test_producers_are_remembered_behind_appends_without_one(opener: Opener) -> None:
    hw = opener(limits=Limits(object_producers_max=3))
    for number in range(4):
        hw.append("t", b"%d" % number, producer=(f"p{number}", 1, 7))
    for _ in range(3):
        opener().append("t", b"other")
    assert opener().append("t", b"3", producer=("p3", 1, 7)).offset == 3
    assert opener().append("t", b"0", producer=("p0", 1, 7)).offset == 7  # the one that was silent longest is forgotten


# Transactions, and what cannot be done


def test_a_transaction_is_one_object(bucket: Store) -> None:
    with bucket.transaction() as tx:
        tx.append("t", b"bytes", key=b"k")
        tx.append("t", {"json": 1}, type="x")
        tx.append_many("t", ["text", "more"])
    assert [ref.offset for ref in tx.refs] == [0, 1, 2, 3]
    assert len(objects(bucket)) == 1
    events = list(bucket.read("t"))
    assert [event.value for event in events] == [b"bytes", {"json": 1}, "text", "more"]
    assert [ref.id for ref in tx.refs] == [event.id for event in events]


def test_a_transaction_that_raises_or_is_empty_appends_nothing(bucket: Store) -> None:
    bucket.create("t")
    with contextlib.suppress(RuntimeError), bucket.transaction() as tx:
        tx.append("t", b"x")
        raise RuntimeError
    with bucket.transaction():
        pass
    assert datas(bucket) == []


def test_a_transaction_over_several_partitions_is_unsupported_and_appends_nothing(bucket: Store) -> None:
    bucket.create("t", partitions=2)
    for topics in (("t", "t"), ("a", "b")):
        tx = bucket.transaction()
        for number, topic in enumerate(topics):
            tx.append(topic, b"x", partition=number if topic == "t" else 0)
        with pytest.raises(Unsupported, match="one partition"):
            tx.commit()
    assert datas(bucket) == datas(bucket, "a") == datas(bucket, "b") == []


def test_a_repeated_transaction_of_a_producer_is_done_once(opener: Opener) -> None:
    answers = []
    for _ in range(2):
        with opener().transaction(producer=("p", 1, 1)) as tx:
            tx.append("t", b"a")
            tx.append("t", {"b": 1})
        answers.append(tx.refs)
    assert answers[0] == answers[1]
    assert len(datas(opener())) == 2


CANNOT: dict[str, Callable[[Store], object]] = {
    "append with a version": lambda hw: hw.append("t", b"", key=b"k", expected_version="none"),
    "append many with a version": lambda hw: hw.append_many("t", [b""], keys=[b"k"], expected_version=0),
    "append a stream with a version": lambda hw: hw.append("t", iter([b""]), key=b"k", expected_version=0),
    "the version of a key": lambda hw: hw.version("t", b"k"),
    "the history of an aggregate": lambda hw: Repository(hw, "t", Aggregate),
    "reindex": lambda hw: hw.reindex("t"),
    "repair": lambda hw: hw.repair("t", apply=True),
    "documents": lambda hw: hw.binder("b"),
    "binders": lambda hw: hw.binders(),
    "views": lambda hw: hw.views(),
}


@pytest.mark.parametrize("cannot", CANNOT)
def test_what_a_bucket_cannot_do_is_unsupported_and_changes_nothing(bucket: Store, cannot: str) -> None:
    bucket.append("t", b"there", key=b"k")
    with pytest.raises(Unsupported) as caught:
        CANNOT[cannot](bucket)
    assert caught.value.hint
    assert datas(bucket) == [b"there"]


def test_a_version_in_a_transaction_is_unsupported_and_nothing_of_it_is_appended(bucket: Store) -> None:
    bucket.create("t")
    tx = bucket.transaction()
    tx.append("t", b"first")
    tx.append("t", b"x", key=b"k", expected_version="none")
    with pytest.raises(Unsupported):
        tx.commit()
    assert datas(bucket) == []


def test_an_ack_in_a_transaction_is_unsupported(bucket: Store) -> None:
    bucket.append("t", b"x")
    with bucket.consumer("c", "t") as consumer:
        event = next(consumer)
        with pytest.raises(Unsupported, match="ack"):
            bucket.transaction().ack(event)


def test_a_large_table_is_split_into_objects(opener: Opener) -> None:
    hw = opener(limits=Limits(pack_events=100))
    refs = hw.append_arrow("t", pa.table({"data": [b"%d" % number for number in range(1000)]}))
    assert [ref.offset for ref in refs] == list(range(1000))
    assert datas(hw) == [b"%d" % number for number in range(1000)]


def test_a_hint_of_the_end_is_put_now_and_then_and_may_be_wrong(opener: Opener) -> None:
    hw = opener()
    for number in range(70):
        hw.append("t", b"%d" % number)
    store = hooks_of(hw).within
    (tail,) = [each.key for each in store.list("topics/") if "/tail/" in each.key]
    assert opener().append("t", b"").offset == 70
    for hint in (b'{"base":999999}', b'{"base":1}', b"nonsense", b""):
        store.put(tail, hint)
        assert len(datas(opener())) == opener().append("t", b"").offset


def test_a_deletion_that_was_interrupted_loses_nothing_acknowledged_and_can_be_finished(opener: Opener) -> None:
    hw, writer = opener(), opener()
    writer.append("t", b"old")

    def die(method: str, key: str) -> None:
        if method == "swap" and key.endswith("/topic"):
            raise Unavailable("the process has died")

    hooks_of(hw).before = die
    with pytest.raises(Unavailable, match="died"):
        hw.delete("t")
    for each in (writer, opener()):
        with pytest.raises(NotFound):
            each.append("t", b"never acknowledged")
    opener().delete("t")
    assert writer.append("t", b"new").offset == 0
    assert datas(opener()) == [b"new"]
