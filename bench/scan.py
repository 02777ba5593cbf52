"""How fast events come out: as Arrow with checksums verified, and as objects."""

from __future__ import annotations

import mmap
from pathlib import Path

from crc32c import crc32c

import headwater
from bench.rounds import Samples, interleave, rate
from bench.table import Figure, Row, Target, at_least, ratio_of
from bench.work import BATCH_EVENTS, TOPIC, Benchmark, Work, append_batches, append_each, seal, segments

ONE_SEGMENT = 1 << 30  # so large that nothing is sealed before it is asked for
BARE = "mmap + crc32c of the same files"
DATA = ["offset", "data"]


def arrow(work: Work) -> list[Row]:
    count = work.pick(300, 3000, 5000)
    total = count * BATCH_EVENTS
    path = _batched(work, count)
    samples = interleave(
        work.pick(5, 15, 25),
        {
            "headwater": lambda: rate(total, lambda: _read_arrow(path, total)),
            "two columns": lambda: rate(total, lambda: _read_arrow(path, total, DATA)),
            "stream": lambda: rate(total, lambda: _stream_arrow(path, total)),
            "bare": lambda: rate(total, lambda: _bare(path)),
        },
    )
    name = "scan as Arrow, all columns"
    return [
        _alone(name, samples, at_least(20e6, "/s")),
        _against(name, samples, "headwater", ratio_of(1 / 3)),
        _against("the same, only offset and data", samples, "two columns"),
        _against("the same, batch by batch (read_batches, to_arrow)", samples, "stream"),
    ]


def sealed(work: Work) -> list[Row]:
    total = work.pick(40_000, 400_000, 1_000_000)
    path = work.fresh("one-at-a-time")
    append_each(path, work.events, total, ONE_SEGMENT)
    seal(path)
    samples = interleave(
        work.pick(5, 15, 25),
        {
            "headwater": lambda: rate(total, lambda: _read_arrow(path, total)),
            "events": lambda: rate(total, lambda: _read_events(path, total)),
            "bare": lambda: rate(total, lambda: _bare(path)),
        },
    )
    name = "scan as Arrow, written one at a time, sealed"
    return [
        _alone(name, samples, at_least(10e6, "/s")),
        _against(name, samples, "headwater"),
        Row("the same, as objects", Figure(samples.median("events"), "/s")),
    ]


def objects(work: Work) -> list[Row]:
    count = work.pick(300, 3000, 5000)
    total = work.pick(200, 1000) * BATCH_EVENTS
    path = _batched(work, count)
    samples = interleave(work.pick(3, 9), {"headwater": lambda: rate(total, lambda: _read_events(path, total))})
    return [_alone("scan as objects, written in batches of 1,000", samples, at_least(1.5e6, "/s"))]


def _batched(work: Work, count: int) -> Path:
    """A log in one segment that is not sealed, so that its batches are as they were written."""
    return work.log("one-segment", lambda path: append_batches(path, work.events, count, ONE_SEGMENT))


def _read_arrow(path: Path, total: int, columns: list[str] | None = None) -> None:
    with headwater.open(path, mode="existing") as log:
        table = log.read_arrow(TOPIC, columns=columns)
        assert table.num_rows == total


def _stream_arrow(path: Path, total: int) -> None:
    with headwater.open(path, mode="existing") as log:
        assert sum(batch.to_arrow().num_rows for batch in log.read_batches(TOPIC)) == total


def _read_events(path: Path, total: int) -> None:
    with headwater.open(path, mode="existing") as log:
        count = 0
        for _event in log.read(TOPIC, end=total):
            count += 1
        assert count == total


def _bare(path: Path) -> None:
    """One pass over the bytes, opened and mapped anew, as the log is."""
    for segment in segments(path):
        with segment.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            crc32c(mapped)


def _alone(name: str, samples: Samples, target: Target) -> Row:
    return Row(name, Figure(samples.median("headwater"), "/s"), target=target)


def _against(name: str, samples: Samples, ours: str, target: Target | None = None) -> Row:
    bare = Figure(samples.median("bare"), "/s")
    return Row(name, Figure(samples.median(ours), "/s"), BARE, bare, samples.ratio(ours, "bare"), target)


BENCHMARKS = (
    Benchmark(
        "scan-arrow",
        "`read_arrow` over millions of events in batches of 1,000, every checksum verified. The log and the bare pass "
        "open and map their files anew in each round; the pages of the files are in memory for both.",
        arrow,
    ),
    Benchmark(
        "scan-sealed",
        "The same over a log that was written one event at a time and then sealed, which packs it.",
        sealed,
    ),
    Benchmark("scan-objects", "`for event in log.read(...)`, each event an object, checksums verified.", objects),
)
