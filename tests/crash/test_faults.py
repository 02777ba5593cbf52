"""A disk that fails: the error is clear, the log is frozen for all, and nothing acknowledged is lost.

Each operation of a workload fails once. What raised must never be seen; what was acknowledged must stay, also when the
power goes after the log was opened again: a failed sync leaves a cache that says what the disk does not have.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from headwater.errors import HeadwaterError, Unavailable
from headwater.format.tail import FROZEN_BY_SYNC, FROZEN_BY_WRITE
from headwater.log.rows import Rows
from tests.crash.checking import Crash, check, check_contents, recover, reopen
from tests.crash.crashing import NEXT_BOOT, go_on_after, replay
from tests.crash.faulty import Fault, FaultyDisk
from tests.crash.machine import Loss, write_tree
from tests.crash.recording import BOOT, Op, SteadyClock
from tests.crash.workload import Driver, contents_of, durabilities, open_engine, record, transactions

KINDS = {
    "sync": errno.EIO,
    "write": errno.ENOSPC,
    "short write": errno.ENOSPC,
    "rename": errno.EIO,
    "create": errno.ENOSPC,
    "mkdir": errno.ENOSPC,
    "sync directory": errno.EIO,
}
LOSSES = [Loss("dropped", "dropped"), Loss("random", "ordered"), Loss("random", "adversarial", 1)]

Step = tuple[str, str, Callable[[Driver], object]]

STEPS: list[Step] = [
    ("create", "a", lambda driver: driver.create("a")),
    ("append", "a", lambda driver: driver.append("a", 40)),
    ("append", "a", lambda driver: driver.append("a", 50, "os", writer=1)),
    ("append", "a", lambda driver: driver.append_many("a", [60, 70], "os")),
    ("append", "a", lambda driver: driver.append("a", 80, writer=1)),
    ("append", "a", lambda driver: driver.append("a", 500, "os")),
    ("append", "a", lambda driver: driver.append("a", 400, writer=1)),  # rolls
    ("append", "a", lambda driver: driver.append("a", 90, "os")),
    ("sync", "a", lambda driver: driver.sync("a")),
    ("append", "a", lambda driver: driver.append("a", 700, writer=1)),  # a huge event
    ("append", "a", lambda driver: driver.append("a", 100, "os")),
    ("sync", "a", lambda driver: driver.seal("a")),
    ("append", "a", lambda driver: driver.append("a", 110, "os", writer=1)),
    ("retain", "a", lambda driver: driver.retain("a", 1, writer=1)),
    ("append", "a", lambda driver: driver.append("a", 120)),
]


def run(driver: Driver) -> tuple[Step, HeadwaterError] | None:
    """Do the steps; returns the first that failed, and how."""
    for step in STEPS:
        error = driver.failing(step[0], step[1], lambda: step[2](driver))  # type: ignore[arg-type]  # noqa: B023
        if error is not None:
            return step, error
    return None


def begin(arena: Path, fault: Fault | None) -> Driver:
    root = arena / "faulty"
    root.mkdir()
    disk = FaultyDisk(root)
    driver = Driver(root, disk, SteadyClock(), writers=2)
    disk.set(fault)
    return driver


def go_on(driver: Driver, where: str) -> bool:
    """Check the log after a step failed, open it again and go on; returns whether it was frozen."""
    expected = driver.expected().topics["a"].logs[0]
    frozen = False
    if "a" in driver.engines[0].topics():
        for engine in driver.engines:
            frozen = engine.directory._topics.get("a").logs[0].state().state in (FROZEN_BY_SYNC, FROZEN_BY_WRITE)
            expected.check(contents_of(engine, "a", 0), expected.events())
        if engine.directory._topics.get("a").logs[0].state().state == FROZEN_BY_SYNC:
            for engine in driver.engines:
                if engine.directory._topics.get("a").logs[0]._group.writer.held.slot is None:
                    continue  # it has only just opened this log, after it froze
                with pytest.raises(Unavailable, match="frozen"):
                    engine.append("a", b"refused")
                expected.check(contents_of(engine, "a", 0), expected.events())
            driver.engines.append(open_engine(driver.root / "data", driver.disk, SteadyClock()))
            driver.read("a", writer=2)
    for writer in reversed(range(len(driver.engines))):
        driver.append("a", 30, writer=writer)
        driver.append("a", 31, "os", writer=writer)
    driver.append("a", 32)
    for writer in range(len(driver.engines)):
        driver.read("a", writer=writer)
    check_crashes(driver, where)
    return frozen


def check_crashes(driver: Driver, where: str) -> None:
    """What is there survives a kill and a power loss."""
    machine, expected = replay(driver.disk.trace)
    path = driver.root.parent / "crashed"
    check(Crash(f"{where}, then killed", machine.cached(), expected, BOOT, False), path)
    for loss in LOSSES:
        tree = machine.after_power_loss(loss)
        check(Crash(f"{where}, then {loss}", tree, expected, NEXT_BOOT, True), path)


@pytest.mark.parametrize("truncate", [True, False], ids=["cut off", "not cut off"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_of_any_operation_is_clear_and_loses_nothing(kind: str, truncate: bool, arena: Path) -> None:
    frozen = 0
    for number in count():
        driver = begin(arena, Fault(kind, number, KINDS[kind], truncate))
        failure = run(driver)
        assert isinstance(driver.disk, FaultyDisk)
        if not driver.disk.failed:
            assert failure is None
            break
        assert failure is not None, f"{driver.disk.fault}: nobody was told"
        step, error = failure
        assert isinstance(error, Unavailable), f"{driver.disk.fault}: {error!r}"
        assert (error.code == "disk_full") == (KINDS[kind] == errno.ENOSPC), f"{driver.disk.fault}: {error.code}"
        where = f"{driver.disk.fault} in {step[0]} {STEPS.index(step)}"
        driver.disk.set(None)
        frozen += go_on(driver, where)
        driver.close()
        shutil.rmtree(driver.root)
    assert number > 2
    assert frozen or kind == "mkdir"


@pytest.mark.parametrize("kind", ["sync", "write", "rename", "create", "sync directory"])
def test_a_recovery_that_fails_can_be_tried_again(kind: str, arena: Path) -> None:
    trace = record(durabilities, arena / "recorded")
    assert fail_to_recover_at(
        [number for number, op in enumerate(trace) if op.kind == "write"][6::4], trace, kind, arena
    )


@pytest.mark.parametrize("kind", ["sync", "write", "sync directory"])
def test_finishing_a_transaction_that_fails_can_be_tried_again(kind: str, arena: Path) -> None:
    trace = record(transactions, arena / "recorded")
    journals = {op.file for op in trace if op.kind == "create" and op.path.endswith(".journal")}
    ends = [number for number, op in enumerate(trace) if op.kind == "write" and op.file in journals]
    first_logs = [end + 2 for end in ends if trace[end + 2].kind == "write"]
    assert len(first_logs) > 3
    assert fail_to_recover_at(sorted([*ends[1::4], *first_logs[1::2]]), trace, kind, arena)


def fail_to_recover_at(ends: list[int], trace: list[Op], kind: str, arena: Path) -> bool:
    """Kill in these writes, and let each operation of recovery fail; returns whether that was often."""
    failures = 0
    for end in ends:
        for size in (len(trace[end].data) // 2, len(trace[end].data)):
            for number in count():
                torn = [*trace[:end], trace[end]._replace(data=trace[end].data[:size])]
                fault = Fault(kind, number, KINDS[kind])
                if not fail_to_recover(torn, fault, arena):
                    break
                failures += 1
    return failures > 5


def fail_to_recover(trace: list[Op], fault: Fault, arena: Path) -> bool:
    """Open what a kill left on a disk that fails, then on one that works; returns whether it failed."""
    machine, expected = replay(trace)
    path = arena / "recovered"
    inodes = write_tree(machine.cached(), path)
    disk = FaultyDisk(path, {inodes[name]: file for name, file in machine.numbers().items()})
    crash = Crash(f"killed, then {fault} in recovery", machine.cached(), expected, BOOT, False)
    disk.set(fault)
    with contextlib.suppress(Unavailable), reopen(path, crash, disk) as engine:
        recover(engine, check_contents(engine, crash), expected)
    failed = disk.failed
    disk.set(None)
    if failed:
        go_on_after(crash, path, disk)
        for op in disk.trace:
            machine.apply(op)
            expected.fold(op)
        for loss in LOSSES:
            tree = machine.after_power_loss(loss)
            check(Crash(f"{crash.name}, then {loss}", tree, expected, NEXT_BOOT, True), arena / "crashed")
    shutil.rmtree(path)
    return failed


def test_what_was_written_before_a_failure_and_not_cut_off_is_never_seen(arena: Path) -> None:
    """Appends that wait together but differ in content are several batches of one write, which may fail behind one."""
    driver = begin(arena, None)
    driver.append("a")
    [log] = driver.engines[0].directory._topics.get("a").logs
    assert isinstance(driver.disk, FaultyDisk)
    driver.disk.set(Fault("short write", 0, errno.ENOSPC, truncate=False))
    with log._group.exclusive() as writer, pytest.raises(Unavailable):
        writer.commit([Rows.one("bytes", True, b"one"), Rows.one("text", True, b"two".ljust(100))])
    driver.disk.set(None)
    with open_engine(driver.root / "data", driver.disk, SteadyClock()) as engine:
        assert [event.offset for event in engine.read("a")] == [0]
        assert engine.append("a", b"next").offset == 1
    driver.close()


def test_a_log_goes_on_after_its_segment_could_not_be_opened(arena: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = begin(arena, None)
    driver.append("a", writer=0)
    driver.append("a", 500, writer=1)
    driver.append("a", 500, writer=1)  # rolls: the other engine must open the new segment

    def fail(_: Path) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(driver.disk, "open_write", fail)
        error = driver.failing("append", "a", lambda: driver.append("a", writer=0))
    assert isinstance(error, Unavailable)
    driver.append("a", writer=0)
    driver.read("a", writer=1)
    driver.close()
