"""`headwater delete`: delete a topic."""

from __future__ import annotations

import click

from headwater.cli import show
from headwater.cli.app import command, confirm, yes_option
from headwater.cli.arguments import data_argument, topic_argument
from headwater.cli.opening import open_log


@command(examples=["headwater delete data orders", "headwater delete data orders --yes"])
@data_argument
@topic_argument
@yes_option
@click.pass_context
def delete(ctx: click.Context, data: str, topic: str, yes: bool) -> None:
    """Delete a topic and all its events, for every process.

    Asks for confirmation; without a terminal, --yes is required. A new topic of the same name starts empty.
    """
    with open_log(data, mode="existing") as hw:
        found = hw.describe(topic)
        what = f"topic {topic} with {show.count(found.events, 'event')} ({show.size(found.bytes)})"
        confirm(ctx, f"Delete {what}?", "nothing was deleted", yes=yes)
        hw.delete(topic)
    show.done(f"deleted {what}")
