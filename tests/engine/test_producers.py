"""Producers: a request that is tried again has its first answer, after restarts, rolls and from other processes."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater.directory.segment import SegmentFile
from headwater.disk.disk import Clock
from headwater.errors import Conflict, Fenced, Invalid, TooLarge, Unavailable
from headwater.event import Ref
from headwater.format.producers import Producer
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from tests.log.children import Child, Said
from tests.log.conformance import datas
from tests.log.test_groups import GatedDisk, in_one_group
from tests.log.unsynced import UnsyncedDisk, open_unsynced


@pytest.fixture(autouse=True)
def topics(hw: Store) -> None:
    hw.create("t")


def told(ref: Ref) -> tuple[Any, ...]:
    return ref.topic, ref.partition, ref.offset, ref.id, ref.time


def stamps(path: Path) -> int:
    """How many batches of partition 0 have a producer's stamp."""
    with open_unsynced(path) as hw:
        place = hw.directory._topics.get("t").logs[0].place
        found = 0
        for base in place.segments():
            segment = SegmentFile(place, base)
            window = segment.window(64, segment.data_end(64))
            found += sum(batch.producer is not None for batch in window.batches(64, base))
            segment.close()
        return found


# Answers


def test_the_same_seq_again_returns_the_first_answer(hw: Store) -> None:
    first = hw.append("t", b"a", key=b"k", producer=("p", 1, 1))
    hw.append("t", b"of nobody")
    assert told(hw.append("t", b"a", key=b"k", producer=Producer("p", 1, 1))) == told(first)
    assert datas(hw.read("t")) == [b"a", b"of nobody"]


def test_many_events_are_one_request(hw: Store) -> None:
    refs = hw.append_many("t", [b"a", b"b"], producer=("p", 1, 1))
    again = hw.append_many("t", [b"a", b"b"], producer=("p", 1, 1))
    assert [told(ref) for ref in again] == [told(ref) for ref in refs]
    assert hw.describe("t").partitions[0].end == 2


def test_seqs_grow_with_gaps_and_each_of_the_last_is_remembered(hw: Store) -> None:
    refs = {seq: hw.append("t", b"%d" % seq, producer=("p", 0, seq)) for seq in (0, 1, 5, 6, 100)}
    for seq, ref in refs.items():
        assert told(hw.append("t", b"", producer=("p", 0, seq))) == told(ref)
    assert hw.describe("t").partitions[0].end == 5


@pytest.mark.parametrize("seq", [2, 3, 0])
def test_an_old_seq_whose_answer_is_forgotten_is_a_conflict(path: Path, seq: int) -> None:
    with open_unsynced(path, limits=Limits(producer_answers_max=2)) as hw:
        for each in (2, 4, 5):
            hw.append("t", b"", producer=("p", 1, each))
        with pytest.raises(Conflict) as caught:
            hw.append("t", b"", producer=("p", 1, seq))
        assert (caught.value.code, caught.value.last_seq) == ("seq_forgotten", 5)
        assert caught.value.hint
        assert hw.append("t", b"", producer=("p", 1, 4)).offset == 1
        assert hw.describe("t").partitions[0].end == 3


def test_a_newer_epoch_shuts_out_older_ones_and_goes_on_with_the_seqs(hw: Store) -> None:
    first = hw.append("t", b"a", producer=("p", 1, 1))
    assert told(hw.append("t", b"a", producer=("p", 2, 1))) == told(first)  # the new instance tries it again
    hw.append("t", b"b", producer=("p", 2, 2))
    for seq in (1, 2, 3):
        with pytest.raises(Fenced) as caught:
            hw.append("t", b"", producer=("p", 1, seq))
        assert (caught.value.code, caught.value.epoch) == ("old_epoch", 2)
    assert hw.append("t", b"c", producer=("p", 3, 3)).offset == 2
    assert hw.append("t", b"other", producer=("q", 1, 1)).offset == 3


def test_another_number_of_events_under_the_same_seq_is_a_conflict(hw: Store) -> None:
    hw.append_many("t", [b"a", b"b"], producer=("p", 1, 1))
    for again in (
        lambda: hw.append("t", b"a", producer=("p", 1, 1)),
        lambda: hw.append_many("t", [b""] * 3, producer=("p", 1, 1)),
    ):
        with pytest.raises(Conflict) as caught:
            again()
        assert caught.value.code == "seq_reused"
    assert hw.describe("t").partitions[0].end == 2


