"""What functions have done is counted, and another process can tell it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import headwater
from headwater import App, Event, Limits, Store
from headwater.views import function_counts
from headwater.views.context import Context
from headwater.views.function_counts import function_infos
from tests.views.running import LIMITS, PATIENCE_S, acting_on, info_of
from tests.waiting import wait_for


@pytest.fixture
def limits() -> Limits:
    return LIMITS


def test_another_process_can_tell_what_functions_have_done(hw: Store, tmp_path: Path) -> None:
    app = App()

    @app.function("in", tries=2)
    def copy(ctx: Context, event: Event) -> None:
        if event.type == "bad":
            raise ValueError("bad one")
        ctx.append("out", event.value)

    hw.create("in", partitions=2)
    hw.append_many("in", [{"n": n} for n in range(10)], keys=list("abcdefghij"))
    hw.append("in", {}, type="bad", key="a")
    with app.running(hw) as runner:
        runner.settle(PATIENCE_S)
        running = info_of(hw, "copy")
    with headwater.open(tmp_path / "data") as other:
        idle = info_of(other, "copy")
    assert (running.state, idle.state) == ("running", "idle")
    assert (idle.kind, idle.topic, idle.binder, idle.lag) == ("function", "in", None, 0)
    assert (idle.events, idle.errors, idle.aside) == (10, 2, 1)
    assert [(each.partition, each.lag, each.owner) for each in idle.partitions] == [(0, 0, None), (1, 0, None)]
    assert sum(each.next for each in idle.partitions) == sum(each.end for each in idle.partitions) == 11
    assert idle.error is not None
    assert (idle.error.type, idle.error.error) == ("bad", "ValueError: bad one")
    assert "in copy" in idle.error.trace
    [bad] = hw.read("in", type="bad")
    assert (idle.error.partition, idle.error.offset, idle.error.id) == (bad.partition, bad.offset, str(bad.id))


def test_counts_of_several_runs_add_up_and_a_rate_is_of_now(hw: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App()
    app.function("in", name="f")(lambda *_: None)
    for _ in range(3):
        hw.append_many("in", [b"x"] * 100)
        app.catch_up(hw)
    info = info_of(hw, "f")
    assert info.events == 300
    assert info.rate > 0
    monkeypatch.setattr(function_counts, "RATE_S", 0.0)
    assert info_of(hw, "f").rate == 0


def test_a_function_that_was_forgotten_or_never_ran_is_not_told(hw: Store) -> None:
    assert function_infos(hw) == []
    app = App()
    app.function("in", name="f")(lambda *_: None)
    hw.append("in", b"x")
    app.catch_up(hw)
    assert [info.name for info in function_infos(hw)] == ["f"]
    hw.forget("function.f", "in")
    assert function_infos(hw) == []


def test_counts_that_cannot_be_written_keep_no_function_from_its_work(hw: Store) -> None:
    app = App()
    app.function("in", name="copy")(lambda ctx, event: ctx.append("out", event.data))
    hw.append_many("in", [b"x"] * 10)
    (hw.path / function_counts.FILE).write_bytes(b"something else altogether" * 100)
    app.catch_up(hw)
    assert len(list(hw.read("out"))) == 10


def test_counts_that_somebody_locks_are_written_later(hw: Store) -> None:
    app = App()
    app.function("in", name="copy")(lambda ctx, event: ctx.append("out", event.data))
    hw.append("in", b"x")
    app.catch_up(hw)
    locked = sqlite3.connect(hw.path / function_counts.FILE, isolation_level=None)
    with acting_on(hw, app, "copy") as actor:
        locked.execute("BEGIN IMMEDIATE")
        hw.append_many("in", [b"x"] * 10)
        wait_for(lambda: len(list(hw.read("out"))) == 11 and actor.settled())
        locked.execute("ROLLBACK")
        locked.close()
    assert info_of(hw, "copy").events == 11


def test_what_retention_took_before_it_was_handled_is_told(hw: Store) -> None:
    app = App()
    app.function("in", name="f", tries=5)(lambda *_: None)
    hw.append_many("in", [b"x"] * 3)
    app.catch_up(hw)
    hw.append_many("in", [b"y"] * 4)
    hw.seal("in")
    hw.append("in", b"z")
    hw.retain("in", before=7)
    app.catch_up(hw)
    assert (info_of(hw, "f").events, info_of(hw, "f").missed) == (4, 4)
    hw.append("in", b"z")
    app.catch_up(hw)
    assert (info_of(hw, "f").events, info_of(hw, "f").missed) == (5, 4)


def test_its_place_is_that_of_a_consumer(hw: Store) -> None:
    app = App()
    app.function("in", name="f")(lambda *_: None)
    hw.append_many("in", [b"x"] * 3)
    app.catch_up(hw)
    [info] = [info for info in hw.consumers() if info.name == "function.f"]
    assert (info.cursor, info.lag, info.owner) == (3, 0, None)


def test_a_file_of_counts_whose_maker_died_is_as_none_and_is_made_whole(hw: Store) -> None:
    sqlite3.connect(hw.path / function_counts.FILE).execute("PRAGMA journal_mode = WAL")
    assert function_infos(hw) == []
    app = App()
    app.function("in", name="f")(lambda *_: None)
    hw.append("in", b"x")
    app.catch_up(hw)
    assert info_of(hw, "f").events == 1
