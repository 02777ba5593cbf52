"""What it costs to be sure: transactions over several topics, expected versions, and a producer's requests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import headwater
from bench.rounds import Samples, interleave, rate
from bench.table import Figure, Row, Target, ratio_of
from bench.work import TOPIC, Benchmark, Work

TOPICS = ("orders", "stock", "payments")
KEYS = 1000
EVENTS = 10
SINGLE = "one event to one topic, durable"
BATCH = "append_many of the same, durable"


def transactions(work: Work) -> list[Row]:
    path = work.fresh("transactions")
    events = work.events[: work.pick(30, 100)]
    with headwater.open(path) as log:

        def over(topics: tuple[str, ...]) -> Callable[[], None]:
            def run() -> None:
                for data in events:
                    with log.transaction() as tx:
                        for topic in topics:
                            tx.append(topic, data)

            return run

        def single() -> None:
            for data in events:
                log.append(TOPIC, data)

        def together() -> None:
            for data in events:
                with log.transaction() as tx:
                    tx.append_many(TOPIC, [data] * EVENTS)

        def batch() -> None:
            for data in events:
                log.append_many(TOPIC, [data] * EVENTS)

        samples = interleave(
            work.pick(5, 21, 41),
            {
                "three": lambda: rate(len(events), over(TOPICS)),
                "together": lambda: rate(len(events), together),
                "batch": lambda: rate(len(events), batch),
                "single": lambda: rate(len(events), single),
            },
        )
    return [
        _against("transaction over 3 topics, durable", samples, "three", "single", SINGLE, ratio_of(0.3)),
        _against(f"transaction of {EVENTS} events in 1 topic, durable", samples, "together", "batch", BATCH),
    ]


def guarded(work: Work) -> list[Row]:
    rows = []
    for durability, number in (("fsync", work.pick(50, 200)), ("os", work.pick(500, 5000))):
        rows += _guarded(work, durability, number)
    return rows


def _guarded(work: Work, durability: Any, number: int) -> list[Row]:
    data = work.events[0]
    keys = [b"entity-%d" % n for n in range(KEYS)]
    versions: dict[bytes, int] = {}
    seqs = count(1)
    with headwater.open(work.fresh(f"guarded-{durability}"), durability=durability) as log:

        def plain() -> None:
            for n in range(number):
                log.append("plain", data, key=keys[n % KEYS])

        def expected() -> None:
            for n in range(number):
                key = keys[n % KEYS]
                versions[key] = log.append("expected", data, key=key, expected_version=versions.get(key, "none")).offset

        def produced() -> None:
            for n in range(number):
                log.append("produced", data, key=keys[n % KEYS], producer=("bench", 1, next(seqs)))

        samples = interleave(
            work.pick(5, 21, 41),
            {
                "plain": lambda: rate(number, plain),
                "expected": lambda: rate(number, expected),
                "produced": lambda: rate(number, produced),
            },
        )
    beside = f"append with a key, {durability}"
    return [
        _against(f"append with expected_version, {durability}", samples, "expected", "plain", beside, ratio_of(0.8)),
        _against(f"append of a producer, {durability}", samples, "produced", "plain", beside),
    ]


def _against(name: str, samples: Samples, ours: str, theirs: str, peer: str, target: Target | None = None) -> Row:
    other = Figure(samples.median(theirs), "/s")
    return Row(name, Figure(samples.median(ours), "/s"), peer, other, samples.ratio(ours, theirs), target)


BENCHMARKS = (
    Benchmark(
        "transactions",
        "`hw.transaction()` with one event for each of three topics, beside a single durable append; and with ten "
        "events for one topic, beside `append_many`.",
        transactions,
    ),
    Benchmark(
        "guarded",
        f"Appends to {KEYS:,} keys in turn, each expecting the version that the last one gave, or as a producer's "
        "request, beside the same appends without.",
        guarded,
    ),
)
