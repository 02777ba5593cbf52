"""`headwater init`: create a log directory."""

from __future__ import annotations

from headwater.address import is_server
from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import data_argument
from headwater.errors import Unsupported


@command(examples=["headwater init data"])
@data_argument
def init(data: str) -> None:
    """Create a log directory.

    The first append creates it as well. An existing log is left as it is; a directory with other contents is refused.
    """
    if is_server(data):
        raise Unsupported(
            "a log cannot be created over the network", hint="run 'headwater init DIRECTORY' on the server's machine"
        )
    import headwater

    try:
        headwater.open(data, mode="existing").close()
    except headwater.NotFound:
        headwater.open(data).close()
        show.done(f"created log {data}")
    else:
        show.done(f"{data} is already a log")
