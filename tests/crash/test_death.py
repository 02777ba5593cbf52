"""One of several writers dies at any operation, and the others, who were there before, go on at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headwater.disk.disk import Disk
from headwater.event import Durability
from headwater.store import Store
from tests.crash.recording import SteadyClock
from tests.crash.workload import events_of, open_engine


class Death(BaseException):
    """Ends a writer where it stands; nothing may catch it and go on."""


class MortalDisk(Disk):
    """Dies at its `number`th change or sync of anything, and does nothing from then on: only its locks are released."""

    def __init__(self, number: int) -> None:
        self._left = number

    @property
    def dead(self) -> bool:
        return self._left < 0

    def _live(self) -> None:
        self._left -= 1
        if self.dead:
            raise Death

    def create(self, path: Path) -> int:
        self._live()
        return super().create(path)

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        self._live()
        return os.pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]  # noqa: ARG002  # fewer options than os has
        self._live()

    def write_synced(self, fd: int, data: bytes, position: int) -> None:
        self.write(fd, data, position)
        self.fdatasync(fd)

    def reserve(self, fd: int, position: int, end: int) -> None:
        self._live()
        super().reserve(fd, position, end)

    def sync_directory(self, path: Path) -> None:  # noqa: ARG002
        self._live()

    def truncate(self, fd: int, size: int) -> None:
        self._live()
        os.ftruncate(fd, size)

    def rename(self, path: Path, target: Path) -> None:  # type: ignore[override]
        self._live()
        os.rename(path, target)

    def unlink(self, path: Path) -> None:  # type: ignore[override]
        self._live()
        os.unlink(path)

    def mkdir(self, path: Path) -> None:  # type: ignore[override]
        self._live()
        os.mkdir(path)

    def remove_tree(self, path: Path) -> None:
        self._live()
        super().remove_tree(path)

    def store(self, mapped: Any, position: int, data: bytes) -> None:
        self._left -= 1
        if self.dead:
            if self._left == -1:
                super().store(mapped, position, data[:50])  # a store is many instructions
            raise Death
        super().store(mapped, position, data)


class Model:
    """What was acknowledged, in order; and what the one who died may have left."""

    def __init__(self, engine: Store) -> None:
        self.engine = engine
        self.events: list[bytes] = []
        self.pending: bytes | None = None
        self._number = 0

    def append(self, size: int, durability: Durability = "fsync") -> None:
        self._number += 1
        data = (b"%d of %d" % (self._number, id(self))).ljust(size, b".")
        self.pending = data
        ref = self.engine.append("a", data, durability=durability)
        self.pending = None
        self.events.append(data)
        assert ref.offset == len(self.events) - 1


def life(model: Model) -> None:
    """What the writer does until it dies: appends, rolls, huge events and sealing."""
    model.append(100, "os")
    model.append(700)
    model.append(400)
    model.append(400, "os")
    model.append(590)
    model.engine.seal("a")
    model.append(300)
    model.engine.delete("a")


def alive(engine: Store, model: Model, number: int) -> None:
    """What a writer who was there before must find and be able to do."""
    if "a" not in engine.topics():
        model.events, model.pending = [], None  # the last act of the dead one was to delete it
    model.engine = engine
    pending = model.pending
    if pending is not None and number % 2:
        engine.sync("a")  # takes the lock, and settles whether the last event is there
    if pending is not None:
        ref = engine.append("a", b"probe")
        if ref.offset == len(model.events) + 1:
            model.events.append(pending)
        model.events.append(b"probe")
        assert ref.offset == len(model.events) - 1
    for size in (20, 500, 30, 700, 40):
        model.append(size)


@pytest.mark.parametrize("survivors", [1, 2])
def test_a_writer_that_dies_leaves_the_others_able_to_go_on(survivors: int, arena: Path) -> None:
    for number in count():
        root = arena / "shared"
        root.mkdir()
        others = [open_engine(root / "data", Disk(), SteadyClock()) for _ in range(survivors)]
        model = Model(others[0])
        model.append(50)
        for other in others:
            model.engine = other
            model.append(60)  # each has the log open, and knows its state
            assert len(events_of(other, "a", 0)) == len(model.events)
        disk = MortalDisk(number)
        model.engine = open_engine(root / "data", disk, SteadyClock())
        died = _until_death(lambda: life(model))  # noqa: B023
        for other in others:
            alive(other, model, number)
        for other in others:
            _check(other, model.events)
            other.close()
        with open_engine(root / "data", Disk(), SteadyClock()) as engine:
            _check(engine, model.events)
        shutil.rmtree(root)
        if not died:
            break
    assert number > 40


def _until_death(work: Callable[[], None]) -> bool:
    try:
        work()
    except Death:
        return True
    return False


def _check(engine: Store, events: list[bytes]) -> None:
    assert [data for _, _, data in events_of(engine, "a", 0)] == events
    assert [data for _, _, data in events_of(engine, "a", 0, reverse=True)] == events[::-1]
    for offset in range(len(events)):
        assert next(iter(engine.read("a", start=offset))).offset == offset
