from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headwater
from headwater.cli import show
from tests.cli.conftest import Run


@pytest.fixture
def filled(data: Path) -> Path:
    """A log whose topic `t` has four finished segments of two events, and one event more."""
    with headwater.open(data) as hw:
        hw.create("t")
        for number in range(9):
            hw.append("t", b"event %d" % number)
            if number % 2:
                hw.directory._topics.live("t").logs[0].roll(tell=False)
    return data


def starts(data: Path) -> list[int]:
    with headwater.open(data, mode="existing") as hw:
        return [partition.start for partition in hw.describe("t").partitions]


def test_retain_changes_what_is_kept_and_tells_what_it_deleted(run: Run, filled: Path) -> None:
    lines = run("retain", filled, "t", "--segments", "3", "--bytes", "1GB", "--age", "7d").lines
    assert lines[:3] == ["retention bytes     953.7 MiB", "retention segments  3", "retention age       7d"]
    assert [line.split()[:3] for line in lines[-3:-1]] == [["0", "0..1", "2"], ["0", "2..3", "2"]]
    assert lines[-1].startswith("✓ deleted 2 segments of topic t (")
    assert starts(filled) == [4]
    assert run("retain", filled, "t").lines[-1] == "✓ topic t has nothing to delete"
    lines = run("retain", filled, "t", "--segments", "0", "--bytes", "0", "--age", "0s").lines
    assert lines == ["everything is kept", "✓ topic t has nothing to delete"]


def test_a_dry_run_changes_nothing(run: Run, filled: Path) -> None:
    lines = run("retain", filled, "t", "--segments", "2", "--dry-run").lines
    assert lines[0] == "retention segments  2"
    assert "Nothing was changed. Without --dry-run, 3 segments of topic t (" in lines[-1]
    assert starts(filled) == [0]
    assert run("retain", filled, "t").lines[0] == "everything is kept"


def test_before_is_an_offset_or_a_time(run: Run, filled: Path) -> None:
    (told,) = run("retain", filled, "t", "--before", "5", "--json").objects
    assert (told["retention"], told["dry_run"]) == ({}, False)
    assert [(each["partition"], each["first"], each["end"]) for each in told["deleted"]] == [(0, 0, 2), (0, 2, 4)]
    soon = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    (told,) = run("retain", filled, "t", "--before", soon, "--json").objects
    assert [each["end"] for each in told["deleted"]] == [6, 8]
    assert "an offset or a time" in run("retain", filled, "t", "--before", "earliest", code=2).err
    assert run("retain", filled, "t", "--before=-1h").lines[-1] == "✓ topic t has nothing to delete"
    run("create", filled, "p", "--partitions", "2")
    assert "give --partition, or a time" in run("retain", filled, "p", "--before", "5", code=1).err
    run("retain", filled, "p", "--before", "5", "--partition", "1")


def test_overflow_needs_a_hard_bound(run: Run, filled: Path) -> None:
    error = run("retain", filled, "t", "--overflow", "refuse", code=1).err
    assert error == "error: overflow 'refuse' needs a hard limit — give --hard-bytes, or --overflow delete\n"
    lines = run("retain", filled, "t", "--consumers", "--hard-bytes", "1KiB", "--overflow", "refuse").lines
    assert lines[:3] == ["retention consumers   yes", "retention bytes hard  1.0 KiB", "overflow              refuse"]
    lines = run("retain", filled, "t", "--no-consumers", "--hard-bytes", "0", "--overflow", "delete").lines
    assert lines[0] == "everything is kept"
    assert "topic_not_found" in run("retain", filled, "missing", "--json", code=1).err


def test_a_full_log_refuses_with_a_hint(run: Run, data: Path) -> None:
    options = ["--segment-bytes", "4096", "--hard-bytes", "2KB", "--overflow", "refuse"]
    run("create", data, "t", *options)
    run("append", data, "t", "x" * 3000, "--quiet")
    assert "is full" in run("append", data, "t", "y" * 3000, code=1).err
    assert "headwater retain" in run("append", data, "t", "y" * 3000, code=1).err
    run("retain", data, "t", "--hard-bytes", "1MB")
    run("append", data, "t", "y" * 3000, "--quiet")


def test_create_takes_what_a_topic_keeps(run: Run, data: Path) -> None:
    options = ["--retain-bytes", "1GB", "--retain-segments", "9", "--retain-age", "36h", "--retain-consumers"]
    run("create", data, "t", *options, "--hard-bytes", "2GB", "--overflow", "refuse")
    with headwater.open(data, mode="existing") as hw:
        assert hw.describe("t").settings == {
            "retention_bytes": 10**9,
            "retention_segments": 9,
            "retention_age_ms": 36 * 3_600_000,
            "retention_consumers": True,
            "retention_bytes_hard": 2 * 10**9,
            "overflow": "refuse",
        }
    lines = run("info", data, "t").lines
    assert "retention age         36h" in lines
    assert "oldest event          none" in lines


def test_info_tells_the_oldest_offset_and_its_time(run: Run, filled: Path) -> None:
    run("retain", filled, "t", "--segments", "1")
    with headwater.open(filled, mode="existing") as hw:
        oldest = next(hw.read("t"))
    lines = run("info", filled, "t").lines
    assert lines[-1].split()[:4] == ["t", "0", "8", "9"]
    assert any(line.startswith("oldest event") and show.local(oldest.time) in line for line in lines)
    (told,) = run("info", filled, "t", "--json").objects
    assert datetime.fromisoformat(told["topics"][0]["partitions"][0]["first_time"]) == oldest.time
    error = run("read", filled, "t", "--from", "3", code=1).err
    assert error == "error: topic 't', partition 0: offset 3 is gone; the oldest is 8 — read from earliest\n"


@pytest.mark.parametrize(("ms", "text"), [(0, "0ms"), (500, "500ms"), (90_000, "90s"), (7 * 86_400_000, "7d")])
def test_durations_are_shown_as_they_are_typed(ms: int, text: str) -> None:
    assert show.duration(ms) == text
