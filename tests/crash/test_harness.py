"""The crash tests can fail: each harmful change of the code below is noticed by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater.directory import journal, recovery, transaction
from headwater.directory.held_log import HeldLog
from headwater.directory.producer_memory import ProducerMemory
from tests.crash.checking import Crash, Violation, check_all
from tests.crash.crashing import killed, powerless
from tests.crash.machine import Loss
from tests.crash.recording import Op, RecordingDisk
from tests.crash.workload import Driver, durabilities, huge, record, topics

LOSSES = [Loss("dropped", "kept"), Loss("dropped", "dropped"), Loss("random", "adversarial")]


class DiskThatNeverSyncs(RecordingDisk):
    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        pass


class DiskThatForgetsDirectories(RecordingDisk):
    def sync_directory(self, path: Path) -> None:
        pass


class DiskThatForgetsHugeEvents(RecordingDisk):
    def __init__(self, root: Path, files: dict[int, int] | None = None) -> None:
        super().__init__(root, files)
        self._spools: set[int] = set()

    def create(self, path: Path) -> int:
        fd = super().create(path)
        (self._spools.add if path.parent.name == "spool" else self._spools.discard)(fd)
        return fd

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        if fd not in self._spools:
            super().fdatasync(fd)


def after_power_losses(trace: list[Op]) -> Iterator[Crash]:
    return powerless(trace, LOSSES)


def test_the_harness_notices_files_that_are_never_synced(arena: Path) -> None:
    trace = record(durabilities, arena / "recorded", disk=DiskThatNeverSyncs)
    with pytest.raises(Violation):
        check_all(after_power_losses(trace), arena)
    check_all(killed(trace), arena)  # a kill leaves the cache, and so the events


def test_the_harness_notices_directories_that_are_never_synced(arena: Path) -> None:
    trace = record(topics, arena / "recorded", disk=DiskThatForgetsDirectories)
    with pytest.raises(Violation, match="is not a log"):
        check_all(after_power_losses(trace), arena)


def test_the_harness_notices_a_publication_before_the_sync(arena: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, publish = HeldLog.sync, HeldLog.publish
    put_off: list[Callable[[], None]] = []

    def sync_later(held: HeldLog, *args: Any) -> None:
        put_off.append(lambda: sync(held, *args))

    def publish_first(held: HeldLog, *args: Any, **options: Any) -> Any:
        slot = publish(held, *args, **options)
        while put_off:
            put_off.pop()()
        return slot

    def write_now(disk: RecordingDisk, fd: int, data: bytes, position: int) -> None:
        disk.write(fd, data, position)
        put_off.append(lambda: disk.fdatasync(fd))

    monkeypatch.setattr(HeldLog, "sync", sync_later)
    monkeypatch.setattr(HeldLog, "publish", publish_first)
    monkeypatch.setattr(RecordingDisk, "write_synced", write_now)
    trace = record(durabilities, arena / "recorded")
    monkeypatch.undo()
    with pytest.raises(Violation):
        check_all(powerless(trace, [Loss("random", "kept", seed) for seed in range(3)]), arena)


def test_the_harness_notices_a_huge_event_that_is_not_synced(arena: Path) -> None:
    trace = record(huge, arena / "recorded", disk=DiskThatForgetsHugeEvents)
    with pytest.raises(Violation, match=r"\.blob"):
        check_all(after_power_losses(trace), arena)


def test_the_harness_notices_a_recovery_that_keeps_what_is_torn(arena: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = recovery.scan

    def scan_all(*args: Any) -> recovery.LogEnd:
        found = scan(*args)
        return msgspec.structs.replace(found, position=found.size)

    trace = record(durabilities, arena / "recorded")
    monkeypatch.setattr(recovery, "scan", scan_all)
    with pytest.raises(Violation):
        check_all(killed(trace), arena)


def test_the_harness_notices_a_recovery_that_loses_events_without_a_word(
    arena: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = record(durabilities, arena / "recorded")
    monkeypatch.setattr(recovery, "_report", lambda *_: None)
    with pytest.raises(Violation, match="without a word"):
        check_all(powerless(trace, [Loss("random", "ordered", seed) for seed in range(5)]), arena)


def transacting(driver: Driver) -> None:
    driver.create("x", 2)
    driver.append("x", 30)
    driver.transact([("x", 0, 40, "bytes"), ("x", 1, 50, "bytes")])
    driver.transact([("x", 0, 41, "bytes"), ("x", 1, 51, "bytes"), ("x", 1, 52, "text")])


def asking(driver: Driver) -> None:
    driver.create("q")
    driver.ask("q", ("p", 0, 1), [400])
    driver.ask("q", ("p", 0, 2), [590])  # rolls


class DiskThatForgetsJournals(RecordingDisk):
    def __init__(self, root: Path, files: dict[int, int] | None = None) -> None:
        super().__init__(root, files)
        self._journals: set[int] = set()

    def create(self, path: Path) -> int:
        fd = super().create(path)
        (self._journals.add if path.parent.name == "journal" else self._journals.discard)(fd)
        return fd

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        if fd not in self._journals:
            super().fdatasync(fd)


def test_the_harness_notices_a_journal_that_is_not_synced(arena: Path) -> None:
    trace = record(transacting, arena / "recorded", disk=DiskThatForgetsJournals)
    with pytest.raises(Violation, match=r"a part of a transaction|were acknowledged"):
        check_all(after_power_losses(trace), arena)


@pytest.mark.parametrize("crashes", [killed, after_power_losses], ids=["killed", "powerless"])
def test_the_harness_notices_a_transaction_that_is_not_finished(
    crashes: Callable[[list[Op]], Iterator[Crash]], arena: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = record(transacting, arena / "recorded")
    monkeypatch.setattr(journal, "redo", lambda _, known: known)
    with pytest.raises(Violation):
        check_all(crashes(trace), arena)


def test_the_harness_notices_logs_that_are_written_before_the_journal(
    arena: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, apply = transaction._write, transaction._apply
    put_off: list[Callable[[], None]] = []

    def apply_first(*args: Any, **options: Any) -> None:
        apply(*args, **options)
        put_off.pop()()

    monkeypatch.setattr(transaction, "_write", lambda *args: put_off.append(lambda: write(*args)))
    monkeypatch.setattr(transaction, "_apply", apply_first)
    trace = record(transacting, arena / "recorded")
    monkeypatch.undo()
    with pytest.raises(Violation, match="a part of a transaction"):
        check_all(killed(trace), arena)


def test_the_harness_notices_a_segment_without_a_snapshot_of_its_producers(
    arena: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProducerMemory, "snapshot", lambda *_: None)
    trace = record(asking, arena / "recorded")
    monkeypatch.undo()
    with pytest.raises(Violation, match=r"\('p', 0, 1\)"):
        check_all(killed(trace), arena)


def test_the_harness_notices_producers_that_are_not_remembered(arena: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = record(asking, arena / "recorded")
    monkeypatch.setattr(ProducerMemory, "answer", lambda *_: None)
    with pytest.raises(Violation, match="not"):
        check_all(killed(trace), arena)
