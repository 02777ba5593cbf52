"""Real processes that are killed: whatever they were told is there, in order and once, and a follower sees it all."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from zlib import crc32

import msgspec
import pytest

from headwater.event import Event
from headwater.opening import open
from tests.crash import processes
from tests.crash.processes import END, LIMITS, PARTITIONS, TOPIC, Seen, Told, data_of, origin_of

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([processes.__name__])


class Child:
    """A process, and what it tells."""

    def __init__(self, target: object, *args: object) -> None:
        self.channel, far_end = _context.Pipe(duplex=False)
        self.process: BaseProcess = _context.Process(target=target, args=(*args, far_end), daemon=True)  # type: ignore[arg-type]
        self.process.start()
        far_end.close()  # so that its death is the end of the channel

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class Crowd:
    """The writers and the follower, and all that they told."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._seed = seed
        self._next = 0
        self.told: list[Told] = []
        self.seen: dict[int, list[Seen]] = {partition: [] for partition in range(PARTITIONS)}
        self.writers: list[Child] = []
        self.follower = Child(processes.follow, path)

    def start_writer(self) -> None:
        self.writers.append(Child(processes.write, self._path, self._next, self._seed + self._next))
        self._next += 1

    def listen(self, acknowledgements: int) -> None:
        """Hear of so many more acknowledgements."""
        goal = len(self.told) + acknowledgements
        while len(self.told) < goal:
            for channel in self._ready():
                self._hear(channel)

    def kill(self, writer: Child) -> None:
        """Kill it, and hear what it still had to say."""
        writer.kill()
        while self._hear(writer.channel):
            pass
        self.writers.remove(writer)

    def listen_to_the_end(self) -> None:
        """Hear the follower out."""
        while self._hear(self.follower.channel):
            pass
        self.follower.process.join()

    def _ready(self) -> list[Connection]:
        channels = [self.follower.channel, *(writer.channel for writer in self.writers)]
        ready = wait(channels, timeout=30.0)
        assert ready, "nobody says anything"
        return [channel for channel in channels if channel in ready]

    def _hear(self, channel: Connection) -> bool:
        """One message; False when there are no more."""
        try:
            message = channel.recv_bytes()
        except EOFError:
            return False
        if channel is self.follower.channel:
            seen = msgspec.msgpack.decode(message, type=Seen | str)
            assert not isinstance(seen, str), f"the follower failed: {seen}"
            self.seen[seen.partition].append(seen)
        else:
            told = msgspec.msgpack.decode(message, type=Told | str)
            assert not isinstance(told, str), f"a writer failed: {told}"
            self.told.append(told)
        return True


@contextmanager
def crowd(path: Path, seed: int) -> Iterator[Crowd]:
    with open(path, limits=LIMITS) as engine:
        engine.create(TOPIC, partitions=PARTITIONS)
    people = Crowd(path, seed)
    try:
        yield people
    finally:
        for child in [people.follower, *people.writers]:
            child.kill()
            child.channel.close()


class Checker:
    """Compares the log with what was told, from where it last stopped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.events: dict[int, list[Event]] = {partition: [] for partition in range(PARTITIONS)}
        self._told = 0
        self._calls: dict[tuple[int, int], int] = {}

    def check(self, people: Crowd) -> None:
        with open(self._path, limits=LIMITS) as engine:
            for partition, events in self.events.items():
                start = len(events)
                events.extend(engine.read(TOPIC, partition=partition, start=start))
                assert [event.offset for event in events[start:]] == list(range(start, len(events)))
                ticks = [event.ticks for event in events[max(0, start - 1) :]]
                assert ticks == sorted(set(ticks))
        for told in people.told[self._told :]:
            there = self.events[told.partition][told.offset : told.offset + told.events]
            assert len(there) == told.events, f"{told} is not there"
            for number, event in enumerate(there):
                assert event.ticks == told.ticks + number, f"{told} has another id"
                wanted = data_of(told.writer, told.thread, told.call, number)
                assert b"".join(event.chunks()).startswith(wanted), f"{told} has other data"
        self._told = len(people.told)

    def check_all(self, people: Crowd) -> None:
        """Nothing is there twice, in another order, in part, or without having been appended."""
        self.check(people)
        told = {(each.writer, each.thread, each.call): each for each in people.told}
        assert len(told) == len(people.told)
        unknown: list[tuple[int, int]] = []
        for partition, events in self.events.items():
            last: dict[tuple[int, int], int] = {}
            at = 0
            while at < len(events):
                writer, thread, call, number = origin_of(events[at].data or b"")
                assert number == 0, "a part of an append"
                assert last.get((writer, thread), -1) < call, "twice, or in another order"
                last[writer, thread] = call
                known = told.get((writer, thread, call))
                if known is None:
                    unknown.append((writer, thread))  # it was killed before it could tell of it
                else:
                    assert (known.partition, known.offset) == (partition, at)
                at += 1
                while at < len(events) and origin_of(events[at].data or b"")[:3] == (writer, thread, call):
                    number += 1
                    assert origin_of(events[at].data or b"")[3] == number
                    at += 1
                assert number + 1 == (known.events if known is not None else number + 1)
                assert number + 1 in (1, 7)
        assert len(unknown) == len(set(unknown)), "a thread has at most one append under way when it dies"


def kill_and_check(path: Path, seed: int, kills: int) -> None:
    random = Random(seed)
    checker = Checker(path)
    with crowd(path, seed) as people:
        for _ in range(3):
            people.start_writer()
        for _ in range(kills):
            people.listen(random.randrange(1, 250))
            victims = people.writers if random.random() < 0.2 else [random.choice(people.writers)]
            for victim in list(victims):
                people.kill(victim)
            checker.check(people)
            while len(people.writers) < 3:
                people.start_writer()
        for writer in list(people.writers):
            people.kill(writer)
        with open(path, limits=LIMITS) as engine:
            engine.sync(TOPIC)  # recovers, and so keeps a whole batch of which its writer did not live to tell
        checker.check_all(people)
        with open(path, limits=LIMITS) as engine:
            for partition, events in checker.events.items():
                assert engine.append(TOPIC, END, partition=partition).offset == len(events)
        people.listen_to_the_end()
        for partition, events in checker.events.items():
            seen = [(each.offset, each.crc) for each in people.seen[partition]]
            assert seen == [*((event.offset, crc32(event.data or b"")) for event in events), (len(events), crc32(END))]


def test_killed_writers_lose_nothing_that_they_were_told(arena: Path) -> None:
    kill_and_check(arena / "data", seed=1, kills=25)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10))
def test_many_killed_writers_lose_nothing_that_they_were_told(seed: int, arena: Path) -> None:
    kill_and_check(arena / "data", seed=1000 + seed, kills=150)
