"""Formats numbers, sizes, times, tables and progress: for people on a terminal, for programs elsewhere.

Elsewhere, nothing is coloured or shortened, and no progress is shown.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from headwater.format.puro_blocks import PuroFile


T = TypeVar("T")

Cell = str | tuple[str, str]
"""Text, or text and its style."""

WIDE = 240  # columns of a table that goes to a file or a program
PATIENCE_S = 1.0  # progress is shown after this time: quick work needs no explanation
WATCH_S = 1.0  # between two refreshes
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
    """Print that something was done."""
    click.echo(f"{click.style('✓', fg='green', bold=True)} {text}")


def json_line(told: Any) -> str:
    """Return one JSON object in one line."""
    import msgspec

    return msgspec.json.encode(told).decode()


def warn(text: str) -> None:
    """Print a warning on stderr."""
    click.echo(f"{click.style('warning:', fg='yellow', bold=True)} {text}", err=True)


def watch(
    look: Callable[[], T], write: Callable[[T, bool], None], draw: Callable[[T], RenderableType], *, as_json: bool
) -> None:
    """Show what `look` returns every second until Ctrl-C: on a terminal drawn in place, elsewhere written again."""
    from rich.live import Live

    screen = console()
    with contextlib.suppress(KeyboardInterrupt):
        if as_json or not screen.is_terminal:
            while True:
                write(look(), as_json)
                time.sleep(WATCH_S)
        with Live(console=screen, auto_refresh=False, screen=True) as live:
            while True:
                live.update(draw(look()), refresh=True)
                time.sleep(WATCH_S)


class ProgressLine:
    """A line on stderr with a count, and a bar when the total is known; removed when the work is done."""

    def __init__(self, what: str, *, as_bytes: bool = False, patience_s: float = PATIENCE_S) -> None:
        self._what = what
        self._as_bytes = as_bytes
        self._show_at = time.monotonic() + patience_s
        self._visible = is_terminal(sys.stderr)
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def update(self, done: int, total: int | None = None) -> None:
        """Show how much is done, and the total if it is known."""
        if not self._visible or (self._progress is None and time.monotonic() < self._show_at):
            return
        if self._progress is None:
            self._begin()
        assert self._progress is not None
        assert self._task is not None
        told = size(done) if self._as_bytes else number(done)
        if total is not None:
            told += f" of {size(total) if self._as_bytes else number(total)}"
        self._progress.update(self._task, completed=done, total=total, told=told)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _begin(self) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
            console=console(err=True),
            transient=True,
        )
        self._task = self._progress.add_task(self._what, total=None, told="")
        self._progress.start()


class Summary:
    """The summary of an import or export: how much was done, and how fast."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._began = time.monotonic()

    def print(self, events: int, bytes_: int, what: str, *, err: bool = False, puro: PuroFile | None = None) -> None:
        seconds = time.monotonic() - self._began
        rate = events / seconds if seconds > 0 else 0.0
        if self._as_json:
            fields: dict[str, Any] = {"events": events, "bytes": bytes_, "seconds": round(seconds, 3)}
            fields |= {"events_per_second": round(rate)} | ({"puro": asdict(puro)} if puro else {})
            click.echo(json_line(fields), err=err)
            return
        if puro:
            click.echo(str(puro), err=err)
        line = f"{count(events, 'event')} {what}, {size(bytes_)}, {seconds:.1f} s, {rate:,.0f} events/s"
        if err:
            note(line)
        else:
            done(line)
