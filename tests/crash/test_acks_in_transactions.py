"""A crash after every operation of somebody who handles events in transactions: each is handled once, whatever dies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from headwater.directory import journal
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from tests.crash.crashing import NEXT_BOOT
from tests.crash.machine import Loss, Machine, Tree, write_tree
from tests.crash.recording import BOOT, Op, RecordingDisk, SteadyClock
from tests.crash.workload import QuietSealer
from tests.log.unsynced import UnsyncedDisk

LIMITS = Limits(lease_ms=10**8, ack_ms=10**8, segment_bytes=4096)  # so that only this thread writes
LOSSES = [Loss("dropped", "dropped"), Loss("dropped", "kept"), Loss("random", "adversarial")]
EVENTS = 6  # of each partition


@pytest.fixture(autouse=True)
def short_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "CHECKPOINT_BYTES", 2500)  # so that it is begun anew in the midst


def open_engine(path: Path, disk: RecordingDisk | UnsyncedDisk, boot_id: bytes) -> Store:
    engine = open_directory(path, disk=disk, clock=SteadyClock(boot_id), limits=LIMITS)
    engine.directory._sealer = QuietSealer()
    return engine


def name_of(partition: int, offset: int) -> bytes:
    return b"%d:%d" % (partition, offset)


def record(path: Path) -> list[Op]:
    path.mkdir()
    disk = RecordingDisk(path)
    with open_engine(path / "data", disk, BOOT) as hw:
        hw.create("in", partitions=2)
        hw.create("out")
        for partition in (0, 1):
            hw.append_many("in", [b"x"] * EVENTS, partition=partition, durability="os")
        with hw.consumer("mover", "in", timeout=0) as consumer:
            disk.mark(("joined",))
            for number, event in enumerate(islice(consumer, 2 * EVENTS - 1)):
                if number == EVENTS:
                    consumer.flush()
                with hw.transaction() as tx:
                    tx.append("out", name_of(event.partition, event.offset))
                    if number % 3 == 0:
                        tx.append("out", "another content")  # two batches in one log
                    tx.ack(event)
                disk.mark(("moved", event.partition, event.offset + 1))
            hw.seal("out")
    return disk.trace


def check(tree: Tree, moved: list[int], boot_id: bytes, path: Path) -> None:
    """What is in `out` is what the cursors have passed, and all that was acknowledged."""
    write_tree(tree, path)
    if not (path / "data" / "topics" / "out").exists():
        return
    with open_engine(path / "data", UnsyncedDisk(), boot_id) as hw:
        infos = hw.consumers("in")
        cursors = {info.partition: info.cursor for info in infos}
        assert all(info.cursor <= info.end for info in infos), "above what the log has"
        _compare(hw, cursors)
        for partition, cursor in cursors.items():
            assert moved[partition] <= cursor <= moved[partition] + 1, "not what was acknowledged"
        assert cursors or not any(moved)
    assert list((path / "data" / "journal").glob("*")) == []
    if cursors and boot_id == NEXT_BOOT:  # the leases are over: another one goes on
        with open_engine(path / "data", UnsyncedDisk(), boot_id) as hw:
            _go_on(hw)
            _compare(hw, {info.partition: info.end for info in hw.consumers("in")})
    shutil.rmtree(path)


def _go_on(hw: Store) -> None:
    with hw.consumer("mover", "in", timeout=0) as consumer:
        for event in consumer.drain():
            with hw.transaction() as tx:
                tx.append("out", name_of(event.partition, event.offset))
                tx.ack(event)


def _compare(hw: Store, cursors: dict[int, int]) -> None:
    out = [event.data for event in hw.read("out") if event.content == "bytes"]
    passed = {name_of(partition, offset) for partition, cursor in cursors.items() for offset in range(cursor)}
    assert len(out) == len(set(out)), "an event was handled twice"
    assert set(out) == passed, "what was appended is not what was acked"


def moments(trace: list[Op]) -> Iterator[tuple[int, Machine, list[int]]]:
    machine, moved = Machine(), [0, 0]
    for number, op in enumerate(trace):
        machine.apply(op)
        if op.kind == "mark" and op.note[0] == "moved":
            moved[op.note[1]] = op.note[2]
        yield number, machine, moved


def lose_power(trace: list[Op], loss: Loss, arena: Path) -> None:
    for number, machine, moved in moments(trace):
        check(machine.after_power_loss(loss._replace(seed=number)), moved, NEXT_BOOT, arena / f"{number}")


def test_a_kill_after_any_operation_leaves_what_was_appended_and_acked_as_one(arena: Path) -> None:
    for number, machine, moved in moments(record(arena / "recorded")):
        check(machine.cached(), moved, BOOT, arena / f"{number}")


def test_a_kill_in_the_midst_of_a_write_leaves_what_was_appended_and_acked_as_one(arena: Path) -> None:
    trace = record(arena / "recorded")
    for (number, machine, moved), following in zip(moments(trace), trace[1:], strict=False):
        if following.kind == "write":
            torn = following._replace(data=following.data[: len(following.data) // 2])
            check(machine.cached_with(torn), moved, BOOT, arena / f"{number}")


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_a_power_loss_after_any_operation_leaves_what_was_appended_and_acked_as_one(arena: Path, loss: Loss) -> None:
    lose_power(record(arena / "recorded"), loss, arena)


def test_the_check_notices_acks_that_are_not_in_the_journal(arena: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = record(arena / "recorded")
    monkeypatch.setattr("headwater.opening.restore", lambda *_: None)
    with pytest.raises(AssertionError, match="not what was"):
        lose_power(trace, LOSSES[0], arena)
