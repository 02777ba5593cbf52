"""Two engines on one directory that can crash: killed at any operation of the disk, or without power.

Everything is deterministic: the clock moves only when it is told to, nothing is sealed or stored in the background,
and what is random comes from a seed, so that hypothesis can repeat and shrink what it finds.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from tests.crash.machine import Loss, Machine, Tree, write_tree
from tests.crash.recording import EPOCH_TICKS, RecordingDisk, SteadyClock
from tests.crash.workload import QuietSealer
from tests.engine.model import ANSWERS_MAX, PRODUCERS_MAX

LIMITS = Limits(
    blob_bytes_min=300,
    pack_bytes=2000,
    pack_events=20,
    producer_answers_max=ANSWERS_MAX,
    producers_max=PRODUCERS_MAX,
    failures_max=50,
    retry_ms=0,
    ack_ms=100_000_000,  # acks are stored when the test says so
    lease_ms=100_000_000,
)


class StageClock(SteadyClock):
    """Time that passes when it is told to."""

    def __init__(self, boot: int, ticks: int, now_s: float, random: Random) -> None:
        super().__init__(boot.to_bytes(16, "little"), ticks)
        self.now_s = now_s
        self._random = random

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:  # type: ignore[override]  # a method here, the function itself there
        self.now_s += seconds

    def random_bytes(self, size: int) -> bytes:  # type: ignore[override]  # a method here, the function itself there
        return self._random.randbytes(size)


class Stage:
    """The directory, its disk and the two engines."""

    def __init__(self, segment_bytes: int = 400) -> None:
        self._limits = msgspec.structs.replace(LIMITS, segment_bytes=segment_bytes)
        memory = Path("/dev/shm")
        self._arena = Path(tempfile.mkdtemp(prefix="headwater-", dir=memory if memory.is_dir() else None))
        self._patch = pytest.MonkeyPatch()
        self._random = Random(0)
        self._patch.setattr(secrets, "token_hex", lambda size: self._random.randbytes(size).hex())
        self._machine = Machine()
        self._boot = 1
        self._root = self._arena / "0"
        self._root.mkdir()
        self.clock = StageClock(self._boot, EPOCH_TICKS, 1000.0, self._random)
        self.disk = RecordingDisk(self._root)
        self.engines = [self.open(), self.open()]

    @property
    def path(self) -> Path:
        return self._root / "data"

    def open(self) -> Store:
        engine = open_directory(self.path, limits=self._limits, disk=self.disk, clock=self.clock)
        engine._sealer = QuietSealer()
        return engine

    def begin(self) -> None:
        """What was done so far has happened for good: a crash is in what comes now."""
        for op in self.disk.trace:
            self._machine.apply(op)
        self.disk.trace.clear()

    def operations(self) -> int:
        """How many operations of the disk there were since `begin`."""
        return len(self.disk.trace)

    def kill(self, cut: int) -> None:
        """All processes die after so many operations, or in the midst of the next one; then the log is opened again."""
        self._replay(cut)
        if cut < len(self.disk.trace) and self.disk.trace[cut].kind in ("write", "store"):
            op = self.disk.trace[cut]
            self._machine.apply(op._replace(data=op.data[: len(op.data) // 2]))
        self._resume(self._machine.cached())

    def lose_power(self, cut: int) -> Callable[[Loss], Tree]:
        """The power goes after so many operations; tells what the disk may hold then, with which `boot` goes on."""
        self._replay(cut)
        return self._machine.after_power_loss

    def boot(self, tree: Tree) -> None:
        """Open what a power loss left."""
        self._machine = Machine(tree)
        self._boot += 1
        self._resume(tree)

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        self._patch.undo()
        shutil.rmtree(self._arena)

    def _replay(self, cut: int) -> None:
        for op in self.disk.trace[:cut]:
            self._machine.apply(op)

    def _resume(self, tree: Tree) -> None:
        old, root = self.engines, self._root
        self._root = self._arena / str(int(root.name) + 1)
        inodes = write_tree(tree, self._root)
        numbers = {inodes[path]: number for path, number in self._machine.numbers().items()}
        self.disk = RecordingDisk(self._root, numbers)
        # Leases of the dead run out, and the wall clock was set back.
        ticks, now_s = self.clock._ticks - 10_000_000, self.clock.now_s + LIMITS.lease_ms
        self.clock = StageClock(self._boot, ticks, now_s, self._random)
        for engine in old:  # whatever it does now, it does to a directory that nobody looks at again
            engine.close()
        shutil.rmtree(root)
        self.engines = [self.open(), self.open()]


def segments_of(stage: Stage, topic: str, partition: int) -> list[int]:
    """The first offsets of the segments of a log, as the disk tells them."""
    names = os.listdir(stage.path / "topics" / topic / str(partition))
    return sorted(int(name.removesuffix(".log")) for name in names if name.endswith(".log"))
