"""`headwater seek`: move a consumer to another position."""

from __future__ import annotations

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import (
    PositionType,
    consumer_argument,
    data_argument,
    json_option,
    partition_option,
    topic_argument,
)
from headwater.cli.opening import open_log
from headwater.position import Position


@command(
    examples=[
        "headwater seek data orders billing --to earliest",
        "headwater seek data orders billing --to -2h",
        "headwater seek data orders billing --to 17 --partition 0",
    ]
)
@data_argument
@topic_argument
@consumer_argument
@click.option("--to", "at", type=PositionType(), required=True, metavar="POSITION", help="New position, as in read.")
@partition_option
@json_option("One JSON object a line, for each partition.")
def seek(data: str, topic: str, name: str, at: Position, partition: int | None, as_json: bool) -> None:
    """Move the consumer NAME to another position, durably, even while it runs.

    Running members lose the events they hold and continue from the new position.
    """
    with open_log(data, mode="existing") as hw:
        moved = hw.seek(name, topic, at, partition=partition)
    if as_json:
        for number, cursor in moved.items():
            click.echo(show.json_line({"consumer": name, "topic": topic, "partition": number, "cursor": cursor}))
    else:
        places = ", ".join(f"{number}:{cursor}" for number, cursor in moved.items())
        show.done(f"consumer {show.printable(name)} continues at {places}")
