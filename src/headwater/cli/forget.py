"""`headwater forget`: delete a consumer."""

from __future__ import annotations

import click

from headwater.cli import show
from headwater.cli.app import command, confirm, yes_option
from headwater.cli.arguments import consumer_argument, data_argument, topic_argument
from headwater.cli.opening import open_log


@command(examples=["headwater forget data orders billing", "headwater forget data orders billing --yes"])
@data_argument
@topic_argument
@consumer_argument
@yes_option
@click.pass_context
def forget(ctx: click.Context, data: str, topic: str, name: str, yes: bool) -> None:
    """Delete the consumer NAME of a topic. Its cursors are deleted; events are not.

    Asks for confirmation; without a terminal, --yes is required. Running members stop.
    """
    with open_log(data, mode="existing") as hw:
        what = f"consumer {show.printable(name)} of topic {show.printable(topic)}"
        confirm(ctx, f"Forget {what}?", "nothing was forgotten", yes=yes)
        hw.forget(name, topic)
    show.done(f"forgot {what}")
