"""`headwater forget`: delete a consumer."""

from __future__ import annotations

import sys

import click

from headwater.cli import show
from headwater.cli.app import FAILED, command
from headwater.cli.arguments import consumer_argument, data_argument, topic_argument
from headwater.cli.opening import open_log


@command(examples=["headwater forget data orders billing", "headwater forget data orders billing --yes"])
@data_argument
@topic_argument
@consumer_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_context
def forget(ctx: click.Context, data: str, topic: str, name: str, yes: bool) -> None:
    """Delete the consumer NAME of a topic. Its cursors are deleted; events are not.

    Asks for confirmation; without a terminal, --yes is required. Running members stop.
    """
    with open_log(data, mode="existing") as hw:
        what = f"consumer {show.printable(name)} of topic {show.printable(topic)}"
        if not yes:
            if not show.is_terminal(sys.stdin):
                raise click.UsageError("no terminal to confirm on: give --yes", ctx)
            if not click.confirm(f"Forget {what}?", err=True):
                click.echo("nothing was forgotten", err=True)
                ctx.exit(FAILED)
        hw.forget(name, topic)
    show.done(f"forgot {what}")
