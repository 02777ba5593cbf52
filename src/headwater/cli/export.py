"""`headwater export`: the events of topics to a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from headwater.cli.app import command
from headwater.cli.arguments import (
    SizeType,
    complete_topic,
    data_argument,
    format_option,
    json_option,
    key_option,
    match_option,
    partition_option,
    range_options,
    type_pattern_option,
)
from headwater.cli.opening import open_log
from headwater.cli.show import ProgressLine, Summary
from headwater.position import Position

if TYPE_CHECKING:
    from headwater.format.puro_blocks import PuroVariant


@command(
    examples=[
        "headwater export data orders orders.parquet",
        "headwater export data orders - --format jsonl --from -1d | zstd > yesterday.jsonl.zst",
        "headwater export data orders stock all.puro",
        "headwater export data orders paid.arrow --type paid",
    ]
)
@data_argument
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic)
@click.argument("file", metavar="FILE", type=click.Path())
@format_option
@click.option(
    "--puro-variant",
    type=click.Choice(["messages", "blocks", "sized-blocks", "documented"]),
    help="Variant of a Puro file; see docs/TRANSFER.md.  [default: messages]",
)
@range_options
@type_pattern_option
@key_option
@match_option
@partition_option
@click.option(
    "--hold",
    type=SizeType(),
    default="10MiB",
    metavar="SIZE",
    help="Largest event to hold in memory; a larger one fails.  [default: 10MiB]",
)
@json_option("Print a summary as one JSON object.")
def export(
    data: str,
    topics: tuple[str, ...],
    file: str,
    format: str | None,
    puro_variant: PuroVariant | None,
    start: Position,
    end: Position,
    type_: str | None,
    key: str | None,
    match: dict[str, Any] | None,
    partition: int | None,
    hold: int,
    as_json: bool,
) -> None:
    """Write the events of topics to a FILE, or to stdout with -.

    The file appears, or replaces an earlier one, when it is complete and on disk. Partitions are written one after the
    other. JSON lines and Arrow and Parquet tables hold every field of an event; Puro messages only topic, key and
    data. JSON lines and Puro can hold several topics.

    The export fails at an event that is larger than --hold, or that the format cannot hold, and names it. A POSITION is
    the same as in 'headwater read'.
    """
    from headwater.limits import Limits

    usual = {"start": "earliest", "end": "latest", "type": None, "key": None, "match": None, "partition": None}
    given = {"start": start, "end": end, "type": type_, "key": key, "match": match, "partition": partition}
    filters: dict[str, Any] = {name: value for name, value in given.items() if value != usual[name]}
    target = _ExportCounter(sys.stdout.buffer) if file == "-" else Path(file)
    summary = Summary(as_json=as_json)
    limits = Limits(blob_bytes_in_memory=hold)
    with open_log(data, mode="existing", limits=limits) as hw, ProgressLine("events exported") as waiting:
        chosen: Any = {"format": format, "puro_variant": puro_variant}
        events = hw.export(topics, cast("Any", target), progress=waiting.update, **chosen, **filters)
    if isinstance(target, _ExportCounter):
        sys.stdout.buffer.flush()
        summary.print(events, target.size, "written", err=True)
    else:
        summary.print(events, target.stat().st_size, f"in {file}")


class _ExportCounter:
    """A stream that counts what is written to it."""

    closed = False

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self.size = 0

    def write(self, data: Any) -> int:
        self.size += len(data)
        return self._out.write(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._out.flush()

    def writable(self) -> bool:
        return True
