"""A crash after every operation of a consumer: no durable ack is forgotten, and nothing not acked is passed over."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from headwater.event import Durability
from headwater.limits import Limits
from headwater.opening import open_directory
from tests.crash.crashing import NEXT_BOOT
from tests.crash.machine import Loss, Machine, Tree, write_tree
from tests.crash.recording import BOOT, Op, RecordingDisk, SteadyClock
from tests.log.unsynced import UnsyncedDisk

LIMITS = Limits(lease_ms=10**8, ack_ms=10**8, failures_max=1)  # so that only this thread writes
LOSSES = [Loss("dropped", "dropped"), Loss("dropped", "kept"), Loss("random", "adversarial")]
POISON = 4


class Bounds:
    """What the marks of a trace promise for each partition: the cursor is in between."""

    def __init__(self) -> None:
        self.flushed = [0, 0]
        self.acked = [0, 0]
        self.joined = False
        self.seeking = False
        self.dead = False

    def fold(self, op: Op) -> None:
        if op.kind == "mark":
            kind, *rest = op.note
            if kind == "joined":
                self.joined = True
            elif kind == "acking":  # what a store may say from now on
                self.acked[rest[0]] = max(self.acked[rest[0]], rest[1])
            elif kind == "flushed":
                self.flushed = list(self.acked)
            elif kind == "seeking":
                self.seeking = True
                self.flushed[rest[0]] = min(self.flushed[rest[0]], rest[1])
                self.acked[rest[0]] = max(self.acked[rest[0]], rest[1])
            elif kind == "sought":
                self.flushed[rest[0]] = self.acked[rest[0]] = rest[1]
            elif kind == "dead":
                self.dead = True


def record(path: Path) -> list[Op]:
    path.mkdir()
    disk = RecordingDisk(path)
    with open_directory(path / "data", disk=disk, clock=SteadyClock(), limits=LIMITS) as hw:
        hw.create("t", partitions=2)
        durabilities: tuple[Durability, ...] = "fsync", "os"
        for durability in durabilities:
            for partition in (0, 1):
                hw.append_many("t", [b"x"] * 5, partition=partition, durability=durability)
        with hw.consumer("c", "t", timeout=0) as consumer:
            disk.mark(("joined",))
            for event in islice(consumer, 17):
                disk.mark(("acking", event.partition, event.offset + 1))
                if (event.partition, event.offset) == (1, POISON):
                    consumer.fail(event, "poison")
                    disk.mark(("flushed",))
                    disk.mark(("dead",))
                else:
                    consumer.ack(event)
                if event.offset in (2, 7):
                    consumer.flush()
                    disk.mark(("flushed",))
            for partition, offset in ((0, 3), (1, 8)):
                disk.mark(("seeking", partition, offset))
                consumer.seek(offset, partition=partition)
                disk.mark(("sought", partition, offset))
            for event in islice(consumer, 3):
                disk.mark(("acking", event.partition, event.offset + 1))
                consumer.ack(event)
        disk.mark(("flushed",))
    return disk.trace


def check(tree: Tree, bounds: Bounds, boot_id: bytes, path: Path) -> None:
    write_tree(tree, path)
    if not (path / "data" / "topics" / "t").exists():
        assert not bounds.joined
        return
    with open_directory(path / "data", disk=UnsyncedDisk(), clock=SteadyClock(boot_id), limits=LIMITS) as hw:
        infos = hw.consumers("t")
        assert bool(infos) >= bounds.joined
        for info in infos:
            assert bounds.flushed[info.partition] <= info.cursor <= bounds.acked[info.partition]
            assert info.cursor <= info.end, "above what the log has"
            assert info.fence >= bounds.joined, "a fence may come a second time"
        dead = [event.meta["dead_offset"] for event in hw.read("t.dead")] if "t.dead" in hw.topics() else []
        passed = any(info.partition == 1 and info.cursor > POISON for info in infos) and not bounds.seeking
        assert bool(dead) >= (bounds.dead or passed)
        if infos and boot_id == NEXT_BOOT:  # its leases are over
            with hw.consumer("c", "t", timeout=0) as consumer:
                seen = [(event.partition, event.offset) for event in consumer.drain()]
            expected = [(info.partition, offset) for info in infos for offset in range(info.cursor, info.end)]
            assert sorted(seen) == expected
    shutil.rmtree(path)


def moments(trace: list[Op]) -> Iterator[tuple[int, Machine, Bounds]]:
    machine, bounds = Machine(), Bounds()
    for number, op in enumerate(trace):
        machine.apply(op)
        bounds.fold(op)
        yield number, machine, bounds


def test_a_kill_after_any_operation_forgets_no_ack(arena: Path) -> None:
    for number, machine, bounds in moments(record(arena / "recorded")):
        check(machine.cached(), bounds, BOOT, arena / f"{number}")


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_a_power_loss_after_any_operation_forgets_no_durable_ack(arena: Path, loss: Loss) -> None:
    for number, machine, bounds in moments(record(arena / "recorded")):
        check(machine.after_power_loss(loss._replace(seed=number)), bounds, NEXT_BOOT, arena / f"{number}")
