"""How fast a replica copies what a server has, beside a read of the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import headwater
from bench.http.servers import headwater_server
from bench.rounds import interleave, rate
from bench.table import Figure, Row, ratio_of
from bench.work import BATCH_EVENTS, TOPIC, Benchmark, Work


def copying(work: Work) -> list[Row]:
    return [row for size in (100, BATCH_EVENTS) for row in _copying(work, size, work.pick(50_000, 1_000_000))]


def _copying(work: Work, size: int, total: int) -> list[Row]:
    path = work.log(f"replicated-{size}-{total}", lambda path: _fill(path, work, size, total))
    with headwater_server(path) as server:
        samples = interleave(
            work.pick(1, 5, 9),
            {
                "replica": lambda: _copy(work, server.url, total),
                "events": lambda: rate(total, lambda: _read(server.url, total)),
                "batches": lambda: rate(total, lambda: _read_batches(server.url, total)),
            },
        )
    name, ours = f"replicate, batches of {size:,}", Figure(samples.median("replica"), "/s")
    rows = []
    for peer, what in (("events", "read() from the server"), ("batches", "read_batches() from the server")):
        theirs, ratio = Figure(samples.median(peer), "/s"), samples.ratio("replica", peer)
        rows.append(Row(name, ours, what, theirs, ratio, ratio_of(0.5) if peer == "events" else None))
    return rows


def _fill(path: Path, work: Work, size: int, total: int) -> None:
    with headwater.open(path, durability="os") as log:
        for at in range(0, total, size):
            begin = at % len(work.events)
            log.append_many(TOPIC, work.events[begin : begin + size])
        log.sync(TOPIC)


def _copy(work: Work, url: str, total: int) -> float:
    """To a new directory, which is removed untimed. Durable when it ends."""
    path = work.directory / "replica"
    figure = rate(total, lambda: headwater.replicate(url, path, once=True))
    with headwater.open(path) as log:
        assert log.describe(TOPIC).events == total
    shutil.rmtree(path)
    return figure


def _read(url: str, total: int) -> None:
    with headwater.open(url) as log:
        assert sum(1 for _event in log.read(TOPIC)) == total


def _read_batches(url: str, total: int) -> None:
    with headwater.open(url) as log:
        assert sum(map(len, log.read_batches(TOPIC))) == total


BENCHMARKS = (
    Benchmark(
        "replicate",
        "`headwater.replicate(url, directory, once=True)` of a server's topic into a new directory: every batch is "
        "fetched, verified, written and synced. Beside a bare loop over `read` from the same server, and one over "
        "`read_batches`, which looks into no batch.",
        copying,
    ),
)
