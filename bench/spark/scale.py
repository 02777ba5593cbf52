"""`python -m bench.spark.scale`: what a terabyte and more cost on Spark, from the rates that were measured here.

The rates are those of docs/BENCHMARKS_SPARK.md, divided by the cores of that machine; the page is docs/SCALE.md.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

from bench import table

DOCS = Path(__file__).parents[2] / "docs"
MEASURED, PAGE = DOCS / "BENCHMARKS_SPARK.md", DOCS / "SCALE.md"

TB = 10**12
SIZES = {"1 TB": TB, "100 TB": 100 * TB, "1 PB": 1000 * TB}
CORES = 16  # of a machine
CORE_HOUR = 0.0425  # list price of a core on demand, in dollars: c6i in us-east-1
NETWORK_BYTES_S = 12.5e9 / 8  # of a machine: what such a one is sold with
GET = 0.4e-6  # of a GET, in dollars
READ_BYTES = 8 * 2**20  # about what one GET fetches
STORED = 0.023 / 10**9  # a byte for a month, in dollars

WORKS = {
    "aggregate in Arrow": "aggregate pushed into Arrow",
    "scan, through the source": "full scan and aggregate, through the source",
    "fold, a projection in Python": "projection rebuilt on Spark",
    "archive as Parquet": "archive as Parquet",
}
_UNITS = {"M/s": 1e6, "k/s": 1e3, "/s": 1.0, "B": 1.0}


class Measured(NamedTuple):
    """What the page of the benchmarks says: our figure of each row, and how many cores there were."""

    figures: dict[str, float]
    cores: int

    def of(self, name: str) -> float:
        (found,) = (value for row, value in self.figures.items() if row.startswith(name))
        return found


def read(page: str) -> Measured:
    figures = {}
    for name, number, unit in re.findall(r"^\| ([^|]+?) \| ([\d.,]+) ?(M/s|k/s|/s|B) \|", page, re.MULTILINE):
        figures[name] = float(number.replace(",", "")) * _UNITS[unit]
    cores = re.search(r"^- CPU: .*?(\d+) cores", page, re.MULTILINE)
    assert cores is not None
    return Measured(figures, int(cores[1]))


def tables(measured: Measured) -> str:
    event = measured.of("an event in the sealed log")
    rates = ["| work | events a second and core | bytes of the log |", "| --- | --: | --: |"]
    costs = [
        "| size | events | work | core hours | one machine | machines for an hour | money |",
        "| --- | --: | --- | --: | --: | --: | --: |",
    ]
    for work, row in WORKS.items():
        rate = measured.of(row) / measured.cores
        rates.append(f"| {work} | {table.Figure(rate, '/s')} | {rate * event / 1e6:,.0f} MB/s |")
    for size, size_bytes in SIZES.items():
        for number, (work, row) in enumerate(WORKS.items()):
            rate = measured.of(row) / measured.cores * event  # bytes of the log a second and core
            machine = min(rate * CORES, NETWORK_BYTES_S)
            hours = size_bytes / machine / 3600
            money = hours * CORES * CORE_HOUR + size_bytes / READ_BYTES * GET
            first = (size, _count(size_bytes / event)) if number == 0 else ("", "")
            cells = (*first, work, f"{hours * CORES:,.0f}", _time(hours), f"{math.ceil(hours):,}", f"${money:,.2f}")
            costs.append(f"| {' | '.join(cells)} |")
    kept = measured.of("an event in the archive") / event
    kept_line = (
        f"An archive takes {kept:.2f} of the log's bytes: ${kept * TB * STORED:,.0f} a month for 1 TB of log, "
        f"${kept * 1000 * TB * STORED:,.0f} for 1 PB."
    )
    return "\n\n".join(["\n".join(rates), "\n".join(costs), kept_line])


def _count(events: float) -> str:
    return f"{events / 1e9:,.0f} billion" if events < 1e12 else f"{events / 1e12:,.1f} trillion"


def _time(hours: float) -> str:
    if hours < 1:
        return f"{hours * 60:.0f} min"
    return f"{hours:,.1f} h" if hours < 48 else f"{hours / 24:,.0f} days"


if __name__ == "__main__":
    table.write_between_markers(PAGE, tables(read(MEASURED.read_text(encoding="utf-8"))))
