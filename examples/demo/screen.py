"""What the demonstration says and shows, to a person at a terminal or to a file."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

T = TypeVar("T")
console = Console(soft_wrap=True, highlight=False)
rows: list[tuple[str, str, str]] = []  # of the summary
_began_s = time.monotonic()


def chapter(title: str) -> None:
    console.print(Text.assemble("\n", (title, "bold")))


def say(text: str) -> None:
    seconds = f"{time.monotonic() - _began_s:5.1f} s  "
    console.print(Text.assemble((seconds, "dim"), ("✓ ", "bold green"), text))


def note(what: str, result: str, took: str = "") -> None:
    """A row of the summary."""
    rows.append((what, result, took))


def expect(truth: bool, otherwise: str) -> None:
    """End the demonstration if something is not as it must be."""
    if not truth:
        sys.exit(f"✗ {otherwise}")


def timed(work: Callable[[], T]) -> tuple[T, str]:
    began = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - began
    return result, f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


@contextlib.contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], object]]:
    """A bar that moves, where somebody can see it: it is told how much is done, of how much."""
    if not sys.stdout.isatty():
        yield lambda _done, _total: None
        return
    columns = TextColumn(f"         … {what}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def summary() -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("what", no_wrap=True)
    table.add_column("result", style="cyan", no_wrap=True)
    table.add_column("took", justify="right", style="dim", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(table)
    console.print()
    say("done, and everything was compared with the shop's own books")


def show(text: Any) -> None:
    console.print(text)
