"""Files of a log that are missing: no read answers without their events, and `check` names them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.errors import Corrupt, NotFound
from headwater.store import Store
from tests.log.unsynced import open_unsynced

SEGMENT_EVENTS = 3
SEGMENTS = 4  # the last one is active
END = SEGMENT_EVENTS * SEGMENTS
FIRST, MIDDLE, ACTIVE = 0, SEGMENT_EVENTS, END - SEGMENT_EVENTS

Read = Callable[[Store], Any]


def consumed(hw: Store) -> list[int]:
    with hw.consumer("c", "t", timeout=0) as consumer:
        return [event.offset for event in consumer]


def offsets(events: Iterator[Any]) -> list[int]:
    return [event.offset for event in events]


READS: dict[str, Read] = {
    "forward": lambda hw: offsets(hw.read("t")),
    "from offset 0": lambda hw: offsets(hw.read("t", start=0)),
    "reverse": lambda hw: offsets(hw.read("t", reverse=True)),
    "key": lambda hw: offsets(hw.read("t", key="all")),
    "key in reverse": lambda hw: offsets(hw.read("t", key="all", reverse=True)),
    "no such key": lambda hw: offsets(hw.read("t", key="none")),
    "type": lambda hw: offsets(hw.read("t", type="one")),
    "type in reverse": lambda hw: offsets(hw.read("t", type="one", reverse=True)),
    "match": lambda hw: offsets(hw.read("t", match={"n": {"$gte": 0}})),
    "batches": lambda hw: [len(batch) for batch in hw.read_batches("t")],
    "arrow": lambda hw: hw.read_arrow("t"),
    "follow": lambda hw: offsets(hw.follow("t", start="earliest", timeout=0)),
    "follow a key": lambda hw: offsets(hw.follow("t", start="earliest", key="all", timeout=0)),
    "consumer": consumed,
    "splits": lambda hw: hw.splits("t", split_bytes=64),
    "version of a key that is nowhere": lambda hw: hw.version("t", "none"),
}


def fill(hw: Store, topic: str = "t", **settings: Any) -> None:
    """Four segments of three events; the key `only-<base>` and the type of a base are in its segment alone."""
    hw.create(topic, **settings)
    for base in range(0, END, SEGMENT_EVENTS):
        for offset in range(base, base + SEGMENT_EVENTS):
            key = "all" if offset > base else f"only-{base}"
            hw.append(topic, {"n": offset}, key=key, type="one" if offset % 2 else "two")
        if base < ACTIVE:
            hw.seal(topic)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("holes") / "data"
    with open_unsynced(path) as hw:
        fill(hw)
    return path


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "data"))


def segment(data: Path, base: int) -> Path:
    return data / f"topics/t/0/{base:020d}.log"


def remove(data: Path, base: int, also: str) -> None:
    segment(data, base).unlink()
    if also == "index":
        for index in (data / "topics/t/0").glob("*.index"):
            index.unlink()
    if also == "tail":
        (data / "topics/t/0/tail").unlink()


@pytest.mark.parametrize("base", [FIRST, MIDDLE, ACTIVE])
@pytest.mark.parametrize("also", ["", "index", "tail"])
@pytest.mark.parametrize("kind", READS)
def test_no_read_skips_a_missing_segment(data: Path, base: int, also: str, kind: str) -> None:
    remove(data, base, also)
    with open_unsynced(data) as hw, pytest.raises(Corrupt) as caught:
        READS[kind](hw)
    assert Path(caught.value.path).name == segment(data, base).name
    assert caught.value.hint


@pytest.mark.parametrize("base", [FIRST, MIDDLE, ACTIVE])
def test_the_version_of_a_lost_event_is_not_none(data: Path, base: int) -> None:
    remove(data, base, "")
    with open_unsynced(data) as hw:
        for key in (f"only-{base}", "none"):
            with pytest.raises(Corrupt):
                hw.version("t", key)
        if base < ACTIVE:
            assert hw.version("t", "all") == END - 1  # found behind the hole
            with pytest.raises(Corrupt):
                hw.append("t", b"x", key=f"only-{base}", expected_version="none")


@pytest.mark.parametrize("kind", ["forward", "reverse", "key", "type in reverse", "splits", "no such key"])
def test_a_segment_that_goes_while_the_log_is_open_is_missed(data: Path, kind: str) -> None:
    with open_unsynced(data) as hw:
        assert READS[kind](hw) is not None
        segment(data, MIDDLE).unlink()
        hw.seal("t")
        hw.append("t", b"", key="all")
        with pytest.raises(Corrupt):
            READS[kind](hw)


def test_what_is_not_beside_the_hole_is_read(data: Path) -> None:
    remove(data, MIDDLE, "")
    with open_unsynced(data) as hw:
        assert offsets(hw.read("t", end=MIDDLE)) == [0, 1, 2]
        assert offsets(hw.read("t", start=2 * SEGMENT_EVENTS)) == list(range(2 * SEGMENT_EVENTS, END))
        assert offsets(hw.read("t", start=2 * SEGMENT_EVENTS, reverse=True))[-1] == 2 * SEGMENT_EVENTS
        assert hw.append("t", b"more").offset == END


def test_a_time_in_the_hole_does_not_end_a_read_before_it(data: Path) -> None:
    with open_unsynced(data) as hw:
        time = next(iter(hw.read("t", start=MIDDLE + 1))).time
    remove(data, MIDDLE, "")
    with open_unsynced(data) as hw, pytest.raises(Corrupt):
        list(hw.read("t", end=time))


@pytest.mark.parametrize("base", [FIRST, MIDDLE, ACTIVE])
@pytest.mark.parametrize("also", ["", "tail"])
def test_check_finds_a_missing_segment_and_repair_marks_its_offsets_as_lost(data: Path, base: int, also: str) -> None:
    assert not open_unsynced(data).check().damaged
    remove(data, base, also)
    with open_unsynced(data) as hw:
        (finding, *others) = [finding for finding in hw.check().findings if finding.damage]
        assert not others
        assert "missing" in finding.problem
        assert (finding.topic, finding.partition) == ("t", 0)
        planned = hw.repair()
        assert planned
        assert not any(action.done for action in planned)
        done = hw.repair(apply=True)
        assert [action.what for action in done] == [action.what for action in planned]
        assert all(action.done for action in done)
        assert not hw.check().damaged
    with open_unsynced(data) as hw:
        assert not hw.check().damaged
        assert not hw.repair()
        left = [offset for offset in range(END) if not base <= offset < base + SEGMENT_EVENTS]
        assert offsets(hw.read("t")) == left
        assert offsets(hw.read("t", reverse=True)) == left[::-1]
        assert hw.version("t", f"only-{base}") is None
        end = base if (base, also) == (ACTIVE, "tail") else END  # nothing tells how many events it held
        assert hw.append("t", b"more").offset == end


def test_an_append_to_a_log_whose_active_segment_is_missing_is_corrupt(data: Path) -> None:
    remove(data, ACTIVE, "")
    with open_unsynced(data) as hw, pytest.raises(Corrupt, match="missing"):
        hw.append("t", b"x")


def test_a_segment_that_was_not_packed_is_missed_without_a_tail(tmp_path: Path) -> None:
    """Its huge events, or the archive, tell that it was there."""
    with open_unsynced(tmp_path / "data") as hw:
        hw.append("t", b"small")
        hw.seal("t")
        hw.append("t", b"x" * (2 << 20))
    log = tmp_path / "data/topics/t/0"
    for path in (segment(tmp_path / "data", 1), log / "tail", *log.glob("*.index")):
        path.unlink()
    with open_unsynced(tmp_path / "data") as hw:
        assert any("missing" in finding.problem for finding in hw.check().findings if finding.damage)
        with pytest.raises(Corrupt):
            list(hw.read("t"))


def test_what_retention_deletes_is_no_hole(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        fill(hw, "t", retention_segments=3)
        fill(hw, "once")
        hw.retain("once", before=MIDDLE)
        hw.retain("t")
    with open_unsynced(tmp_path / "data") as hw:
        hw.retain("t", retention_segments=0)  # it stays gone when the bound is taken away
    with open_unsynced(tmp_path / "data") as hw:
        for topic in ("t", "once"):
            assert offsets(hw.read(topic)) == list(range(MIDDLE, END))
            assert offsets(hw.read(topic, reverse=True))[-1] == MIDDLE
            assert hw.version(topic, "only-0") is None
            with pytest.raises(NotFound, match="is gone"):
                list(hw.read(topic, start=0))
        assert not hw.check().damaged
        assert not hw.repair()


def test_a_segment_that_retention_did_not_delete_is_missed_in_a_shortened_log(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        fill(hw)
        hw.retain("t", before=MIDDLE)
    segment(tmp_path / "data", MIDDLE).unlink()
    with open_unsynced(tmp_path / "data") as hw:
        assert hw.check().damaged
        with pytest.raises(Corrupt):
            list(hw.read("t"))


def test_what_was_dropped_and_is_in_the_archive_is_no_hole(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        fill(hw)
        hw.archive(f"objects://{tmp_path}/archive")
        hw.retain("t", before=2 * SEGMENT_EVENTS)
        assert not segment(tmp_path / "data", MIDDLE).exists()
    with open_unsynced(tmp_path / "data") as hw:
        assert offsets(hw.read("t")) == list(range(END))
        assert not hw.check().damaged
    segment(tmp_path / "data", ACTIVE).unlink()
    segment(tmp_path / "data", 2 * SEGMENT_EVENTS).unlink()
    (tmp_path / "data/topics/t/0/tail").unlink()
    with open_unsynced(tmp_path / "data") as hw:
        assert hw.check().damaged
        with pytest.raises(Corrupt):
            list(hw.read("t"))


def test_a_log_that_is_restored_from_its_second_half_on_is_no_hole(tmp_path: Path) -> None:
    url = f"objects://{tmp_path}/archive"
    with open_unsynced(tmp_path / "data") as hw:
        fill(hw)
        hw.retain("t", before=MIDDLE)
        hw.archive(url)
    headwater.restore(url, tmp_path / "restored")
    with open_unsynced(tmp_path / "restored") as hw:
        assert offsets(hw.read("t")) == list(range(MIDDLE, ACTIVE))
        assert not hw.check().damaged


def test_a_replica_of_a_shortened_log_is_no_hole(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        fill(hw)
        hw.retain("t", before=MIDDLE)
    headwater.replicate(tmp_path / "data", tmp_path / "replica", once=True)
    (tmp_path / "replica/replica.json").unlink()  # a log that was made by an earlier version may begin anywhere
    with open_unsynced(tmp_path / "replica") as hw:
        assert offsets(hw.read("t")) == list(range(MIDDLE, END))


def test_a_log_that_an_earlier_version_shortened_is_read(data: Path) -> None:
    """It left no mark: what a topic with a retention has lost at its beginning counts as deleted."""
    with open_unsynced(data) as hw:
        hw.retain("t", retention_age_ms=10**12)
    segment(data, FIRST).unlink()
    with open_unsynced(data) as hw:
        assert offsets(hw.read("t")) == list(range(MIDDLE, END))
        assert not hw.check().damaged


def test_a_topic_without_its_settings_is_damaged_and_not_new(data: Path) -> None:
    (data / "topics/t/topic.json").unlink()
    with open_unsynced(data) as hw:
        hw.append("other", b"fine")
        (finding,) = [finding for finding in hw.check().findings if finding.damage]
        assert (finding.topic, finding.partition) == ("t", -1)
        assert finding.path.endswith("topics/t/topic.json")
        assert "missing" in finding.problem
        for verb in (hw.describe, hw.read, hw.create, hw.delete, lambda topic: hw.append(topic, b"")):
            with pytest.raises(Corrupt, match=r"topic\.json"):
                verb("t")
        assert offsets(hw.read("other")) == [0]


def test_a_partition_without_its_directory_is_damaged_and_not_deleted(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        hw.create("t", partitions=2)
        hw.append("t", b"a", partition=1)
    shutil.rmtree(tmp_path / "data/topics/t/1")
    with open_unsynced(tmp_path / "data") as hw:
        assert any(finding.damage and finding.partition == 1 for finding in hw.check().findings)
        with pytest.raises(Corrupt):
            list(hw.read("t"))
        with pytest.raises(Corrupt):
            hw.append("t", b"b", partition=1)


@pytest.mark.parametrize("gone", ["headwater.json", "topics"])
def test_a_directory_that_lost_what_makes_it_a_log_is_not_begun_anew(data: Path, gone: str) -> None:
    path = data / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(Corrupt, match="missing"):
        open_unsynced(data)
    assert not path.exists()
