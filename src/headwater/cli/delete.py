"""`headwater delete`: delete a topic."""

from __future__ import annotations

import sys

import click

from headwater.cli import show
from headwater.cli.app import FAILED, command
from headwater.cli.arguments import data_argument, topic_argument
from headwater.cli.opening import open_log


@command(examples=["headwater delete data orders", "headwater delete data orders --yes"])
@data_argument
@topic_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_context
def delete(ctx: click.Context, data: str, topic: str, yes: bool) -> None:
    """Delete a topic and all its events, for every process.

    Asks for confirmation; without a terminal, --yes is required. A new topic of the same name starts empty.
    """
    with open_log(data, mode="existing") as hw:
        found = hw.describe(topic)
        what = f"topic {topic} with {show.count(found.events, 'event')} ({show.size(found.bytes)})"
        if not yes:
            if not show.is_terminal(sys.stdin):
                raise click.UsageError("no terminal to confirm on: give --yes", ctx)
            if not click.confirm(f"Delete {what}?", err=True):
                click.echo("nothing was deleted", err=True)
                ctx.exit(FAILED)
        hw.delete(topic)
    show.done(f"deleted {what}")
