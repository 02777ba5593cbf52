"""How fast a consumer is that acks every event."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import headwater
from bench.rounds import interleave, rate
from bench.table import Figure, Row, at_least
from bench.work import BATCH_EVENTS, TOPIC, Benchmark, Work, append_batches

NAMES = count()


def acking(work: Work) -> list[Row]:
    batches = work.pick(60, 500, 1000)
    total = batches * BATCH_EVENTS
    path = work.log(f"consume-{batches}", lambda path: append_batches(path, work.events, batches))
    samples = interleave(
        work.pick(3, 9, 15),
        {
            "headwater": lambda: rate(total, lambda: _consume(path, total)),
            "read": lambda: rate(total, lambda: _read(path, total)),
        },
    )
    ours, read = (Figure(samples.median(name), "/s") for name in ("headwater", "read"))
    ratio = samples.ratio("headwater", "read")
    name = "consumer, each event acked"
    return [
        Row(name, ours, target=at_least(300e3, "/s")),
        Row(name, ours, "for event in read(), no cursor", read, ratio),
    ]


def _consume(path: Path, total: int) -> None:
    """A new consumer each time: joined, led through all events, and closed with its acks durable."""
    handled = 0
    with (
        headwater.open(path, mode="existing") as log,
        log.consumer(f"c{next(NAMES)}", TOPIC, timeout=0) as consumer,
    ):
        for event in consumer:
            consumer.ack(event)
            handled += 1
    assert handled == total


def _read(path: Path, total: int) -> None:
    with headwater.open(path, mode="existing") as log:
        assert sum(1 for _event in log.read(TOPIC)) == total


BENCHMARKS = (
    Benchmark(
        "consume",
        "`for event in consumer: consumer.ack(event)`, from joining as a new consumer to closing, when all acks are "
        "durable; beside a bare loop over `read`, which keeps no cursor.",
        acking,
    ),
)
