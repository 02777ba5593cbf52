"""How fast one key's events are found among millions, and how fast the index that finds them is made again."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from statistics import median

import headwater
from bench.follow import child
from bench.rounds import rate
from bench.table import Figure, Row, at_least, at_most
from bench.work import EVENT_BYTES, TOPIC, Benchmark, Work, seal, some_events

EVENTS_PER_KEY = 100
APPEND_EVENTS = 10_000


def keys(work: Work) -> list[Row]:
    count = work.pick(200_000, 10_000_000)
    path = work.log(f"keyed-{count}", lambda path: _make(path, count, work.pick(4_000_000, 0)))
    processes = [_look_up(path, count // EVENTS_PER_KEY) for _ in range(work.pick(2, 7))]
    first = median(found["history"][0] for found in processes)
    later = median(each for found in processes for each in found["history"][1:])
    name = f"one key's 100 events out of {count:,}, sealed, keys in random order"
    return [
        Row(name, Figure(later, "ms"), target=at_most(20, "ms")),
        Row("the same, the first read of a process", Figure(first, "ms")),
        Row("the same, backwards", _of(processes, "backwards")),
        Row("version of a key", _of(processes, "version")),
        Row(f"version of an absent key, in {processes[0]['segments'][0]:.0f} segments", _of(processes, "absent")),
    ]


def reindex(work: Work) -> list[Row]:
    count = work.pick(200_000, 10_000_000)
    path = work.log(f"keyed-{count}", lambda path: _make(path, count, work.pick(4_000_000, 0)))
    with headwater.open(path, mode="existing") as log:
        rates = [rate(count, lambda: log.reindex(TOPIC)) for _ in range(work.pick(2, 5))]
    return [Row("reindex, 100-byte events with keys", Figure(median(rates), "/s"), target=at_least(5e6, "/s"))]


def _make(path: Path, count: int, segment_bytes: int) -> None:
    """Events with keys that are drawn at random, so that those of one key are all over the log. Sealed."""
    source = random.Random(7)
    events = some_events(APPEND_EVENTS)
    names = [b"key-%06d" % number for number in range(count // EVENTS_PER_KEY)]
    assert len(events[0]) == EVENT_BYTES
    with headwater.open(path, durability="os") as log:
        log.create(TOPIC, segment_bytes=segment_bytes)
        for _ in range(count // APPEND_EVENTS):
            log.append_many(TOPIC, events, keys=source.choices(names, k=APPEND_EVENTS))
        log.sync(TOPIC)
    seal(path)


def _look_up(path: Path, keys: int) -> dict[str, list[float]]:
    """What a process of its own measured, in milliseconds."""
    ran = subprocess.run(child("keys", str(path), str(keys)), capture_output=True, check=True)
    found: dict[str, list[float]] = json.loads(ran.stdout)
    return found


def _of(processes: list[dict[str, list[float]]], name: str) -> Figure:
    return Figure(median(each for found in processes for each in found[name]), "ms")


BENCHMARKS = (
    Benchmark(
        "keys",
        "`read(key=...)` and `version()` over a sealed log of 100-byte events with keys of 10 bytes, drawn at random, "
        "appended 10,000 at a time. Each process opens the log and looks up other keys; the pages of the files are in "
        "memory.",
        keys,
    ),
    Benchmark(
        "reindex",
        "All indexes of that log made again, every checksum verified.",
        reindex,
    ),
)
