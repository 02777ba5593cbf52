"""One of several processes dies at any operation of a transaction or a request; the others go on at once.

They find of a transaction all or nothing, whichever log they look at first, and answer a request that is asked again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from headwater.disk.disk import Disk
from headwater.event import Content, Durability
from headwater.store import Store
from tests.crash.recording import SteadyClock
from tests.crash.test_death import MortalDisk, _until_death
from tests.crash.workload import events_of, open_engine

Log = tuple[str, int]
LOGS: list[Log] = [("a", 0), ("b", 0), ("b", 1)]


class Model:
    """What each log holds; what the one who died may have left, all of it or nothing; and its last request."""

    def __init__(self, engine: Store) -> None:
        self.engine = engine
        self.events: dict[Log, list[bytes]] = {log: [] for log in LOGS}
        self.pending: dict[Log, list[bytes]] = {}
        self.asked: tuple[int, bytes] | None = None
        self._number = 0

    def append(self, log: Log, size: int, durability: Durability = "fsync") -> None:
        data = self._data(size)
        self.pending = {log: [data]}
        ref = self.engine.append(log[0], data, partition=log[1], durability=durability)
        self._done()
        assert ref.offset == len(self.events[log]) - 1

    def transact(self, *parts: tuple[Log, int, Content]) -> None:
        self.pending = {log: [] for log, _, _ in parts}
        with self.engine.transaction() as transaction:
            for log, size, content in parts:
                data = self._data(size)
                self.pending[log].append(data)
                transaction.append(log[0], data, partition=log[1], content=content)
        self._done()
        for ref in transaction.refs:
            assert ref.offset < len(self.events[ref.topic, ref.partition])

    def ask(self, seq: int, size: int) -> None:
        data = self._data(size)
        self.asked = seq, data
        self.pending = {LOGS[0]: [data]}
        self.engine.append("a", data, producer=("p", 0, seq))
        self._done()

    def settle(self, log: Log, seen: list[bytes]) -> None:
        """Whether what was under way is there is seen at any of its logs."""
        if log in self.pending:
            if seen == self.events[log] + self.pending[log]:
                self._done()
            else:
                self.pending = {}
        assert seen == self.events[log]

    def _done(self) -> None:
        for log, data in self.pending.items():
            self.events[log] += data
        self.pending = {}

    def _data(self, size: int) -> bytes:
        self._number += 1
        return (b"event %d " % self._number).ljust(size, b".")


def life(model: Model) -> None:
    """What the process does until it dies, or ends: the last of it is that it closes, and removes its journal."""
    a, b, c = LOGS
    model.append(b, 30, "os")
    model.transact((b, 40, "bytes"), (a, 50, "bytes"), (c, 20, "bytes"))
    model.ask(1, 60)
    model.transact((a, 40, "text"), (a, 30, "bytes"), (c, 30, "bytes"))
    model.append(a, 50, "os")
    model.transact((a, 500, "bytes"), (b, 500, "bytes"))
    model.ask(2, 500)  # rolls
    model.transact((c, 70, "bytes"), (b, 590, "bytes"))  # rolls
    model.engine.seal("b")
    model.transact((b, 20, "bytes"), (b, 25, "text"))
    model.ask(3, 40)
    model.engine.close()


def bury(engine: Store) -> None:
    """Release what the system releases when a process has died."""
    disk = Disk()
    for opened in engine.directory._open.values():
        for log in opened.logs:
            if log._group.writer.held._lock_fd >= 0:
                disk.unlock(log._group.writer.held._lock_fd)
    for file in engine.directory._journal._free:
        disk.release(file.fd)


def look(engine: Store, model: Model, first: int) -> None:
    """Read all logs, beginning with one of them."""
    for log in [*LOGS[first:], *LOGS[:first]]:
        model.settle(log, [data for _, _, data in events_of(engine, *log)])


def go_on(engine: Store, model: Model, number: int) -> None:
    """What a process that was there before must find and be able to do."""
    model.engine = engine
    if number % 2 == 0:  # append before anything was read
        log = LOGS[number // 2 % 3]
        ref = engine.append(log[0], b"probe", partition=log[1])
        seen = [data for _, _, data in events_of(engine, *log)]
        assert ref.offset == len(seen) - 1
        assert seen.pop() == b"probe"
        model.settle(log, seen)
        model.events[log].append(b"probe")
    look(engine, model, number % 3)
    if model.asked is not None:
        seq, data = model.asked
        ref = engine.append("a", data, producer=("p", 0, seq))
        look(engine, model, 1) if data in model.events["a", 0] else model.events["a", 0].append(data)
        assert model.events["a", 0].index(data) == ref.offset
    model.transact((LOGS[0], 30, "bytes"), (LOGS[2], 31, "bytes"))
    model.append(LOGS[1], 300)
    look(engine, model, 0)


def die_at(numbers: Iterable[int], arena: Path) -> None:
    """Die at these operations, each in a directory of its own, until the whole life was lived."""
    root = arena / "shared"
    for number in numbers:
        root.mkdir()
        others = [open_engine(root / "data", Disk(), SteadyClock()) for _ in range(2)]
        others[0].create("b", partitions=2)
        model = Model(others[0])
        for other in others:
            model.engine = other
            model.transact((LOGS[0], 20, "bytes"), (LOGS[1], 30, "bytes"), (LOGS[2], 20, "bytes"))
        dying = model.engine = open_engine(root / "data", MortalDisk(number), SteadyClock())
        died = _until_death(lambda: life(model))  # noqa: B023
        bury(dying)
        for other in others:
            go_on(other, model, number)
        for other in others:
            look(other, model, 0)
            other.close()
        with open_engine(root / "data", Disk(), SteadyClock()) as engine:
            look(engine, model, 2)
            assert not list((root / "data" / "journal").iterdir()), "a journal is left"
        shutil.rmtree(root)
        if not died:
            break
    assert number > 100


def test_a_process_that_dies_in_a_transaction_leaves_all_of_it_or_nothing(arena: Path) -> None:
    die_at(range(0, 1000, 3), arena)


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_a_process_that_dies_anywhere_in_a_transaction_leaves_all_of_it_or_nothing(arena: Path) -> None:
    die_at(range(1000), arena)
