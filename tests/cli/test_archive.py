"""`headwater archive`, `restore` and `check` of an archive, on the command line; once on a real object store."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import headwater
from tests.cli.conftest import Run

EVENTS = 60


@pytest.fixture
def filled(data: Path) -> Path:
    with headwater.open(data, durability="os") as hw:
        hw.create("t", segment_bytes=4096)
        for number in range(EVENTS):
            hw.append("t", b"%d" % number * 100, key=f"k{number % 3}")
    return data


@pytest.fixture
def archive_url(tmp_path: Path) -> str:
    return f"objects://{tmp_path / 'archive'}"


def test_from_archive_to_restore_on_a_real_object_store(run: Run, filled: Path, s3_url: str, tmp_path: Path) -> None:
    before = run("read", filled, "t", "--json").out
    run("append", filled, "böse/Namen %2F", "odd")
    (told,) = run("archive", filled, s3_url, "--once", "--seal", "--json").objects
    assert told["archived"][-1]["end"] == EVENTS
    assert told["lag"] == {"events": 0, "segments": 0}
    assert run("archive", filled, "--once").lines[0].startswith("✓ everything is already archived")
    run("append", filled, "t", "local")
    assert len(run("retain", filled, "t", "--segments", "1", "--json").objects[0]["deleted"]) > 1
    shown = run("info", filled).out
    assert s3_url in shown
    assert "archived" in shown
    assert run("read", filled, "t", "--to", str(EVENTS), "--json").out == before
    assert run("check", filled, "--archive").lines[-1].startswith("✓ all good in the archive: 2 topics")
    assert run("check", s3_url).lines[-1].startswith("✓ all good: 2 topics")
    restored = run("restore", s3_url, tmp_path / "back", "--topic", "t", "--to", "37").lines
    assert "restored 37 events" in restored[-1]
    assert run("read", tmp_path / "back", "t", "--json").lines == before.splitlines()[:37]
    assert run("check", tmp_path / "back").lines[-1].startswith("✓ all good")
    run("restore", s3_url, tmp_path / "all")
    assert run("read", tmp_path / "all", "böse/Namen %2F", "--raw").out == "odd\n"


def test_damage_in_an_archive_is_shown_and_ends_with_1(
    run: Run, filled: Path, archive_url: str, tmp_path: Path
) -> None:
    run("archive", filled, archive_url, "--once")
    damaged = min((tmp_path / "archive").rglob("*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for words in ((archive_url,), (filled, "--archive")):
        out = run("check", *words, code=1).out
        assert "it is cut short" in out
        assert damaged.name in out
    (told,) = run("check", filled, "--archive", "--json", code=1).objects
    assert (told["ok"], told["findings"], len(told["archive"]["findings"])) == (False, [], 1)
    assert run("check", filled).lines[-1].startswith("✓ all good"), "what is in the archive is not fetched unasked"


def test_what_cannot_be_is_said(run: Run, filled: Path, archive_url: str, tmp_path: Path) -> None:
    assert "no archive" in run("archive", filled, "--once", code=1).err
    assert "no archive" in run("check", filled, "--archive", code=1).err
    assert "s3://bucket/prefix" in run("archive", filled, "ftp://host", "--once", code=1).err
    assert "is not an archive" in run("restore", archive_url, tmp_path / "back", code=1).err
    run("archive", filled, archive_url, "--once")
    assert (
        "exclusive" in run("restore", archive_url, tmp_path / "b", "--to", "1", "--to-time", "2025-03-01", code=2).err
    )
    assert "--topic" in run("restore", archive_url, tmp_path / "b", "--to", "1", code=1).err
    assert "already exists" in run("restore", archive_url, filled, code=1).err
    other = tmp_path / "other"
    run("append", other, "t", "x")
    assert "another log," in run("archive", other, archive_url, "--once", code=1).err


def test_restore_up_to_a_time_and_as_json(run: Run, filled: Path, archive_url: str, tmp_path: Path) -> None:
    run("archive", filled, archive_url, "--once", "--seal")
    events = run("read", filled, "t", "--json").objects
    (told,) = run("restore", archive_url, tmp_path / "back", "--to-time", events[20]["time"], "--json").objects
    end = told["logs"][0]["end"]
    assert 15 < end <= 20, "the times that are shown are of microseconds, and events may share one"
    assert run("read", tmp_path / "back", "t", "--json").objects == events[:end]


def test_an_archiver_follows_the_log_until_it_is_told_to_end(
    run: Run, filled: Path, archive_url: str, program: Sequence[str]
) -> None:
    command = [*program, "archive", str(filled), archive_url, "--seal", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ends: list[int] = []
        while not ends or ends[-1] < EVENTS:
            ends.append(json.loads(process.stdout.readline())["end"])
        with headwater.open(filled) as hw:
            for _ in range(60):
                hw.append("t", b"x" * 200, durability="os")
            finished = hw.directory._topics.live("t").logs[0].state().segment
        while ends[-1] < finished:
            ends.append(json.loads(process.stdout.readline())["end"])
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert ends == sorted(ends)
    assert run("check", archive_url).code == 0
