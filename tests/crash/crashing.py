"""All the crashes of a trace: at every moment, and a second one while the log is opened after the first."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from headwater.store import Store
from tests.crash.checking import NEXT, Crash, check_contents, recover, reopen
from tests.crash.expectation import Acknowledged, Begin, Done, Expectation, ExpectedLog, Settled, expectation_of
from tests.crash.machine import Loss, Machine, write_tree
from tests.crash.recording import BOOT, Op, RecordingDisk
from tests.crash.requests import Remembered
from tests.crash.workload import send, starts_of

NEXT_BOOT = bytes(reversed(BOOT))
LAST_BOOT = bytes(16)


def killed(trace: list[Op]) -> Iterator[Crash]:
    """What is left when all processes are killed: after each operation, and inside each write."""
    machine, expected = Machine(), Expectation()
    for number, op in enumerate(trace):
        for size in _places(op):
            tree = machine.cached_with(op._replace(data=op.data[:size]))
            yield Crash(f"killed {size} bytes into {_name(number, op)}", tree, expected, BOOT, False)
        machine.apply(op)
        expected.fold(op)
        yield Crash(f"killed after {_name(number, op)}", machine.cached(), expected, BOOT, False)


def powerless(trace: list[Op], losses: Sequence[Loss]) -> Iterator[Crash]:
    """What may be left when the power goes after each operation."""
    machine, expected = Machine(), Expectation()
    for number, op in enumerate(trace):
        machine.apply(op)
        expected.fold(op)
        for loss in losses:
            chosen = loss._replace(seed=loss.seed + number)
            tree = machine.after_power_loss(chosen)
            yield Crash(f"{chosen} after {_name(number, op)}", tree, expected, NEXT_BOOT, True)


def killed_then_powerless(trace: list[Op], losses: Sequence[Loss], arena: Path) -> Iterator[Crash]:
    """A kill after each operation; the log is opened again and appended to; then the power goes."""
    for number, op in enumerate(trace):
        if op.kind not in ("mark", "sync", "sync directory", "store"):  # a kill after these leaves less to settle
            machine, expected = replay(trace[: number + 1])
            crash = Crash(f"killed after {_name(number, op)}", machine.cached(), expected, BOOT, False)
            for last in resume(crash, machine, arena):
                machine.apply(last)
                expected.fold(last)
            for loss in losses:
                chosen = loss._replace(seed=loss.seed + number)
                tree = machine.after_power_loss(chosen)
                yield Crash(f"{crash.name}, later {chosen}", tree, expected, NEXT_BOOT, True)


def crashed_again(crash: Crash, losses: Sequence[Loss], arena: Path, machine: Machine | None = None) -> Iterator[Crash]:
    """Another crash at each moment while the log is opened after the first. `machine` knows what is not synced yet."""
    machine = machine or Machine(crash.tree)
    expected = copy.deepcopy(crash.expected)
    for number, op in enumerate(resume(crash, machine, arena)):
        name = f"{crash.name}, then at {_name(number, op)}"
        for size in _places(op):
            tree = machine.cached_with(op._replace(data=op.data[:size]))
            yield Crash(f"{name}, killed {size} bytes in", tree, expected, crash.boot_id, crash.powerless)
        machine.apply(op)
        expected.fold(op)
        yield Crash(f"{name}, killed", machine.cached(), expected, crash.boot_id, crash.powerless)
        for loss in losses:
            chosen = loss._replace(seed=loss.seed + number)
            yield Crash(f"{name}, {chosen}", machine.after_power_loss(chosen), expected, LAST_BOOT, True)


def resume(crash: Crash, machine: Machine, arena: Path) -> list[Op]:
    """The trace of opening the log after a crash, reading it, and appending to each of its partitions."""
    path = arena / "resumed"
    inodes = write_tree(crash.tree, path)
    disk = RecordingDisk(path, {inodes[name]: number for name, number in machine.numbers().items()})
    try:
        go_on_after(crash, path, disk)
    finally:
        shutil.rmtree(path)
    return disk.trace


def go_on_after(crash: Crash, path: Path, disk: RecordingDisk) -> None:
    """Open the log, check and settle it, and append to each partition and to a new topic.

    Where there were transactions there is one more, over all partitions; and producers ask again what is not there.
    """
    with reopen(path, crash, disk) as engine:
        disk.mark(Done("open"))
        seen = check_contents(engine, crash)
        recover(engine, seen, crash.expected)
        for (topic, partition), contents in seen.items():
            disk.mark(Settled(topic, partition, contents.end))
        for topic in {topic: None for topic, _ in seen}:
            segments = engine.describe(topic).settings.get("retention_segments")
            if segments:  # as the next roll does, also of what a killed process was deleting
                disk.mark(Begin("retain", topic, starts=tuple(starts_of(engine, topic, segments))))
                for log in engine._topics.get(topic).logs:
                    engine._keeper.rolled(log.place)
        for topic, partition in [*seen, ("after the crash", 0)]:
            disk.mark(Begin("append", topic, groups=((partition, (NEXT,)),)))
            ref = engine.append(topic, NEXT, partition=partition)
            told = Acknowledged(ref.partition, ref.offset, ref.ticks)
            disk.mark(Done("append", topic, ((told,),), ref.durability))
        if (path / "data" / "journal").is_dir():
            _transact(engine, list(seen), disk)
        for (topic, partition), contents in seen.items():
            expected = crash.expected.topics[topic].logs[partition]
            _ask_again(engine, topic, partition, expected, contents.events, disk)


def _transact(engine: Store, logs: list[tuple[str, int]], disk: RecordingDisk) -> None:
    topics = tuple(topic for topic, _ in logs)
    disk.mark(Begin("transact", topics=topics, groups=tuple((partition, (NEXT, NEXT)) for _, partition in logs)))
    with engine.transaction() as transaction:
        for topic, partition in logs:
            transaction.append(topic, NEXT, partition=partition)
            transaction.append(topic, NEXT, partition=partition, content="text")
    told = [Acknowledged(ref.partition, ref.offset, ref.ticks) for ref in transaction.refs]
    disk.mark(Done("transact", refs=tuple(zip(told[::2], told[1::2], strict=True)), topics=topics))


def _ask_again(
    engine: Store,
    topic: str,
    partition: int,
    log: ExpectedLog,
    events: list[tuple[int, int, bytes]],
    disk: RecordingDisk,
) -> None:
    remembered = Remembered(log, events)
    for request, data in log.requests.items():
        if remembered.answer(request) is None:
            disk.mark(Begin("append", topic, groups=((partition, data),), request=request))
            told = send(engine, topic, partition, request, data)
            disk.mark(Done("append", topic, (told,)))
            remembered.note(request, told)


def replay(trace: list[Op]) -> tuple[Machine, Expectation]:
    """The machine after a trace, and what must be there."""
    machine = Machine()
    for op in trace:
        machine.apply(op)
    return machine, expectation_of(trace)


def _places(op: Op) -> list[int]:
    """Where a kill may cut a write short."""
    if op.kind not in ("write", "store"):
        return []
    return [size for size in sorted({1, 36, len(op.data) // 2, len(op.data) - 1}) if 0 < size < len(op.data)]


def _name(number: int, op: Op) -> str:
    what = repr(op.note) if op.kind == "mark" else f"{op.path or op.file}{' to ' + op.target if op.target else ''}"
    return f"operation {number}, {op.kind} {what}"
