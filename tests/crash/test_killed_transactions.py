"""Real processes that are killed in the midst of transactions and producers' requests.

At the end every transaction is in all its topics or in none, every request is there once, and all that was acknowledged
is there.
"""

from __future__ import annotations

import time
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path
from random import Random

import msgspec
import pytest

from headwater.opening import open
from tests.crash import processes
from tests.crash.processes import ALONE, REQUESTS, TRANSACTED, TRANSACTION_LIMITS, Answered, Committed, number_of
from tests.crash.test_kill import Child


class Crowd:
    """The processes, and all that they told. Each has a name, which the next incarnation of it takes over."""

    def __init__(self, path: Path, seed: int, names: int) -> None:
        self._path = path
        self._seed = seed
        self._starts = [0] * names
        self.committed: list[Committed] = []
        self.answered: dict[int, list[Answered]] = {name: [] for name in range(names)}
        self.living: dict[int, Child] = {}
        for name in range(names):
            self.start(name)

    def start(self, name: int) -> None:
        """Go on where the one before was killed: its last request may have been answered, or not."""
        self._starts[name] += 1
        asked = len(self.answered[name])
        seed = f"{self._seed} {name} {self._starts[name]}"
        self.living[name] = Child(processes.transact, self._path, name, self._starts[name], asked, seed)

    def listen(self, messages: int) -> None:
        for _ in range(messages):
            channels = {child.channel: name for name, child in self.living.items()}
            ready = wait(list(channels), timeout=30.0)
            assert ready, "nobody says anything"
            for channel in ready:
                self._hear(channels[channel])  # type: ignore[index]  # these are the channels

    def kill(self, name: int) -> None:
        self.living[name].kill()
        while self._hear(name):
            pass
        self.living.pop(name).channel.close()

    def _hear(self, name: int) -> bool:
        try:
            message = self.living[name].channel.recv_bytes()
        except EOFError:
            return False
        told = msgspec.msgpack.decode(message, type=Committed | Answered | str)
        assert not isinstance(told, str), f"a process failed: {told}"
        if isinstance(told, Committed):
            self.committed.append(told)
        else:
            self.answered[name].append(told)
        return True


def check(path: Path, crowd: Crowd) -> None:
    """What was told is there, and nothing is there in part or twice."""
    with open(path, limits=TRANSACTION_LIMITS) as engine:
        found = {
            topic: {event.offset: number_of(event.data or b"") for event in engine.read(topic)} for topic in TRANSACTED
        }
        asked = {event.offset: (event.ticks, event.data) for event in engine.read(REQUESTS)}
    counts = [Counter(numbers.values()) for numbers in found.values()]
    everything = {number for count in counts for number in count} - {number_of(ALONE)}
    for number in everything:
        [there] = {count[number] for count in counts}
        assert there == number[2], f"{number} is there {there} times"
    for told in crowd.committed:
        for topic, offset in zip(TRANSACTED, told.offsets, strict=True):
            assert found[topic][offset] == told.number, f"{told} is not there"
    data = [each for _, each in asked.values()]
    assert len(data) == len(set(data)), "a request is there twice"
    for name, answers in crowd.answered.items():
        for seq, answer in enumerate(answers):
            assert asked[answer.offset] == (answer.ticks, b"%d %d" % (name, seq)), f"{answer} is not there"
        mine = [each for each in data if each is not None and each.startswith(b"%d " % name)]
        assert mine == [b"%d %d" % (name, seq) for seq in range(len(mine))], "in another order"
        assert len(answers) <= len(mine) <= len(answers) + 1


def kill_and_check(path: Path, seed: int, names: int, kills: int) -> Crowd:
    random = Random(seed)
    with open(path, limits=TRANSACTION_LIMITS) as engine:
        for topic in (*TRANSACTED, REQUESTS):
            engine.create(topic)
    crowd = Crowd(path, seed, names)
    try:
        for _ in range(kills):
            crowd.listen(random.randrange(1, 40))
            time.sleep(random.random() * 0.005)  # else it would always be just after an acknowledgement
            victims = list(crowd.living) if random.random() < 0.2 else [random.choice(list(crowd.living))]
            for name in victims:
                crowd.kill(name)
            if len(victims) == names:
                check(path, crowd)
            for name in victims:
                crowd.start(name)
    finally:
        for name in list(crowd.living):
            crowd.kill(name)
    check(path, crowd)
    with open(path, limits=TRANSACTION_LIMITS):
        assert not list((path / "journal").iterdir()), "a journal is left"
    return crowd


def test_killed_transactions_are_there_in_all_their_topics_or_in_none(arena: Path) -> None:
    crowd = kill_and_check(arena / "data", seed=1, names=2, kills=16)
    assert crowd.committed
    assert any(crowd.answered.values())


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(5))
def test_many_killed_transactions_are_there_in_all_their_topics_or_in_none(seed: int, arena: Path) -> None:
    kill_and_check(arena / "data", seed=100 + seed, names=3, kills=150)
