"""How fast events are found by what their data holds: a match, beside a bare loop that decodes and compares."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

import headwater
from bench.rounds import Samples, interleave, rate
from bench.table import Figure, Row, at_least
from bench.work import BATCH_EVENTS, EVENT_BYTES, TOPIC, Benchmark, Work

MATCH: dict[str, Any] = {"total": {"$gt": 10}}
BARE = "msgspec.json.decode + comparison of the same data in memory"


def match(work: Work) -> list[Row]:
    count = work.pick(30, 300, 1000)
    total = count * BATCH_EVENTS
    events = some_orders(BATCH_EVENTS)
    wanted = _bare(events, 1) * count
    path = work.fresh("orders")
    _append(path, events, count)
    samples = interleave(
        work.pick(3, 9, 15),
        {
            "batches": lambda: rate(total, lambda: _batches(path, wanted)),
            "events": lambda: rate(total, lambda: _events(path, wanted)),
            "arrow": lambda: rate(total, lambda: _arrow(path, wanted)),
            "bare": lambda: rate(total, lambda: _bare(events, count)),
        },
    )
    name = """match {"total": {"$gt": 10}} over JSON, 1 % found"""
    return [
        Row(name, Figure(samples.median("batches"), "/s"), target=at_least(500e3, "/s")),
        _against(name, samples, "batches"),
        _against("the same, as objects", samples, "events"),
        _against("the same, as Arrow", samples, "arrow"),
    ]


def some_orders(count: int) -> list[bytes]:
    """JSON events of about 100 bytes; the total of one in a hundred is above ten."""
    source = random.Random(7)
    return [
        msgspec.json.encode(
            {
                "order": source.randrange(10**6),
                "customer": f"c-{source.randrange(10**5):05}",
                "item": "kettle, stainless steel",
                "total": 12.5 if number % 100 == 7 else source.randrange(100) / 10,
                "paid": True,
                "lines": [1, 2, 3],
            }
        )
        for number in range(count)
    ]


def _append(path: Path, events: list[bytes], count: int) -> None:
    assert 0.8 < sum(map(len, events)) / len(events) / EVENT_BYTES < 1.2
    with headwater.open(path, durability="os") as log:
        for _ in range(count):
            log.append_many(TOPIC, events, content="json")
        log.sync(TOPIC)


def _batches(path: Path, wanted: int) -> None:
    with headwater.open(path, mode="existing") as log:
        assert sum(map(len, log.read_batches(TOPIC, match=MATCH))) == wanted


def _events(path: Path, wanted: int) -> None:
    with headwater.open(path, mode="existing") as log:
        assert sum(1 for _ in log.read(TOPIC, match=MATCH)) == wanted


def _arrow(path: Path, wanted: int) -> None:
    with headwater.open(path, mode="existing") as log:
        assert log.read_arrow(TOPIC, match=MATCH).num_rows == wanted


def _bare(events: list[bytes], count: int) -> int:
    """Only for data that is known to be well formed, with a number in each."""
    decode = msgspec.json.decode
    found = 0
    for _ in range(count):
        for data in events:
            if decode(data)["total"] > 10:
                found += 1
    return found


def _against(name: str, samples: Samples, ours: str) -> Row:
    bare = Figure(samples.median("bare"), "/s")
    return Row(name, Figure(samples.median(ours), "/s"), BARE, bare, samples.ratio(ours, "bare"))


BENCHMARKS = (
    Benchmark(
        "match",
        "`match` over JSON events of about 100 bytes in batches of 1,000, checksums verified, beside a loop over the "
        "same data in memory that decodes each event and compares.",
        match,
    ),
)
