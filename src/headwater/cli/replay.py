"""`headwater replay`: try again what was set aside."""

from __future__ import annotations

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import data_argument, topic_argument
from headwater.cli.opening import open_log


@command(
    examples=[
        "headwater replay data orders",
        "headwater replay data orders --consumer billing",
    ]
)
@data_argument
@topic_argument
@click.option("--consumer", metavar="NAME", help="Only what this one could not handle; the rest is passed over.")
def replay(data: str, topic: str, consumer: str | None) -> None:
    """Append the events of TOPIC.dead to TOPIC again, for all its consumers, each event once.

    What was replayed stays in TOPIC.dead, and is not replayed a second time. Read TOPIC.dead with --json to see, in the
    meta of each event, what went wrong.
    """
    with open_log(data, mode="existing") as hw:
        brought = hw.replay(topic, consumer=consumer)
    show.done(f"replayed {show.count(brought, 'event')} of {show.printable(topic)}.dead")
