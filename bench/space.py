"""What a log takes: bytes on disk, memory, and the time to open it."""

from __future__ import annotations

import subprocess
import time
from functools import partial
from pathlib import Path

import headwater
from bench.follow import child
from bench.peers import running
from bench.rounds import interleave
from bench.table import Figure, Row, Target, at_most, ratio_of
from bench.work import BATCH_EVENTS, EVENT_BYTES, MB, TOPIC, Benchmark, Work, append_batches, append_each, seal

SMALL_BYTES = 10 * MB
SAMPLE_S = 0.02
PATIENCE_S = 600


def disk(work: Work) -> list[Row]:
    count = work.pick(20, 100) * BATCH_EVENTS
    single, batched = work.fresh("disk-single"), work.fresh("disk-batched")
    append_each(single, work.events, count)
    append_batches(batched, work.events, count // BATCH_EVENTS)
    alone, together = _overhead(single, count), _overhead(batched, count)
    seal(single)
    return [
        _bytes("disk, over the content, per event appended alone", alone, at_most(72, "B")),
        _bytes("disk, over the content, in batches of 1,000", together, at_most(8, "B")),
        _bytes("disk, over the content, appended alone, then sealed", _overhead(single, count)),
    ]


def memory(work: Work) -> list[Row]:
    return [
        Row(
            f"memory of a process that appends and follows, log of {_size(size)}",
            Figure(_peak_memory(work, size) / MB, "MB"),
            target=at_most(60, "MB"),
        )
        for size in (SMALL_BYTES, work.large_bytes)
    ]


def opening(work: Work) -> list[Row]:
    large = _size(work.large_bytes)
    shapes = {
        "in batches of 1,000": (work.batched(SMALL_BYTES), work.batched(work.large_bytes)),
        "ending in single events": (_ending_in_singles(work, SMALL_BYTES), _ending_in_singles(work, work.large_bytes)),
    }
    rows = []
    for shape, (small, big) in shapes.items():
        samples = interleave(
            work.pick(5, 21, 41),
            {"small": partial(_open, small), "large": partial(_open, big)},
        )
        rows.append(
            Row(
                f"open, append one, read the last, log of {large} {shape}",
                Figure(samples.median("large"), "ms"),
                f"the same with {_size(SMALL_BYTES)}",
                Figure(samples.median("small"), "ms"),
                samples.ratio("large", "small"),
                ratio_of(1.25, at_least=False),
            )
        )
    return rows


def _overhead(path: Path, count: int) -> float:
    """Bytes per event beyond its content, from the sizes of all files of the topic."""
    files = (file for file in (path / "topics" / TOPIC).rglob("*") if file.is_file())
    return sum(file.stat().st_size for file in files) / count - EVENT_BYTES


def _bytes(name: str, value: float, target: Target | None = None) -> Row:
    return Row(name, Figure(value, "B"), target=target)


def _peak_memory(work: Work, size: int) -> int:
    """The most anonymous memory that was seen, in bytes."""
    path = work.fresh(f"memory-{size}")
    segment_bytes = 2 * MB if work.size == 0 else 0
    append_batches(path, work.events, size // (BATCH_EVENTS * EVENT_BYTES), segment_bytes)
    peak = 0
    with running(child("busy", str(path))) as process:
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise SystemExit(f"no segment was rolled and sealed in {PATIENCE_S} s")
            peak = max(peak, _anonymous(process))
            time.sleep(SAMPLE_S)
        if process.returncode != 0 or not peak:
            raise SystemExit("the process that appends and follows failed, or its memory could not be seen")
    return peak


def _anonymous(process: subprocess.Popen[bytes]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0  # it has just ended


def _ending_in_singles(work: Work, size: int) -> Path:
    """A log of about `size` bytes whose active segment holds up to half a segment of events appended alone."""

    def make(path: Path) -> None:
        alone = min(size, work.pick(4, 32) * MB)
        append_batches(path, work.events, (size - alone) // (BATCH_EVENTS * EVENT_BYTES))
        seal(path)
        append_each(path, work.events, alone // 152)

    return work.log(f"singles-{size}", make)


def _open(path: Path) -> float:
    """Milliseconds from a closed log to its last event, which was just appended and is on disk."""
    began = time.perf_counter()
    with headwater.open(path, mode="existing") as log:
        ref = log.append(TOPIC, bytes(EVENT_BYTES))
        last = next(log.read(TOPIC, reverse=True))
        elapsed = time.perf_counter() - began
        assert last.offset == ref.offset
    return elapsed * 1e3


def _size(size: int) -> str:
    return f"{size / 1e9:g} GB" if size >= 1e9 else f"{size / MB:g} MB"


BENCHMARKS = (
    Benchmark("disk", "From the sizes of all files of the topic, headers and indexes included.", disk),
    Benchmark(
        "memory",
        "Anonymous memory (RssAnon), at its peak, of a process that imports only Headwater, appends one event at a "
        "time until a segment was rolled and sealed, and follows the log from its start at the same time.",
        memory,
    ),
    Benchmark(
        "open",
        "From a closed log to its last event: opened, one event appended and on disk, and read back. "
        "The second log ends in a segment of events that were appended alone.",
        opening,
    ),
)
