"""Restoring from Parquet files: equal events, ids and offsets up to the end that is asked for, and no Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from headwater.engine.parquet_checking import check_parquet
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.directory.local_log import LocalLog
from headwater.errors import Corrupt, Invalid, NotFound
from headwater.event import UNIX_EPOCH_TICKS
from headwater.history.restoring import restore
from headwater.limits import MIB
from tests.archive.logs import everything, fill, open_engine
from tests.archive.parquets import archive, edit, files, logged, manifests
from tests.log.unsynced import UnsyncedDisk


class Source:
    """A log and its archive, complete: the second partition has some lost events in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.out = path / "out"
        self.address = f"parquet:{self.out}"
        with open_engine(path / "data") as hw:
            fill(hw, 150, partitions=2)
            hw.append("t", b"z" * (MIB + 1), key="huge", meta={"a": "b"}, partition=0)  # huge by any limit
            hw.append("t", b"behind it", partition=0)
            hw.create("packed", compression="zstd")
            hw.append_many(
                "packed", [{"n": n, "text": "x" * 50} for n in range(3000)], keys=[f"k{n}" for n in range(3000)]
            )
            hw.create("empty", partitions=3)
            hw.seal("t")
        _damage(path / "data" / "topics" / "t" / "1")
        with open_engine(path / "data") as hw:
            hw.repair(apply=True)
            archive(path / "data", self.out, seal=True, file_bytes=2000)
            self.events = {topic: everything(hw, topic) for topic in hw.topics()}
            self.lost = 152 - len(self.events["t"])
            self.ends = [each.end for each in hw.describe("t").partitions]
            self.uuid, self.topics = hw.uuid, [hw.describe(topic) for topic in hw.topics()]


