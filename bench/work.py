"""What all benchmarks share: where they work, how much they do, and the logs that several of them read."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import headwater
from bench.table import Row

EVENT_BYTES = 100
BATCH_EVENTS = 1000
TOPIC = "events"
MB = 1_000_000
SEAL_S = 300


@dataclass
class Work:
    """One run of the benchmarks. `size` is 0 for a smoke test, 1 for the usual run and 2 for a full one."""

    directory: Path
    size: int
    large_bytes: int
    events: list[bytes] = field(default_factory=lambda: some_events(BATCH_EVENTS))
    _made: dict[str, Path] = field(default_factory=dict)

    def pick(self, *choices: int) -> int:
        """The amount for this size; the last one given serves all larger ones."""
        return choices[min(self.size, len(choices) - 1)]

    def fresh(self, name: str) -> Path:
        """A path in the benchmark's directory where nothing is yet."""
        path = self.directory / name
        assert not path.exists()
        return path

    def log(self, name: str, make: Callable[[Path], None]) -> Path:
        """A log that several benchmarks read, made when the first asks for it."""
        if name not in self._made:
            path = self.fresh(name)
            make(path)
            self._made[name] = path
        return self._made[name]

    def batched(self, size: int) -> Path:
        """A log of about `size` bytes, appended in batches of 1,000, sealed wherever a segment is finished."""
        count = size // (BATCH_EVENTS * EVENT_BYTES)
        return self.log(f"batched-{size}", lambda path: append_batches(path, self.events, count))


@dataclass(frozen=True)
class Benchmark:
    """One measurement: its name for `--only`, what is compared in a sentence or two, and how."""

    name: str
    about: str
    run: Callable[[Work], list[Row]]


def some_events(count: int) -> list[bytes]:
    """Events that do not compress, the same in every run."""
    source = random.Random(7)
    return [source.randbytes(EVENT_BYTES) for _ in range(count)]


def append_batches(path: Path, events: list[bytes], count: int, segment_bytes: int = 0) -> None:
    """Append the same batch `count` times, handed to the system; finished segments are sealed."""
    with headwater.open(path, durability="os") as log:
        log.create(TOPIC, segment_bytes=segment_bytes)
        for _ in range(count):
            log.append_many(TOPIC, events)
        log.sync(TOPIC)


def append_each(path: Path, events: list[bytes], count: int, segment_bytes: int = 0) -> None:
    """Append one event at a time, `count` in all, handed to the system."""
    with headwater.open(path, durability="os") as log:
        log.create(TOPIC, segment_bytes=segment_bytes)
        for number in range(count):
            log.append(TOPIC, events[number % len(events)])
        log.sync(TOPIC)


def seal(path: Path) -> None:
    """Seal all that was appended, and make sure of it: a background thread may be at it, and is stopped by closing."""
    deadline = time.monotonic() + SEAL_S
    with headwater.open(path, mode="existing") as log:
        log.seal(TOPIC)
        while not all(segment.with_suffix(".index").exists() for segment in segments(path)[:-1]):
            if time.monotonic() > deadline:
                raise SystemExit(f"the log was not sealed in {SEAL_S} s")
            time.sleep(0.01)


def segments(path: Path) -> list[Path]:
    """The segment files of the topic, in order."""
    return sorted((path / "topics" / TOPIC / "0").glob("*.log"))
