"""`python -m bench.spark`: Headwater on Spark beside Spark's own Parquet of the same events, in one run."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import headwater.spark
from bench import machine, table
from bench.spark import data, moving, scanning
from bench.table import Row

READING = (
    "Ratios are ours over Spark's own, the median over the rounds of one run in which both take turns; figures are "
    "medians. Events are JSON of about 100 bytes, of 200,000 customers, in 4 partitions and batches of 10,000."
)
T = TypeVar("T")
PARTS = ("size", "scan", "table", "write", "stream", "fold")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--events", type=float, default=10.0, help="in millions (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=lambda text: text.split(","), default=PARTS, help=", ".join(PARTS))
    parser.add_argument("--memory", default="2g", help="heap of the driver (default %(default)s)")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="write the table between the markers of a page")
    options = parser.parse_args(arguments)
    Path("build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-spark-", dir="build") as temporary:
        directory = Path(temporary).absolute()
        facts = machine.describe(directory)
        facts["command"] = shlex.join(["python", "-m", "bench.spark", *arguments])
        spark = headwater.spark.session(memory=options.memory)
        facts["spark"] = f"{spark.version}, {spark.sparkContext.master}, heap {options.memory}"
        events = _timed("data", lambda: data.make(spark, directory, int(options.events * 1e6)))
        works: dict[str, Callable[[], list[Row]]] = {
            "size": lambda: scanning.sizes(events),
            "scan": lambda: scanning.scans(spark, events, options.rounds),
            "write": lambda: moving.writes(spark, events, options.rounds, directory),
            "stream": lambda: moving.streams(spark, events, directory),
            "fold": lambda: moving.folds(spark, events, options.rounds),
            "table": lambda: scanning.one_table(spark, events, options.rounds, directory / "archive"),
        }
        rows = [row for name, work in works.items() if name in options.only for row in _timed(name, work)]
        spark.stop()
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    print(f"\n{table.text(rows)}\n\n{READING}")
    if options.markdown:
        head = "\n".join(f"- {name}: {f'`{value}`' if name == 'command' else value}" for name, value in facts.items())
        table.write_between_markers(options.markdown, f"{head}\n\n{table.markdown(rows)}\n\n{READING}")


def _timed(name: str, work: Callable[[], T]) -> T:
    began = time.monotonic()
    found = work()
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
