"""What a benchmark found, as a table for people, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
HEADINGS = ("measured", "headwater", "compared with", "its figure", "ratio", "target", "")
NUMBERS = (1, 3, 4)  # columns that are aligned to the right


@dataclass(frozen=True)
class Figure:
    """A number and its unit: `/s`, `ms`, `MB`, `B` or `calls/s`."""

    value: float
    unit: str

    def __str__(self) -> str:
        value = self.value
        if self.unit == "/s" and value >= 1e6:
            return f"{value / 1e6:.2f} M/s"
        if self.unit == "/s" and value >= 1e4:
            return f"{value / 1e3:.1f} k/s"
        number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        return f"{number}{'' if self.unit.startswith('/') else ' '}{self.unit}"


@dataclass(frozen=True)
class Target:
    """What is promised: of the ratio to the peer if `of_ratio`, else of our own figure."""

    text: str
    bound: float
    at_least: bool = True
    of_ratio: bool = False

    def met(self, ours: Figure, ratio: float | None) -> bool:
        value = ours.value if not self.of_ratio else ratio
        assert value is not None
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True)
class Row:
    """One line: our figure, and either a peer's, a target, or both. A `missing` peer is named with the reason."""

    name: str
    ours: Figure
    peer: str = ""
    theirs: Figure | None = None
    ratio: float | None = None
    target: Target | None = None
    missing: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.target.met(self.ours, self.ratio)

    def cells(self) -> tuple[str, ...]:
        verdict = {None: "", True: "ok", False: "MISSED"}[self.met]
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}" if self.ratio < 10 else f"{self.ratio:.1f}"
        theirs = self.missing if self.theirs is None else str(self.theirs)
        return self.name, str(self.ours), self.peer, theirs, ratio, "" if not self.target else self.target.text, verdict

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def ratio_of(bound: float, *, at_least: bool = True) -> Target:
    """A target for the ratio to the peer."""
    return Target(f"{'>=' if at_least else '<='} {bound:.3g} of it", bound, at_least, of_ratio=True)


def at_least(bound: float, unit: str) -> Target:
    return Target(f">= {Figure(bound, unit)}", bound)


def at_most(bound: float, unit: str) -> Target:
    return Target(f"<= {Figure(bound, unit)}", bound, at_least=False)


def text(rows: Sequence[Row]) -> str:
    """An aligned table."""
    lines = [HEADINGS, *_cells(rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    padded = [
        "  ".join(cell.rjust(width) if i in NUMBERS else cell.ljust(width) for i, (cell, width) in enumerate(columns))
        for columns in ([*zip(line, widths, strict=True)] for line in lines)
    ]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join(line.rstrip() for line in (padded[0], rule, *padded[1:]))


def markdown(rows: Sequence[Row]) -> str:
    rule = ["--:" if i in NUMBERS else "---" for i in range(len(HEADINGS))]
    lines = [list(HEADINGS), rule, *(list(line) for line in _cells(rows))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_between_markers(page: Path, content: str) -> None:
    """Replace what stands between the two markers of a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{page} needs the lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{content}\n\n{END}{after}", encoding="utf-8")


def _cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The cells of all rows; what a row has in common with the one above is not said twice."""
    found = []
    above: Row | None = None
    for row in rows:
        name, ours, *rest = row.cells()
        repeated = above is not None and (above.name, above.ours) == (row.name, row.ours)
        found.append(("", "", *rest) if repeated else (name, ours, *rest))
        above = row
    return found
