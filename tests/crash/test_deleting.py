"""Processes that die while they delete segments: no gap, nothing kept is gone, and these tests would notice."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.directory import retention
from headwater.directory.log_directory import LogDirectory
from tests.crash.checking import Crash, Violation, check_all
from tests.crash.crashing import NEXT_BOOT, killed, powerless, replay, resume
from tests.crash.expectation import Begin
from tests.crash.machine import Loss
from tests.crash.recording import BOOT, Op, RecordingDisk
from tests.crash.workload import record
from tests.crash.workload import retention as workload

LOSSES = [Loss("kept", "adversarial", seed) for seed in range(0, 3000, 1000)]


class DiskThatForgetsDeletions(RecordingDisk):
    """Syncs no directory while segments are deleted."""

    def sync_directory(self, path: Path) -> None:
        marks = [op.note for op in self.trace if op.kind == "mark"]
        if not (marks and isinstance(marks[-1], Begin) and marks[-1].verb == "retain"):
            super().sync_directory(path)


def of_deleting(trace: list[Op]) -> list[int]:
    """Where in a trace the file of a segment was removed."""
    return [number for number, op in enumerate(trace) if op.kind == "unlink" and op.path.endswith(".log")]


def while_deleting(crashes: Iterator[Crash]) -> Iterator[Crash]:
    """The crashes that come after the first segment began to go."""
    return (crash for crash in crashes if any(topic.logs[0].starts != {0} for topic in crash.expected.topics.values()))


def deleted_after_a_kill(trace: list[Op], arena: Path) -> list[Crash]:
    """A kill after each removal of a segment's file; another process goes on deleting; then the power goes."""
    crashes = []
    for number in of_deleting(trace):
        machine, expected = replay(trace[: number + 1])
        for op in resume(Crash("killed", machine.cached(), expected, BOOT, False), machine, arena):
            machine.apply(op)
            expected.fold(op)
            if op.kind in ("unlink", "sync directory"):
                for loss in LOSSES:
                    name = f"killed after operation {number}, later {loss} after {op.kind} {op.path}"
                    crashes.append(
                        Crash(name, machine.after_power_loss(loss), copy.deepcopy(expected), NEXT_BOOT, True)
                    )
    return crashes


def test_what_a_killed_process_was_deleting_is_gone_for_sure_before_another_goes_on(arena: Path) -> None:
    trace = record(workload, arena / "recorded")
    assert len(of_deleting(trace)) > 5
    assert check_all(iter(deleted_after_a_kill(trace, arena)), arena) > 20


def test_it_would_be_noticed_if_deletions_were_not_synced(arena: Path) -> None:
    trace = record(workload, arena / "recorded", disk=DiskThatForgetsDeletions)
    with pytest.raises(Violation):
        check_all(while_deleting(powerless(trace, LOSSES)), arena)


def test_it_would_be_noticed_if_the_newest_went_first(arena: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    due = retention.due
    monkeypatch.setattr(retention, "due", lambda *args: due(*args)[::-1])
    trace = record(workload, arena / "recorded")
    monkeypatch.undo()
    with pytest.raises(Violation):
        check_all(while_deleting(killed(trace)), arena)


def test_it_would_be_noticed_if_blobs_went_before_their_segment(arena: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away = retention._take_away

    def blobs_first(place: LogDirectory, base: int, wait_s: float) -> retention.Outcome:
        place.disk.remove_tree(place.blobs(base))
        return take_away(place, base, wait_s)

    monkeypatch.setattr(retention, "_take_away", blobs_first)
    trace = record(workload, arena / "recorded")
    monkeypatch.undo()
    with pytest.raises(Violation):
        check_all(while_deleting(killed(trace)), arena)
