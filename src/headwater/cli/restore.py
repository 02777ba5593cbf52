"""`headwater restore`: a log directory from an archive."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import NaturalType, PositionType, complete_directory, json_option
from headwater.cli.opening import directory_of
from headwater.cli.show import ProgressLine

COLUMNS = ("topic", "partition", "offsets", "events", "fetched")


@command(
    examples=[
        "headwater restore s3://bucket/archive data",
        "headwater restore s3://bucket/archive data --to-time 2025-03-01T12:00",
        "headwater restore /mnt/backup/archive data --topic orders --to 5000",
    ]
)
@click.argument("url", metavar="URL")
@click.argument("data", metavar="DATA", shell_complete=complete_directory)
@click.option("--topic", metavar="TOPIC", help="Only this topic.")
@click.option("--to", type=NaturalType(), metavar="OFFSET", help="Stop before this offset of --topic.")
@click.option(
    "--partition", type=NaturalType(), metavar="N", help="Partition of --to; the others are restored completely."
)
@click.option(
    "--to-time", type=PositionType(), metavar="TIME", help="Stop every partition before the first event of this time."
)
@json_option("One JSON object.")
def restore(
    url: str,
    data: str,
    topic: str | None,
    to: int | None,
    partition: int | None,
    to_time: Any,
    as_json: bool,
) -> None:
    """Create a log directory from an archive.

    Restores the same topics, offsets, times and ids, all or up to an offset or a time, which is not included. All files
    are verified. DATA appears when it is complete; after an interruption, run the command again: it continues.
    Consumers and documents are not archived: consumers start over, and projections are rebuilt.
    """
    if to is not None and to_time is not None:
        raise click.UsageError("--to and --to-time are mutually exclusive")
    if to_time is not None and not isinstance(to_time, datetime):
        raise click.UsageError("--to-time takes a time")
    if partition is not None and to is None:
        raise click.UsageError("--partition needs --to")
    import headwater

    path = directory_of(data)
    with ProgressLine("restored", as_bytes=True) as waiting:
        end = to if to is not None else to_time
        done = headwater.restore(url, path, topic=topic, partition=partition, to=end, progress=waiting.update)
    if as_json:
        click.echo(show.json_line({"data": data, "url": url, "logs": done}))
        return
    rows: list[list[show.Cell]] = [
        [
            (each.topic, "bold"),
            str(each.partition),
            f"{each.first}..{each.end - 1}" if each.end > each.first else "none",
            show.number(each.events),
            show.size(each.bytes),
        ]
        for each in done
    ]
    if rows:
        show.table(COLUMNS, rows, right=COLUMNS[1:])
    events, lost = sum(each.events for each in done), sum(each.lost for each in done)
    missing = f"; {show.count(lost, 'event')} more were lost before they were archived" if lost else ""
    again = f"headwater archive {data} {url}"
    show.done(f"restored {show.count(events, 'event')} to {data}{missing}; to archive it again: {again}")
