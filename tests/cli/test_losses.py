"""Commands that pass over what a repair has cut out say so: in a directory, and on a server of its own process."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from tests.cli.conftest import Run
from tests.log.test_losses import WARNING, with_losses
from tests.server.process import served


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    """A directory that has lost 100 of 400 events."""
    with_losses(tmp_path / "data", "sealed")
    return tmp_path / "data"


@pytest.fixture
def server_url(lost: Path) -> Iterator[str]:
    with served(lost) as running:
        yield running.url


def test_check_counts_lost_events_apart(run: Run, lost: Path) -> None:
    ran = run("check", lost)
    assert "offsets 100 to 199 are lost" in ran.out
    assert ran.lines[-1].startswith("✓ no damage now: ")
    assert "300 events (100 more are lost)" in ran.lines[-1]
    (told,) = run("check", lost, "--json").objects
    assert (told["ok"], told["events"], told["lost"]) == (True, 300, 100)


def test_topics_and_info_tell_of_them(run: Run, lost: Path) -> None:
    assert run("topics", lost).lines[0].split()[:4] == ["topic", "partitions", "events", "lost"]
    assert run("topics", lost).lines[-1].split()[:4] == ["t", "1", "300", "100"]
    (topic,) = run("topics", lost, "--json").objects
    assert (topic["events"], topic["lost"]) == (300, 100)
    told = run("info", lost, "t").out
    assert "lost events   100" in told
    assert "lost t/0: offsets 100..199 were damaged and cut by repair" in told
    (info,) = run("info", lost, "--json").objects
    assert (info["events"], info["lost"], info["topics"][0]["partitions"][0]["lost"]) == (300, 100, [[100, 200]])


def test_a_sound_log_shows_no_losses(run: Run, data: Path) -> None:
    run("append", data, "t", "a")
    assert "lost" not in run("topics", data).out + run("info", data, "t").out + run("check", data).out


@pytest.mark.parametrize("options", [(), ("--from", "150"), ("--reverse",), ("--key", "a"), ("--type", "odd")])
def test_read_warns_on_standard_error(run: Run, lost: Path, options: tuple[str, ...]) -> None:
    ran = run("read", lost, "t", "--raw", *options)
    warning = WARNING.replace("100 to", "150 to") if "--from" in options else WARNING
    assert ran.err.count("are lost") == 1
    assert warning in ran.err
    assert len(ran.lines) == (300 if options in ((), ("--reverse",)) else 200 if "--from" in options else 150)
    told = run("read", lost, "t", "--json", *options).err
    assert json.loads(told) == {"warning": warning}


@pytest.mark.parametrize("options", [(), ("--from", "150"), ("--reverse",), ("--key", "a"), ("--type", "odd")])
def test_read_from_a_server_warns_as_well(run: Run, server_url: str, options: tuple[str, ...]) -> None:
    ran = run("read", server_url, "t", "--raw", *options)
    assert ran.err.count("are lost") == 1
    assert (WARNING.replace("100 to", "150 to") if "--from" in options else WARNING) in ran.err


def test_a_server_tells_of_them(run: Run, server_url: str) -> None:
    (topic,) = run("topics", server_url, "--json").objects
    assert (topic["events"], topic["lost"]) == (300, 100)
    with urllib.request.urlopen(f"{server_url}/topic/t") as answer:
        assert json.load(answer)["partitions"][0]["lost"] == [[100, 200]]
    assert "are lost" not in run("read", server_url, "t", "--to", "100", "--raw").err
    assert "are lost" not in run("read", server_url, "t", "--limit", "3", "--raw").err
    last = run("tail", server_url, "t", "-n", "300", "--json")
    assert (len(last.lines), last.err.count("are lost")) == (300, 1)


def test_following_a_server_warns(server_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with headwater.open(server_url) as hw:
        assert len(list(hw.follow("t", start=50, timeout=0.0))) == 250
    assert [record.getMessage() for record in caplog.records] == [WARNING]


def test_a_consumer_of_a_server_counts_them(server_url: str) -> None:
    with headwater.open(server_url) as hw, hw.consumer("c", "t", timeout=5.0) as consumer:
        assert consumer.drain(lambda _: None) == 300
        assert consumer.skipped == 100


def test_restore_and_replicate_tell_of_them(run: Run, lost: Path, tmp_path: Path) -> None:
    archive = f"objects://{tmp_path}/archive"
    run("archive", lost, archive, "--once")
    assert "no damage now" in run("check", archive).lines[-1]
    restored = run("restore", archive, tmp_path / "restored")
    assert f"restored 300 events to {tmp_path / 'restored'}; 100 events more were lost before" in restored.out
    copied = run("replicate", lost, tmp_path / "copy", "--once")
    assert "400 offsets" in copied.lines[-1]
    assert copied.lines[-1].endswith("100 events of them lost at the source")
    assert run("replica", tmp_path / "copy", "--json").objects[0]["lost"] == 100
    assert "lost at the source" in run("replica", tmp_path / "copy").out
