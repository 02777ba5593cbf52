"""The crash tests can fail: each harmful change of the code below is noticed by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater.storage import recovery
from headwater.storage.writer import Writer
from tests.crash.checking import Crash, Violation, check_all
from tests.crash.crashing import killed, powerless
from tests.crash.machine import Loss
from tests.crash.recording import Op, RecordingDisk
from tests.crash.workload import durabilities, huge, record, topics

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
    sync, publish = Writer._sync, Writer._publish
    put_off: list[Callable[[], None]] = []

    def sync_later(writer: Writer, *args: Any) -> None:
        put_off.append(lambda: sync(writer, *args))

    def publish_first(writer: Writer, *args: Any, **options: Any) -> Any:
        slot = publish(writer, *args, **options)
        while put_off:
            put_off.pop()()
        return slot

    def write_now(disk: RecordingDisk, fd: int, data: bytes, position: int) -> None:
        disk.write(fd, data, position)
        put_off.append(lambda: disk.fdatasync(fd))

    monkeypatch.setattr(Writer, "_sync", sync_later)
    monkeypatch.setattr(Writer, "_publish", publish_first)
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

    def scan_all(*args: Any) -> recovery.Found:
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
