"""Restoring: exactly what was there up to the end that is asked for, and a log that goes on from there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import headwater
from headwater.errors import Corrupt, Invalid, NotFound, Unavailable
from headwater.event import UNIX_EPOCH_TICKS
from headwater.format.history import check
from headwater.history import writing
from headwater.history.check import check_archive_at
from headwater.history.restore import restore
from headwater.history.segments import write_segment
from headwater.limits import COLUMN_DATA_BYTES_MAX, MIB, Limits
from headwater.store import Store
from tests.archive.logs import FailingStore, drop, everything, fill, manifest_of, objects, open_engine
from tests.log.unsynced import UnsyncedDisk


class Source:
    """A log and its archive, complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"objects://{path / 'archive'}"
        with open_engine(path / "data") as hw:
            fill(hw, 130)
            hw.archive(self.url, seal=True)
            fill(hw, 60, seed=1)
            hw.append_many("t", [b"y" * 20] * 90, keys=["a"] * 90)  # packed whole, as it is: cut in its midst
            hw.archive(seal=True)
            self.events = everything(hw)
            self.uuid, self.topic = hw.uuid, hw.describe("t")


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(tmp_path_factory.mktemp("source"))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "back"
    assert not (tmp_path / ".back.restoring").exists()


def back(source: Source, target: Path, **options: Any) -> Store:
    restore(source.url, target, disk=UnsyncedDisk(), **options)
    return open_engine(target)


def test_a_whole_log_comes_back_with_its_uuids_offsets_times_and_ids(archived: Source, target: Path) -> None:
    done = restore(archived.url, target)
    assert [(each.topic, each.partition, each.first, each.end) for each in done] == [("t", 0, 0, len(archived.events))]
    with open_engine(target) as hw:
        assert (hw.uuid, hw.describe("t").uuid) == (archived.uuid, archived.topic.uuid)
        assert hw.describe("t").settings == archived.topic.settings
        assert hw.check().findings == []
        assert everything(hw) == archived.events
        ref = hw.append("t", b"next")
        assert ref.offset == len(archived.events)
        assert next(hw.read("t", start=ref.offset)).time > archived.events[-1][2]
        assert hw.check().damaged is False
        assert hw.archive(archived.url) == [], "the archive goes on with the restored log"


@given(at=st.integers(0, 280))
@settings(max_examples=25)
def test_up_to_an_offset_it_is_the_prefix_and_goes_on_there(
    archived: Source, tmp_path_factory: pytest.TempPathFactory, at: int
) -> None:
    path = tmp_path_factory.mktemp("to") / "back"
    with back(archived, path, topic="t", to=at) as hw:
        assert everything(hw) == archived.events[:at]
        assert [finding for finding in hw.check().findings if finding.damage] == []
        assert hw.append("t", b"next", key="a").offset == at
        assert hw.version("t", "a") == at
        hw.seal("t")
        assert everything(hw)[:at] == archived.events[:at]
        assert not hw.check().damaged
    with open_engine(path) as hw:
        assert [event[1] for event in everything(hw)] == list(range(at + 1))
    shutil.rmtree(path)


@given(number=st.integers(0, 279), tick=st.integers(-1, 1))
@settings(max_examples=25)
def test_up_to_a_time_it_is_what_was_before(
    archived: Source, tmp_path_factory: pytest.TempPathFactory, number: int, tick: int
) -> None:
    path = tmp_path_factory.mktemp("to") / "back"
    time = archived.events[number][2] + timedelta(microseconds=tick)
    ticks = round((time - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1)) * 10 + UNIX_EPOCH_TICKS
    with open_engine(archived.path / "data") as hw:
        expected = [event.offset for event in hw.read("t") if event.ticks < ticks]
    with back(archived, path, to=time) as hw:
        assert everything(hw) == archived.events[: len(expected)]
        assert not hw.check().damaged
        assert hw.append("t", b"next").offset == len(expected)
    shutil.rmtree(path)


def test_only_what_the_archive_holds_can_be_asked_for(archived: Source, target: Path) -> None:
    for options, error, code in (
        ({"topic": "t", "to": len(archived.events) + 1}, Invalid, "not_archived"),
        ({"to": 5}, Invalid, "topic_needed"),
        ({"topic": "nowhere"}, NotFound, "topic_not_found"),
        ({"topic": "t", "to": 5, "partition": 3}, NotFound, "partition_not_found"),
    ):
        with pytest.raises(error) as told:
            restore(archived.url, target, **options)
        assert told.value.code == code
    with pytest.raises(NotFound) as none:
        restore(f"{archived.url}/elsewhere", target)
    assert none.value.code == "not_an_archive"
    assert not target.exists()


