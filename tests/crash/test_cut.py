"""A crash after every operation of a workload: what was acknowledged is there, and nothing else.

Each workload runs once on a disk that records. Then, for every moment of the trace, the directory that a crash at that
moment leaves is made and opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.checking import check
from tests.crash.expectation import Expectation
from tests.crash.machine import Loss, Machine, Tree, fingerprint
from tests.crash.recording import Op
from tests.crash.workload import WORKLOADS, record

LOSSES = [
    Loss("dropped", "dropped"),
    Loss("kept", "kept"),
    Loss("dropped", "kept"),
    Loss("kept", "dropped"),
    Loss("random", "ordered"),
    Loss("random", "adversarial"),
]


class Violation(AssertionError):
    """A crash after which something was not as it must be."""


def killed(trace: list[Op]) -> Iterator[tuple[str, Tree, Expectation]]:
    """What is left when all processes are killed: after each operation, and inside each write."""
    machine, expected = Machine(), Expectation()
    for number, op in enumerate(trace):
        if op.kind in ("write", "store"):
            for size in sorted({1, 36, len(op.data) // 2, len(op.data) - 1}):
                if 0 < size < len(op.data):
                    yield f"killed {size} bytes into {_name(number, op)}", _torn(machine, op, size), expected
        machine.apply(op)
        expected.fold(op)
        yield f"killed after {_name(number, op)}", machine.cached(), expected


def powerless(trace: list[Op], losses: list[Loss]) -> Iterator[tuple[str, Tree, Expectation]]:
    """What may be left when the power goes after each operation."""
    machine, expected = Machine(), Expectation()
    for number, op in enumerate(trace):
        machine.apply(op)
        expected.fold(op)
        for loss in losses:
            chosen = loss._replace(seed=loss.seed + number)
            yield f"{chosen} after {_name(number, op)}", machine.after_power_loss(chosen), expected


def check_all(crashes: Iterator[tuple[str, Tree, Expectation]], arena: Path, *, rebooted: bool) -> int:
    """Check every crash that differs from the ones before; returns how many there were."""
    known: set[tuple[int, int]] = set()
    for name, tree, expected in crashes:
        key = fingerprint(tree), expected.acknowledged
        if key not in known:
            known.add(key)
            try:
                check(tree, expected, arena / "crashed", rebooted=rebooted)
            except Exception as error:
                raise Violation(f"{name}: {error!r}") from error
    return len(known)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_kill_after_any_operation_loses_nothing(workload: str, arena: Path) -> None:
    trace = record(WORKLOADS[workload], arena / "recorded")
    assert check_all(killed(trace), arena, rebooted=False) > 100


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_power_loss_after_any_operation_leaves_all_that_was_synced(workload: str, arena: Path) -> None:
    trace = record(WORKLOADS[workload], arena / "recorded")
    assert check_all(powerless(trace, LOSSES), arena, rebooted=True) > 100


def _torn(machine: Machine, op: Op, size: int) -> Tree:
    """The cached state with only the first bytes of a write, without changing the machine."""
    return machine.cached_with(op._replace(data=op.data[:size]))


def _name(number: int, op: Op) -> str:
    what = repr(op.note) if op.kind == "mark" else f"{op.path or op.file}{' to ' + op.target if op.target else ''}"
    return f"operation {number}, {op.kind} {what}"
