"""`headwater read`: the events of a topic."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import (
    NaturalType,
    data_argument,
    json_option,
    key_option,
    match_option,
    partition_option,
    range_options,
    topic_argument,
    type_pattern_option,
)
from headwater.cli.opening import open_log
from headwater.errors import NotFound
from headwater.position import Position

if TYPE_CHECKING:
    from headwater.event import Event


@command(
    examples=[
        "headwater read data orders",
        "headwater read data orders --from -1h --type 'placed|paid' --json | jq .data",
        "headwater read data orders --from 2025-03-01 --to 2025-04-01 --key o-17",
        """headwater read data orders --match '{"total": {"$gt": 10}, "lines.item": "kettle"}'""",
        "headwater read data orders --reverse --limit 1",
        "headwater read data videos --partition 0 --from 17 --output film.mp4",
    ]
)
@data_argument
@topic_argument
@range_options
@click.option("--limit", type=NaturalType(), metavar="N", help="Maximum number of events.")
@type_pattern_option
@key_option
@match_option
@partition_option
@click.option("--reverse", is_flag=True, help="Newest first.")
@json_option("One JSON object a line.")
@click.option("--raw", is_flag=True, help="Print only the data, each followed by a newline.")
@click.option("--output", metavar="FILE", help="Write the data of the first matching event, of any size, to a file.")
def read(
    data: str,
    topic: str,
    start: Position,
    end: Position,
    limit: int | None,
    type_: str | None,
    key: str | None,
    match: dict[str, Any] | None,
    partition: int | None,
    reverse: bool,
    as_json: bool,
    raw: bool,
    output: str | None,
) -> None:
    """Read the events of a topic, oldest first.

    Events of several partitions come in order of time. A POSITION is an offset (with --partition, if there are
    several), a time (2025-03-01, 2025-03-01T12:00:00Z, or -1h, -15m, -7d from now; local unless it has a zone), an
    event's id, earliest or latest.

    A match compares fields with $eq $ne $gt $gte $lt $lte $in $nin $exists $regex and $not, and combines matches with
    $and $or and $nor; write BSON dates and ObjectIds as Extended JSON: {"$date": "2025-03-01T12:00:00Z"}.

    On a terminal, lines are shortened to fit. Elsewhere, each line holds partition, offset, time, type, key and data,
    separated by tabs, with control characters written as \\n or \\x1b. With --json, bytes are printed as data_base64, a
    key that is not UTF-8 as key_base64, and an event above 10 MiB only as data_bytes, its size: fetch it with --output.
    """
    if sum((as_json, raw, output is not None)) > 1:
        raise click.UsageError("--json, --raw and --output are mutually exclusive")
    from headwater.cli.events import Printer

    with open_log(data, mode="existing") as hw:
        events = hw.read(
            topic, start=start, end=end, partition=partition, type=type_, key=key, match=match, reverse=reverse
        )
        if output is not None:
            _save(events, output, topic)
            return
        partitions = 1 if partition is not None else len(hw.describe(topic).partitions)
        printed = Printer(partitions, as_json=as_json, raw=raw).print_all(islice(events, limit))
    if not printed:
        show.note("no events")


def _save(events: Iterator[Event], output: str, topic: str) -> None:
    """Write the data of one event, piece by piece; the file appears when it is whole."""
    event = next(events, None)
    if event is None:
        raise NotFound(f"no such event in topic {topic!r}", code="event_not_found")
    if output == "-":
        out = sys.stdout.buffer
        event.save(out)
        out.flush()
        return
    unfinished = Path(f"{output}.part")
    try:
        with unfinished.open("wb") as file:
            event.save(file)
        os.replace(unfinished, output)
    finally:
        unfinished.unlink(missing_ok=True)
    show.note(f"{show.size(event.size)} of event {event.partition}:{event.offset} in {output}")
