"""What appends rest on that others have brought: producers' requests and unfinished transactions."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from headwater.disk.disk import Clock
from headwater.errors import Corrupt
from headwater.opening import open_directory
from headwater.store import Store


def test_a_retry_is_known_to_who_only_had_transactions_since(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data") as one, open_directory(tmp_path / "data") as other:
        one.append("a", b"first", producer=("p", 0, 1))
        asked = other.append("a", b"asked", producer=("q", 0, 1))
        with one.transaction() as transaction:
            transaction.append("a", b"between")
        assert one.append("a", b"asked", producer=("q", 0, 1)) == asked
        assert [event.data for event in one.read("a")] == [b"first", b"asked", b"between"]


def test_a_retry_is_known_to_who_only_expected_versions_since(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data") as one, open_directory(tmp_path / "data") as other:
        one.append("a", b"first", producer=("p", 0, 1))
        asked = other.append("a", b"asked", producer=("q", 0, 1))
        one.append("a", b"between", key="k", expected_version="none")
        assert one.append("a", b"asked", producer=("q", 0, 1)) == asked


def test_a_damaged_log_with_a_transaction_that_is_not_finished_can_be_opened_and_repaired(tmp_path: Path) -> None:
    with open_directory(tmp_path / "living") as engine:
        engine.append("a", b"first".ljust(100))
        with engine.transaction() as transaction:
            transaction.append("a", b"one")
            transaction.append("b", b"other")
        shutil.copytree(tmp_path / "living", tmp_path / "data")  # as a crash leaves it: with its journal
    log = tmp_path / "data" / "topics" / "a" / "0"
    segment = log / "00000000000000000000.log"
    stored = bytearray(segment.read_bytes())
    stored[150] ^= 1
    segment.write_bytes(stored)
    (log / "tail").unlink()  # without it, recovery cannot tell damage from a torn end
    with open_directory(tmp_path / "data") as engine:
        with pytest.raises(Corrupt):
            list(engine.read("a"))
        assert [event.data for event in engine.read("b")] == [b"other"]
        engine.repair("a", apply=True)
        assert [(event.offset, event.data) for event in engine.read("a")] == [(1, b"one")]


def test_producers_are_read_after_two_power_losses_that_left_an_old_tail(tmp_path: Path) -> None:
    tail = tmp_path / "data" / "topics" / "a" / "0" / "tail"
    segment = tail.with_name("00000000000000000000.log")
    with _booted(tmp_path, b"1") as engine:
        engine.append("a", b"kept", producer=("p", 0, 1))
        durable = engine._topics.get("a").logs[0].state().durable_position
        engine.append("a", b"lost".ljust(100), producer=("p", 0, 2), durability="os")
        old = tail.read_bytes()
    os.truncate(segment, durable)
    with _booted(tmp_path, b"2") as engine:
        engine.append("a", b"short")
        engine.append("a", b"long".ljust(200))
    tail.write_bytes(old)  # which no sync has covered since
    with _booted(tmp_path, b"3") as engine:
        assert engine.append("a", b"kept", producer=("p", 0, 1)).offset == 0
        assert engine.append("a", b"lost".ljust(100), producer=("p", 0, 2)).offset == 3


def _booted(path: Path, boot: bytes) -> Store:
    clock = Clock()
    clock.boot_id = lambda: boot * 16  # type: ignore[method-assign]
    return open_directory(path / "data", clock=clock)
