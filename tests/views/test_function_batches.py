"""Functions whose events share transactions: faster, and with the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater import App, Event, Limits, Store
from headwater.opening import open_directory
from headwater.transaction import Transaction
from headwater.views.context import Context
from tests.views.running import LIMITS, info_of, place_of, values


@pytest.fixture
def limits() -> Limits:
    return LIMITS


def test_events_of_a_batch_share_a_transaction_and_never_wait_to_fill_it(
    hw: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App()
    commits: list[int] = []
    commit = Transaction.commit

    def committed(self: Transaction) -> Any:
        commits.append(self.appended)
        return commit(self)

    monkeypatch.setattr(Transaction, "commit", committed)

    @app.function("in", batch=4)
    def copy(ctx: Context, event: Event) -> None:
        if event.value["n"] != 2:  # one of them appends nothing
            ctx.append("out", event.value)

    hw.append_many("in", [{"n": n} for n in range(10)])
    app.catch_up(hw)
    assert commits == [3, 4, 2]
    assert values(hw, "out") == [{"n": n} for n in range(10) if n != 2]
    assert place_of(hw, "copy") == [10]


def test_what_succeeded_before_a_failure_in_a_batch_is_committed_first(hw: Store) -> None:
    app = App()
    called: list[int] = []
    there: list[list[Any]] = []

    @app.function("in", batch=10, tries=2)
    def copy(ctx: Context, event: Event) -> None:
        called.append(event.value["n"])
        ctx.append("out", event.value)
        if event.value["n"] == 2:
            if ctx.attempt == 2:
                there.append(values(hw, "out"))
            raise ValueError("not two")

    hw.append_many("in", [{"n": n} for n in range(5)])
    app.catch_up(hw)
    assert called == [0, 1, 2, 2, 3, 4]
    assert there == [[{"n": 0}, {"n": 1}]]
    assert values(hw, "out") == [{"n": n} for n in (0, 1, 3, 4)]


def test_in_a_batch_a_function_sees_what_it_did_for_the_events_before(hw: Store) -> None:
    app = App()

    @app.function("in", batch=100)
    def add(ctx: Context, event: Event) -> None:
        version = ctx.version("totals", "k") if "totals" in hw.topics() else None
        before = [each.value["sum"] for each in ctx.read("totals", key="k")][-1] if version is not None else 0
        expected: Any = "none" if version is None else version
        ctx.append("totals", {"sum": before + event.value["n"]}, key="k", expected_version=expected)

    hw.append_many("in", [{"n": n} for n in range(1, 6)])
    app.catch_up(hw)
    assert [each["sum"] for each in values(hw, "totals")] == [1, 3, 6, 10, 15]
    assert info_of(hw, "add").errors == 0


def test_in_a_batch_a_stale_version_is_a_conflict(hw: Store) -> None:
    app = App()
    hw.append("totals", {"sum": 0}, key="k")
    version = hw.version("totals", "k")

    @app.function("in", batch=100, tries=1)
    def add(ctx: Context, event: Event) -> None:
        ctx.append("totals", {"sum": event.value["n"]}, key="k", expected_version=version)  # decided without a look

    hw.append_many("in", [{"n": n} for n in range(1, 4)])
    app.catch_up(hw)
    assert [each["sum"] for each in values(hw, "totals")] == [0, 1]
    assert [event.value["n"] for event in hw.read("in.dead")] == [2, 3]


def test_one_event_that_spoils_a_batch_is_found(hw: Store) -> None:
    app = App()
    hw.create("lost")
    called: list[tuple[int, int]] = []

    @app.function("in", batch=10, tries=2)
    def copy(ctx: Context, event: Event) -> None:
        called.append((event.value["n"], ctx.attempt))
        ctx.append("out", event.value)
        if event.value["n"] == 1:
            ctx.append("lost", event.value)
            hw.delete("lost")  # so that it cannot be committed

    hw.append_many("in", [{"n": n} for n in range(3)])
    app.catch_up(hw)
    assert called == [(0, 1), (1, 1), (2, 1), (0, 1), (1, 1), (1, 2), (2, 1)]
    assert sorted(each["n"] for each in values(hw, "out")) == [0, 2]
    assert [event.value["n"] for event in hw.read("in.dead")] == [1]


def test_a_batch_that_is_too_large_for_a_transaction_becomes_several(tmp_path: Path) -> None:
    app = App()

    @app.function("in", batch=100)
    def copy(ctx: Context, event: Event) -> None:
        ctx.append_many("out", [event.data or b""] * 2)

    with open_directory(tmp_path / "data", limits=Limits(transaction_events_max=5)) as hw:
        hw.append_many("in", [b"%d" % n for n in range(7)])
        app.catch_up(hw)
        assert [event.data for event in hw.read("out")] == [b"%d" % (n // 2) for n in range(14)]
        assert info_of(hw, "copy").errors == 0


def test_in_a_batch_a_function_reads_what_it_appended_for_the_events_before(hw: Store) -> None:
    app = App()
    hw.create("out")

    @app.function("in", batch=100)
    def count(ctx: Context, _event: Event) -> None:
        ctx.append("out", {"before": len(list(ctx.read("out")))})

    hw.append_many("in", [b"x"] * 5)
    app.catch_up(hw)
    assert [each["before"] for each in values(hw, "out")] == [0, 1, 2, 3, 4]


def test_a_conflict_in_a_batch_is_the_failure_of_its_event_alone(hw: Store) -> None:
    app = App()
    called: list[int] = []
    hw.append("totals", {"sum": 0}, key="k")

    @app.function("in", batch=100, tries=1)
    def add(ctx: Context, event: Event) -> None:
        called.append(event.value["n"])
        ctx.append("out", event.value)
        if event.value["n"] == 1:
            ctx.append("totals", {"sum": 1}, key="k", expected_version="none")

    hw.append_many("in", [{"n": n} for n in range(4)])
    app.catch_up(hw)
    assert called == [0, 1, 2, 3]
    assert values(hw, "out") == [{"n": n} for n in (0, 2, 3)]
    assert [event.value["n"] for event in hw.read("in.dead")] == [1]
