"""Processes that run projections are killed: between any two writes, at random moments, or stopped beyond their lease.

Whoever goes on finds documents and cursors of the same moment: no event is folded twice or left out.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater.disk.disk import Clock, Disk
from headwater.event import Event
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from headwater.views import database
from headwater.views.app import App
from headwater.views.files import Files
from tests.crash.test_death import MortalDisk
from tests.log.children import Child, Said, stop_with
from tests.views import seen

SETTLE_S = 30.0
WRITES = ("INSERT", "UPDATE", "DELETE", "BEGIN", "COMMIT", "CREATE", "ALTER", "PRAGMA wal_checkpoint", "PRAGMA journal")
PARTITIONS = 2


class Steps:
    """Ends the process at its `number`th step, once it is armed."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.armed = False
        self.done = 0

    def step(self) -> None:
        if self.armed:
            self.done += 1
            if self.done == self.number:
                os._exit(9)


class KilledDisk(MortalDisk):
    """Every operation that changes something is a step."""

    def __init__(self, steps: Steps) -> None:
        super().__init__(0)
        self._steps = steps

    def _live(self) -> None:
        self._steps.step()

    def store(self, mapped: Any, position: int, data: bytes) -> None:
        self._live()
        Disk.store(self, mapped, position, data)

    def symlink(self, target: str, path: Path) -> None:  # type: ignore[override]
        self._live()
        os.symlink(target, path)


class KilledConnection(sqlite3.Connection):
    """Every statement that changes something is a step, for each of its rows, and COMMIT one before and one behind."""

    steps: Steps

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.set_trace_callback(self._traced)

    def _traced(self, sql: str) -> None:
        if sql.lstrip().startswith(WRITES):
            self.steps.step()

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        found = super().execute(sql, *arguments)
        if sql == "COMMIT":
            self.steps.step()
        return found


class LaterClock(Clock):
    """An hour later: the leases of the dead have expired."""

    def monotonic(self) -> float:
        return time.monotonic() + 3600


def fold(doc: Any, event: Event) -> Any:
    """All offsets that it was called with: one twice, one missing or one out of order is seen."""
    if event.type == "end":
        return None
    doc = doc or {"seen": []}
    doc["seen"].append([event.partition, event.offset])
    return doc


def key_of(event: Event) -> str | None:
    return None if event.key is None else event.key.decode()


def app_of(version: int) -> App:
    app = App()
    app.projection("t", "b", name="p", version=version)(fold)
    return app


def append(hw: Store, number: int, seed: int) -> None:
    chosen = random.Random(seed)
    keys = [chosen.choice(["a", "b", "c", "d", None]) for _ in range(number)]
    types = [chosen.choice(["put", "put", "put", "end"]) for _ in range(number)]
    hw.append_many("t", [b""] * number, keys=keys, types=types)


def check_documents(hw: Store) -> dict[int, int]:
    assert seen.documents(hw, "b") == seen.plain(hw, "t", fold, key_of)
    ends = {number: each.end for number, each in enumerate(hw.describe("t").partitions)}
    assert seen.cursors(hw, "b", "p") == ends
    return ends


