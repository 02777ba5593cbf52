"""Consumers of a bucket in several processes that are killed and stopped, on stores that lose requests and answers.

However that goes: every event is handled at least once, no fence has two owners, and cursors only grow, to the end.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.store import Store
from tests.bucket.chaos import chaotic
from tests.servers import Seaweed
from tests.waiting import wait_for

PROGRAM = Path(__file__).with_name("consuming.py")
PARTITIONS = 4
LEASE_MS = 800


class Members:
    """Processes that read as one consumer."""

    def __init__(self, path: Path, log: str, coordinator: str) -> None:
        self._path = path
        self._arguments = log, coordinator
        self._count = 0
        self.alive: list[subprocess.Popen[bytes]] = []

    def add(self, stop_at: int = -1) -> None:
        self._count += 1
        file = self._path / f"member-{self._count}"
        command = [sys.executable, str(PROGRAM), *self._arguments, str(file), str(LEASE_MS), str(stop_at)]
        self.alive.append(subprocess.Popen(command))
        wait_for(lambda: file.exists() and file.read_bytes())

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        self.alive.remove(process)
        process.kill()
        process.wait()

    def end(self) -> None:
        for process in self.alive:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.alive:
            assert process.wait(40) == 0

    def kill_all(self) -> None:
        for process in list(self.alive):
            self.kill(process)

    def notes(self, kind: str) -> list[list[str]]:
        """What all of them noted. A line that a kill cut off is left out."""
        files = sorted(self._path.glob("member-*"))
        lines = [line.split() for file in files for line in file.read_text().rpartition("\n")[0].splitlines()]
        return [words[1:] for words in lines if words[0] == kind]


@contextlib.contextmanager
def stage(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """The address of a log for the test, that for its members, and their coordinator."""
    if kind == "directory":
        yield (url := f"objects://{tmp_path}/objects"), url, "-"
        return
    seaweed: Seaweed = request.getfixturevalue("seaweed")
    prefix = os.urandom(8).hex()
    if kind == "dynamodb":
        table, endpoint = request.getfixturevalue("dynamodb_table"), request.getfixturevalue("dynamodb")
        coordinator = f"dynamodb://{table}?region=us-east-1&endpoint={endpoint}&create=true"
        yield (url := seaweed.url(prefix)), url, coordinator
        return
    with chaotic(seaweed.endpoint, seed=1, requests=0.05, answers=0.05) as proxy:
        yield seaweed.url(prefix), seaweed.url(prefix, proxy.endpoint), "-"


class Watched:
    """The cursors, looked at again and again: they never go back."""

    def __init__(self, hw: Store) -> None:
        self._hw = hw
        self._seen: defaultdict[int, int] = defaultdict(int)

    def lag(self) -> int:
        lag = 0
        infos = [info for info in self._hw.consumers("t") if info.name == "c"]
        for info in infos:
            assert info.cursor >= self._seen[info.partition], "a cursor went back"
            self._seen[info.partition] = info.cursor
            lag += info.lag
        return lag if infos else 1

    def catch_up(self) -> None:
        """Look until nothing waits, now and then: a look is several requests, for which the members wait."""
        pause = threading.Event()
        while self.lag():
            pause.wait(0.1)


def disturb(members: Members, chance: random.Random, *, kill: bool) -> None:
    """Kill one, or stop one for longer than its lease and let it wake up."""
    victim = chance.choice(members.alive)
    if kill:
        members.kill(victim)
        members.add()
    else:
        victim.send_signal(signal.SIGSTOP)
        time.sleep(LEASE_MS / 1000 * chance.uniform(1.5, 3.0))
        victim.send_signal(signal.SIGCONT)


def run(kind: str, request: pytest.FixtureRequest, tmp_path: Path, *, rounds: int, count: int, seed: int) -> Members:
    chance = random.Random(seed)
    with stage(kind, request, tmp_path) as (url, through, coordinator):
        given: Any = {"coordinator": None if coordinator == "-" else coordinator}
        members = Members(tmp_path, through, coordinator)
        with headwater.open(url, **given) as hw:
            assert isinstance(hw, Store)
            hw.create("t", partitions=PARTITIONS)
            watched = Watched(hw)
            try:
                for _ in range(3):
                    members.add()
                for number in range(rounds):
                    for event in range(count):
                        hw.append("t", b"%d" % event, partition=event % PARTITIONS)
                    watched.lag()
                    if number < rounds - 1:
                        disturb(members, chance, kill=bool(number % 2))
                watched.catch_up()
                members.end()
                assert [info.cursor for info in hw.consumers("t")] == [rounds * count // PARTITIONS] * PARTITIONS
            finally:
                members.kill_all()
    check(members, rounds * count // PARTITIONS)
    return members


def check(members: Members, end: int) -> None:
    owners: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for partition, fence, owner in members.notes("grant"):
        owners[partition, fence].add(owner)
    doubly = {place: found for place, found in owners.items() if len(found) > 1}
    assert not doubly, f"fences with two owners: {doubly}"
    granted = Counter((partition, fence) for partition, fence, _ in members.notes("grant"))
    assert max(granted.values()) == 1
    handled = {(int(partition), int(offset)) for partition, offset, _ in members.notes("event")}
    every = {(partition, offset) for partition in range(PARTITIONS) for offset in range(end)}
    assert handled == every


@pytest.mark.parametrize("kind", ["directory", "proxy"])
def test_every_event_is_handled_whoever_is_killed_or_stopped(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    members = run(kind, request, tmp_path, rounds=3, count=40, seed=7)
    assert len({owner for _, _, owner in members.notes("grant")}) > 1


@pytest.mark.parametrize("kind", ["directory", pytest.param("dynamodb", marks=pytest.mark.torture)])
def test_a_zombie_wakes_up_and_its_late_acks_are_refused(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with stage(kind, request, tmp_path) as (url, through, coordinator):
        given: Any = {"coordinator": None if coordinator == "-" else coordinator}
        members = Members(tmp_path, through, coordinator)
        with headwater.open(url, **given) as hw:
            assert isinstance(hw, Store)
            hw.append_many("t", [b"%d" % number for number in range(10)])
            watched = Watched(hw)
            try:
                members.add(stop_at=4)
                wait_for(lambda: ["0", "4", "1"] in members.notes("event"))
                members.add()
                watched.catch_up()
                assert hw.consumers("t")[0].fence == 2
                members.alive[0].send_signal(signal.SIGCONT)
                wait_for(lambda: members.notes("refused"))
                assert members.notes("refused")[0] == ["0", "4"]
                watched.lag()
                members.end()
                assert hw.consumers("t")[0].cursor == 10
            finally:
                members.kill_all()
    owners = {(partition, fence): owner for partition, fence, owner in members.notes("grant")}
    assert len(owners) == len(members.notes("grant")) >= 2
    assert {int(offset) for _, offset, _ in members.notes("event")} == set(range(10))


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["directory", "proxy", "dynamodb"])
@pytest.mark.parametrize("seed", range(3))
def test_every_event_is_handled_for_long(kind: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    run(kind, request, tmp_path, rounds=20, count=200, seed=seed)
