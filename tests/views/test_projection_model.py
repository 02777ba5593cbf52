"""Projections against a plain fold over the whole log, whatever comes in between: restarts, kills, rebuilds, errors."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headwater.disk.disk import Clock
from headwater.errors import Unavailable
from headwater.event import Event
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from headwater.views.app import App
from headwater.views.runner import Runner
from tests.views import seen

SETTLE_S = 30.0
LIMITS = Limits(lease_ms=60_000, segment_bytes=3000, blob_bytes_min=400, ack_ms=20)
TYPES = ["put", "add", "end", "other"]
KEYS = ["a", "b", "c", "d", "e", None]


class PassingClock(Clock):
    """Time that can be moved on, so that nobody waits for the leases of the dead."""

    passed_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.passed_s


def fold(version: int) -> Callable[[Any, Event], Any]:
    """Everything that it was called with; another version writes it in another field."""

    def folding(doc: Any, event: Event) -> Any:
        if event.type == "end":
            return None
        field = f"seen{version}"
        doc = doc or {field: []}
        doc[field].append([event.partition, event.offset, event.type])
        return doc

    return folding


def total(doc: Any, event: Event) -> Any:
    """The same in any order."""
    doc = doc or {"count": 0, "sum": 0}
    return {"count": doc["count"] + 1, "sum": doc["sum"] + event.value["number"]}


def spread(docs: Any, event: Event) -> None:
    """Several documents for each event: two are changed, and sometimes one goes."""
    number = event.value["number"]
    for id in (f"n{number % 3}", f"m{number % 2}"):
        docs[id] = total(docs.get(id), event)
    if event.type == "end":
        docs.pop(f"n{(number + 1) % 3}", None)


def field_of(event: Event) -> str | None:
    found = event.value.get("by")
    return None if found is None else str(found)


class World:
    """A log, an application that may run on it, and what they are compared with."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = Random(seed)
        self.path = path
        self.partitions = self.random.randint(1, 3)
        self.version = 1
        self.number = 0
        self.clock = PassingClock()
        self.hw = self._open()
        self.hw.create("t", partitions=self.partitions)
        self.runner: Runner | None = None
        self.broken = False

    def _open(self) -> Store:
        return open_directory(self.path, limits=LIMITS, clock=self.clock)

    def app(self) -> App:
        app = App()
        version = self.version
        app.projection("t", "by-key", name="by-key", version=version)(self._may_break(fold(version)))
        several = self.partitions > 1
        app.projection("t", "by-field", name="by-field", key="by", unordered=several, version=version)(total)
        app.projection("t", "adds", name="adds", type="add|put", match={"number": {"$gte": 3}})(fold(0))
        if not several:  # what several partitions do to one document depends on their order
            app.projection("t", "spread", name="spread", many=True, version=version)(spread)
        return app

    def _may_break(self, folding: Callable[[Any, Event], Any]) -> Callable[[Any, Event], Any]:
        def breaking(doc: Any, event: Event) -> Any:
            if self.broken and event.value["number"] % 3 == 0:
                raise ValueError("broken")
            return folding(doc, event)

        return breaking

    # What may happen

    def append(self) -> None:
        events = [self._event() for _ in range(self.random.choice([1, 1, 3, 20]))]
        self.hw.append_many(
            "t",
            [data for data, _, _ in events],
            keys=[key for _, key, _ in events],
            types=[type for _, _, type in events],
            durability=self.random.choice(["fsync", "os"]),
        )

    def _event(self) -> tuple[dict[str, Any], str | None, str]:
        self.number += 1
        data: dict[str, Any] = {"number": self.number, "by": self.random.choice([1, 2, "x", None])}
        if self.random.random() < 0.05:
            data["huge"] = "x" * 600
        return data, self.random.choice(KEYS), self.random.choice(TYPES)

    def start(self) -> None:
        self.stop()
        self.runner = self.app().running(self.hw)
        self.runner.start()

    def stop(self) -> None:
        if self.runner is not None:
            self.runner.close()
            self.runner = None

    def reopen(self) -> None:
        self.stop()
        self.hw.close()
        self.hw = self._open()

    def rebuild(self) -> None:
        """A new version; the old one may go on to run, and is superseded."""
        self.version += 1
        old, self.runner = self.runner, None
        self.start()
        if old is not None:
            if self.random.random() < 0.5:
                self.settle()
            old.close()

    def break_and_mend(self) -> None:
        """A fold raises for a while; then it is mended, and resumed or restarted."""
        self.broken = True
        self.start()
        self.append()
        assert self.runner is not None
        with contextlib.suppress(Unavailable):
            self.runner.settle(0.1)
        self.broken = False
        if self.random.random() < 0.5:
            seen.resume(self.hw, "by-key", "by-key")
        else:
            self.start()

    def crash(self) -> None:
        """A process runs the application and is killed at some moment."""
        self.stop()
        until_s = time.monotonic() + self.random.uniform(0.0, 0.06)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child opens everything anew
            pid = os.fork()
        if pid == 0:
            try:
                with open_directory(self.path, limits=LIMITS, clock=self.clock) as hw, self.app().running(hw):
                    while time.monotonic() < until_s:
                        hw.append("t", {"number": 1, "by": 1}, key="a", type="put")
                    os._exit(9)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 9
        self.clock.passed_s += 100  # leases expire

    def settle(self) -> None:
        """All is folded, and is what it should be."""
        if self.runner is None:
            self.start()
        assert self.runner is not None
        self.runner.settle(SETTLE_S)
        self.check()

    def check(self) -> None:
        hw = self.hw
        version = self.version
        by_key = seen.plain(hw, "t", fold(version), lambda event: event.key and event.key.decode())
        assert seen.documents(hw, "by-key") == by_key
        wanted = hw.read("t", type="add|put", match={"number": {"$gte": 3}})
        assert seen.documents(hw, "adds") == seen.plain_of(
            wanted, fold(0), lambda event: event.key and event.key.decode()
        )
        by_field = {id: data for id, (_, data) in seen.plain(hw, "t", total, field_of).items()}
        assert seen.data(hw, "by-field") == by_field
        if self.partitions == 1:
            assert seen.documents(hw, "by-field") == seen.plain(hw, "t", total, field_of)
            assert seen.documents(hw, "spread") == self._spread()
        ends = {number: each.end for number, each in enumerate(hw.describe("t").partitions)}
        for name in self.app().projections:
            assert seen.cursors(hw, name, name) == ends
            assert seen.row(hw, name, name).missed == 0

    def _spread(self) -> seen.Documents:
        found: dict[str, Any] = {}
        versions: dict[str, int] = {}
        for event in self.hw.read("t"):
            before = dict(found)
            spread(found, event)
            versions |= {id: event.offset for id, data in found.items() if data is not before.get(id)}
        return {id: (versions[id], data) for id, data in found.items()}

    def close(self) -> None:
        self.stop()
        self.hw.close()


STEPS = {"append": 8, "start": 2, "stop": 2, "reopen": 1, "rebuild": 1, "break_and_mend": 1, "crash": 1, "settle": 3}


def run(seed: int, steps: int) -> None:
    memory = Path("/dev/shm")
    arena = tempfile.mkdtemp(prefix="headwater-", dir=memory if memory.is_dir() else None)
    world = World(Path(arena) / "data", seed)
    names = [name for name, weight in STEPS.items() for _ in range(weight)]
    try:
        for _ in range(steps):
            getattr(world, world.random.choice(names))()
        world.settle()
    finally:
        world.close()
        shutil.rmtree(arena)


@pytest.mark.parametrize("seed", range(6))
def test_documents_are_those_of_a_plain_fold_whatever_happens(seed: int) -> None:
    run(seed, 40)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 200))
def test_documents_are_those_of_a_plain_fold_for_long(seed: int) -> None:
    run(seed, 300)