def _damage(log: Path) -> None:
    segment = sorted(log.glob("*.log"))[1]
    stored = bytearray(segment.read_bytes())
    stored[len(stored) // 2] ^= 1
    segment.write_bytes(stored)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(tmp_path_factory.mktemp("source"))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "back"
    assert not (tmp_path / ".back.restoring").exists()


def test_a_whole_log_comes_back_with_all_that_it_was(source: Source, target: Path) -> None:
    told: list[tuple[int, int]] = []
    done = restore(source.address, target, progress=lambda *each: told.append(each))
    assert [(each.topic, each.partition) for each in done if each.topic == "t"] == [("t", 0), ("t", 1)]
    assert [each.end for each in done if each.topic == "t"] == source.ends
    with open_engine(target) as hw:
        assert hw.uuid == source.uuid
        assert {topic: everything(hw, topic) for topic in hw.topics()} == source.events
        assert [(each.uuid, each.settings) for each in map(hw.describe, hw.topics())] == [
            (each.uuid, each.settings) for each in source.topics
        ]
        assert not hw.check().damaged
        blob = next(hw.read("t", key="huge")).blob
        assert blob is not None  # beside the log again
        assert hw.append("t", b"on", partition=1).offset == source.ends[1]
    assert source.lost > 0
    assert told[-1][0] == told[-1][1] > 0


def test_lost_events_stay_lost_and_are_told_by_no_one_as_damage(source: Source, target: Path) -> None:
    done = restore(source.address, target)
    assert [each.lost for each in done if each.topic == "t"] == [0, source.lost]
    report = check_parquet(source.address)
    assert (report.lost, report.damaged) == (source.lost, False)
    assert any("were lost before" in finding.problem for finding in report.findings)
    offsets = [event[1] for event in source.events["t"] if event[0] == 1]
    missing = [offset for offset in range(source.ends[1]) if offset not in offsets]
    assert len(missing) == source.lost
    with open_engine(target) as hw:
        assert hw.describe("t").lost == source.lost
        assert [event.offset for event in hw.read("t", partition=1)] == offsets
        assert next(hw.read("t", partition=1, start=missing[0])).offset == missing[-1] + 1


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_up_to_any_offset(source: Source, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    partition = data.draw(st.sampled_from([0, 1]))
    to = data.draw(st.integers(0, source.ends[partition]))
    target = tmp_path_factory.mktemp("up-to") / "back"
    restore(source.address, target, topic="t", partition=partition, to=to, disk=UnsyncedDisk())
    with open_engine(target) as hw:
        kept = [event for event in source.events["t"] if event[0] != partition or event[1] < to]
        assert everything(hw) == kept
        assert hw.append("t", b"another way on", partition=partition).offset == to


@settings(max_examples=25, deadline=None)
@given(number=st.integers(0, 10_000), step_us=st.sampled_from([0, 1]))
def test_up_to_any_time(source: Source, tmp_path_factory: pytest.TempPathFactory, number: int, step_us: int) -> None:
    events = source.events["t"] + source.events["packed"]
    time = events[number % len(events)][2] + timedelta(microseconds=step_us)
    target = tmp_path_factory.mktemp("up-to-time") / "back"
    restore(source.address, target, to=time, disk=UnsyncedDisk())
    with open_engine(target) as hw:
        for topic in ("t", "packed"):
            assert everything(hw, topic) == [event for event in source.events[topic] if event[2] < time]
        assert not hw.check().damaged


def test_before_all_of_it_nothing_is_left(source: Source, target: Path) -> None:
    restore(source.address, target, to=datetime(2000, 1, 1, tzinfo=UTC))
    with open_engine(target) as hw:
        assert [hw.describe(topic).events for topic in hw.topics()] == [0, 0, 0]


def test_what_is_refused(source: Source, target: Path, tmp_path: Path) -> None:
    for wrong, problem in [
        ({"to": 3}, "an offset is that of a topic"),
        ({"to": 3, "topic": "t"}, "has 2 partitions"),
        ({"to": 10**6, "topic": "packed"}, "cannot end at"),
    ]:
        with pytest.raises(Invalid, match=problem):
            restore(source.address, target, **wrong)  # type: ignore[arg-type]  # they are wrong
    with pytest.raises(NotFound):
        restore(source.address, target, topic="nowhere")
    with pytest.raises(NotFound, match="not an archive of Parquet"):
        restore(f"parquet:{tmp_path / 'nowhere'}", target)
    target.mkdir()
    (target / "mine").touch()
    with pytest.raises(Invalid, match="is there already"):
        restore(source.address, target)


def test_one_topic_and_one_that_is_empty(source: Source, target: Path) -> None:
    done = restore(source.address, target, topic="empty")
    assert [(each.first, each.end) for each in done] == [(0, 0)] * 3
    with open_engine(target) as hw:
        assert hw.topics() == ["empty"]


class Died(BaseException):
    """The process is gone."""


def _interrupted(monkeypatch: pytest.MonkeyPatch, calls: int, act: Callable[[], Any]) -> None:
    """Die at the append of this number."""
    take, left = LocalLog.take, calls

    def taking(*given: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Died
        take(*given)

    with monkeypatch.context() as patched:
        patched.setattr(LocalLog, "take", taking)
        with pytest.raises(Died):
            act()


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_an_interrupted_one_goes_on_where_it_was(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    _interrupted(monkeypatch, calls, lambda: restore(source.address, target))
    assert not target.exists()
    restore(source.address, target)
    with open_engine(target) as hw:
        assert {topic: everything(hw, topic) for topic in hw.topics()} == source.events
        assert not hw.check().damaged


def test_an_interrupted_one_that_came_too_far_begins_anew(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupted(monkeypatch, 3, lambda: restore(source.address, target))
    restore(source.address, target, topic="t", partition=0, to=1)
    with open_engine(target) as hw:
        assert hw.topics() == ["t"]
        assert everything(hw) == [event for event in source.events["t"] if event[0] == 1 or event[1] < 1]


def test_a_restored_log_goes_on_with_its_archive(tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 50)
    archive(tmp_path / "data", tmp_path / "out", seal=True)
    restore(f"parquet:{tmp_path / 'out'}", tmp_path / "back")
    assert archive(tmp_path / "back", tmp_path / "out", seal=True) == []
    with open_engine(tmp_path / "back") as hw:
        hw.append("t", b"on")
        assert [each.first for each in archive(tmp_path / "back", tmp_path / "out", seal=True)] == [50]


def test_ticks_that_share_a_microsecond_stay_apart(tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as hw:
        hw.append_many("t", [b"x"] * 25)
        archive(tmp_path / "data", tmp_path / "out", seal=True)
        restore(f"parquet:{tmp_path / 'out'}", tmp_path / "back")
        with open_engine(tmp_path / "back") as back:
            ticks = [event.ticks for event in back.read("t")]
            assert ticks == [event.ticks for event in hw.read("t")]
    assert len({(tick - UNIX_EPOCH_TICKS) // 10 for tick in ticks}) < len(ticks) == 25


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 60)
    archive(tmp_path / "data", tmp_path / "out", seal=True)
    return tmp_path / "out"


def test_a_damaged_file_is_not_restored(spoiled: Path, tmp_path: Path) -> None:
    file = files(spoiled)[1]
    stored = bytearray(file.read_bytes())
    stored[len(stored) // 2] ^= 1
    file.write_bytes(stored)
    with pytest.raises(Corrupt, match="not those that were archived"):
        restore(f"parquet:{spoiled}", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_manifest_that_cannot_be_is_not_believed(spoiled: Path, tmp_path: Path) -> None:
    record = spoiled / "_headwater" / "t" / "0.json"

    def gap(record: dict[str, Any]) -> None:
        del record["parts"][1]

    edit(record, gap)
    with pytest.raises(Corrupt, match="does not follow"):
        restore(f"parquet:{spoiled}", tmp_path / "back")


def test_no_spark_is_needed(spoiled: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; import headwater, pathlib\n"
        "from headwater.engine.parquet_checking import check_parquet\n"
        f"headwater.restore('parquet:{spoiled}', pathlib.Path('{tmp_path / 'back'}'))\n"
        f"assert not check_parquet('parquet:{spoiled}').findings\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # our own code
    with open_engine(tmp_path / "back") as back, open_engine(tmp_path / "data") as hw:
        assert logged(back).equals(logged(hw))
    assert manifests(spoiled)[0].end == 60