def check(hw: Store, version: int) -> None:
    """The documents are those of a plain fold over everything; all was folded; nothing else lies around."""
    ends = check_documents(hw)
    row = seen.row(hw, "b", "p")
    assert (row.version, row.state, row.errors, row.missed) == (version, "running", 0, 0)
    assert row.folded + row.skipped == sum(ends.values())
    current = Files.of(hw).current("b")
    found = {name for name in os.listdir(current.parent) if not name.startswith(".")}
    beside = {current.name + companion for companion in ("-wal", "-shm")}
    assert found - beside == {"b.sqlite", current.name}
    with contextlib.closing(database.connect(current)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def first(hw: Store) -> None:
    """A binder is made."""
    app_of(1).catch_up(hw, SETTLE_S)


def live(hw: Store) -> None:
    """A binder goes on, twice."""
    with app_of(1).running(hw) as runner:
        for seed in (1, 2):
            append(hw, 4, seed)
            runner.settle(SETTLE_S)


def rebuilt(hw: Store) -> None:
    """A binder is built anew, and takes the place of the old one."""
    app_of(2).catch_up(hw, SETTLE_S)


WORK: dict[str, tuple[Callable[[Store], None], int]] = {"first": (first, 1), "live": (live, 1), "rebuilt": (rebuilt, 2)}


@pytest.fixture
def arena() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="headwater-", dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


def killed_at(path: Path, work: Callable[[Store], None], number: int) -> bool:
    """Run it in a process that ends at a step; False if it came to its end before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the threads of other tests do not matter here
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            steps = KilledConnection.steps = Steps(number)
            database.sqlite3.connect = partial(sqlite3.connect, factory=KilledConnection)  # type: ignore[attr-defined]
            hw = open_directory(path, disk=KilledDisk(steps))
            steps.armed = True
            work(hw)
            hw.close()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 9), f"step {number} ended with {code}"
    return code == 9


def killed_at_every(kind: str, arena: Path) -> int:
    """Kill it at every step, let another process go on each time, and count the deaths."""
    work, version = WORK[kind]
    template = arena / "template"
    with open_directory(template) as hw:
        hw.create("t", partitions=PARTITIONS)
        append(hw, 8, 0)
        if kind != "first":
            app_of(1).catch_up(hw, SETTLE_S)
    deaths, number, killed = 0, 1, True
    while killed:
        path = arena / str(number)
        shutil.copytree(template, path, symlinks=True)
        killed = killed_at(path, work, number)
        with open_directory(path, clock=LaterClock()) as hw:
            app_of(version).catch_up(hw, SETTLE_S)
            check(hw, version)
        shutil.rmtree(path)
        deaths += killed
        number += 1
    return deaths


@pytest.mark.parametrize("kind", sorted(WORK))
def test_a_process_dies_between_any_two_writes_and_another_goes_on(kind: str, arena: Path) -> None:
    assert killed_at_every(kind, arena) > 40


# At random moments

SHORT = Limits(lease_ms=100, ack_ms=5)
LONGER = Limits(lease_ms=1000, ack_ms=5)  # so that who takes over keeps it on a machine that is busy


def runs(path: Path) -> Callable[[Said], None]:
    """What a process does until it is killed: run the application, and tell when it does."""

    def work(said: Said) -> None:
        with open_directory(path, limits=SHORT) as hw, shared_app().running(hw):
            said.send("running")
            said.recv()

    return work


def shared_app() -> App:
    app = app_of(1)
    app.projection("t", "totals", name="totals", key=lambda _event: "all", unordered=True)(total)
    return app


def total(doc: Any, event: Event) -> Any:
    """One document that all partitions change: whoever overwrites the work of another is seen."""
    doc = doc or {"count": 0, "sum": 0}
    return {"count": doc["count"] + 1, "sum": doc["sum"] + event.offset}


def started(path: Path) -> Child:
    child = Child(runs(path))
    assert child.hear() == "running"
    return child


def check_shared(path: Path) -> None:
    with open_directory(path, limits=SHORT) as hw:
        shared_app().catch_up(hw, SETTLE_S)
        check_documents(hw)
        ends = [each.end for each in hw.describe("t").partitions]
        expected = {"count": sum(ends), "sum": sum(end * (end - 1) // 2 for end in ends)}
        assert seen.data(hw, "totals") == {"all": expected}


def kill_at_random(path: Path, rounds: int, seed: int) -> None:
    """Two processes share the partitions while events come; one of them after the other is killed and started anew."""
    chosen = random.Random(seed)
    with open_directory(path) as hw:
        hw.create("t", partitions=3)
        append(hw, 10, 0)
        children = [started(path), started(path)]
        for number in range(rounds):
            until_s = time.monotonic() + chosen.uniform(0.0, 0.15)
            while time.monotonic() < until_s:
                append(hw, 5, number)
                time.sleep(0.005)  # so that there is something new, and not too much to do
            victim = chosen.randrange(2)
            children[victim].kill()
            children[victim] = started(path)
        for child in children:
            child.kill()
    check_shared(path)


def test_processes_that_share_partitions_are_killed_at_random(arena: Path) -> None:
    kill_at_random(arena / "data", 8, 0)


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 6))
def test_processes_that_share_partitions_are_killed_often(arena: Path, seed: int) -> None:
    kill_at_random(arena / "data", 150, seed)


def test_an_owner_that_was_stopped_beyond_its_lease_folds_nothing_twice(arena: Path) -> None:
    path = arena / "data"
    chosen = random.Random(7)
    with open_directory(path) as hw:
        hw.create("t", partitions=3)
        append(hw, 10, 0)
        children = [started(path), started(path)]
        for number in range(6):
            stopped = children[number % 2]
            append(hw, 20, number)
            time.sleep(chosen.uniform(0.0, 0.03))  # so that it is stopped at some moment of its work
            os.kill(stopped.pid, signal.SIGSTOP)
            until_s = time.monotonic() + 3 * SHORT.lease_ms / 1000
            while time.monotonic() < until_s:
                append(hw, 5, number)
                time.sleep(0.01)  # so that there is something new, and not too much to do
            stopped.resume()
        for child in children:
            child.kill()
    check_shared(path)


def test_an_owner_that_was_stopped_with_events_in_its_hands_is_refused(arena: Path) -> None:
    path = arena / "data"
    with open_directory(path) as hw:
        append(hw, 10, 0)

    def stopping(said: Said) -> None:
        """Stops itself when it has taken events, before the transaction that is to fold them."""
        real = database.writing

        def writing(connection: sqlite3.Connection, **named: Any) -> Any:
            if named:  # only where events are folded
                database.writing = real
                stop_with(projecting[0]._consumer)
                resumed.set()
            return real(connection, **named)

        resumed = threading.Event()

        with open_directory(path, limits=LONGER) as hw:
            runner = app_of(1).running(hw)
            projecting: list[Any] = list(runner._parts)
            database.writing = writing  # type: ignore[assignment]
            with runner:
                assert resumed.wait(SETTLE_S)  # before that, a look at the binder might be stopped with its file locked
                runner.settle(SETTLE_S)
                said.send("settled")
                said.recv()

    child = Child(stopping)
    child.wait_until_stopped()
    with open_directory(path, limits=LONGER) as hw:
        app_of(1).catch_up(hw, SETTLE_S)
        check(hw, 1)
        child.resume()
        assert child.hear() == "settled"
        append(hw, 10, 1)
        child.tell()
        child.result()
        app_of(1).catch_up(hw, SETTLE_S)
        check(hw, 1)
