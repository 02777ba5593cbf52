"""Batches of another log are taken as they are, at the next offset, verified, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.directory import copying
from headwater.directory.local_log import LocalLog
from headwater.errors import Conflict, Corrupt
from headwater.format.batch import Batch, decode
from headwater.format.producers import ProducerAnswer, ProducerState
from headwater.format.replication import LogState, TopicState
from headwater.opening import directory_parts, open_directory

TICKS_PER_DAY = 24 * 3600 * 10_000_000


@pytest.fixture
def source_log(tmp_path: Path) -> Iterator[LocalLog]:
    with open_directory(tmp_path / "source") as engine:
        engine.create("t", segment_bytes=4096)
        for n in range(10):
            engine.append_many("t", [b"%d" % n * 20] * (n + 1), keys=["k"] * (n + 1), producer=("p", 1, n))
        yield engine.directory.partition_log("t", 0)


@pytest.fixture
def here(tmp_path: Path, source_log: LocalLog) -> Iterator[LocalLog]:
    """An empty log of the same uuid and settings."""
    assert source_log.end()
    from headwater.disk.disk import Clock, Disk
    from headwater.limits import DEFAULTS
    from headwater.replication.destination import ReplicaDirectory

    with open_directory(tmp_path / "source") as engine:
        topic = engine.directory.topic("t")
    with contextlib.closing(
        ReplicaDirectory(tmp_path / "here", directory_parts, DEFAULTS, Disk(), Clock())
    ) as destination:
        state = TopicState("t", topic.uuid, topic.settings, [LogState(0, 0, 0)])
        yield destination.adopt(state).logs[0]


def batches(log: LocalLog, start: int = 0) -> list[Batch]:
    return list(log.stored(start, log.end()))


def stored(log: LocalLog) -> list[bytes]:
    return [bytes(batch.raw()) for batch in batches(log)]


def test_they_are_the_same_and_durable_and_fill_segments_as_appends_do(source_log: LocalLog, here: LocalLog) -> None:
    given = batches(source_log)
    here.take(given[:3], {})
    here.take(given[3:], {})
    assert stored(here) == stored(source_log)
    assert here.state().durable_offset == here.end() == source_log.end() == 55
    assert here.state().last_ticks == source_log.state().last_ticks
    assert here.producers() == source_log.producers()
    for base in here.place.segments():
        assert here.place.disk.file_size(here.place.segment(base)) <= 4096


def test_batches_that_do_not_follow_are_refused(source_log: LocalLog, here: LocalLog) -> None:
    given = batches(source_log)
    here.take(given[:2], {})
    for wrong in (given[1:2], given[3:], given):
        with pytest.raises(Conflict, match="ends at offset 3"):
            here.take(wrong, {})
    with pytest.raises(Corrupt, match="does not follow"):
        here.take([given[2], given[4]], {})
    assert here.end() == 3


def test_a_damaged_batch_is_refused_and_nothing_of_it_is_written(source_log: LocalLog, here: LocalLog) -> None:
    given = batches(source_log)
    damaged = bytearray(given[1].raw())
    damaged[damaged.index(b"1" * 20)] ^= 1
    with pytest.raises(Corrupt):
        here.take([given[0], decode(memoryview(damaged), 0, len(damaged))], {})
    assert here.end() == 0


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 10, 54, 55])
def test_what_is_behind_an_offset_is_cut_from_the_batch_that_holds_it(offset: int, source_log: LocalLog) -> None:
    joined = memoryview(b"".join(stored(source_log)))
    found = copying.behind(joined, offset, zstd=False)
    assert sum(batch.count for batch in found) == 55 - offset
    copying.check(found)
    ticks = [int(each) for batch in batches(source_log) for each in batch.ticks()]
    assert [int(each) for batch in found for each in batch.ticks()] == ticks[offset:]
    if found:
        assert found[0].base_offset == offset
    assert copying.behind(memoryview(b""), offset, zstd=False) == []


def test_what_is_remembered_of_producers_is_merged_and_survives(source_log: LocalLog, here: LocalLog) -> None:
    here.take(batches(source_log), {})
    recent = source_log.state().last_ticks
    more = {
        "q": ProducerState(3, [ProducerAnswer(7, 2, recent, 1)]),
        **{
            f"day {day}": ProducerState(1, [ProducerAnswer(1, 0, recent - day * TICKS_PER_DAY, 1)])
            for day in range(1, 10)
        },
        "p": ProducerState(1, [ProducerAnswer(5, 15, recent, 6)]),
    }
    assert here.remember(more)
    _, known = here.producers()
    assert [answer.seq for answer in known["p"].answers] == [5, 6, 7, 8, 9]
    assert known["q"] == more["q"]
    assert "day 6" in known
    assert "day 9" not in known, "it was silent for so long that it is forgotten"
    segments = len(here.place.segments())
    assert here.remember(more)
    assert len(here.place.segments()) == segments, "nothing is new, so nothing is written"
    here.after_fork()
    assert here.producers()[1] == known


def test_an_empty_segment_cannot_remember_yet(source_log: LocalLog, here: LocalLog) -> None:
    known = source_log.producers()[1]
    assert not here.remember(known)
    here.take(batches(source_log), {})
    assert here.remember(known)
