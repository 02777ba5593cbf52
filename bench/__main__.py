"""`python -m bench`: measure Headwater beside its peers, in one run on one machine, and print one table."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import (
    append,
    client,
    consume,
    follow,
    keys,
    machine,
    match,
    replicate,
    scan,
    space,
    table,
    transactions,
    transfer,
    views_fold,
    views_read,
)
from bench.bucket import appends as bucket_appends
from bench.bucket import reading as bucket_reading
from bench.http import appends as http_appends
from bench.http import live as http_live
from bench.http import reading as http_reading
from bench.tcp import deliveries as tcp_deliveries
from bench.tcp import emits as tcp_emits
from bench.work import Benchmark, Work

ALL: tuple[Benchmark, ...] = (
    *append.BENCHMARKS,
    *client.BENCHMARKS,
    *transactions.BENCHMARKS,
    *scan.BENCHMARKS,
    *match.BENCHMARKS,
    *keys.BENCHMARKS,
    *follow.BENCHMARKS,
    *consume.BENCHMARKS,
    *space.BENCHMARKS,
    *transfer.BENCHMARKS,
    *replicate.BENCHMARKS,
    *views_fold.BENCHMARKS,
    *views_read.BENCHMARKS,
    *http_appends.BENCHMARKS,
    *http_reading.BENCHMARKS,
    *http_live.BENCHMARKS,
    *tcp_emits.BENCHMARKS,
    *tcp_deliveries.BENCHMARKS,
    *bucket_appends.BENCHMARKS,
    *bucket_reading.BENCHMARKS,
)
GIGABYTES_MAX = 10.0
READING = (
    "Ratios are ours over theirs, the median over the rounds of one run in which all take turns; figures are medians. "
    "Events have 100 bytes that do not compress, unless the row says otherwise."
)


def main(arguments: Sequence[str]) -> None:
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are stopped and files removed
    home = options.directory or Path("build")
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=home) as temporary:
        directory = Path(temporary)
        facts = machine.describe(directory)
        if facts["file system"] in machine.IN_MEMORY:
            _tell(f"{home} is in memory ({facts['file system']}): durable figures mean nothing; give --directory")
        facts["command"] = shlex.join(["python", "-m", "bench", *_public(arguments)])
        work = Work(directory, options.size, int(_gigabytes(options) * 1e9))
        rows = _run(_chosen(options.only), work)
    if options.json:
        print(json.dumps({"machine": facts, "rows": [row.plain() for row in rows]}, indent=2))
    else:
        print("\n".join(f"{name}: {value}" for name, value in facts.items()))
        print(f"\n{table.text(rows)}\n\n{READING}")
    if options.markdown:
        table.write_between_markers(options.markdown, _page(facts, rows, options.only))


def _run(chosen: Sequence[Benchmark], work: Work) -> list[table.Row]:
    rows = []
    for benchmark in chosen:
        began = time.monotonic()
        rows += benchmark.run(work)
        _tell(f"{benchmark.name}: {time.monotonic() - began:.0f} s")
    return rows


def _page(facts: dict[str, str], rows: Sequence[table.Row], only: Sequence[str]) -> str:
    head = "\n".join(f"- {name}: {f'`{value}`' if name == 'command' else value}" for name, value in facts.items())
    about = "\n".join(f"- **{benchmark.name}**: {benchmark.about}" for benchmark in _chosen(only))
    return f"{head}\n\n{table.markdown(rows)}\n\n{READING}\n\nWhat is compared:\n\n{about}"


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const=0, help="a smoke test of seconds")
    size.add_argument("--full", dest="size", action="store_const", const=2, help="longer runs and a log of 1 GB")
    parser.set_defaults(size=1)
    parser.add_argument("--only", type=_names, default=(), metavar="NAME,...", help=", ".join(b.name for b in ALL))
    parser.add_argument("--gigabytes", type=float, help="size of the large log, up to 10")
    parser.add_argument("--directory", type=Path, help="where to work, on the disk to measure; cleaned up afterwards")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="write the table between the markers of a page")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    if options.gigabytes is not None and not 0.02 <= options.gigabytes <= GIGABYTES_MAX:
        parser.error(f"--gigabytes goes from 0.02 to {GIGABYTES_MAX:g}")
    return options


def _names(given: str) -> tuple[str, ...]:
    names = tuple(given.split(","))
    unknown = set(names) - {benchmark.name for benchmark in ALL}
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no benchmark {', '.join(sorted(unknown))}")
    return names


def _chosen(only: Sequence[str]) -> list[Benchmark]:
    return [benchmark for benchmark in ALL if not only or benchmark.name in only]


def _gigabytes(options: argparse.Namespace) -> float:
    return float(options.gigabytes or (0.03, 0.25, 1.0)[options.size])


def _public(arguments: Sequence[str]) -> list[str]:
    """The options without --directory, which says something only to its owner."""
    shown, skip = [], False
    for argument in arguments:
        if not skip and not argument.startswith("--directory"):
            shown.append(argument)
        skip = argument == "--directory"
    return shown


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