def test_partitions_come_back_each_as_it_was(tmp_path: Path) -> None:
    url = f"objects://{tmp_path / 'archive'}"
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 200, partitions=3)
        fill(hw, 50, topic="böse/Namen")
        hw.create("empty", partitions=2)
        hw.archive(url, seal=True)
        expected = {topic: everything(hw, topic) for topic in hw.topics()}
        ends = [partition.end for partition in hw.describe("t").partitions]
    restore(url, tmp_path / "all")
    with open_engine(tmp_path / "all") as hw:
        assert {topic: everything(hw, topic) for topic in hw.topics()} == expected
        assert len(hw.describe("empty").partitions) == 2
        assert hw.check().findings == []
    with pytest.raises(Invalid):
        restore(url, tmp_path / "some", topic="t", to=3)
    restore(url, tmp_path / "some", topic="t", to=3, partition=1)
    with open_engine(tmp_path / "some") as hw:
        assert hw.topics() == ["t"]
        assert [partition.end for partition in hw.describe("t").partitions] == [ends[0], 3, ends[2]]


def test_what_producers_were_told_is_remembered(tmp_path: Path) -> None:
    url = f"objects://{tmp_path / 'archive'}"
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 20)
        first = hw.append("t", b"once", producer=("p", 1, 7))
        hw.archive(url, seal=True)
    restore(url, tmp_path / "back")
    with open_engine(tmp_path / "back") as hw:
        assert hw.append("t", b"once", producer=("p", 1, 7)).offset == first.offset
        assert hw.append("t", b"more", producer=("p", 1, 8)).offset == first.offset + 1
        hw.seal("t")
        assert not hw.check().damaged


def test_a_directory_that_is_there_is_refused_unless_it_is_empty(archived: Source, target: Path) -> None:
    target.mkdir()
    restore(archived.url, target)
    with pytest.raises(Invalid) as told:
        restore(archived.url, target)
    assert told.value.code == "not_empty"


