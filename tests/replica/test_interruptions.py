"""Whatever stops either side, or the network, at any moment: a replica goes on without a gap or a double."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater
from tests.api.proxy import proxied
from tests.replica.copies import Program, copy_once, end_of, facts, replicating, same, wait_for_events
from tests.server.process import ServerProcess
from tests.server.serving import serving
from tests.waiting import wait_for

WRITER = """
import sys, time, headwater
with headwater.open(sys.argv[1]) as hw:
    print("ready", flush=True)
    for n in range(1000000):
        hw.append("t", f"{sys.argv[2]} {n}", key=f"k{n % 50}", type="one", producer=(sys.argv[2], 0, 2 * n))
        hw.append_many("t", [b"x" * 100] * 50, keys=[f"k{i}" for i in range(50)], producer=(sys.argv[2], 0, 2 * n + 1))
        if n % 20 == 0:
            hw.append("huge", iter([b"h" * 1_200_000]), key=sys.argv[2])
            with hw.transaction() as tx:
                tx.append("t", "both", key="a")
                tx.append("huge", "both")
        time.sleep(0.02)  # so that this machine can do the rest
"""


def make(path: Path) -> None:
    with headwater.open(path) as hw:
        hw.create("t", partitions=3, segment_bytes=65_536)
        hw.create("huge")


@contextmanager
def writing(path: Path | str, count: int = 2) -> Iterator[None]:
    """Processes that append to a log for the time of a block."""
    commands = [[sys.executable, "-c", WRITER, str(path), f"w{n}"] for n in range(count)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        yield
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


@contextmanager
def following(source: Path | str, replica: Path) -> Iterator[None]:
    """Copy for the time of a block; who is in it may stop the source."""
    options: dict[str, Any] = {"retry": 0.2} if isinstance(source, str) else {}
    with headwater.open(source, **options) as hw, replicating(hw.replication(), replica):
        yield


def caught_up(source: Path, replica: Path) -> None:
    for topic in ("t", "huge"):
        wait_for_events(replica, topic, end_of(source, topic))


def settled(path: Path) -> None:
    """Bring into order what killed writers have left, so that what is there is what is compared."""
    with headwater.open(path) as hw:
        for topic in hw.topics():
            hw.sync(topic)


@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.torture)])
def test_a_replica_that_is_killed_again_and_again_while_others_write(kills: int, tmp_path: Path) -> None:
    source, replica = tmp_path / "source", tmp_path / "replica"
    make(source)
    pauses = random.Random(7)
    with writing(source):
        for _ in range(kills):
            before = end_of(replica, "t")
            program = Program(source, replica)
            wait_for_events(replica, "t", before + pauses.choice((1, 50, 200, 500)))
            program.kill()
    settled(source)
    copy_once(source, replica)
    assert same(source, replica) > 100


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.torture)])
def test_a_server_that_is_killed_and_started_again(kills: int, tmp_path: Path) -> None:
    source, replica = tmp_path / "source", tmp_path / "replica"
    make(source)
    server = ServerProcess(source)
    try:
        with following(server.url, replica):
            with writing(source, 1):
                for _ in range(kills):
                    wait_for_events(replica, "t", end_of(replica, "t") + 100)
                    server.kill()
                    server = ServerProcess(source, port=server.port)
            settled(source)
            caught_up(source, replica)
    finally:
        server.stop()
    assert same(source, replica) > 100


@pytest.mark.parametrize("cuts", [2, pytest.param(12, marks=pytest.mark.torture)])
def test_a_network_that_cuts_connections(cuts: int, tmp_path: Path) -> None:
    source, replica = tmp_path / "source", tmp_path / "replica"
    make(source)
    with serving(source) as server, proxied(server, "random", seed=3) as proxy:
        proxy.budgets = (900, 3_000, 20_000, 3_000_000)
        with following(proxy.url, replica):
            with writing(source, 1):
                wait_for_events(replica, "t", 500)
                wait_for(lambda: proxy.cuts >= cuts)
            settled(source)
            proxy.mode = "pass"
            caught_up(source, replica)
    assert same(source, replica) > 500


def test_retention_and_sealing_at_the_source_while_it_is_copied(tmp_path: Path) -> None:
    source, replica = tmp_path / "source", tmp_path / "replica"
    make(source)
    with headwater.open(source) as hw:
        hw.retain("t", retention_segments=20)
        with following(source, replica):
            with writing(source, 1):
                for _ in range(2):
                    wait_for_events(replica, "t", 300)
                    hw.seal("t")
                    hw.retain("t", retention_segments=4)
                    wait_for_events(replica, "huge", end_of(replica, "huge") + 1)
            settled(source)
            caught_up(source, replica)
    with headwater.open(source) as there, headwater.open(replica) as here:
        for partition in range(3):
            start = there.describe("t").partitions[partition].start
            assert here.describe("t").partitions[partition].start <= start
            found = [facts(event) for event in here.read("t", partition=partition, start=start)]
            assert found == [facts(event) for event in there.read("t", partition=partition, start=start)]
        assert not here.check().damaged


def test_a_source_that_never_answered_is_told_of_at_once(tmp_path: Path) -> None:
    with pytest.raises(headwater.Unavailable):
        copy_once("http://127.0.0.1:1", tmp_path / "replica")
    assert not (tmp_path / "replica" / "headwater.json").exists()


def test_a_replica_waits_for_a_source_that_it_has_copied_before(tmp_path: Path) -> None:
    source, replica = tmp_path / "source", tmp_path / "replica"
    make(source)
    server = ServerProcess(source)
    copy_once(server.url, replica)
    server.stop()
    with headwater.open(source) as hw:
        hw.append("huge", "news")
    with following(server.url, replica):
        wait_for(lambda: headwater.replica(replica).state == "unreachable")
        server = ServerProcess(source, port=server.port)
        try:
            wait_for_events(replica, "huge", 1)
            wait_for(lambda: headwater.replica(replica).state == "copying")
        finally:
            server.stop()
    same(source, replica)
