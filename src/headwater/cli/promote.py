"""`headwater promote`: turn a replica into a primary."""

from __future__ import annotations

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import complete_directory
from headwater.cli.opening import directory_of


@command(examples=["headwater promote data"])
@click.argument("data", metavar="DATA", shell_complete=complete_directory)
def promote(data: str) -> None:
    """Turn a replica into a log that accepts appends.

    It continues with the next offsets and later times. Events that its source acknowledged but that were not copied are
    missing: 'headwater replica' shows how far it has come. Stop the source and its writers first: nothing else keeps
    both from accepting appends. Refused while a replicator runs on the directory; cannot be undone.
    """
    from headwater import promote

    promote(directory_of(data))
    show.done(f"{data} accepts appends now")
