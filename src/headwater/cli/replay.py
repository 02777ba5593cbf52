"""`headwater replay`: append dead-lettered events to their topic again."""

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
@click.option("--consumer", metavar="NAME", help="Only dead letters of this consumer.")
def replay(data: str, topic: str, consumer: str | None) -> None:
    """Append the dead letters in TOPIC.dead to TOPIC again, each event once, for all its consumers.

    Replayed events stay in TOPIC.dead and are not replayed again. To see why an event failed, read TOPIC.dead with
    --json: the reason is in its meta.
    """
    with open_log(data, mode="existing") as hw:
        brought = hw.replay(topic, consumer=consumer)
    show.done(f"replayed {show.count(brought, 'event')} of {show.printable(topic)}.dead")
