"""A replica can only be read, by whomever and however, until it is promoted; then it goes on where its source was."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.disk.disk import Clock
from headwater.opening import open_directory
from tests.replica.copies import PROGRAM, copy_once, events, replicating, wait_for_events
from tests.server.serving import serving


@pytest.fixture
def source_path(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    with headwater.open(path) as hw:
        hw.create("t", segment_bytes=8192)
        hw.create("u", partitions=2)
        for n in range(20):
            hw.append("t", f"event {n}", key=f"k{n}", producer=("shop", 0, n))
        hw.append("u", "one")
    return path


@pytest.fixture
def replica(source_path: Path, tmp_path: Path) -> Path:
    path = tmp_path / "replica"
    copy_once(source_path, path)
    return path


def transact(hw: Any) -> None:
    with hw.transaction() as tx:
        tx.append("t", "1")
        tx.append("u", "2", key="a")


def transact_one(hw: Any) -> None:
    with hw.transaction() as tx:
        tx.append("t", "1")


WRITES: dict[str, Callable[[Any], object]] = {
    "append": lambda hw: hw.append("t", "x"),
    "append to a new topic": lambda hw: hw.append("new", "x"),
    "append many": lambda hw: hw.append_many("u", ["x", "y"], keys=["a", "b"]),
    "append with a version": lambda hw: hw.append("t", "x", key="k1", expected_version=1),
    "append a stream": lambda hw: hw.append("t", iter([b"x" * 2_000_000])),
    "create": lambda hw: hw.create("new"),
    "delete": lambda hw: hw.delete("t"),
    "retain": lambda hw: hw.retain("t", before=5),
    "change": lambda hw: hw.retain("t", retention_segments=3),
    "transaction": transact,
    "transaction of one log": transact_one,
}


@pytest.mark.parametrize("opened", ["directory", "server"])
def test_nothing_is_written_to_a_replica(opened: str, replica: Path) -> None:
    before = events(replica, "t") + events(replica, "u")
    with (
        serving(replica) as server,
        headwater.open(str(replica) if opened == "directory" else server.url) as hw,
    ):
        for name, write in WRITES.items():
            with pytest.raises(headwater.Unavailable, match="is a replica of") as caught:
                write(hw)
            assert caught.value.code == "replica", name
            assert "headwater promote" in caught.value.hint
        assert hw.topics() == ["t", "u"]
        assert len(list(hw.read("t"))) == 20
    assert events(replica, "t") + events(replica, "u") == before


def test_a_stream_is_refused_before_it_is_read(replica: Path) -> None:
    read: list[bytes] = []

    def pieces() -> Iterator[bytes]:
        read.append(b"x")
        yield b"x"

    with headwater.open(replica) as hw, pytest.raises(headwater.Unavailable):
        hw.append("t", pieces())
    assert not read


def test_plain_http_and_the_command_line_are_refused_too(replica: Path) -> None:
    with serving(replica) as server:
        answer = server.http.post("/topic/t/items", content=b"x")
        assert (answer.status_code, answer.json()["code"]) == (503, "replica")
        answer = server.http.post("/api/events?type=a", content=b"x")
        assert (answer.status_code, answer.json()["code"]) == (503, "replica")
    ran = subprocess.run([*PROGRAM, "append", str(replica), "t", "x"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "headwater promote" in ran.stderr


def test_a_replica_is_consumed_followed_and_viewed(replica: Path, source_path: Path) -> None:
    with headwater.open(source_path) as there, headwater.open(replica) as here:
        with here.consumer("billing", "t", timeout=0) as consumer:
            for event in consumer:
                consumer.ack(event)
        assert here.consumers("t")[0].lag == 0
        with replicating(there.replication(), replica), here.follow("t", timeout=20) as follow:
            there.append("t", "news")
            assert next(follow).value == "news"
        assert here.consumers("t")[0].lag == 1


def test_an_event_that_keeps_failing_here_is_not_set_aside(replica: Path) -> None:
    with headwater.open(replica) as hw:
        with hw.consumer("billing", "t", timeout=0, failures_max=1) as consumer:
            event = next(iter(consumer))
            with pytest.raises(headwater.Unavailable, match="is a replica of"):
                consumer.fail(event, "no")
        with (
            hw.consumer("billing", "t", timeout=0, failures_max=1) as consumer,
            pytest.raises(headwater.Unavailable, match="is a replica of"),
        ):
            next(iter(consumer))
        assert hw.consumers("t")[0].cursor == 0
        hw.seek("billing", "t", 1)
        with hw.consumer("billing", "t", timeout=0) as consumer:
            assert next(iter(consumer)).offset == 1
        assert hw.topics() == ["t", "u"]


def test_others_who_have_it_open_may_write_as_soon_as_it_is_promoted(replica: Path) -> None:
    program = """
import sys, headwater
with headwater.open(sys.argv[1]) as hw:
    try:
        hw.append("t", "too early")
    except headwater.Unavailable as error:
        print(error.code, flush=True)
    sys.stdin.readline()
    print(hw.append("t", "now").offset, hw.create("new"), flush=True)
