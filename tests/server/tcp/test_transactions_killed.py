"""A server that is killed while many connections commit transactions over three topics: each is whole, or not there."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

import headwater
from tests.server.process import ServerProcess
from tests.server.tcp.wire import Closed, Wire, frame
from tests.waiting import wait_for

TOPICS = ("orders", "stock", "money")
COMMITTERS = 6


class Committer(threading.Thread):
    """Commits one transaction after the other until its server goes away, and remembers what it was told."""

    def __init__(self, server: ServerProcess, name: str) -> None:
        super().__init__(name=name)
        self.address = server.tcp_url
        self.random = Random(name)
        self.acknowledged: list[tuple[str, list[dict[str, Any]]]] = []

    def run(self) -> None:
        try:
            client = Wire(self.address)
        except OSError:
            return
        try:
            client.connect()
            while True:
                self.transact(client)
        except (OSError, Closed, AssertionError):  # the last: a frame that was cut short
            return
        finally:
            client.close()

    def transact(self, client: Wire) -> None:
        """One to three events in each of the topics; all of them tell how many there are in all."""
        name = f"{self.name}-{len(self.acknowledged)}"
        topics = [topic for topic in TOPICS for _ in range(self.random.randrange(1, 4))]
        self.random.shuffle(topics)
        event = {"name": name, "events": len(topics)}
        emits = [{"sessID": 1, "streamName": topic, "eventType": "t", "event": event} for topic in topics]
        frames = [frame("EMIT", emit) for emit in emits]
        client.send(frame("STARTTX", {"sessID": 1}), *frames, frame("COMMITTX", {"sessID": 1}))
        told = [client.receive()[1] for _ in range(len(topics) + 2)]
        if not all(each["ok"] for each in told):
            raise RuntimeError(told)
        self.acknowledged.append((name, told[-1]["refs"]))


def kill_and_check(path: Path, seed: int, kills: int) -> int:
    """Kill the server so often; how many transactions were acknowledged."""
    random = Random(seed)
    committers: list[Committer] = []
    for number in range(kills):
        server = ServerProcess(path)
        try:
            living = [Committer(server, f"{seed}-{number}-{each}") for each in range(COMMITTERS)]
            for committer in living:
                committer.start()
            wait_for(lambda: sum(len(each.acknowledged) for each in living) >= 30)  # noqa: B023  # it is called at once
            time.sleep(random.random() * 0.1)  # else it would always be just after an acknowledgement
        finally:
            server.kill()
        for committer in living:
            committer.join()
        committers += living
        if number % 2:
            check(path, committers)
    check(path, committers)
    return sum(len(each.acknowledged) for each in committers)


def check(path: Path, committers: list[Committer]) -> None:
    """What was told is there, where it was told, and nothing is there in part."""
    with headwater.open(path) as hw:
        found = {(topic, event.offset): event for topic in TOPICS for event in hw.read(topic)}
    counts = Counter((event.value["name"], event.value["events"]) for event in found.values())
    for (name, events), there in counts.items():
        assert there == events, f"of {name}, {there} of {events} events are there"
    for committer in committers:
        for name, refs in committer.acknowledged:
            assert len(refs) == counts[name, len(refs)], f"{name} was acknowledged, and is not there"
            for ref in refs:
                event = found[ref["streamName"], ref["offset"]]
                assert (event.value["name"], event.id) == (name, ref["id"].as_uuid())


@pytest.mark.parametrize("seed", [1])
def test_after_kills_every_acknowledged_transaction_is_whole_and_none_is_there_in_part(
    tmp_path: Path, seed: int
) -> None:
    assert kill_and_check(tmp_path / "data", seed, kills=3) >= 90


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 5))
def test_the_same_for_many_kills(tmp_path: Path, seed: int) -> None:
    assert kill_and_check(tmp_path / "data", seed, kills=40) >= 1200
