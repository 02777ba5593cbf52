"""What a repair has cut out of a log is lost, and everything that passes over it says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.directory.segment import SegmentFile
from headwater.format.batch import encode_lost
from headwater.history.check import check_archive_of
from headwater.store import Store
from tests.log.unsynced import open_unsynced

LOST = range(100, 200)


def damage(path: Path, topic: str = "t") -> None:
    """Damage the batches of the lost offsets, each in its header."""
    with open_unsynced(path) as hw:
        log = hw.directory._topics.get(topic).logs[0]
        segment = SegmentFile(log.place, 0)
        batches = segment.map(segment.size())
        wanted = [int(p) for o, p in zip(batches.offsets, batches.positions, strict=True) if int(o) in LOST]
    file = path / f"topics/{topic}/0/00000000000000000000.log"
    stored = bytearray(file.read_bytes())
    for position in wanted:
        stored[position + 20] ^= 0x11
    file.write_bytes(stored)


def with_losses(path: Path, state: str = "active") -> None:
    """A log of 400 events, of which a hundred are lost. `state` is that of their segment."""
    with open_unsynced(path) as hw:
        for lo in range(0, 400, 100):
            values = [b"%d" % number for number in range(lo, lo + 100)]
            hw.append_many("t", values, types=["even", "odd"] * 50, keys=[b"a", b"b"] * 50)
        if state != "active":
            hw.directory._topics.get("t").logs[0].roll(tell=False)
    damage(path)
    with open_unsynced(path) as hw:
        assert hw.check().damaged
        hw.repair("t", apply=True)
        if state == "sealed":
            hw.seal("t")


@pytest.fixture(params=["active", "finished", "sealed"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with_losses(tmp_path / "data", request.param)
    return tmp_path / "data"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "lost" in record.getMessage()]


WARNING = "topic 't', partition 0: offsets 100 to 199 are lost: they were damaged, and repair removed them"


def test_lost_events_are_counted_apart(data: Path) -> None:
    with open_unsynced(data) as hw:
        described = hw.describe("t")
        assert (described.events, described.lost) == (300, 100)
        assert described.partitions[0].lost == [(100, 200)]
        report = hw.check()
        assert (report.events, report.lost, report.damaged) == (300, 100, False)
        (finding,) = [finding for finding in report.findings if "lost" in finding.problem]
        assert finding.problem.startswith("offsets 100 to 199 are lost")
        hw.append("t", b"next")
        assert (hw.describe("t").events, hw.describe("t").lost) == (301, 100)


def test_a_sound_log_has_lost_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_unsynced(tmp_path) as hw:
        hw.append_many("t", [b"x"] * 400, keys=[b"a", b"b"] * 200)
        for _ in range(2):
            described = hw.describe("t")
            assert (described.events, described.lost, described.partitions[0].lost) == (400, 0, [])
            assert hw.check().lost == 0
            assert len(list(hw.read("t", key=b"a"))) == 200
            hw.seal("t")
    assert told(caplog) == []


READS: list[tuple[dict[str, Any], int]] = [
    ({}, 300),
    ({"reverse": True}, 300),
    ({"type": "odd"}, 150),
    ({"type": "odd", "reverse": True}, 150),
    ({"key": b"a"}, 150),
    ({"key": b"a", "reverse": True}, 150),
    ({"key": b"never"}, 0),
    ({"key": b"never", "reverse": True}, 0),
    ({"type": "never"}, 0),
    ({"match": {"n": 1}}, 0),
]


@pytest.mark.parametrize(("options", "events"), READS)
def test_every_read_over_a_lost_range_warns_once(
    data: Path, options: dict[str, Any], events: int, caplog: pytest.LogCaptureFixture
) -> None:
    with open_unsynced(data) as hw:
        assert len(list(hw.read("t", **options))) == events
    assert told(caplog) == [WARNING]


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({"start": 150}, WARNING.replace("100 to", "150 to")),
        ({"start": 150, "reverse": True}, WARNING.replace("100 to", "150 to")),
        ({"start": 120, "end": 130}, WARNING.replace("100 to 199", "120 to 129")),
        ({"end": 100}, None),
        ({"end": 100, "reverse": True}, None),
        ({"start": 200}, None),
        ({"start": 200, "key": b"a"}, None),
        ({"start": 200, "key": b"a", "reverse": True}, None),
        ({"end": 110, "key": b"a"}, WARNING.replace("199", "109")),
        ({"end": 110, "key": b"a", "reverse": True}, WARNING.replace("199", "109")),
    ],
)
def test_a_warning_names_what_the_read_passes(
    data: Path, options: dict[str, Any], warning: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with open_unsynced(data) as hw:
        list(hw.read("t", **options))
    assert told(caplog) == ([] if warning is None else [warning])


def test_what_a_read_has_not_reached_is_not_told(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_unsynced(data) as hw:
        for options in ({}, {"reverse": True}, {"key": b"a"}):
            next(hw.read("t", **options))
    assert told(caplog) == []


def test_describing_and_appending_warn_of_nothing(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_unsynced(data) as hw:
        hw.describe("t")
        hw.append("t", b"next", key=b"never", expected_version=None)
        assert hw.version("t", b"none") is None
    assert told(caplog) == []


@pytest.mark.parametrize("options", [{}, {"type": "odd"}, {"key": b"a"}])
def test_a_consumer_counts_lost_events_as_skipped(
    data: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with open_unsynced(data) as hw:
        with hw.consumer("c", "t", timeout=0.0, **options) as consumer:
            handled = consumer.drain(lambda _: None)
            assert (handled, consumer.skipped) == (150 if options else 300, 100)
        with hw.consumer("c", "t", timeout=0.0) as consumer:
            assert consumer.drain(lambda _: None) == 0
            assert consumer.skipped == 0
    assert told(caplog) == [WARNING]


def test_following_warns(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_unsynced(data) as hw:
        assert len(list(hw.follow("t", start=0, timeout=0.0))) == 300
    assert told(caplog) == [WARNING]


def test_data_that_looks_like_a_lost_range_is_no_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_unsynced(tmp_path) as hw:
        hw.append("t", b"x")
        hw.append("t", encode_lost(2, 2**58, 7))
        hw.append("t", b"y")
        assert (hw.describe("t").events, hw.describe("t").lost, hw.check().lost) == (3, 0, 0)
    assert told(caplog) == []


def test_an_archive_and_what_is_restored_tell_of_the_loss(tmp_path: Path) -> None:
    with_losses(tmp_path / "data", "sealed")
    url = f"objects://{tmp_path}/archive"
    with headwater.open(tmp_path / "data") as hw:
        assert isinstance(hw, Store)
        hw.archive(url)
        assert check_archive_of(hw.directory).lost == 100
    (restored,) = headwater.restore(url, tmp_path / "restored")
    assert (restored.events, restored.lost) == (300, 100)
    with headwater.open(tmp_path / "restored") as hw:
        assert (hw.describe("t").events, hw.describe("t").lost) == (300, 100)
    (cut,) = headwater.restore(url, tmp_path / "cut", topic="t", to=150)
    assert (cut.events, cut.lost) == (100, 50)


def test_a_replica_tells_of_the_loss(tmp_path: Path) -> None:
    with_losses(tmp_path / "data")
    info = headwater.replicate(tmp_path / "data", tmp_path / "copy", once=True)
    assert (info.lost, [log.lost for log in info.logs]) == (100, [100])
    with headwater.open(tmp_path / "copy") as hw:
        assert (hw.describe("t").events, hw.describe("t").lost) == (300, 100)