"""
    command = [sys.executable, "-c", program, str(replica)]
    with (
        headwater.open(replica) as hw,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
    ):
        assert other.stdin is not None
        assert other.stdout is not None
        with pytest.raises(headwater.Unavailable):
            hw.append("t", "too early")
        assert other.stdout.readline() == "replica\n"
        headwater.promote(replica)
        other.stdin.write("\n")
        other.stdin.close()
        assert other.stdout.readline() == "20 True\n"
        assert hw.append("t", "here too").offset == 21
        transact(hw)
        hw.delete("u")
        assert not hw.check().damaged


def test_offsets_and_times_go_on_even_if_the_clock_here_is_behind(replica: Path) -> None:
    class Behind(Clock):
        def ticks(self) -> int:
            return super().ticks() - 3600 * 10_000_000

    headwater.promote(replica)
    last = events(replica, "t")[-1]
    with open_directory(replica, clock=Behind()) as hw:
        ref = hw.append("t", "next")
        assert (ref.offset, ref.ticks) == (20, last[3] + 1)
        (event,) = hw.read("t", start=ref.id)
        assert event.value == "next"


@pytest.mark.parametrize("sealed", [False, True])
def test_producers_go_on_after_promotion(sealed: bool, source_path: Path, tmp_path: Path) -> None:
    """Also those whose stamps the source has packed away, and whose last requests came as they were made."""
    replica = tmp_path / "replica"
    with headwater.open(source_path) as there:
        if sealed:
            there.seal("t")
        first = there.append("t", "seen before", producer=("other", 3, 1))
        if sealed:
            there.seal("t")
            there.append("t", "in the active segment")
        copy_once(source_path, replica)
        live = there.append("t", "live", producer=("shop", 0, 20))
    copy_once(source_path, replica)
    headwater.promote(replica)
    with headwater.open(replica) as hw:
        again = hw.append("t", "seen before", producer=("other", 3, 1))
        assert (again.offset, again.id) == (first.offset, first.id)
        again = hw.append("t", "live", producer=("shop", 0, 20))
        assert (again.offset, again.id) == (live.offset, live.id)
        assert hw.append("t", "event 19", key="k19", producer=("shop", 0, 19)).offset == 19
        with pytest.raises(headwater.Fenced):
            hw.append("t", "x", producer=("other", 2, 9))
        with pytest.raises(headwater.Conflict, match="no longer kept"):
            hw.append("t", "x", producer=("shop", 0, 1))
        end = hw.describe("t").partitions[0].end
        assert hw.append("t", "next", producer=("shop", 0, 21)).offset == end
        assert not hw.check().damaged


def test_a_request_that_was_not_copied_is_not_answered_as_if_it_were(source_path: Path) -> None:
    """What the source remembers of producers may be of events that came after those that are here."""
    from headwater.replication.replicator import _up_to

    with headwater.open(source_path) as hw:
        known = hw.directory.partition_log("t", 0).producers()[1]
    kept = _up_to(known, 18)
    assert [answer.offset for answer in kept["shop"].answers] == [15, 16, 17]
    assert _up_to(known, 3) == {}


def test_it_is_not_promoted_while_somebody_copies_to_it(source_path: Path, tmp_path: Path) -> None:
    replica = tmp_path / "replica"
    with headwater.open(source_path) as there:
        with replicating(there.replication(), replica):
            wait_for_events(replica, "t", 20)
            with pytest.raises(headwater.Unavailable, match="replicating") as caught:
                headwater.promote(replica)
            assert caught.value.code == "replicating"
            with pytest.raises(headwater.Unavailable) as caught:
                copy_once(source_path, replica)
            assert caught.value.code == "replicating"
        headwater.promote(replica)


def test_it_is_never_copied_to_again_after_it_was_promoted(source_path: Path, replica: Path) -> None:
    headwater.promote(replica)
    with pytest.raises(headwater.Conflict, match="new directory") as caught:
        copy_once(source_path, replica)
    assert caught.value.code == "promoted"
    with pytest.raises(headwater.Conflict) as caught:
        headwater.promote(replica)
    assert caught.value.code == "promoted"
    assert headwater.replica(replica).state == "promoted"


def test_only_a_replica_of_this_source_is_copied_to(source_path: Path, replica: Path, tmp_path: Path) -> None:
    with headwater.open(tmp_path / "other") as hw:
        hw.append("t", "x")
    with pytest.raises(headwater.Conflict) as caught:
        copy_once(tmp_path / "other", replica)
    assert caught.value.code == "other_source"
    with pytest.raises(headwater.Conflict) as caught:
        copy_once(source_path, tmp_path / "other")
    assert caught.value.code == "not_a_replica"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(headwater.Invalid, match="letter"):
        copy_once(source_path, tmp_path / "mine")
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["letter.txt"]
    with pytest.raises(headwater.NotFound) as missing:
        headwater.promote(source_path)
    assert missing.value.code == "not_a_replica"


def test_a_replica_of_a_replica_follows_it(source_path: Path, replica: Path, tmp_path: Path) -> None:
    copy_once(replica, tmp_path / "second")
    with headwater.open(source_path) as hw:
        hw.append("t", "news")
    copy_once(source_path, replica)
    copy_once(replica, tmp_path / "second")
    assert events(tmp_path / "second", "t") == events(source_path, "t")


def test_how_far_it_is_is_told(source_path: Path, replica: Path) -> None:
    info = headwater.replica(replica)
    assert (info.state, info.lag, info.promoted) == ("stopped", 0, None)
    assert info.source == str(source_path)
    assert datetime.fromisoformat(info.since) < datetime.fromisoformat(info.heard or "") < datetime.now(UTC)
    log = info.logs[0]
    assert (log.topic, log.partition, log.end, log.source_end) == ("t", 0, 20, 20)
    told = threading.Event()
    with headwater.open(source_path) as there, replicating(there.replication(), replica, told=lambda _: told.set()):
        assert told.wait(20)
        assert headwater.replica(replica).state == "copying"
    with pytest.raises(headwater.NotFound):
        headwater.replica(source_path)


def test_a_damaged_marker_is_not_taken_for_none(replica: Path) -> None:
    marker = replica / "replica.json"
    marker.write_bytes(marker.read_bytes().replace(b'"format":1', b'"format":9'))
    with pytest.raises(headwater.Corrupt, match=r"replica\.json"):
        headwater.open(replica)
