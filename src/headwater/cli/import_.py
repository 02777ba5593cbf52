"""`headwater import`: events from a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import NaturalType, complete_topic, data_argument, format_option, json_option
from headwater.cli.opening import open_log
from headwater.cli.show import ProgressLine, Summary

if TYPE_CHECKING:
    from headwater.format.puro_blocks import PuroFile


@command(
    examples=[
        "headwater import data orders orders.parquet",
        "headwater import data everything.puro",
        "headwater import data orders everything.puro --only orders",
        "headwater import data clicks foreign.parquet --data-column body --key-column user",
        "zstdcat yesterday.jsonl.zst | headwater import data orders - --format jsonl",
    ]
)
@data_argument
@click.argument("topics", metavar="[TOPIC]", nargs=-1, shell_complete=complete_topic)
@click.argument("file", metavar="FILE", type=click.Path())
@format_option
@click.option("--only", metavar="TOPIC", help="Only events that belong to this topic in the file.")
@click.option(
    "--content", type=click.Choice(["bytes", "text", "json", "bson"]), help="Content of data if the file does not say."
)
@click.option("--partition", type=NaturalType(), metavar="N", help="Append to this partition.  [default: by the key]")
@click.option(
    "--skip", type=NaturalType(), default=0, metavar="N", help="Skip the first N events, to continue after an error."
)
@click.option(
    "--keep-times", is_flag=True, help="Keep the original time, partition and offset in the meta of each event."
)
@click.option("--data-column", metavar="NAME", help="Column of a table that holds the data.")
@click.option("--key-column", metavar="NAME", help="Column that holds the key.")
@click.option("--type-column", metavar="NAME", help="Column that holds the type.")
@json_option("Print a summary as one JSON object.")
def import_(
    data: str,
    topics: tuple[str, ...],
    file: str,
    format: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Append the events of a FILE, or of stdin with -, to a TOPIC.

    Without a TOPIC, each event goes to the topic that the file names. Topics and the directory are created if they do
    not exist. Events get new offsets and times. When the command ends, they are on disk; after an error, it prints how
    many were imported before.

    JSON lines are those that 'headwater export' and 'headwater read --json' write; for any other lines, use 'headwater
    append'. Arrow and Parquet tables need a column data (or value), and may have key, type, content and meta. With
    --data-column, other columns are ignored, except key and type and those you name.

    The variant of a Puro file is detected and printed, with the number of its control messages, which are not events.
    """
    if len(topics) > 1:
        raise click.UsageError("too many arguments: give at most one TOPIC, and one FILE")
    from headwater.transfer.files import format_of

    topic = topics[0] if topics else None
    source: Any = sys.stdin.buffer if file == "-" else Path(file)
    format = format_of(source, format)  # before a directory is made for it
    if file != "-":
        source.stat()
    done = 0

    def advance(position: int, size: int | None) -> None:
        nonlocal done
        done = position
        waiting.update(position, size)

    found: list[PuroFile] = []
    summary = Summary(as_json=as_json)
    with open_log(data) as hw, ProgressLine("imported", as_bytes=True) as waiting:
        events = hw.import_(
            topic,
            source,
            format=format,
            progress=advance,
            report=found.append,
            **options,
        )
    where = "in the topics that they name" if topic is None else f"in topic {show.printable(topic)}"
    summary.print(events, done if file == "-" else source.stat().st_size, where, puro=found[0] if found else None)
