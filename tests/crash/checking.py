"""Opening what a crash left, and comparing it with what must be there.

`check` raises AssertionError with the reason. It opens the log as any program would, with the real disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from headwater.directory import recovery
from headwater.directory.retention import sweep
from headwater.disk.disk import Disk
from headwater.errors import Corrupt, NotFound
from headwater.format import tail as tail_format
from headwater.format.batch import Batch, decode
from headwater.format.names import directory_of, file_of, offset_of
from headwater.format.segment import HEADER_BYTES
from headwater.format.tail import TailSlot
from headwater.store import Store
from tests.crash.expectation import Contents, Expectation
from tests.crash.machine import Tree, fingerprint, read_tree, write_tree
from tests.crash.recording import EPOCH_TICKS, SteadyClock
from tests.crash.requests import Remembered, ask_again
from tests.crash.workload import contents_of, events_of, open_engine

NEXT = b"the next event"
Seen = dict[tuple[str, int], Contents]


class Crash(NamedTuple):
    """A directory after a crash, and what must be there."""

    name: str
    tree: Tree
    expected: Expectation
    boot_id: bytes
    powerless: bool  # there was a power loss: events with durability `os` may be gone


class Violation(AssertionError):
    """A crash after which something was not as it must be."""


def check_all(crashes: Iterator[Crash], arena: Path) -> int:
    """Check every crash that differs from the ones before; returns how many there were."""
    known: set[tuple[int, int]] = set()
    for crash in crashes:
        key = fingerprint(crash.tree), crash.expected.acknowledged
        if key not in known:
            known.add(key)
            check(crash, arena / "crashed")
    return len(known)


def check(crash: Crash, path: Path) -> None:
    """Open what the crash left at `path`, a new directory that is removed again, and check all that it holds."""
    write_tree(crash.tree, path)
    try:
        _check_directory(path, crash)
    except Exception as error:
        raise Violation(f"{crash.name}: {error!r}") from error
    finally:
        shutil.rmtree(path)


def _check_directory(path: Path, crash: Crash) -> None:
    expected = crash.expected
    with reopen(path, crash) as engine:
        seen = check_contents(engine, crash)
        recover(engine, seen, expected)
    settled = _without_hints(read_tree(path))
    assert not tree_at(settled, "data", "journal"), "a journal is left although all is finished"
    _check_kept(crash.tree, settled)
    with reopen(path, crash) as engine:
        for (topic, partition), contents in seen.items():
            assert contents_of(engine, topic, partition) == contents, "a second opening shows something else"
        assert _without_hints(read_tree(path)) == settled, "a second opening changes something"
        for (topic, partition), contents in seen.items():
            _check_next(engine, topic, partition, contents)
        if not expected.topics:
            assert engine.append("new", NEXT).offset == 0
    with reopen(path, crash) as engine:
        for (topic, partition), contents in seen.items():
            [last, *there] = events_of(engine, topic, partition, reverse=True)
            assert last[2] == NEXT, "an append after recovery is not the last"
            assert there[::-1] == contents.events, "reading backwards shows something else"
            assert [event.data for event in engine.read(topic, partition=partition, start=contents.end)] == [NEXT]
            _check_gone(engine, topic, partition, contents.start)
    _check_requests(path, crash, seen)


def _check_requests(path: Path, crash: Crash, seen: Seen) -> None:
    """Producers ask all that they ever asked, twice: what is there is not appended again."""
    asked = {at: log for at in seen if (log := crash.expected.topics[at[0]].logs[at[1]]).requests}
    remembered = {at: Remembered(log, seen[at].events) for at, log in asked.items()}
    for turn in range(2 if asked else 0):
        with reopen(path, crash) as engine:
            for at, log in asked.items():
                before = events_of(engine, *at)
                appended = ask_again(engine, *at, remembered[at], log)
                assert not turn or not appended, "a request was appended twice"
                assert events_of(engine, *at) == before + appended


def reopen(path: Path, crash: Crash, disk: Disk | None = None) -> Store:
    """Open what a crash left, with a clock that went wrong: it stepped back."""
    clock = SteadyClock(crash.boot_id, EPOCH_TICKS - 10_000_000)
    return open_engine(path / "data", disk or Disk(), clock, create=not crash.expected.opened)


def check_contents(engine: Store, crash: Crash) -> Seen:
    """Check the topics and events; returns them."""
    expected = crash.expected
    names = engine.topics()
    for name, topic in expected.topics.items():
        assert name in names or not topic.certain, f"topic {name!r} was acknowledged, and is gone"
    seen: Seen = {}
    for name in names:
        assert name in expected.topics, f"topic {name!r} is deleted or was never made"
        logs = expected.topics[name].logs
        assert len(engine._topics.get(name).logs) == len(logs)
        for partition, log in enumerate(logs):
            stored = tree_at(crash.tree, "data", "topics", directory_of(name), str(partition))
            try:
                contents = contents_of(engine, name, partition)
            except Corrupt:
                if not crash.powerless or not undecidable(stored, log.durable):
                    raise
                continue
            log.check(contents, log.durable if crash.powerless else log.events())
            seen[name, partition] = contents
            known = _slot(stored)
            if known is not None and known.visible_offset > contents.end:
                _check_told(engine, name, partition, contents.end, known)
    expected.check_together({at: contents.end for at, contents in seen.items()})
    return seen


def recover(engine: Store, seen: Seen, expected: Expectation) -> None:
    """Take the locks, and so publish what a killed writer had written and not published."""
    for topic, partition in list(seen):
        engine._topics.get(topic).logs[partition].sync()
        log = expected.topics[topic].logs[partition]
        if log.pending:
            before, after = seen[topic, partition], contents_of(engine, topic, partition)
            assert after.events[: len(before.events)] == before.events, "recovery took away what was seen"
            log.check(after, before.end)
            seen[topic, partition] = after
    expected.check_together({at: contents.end for at, contents in seen.items()})


def _check_told(engine: Store, topic: str, partition: int, end: int, known: TailSlot) -> None:
    """Events that the tail remembers, and which are gone, must be in the report."""
    place = engine._topics.get(topic).logs[partition].place
    told = [report.lost_offsets for report in recovery.reports(place)]
    assert (end, known.visible_offset) in told, f"events {end} to {known.visible_offset - 1} are lost without a word"


def _check_next(engine: Store, topic: str, partition: int, contents: Contents) -> None:
    ref = engine.append(topic, NEXT, partition=partition)
    assert ref.offset == contents.end, "an append after recovery did not get the next offset"
    last = contents.events[-1] if contents.events else None
    assert last is None or ref.ticks > last[1], "an append after recovery is older than what was there"


def _check_gone(engine: Store, topic: str, partition: int, start: int) -> None:
    """What retention deleted is told so, and what a crash left of it is swept."""
    if start:
        with pytest.raises(NotFound) as error:
            next(engine.read(topic, partition=partition, start=start - 1))
        assert (error.value.code, error.value.oldest) == ("offset_gone", start)
        findings = [found for found in engine.check(topic).findings if found.damage]
        # An index is not synced when it is made, and may be torn: it is made again.
        assert all(found.path.endswith(".index") for found in findings), "check takes what was deleted for damage"
    place = engine._topics.get(topic).logs[partition].place
    sweep(place)
    stems = {name.partition(".")[0] for name in os.listdir(place.path) if name[0].isdecimal()}
    assert all(f"{stem}.log" in os.listdir(place.path) for stem in stems), "files of a deleted segment are left"


def _check_kept(before: Tree, after: Tree) -> None:
    """Bytes that were cut from a segment are beside it, and in the report."""
    report = after.get("recovered.jsonl", b"")
    for name in after:
        assert (
            ".cut-" not in name or name.endswith(".tmp") or (isinstance(report, bytes) and name.encode() in report)
        ), f"{name} was cut without a word"
    for name, child in before.items():
        there = after.get(name)
        if isinstance(child, bytes):
            if name.endswith(".log") and isinstance(there, bytes) and child.startswith(there) and child != there:
                cut = f"{name.removesuffix('log')}cut-{len(there)}"
                kept = [after[other] for other in after if other == cut or other.startswith(f"{cut}-")]
                reserved = not any(child[len(there) :])
                assert reserved or child[len(there) :] in kept, f"bytes were cut from {name} and not kept"
        elif isinstance(there, dict):
            _check_kept(child, there)


def undecidable(stored: Tree, durable: int) -> bool:
    """Whether `Corrupt` is right: no tail tells what was durable, and a whole batch lies behind a missing one."""
    if _slot(stored) is not None:
        return False
    bases = [base for name in stored if (base := offset_of(name, "log")) is not None]
    base = max(bases)
    segment = stored[file_of(base, "log")]
    assert isinstance(segment, bytes)
    position, offset = HEADER_BYTES, base
    while (batch := _batch(segment, position, offset)) is not None:
        position, offset = batch.end_position, batch.end_offset
    behind = any(_batch(segment, at, offset, exact=False) for at in range(position, len(segment), 8))
    return behind and offset >= durable


def _batch(segment: bytes, position: int, offset: int, *, exact: bool = True) -> Batch | None:
    """The valid batch at a position of a segment."""
    try:
        batch = decode(memoryview(segment), position, len(segment), "", 0)
        batch.validate()
    except Corrupt:
        return None
    return batch if batch.base_offset == offset or (not exact and batch.base_offset > offset) else None


def _slot(stored: Tree) -> TailSlot | None:
    tail = stored.get("tail", b"")
    assert isinstance(tail, bytes)
    if len(tail) != tail_format.SIZE or not tail.startswith(tail_format.MAGIC):
        return None
    return tail_format.newest(tail)


def tree_at(tree: Tree, *names: str) -> Tree:
    """What is at a path; an empty tree if there is nothing."""
    for name in names:
        child = tree.get(name, {})
        assert isinstance(child, dict)
        tree = child
    return tree


def _without_hints(tree: Tree) -> Tree:
    """The tree without the words of a tail that may change at any time."""
    result: Tree = {}
    for name, child in tree.items():
        if isinstance(child, dict):
            result[name] = _without_hints(child)
        else:
            result[name] = child[tail_format.SLOTS_AT[0] :] if name == "tail" else child
    return result
