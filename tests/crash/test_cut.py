"""A crash after every operation of a workload: what was acknowledged is there, and nothing else.

Each workload runs once on a disk that records. Then, for every moment of the trace, the directory that a crash at that
moment leaves is made and opened.
"""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

import pytest

from tests.crash.checking import Crash, check, check_all
from tests.crash.crashing import NEXT_BOOT, crashed_again, killed, killed_then_powerless, powerless, replay
from tests.crash.machine import Loss
from tests.crash.recording import RecordingDisk, SteadyClock
from tests.crash.workload import WORKLOADS, Driver, record

DROPPED = Loss("dropped", "dropped")
LOSSES = [
    DROPPED,
    Loss("kept", "kept"),
    Loss("dropped", "kept"),
    Loss("kept", "dropped"),
    Loss("random", "ordered"),
    Loss("random", "adversarial"),
]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_kill_after_any_operation_loses_nothing(workload: str, arena: Path) -> None:
    trace = record(WORKLOADS[workload], arena / "recorded")
    assert check_all(killed(trace), arena) > 100


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_power_loss_after_any_operation_leaves_all_that_was_synced(workload: str, arena: Path) -> None:
    trace = record(WORKLOADS[workload], arena / "recorded")
    assert check_all(powerless(trace, LOSSES), arena) > 100


@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_a_killed_writer_left_is_made_durable_before_anybody_builds_on_it(workload: str, arena: Path) -> None:
    trace = record(WORKLOADS[workload], arena / "recorded")
    assert check_all(killed_then_powerless(trace, [DROPPED], arena), arena) > 40


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_second_crash_during_recovery_loses_nothing(workload: str, arena: Path) -> None:
    trace = record(WORKLOADS[workload], arena / "recorded")
    kills = islice(killed(trace), 150, None, 200)
    cuts = islice(powerless(trace, [Loss("random", "ordered", 7)]), 60, None, 90)
    for crash in chain(kills, cuts):
        assert check_all(crashed_again(crash, [Loss("random", "adversarial")], arena), arena) > 5


def test_a_roll_makes_durable_that_reserved_space_was_given_back(arena: Path) -> None:
    root = arena / "recorded"
    root.mkdir()
    driver = Driver(root, RecordingDisk(root), SteadyClock(), writers=2)
    driver.append("a", 400)
    driver.append("a", 400)
    driver.engines[0].close()  # cuts reserved space off, and does not sync that
    driver.append("a", 400, writer=1)  # rolls
    driver.close()
    machine, expected = replay(driver.disk.trace)
    check(Crash("power loss", machine.after_power_loss(DROPPED), expected, NEXT_BOOT, True), arena / "crashed")


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_many_power_losses_leave_all_that_was_synced(workload: str, arena: Path) -> None:
    trace = record(WORKLOADS[workload], arena / "recorded")
    losses = [Loss("random", entries, 1000 * seed) for seed in range(10) for entries in ("ordered", "adversarial")]
    assert check_all(powerless(trace, losses), arena) > 500


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_many_second_crashes_lose_nothing(workload: str, arena: Path) -> None:
    trace = record(WORKLOADS[workload], arena / "recorded")
    losses = [DROPPED, Loss("random", "ordered"), Loss("random", "adversarial")]
    kills = islice(killed(trace), 0, None, 23)
    cuts = islice(powerless(trace, LOSSES), 0, None, 53)
    for crash in chain(kills, cuts):
        assert check_all(crashed_again(crash, losses, arena), arena) > 5
    assert check_all(killed_then_powerless(trace, LOSSES, arena), arena) > 100
