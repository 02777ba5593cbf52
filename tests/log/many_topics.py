"""A program that works on very many topics with few descriptors, and prints its figures as JSON.

`python many_topics.py DIRECTORY TOPICS DESCRIPTORS`. What it does is checked here; how much it took, by the test.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from pathlib import Path

import headwater
from headwater.limits import PARTITIONS_MAX
from headwater.opening import directory_parts
from headwater.replication.replicator import Replicator
from headwater.store import Store
from tests.log.unsynced import UnsyncedDisk, open_unsynced
from tests.waiting import wait_for

FEW = 60  # topics of one transaction
WAIT_S = 60.0


def own_bytes(pid: int | str = "self") -> int:
    """Memory of a process alone, without the pages of files."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * resource.getpagesize()


class Figures:
    """What it took so far."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.bytes: dict[str, int] = {}
        self.files_max = self.bytes_max = 0
        self.bytes_first = 0
        self._began_s = time.monotonic()

    def look(self) -> None:
        self.files_max = max(self.files_max, len(os.listdir("/proc/self/fd")))
        self.bytes_max = max(self.bytes_max, own_bytes())

    def done(self, step: str) -> None:
        self.look()
        now_s = time.monotonic()
        self.seconds[step] = round(now_s - self._began_s, 2)
        self.bytes[step] = own_bytes()
        self._began_s = now_s


class Listener:
    """Two threads that live on early topics all the time: a follower and a member of a consumer."""

    def __init__(self, hw: Store) -> None:
        self.followed: list[bytes | None] = []
        self.consumed: list[bytes | None] = []
        self.stream = hw.follow("early.followed", start="earliest")
        self.member = hw.consumer("early", "early.consumed")
        self._threads = [threading.Thread(target=each) for each in (self._follow, self._consume)]
        for thread in self._threads:
            thread.start()

    def _follow(self) -> None:
        for event in self.stream:
            self.followed.append(event.data)

    def _consume(self) -> None:
        for event in self.member:
            self.consumed.append(event.data)
            self.member.ack(event)

    def stop(self, last: bytes) -> None:
        """End both when the last event has come to them."""
        wait_for(lambda: self.consumed[-1:] == self.followed[-1:] == [last])
        self.stream.stop()
        self.member.stop()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        self.member.close()


def main(path: Path, count: int) -> Figures:
    figures = Figures()
    names = [f"topic.{number:05}" for number in range(count)]
    with open_unsynced(path / "data") as hw:
        for name in ("early.followed", "early.consumed"):
            hw.create(name)
        listener = Listener(hw)
        said: list[bytes] = []
        for number, name in enumerate(names):
            assert hw.append(name, b"first %d" % number).offset == 0
            if number % 50 == 0:
                said.append(b"%d" % number)
                hw.append("early.followed", said[-1])
                hw.append("early.consumed", said[-1])
                figures.look()
            if number == 200:
                figures.bytes_first = own_bytes()
        figures.done("append")
        for number, name in enumerate(names):
            assert hw.append(name, b"second %d" % number).offset == 1
        figures.done("append again")
        read(hw, names)
        figures.done("read")
        assert all(hw.describe(name).events == 2 for name in names)
        figures.done("info")
        assert [info.name for info in hw.consumers()] == ["early"]
        figures.done("consumers")
        pause_all(hw, names, figures)
        figures.done("read all at once")
        spread(hw, min(count, PARTITIONS_MAX))
        figures.done("partitions")
        with hw.transaction() as tx:
            for name in names[:FEW]:
                tx.append(name, b"third")
        assert len(tx.refs) == FEW
        figures.done("transaction")
        for name in names:
            assert hw.retain(name, retention_bytes=1 << 30) == []
        figures.done("retain")
        assert sum(hw.seal(name) for name in names[:: max(1, count // 200)]) >= min(count, 200)
        report = hw.check()
        assert (report.findings, report.topics) == ([], count + 3)
        figures.done("check")
        assert hw.reindex() >= min(count, 200)
        figures.done("reindex")
        said.append(b"last")
        for name in ("early.followed", "early.consumed"):
            hw.append(name, b"last")
        listener.stop(b"last")
        assert listener.followed == listener.consumed == said
        replicate(hw, path / "replica", names)
        figures.done("replicate")
    return figures


def read(hw: Store, names: list[str]) -> None:
    for number, name in enumerate(names):
        assert [event.data for event in hw.read(name)] == [b"first %d" % number, b"second %d" % number]


def pause_all(hw: Store, names: list[str], figures: Figures) -> None:
    """Read all topics at once, one event of each at a time; the half of them backwards."""
    readers = [hw.read(name, reverse=number % 2 == 1) for number, name in enumerate(names)]
    for first, second in ((b"first", b"second"), (b"second", b"first")):
        for number, reader in enumerate(readers):
            assert next(reader).data == (b"%s %d" % (second if number % 2 else first, number))
        figures.look()


def spread(hw: Store, partitions: int) -> None:
    """Append to all partitions of one topic, read them in the order of time, and consume them."""
    hw.create("wide", partitions=partitions)
    for number in range(partitions):
        hw.append("wide", b"%d" % number, partition=number)
    found = [(event.partition, event.data) for event in hw.read("wide")]
    assert found == [(number, b"%d" % number) for number in range(partitions)]
    drained = hw.drain("wide", "wide", lambda _: None)
    assert (drained.handled, drained.more) == (partitions, False)
    hw.forget("wide", "wide")


def replicate(hw: Store, path: Path, names: list[str]) -> None:
    Replicator(hw.replication(), path, directory_parts, address="here", disk=UnsyncedDisk()).run(once=True)
    with headwater.open(path) as replica:
        assert replica.topics() == hw.topics()
        for number, name in enumerate(names[:: max(1, len(names) // 100)]):
            assert next(replica.read(name)).data == b"first %d" % (number * max(1, len(names) // 100))


if __name__ == "__main__":
    limit = int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    sys.stdout.write(json.dumps(vars(main(Path(sys.argv[1]), int(sys.argv[2])))))
