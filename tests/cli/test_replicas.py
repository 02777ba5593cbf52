"""`headwater replicate`, `replica` and `promote`."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import headwater
from tests.cli.conftest import Run
from tests.replica.copies import Program, wait_for_events
from tests.server.process import served


def test_a_log_is_copied_looked_at_and_promoted(run: Run, data: Path, tmp_path: Path) -> None:
    replica = tmp_path / "replica"
    run("append", data, "orders", "one")
    run("append", data, "orders", "two")
    assert "2 offsets" in run("replicate", data, replica, "--once").out
    assert run("read", replica, "orders", "--json").out == run("read", data, "orders", "--json").out
    shown = run("replica", replica).out
    assert "stopped" in shown
    assert str(data) in shown
    (told,) = run("replica", replica, "--json").objects
    assert (told["state"], told["lag"], told["logs"][0]["end"]) == ("stopped", 0, 2)
    assert "headwater promote" in run("append", replica, "orders", "three", code=1).err
    assert "accepts appends" in run("promote", replica).out
    run("append", replica, "orders", "three")
    assert "promoted" in run("replica", replica).out
    assert "new directory" in run("replicate", data, replica, "--once", code=1).err
    assert "is not a replica" in run("replica", data, code=1).err


def test_what_is_not_copied_any_further_is_told(run: Run, data: Path, tmp_path: Path) -> None:
    replica = tmp_path / "replica"
    run("append", data, "orders", "one")
    run("append", data, "other", "one")
    run("replicate", data, replica, "--once", "--topic", "orders")
    assert run("topics", replica, "--json").objects[0]["topic"] == "orders"
    run("delete", data, "orders", "--yes")
    ran = run("replicate", data, replica, "--once", code=1)
    assert "--delete" in ran.err
    (told,) = run("replica", replica, "--json", code=1).objects
    assert "deleted at the source" in told["logs"][0]["trouble"]
    run("replicate", data, replica, "--once", "--delete")
    assert [topic["topic"] for topic in run("topics", replica, "--json").objects] == ["other"]


def test_it_follows_until_it_is_asked_to_end_and_says_how_it_is(data: Path, tmp_path: Path) -> None:
    replica = tmp_path / "replica"
    with headwater.open(data) as hw:
        hw.append("orders", "one")
        program = Program(data, replica, "--json")
        wait_for_events(replica, "orders", 1)
        hw.append("orders", "two")
        wait_for_events(replica, "orders", 2)
    code, out, err = program.stop(signal.SIGTERM)
    assert code == 0, err
    told = [json.loads(line) for line in out.splitlines()]
    assert told[-1]["state"] == "stopped"
    assert told[-1]["logs"][0]["end"] == 2


def test_no_secret_is_stored(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    users, replica = tmp_path / "users.json", tmp_path / "replica"
    token = run("auth", "add", users, "copier", "--token", "--scope", "read:orders").out.split()[-1]
    with headwater.open(tmp_path / "data") as hw:
        hw.append("orders", "one")
        hw.append("secret", "one")
    with served(tmp_path / "data", "--auth", str(users)) as server:
        run("replicate", server.url, replica, "--once", code=1)
        monkeypatch.setenv("HEADWATER_TOKEN", token)
        run("replicate", server.url, replica, "--once")
    assert [topic["topic"] for topic in run("topics", replica, "--json").objects] == ["orders"], "what it may read"
    for file in replica.rglob("*"):
        assert not file.is_file() or token.encode() not in file.read_bytes()
