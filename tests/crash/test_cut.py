"""A crash after every operation of a workload: what was acknowledged is there, and nothing else.

Each workload runs once on a disk that records. Then, for every moment of the trace, the directory that a crash at that
moment leaves is made and opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import pytest

from tests.crash.checking import Crash, check_all
from tests.crash.crashing import crashed_again, killed, killed_then_powerless, powerless
from tests.crash.machine import Loss
from tests.crash.recording import SteadyClock
from tests.crash.workload import WORKLOADS, Driver, open_engine, record

DROPPED = Loss("dropped", "dropped")
LOSSES = [
    DROPPED,
    Loss("kept", "kept"),
    Loss("dropped", "kept"),
    Loss("kept", "dropped"),
    Loss("random", "ordered"),
    Loss("random", "adversarial"),
]
STRIDES = {"transactions": 7, "producers": 7}  # of the longest workloads
STRIDE = 5  # of the others; prime to the number of losses, so that each of them comes in turn


def some(crashes: Iterator[Crash], workload: str) -> Iterator[Crash]:
    """Every so many of them; the long tests try all."""
    return islice(crashes, 0, None, STRIDES.get(workload, STRIDE))


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_kill_after_any_operation_loses_nothing(workload: str, arena: Path) -> None:
    trace = record(WORKLOADS[workload], arena / "recorded")
    assert check_all(some(killed(trace), workload), arena) > 50


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_power_loss_after_any_operation_leaves_all_that_was_synced(workload: str, arena: Path) -> None:
    trace = record(WORKLOADS[workload], arena / "recorded")
    assert check_all(some(powerless(trace, LOSSES), workload), arena) > 50


@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_a_killed_writer_left_is_made_durable_before_anybody_builds_on_it(workload: str, arena: Path) -> None:
    trace = record(WORKLOADS[workload], arena / "recorded")
    assert check_all(some(killed_then_powerless(trace, [DROPPED], arena), workload), arena) > 10


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_second_crash_during_recovery_loses_nothing(workload: str, arena: Path) -> None:
    trace = record(WORKLOADS[workload], arena / "recorded")
    kills = islice(killed(trace), 150, None, 200)
    cuts = islice(powerless(trace, [Loss("random", "ordered", 7)]), 60, None, 90)
    for crash in chain(kills, cuts):
        again = crashed_again(crash, [Loss("random", "adversarial")], arena)
        assert check_all(some(again, workload), arena) > 3


def test_space_that_was_given_back_stays_away_when_another_segment_follows(arena: Path) -> None:
    def workload(driver: Driver) -> None:
        driver.append("a", 500)
        driver.engines[0].close()
        driver.engines = [open_engine(driver.root / "data", driver.disk, SteadyClock())]
        driver.append("a", 500)  # rolls

    trace = record(workload, arena / "recorded")
    check_all(powerless(trace, [DROPPED]), arena)


def test_a_journal_is_begun_anew_within_the_transactions(arena: Path) -> None:
    trace = record(WORKLOADS["transactions"], arena / "recorded")
    journals = {op.file for op in trace if op.kind == "create" and op.path.endswith(".journal")}
    begun = [op for op in trace if op.kind == "write" and op.file in journals and op.position == 0]
    assert len(begun) > len(journals) == 2
    assert sum(op.kind == "unlink" and op.path.endswith(".journal") for op in trace) == 2


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_crash_after_any_operation_loses_anything(workload: str, arena: Path) -> None:
    trace = record(WORKLOADS[workload], arena / "recorded")
    assert check_all(killed(trace), arena) > 200
    assert check_all(powerless(trace, LOSSES), arena) > 200
    assert check_all(killed_then_powerless(trace, [DROPPED], arena), arena) > 20


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
