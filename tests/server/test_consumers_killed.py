"""Members on a server that are killed and stopped, as is the server: leases, fences, at least once, exactly once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

import headwater
from headwater.errors import Fenced, HeadwaterError, Unavailable
from headwater.protocols import Consumer
from headwater.store import Store
from tests.log.children import Child, Said, stop, stop_outside
from tests.server.process import ServerProcess
from tests.waiting import wait_for

PATIENCE_S = 30.0
LEASE_MS = 600
PARTITIONS = 4


@pytest.fixture
def local(path: Path) -> Iterator[Store]:
    """The directory, beside the server."""
    with headwater.open(path) as engine:
        yield engine


def opened(server: ServerProcess, **options: Any) -> Store:
    remote = headwater.open(server.url, **options)
    assert isinstance(remote, Store)
    return remote


def stop_for_good(server: ServerProcess) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(server.pid, signal.SIGCONT)
    server.stop()


class Watch:
    """Looks at the stored cursors, and notes who owned what."""

    def __init__(self, log: Store, topic: str) -> None:
        self._log = log
        self._topic = topic
        self.owners: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
        self.cursors: defaultdict[int, list[int]] = defaultdict(list)

    def look(self) -> int:
        """The lag of all partitions together."""
        infos = self._log.consumers(self._topic)
        for info in infos:
            if info.owner is not None:
                self.owners[info.partition, info.fence].add(info.owner)
            self.cursors[info.partition].append(info.cursor)
        return sum(info.lag for info in infos) if infos else -1

    def check(self) -> None:
        assert [fence for fence, owners in self.owners.items() if len(owners) > 1] == [], "a fence with two owners"
        for cursors in self.cursors.values():
            assert all(before <= after for before, after in pairwise(cursors)), "a cursor went back"


def note(file: Path, line: str) -> None:
    """Write a line down so that it survives the death of the process."""
    with file.open("a") as notes:
        notes.write(line + "\n")


def handle(url: str, file: Path) -> None:
    """Consume until killed, and note each event before it is acked."""
    with headwater.open(url, timeout=2.0, retry=20.0) as hw:
        assert isinstance(hw, Store)
        consumer = hw.consumer("c", "t", lease_ms=LEASE_MS, failures_max=100)
        while True:
            with contextlib.suppress(HeadwaterError):  # the server is away, or an ack came too late
                for event in consumer:
                    note(file, f"{event.partition} {event.offset}")
                    consumer.ack(event)


def test_three_members_lose_nothing_whoever_is_killed_or_stopped(path: Path, local: Store, tmp_path: Path) -> None:
    local.create("t", partitions=PARTITIONS)
    server = ServerProcess(path)
    file = tmp_path / "handled"
    random = Random(7)
    watch = Watch(local, "t")
    url = server.url
    members = [Child(lambda _: handle(url, file)) for _ in range(3)]
    try:
        for what in ("kill", "stop", "server", "kill"):
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                for partition in range(PARTITIONS):
                    local.append_many("t", [b"x"] * 5, partition=partition, durability="os")
                watch.look()
            number = random.randrange(3)
            if what == "kill":
                members[number].kill()
                members[number] = Child(lambda _: handle(url, file))
            elif what == "stop":
                os.kill(members[number].pid, signal.SIGSTOP)
                until = time.monotonic() + 2 * LEASE_MS / 1000
                while time.monotonic() < until:
                    watch.look()
                members[number].resume()
            else:
                server.kill()
                server = ServerProcess(path, port=server.port)
        wait_for(lambda: watch.look() == 0)
    finally:
        for member in members:
            member.kill()
        stop_for_good(server)
    watch.check()
    handled = {tuple(map(int, line.split())) for line in file.read_text().splitlines()}
    ends = {info.partition: info.end for info in local.describe("t").partitions}
    assert handled == {(partition, offset) for partition, end in ends.items() for offset in range(end)}
    assert len(watch.owners) > PARTITIONS, "nobody took over"
    assert "t.dead" not in local.topics()


def test_a_member_that_was_stopped_for_longer_than_its_lease_is_refused(path: Path, local: Store) -> None:
    local.append_many("t", [b"a", b"b", b"c"])
    server = ServerProcess(path)
    url = server.url

    def stop_in_the_midst(said: Said) -> str:
        with headwater.open(url) as hw:
            assert isinstance(hw, Store)
            with hw.consumer("c", "t", lease_ms=LEASE_MS, failures_max=100, timeout=0) as consumer:
                event = next(consumer)
                fence = consumer.fences[0]
                said.send(fence)
                stop()
                try:
                    consumer.ack(event)
                except Fenced:
                    refused = "fenced"
                else:
                    refused = "taken"
                left = [each.offset for each in consumer]  # of what it had received, nothing is handed out any more
                return f"{refused} {left}"

    try:
        child = Child(stop_in_the_midst)
        fence = child.hear()
        child.wait_until_stopped()
        with local.consumer("c", "t", timeout=PATIENCE_S, failures_max=100) as other:
            first = next(other)
            assert first.offset == 0
            assert other.fences[0] > fence
            child.resume()
            assert child.result() == "fenced []"
            other.ack(first)
            other.ack(*islice(other, 2))
        assert local.consumers("t")[0].cursor == 3
    finally:
        stop_for_good(server)


def test_a_server_that_was_stopped_for_longer_than_the_lease_refuses_acks(path: Path, local: Store) -> None:
    local.append_many("t", [b"a", b"b"])
    server = ServerProcess(path)
    try:
        with opened(server) as hw, hw.consumer("c", "t", lease_ms=LEASE_MS, failures_max=100) as consumer:
            event = next(consumer)
            stop_outside(server.pid, path / "consumers" / "c" / "t")
            with local.consumer("c", "t", timeout=PATIENCE_S, failures_max=100) as other:
                first = next(other)
                os.kill(server.pid, signal.SIGCONT)
                refused = acked_too_late(consumer, event)
                assert isinstance(refused, Fenced)
                other.ack(first)
            assert local.consumers("t")[0].cursor == 1
            assert next(consumer).offset == 1  # it has joined again
    finally:
        stop_for_good(server)


def acked_too_late(consumer: Consumer, event: Any) -> HeadwaterError | None:
    try:
        consumer.ack(event)
        consumer.flush()
    except HeadwaterError as error:
        return error
    return None


def test_a_client_goes_on_when_the_server_ends_and_begins_anew(path: Path, local: Store) -> None:
    local.append_many("t", [b"%d" % number for number in range(20)])
    server = ServerProcess(path)
    try:
        with opened(server) as hw, hw.consumer("c", "t", timeout=PATIENCE_S) as consumer:
            for event in islice(consumer, 10):
                consumer.ack(event)
            consumer.flush()
            in_hand = next(consumer)
            assert server.stop() == 0
            assert [info.owner for info in local.consumers("t")] == [None], "it was told to end, and gave up its leases"
            server = ServerProcess(path, port=server.port)
            again = [event.offset for event in islice(consumer, 10)]
            assert again == list(range(10, 20)), "what was not acked comes again"
            assert local.consumers("t")[0].failures == 0, "and has not failed"
            consumer.ack(in_hand)  # it came again, and is the same
            consumer.ack_to((0, 19))
            consumer.flush()
        assert local.consumers("t")[0].cursor == 20
    finally:
        server.stop()


def test_a_server_that_stays_away_is_told(path: Path, local: Store) -> None:
    local.append("t", b"a")
    server = ServerProcess(path)
    with opened(server, retry=0.3) as hw:
        consumer = hw.consumer("c", "t", timeout=PATIENCE_S, lease_ms=LEASE_MS)
        event = next(consumer)
        server.kill()
        with pytest.raises(Unavailable):
            next(consumer)
        with pytest.raises(Fenced):
            consumer.ack(event)
        consumer.close()


def move(url: str, said: Said | None) -> None:
    """Each event of `in` to `out`, with its ack."""
    with headwater.open(url, timeout=2.0, retry=20.0) as hw:
        assert isinstance(hw, Store)
        with hw.consumer("mover", "in", lease_ms=LEASE_MS, failures_max=100) as consumer:
            moved, done = 0, said is not None
            while True:
                with contextlib.suppress(Fenced, Unavailable):
                    for event in consumer if done else consumer.drain():
                        tx = hw.transaction()
                        tx.append("out", event.data or b"", key=event.key)
                        tx.append("audit", "moved")
                        tx.ack(event)
                        commit(tx)
                        moved += 1
                        if said is not None and moved == 20:
                            said.send("under way")
                    if not done:
                        return


def commit(tx: Any) -> None:
    while True:
        try:
            tx.commit()
        except Unavailable as error:
            if error.code == "transaction_in_doubt":
                continue
            raise
        return


def test_what_is_moved_in_transactions_is_moved_once_whoever_is_killed(path: Path, local: Store) -> None:
    count = 300
    local.create("in", partitions=2)
    local.append_many("in", [b"%d" % number for number in range(count)], keys=[b"%d" % n for n in range(count)])
    local.create("out")
    local.create("audit")
    server = ServerProcess(path)
    url = server.url
    try:
        for _ in range(2):
            child = Child(lambda said: move(url, said))
            child.hear()
            child.kill()
        stays = Child(lambda said: move(url, said))
        stays.hear()
        for _ in range(2):
            server.kill()
            server = ServerProcess(path, port=server.port)
        Child(lambda _: move(url, None)).result()
        wait_for(lambda: sum(info.lag for info in local.consumers("in")) == 0)
        stays.kill()
    finally:
        stop_for_good(server)
    moved = sorted(int(event.data or b"") for event in local.read("out"))
    assert moved == list(range(count))
    assert len(list(local.read("audit"))) == count
