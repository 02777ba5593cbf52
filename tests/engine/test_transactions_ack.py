"""Acks in transactions: what a handler appends and the cursor of what it handled are one."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater
from headwater.errors import Fenced, Invalid
from headwater.store import Store
from tests.log.children import Child, Said


def cursor_of(hw: Store, consumer: str, topic: str) -> list[int]:
    return [info.cursor for info in hw.consumers(topic) if info.name == consumer]


def test_an_ack_is_stored_with_what_was_appended(hw: Store) -> None:
    hw.append_many("in", [b"a", b"b", b"c"])
    with hw.consumer("mover", "in", timeout=0) as consumer:
        for event in consumer:
            with hw.transaction() as tx:
                tx.append("out", event.data or b"")
                tx.ack(event)
            assert cursor_of(hw, "mover", "in") == [event.offset + 1]
    assert [event.data for event in hw.read("out")] == [b"a", b"b", b"c"]


def test_what_is_discarded_is_not_acked(hw: Store) -> None:
    hw.append("in", b"a")

    def give_up() -> None:
        with hw.consumer("mover", "in", timeout=0) as consumer, hw.transaction() as tx:
            tx.append("out", b"never")
            tx.ack(next(consumer))
            raise RuntimeError("the handler failed")

    with pytest.raises(RuntimeError):
        give_up()
    assert cursor_of(hw, "mover", "in") == [0]
    assert "out" not in hw.topics() or list(hw.read("out")) == []


def test_an_event_that_nobody_handed_out_cannot_be_acked(hw: Store) -> None:
    hw.append("in", b"a")
    [event] = hw.read("in")
    with pytest.raises(Invalid) as caught:
        hw.transaction().ack(event)
    assert caught.value.code == "no_holder"


def test_acks_of_a_transaction_come_in_order(hw: Store) -> None:
    hw.append_many("in", [b"a", b"b"])
    with hw.consumer("mover", "in", timeout=0) as consumer:
        _, second = consumer
        tx = hw.transaction()
        tx.append("out", b"x")
        tx.ack(second)
        with pytest.raises(Invalid, match="order"):
            tx.commit()
    assert list(hw.read("out")) == []


def test_a_partition_that_was_taken_over_fences_the_whole_transaction(hw: Store) -> None:
    hw.append_many("in", [b"a", b"b"])
    with hw.consumer("mover", "in", timeout=0) as consumer:
        event = next(consumer)
        tx = hw.transaction()
        tx.append("out", b"never")
        tx.append("other", b"never")
        tx.ack(event)
        hw.seek("mover", "in", 0)  # from now on another fence counts
        with pytest.raises(Fenced):
            tx.commit()
    assert list(hw.read("out")) == list(hw.read("other")) == []
    hw.append("out", b"the log goes on")


def test_a_killed_mover_has_moved_every_event_once(tmp_path: Path) -> None:
    """Killed again and again: what was appended and what was acked never differ."""
    path = tmp_path / "data"
    count = 400
    with headwater.open(path) as hw:
        hw.create("in", partitions=2)
        hw.append_many("in", [b"%d" % number for number in range(count)], keys=[b"%d" % n for n in range(count)])
        hw.create("out")

    def move(said: Said | None) -> None:
        with headwater.open(path) as engine, engine.consumer("mover", "in", lease_ms=300) as consumer:
            for number, event in enumerate(consumer.drain()):
                with engine.transaction() as tx:
                    tx.append("out", event.data or b"", key=event.key)
                    tx.ack(event)
                if said is not None and number == 30:
                    said.send("under way")

    for _ in range(4):
        child = Child(move)
        child.hear()
        child.kill()
    Child(lambda _: move(None)).result()
    with headwater.open(path) as hw:
        moved = sorted(int(event.data or b"") for event in hw.read("out"))
        assert moved == list(range(count))
        assert sum(info.lag for info in hw.consumers("in")) == 0
    assert list((path / "journal").iterdir()) == []
