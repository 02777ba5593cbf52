"""A source and its replica, and what must be the same in both."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headwater
from headwater.opening import directory_parts
from headwater.replication.replicator import Replicator
from tests.waiting import wait_for

if TYPE_CHECKING:
    from headwater.event import Event
    from headwater.replication.source import ReplicationSource

PROGRAM = (sys.executable, "-m", "headwater.cli")


def facts(event: Event) -> tuple[Any, ...]:
    """All that an event is."""
    data = event.data
    if event.blob is not None:  # it may be large, and there may be many
        data = hashlib.sha256(b"".join(event.blob.chunks())).digest()
    place = event.topic, event.partition, event.offset, event.ticks, event.id
    return *place, event.type, event.key, data, event.content, event.meta


def events(path: Path | str, topic: str, start: Any = "earliest") -> list[tuple[Any, ...]]:
    """All events of a topic."""
    with headwater.open(path, mode="existing") as hw:
        return [facts(event) for event in hw.read(topic, start=start)]


def same(source: Path, replica: Path) -> int:
    """Check that a replica has the topics and the events of its source, and is sound; returns how many events."""
    count = 0
    with headwater.open(source, mode="existing") as there, headwater.open(replica, mode="existing") as here:
        assert here.topics() == there.topics()
        for topic in there.topics():
            one, other = there.describe(topic), here.describe(topic)
            assert (one.uuid, one.settings) == (other.uuid, other.settings)
            found = [facts(event) for event in here.read(topic)]
            assert found == [facts(event) for event in there.read(topic)]
            count += len(found)
        report = here.check()
        assert not report.damaged, report.findings
    return count


def copy_once(source: Path | str, replica: Path, **options: Any) -> headwater.info.ReplicaInfo:
    return headwater.replicate(source, replica, once=True, **options)


@contextlib.contextmanager
def replicating(source: ReplicationSource, path: Path, **options: Any) -> Iterator[Replicator]:
    """Copy in a thread for the time of a block; whatever ends it otherwise is raised."""
    replicator = Replicator(source, path, directory_parts, address="the source", **options)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            replicator.run()
        except BaseException as error:  # noqa: BLE001  # it is raised where the block ends
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield replicator
    finally:
        replicator.stop()
        thread.join()
        if failed:
            raise failed[0]


class Program:
    """`headwater replicate` in a process of its own."""

    def __init__(self, source: Path | str, replica: Path, *options: str) -> None:
        command = [*PROGRAM, "replicate", str(source), str(replica), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Ask it to end; returns its code and what it said."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


def end_of(path: Path, topic: str) -> int:
    """How many events a topic of a directory had, all partitions together; 0 if it is not there yet."""
    try:
        with headwater.open(path, mode="existing") as hw:
            return _end(hw, topic)
    except headwater.NotFound:
        return 0


def wait_for_events(path: Path, topic: str, count: int) -> None:
    """Wait until so many events were appended to a topic of a directory."""
    wait_for((path / "headwater.json").exists)
    with headwater.open(path, mode="existing") as hw:
        wait_for(lambda: topic in hw.topics() and _end(hw, topic) >= count)


def _end(hw: headwater.Store, topic: str) -> int:
    return sum(hw.partition_log(topic, number).end() for number in range(hw.topic(topic).partitions))
