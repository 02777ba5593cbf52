"""Rows of an Arrow table as text: tables for people, JSON lines and CSV for programs."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any

import msgspec

from headwater.cli import show
from headwater.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa

CELL_MAX = 60  # characters of a value in a table: the rest is cut
CHUNK_ROWS = 8192  # that are made Python's at a time


def print_table(table: pa.Table) -> None:
    """Print rows as a table, numbers to the right and long values cut."""
    show.console().print(_drawn(table))


def write_table(table: pa.Table, out: IO[bytes]) -> None:
    """Write a table to a file, as wide as it needs to be."""
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, highlight=False, width=show.WIDE, color_system=None).print(_drawn(table))
    out.write(text.getvalue().encode())


def _drawn(table: pa.Table) -> Any:
    import pyarrow as pa

    names = [show.printable(name) for name in table.column_names]
    types = zip(names, table.schema.types, strict=True)
    numbers = [n for n, t in types if pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t)]
    cells = [[_cell(value) for value in row] for row in _rows(table)]
    return show.drawn(names, cells, right=numbers)


def _cell(value: Any) -> show.Cell:
    if value is None:
        return "null", "dim"
    text = _text(value)
    return text if len(text) <= CELL_MAX else text[: CELL_MAX - 1] + "…"


def write_json(table: pa.Table, out: IO[bytes]) -> None:
    """One object a line."""
    names = _unique(table)
    for row in _rows(table):
        out.write(_encode(dict(zip(names, map(_plain, row), strict=True))) + b"\n")


def write_csv(table: pa.Table, out: IO[bytes]) -> None:
    """A line of names, then one for each row; null is nothing, and what is nested is JSON."""
    text = io.TextIOWrapper(out, "utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.column_names)
    for row in _rows(table):
        writer.writerow(["" if value is None else _text(value) for value in row])
    text.detach()


def write_parquet(table: pa.Table, out: IO[bytes]) -> None:
    """The rows as they are, with their types."""
    import pyarrow.parquet

    _unique(table)
    pyarrow.parquet.write_table(table, out, compression="zstd")


def _unique(table: pa.Table) -> list[str]:
    twice = [name for name, count in Counter(table.column_names).items() if count > 1]
    if twice:
        raise Invalid(f"duplicate column {twice[0]!r}", hint="rename one of them: … AS other")
    return table.column_names


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    for batch in table.to_batches(max_chunksize=CHUNK_ROWS):
        if batch.num_columns:
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _text(value: Any) -> str:
    """Return a value by itself: text as it is, anything else as in JSON."""
    found = _plain(value)
    return found if isinstance(found, str) else _encode(found).decode()


def _plain(value: Any) -> Any:
    """Return a value of Arrow's as one of JSON's."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):  # the pairs of a map
            return {str(_plain(name)): _plain(each) for name, each in value}
        return [_plain(each) for each in value]
    if isinstance(value, datetime):
        return show.utc(value) if value.tzinfo is not None else value.isoformat(timespec="microseconds")
    if isinstance(value, bytes):
        return _of_bytes(value)
    return value if value is None or isinstance(value, bool | int | float | str | Decimal) else str(value)


def _of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "\\x" + value.hex()


_encode = msgspec.json.Encoder(decimal_format="number").encode