def test_each_partition_answers_for_its_part_of_a_request(hw: Store) -> None:
    hw.create("many", partitions=4)
    keys = [b"k%d" % number for number in range(12)]
    refs = [told(ref) for ref in hw.append_many("many", keys, keys=keys, producer=("p", 1, 1))]
    assert len({ref[1] for ref in refs}) == 4
    assert [told(ref) for ref in hw.append_many("many", keys, keys=keys, producer=("p", 1, 1))] == refs
    # Keys of only some partitions: the others see a gap in the seqs.
    hw.append("many", b"", key=keys[0], producer=("p", 1, 2))
    hw.append_many("many", keys, keys=keys, producer=("p", 1, 3))
    assert sum(partition.end for partition in hw.describe("many").partitions) == 25


def test_a_retry_of_a_conditional_append_has_its_answer_though_the_version_has_gone_on(hw: Store) -> None:
    first = hw.append("t", b"", key=b"k", expected_version="none", producer=("p", 1, 1))
    assert told(hw.append("t", b"", key=b"k", expected_version="none", producer=("p", 1, 1))) == told(first)
    with pytest.raises(Conflict) as caught:
        hw.append("t", b"", key=b"k", expected_version="none", producer=("p", 1, 2))
    assert caught.value.code == "version_conflict"
    assert hw.append("t", b"", key=b"k", expected_version=0, producer=("p", 1, 2)).offset == 1  # it was not taken


