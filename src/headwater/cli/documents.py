"""Prints documents, their changes and query results: tables for people, JSON lines for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import click

from headwater.cli import show
from headwater.document import Document
from headwater.format import documents

TABLE_ROWS = 500  # then another table begins: what is found may be more than a memory holds
NOTHING = object()


def pretty(data: Any) -> str:
    """Return a value over several lines, as relaxed Extended JSON."""
    told = json.loads(documents.encode(data))
    return "\n".join(line.translate(_CONTROLS) for line in json.dumps(told, indent=2, ensure_ascii=False).splitlines())


def print_all(found: Iterable[Any], *, as_table: bool) -> int:
    """Print documents, or other values, one each line; how many there were."""
    return _print_table(found) if as_table else _print_lines(found)


def _print_lines(found: Iterable[Any]) -> int:
    out, printed = sys.stdout.buffer, 0
    for value in found:
        out.write(documents.encode(value) + b"\n")
        printed += 1
    out.flush()
    return printed


def _print_table(found: Iterable[Any]) -> int:
    printed = 0
    for some in _pieces(found):
        rows = [_flat(value) for value in some]
        columns = list(dict.fromkeys(chain.from_iterable(rows)))
        numbers = [name for name in columns if all(_is_number(row.get(name, 0)) for row in rows)]
        show.table(
            [_heading(name) for name in columns],
            [[_cell(name, row.get(name, NOTHING)) for name in columns] for row in rows],
            right=[_heading(name) for name in numbers],
        )
        printed += len(rows)
    return printed


def _pieces(found: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(found)
    while some := list(islice(rest, TABLE_ROWS)):
        yield some


def _flat(value: Any) -> dict[tuple[str, ...], Any]:
    """Return the cells of a row by column: a document's own, and those of its data, which may have the same names."""
    if isinstance(value, Document):
        return {("id",): value.id, ("version",): value.version} | {("data", name): v for name, v in value.data.items()}
    return {("data", name): each for name, each in value.items()} if isinstance(value, dict) else {("value",): value}


def _heading(column: tuple[str, ...]) -> str:
    return show.printable(column[-1])


def _cell(column: tuple[str, ...], value: Any) -> show.Cell:
    if value is NOTHING:
        return ""
    text = value if isinstance(value, str) else documents.encode(value).decode()
    return text, "bold" if column == ("id",) else "dim" if column == ("version",) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# What JSON leaves as it is, and a terminal would take for an order.
_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(127, 160), 0x2028, 0x2029)}


def wants_table(as_json: bool, as_table: bool) -> bool:
    """Return whether a table is to be printed: if it was asked for, or, unless JSON was, on a terminal."""
    if as_json and as_table:
        raise click.UsageError("--json and --table are mutually exclusive")
    return as_table or (not as_json and show.is_terminal(sys.stdout))
