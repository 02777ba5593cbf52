"""`headwater tail`: print the last events of a topic, and follow new ones."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click

from headwater.cli.app import command
from headwater.cli.arguments import (
    NaturalType,
    data_argument,
    json_option,
    key_option,
    match_option,
    partition_option,
    topic_argument,
    type_pattern_option,
)
from headwater.cli.opening import open_log


@command(
    examples=[
        "headwater tail data orders",
        "headwater tail -f data orders --type paid",
        """headwater tail -f data orders --match '{"total": {"$gte": 100}}'""",
        "headwater tail -f -n 0 data orders --json | jq -r .data.total",
    ]
)
@data_argument
@topic_argument
@click.option(
    "-n", "--lines", "count", type=NaturalType(), default=10, metavar="N", help="Number of events.  [default: 10]"
)
@click.option("-f", "--follow", is_flag=True, help="Wait for new events, from any process.")
@type_pattern_option
@key_option
@match_option
@partition_option
@json_option("One JSON object a line, as read does.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="With -f: exit after this long without an event."
)
def tail(
    data: str,
    topic: str,
    count: int,
    follow: bool,
    type_: str | None,
    key: str | None,
    match: dict[str, Any] | None,
    partition: int | None,
    as_json: bool,
    timeout: float | None,
) -> None:
    """Show the last events of a topic; with -f, follow it.

    Following ends with Ctrl-C, or after --timeout.
    """
    if timeout is not None and not follow:
        raise click.UsageError("--timeout needs -f")
    from headwater.cli.events import Printer

    with open_log(data, mode="existing") as hw:
        partitions = 1 if partition is not None else len(hw.describe(topic).partitions)
        printer = Printer(partitions, as_json=as_json)
        # The follower notes where it begins before the last events are read, so that none falls between the two.
        coming = hw.follow(topic, timeout=timeout, partition=partition, type=type_, key=key, match=match)
        newest = hw.read(topic, partition=partition, type=type_, key=key, match=match, reverse=True)
        last = list(islice(newest, count))[::-1]
        printer.print_all(last)
        if not follow:
            return
        seen = {(event.partition, event.offset) for event in last}
        try:
            for event in coming:
                if (event.partition, event.offset) not in seen:
                    printer.print(event)
                    printer.flush()
        except KeyboardInterrupt:
            return  # this is how it ends
