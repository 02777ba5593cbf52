"""A transaction that is tried again under its producer's seq is done once, whatever died in between."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import Conflict, Fenced
from headwater.event import Ref
from headwater.limits import Limits
from headwater.store import Store
from headwater.transaction import Transaction
from tests.crash.machine import Loss
from tests.engine.stage import Stage
from tests.log.unsynced import open_unsynced
from tests.opened import begin, join

FIRST = ("till-3", 1, 1)


def told(refs: list[Ref]) -> list[Any]:
    return [(ref.topic, ref.partition, ref.offset, ref.id) for ref in refs]


def pay(hw: Store, producer: tuple[str, int, int] = FIRST) -> list[Ref]:
    """Several logs, batches and conditions; and events without a key where there are several partitions."""
    with hw.transaction(producer=producer) as tx:
        tx.append("orders", {"total": 12}, key="o-17", expected_version="none")
        tx.append("orders", {"total": 13}, key="o-18")
        tx.append("log", "paid")
        tx.append("log", b"\0another content")
        tx.append_many("log", ["a", "b"], keys=[None, "k"])
        tx.append("stock", {"count": -1}, key="chair")
    return tx.refs


def everything(hw: Store) -> list[Any]:
    return [(e.topic, e.partition, e.offset, e.data) for topic in hw.topics() for e in hw.read(topic)]


def make(hw: Store) -> None:
    hw.create("orders", partitions=2)
    hw.create("log", partitions=8)


def test_the_same_seq_again_has_the_first_answer_and_does_nothing(hw: Store) -> None:
    make(hw)
    first = pay(hw)
    there = everything(hw)
    assert len(there) == 7
    assert told(pay(hw)) == told(first)
    assert everything(hw) == there
    hw.append("log", "in between", key="k")
    hw.append("orders", {"total": 1}, key="o-17")
    assert told(pay(hw)) == told(first)


def test_another_seq_is_another_transaction(hw: Store) -> None:
    make(hw)
    pay(hw)
    with pytest.raises(Conflict) as caught:
        pay(hw, ("till-3", 1, 2))
    assert caught.value.code == "version_conflict"  # the key is not new any more
    with pytest.raises(Conflict) as caught:
        pay(hw, ("till-4", 1, 1))
    assert caught.value.code == "version_conflict"


def test_an_old_epoch_is_fenced(hw: Store) -> None:
    make(hw)
    pay(hw, ("till-3", 2, 1))
    with pytest.raises(Fenced) as caught:
        pay(hw, ("till-3", 1, 2))
    assert caught.value.code == "old_epoch"


def test_a_transaction_of_one_batch_needs_no_journal(hw: Store, path: Path) -> None:
    for seq in (1, 1, 2, 1):
        with hw.transaction(producer=("p", 1, seq)) as tx:
            tx.append("t", b"%d" % seq)
        assert tx.refs[0].offset == seq - 1
    assert not (path / "journal").exists()


@pytest.mark.parametrize("roll", [False, True])
def test_the_answer_outlives_the_process(path: Path, roll: bool) -> None:
    with open_unsynced(path) as hw:
        make(hw)
        first = pay(hw)
        if roll:
            for topic in hw.topics():
                hw.seal(topic)
        there = everything(hw)
    with open_unsynced(path) as one, open_unsynced(path) as two:
        assert told(pay(one)) == told(first)
        assert told(pay(two)) == told(first)
        assert everything(two) == there
        later = pay_again(one)
        assert told(pay_again(two)) == told(later)


def pay_again(hw: Store) -> list[Ref]:
    with hw.transaction(producer=("till-3", 1, 7)) as tx:
        tx.append("orders", {"total": 14}, key="o-19")
        tx.append("log", "paid")
    return tx.refs


def test_what_was_acked_with_it_may_be_gone_when_it_is_tried_again(hw: Store) -> None:
    hw.append_many("in", [b"a", b"b"])

    def move(event: Any, seq: int) -> Transaction:
        tx = begin(hw, ("mover", 1, seq))
        tx.append("out", event.data)
        tx.append("out", "moved")
        tx.ack(event, consumer=consumer)
        return tx

    with join(hw, "mover", "in", timeout=0) as consumer:
        first, second = consumer
        refs = move(first, 1).commit()
        assert told(move(first, 1).commit()) == told(refs)
        hw.seek("mover", "in", 0)  # it is fenced, and has moved the first
        assert told(move(first, 1).commit()) == told(refs)
        with pytest.raises(Fenced):
            move(second, 2).commit()
    assert [event.data for event in hw.read("out")] == [b"a", b"moved"]


def test_a_retry_that_wants_more_durability_has_it(hw: Store) -> None:
    def append(durability: Any) -> None:
        with hw.transaction(producer=FIRST, durability=durability) as tx:
            tx.append("t", b"a")

    append("os")
    assert hw.describe("t").partitions[0].durable == 0
    append("fsync")
    assert hw.describe("t").partitions[0].durable == hw.describe("t").partitions[0].end == 1


def test_a_crash_at_any_operation_and_a_retry_do_it_once() -> None:
    """Killed, or without power, after each operation of the first time; the second is in another process."""
    losses = [None, Loss("dropped", "dropped"), Loss("random", "adversarial")]
    for first, loss in enumerate(losses):
        cut = first
        while crash_and_retry(cut, loss):
            cut += 1 if loss is None else 3
        assert cut > 10


def crash_and_retry(cut: int, loss: Loss | None) -> bool:
    """Whether there was an operation to crash at."""
    stage = Stage(segment_bytes=10_000)
    try:
        make(stage.engines[0])
        stage.engines[0].append("stock", {"count": 5}, key="chair")
        for topic in stage.engines[0].topics():
            stage.engines[0].sync(topic)
        before = everything(stage.engines[0])
        stage.begin()
        first = pay(stage.engines[0])
        more = cut < stage.operations()
        if loss is None:
            stage.kill(cut)
        else:
            stage.boot(stage.lose_power(cut)(loss._replace(seed=cut)))
        hw = stage.engines[1]
        there = everything(hw)
        assert len(there) in (len(before), len(before) + 7)
        again = pay(hw)
        if len(there) > len(before) or not more:
            assert told(again) == told(first)
        assert len(everything(hw)) == len(before) + 7
        assert told(pay(stage.engines[0])) == told(again)
        assert not stage.engines[0].check().findings
    finally:
        stage.close()
    return more


def test_a_forgotten_request_is_refused(path: Path) -> None:
    with open_unsynced(path, limits=Limits(producer_answers_max=2)) as hw:
        append = partial(append_under, hw)
        for seq in range(1, 5):
            append(seq)
        assert append(3) == 2
        with pytest.raises(Conflict) as caught:
            append(1)
        assert caught.value.code == "seq_forgotten"
        assert len(list(hw.read("t"))) == 4


def append_under(hw: Store, seq: int) -> int:
    with hw.transaction(producer=("p", 1, seq)) as tx:
        tx.append("t", b"%d" % seq)
        tx.append("u", b"%d" % seq)
    return tx.refs[0].offset
