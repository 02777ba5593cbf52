"""`headwater init`: make a log directory."""

from __future__ import annotations

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import data_argument


@command(examples=["headwater init data"])
@data_argument
def init(data: str) -> None:
    """Make a log directory.

    The first append makes it too. A directory that is a log stays as it is; one that holds other things is refused.
    """
    import headwater

    try:
        headwater.open(data, mode="existing").close()
    except headwater.NotFound:
        headwater.open(data).close()
        show.done(f"{data} is a new log")
    else:
        show.done(f"{data} is a log already")
