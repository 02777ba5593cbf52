"""`headwater bench`: measure the speed of this machine."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import complete_directory, json_option
from headwater.cli.show import ProgressLine

if TYPE_CHECKING:
    from headwater.store import Store

DATA_BYTES = 100
BATCH_EVENTS = 1000
THREADS = 32
MEMORY_FILESYSTEMS = ("tmpfs", "ramfs")


class BenchResult:
    """The result of one measurement."""

    def __init__(self, name: str, events: int, seconds: float, latencies_s: list[float] | None = None) -> None:
        self.name = name
        self.events = events
        self.seconds = seconds
        self.latencies_s = sorted(latencies_s or ())

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds

    def latency_us(self, share: float) -> float | None:
        """Return how long the given share of calls took at most."""
        if not self.latencies_s:
            return None
        return self.latencies_s[min(len(self.latencies_s) - 1, int(share * len(self.latencies_s)))] * 1e6


@command(examples=["headwater bench", "headwater bench /mnt/disk --seconds 3 --json"])
@click.argument("directory", metavar="[DIR]", required=False, shell_complete=complete_directory)
@click.option(
    "--seconds",
    type=click.FloatRange(0.01, 3600),
    default=1.5,
    metavar="S",
    help="Duration of each measurement.  [default: 1.5]",
)
@json_option("One JSON object.")
def bench(directory: str | None, seconds: float, as_json: bool) -> None:
    """Measure how fast this machine appends and reads events.

    Works in a new directory inside DIR (by default the temporary directory) and removes it. Events have 100 bytes.
    Durable means that each append waited for fdatasync; whether the disk honours it is not checked.
    """
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=directory) as temporary:
        filesystem = _filesystem(Path(temporary))
        with ProgressLine("measuring", patience_s=0) as waiting:
            measures = list(_measure_all(Path(temporary) / "data", seconds, waiting))
    if as_json:
        click.echo(show.json_line({"filesystem": filesystem, "measures": [_told(measure) for measure in measures]}))
        return
    show.table(
        ("events of 100 bytes", "events/s", "MB/s", "median", "99 %"),
        [_row(measure) for measure in measures],
        right=("events/s", "MB/s", "median", "99 %"),
    )
    click.echo(click.style(f"on {filesystem}, {os.cpu_count()} cores", dim=True))
    if filesystem in MEMORY_FILESYSTEMS:
        show.warn(f"{filesystem} is in memory: name a directory on the disk to measure")


def _measure_all(path: Path, seconds: float, waiting: ProgressLine) -> Iterator[BenchResult]:
    import headwater

    data = bytes(range(DATA_BYTES))
    with headwater.open(path) as hw:
        steps: list[Callable[[], BenchResult]] = [
            lambda: _singles("durable, one at a time", seconds, lambda: hw.append("durable", data)),
            lambda: _threads(f"durable, {THREADS} threads", seconds, lambda: hw.append("threads", data)),
            lambda: _singles("os, one at a time", seconds, lambda: hw.append("os", data, durability="os")),
            lambda: _batches(hw, seconds, [data] * BATCH_EVENTS),
            lambda: _scan("read as events", seconds, lambda: sum(1 for _ in hw.read("batches"))),
        ]
        if find_spec("pyarrow") is not None:
            columns = ["offset", "time", "type", "key", "data"]
            steps.append(
                lambda: _scan("read as Arrow", seconds, lambda: hw.read_arrow("batches", columns=columns).num_rows)
            )
        for done, step in enumerate(steps):
            waiting.update(done, len(steps))
            yield step()


def _singles(name: str, seconds: float, append: Callable[[], object]) -> BenchResult:
    append()  # makes the topic
    latencies = []
    began = before = time.perf_counter()
    while before - began < seconds:
        append()
        after = time.perf_counter()
        latencies.append(after - before)
        before = after
    return BenchResult(name, len(latencies), before - began, latencies)


def _threads(name: str, seconds: float, append: Callable[[], object]) -> BenchResult:
    append()
    found: list[BenchResult] = []
    threads = [threading.Thread(target=lambda: found.append(_singles(name, seconds, append))) for _ in range(THREADS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - began
    latencies = [latency for measure in found for latency in measure.latencies_s]
    return BenchResult(name, len(latencies), elapsed, latencies)


def _batches(hw: Store, seconds: float, batch: list[bytes]) -> BenchResult:
    measure = _singles("durable, batches of 1,000", seconds, lambda: hw.append_many("batches", batch))
    measure.events *= len(batch)
    return measure


def _scan(name: str, seconds: float, scan: Callable[[], int]) -> BenchResult:
    """Read all that the batches left, as often as time allows."""
    events, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        events += scan()
    return BenchResult(name, events, time.perf_counter() - began)


def _filesystem(path: Path) -> str:
    """Return the kind of file system that holds a path, where the system tells."""
    best = ("", "unknown file system")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, where, kind, *_ = line.split(" ")
            if path.resolve().is_relative_to(where) and len(where) >= len(best[0]):
                best = where, kind
    return best[1]


def _row(measure: BenchResult) -> list[show.Cell]:
    rate = measure.events_per_s
    median, slow = measure.latency_us(0.5), measure.latency_us(0.99)
    return [
        measure.name,
        (f"{rate:,.0f}", "bold cyan"),
        f"{rate * DATA_BYTES / 1e6:,.1f}",
        "" if median is None else _duration(median),
        "" if slow is None else _duration(slow),
    ]


def _duration(us: float) -> str:
    return f"{us:.0f} µs" if us < 1000 else f"{us / 1000:.1f} ms"


def _told(measure: BenchResult) -> dict[str, Any]:
    return {
        "name": measure.name,
        "events": measure.events,
        "seconds": measure.seconds,
        "events_per_s": measure.events_per_s,
        "latency_us_median": measure.latency_us(0.5),
        "latency_us_99": measure.latency_us(0.99),
    }
