"""A replica that is killed or loses its power at any moment goes on, has what it told of, and stays promoted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest

from headwater.disk.disk import Disk
from headwater.errors import Conflict, HeadwaterError
from headwater.opening import directory_parts, open_directory
from headwater.replication import replicator as module
from headwater.replication.marker import Marker
from headwater.replication.replicator import Replicator
from headwater.store import Store
from tests.crash.crashing import NEXT_BOOT
from tests.crash.machine import Loss, Machine, Tree, write_tree
from tests.crash.recording import BOOT, Op, RecordingDisk, SteadyClock
from tests.replica.copies import facts

LOSSES = [
    Loss("dropped", "dropped"),
    Loss("kept", "dropped"),
    Loss("random", "ordered"),
    Loss("random", "adversarial"),
]


class Told(NamedTuple):
    """What was told to be durable: the end of each log, and whether it was promoted."""

    ends: dict[tuple[str, int], int]
    promoted: bool = False


def fill(source: Store, round: int) -> None:
    for n in range(12):
        source.append("t", f"{round} {n} " + "x" * 200, key=str(n), producer=("p", 0, 100 * round + n))
    source.append_many("zip", ["text " * 50] * 20, types=["a", "b"] * 10)
    source.append("huge", iter([b"h" * 40_000]))


def record(source: Store, root: Path, *, disk: type[RecordingDisk] = RecordingDisk) -> list[Op]:
    """Copy a source as it grows, in several goes; then promote the replica. All operations of that on the disk."""
    root.mkdir()
    recording = disk(root)
    source.create("t", partitions=2, segment_bytes=4096)
    source.create("zip", compression="zstd")
    for round in range(3):
        fill(source, round)
        if round == 1:
            source.seal("t")
        copying = Replicator(
            source.replication(),
            root / "replica",
            address="source",
            limits=source.limits,
            disk=recording,
            clock=SteadyClock(BOOT),
        )
        info = copying.run(once=True)
        recording.mark(Told({(log.topic, log.partition): log.end for log in info.logs}))
    ends = recording.trace[-1].note
    Marker(root / "replica", recording, SteadyClock(BOOT)).promote()
    assert isinstance(ends, Told)
    recording.mark(ends._replace(promoted=True))
    return recording.trace


def crashes(trace: list[Op], losses: list[Loss]) -> Iterator[tuple[str, Tree, bytes, Told]]:
    machine, told = Machine(), Told({})
    for number, op in enumerate(trace):
        machine.apply(op)
        if isinstance(op.note, Told):
            told = op.note
        yield f"killed after {number} {op.kind} {op.path}", machine.cached(), BOOT, told
        for loss in losses:
            chosen = loss._replace(seed=loss.seed + number)
            yield f"{chosen} after {number} {op.kind} {op.path}", machine.after_power_loss(chosen), NEXT_BOOT, told


def check(source: Store, name: str, tree: Tree, boot_id: bytes, told: Told, arena: Path) -> None:
    """Bring the replica up after a crash, and compare it with what was told, and with its source."""
    root = arena / "crashed"
    write_tree(tree, root)
    path, disk, clock = root / "replica", Disk(), SteadyClock(boot_id)
    try:
        if told.ends:
            with open_directory(path, create=False, clock=clock, limits=source.limits) as hw:
                for (topic, partition), end in told.ends.items():
                    assert hw.partition_log(topic, partition).end() >= end, name
        promoted = not Marker(path, disk, clock).follows() and bool(told.ends)
        assert promoted or not told.promoted, name
        copying = Replicator(
            source.replication(), path, directory_parts, address="source", limits=source.limits, disk=disk, clock=clock
        )
        if promoted:
            with pytest.raises(Conflict):
                copying.run(once=True)
        else:
            copying.run(once=True)
        with open_directory(path, create=False, clock=clock, limits=source.limits) as hw:
            for topic in source.topics():
                there = [facts(event) for event in source.read(topic)]
                assert [facts(event) for event in hw.read(topic)] == there, name
                for partition in range(source.topic(topic).partitions):
                    known = source.partition_log(topic, partition).producers()[1]
                    assert hw.partition_log(topic, partition).producers()[1] == known, name
            damage = [each for each in hw.check().findings if each.damage and not each.path.endswith(".index")]
            assert not damage, name  # an index is not synced: it is made again
    finally:
        shutil.rmtree(root)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    import msgspec

    from headwater.limits import DEFAULTS

    monkeypatch.setattr(module, "WRITERS", 1)  # so that the trace is in order
    limits = msgspec.structs.replace(DEFAULTS, blob_bytes_min=16_384)
    with open_directory(tmp_path / "source", limits=limits) as engine:
        yield engine


@pytest.mark.parametrize("step", [37, pytest.param(1, marks=[pytest.mark.torture, pytest.mark.timeout(1800)])])
def test_a_replica_goes_on_after_a_crash_at_any_moment(step: int, source: Store, arena: Path) -> None:
    trace = record(source, arena / "recorded")
    checked = 0
    for name, tree, boot_id, told in islice(crashes(trace, LOSSES), 0, None, step):
        check(source, name, tree, boot_id, told, arena)
        checked += 1
    assert checked > 30


def test_it_would_be_noticed_if_copied_batches_were_not_synced(source: Store, arena: Path) -> None:
    class Forgetful(RecordingDisk):
        def write_synced(self, fd: int, data: bytes, position: int) -> None:
            self.write(fd, data, position)

        def fdatasync(self, fd: int) -> None:  # type: ignore[override]  # as that of its parent
            pass

    trace = record(source, arena / "recorded", disk=Forgetful)
    last = [each for each in crashes(trace, [Loss("dropped", "kept")]) if each[3].promoted][-1]
    with pytest.raises((AssertionError, HeadwaterError)):
        check(source, *last, arena)
