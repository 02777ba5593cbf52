"""What appends rest on that others have brought: producers' requests and unfinished transactions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headwater.engine.engine import Engine
from headwater.errors import Corrupt


def test_a_retry_is_known_to_who_only_had_transactions_since(tmp_path: Path) -> None:
    with Engine(tmp_path / "data") as one, Engine(tmp_path / "data") as other:
        one.append("a", b"first", producer=("p", 0, 1))
        asked = other.append("a", b"asked", producer=("q", 0, 1))
        with one.transaction() as transaction:
            transaction.append("a", b"between")
        assert one.append("a", b"asked", producer=("q", 0, 1)) == asked
        assert [event.data for event in one.read("a")] == [b"first", b"asked", b"between"]


def test_a_retry_is_known_to_who_only_expected_versions_since(tmp_path: Path) -> None:
    with Engine(tmp_path / "data") as one, Engine(tmp_path / "data") as other:
        one.append("a", b"first", producer=("p", 0, 1))
        asked = other.append("a", b"asked", producer=("q", 0, 1))
        one.append("a", b"between", key="k", expected_version="none")
        assert one.append("a", b"asked", producer=("q", 0, 1)) == asked


def test_a_damaged_log_with_a_transaction_that_is_not_finished_can_be_opened_and_repaired(tmp_path: Path) -> None:
    with Engine(tmp_path / "living") as engine:
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
    with Engine(tmp_path / "data") as engine:
        with pytest.raises(Corrupt):
            list(engine.read("a"))
        assert [event.data for event in engine.read("b")] == [b"other"]
        engine.repair("a", apply=True)
        assert [(event.offset, event.data) for event in engine.read("a")] == [(1, b"one")]
