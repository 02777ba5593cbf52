"""How fast a topic goes into a file and comes back, in each format."""

from __future__ import annotations

from pathlib import Path

import headwater
from bench.rounds import interleave, rate
from bench.table import Figure, Row
from bench.work import BATCH_EVENTS, TOPIC, Benchmark, Work, append_batches

FORMATS = {"jsonl": "JSON lines", "arrow": "Arrow file", "arrows": "Arrow stream", "parquet": "Parquet", "puro": "Puro"}
COPY = "copy"


def transfer(work: Work) -> list[Row]:
    count = work.pick(50, 1000)
    total = count * BATCH_EVENTS
    path = work.log(f"transferred-{count}", lambda path: append_batches(path, work.events, count))
    files = {format: work.directory / f"transferred.{format}" for format in FORMATS}
    contenders = {}
    for format, file in files.items():
        contenders[f"export {format}"] = lambda file=file: rate(total, lambda: _export(path, file, total))
        contenders[f"import {format}"] = lambda file=file: _import(work, file, total)
    samples = interleave(work.pick(1, 3, 5), contenders)
    rows = []
    for format, name in FORMATS.items():
        rows += [
            Row(f"export as {name}", Figure(samples.median(f"export {format}"), "/s")),
            Row(f"import of {name}", Figure(samples.median(f"import {format}"), "/s")),
        ]
        files[format].unlink()
    return rows


def _export(path: Path, file: Path, total: int) -> None:
    with headwater.open(path, mode="existing") as log:
        assert log.export(TOPIC, file) == total


def _import(work: Work, file: Path, total: int) -> float:
    """Into a log that is made and deleted untimed."""
    with headwater.open(work.directory / "imported") as log:
        log.create(COPY)

        def run() -> None:
            assert log.import_(COPY, file) == total

        figure = rate(total, run)
        log.delete(COPY)
    return figure


BENCHMARKS = (
    Benchmark(
        "transfer",
        "`export` of a million events (without keys) to a file, synced before it gets its name, and `import_` of that "
        "file into an empty topic, synced at the end.",
        transfer,
    ),
)
