"""Code shared by `import` and `export`: their formats and their summary."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headwater.cli import show

if TYPE_CHECKING:
    from headwater.format.puro_blocks import PuroFile

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("jsonl", "arrow", "arrows", "parquet", "puro")


def format_option(function: F) -> F:
    help = "File format.  [default: by the suffix: .jsonl, .arrow, .arrows (a stream), .parquet or .puro]"
    return click.option("--format", type=click.Choice(FORMATS), help=help)(function)


class Summary:
    """How much was done, and how fast."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._began = time.monotonic()

    def print(self, events: int, size: int, what: str, *, err: bool = False, found: PuroFile | None = None) -> None:
        seconds = time.monotonic() - self._began
        rate = events / seconds if seconds > 0 else 0.0
        if self._as_json:
            told: dict[str, Any] = {"events": events, "bytes": size, "seconds": round(seconds, 3)}
            told |= {"events_per_second": round(rate)} | ({"puro": asdict(found)} if found else {})
            click.echo(show.json_line(told), err=err)
            return
        if found:
            click.echo(str(found), err=err)
        line = f"{show.count(events, 'event')} {what}, {show.size(size)}, {seconds:.1f} s, {rate:,.0f} events/s"
        if err:
            show.note(line)
        else:
            show.done(line)
