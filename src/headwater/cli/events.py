"""Prints events and references: aligned lines for people, tabs or JSON (format/jsonl.py) for programs."""

from __future__ import annotations

import os
import shutil
import sys
import zlib
from collections.abc import Iterable
from itertools import chain, islice
from typing import IO

import click
import msgspec

from headwater.cli import show
from headwater.event import Event, Ref
from headwater.format import jsonl

PREVIEW_BYTES = 4096  # how much of an event's data a line can show at most, whatever the terminal's width
NAME_COLUMNS_MAX = 28  # longer types and keys are shortened
DATA_COLUMNS_MIN = 12  # a narrow terminal wraps lines rather than show no data
FIT_EVENTS = 100  # about a screen: what decides the first widths
TYPE_COLOURS = ("green", "blue", "magenta", "cyan", "yellow", "bright_green", "bright_blue", "bright_magenta")
_encode = msgspec.json.Encoder().encode


def ref_json(ref: Ref) -> bytes:
    return _encode(
        {
            "topic": ref.topic,
            "partition": ref.partition,
            "offset": ref.offset,
            "time": show.utc(ref.time),
            "id": str(ref.id),
            "durability": ref.durability,
        }
    )


def key_text(key: bytes | None) -> str:
    """Return a key for people: as text if it is that, else in hex."""
    if key is None:
        return ""
    try:
        return show.printable(key.decode())
    except UnicodeDecodeError:
        return f"0x{key.hex()}"


def data_text(event: Event, limit: int | None = None) -> str:
    """Return the data for people, in one line, or only its beginning."""
    if event.data is None:
        return f"({show.size(event.size)}, offset {event.offset}: read it with --output)"
    if event.content == "bson":
        told, exact, _ = jsonl.data_fields(event)
        return show.printable(bytes(told).decode() if isinstance(told, msgspec.Raw) else str(exact))
    data = event.data if limit is None else event.data[:limit]
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if limit is None or len(event.data) <= limit or error.start < len(data) - 3:
            return f"0x{data.hex()}"
        text = data[: error.start].decode()  # the cut went through a character
    return show.printable(text)


def event_tabs(event: Event) -> bytes:
    """Return partition, offset, time, type, key and data, tab-separated, with nothing shortened."""
    cells = (
        str(event.partition),
        str(event.offset),
        show.utc(event.time),
        show.printable(event.type),
        key_text(event.key),
        data_text(event),
    )
    return "\t".join(cells).encode(errors="replace")


class AlignedLines:
    """Events as lines that fit a terminal: columns are as wide as what was seen so far, data takes the rest."""

    def __init__(self, partitions: int) -> None:
        from rich.cells import cell_len, set_cell_size

        self._cell_len, self._set_cell_size = cell_len, set_cell_size
        self._partitions = partitions
        self._columns = shutil.get_terminal_size().columns
        self._widths = {"at": 1, "type": 0, "key": 0}

    def fit(self, events: Iterable[Event]) -> None:
        """Make the columns wide enough for these from the first line on."""
        for event in events:
            self._cells(event)

    def line(self, event: Event) -> bytes:
        cells, time = self._cells(event), show.local(event.time)
        parts = [
            click.style(cells["at"].rjust(self._widths["at"]), fg="cyan"),
            click.style(time, dim=True),
        ]
        used = self._widths["at"] + 2 + len(time) + 2
        for name, colour in (("type", type_colour(event.type)), ("key", "yellow")):
            width = self._widths[name]
            if width:
                parts.append(click.style(self._set_cell_size(cells[name], width), fg=colour))
                used += width + 2
        parts.append(self._short(data_text(event, PREVIEW_BYTES), max(DATA_COLUMNS_MIN, self._columns - used)))
        line = "  ".join(parts)
        return (click.unstyle(line) if os.environ.get("NO_COLOR") else line).encode(errors="replace")

    def _cells(self, event: Event) -> dict[str, str]:
        cells = {
            "at": f"{event.partition}:{event.offset}" if self._partitions > 1 else str(event.offset),
            "type": self._short(show.printable(event.type), NAME_COLUMNS_MAX),
            "key": self._short(key_text(event.key), NAME_COLUMNS_MAX),
        }
        for name, text in cells.items():
            self._widths[name] = max(self._widths[name], self._cell_len(text))
        return cells

    def _short(self, text: str, columns: int) -> str:
        if self._cell_len(text) <= columns:
            return text
        return self._set_cell_size(text, columns - 1) + "…"


class Printer:
    """Writes events to stdout: as JSON, as their bare data, aligned for a terminal, or with tabs for a program."""

    def __init__(self, partitions: int, *, as_json: bool = False, raw: bool = False) -> None:
        self._out: IO[bytes] = sys.stdout.buffer
        self._raw = raw
        self._aligned = None if as_json or raw or not show.is_terminal(sys.stdout) else AlignedLines(partitions)
        self._line = jsonl.encode if as_json else event_tabs if self._aligned is None else self._aligned.line

    def print_all(self, events: Iterable[Event]) -> int:
        """Write them, and return how many there were."""
        events = iter(events)
        if self._aligned is not None:
            first = list(islice(events, FIT_EVENTS))
            self._aligned.fit(first)
            events = chain(first, events)
        printed = 0
        for event in events:
            self.print(event)
            printed += 1
        self.flush()
        return printed

    def print(self, event: Event) -> None:
        if self._raw:
            event.save(self._out)
            self._out.write(b"\n")
        else:
            self._out.write(self._line(event) + b"\n")

    def flush(self) -> None:
        """Hand on what was written; a reader that has gone away shows here."""
        self._out.flush()


def type_colour(type: str) -> str:
    """Return the colour of a type, which is always the same."""
    return TYPE_COLOURS[zlib.crc32(type.encode()) % len(TYPE_COLOURS)]
