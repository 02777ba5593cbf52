"""Whatever a crash leaves while a log is archived and dropped: every event is here, or found in the archive."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headwater.format.archive import ArchiveNote
from headwater.storage.archive import note

from headwater.errors import HeadwaterError
from headwater.format import settings
from headwater.opening import open_directory
from tests.archive.logs import LIMITS, drop, everything, objects
from tests.crash.crashing import NEXT_BOOT
from tests.crash.machine import Loss, Machine, Tree, fingerprint, write_tree
from tests.crash.recording import BOOT, Op, RecordingDisk, SteadyClock
from tests.log.unsynced import UnsyncedDisk

LOSSES = [Loss("dropped", "dropped"), Loss("random", "adversarial", 2)]
BEGUN = "begun"


def record(arena: Path) -> tuple[list[Op], list[tuple[Any, ...]]]:
    """Events that are durable, then archiving, dropping, reading on and archiving more; and the events."""
    disk = RecordingDisk(arena / "recorded")
    disk.mkdir(arena / "recorded")
    disk.trace.clear()  # that directory is where the trace begins
    with open_directory(arena / "recorded" / "data", limits=LIMITS, disk=disk, clock=SteadyClock()) as hw:
        hw._archive._open = lambda _url: objects(arena / "archive")
        for number in range(12):
            hw.append("t", b"%d" % number * 50, key="a")
            if number % 3 == 1:
                hw.append("t", b"huge" * 600)
            if number % 3 == 2:
                hw._topics.live("t").logs[0].roll(tell=False)
        events = everything(hw)
        disk.mark(BEGUN)
        hw.archive(f"objects://{arena / 'archive'}")
        assert len(drop(hw)) == 4
        assert everything(hw) == events
        assert hw.archive(seal=True) == []
    return disk.trace, events


def crashes(trace: list[Op]) -> Iterator[tuple[str, Tree, bytes]]:
    """What may be left after each operation since archiving began."""
    machine, begun = Machine(), False
    for number, op in enumerate(trace):
        machine.apply(op)
        begun = begun or op.note == BEGUN
        if begun:
            yield f"killed after {number}: {op.kind} {op.path}", machine.cached(), BOOT
            for loss in LOSSES:
                chosen = loss._replace(seed=loss.seed + number)
                yield f"{chosen} after {number}: {op.kind} {op.path}", machine.after_power_loss(chosen), NEXT_BOOT


def check(arena: Path, trace: list[Op], events: list[tuple[Any, ...]]) -> int:
    seen: set[int] = set()
    for name, tree, boot in crashes(trace):
        if fingerprint(tree) in seen:
            continue
        seen.add(fingerprint(tree))
        shutil.rmtree(arena / "crashed", ignore_errors=True)
        write_tree(tree, arena / "crashed")
        with open_directory(
            arena / "crashed" / "data", limits=LIMITS, disk=UnsyncedDisk(), clock=SteadyClock(boot)
        ) as hw:
            hw._archive._open = lambda _url: objects(arena / "archive")
            assert everything(hw) == events, name
    return len(seen)


def test_no_crash_takes_an_event_from_both_the_disk_and_the_archive(arena: Path) -> None:
    trace, events = record(arena)
    assert len([op for op in trace if op.kind == "unlink" and op.path.endswith(".log")]) == 4
    assert check(arena, trace, events) > 60


def test_it_would_be_noticed_if_the_note_were_not_durable(arena: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(place: Any, manifest: Any) -> None:
        known = ArchiveNote(topic=manifest.topic, uuid=manifest.uuid, partition=0, segments=manifest.segments)
        place.disk.replace(place.archived, settings.encode(known), sync=False)

    monkeypatch.setattr(note, "remember", forgetful)
    trace, events = record(arena)
    monkeypatch.undo()
    with pytest.raises((AssertionError, HeadwaterError)):
        check(arena, trace, events)
