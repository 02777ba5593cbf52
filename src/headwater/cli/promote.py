"""`headwater promote`: end being a replica."""

from __future__ import annotations

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import complete_directory
from headwater.cli.opening import directory_of


@command(examples=["headwater promote data"])
@click.argument("data", metavar="DATA", shell_complete=complete_directory)
def promote(data: str) -> None:
    """Make a replica a log of its own, which takes appends.

    It goes on with the next offsets and later times. What its source acknowledged and was not copied is not there:
    'headwater replica' tells how far it has come. Stop the source first, and whoever writes to it: nothing else keeps
    both from taking appends. It is refused while somebody copies to the directory, and cannot be undone.
    """
    from headwater import promote

    promote(directory_of(data))
    show.done(f"{data} takes appends now")
