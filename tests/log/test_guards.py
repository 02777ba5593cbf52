"""What appends rest on that others have brought: producers' requests and unfinished transactions."""

from __future__ import annotations

from pathlib import Path

from headwater.engine.engine import Engine


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