def test_a_huge_event_is_one_request(path: Path) -> None:
    with open_unsynced(path, limits=Limits(blob_bytes_min=100)) as hw:
        first = hw.append("t", io.BytesIO(b"x" * 1000), producer=("p", 1, 1))
        assert told(hw.append("t", io.BytesIO(b"x" * 1000), producer=("p", 1, 1))) == told(first)
        assert hw.describe("t").partitions[0].end == 1
        assert not hw.check().findings
    assert list((path / "topics/t/0/spool").iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        *(("", 1, 1), ("p", -1, 1), ("p", 1, -1), ("p", 1 << 32, 1), ("p", 1, 1 << 63), ("\ud800", 1, 1)),
        *(("p", 1), ("p", 1, 1, 1), "p", (b"p", 1, 1), ("p", "1", 1), ("p", 1.0, 1), ("p", 1, None), ("p", True, 1)),
        *(Producer("", 1, 1), Producer("p", 1, -1), Producer("p", True, 1)),
        *(Producer("p", 1.5, 1), Producer(7, 1, 1)),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_producer_is_invalid(hw: Store, wrong: Any) -> None:
    with pytest.raises(Invalid):
        hw.append("t", b"", producer=wrong)
    with pytest.raises(Invalid):
        hw.append_many("t", [b""], producer=wrong)
    assert hw.describe("t").partitions[0].end == 0


def test_an_id_has_a_limit_in_bytes(hw: Store) -> None:
    hw.append("t", b"", producer=("ä" * 127 + "p", (1 << 32) - 1, (1 << 63) - 1))
    with pytest.raises(TooLarge) as caught:
        hw.append("t", b"", producer=("ä" * 128, 1, 1))
    assert caught.value.limit == "producer_id_bytes_max"


# Remembering


@pytest.mark.parametrize("again", ["reopened", "rolled", "sealed", "sealed and reopened", "without a tail"])
def test_answers_outlive_what_becomes_of_the_log(path: Path, again: str) -> None:
    hw = open_unsynced(path)
    first = [hw.append("t", b"%d" % seq, producer=("p", 2, seq)) for seq in range(3)]
    hw.append("t", b"plain")
    if "sealed" in again:
        hw.seal("t")
    elif again == "rolled":
        hw.directory._topics.get("t").logs[0].roll(tell=False)
    if again in ("reopened", "sealed and reopened", "without a tail"):
        hw.close()
        if again == "without a tail":
            (path / "topics/t/0/tail").unlink()
        hw = open_unsynced(path)
    for seq, ref in enumerate(first):
        assert told(hw.append("t", b"", producer=("p", 2, seq))) == told(ref)
    with pytest.raises(Fenced):
        hw.append("t", b"", producer=("p", 1, 9))
    assert hw.append("t", b"", producer=("p", 2, 3)).offset == 4
    hw.close()


def test_answers_outlive_many_rolls_and_sealing_drops_the_stamps(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "own") as hw:
        hw.create("t", segment_bytes=4096)
        refs = {}
        for number in range(120):
            producer = (f"p{number % 3}", 1, number)
            refs[producer] = told(hw.append("t", b"x" * 200, producer=producer))
        assert hw.describe("t").partitions[0].segments > 4
        hw.seal("t")
        assert [path.suffix for path in sorted((tmp_path / "own" / "topics/t/0").glob("*.producers"))] == [".producers"]
    assert stamps(tmp_path / "own") == 0
    with open_unsynced(tmp_path / "own") as hw:
        for producer in list(refs)[-9:]:
            assert told(hw.append("t", b"", producer=producer)) == refs[producer]
        with pytest.raises(Conflict):
            hw.append("t", b"", producer=("p0", 1, 0))


def test_a_log_without_producers_has_no_snapshot(hw: Store, path: Path) -> None:
    hw.append("t", b"")
    hw.seal("t")
    hw.append("t", b"", producer=("p", 1, 1))
    assert list((path / "topics/t/0").glob("*.producers")) == []
    hw.seal("t")
    assert [each.name for each in (path / "topics/t/0").glob("*.producers")] == [f"{2:020d}.producers"]


@pytest.mark.parametrize(
    "meanwhile",
    [
        Store.topics,
        lambda hw: hw.append("t", b""),
        lambda hw: hw.append("t", b"", key=b"k", expected_version=0),
        lambda hw: hw.append("t", b"", producer=("q", 1, 1)),
        lambda hw: hw.seal("t"),
        lambda hw: commit_one(hw),  # noqa: PLW0108  (it is defined below)
    ],
    ids=["nothing", "append", "conditional", "producer", "seal", "transaction"],
)
def test_what_another_process_answered_is_answered_here(
    hw: Store, path: Path, meanwhile: Callable[[Store], object]
) -> None:
    hw.append("t", b"", key=b"k", expected_version="none", producer=("p", 1, 1))

    def work(_: Said) -> list[tuple[Any, ...]]:
        with open_unsynced(path) as other:
            return [told(other.append("t", b"theirs", producer=("p", 1, seq))) for seq in (1, 2)]

    first, second = Child(work).result()
    meanwhile(hw)
    assert told(hw.append("t", b"", producer=("p", 1, 2))) == second
    assert told(hw.append("t", b"", producer=("p", 1, 1))) == first
    assert datas(hw.read("t")).count(b"theirs") == 1


def commit_one(hw: Store) -> None:
    with hw.transaction() as tx:
        tx.append("t", b"")


def test_processes_that_try_the_same_requests_append_each_once(path: Path) -> None:
    with open_unsynced(path) as hw:
        hw.create("t", segment_bytes=4096)

    limits = Limits(producer_answers_max=60)

    def work(_: Said) -> list[tuple[Any, ...]]:
        with open_unsynced(path, limits=limits) as hw:
            return [told(hw.append("t", b"%d" % seq * 20, producer=("p", 1, seq))) for seq in range(60)]

    children = [Child(work) for _ in range(3)]
    results = [child.result() for child in children]
    assert results[0] == results[1] == results[2]
    with open_unsynced(path) as hw:
        assert [event.offset for event in hw.read("t")] == [ref[2] for ref in results[0]]
        assert not hw.check().damaged


def test_the_producer_that_was_silent_longest_is_forgotten(path: Path) -> None:
    with open_unsynced(path, limits=Limits(producers_max=2)) as hw:
        for id, seq in (("a", 1), ("b", 1), ("a", 2), ("c", 1)):  # b is the one
            hw.append("t", b"", producer=(id, 5, seq))
        assert hw.append("t", b"", producer=("a", 5, 2)).offset == 2
        assert hw.append("t", b"", producer=("c", 5, 1)).offset == 3
        assert hw.append("t", b"", producer=("b", 1, 1)).offset == 4  # not known any more: neither seq nor epoch


class SetClock(Clock):
    """Goes on by hand."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def ticks(self) -> int:
        return super().ticks() + self.ahead_ms * 10_000


def test_a_producer_that_was_silent_for_long_is_forgotten_when_a_segment_begins(path: Path) -> None:
    clock = SetClock()
    limits = Limits(producer_age_ms=60_000)
    with open_directory(path, disk=UnsyncedDisk(), clock=clock, limits=limits) as hw:
        hw.append("t", b"", producer=("old", 1, 1))
        for number in range(1, 11):  # others append meanwhile
            clock.ahead_ms = number * 5_000
            hw.append("t", b"", producer=(f"other {number}", 1, 1))
        hw.seal("t")
        assert hw.append("t", b"", producer=("old", 1, 1)).offset == 0
        for number in range(11, 14):
            clock.ahead_ms = number * 5_000
            hw.append("t", b"", producer=(f"other {number}", 1, 1))
        hw.seal("t")
        assert hw.append("t", b"", producer=("other 2", 1, 1)).offset == 2
        assert hw.append("t", b"", producer=("old", 1, 1)).offset == 14


@pytest.mark.parametrize("days", [8, 365, 10_000])
def test_a_clock_that_jumps_ahead_forgets_no_producer(path: Path, days: int) -> None:
    """Time is what stands between requests, and a jump is one time in which there was none, however long it looks."""
    clock = SetClock()
    with open_directory(path, disk=UnsyncedDisk(), clock=clock) as hw:
        for number in range(20):
            hw.append("t", b"%d" % number, producer=(f"p{number}", 1, 1))
        clock.ahead_ms = days * 24 * 3600 * 1000
        for number in range(3):  # rolls, each with a snapshot
            hw.append("t", b"after", producer=("later", 1, number + 1))
            hw.seal("t")
        for number in range(20):
            assert hw.append("t", b"%d" % number, producer=(f"p{number}", 1, 1)).offset == number
        clock.ahead_ms = 0
        hw.seal("t")
        assert hw.append("t", b"0", producer=("p0", 1, 1)).offset == 0
    with open_directory(path, disk=UnsyncedDisk()) as hw:
        assert hw.append("t", b"19", producer=("p19", 1, 1)).offset == 19
        assert hw.describe("t").partitions[0].end == 23


# Groups and durability


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
def gated(tmp_path: Path, disk: GatedDisk) -> Iterator[Store]:
    with open_directory(tmp_path / "gated", disk=disk) as engine:
        engine.create("t")
        yield engine


def test_a_request_is_a_batch_of_its_own_and_a_retry_in_the_same_group_has_its_answer(
    gated: Store, disk: GatedDisk
) -> None:
    works = [
        partial(gated.append, "t", b"plain"),
        partial(gated.append, "t", b"p1", producer=("p", 1, 1)),
        partial(gated.append, "t", b"plain"),
        partial(gated.append, "t", b"p1", producer=("p", 1, 1)),
        partial(gated.append, "t", b"q1", producer=("q", 1, 1)),
        partial(gated.append, "t", b"p old", producer=("p", 0, 2)),
    ]
    results = in_one_group(gated, disk, works)
    assert isinstance(results[5], Fenced)
    assert told(results[3]) == told(results[1])
    assert datas(gated.read("t")) == [b"leader", b"plain", b"p1", b"plain", b"q1"]
    assert [len(batch) for batch in gated.read_batches("t")] == [1, 1, 1, 1, 1]


def test_a_retry_that_asks_for_more_durability_gets_it(gated: Store, disk: GatedDisk) -> None:
    first = gated.append("t", b"", producer=("p", 1, 1), durability="os")
    log = gated.directory._topics.get("t").logs[0]
    assert log.state().durable_offset == 0
    syncs = disk.syncs
    assert told(gated.append("t", b"", producer=("p", 1, 1), durability="os")) == told(first)
    assert disk.syncs == syncs
    again = gated.append("t", b"", producer=("p", 1, 1), durability="fsync")
    assert (told(again), again.durability) == (told(first), "fsync")
    assert (disk.syncs, log.state().durable_offset) == (syncs + 1, 1)
    gated.append("t", b"", producer=("p", 1, 1), durability="fsync")
    assert disk.syncs == syncs + 1


def test_a_retry_whose_sync_fails_is_not_answered_as_durable(tmp_path: Path, disk: GatedDisk) -> None:
    with open_directory(tmp_path / "data", disk=disk) as hw:
        hw.append("t", b"", producer=("p", 1, 1), durability="os")
        disk.failure = OSError(errno.EIO, "no")
        with pytest.raises(Unavailable):
            hw.append("t", b"", producer=("p", 1, 1), durability="fsync")
        disk.failure = None
    with open_directory(tmp_path / "data", disk=disk) as hw:
        assert hw.append("t", b"", producer=("p", 1, 1), durability="fsync").offset == 0


def test_a_retry_without_a_key_finds_its_first_answer_among_several_partitions(hw: Store) -> None:
    hw.create("p", partitions=4)
    places = set()
    for seq in range(8):
        producer = ("till", 0, seq)
        first = hw.append("p", b"x", producer=producer)
        assert hw.append("p", b"x", producer=producer) == first
        many = hw.append_many("p", [b"y", b"z"], producer=("tills", 0, seq))
        assert list(hw.append_many("p", [b"y", b"z"], producer=("tills", 0, seq))) == list(many)
        places.add(first.partition)
    mixed = hw.append_many("p", [b"a", b"b"], keys=[b"k", None], producer=("mixed", 0, 0))
    assert list(hw.append_many("p", [b"a", b"b"], keys=[b"k", None], producer=("mixed", 0, 0))) == list(mixed)
    assert len(list(hw.read("p"))) == 8 * 3 + 2
    assert places == {0, 1, 2, 3}  # requests take turns all the same
