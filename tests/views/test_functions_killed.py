"""Functions in real processes that are killed: inside the log, each event has its effect exactly once."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from headwater import App, Event, Limits
from headwater.opening import open_directory
from headwater.views.context import Context
from headwater.views.function_counts import function_infos
from tests.log.children import Child, Said, stop_with
from tests.views.running import PATIENCE_S
from tests.waiting import wait_for

# A dead process is known to be dead after its lease; whoever is killed again and again is not the event's fault.
LIMITS = Limits(lease_ms=300, retry_ms=5)
TRIES = 1000
INPUTS = 500
KILLS = 6


def chain() -> App:
    """in -> middle -> out, and a function beside it that only looks."""
    app = App()

    @app.function("in", tries=TRIES)
    def first(ctx: Context, event: Event) -> None:
        ctx.append("middle", event.value, key=f"m{event.value['n']}")

    @app.function("middle", tries=TRIES, batch=7)
    def second(ctx: Context, event: Event) -> None:
        ctx.append("out", event.value, key=event.key)
        ctx.append("log", {"copied": event.value["n"]})

    app.function("in", name="look", tries=TRIES)(lambda *_: None)
    return app


def run(path: Path, said: Said, app: App) -> None:
    with open_directory(path, limits=LIMITS) as hw, app.running(hw):
        said.recv()


def test_each_input_has_one_output_however_often_processes_are_killed(tmp_path: Path) -> None:
    path, random = tmp_path / "data", Random(7)
    with open_directory(path, limits=LIMITS) as hw:
        for topic, partitions in (("in", 3), ("middle", 2), ("out", 2)):
            hw.create(topic, partitions=partitions)
        keys = [f"k{n % 50}" for n in range(INPUTS)]
        hw.append_many("in", [{"n": n} for n in range(INPUTS)], keys=keys)
        children = [Child(lambda said: run(path, said, chain())) for _ in range(2)]
        for number in range(KILLS):
            done = (number + random.random()) * INPUTS / KILLS
            wait_for(lambda done=done: hw.describe("middle").events > done)  # type: ignore[misc]
            time.sleep(random.random() * 0.005)  # not to wait for something: the moment is what varies
            children[number % 2].kill()
            children[number % 2] = Child(lambda said: run(path, said, chain()))
        wait_for(lambda: not any(info.lag for info in hw.consumers()))
        for child in children:
            child.tell()
            child.result()
        for topic in ("middle", "out"):
            assert sorted(event.value["n"] for event in hw.read(topic)) == list(range(INPUTS))
        assert Counter(event.value["copied"] for event in hw.read("log")) == Counter(range(INPUTS))
        assert not [topic for topic in hw.topics() if topic.endswith(".dead")]
        handled = {info.name: info.events for info in function_infos(hw)}
        assert handled.keys() == {"first", "second", "look"}


def test_a_function_that_ends_its_process_is_set_aside_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "data"
    app = App()

    @app.function("in", tries=2)
    def crash(ctx: Context, event: Event) -> None:
        if event.value["n"] == 30:
            os._exit(1)
        ctx.append("out", event.value)

    with open_directory(path, limits=LIMITS) as hw:
        hw.append_many("in", [{"n": n} for n in range(60)])
        deaths = 0
        while True:
            child = Child(lambda said: run(path, said, app))
            wait_for(lambda: not child.alive or [info.cursor for info in hw.consumers("in")] == [60])  # noqa: B023  (used at once)
            if child.alive:
                break
            deaths += 1
            assert deaths < 10, "it is started again and again"
        child.tell()
        child.result()
        assert [event.value["n"] for event in hw.read("out")] == [n for n in range(60) if n != 30]
        [dead] = hw.read("in.dead")
        assert dead.value == {"n": 30}
        assert dead.meta["dead_consumer"] == "function.crash"
        assert "ended its process" in dead.meta["dead_error"]
        [info] = function_infos(hw)
        assert (info.aside, info.lag) == (1, 0)
        assert info.error is not None
        assert "ended its process" in info.error.error
        assert info.error.offset == 30


def test_another_process_takes_over_from_one_that_was_killed_with_an_event_in_hand(tmp_path: Path) -> None:
    path = tmp_path / "data"
    calls: list[int] = []

    def stuck(said: Said) -> None:
        app = App()

        @app.function("in", name="f")
        def wait(ctx: Context, event: Event) -> None:
            ctx.append("out", {"by": "the first"})
            said.send(event.offset)
            said.recv()

        with open_directory(path, limits=LIMITS) as hw, app.running(hw):
            said.recv()

    with open_directory(path, limits=LIMITS) as hw:
        hw.append_many("in", [b"a", b"b"])
        child = Child(stuck)
        assert child.hear() == 0
        child.kill()
        app = App()

        @app.function("in", name="f")
        def go_on(ctx: Context, _event: Event) -> None:
            calls.append(ctx.attempt)
            ctx.append("out", {"by": "the second"})

        app.catch_up(hw, PATIENCE_S)
        assert calls == [2, 1]  # the death counts as a try
        assert [event.value["by"] for event in hw.read("out")] == ["the second"] * 2


def test_a_process_that_was_stopped_for_longer_than_its_lease_finishes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data"

    def stopped(said: Said) -> None:
        app = App()
        acting: list[Any] = []

        @app.function("in", name="f")
        def stop(ctx: Context, _event: Event) -> None:
            ctx.append("out", {"by": "the first"})
            stop_with(acting[0]._consumer)
            said.send("goes on")

        with open_directory(path, limits=LIMITS) as hw:
            runner = app.running(hw)
            acting.extend(runner._parts)
            with runner:
                said.recv()
                runner.settle(PATIENCE_S)

    with open_directory(path, limits=LIMITS) as hw:
        hw.append_many("in", [b"a", b"b"])
        child = Child(stopped)
        child.wait_until_stopped()
        app = App()
        app.function("in", name="f")(lambda ctx, _: ctx.append("out", {"by": "the second"}))
        app.catch_up(hw, PATIENCE_S)
        child.resume()
        assert child.hear() == "goes on"
        child.tell()
        child.result()
        assert [event.value["by"] for event in hw.read("out")] == ["the second"] * 2