def test_an_interrupted_restore_is_no_log_and_goes_on_where_it_was(
    archived: Source, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FailingStore(objects(archived.path / "archive"))
    monkeypatch.setattr("headwater.history.records.open_store", lambda *_, **__: store)
    fetched: list[str] = []

    def told(when: str, what: str, key: str) -> None:
        if what == "get_range" and when == "before":
            fetched.append(key)
            if len(fetched) > 5:
                store.down = True

    store._told = told
    with pytest.raises(Unavailable):
        restore(archived.url, target)
    assert not target.exists()
    with pytest.raises(NotFound) as none:
        headwater.open(target.parent / ".back.restoring", mode="existing")
    assert none.value.code == "not_a_log"
    store.down, first = False, set(fetched[:4])
    fetched.clear()
    store._told = lambda when, what, key: fetched.append(key) if (when, what) == ("before", "get_range") else None
    restore(archived.url, target, topic="t", to=250)
    assert len(first & set(fetched)) < len(first), "what was fetched before is not fetched again"
    with open_engine(target) as hw:
        assert everything(hw) == archived.events[:250]
        assert hw.check().findings == []


def test_damage_in_the_archive_is_never_restored(archived: Source, tmp_path: Path) -> None:
    shutil.copytree(archived.path / "archive", tmp_path / "archive")
    damaged = sorted((tmp_path / "archive").rglob("*.parquet"))[1]
    stored = damaged.read_bytes()
    damaged.write_bytes(stored[:-1] + bytes([stored[-1] ^ 1]))
    with pytest.raises(Corrupt):
        restore(f"objects://{tmp_path / 'archive'}", tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("name", ["../0.parquet", "/etc/passwd", "0-00000000000000000000/../x.parquet", "tail", ""])
def test_a_manifest_with_a_name_that_no_file_has_is_refused(archived: Source, name: str) -> None:
    with open_engine(archived.path / "data") as hw:
        manifest = manifest_of(objects(archived.path / "archive"), hw)
        log = hw.directory._topics.live("t").logs[0].place.uuid
    check(manifest, log, "here")
    first, *rest = manifest.parts
    for changed in (
        replace(first, file=replace(first.file, name=name)),
        replace(first, index=replace(first.index, name=name)),
        replace(first, producers=replace(first.file, name=name)),
    ):
        with pytest.raises(Corrupt):
            check(replace(manifest, parts=[changed, *rest]), log, "here")


class Mended:
    """A log that a repair has cut events out of, with huge events inside and beside its files, and its archive."""

    def __init__(self, path: Path) -> None:
        self.address = str(path / "out")
        with open_engine(path / "data") as hw:
            fill(hw, 400, partitions=2)
            hw.append("t", b"z" * (MIB + 1), key="huge", meta={"a": "b"}, partition=0)  # huge by any limit
            hw.append("t", b"behind it", partition=0)
            hw.create("packed", compression="zstd")
            numbers = range(3000)
            hw.append_many("packed", [{"n": n, "text": "x" * 50} for n in numbers], keys=[f"k{n}" for n in numbers])
            hw.create("empty", partitions=3)
            hw.seal("t")
        _damage(path / "data" / "topics" / "t" / "1")
        with open_engine(path / "data") as hw:
            hw.repair(apply=True)
            hw.archive(self.address, seal=True)
            self.events = {topic: everything(hw, topic) for topic in hw.topics()}
            self.lost = 402 - len(self.events["t"])
            self.ends = [each.end for each in hw.describe("t").partitions]
            self.path = path


def _damage(log: Path) -> None:
    for number in (1, 2):
        segment = sorted(log.glob("*.log"))[number]
        stored = bytearray(segment.read_bytes())
        stored[len(stored) // 2 if number == 1 else -20] ^= 1
        segment.write_bytes(stored)


@pytest.fixture(scope="module", params=[COLUMN_DATA_BYTES_MAX, 4000], ids=["inside", "beside"])
def mended(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Mended:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writing, "COLUMN_DATA_BYTES_MAX", request.param)
        return Mended(tmp_path_factory.mktemp("mended"))


def test_a_repaired_log_comes_back_with_its_lost_events_and_blobs(mended: Mended, target: Path) -> None:
    done = restore(mended.address, target)
    assert [each.lost for each in done if each.topic == "t"] == [0, mended.lost]
    assert [each.end for each in done if each.topic == "t"] == mended.ends
    assert mended.lost > 0
    offsets = [event[1] for event in mended.events["t"] if event[0] == 1]
    with open_engine(target) as hw:
        assert {topic: everything(hw, topic) for topic in hw.topics()} == mended.events
        assert not hw.check().damaged
        assert hw.describe("t").lost == mended.lost
        assert [event.offset for event in hw.read("t", partition=1)] == offsets
        blob = next(hw.read("t", key="huge")).blob
        assert blob is not None  # beside the log again
        assert hw.archive(mended.address) == [], "the archive goes on with the restored log"
        assert hw.append("t", b"on", partition=1).offset == mended.ends[1]
    report = check_archive_at(mended.address)
    assert (report.lost, report.damaged) == (mended.lost, False)
    assert any("were lost before" in finding.problem for finding in report.findings)


def test_a_repaired_log_is_read_on_in_the_archive(mended: Mended, tmp_path: Path) -> None:
    shutil.copytree(mended.path / "data", tmp_path / "data")
    with open_engine(tmp_path / "data") as hw:
        assert drop(hw)
        assert everything(hw) == mended.events["t"]
        assert everything(hw, type="huge") == [event for event in mended.events["t"] if event[4] == "huge"]
        assert hw.describe("t").lost == mended.lost


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_repaired_log_up_to_any_offset(
    mended: Mended, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    partition = data.draw(st.sampled_from([0, 1]))
    to = data.draw(st.integers(0, mended.ends[partition]))
    target = tmp_path_factory.mktemp("up-to") / "back"
    restore(mended.address, target, topic="t", partition=partition, to=to, disk=UnsyncedDisk())
    with open_engine(target) as hw:
        kept = [event for event in mended.events["t"] if event[0] != partition or event[1] < to]
        assert everything(hw) == kept
        assert hw.append("t", b"another way on", partition=partition).offset == to
        assert not hw.check().damaged


@settings(max_examples=25, deadline=None)
@given(number=st.integers(0, 10_000), step_us=st.sampled_from([0, 1]))
def test_a_repaired_log_up_to_any_time(
    mended: Mended, tmp_path_factory: pytest.TempPathFactory, number: int, step_us: int
) -> None:
    events = mended.events["t"] + mended.events["packed"]
    time = events[number % len(events)][2] + timedelta(microseconds=step_us)
    target = tmp_path_factory.mktemp("up-to-time") / "back"
    restore(mended.address, target, to=time, disk=UnsyncedDisk())
    with open_engine(target) as hw:
        for topic in ("t", "packed"):
            assert everything(hw, topic) == [event for event in mended.events[topic] if event[2] < time]
        assert not hw.check().damaged


def test_before_all_of_it_nothing_is_left(mended: Mended, target: Path) -> None:
    restore(mended.address, target, to=datetime(2000, 1, 1, tzinfo=UTC))
    with open_engine(target) as hw:
        assert [hw.describe(topic).events for topic in hw.topics()] == [0, 0, 0]


class Died(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("calls", [0, 1, 3, 7])
def test_one_that_died_goes_on_or_ends_earlier(
    mended: Mended, target: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    left = calls

    def dying(*given: Any, **options: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise Died
        return write_segment(*given, **options)

    with monkeypatch.context() as patched:
        patched.setattr("headwater.history.restore.write_segment", dying)
        with pytest.raises(Died):
            restore(mended.address, target, limits=Limits(archive_transfers=1))
    assert not target.exists()
    if calls == 7:
        restore(mended.address, target, topic="t", partition=0, to=1)
        expected = {"t": [event for event in mended.events["t"] if event[0] == 1 or event[1] < 1]}
    else:
        restore(mended.address, target)
        expected = mended.events
    with open_engine(target) as hw:
        assert {topic: everything(hw, topic) for topic in hw.topics()} == expected
        assert not hw.check().damaged
