"""Formats numbers, sizes, times, tables and errors: on a terminal for people, elsewhere for programs.

Elsewhere means: no colours and nothing shortened.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Cell = str | tuple[str, str]

WIDE = 240  # columns of a table that goes to a file or a program
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
AGES = ((60, "s", 1), (3600, "min", 60), (86_400, "h", 3600), (float("inf"), "d", 86_400))

# Control characters in events must not control the reader's terminal.
ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def number(value: int) -> str:
    return f"{value:,}"


def size(count: int) -> str:
    """`1.2 MiB`"""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {UNITS[unit]}"


def count(many: int, noun: str) -> str:
    """`1 event`, `2,000 events`, `2 batches`"""
    plural = noun + ("es" if noun.endswith(("ch", "s")) else "s")
    return f"{many:,} {noun if many == 1 else plural}"


def log_name(topic: str, partition: int) -> str:
    """`orders/0`; only the topic for what belongs to none of its partitions."""
    return printable(f"{topic}/{partition}" if partition >= 0 else topic)


def ago(time: datetime, now: datetime | None = None) -> str:
    """`3 min ago`"""
    seconds = ((now or datetime.now(UTC)) - time).total_seconds()
    if seconds < 1:
        return "just now"
    unit, divisor = next((unit, divisor) for below, unit, divisor in AGES if seconds < below)
    return f"{seconds / divisor:.0f} {unit} ago"


def duration(ms: int) -> str:
    """`7d`, `90s` or `500ms`, as it would be typed."""
    units = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
    return next(f"{ms // size}{unit}" for unit, size in units if ms % size == 0 and (ms or size == 1))


def utc(time: datetime) -> str:
    """`2025-03-01T12:00:00.000000Z`, for programs."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def local(time: datetime) -> str:
    """`2025-03-01 13:00:00.000`, for people, in their time zone."""
    return time.astimezone().isoformat(" ", "milliseconds")[:23]


def printable(text: str) -> str:
    """Return the text in one line, with control characters written out."""
    return text if text.isprintable() else text.translate(ESCAPES)


def is_terminal(stream: IO[Any]) -> bool:
    return stream.isatty()


def console(*, err: bool = False) -> Console:
    """Return where tables and progress go. Off a terminal it is as wide as it needs to be."""
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    return Console(file=stream, highlight=False, width=None if is_terminal(stream) else WIDE)


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Sequence[str] = ()) -> None:
    """Print a table. A cell is text, or text and its style."""
    console().print(drawn(columns, rows, right=right))


def drawn(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Sequence[str] = ()) -> Table:
    """Return a table, to be printed."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        cells = [cell if isinstance(cell, tuple) else (cell, "") for cell in row]
        made.add_row(*(Text(printable(text), style) for text, style in cells))
    return made


def facts(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, aligned."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        click.echo(f"{click.style(f'{name:<{width}}', dim=True)}  {printable(value)}")


def note(text: str) -> None:
    """Print a remark, only on a terminal."""
    if is_terminal(sys.stderr):
        click.echo(click.style(text, dim=True), err=True)


def done(text: str) -> None:
    """That something was done."""
    click.echo(f"{click.style('✓', fg='green', bold=True)} {text}")


def json_line(told: Any) -> str:
    """Return one JSON object in one line."""
    import msgspec

    return msgspec.json.encode(told).decode()


def warn(text: str) -> None:
    """Print a warning on stderr."""
    click.echo(f"{click.style('warning:', fg='yellow', bold=True)} {text}", err=True)
