"""The access log: what its lines tell, and what they never do."""

from __future__ import annotations

import errno
import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.disk.disk import Disk
from headwater.event import ticks_of
from headwater.server import accesslog
from headwater.server.accesslog import AccessLog, RequestRecord, line_of
from tests.waiting import wait_for


def access(**changes: Any) -> RequestRecord:
    usual = RequestRecord(
        ticks=0x1F0C3F0E0000000,
        client="127.0.0.1",
        user="ann",
        method="GET",
        target="/topic/orders/items?from=0",
        route="/topic/{name}/items",
        status=200,
        bytes_in=0,
        bytes_out=17,
        seconds=0.0012345,
    )
    return usual._replace(**changes)


def note(log: AccessLog, target: str = "/topics") -> None:
    log.note("127.0.0.1", "ann", "GET", target, "/topics", 200, 0, 17, 0.001)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def test_a_line_tells_who_asked_for_what_and_what_came_of_it() -> None:
    told = json.loads(line_of(access(ticks=ticks_of(datetime(2026, 3, 1, 9, 30, 0, 123_999, tzinfo=UTC)))))
    assert told.pop("time") == "2026-03-01T09:30:00.123Z"
    assert told == {
        "client": "127.0.0.1",
        "user": "ann",
        "method": "GET",
        "path": "/topic/orders/items",
        "query": "from=0",
        "route": "/topic/{name}/items",
        "status": 200,
        "bytes_in": 0,
        "bytes_out": 17,
        "ms": 1.234,
    }


@pytest.mark.parametrize(
    "target",
    [
        "/topics?token=s3cret",
        "/topics?s3cret",
        "/topics?s3cret=",
        "/topics?type=a&access_token=s3cret&key=b",
        "/topics?%74oken=s3cret",
        "http://ann:s3cret@host/topics",
        "http://ann:s3cret@host",
        "/topics?type",
    ],
)
def test_secrets_in_the_address_are_not_written(target: str) -> None:
    line = line_of(access(target=target)).decode()
    assert "s3cret" not in line
    assert json.loads(line)["path"] in ("/topics", "/")


@given(st.text(st.characters(exclude_categories=[])), st.text(), st.text())
@example('/\n{"time":"forged"}', "", "\r\n")
@example("/\u2028\x1b[2J\x9b\x7f\ud800", "GET\n", "\u202e")
def test_no_request_can_forge_a_line_or_reach_a_terminal(target: str, method: str, user: str) -> None:
    line = line_of(access(target=target, method=method, user=user)).decode("utf-8")
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert len(line.splitlines()) == 1
    json.loads(line)


def test_lines_are_in_the_file_when_the_log_is_closed(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.log")
    for number in range(2500):
        note(log, f"/{number}")
    log.close()
    log.close()
    assert [line["path"] for line in lines(tmp_path / "access.log")] == [f"/{number}" for number in range(2500)]
    assert log.dropped == 0


def test_lines_are_written_soon_without_a_close(tmp_path: Path) -> None:
    written = threading.Event()

    class Told(Disk):
        def append(self, fd: int, data: bytes) -> None:
            super().append(fd, data)
            written.set()

    log = AccessLog(tmp_path / "access.log", Told())
    note(log)
    assert written.wait(10)
    assert len(lines(tmp_path / "access.log")) == 1
    log.close()


def test_the_file_is_only_added_to_and_not_for_everyone_to_read(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    for _ in range(2):
        log = AccessLog(path)
        note(log)
        log.close()
    assert len(lines(path)) == 2
    assert path.stat().st_mode & 0o007 == 0


class Slow(Disk):
    """A disk whose log cannot be written until it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.tried = threading.Event()
        self.fails = False

    def append(self, fd: int, data: bytes) -> None:
        self.tried.set()
        self.may.wait(30)
        if self.fails:
            os.write(fd, data[: len(data) // 2])  # as a disk does that becomes full
            raise OSError(errno.ENOSPC, "full")
        super().append(fd, data)


def test_what_the_queue_cannot_hold_is_dropped_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accesslog, "QUEUE_MAX", 5)
    disk = Slow()
    log = AccessLog(tmp_path / "access.log", disk)
    note(log, "/first")
    assert disk.tried.wait(10)  # it is taken from the queue, and its write hangs
    for _ in range(8):
        note(log)
    assert log.dropped == 3
    disk.may.set()
    log.close()
    written = lines(tmp_path / "access.log")
    assert [line.get("path") for line in written] == ["/first", *["/topics"] * 5, None]
    assert written[-1]["dropped"] == 3


def test_a_full_disk_costs_lines_and_not_the_server(tmp_path: Path) -> None:
    disk = Slow()
    disk.fails = True
    disk.may.set()
    log = AccessLog(tmp_path / "access.log", disk)
    note(log, "/lost")
    wait_for(lambda: log.dropped == 1)
    disk.fails = False
    note(log, "/kept")
    log.close()
    torn, *rest = (tmp_path / "access.log").read_text().splitlines()
    assert "/kept" not in torn
    assert [json.loads(line).get("path") for line in rest if line.endswith("}")] in ([None, "/kept"], ["/kept", None])
    assert sum(json.loads(line).get("dropped", 0) for line in rest if line.endswith("}")) == 1


def test_after_a_rotation_lines_go_to_the_new_file(tmp_path: Path) -> None:
    path, old = tmp_path / "access.log", tmp_path / "access.log.1"
    log = AccessLog(path)
    note(log, "/before")
    path.rename(old)
    log.reopen()
    wait_for(path.exists)
    note(log, "/after")
    log.close()
    assert [line["path"] for line in lines(old)] == ["/before"]
    assert [line["path"] for line in lines(path)] == ["/after"]


def test_a_file_that_cannot_be_opened_again_is_told_in_the_old_one(tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    directory.mkdir()
    log = AccessLog(directory / "access.log")
    directory.rename(tmp_path / "moved")
    log.reopen()
    wait_for(lambda: (tmp_path / "moved" / "access.log").stat().st_size > 0)
    note(log)
    log.close()
    notice, line = lines(tmp_path / "moved" / "access.log")
    assert "cannot be reopened" in notice["error"]
    assert line["path"] == "/topics"


def test_it_goes_to_standard_error_if_no_file_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    log = AccessLog(None)
    note(log)
    log.close()
    assert json.loads(capfd.readouterr().err)["path"] == "/topics"


def test_a_long_address_is_cut(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.log")
    note(log, "/" + "x" * 5000)
    log.close()
    assert len(lines(tmp_path / "access.log")[0]["path"]) == accesslog.TARGET_CHARS_MAX
