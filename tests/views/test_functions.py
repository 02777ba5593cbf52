"""Functions: what they append and their place are one; what fails comes again, and is set aside in the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater import App, Closed, Conflict, Event, Invalid, Limits, Store, Unavailable
from headwater.opening import open_directory
from headwater.transaction import Transaction
from headwater.views import function_worker
from headwater.views.context import Context
from headwater.views.function_worker import FunctionWorker
from tests.views.running import LIMITS, PATIENCE_S, acting_on, info_of, place_of, values
from tests.waiting import wait_for


@pytest.fixture
def limits() -> Limits:
    return LIMITS


# What a function does


def test_what_is_appended_and_the_place_are_one_transaction(hw: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App()
    hw.create("in", partitions=2)
    hw.append_many("in", [{"n": n} for n in range(20)], keys=[str(n) for n in range(20)])
    seen: list[tuple[int, int]] = []

    @app.function("in")
    def double(ctx: Context, event: Event) -> None:
        ctx.append("out", {"n": event.value["n"] * 2}, key=event.key, type="doubled", meta={"by": "double"})
        ctx.append_many("copies", [{"n": event.value["n"]}] * 2)

    commit = Transaction.commit

    def committed(self: Transaction) -> Any:
        before = sum(place_of(hw, "double")), hw.topics().count("out") and len(values(hw, "out"))
        refs = commit(self)
        seen.append((sum(place_of(hw, "double")) - before[0], len(values(hw, "out")) - before[1]))
        return refs

    monkeypatch.setattr(Transaction, "commit", committed)
    app.catch_up(hw)
    assert seen == [(1, 1)] * 20
    assert sorted(each["n"] for each in values(hw, "out")) == [n * 2 for n in range(20)]
    assert len(values(hw, "copies")) == 40
    first = next(hw.read("out"))
    assert (first.type, first.meta) == ("doubled", {"by": "double"})


def test_a_function_that_appends_nothing_needs_no_transaction(hw: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App()
    hw.append_many("in", [b"a", b"b", b"c"])
    called: list[bytes | None] = []
    monkeypatch.setattr(Transaction, "commit", lambda _: pytest.fail("a transaction"))

    @app.function("in")
    def look(_ctx: Context, event: Event) -> None:
        called.append(event.data)

    app.catch_up(hw)
    assert called == [b"a", b"b", b"c"]
    assert place_of(hw, "look") == [3]


def test_what_is_settled_is_stored(tmp_path: Path) -> None:
    app = App()
    app.function("in", name="look")(lambda *_: None)
    with open_directory(tmp_path / "data", limits=Limits(ack_ms=10**8)) as hw:
        hw.append_many("in", [b"a", b"b"])
        with app.running(hw) as runner:
            runner.settle(PATIENCE_S)
            assert place_of(hw, "look") == [2]  # though acks are stored later


def test_a_chain_of_functions_is_settled_only_at_its_end(hw: Store) -> None:
    app = App()

    @app.function("a")
    def first(ctx: Context, event: Event) -> None:
        ctx.append("b", event.value)

    @app.function("b")
    def second(ctx: Context, event: Event) -> None:
        ctx.append("c", event.value)

    hw.append_many("a", [{"n": n} for n in range(30)])
    app.catch_up(hw)
    assert values(hw, "c") == [{"n": n} for n in range(30)]


def test_only_events_of_the_type_and_with_the_fields_are_given(hw: Store) -> None:
    app = App()
    called: list[Any] = []

    @app.function("in", type="paid|sent", match={"total": {"$gte": 10}})
    def pick(_ctx: Context, event: Event) -> None:
        called.append((event.type, event.value["total"]))

    hw.append_many("in", [{"total": t} for t in (5, 10, 11, 12)], types=["paid", "paid", "sent", "refunded"])
    app.catch_up(hw)
    assert called == [("paid", 10), ("sent", 11)]
    assert place_of(hw, "pick") == [4]


def test_a_function_goes_on_under_its_name(hw: Store) -> None:
    called: list[tuple[str, Any]] = []
    hw.append("in", {"n": 1})
    for name in ("old", "new"):
        app = App()
        app.function("in", name="steady")(lambda _, event, name=name: called.append((name, event.value["n"])))
        app.catch_up(hw)
        hw.append("in", {"n": 2})
    assert called == [("old", 1), ("new", 2)]


@pytest.mark.parametrize(("start", "given"), [("earliest", [1, 2]), ("latest", [2])])
def test_a_new_function_begins_at_its_start(hw: Store, start: Any, given: list[int]) -> None:
    app = App()
    called: list[int] = []
    hw.append("in", {"n": 1})
    app.function("in", name="f", start=start)(lambda _, event: called.append(event.value["n"]))
    with app.running(hw) as runner:
        runner.settle(PATIENCE_S)
        hw.append("in", {"n": 2})
        runner.settle(PATIENCE_S)
    assert called == given


# Failures


def test_an_event_that_fails_is_tried_again_before_anything_else_then_set_aside(hw: Store) -> None:
    app = App()
    called: list[tuple[int, int]] = []

    @app.function("in", tries=3)
    def fussy(ctx: Context, event: Event) -> None:
        called.append((event.value["n"], ctx.attempt))
        ctx.append("out", event.value)
        if event.value["n"] == 1:
            raise ValueError("not one")

    hw.append_many("in", [{"n": n} for n in range(3)])
    app.catch_up(hw)
    assert called == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1)]
    assert values(hw, "out") == [{"n": 0}, {"n": 2}]  # nothing of what raised
    [dead] = hw.read("in.dead")
    assert dead.value == {"n": 1}
    assert (dead.meta["dead_error"], dead.meta["dead_consumer"]) == ("ValueError: not one", "function.fussy")
    assert (dead.meta["dead_offset"], dead.meta["dead_failures"]) == ("1", "3")


def test_what_was_set_aside_can_be_replayed(hw: Store) -> None:
    app, broken = App(), [True]

    @app.function("in", tries=1)
    def fussy(ctx: Context, event: Event) -> None:
        if broken[0]:
            raise ValueError("not now")
        ctx.append("out", event.value)

    hw.append("in", {"n": 1})
    app.catch_up(hw)
    broken[0] = False
    assert hw.replay("in", consumer="function.fussy") == 1
    app.catch_up(hw)
    assert values(hw, "out") == [{"n": 1}]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_whatever_a_function_raises_is_a_failure_and_it_goes_on(hw: Store, error: BaseException) -> None:
    app = App()

    @app.function("in", tries=2)
    def leave(ctx: Context, event: Event) -> None:
        if event.value["n"] == 0:
            raise error
        ctx.append("out", event.value)

    hw.append_many("in", [{"n": 0}, {"n": 1}])
    app.catch_up(hw)
    assert values(hw, "out") == [{"n": 1}]
    assert next(hw.read("in.dead")).meta["dead_error"].startswith(type(error).__name__)


def test_a_conflict_counts_as_a_failure_and_is_tried_again(hw: Store) -> None:
    app = App()
    attempts: list[int] = []
    hw.append("totals", {"sum": 1}, key="k")

    @app.function("in")
    def add(ctx: Context, event: Event) -> None:
        attempts.append(ctx.attempt)
        version = ctx.version("totals", "k")
        [last] = ctx.read("totals", key="k", start=version or 0)
        if ctx.attempt == 1:
            hw.append("totals", {"sum": 50}, key="k")  # somebody else is faster
        ctx.append("totals", {"sum": last.value["sum"] + event.value["n"]}, key="k", expected_version=version)

    hw.append("in", {"n": 5})
    app.catch_up(hw)
    assert attempts == [1, 2]
    assert values(hw, "totals") == [{"sum": 1}, {"sum": 50}, {"sum": 55}]
    assert info_of(hw, "add").errors == 1


def test_what_cannot_be_appended_raises_where_it_is_appended(hw: Store) -> None:
    app = App()
    raised: list[str] = []

    @app.function("in")
    def clumsy(ctx: Context, _event: Event) -> None:
        with pytest.raises(Invalid) as caught:
            ctx.append_many("out", [{"n": 1}, {"n": object()}])
        raised.append(caught.value.code)
        ctx.append("out", {"n": 3})

    hw.append("in", b"x")
    app.catch_up(hw)
    assert raised == ["invalid"]
    assert values(hw, "out") == [{"n": 3}]


# The context


def test_nothing_can_be_appended_after_the_function_has_returned(hw: Store) -> None:
    app = App()
    kept: list[Context] = []
    app.function("in", name="keep")(lambda ctx, _: kept.append(ctx))
    hw.append("in", b"x")
    app.catch_up(hw)
    with pytest.raises(Closed, match="returned"):
        kept[0].append("out", b"late")
    with pytest.raises(Closed, match="returned"):
        kept[0].append_many("out", [b"late"])
    assert "out" not in hw.topics()


def test_nothing_can_be_appended_from_another_thread(hw: Store) -> None:
    app = App()
    refused: list[BaseException] = []

    @app.function("in")
    def spread(ctx: Context, _event: Event) -> None:
        def work() -> None:
            assert [each.data for each in ctx.read("in")] == [b"x"]  # reading is fine
            try:
                ctx.append("out", b"from elsewhere")
            except Invalid as error:
                refused.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        ctx.append("out", b"from here")

    hw.append("in", b"x")
    app.catch_up(hw)
    assert len(refused) == 1
    assert [event.data for event in hw.read("out")] == [b"from here"]


@pytest.mark.parametrize("kind", ["async", "generator"])
def test_code_that_would_not_run_when_it_is_called_is_refused(kind: str) -> None:
    async def waits(*_: object) -> None: ...

    def yields(*_: object) -> Iterator[None]:
        yield

    with pytest.raises(Invalid, match="cannot be async or a generator"):
        App().function("in")(waits if kind == "async" else yields)


# Topics that come and go, and trouble


def test_a_function_waits_for_its_topic_and_does_not_make_it(hw: Store) -> None:
    app = App()
    called: list[bytes | None] = []
    app.function("in", name="wait")(lambda _, event: called.append(event.data))
    with acting_on(hw, app, "wait") as actor:
        assert actor.settled()
        assert hw.topics() == []
        hw.append("in", b"x")
        wait_for(lambda: called == [b"x"] and actor.settled())


def test_a_topic_that_is_deleted_and_made_again_is_gone_on_with(hw: Store) -> None:
    app = App()
    called: list[bytes | None] = []
    app.function("in", name="f")(lambda _, event: called.append(event.data))
    hw.append_many("in", [b"a", b"b"])
    with acting_on(hw, app, "f") as actor:
        wait_for(actor.settled)
        hw.delete("in")
        hw.append("in", b"c")
        wait_for(lambda: called == [b"a", b"b", b"c"] and actor.settled())


def test_a_partition_that_was_taken_over_is_not_finished_here(hw: Store) -> None:
    app = App()
    called: list[int] = []
    hw.append_many("in", [b"%d" % n for n in range(3)])

    @app.function("in")
    def copy(ctx: Context, event: Event) -> None:
        called.append(event.offset)
        ctx.append("out", event.data or b"")
        if called == [0, 1]:
            hw.seek("function.copy", "in", 1)  # a new fence, as when another member takes over

    app.catch_up(hw)
    assert called == [0, 1, 1, 2]
    assert [event.data for event in hw.read("out")] == [b"0", b"1", b"2"]
    assert info_of(hw, "copy").errors == 0


def test_a_function_that_was_sought_back_runs_again(hw: Store) -> None:
    app = App()
    app.function("in", name="copy")(lambda ctx, event: ctx.append("out", event.data))
    hw.append("in", b"x")
    with acting_on(hw, app, "copy") as actor:
        wait_for(actor.settled)
        hw.seek("function.copy", "in", 0)
        wait_for(lambda: len(list(hw.read("out"))) == 2)


def test_trouble_of_the_log_is_told_tried_again_and_no_failure_of_the_event(
    hw: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    monkeypatch.setattr(function_worker, "PAUSE_MAX_S", 0.1)
    app.function("in", name="copy", tries=1)(lambda ctx, event: ctx.append("out", event.data))
    refusals, commit = [Unavailable("the disk is full", hint="make room")] * 4, Transaction.commit
    told: list[Unavailable] = []

    def commit_later(self: Transaction) -> Any:
        if len(refusals) > 1 or (refusals and not told):
            raise refusals.pop() if len(refusals) > 1 else refusals[0]
        return commit(self)

    monkeypatch.setattr(Transaction, "commit", commit_later)
    hw.append("in", b"x")

    def told_of_it(actor: FunctionWorker) -> bool:
        try:
            actor.settled()
        except Unavailable as error:
            told.append(error)
            return True
        return False

    with acting_on(hw, app, "copy") as actor:
        wait_for(lambda: told_of_it(actor))
        assert told[0].code == "function_stuck"
        assert "the disk is full" in str(told[0])
        wait_for(lambda: not told_of_it(actor) and actor.settled())
    assert [event.data for event in hw.read("out")] == [b"x"]
    assert "in.dead" not in hw.topics()
    assert len([each for each in caplog.records if "cannot continue" in each.getMessage()]) == 1


def test_stopping_finishes_what_is_in_hand_and_hands_out_no_more(hw: Store) -> None:
    app = App()
    begun, go_on = threading.Event(), threading.Event()

    @app.function("in")
    def slow(ctx: Context, event: Event) -> None:
        ctx.append("out", event.data or b"")
        begun.set()
        assert go_on.wait(PATIENCE_S)

    hw.append_many("in", [b"a", b"b"])
    with acting_on(hw, app, "slow") as actor:
        assert begun.wait(PATIENCE_S)
        assert not actor.settled()
        actor.stop()
        go_on.set()
    assert [event.data for event in hw.read("out")] == [b"a"]
    assert place_of(hw, "slow") == [1]


def test_two_functions_with_one_name_are_refused() -> None:
    app = App()
    app.function("in", name="f")(lambda *_: None)
    with pytest.raises(Conflict):
        app.function("other", name="f")(lambda *_: None)
