"""`headwater views`: applications, which turn events into documents and act on them."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from headwater.cli import show
from headwater.cli.app import FAILED, group
from headwater.errors import HeadwaterError, Invalid, Unsupported

if TYPE_CHECKING:
    from headwater.store import Store
    from headwater.views.app import App
    from headwater.views.query_server import QueryServer


@group
def views() -> None:
    """Run an application's projections and functions, and show their state (docs/VIEWS.md)."""


def app_option(function: Any) -> Any:
    """Return the option --app, which is needed."""
    told = "Application: shop.py, or package.module:app."
    return click.option("--app", "address", metavar="MODULE", required=True, help=told)(function)


@views.command(
    examples=[
        "headwater views run data --app shop.py",
        "headwater views run data --app shop.views:app",
    ]
)
@click.argument("data", metavar="[DATA]", default="data")
@app_option
@click.option("--server-fd", type=int, hidden=True, help="Socket to the server that started this process.")
def run(data: str, address: str, server_fd: int | None) -> None:
    """Run an application's projections and functions, each in a thread, until SIGTERM or Ctrl-C.

    Any number of processes may run the same application: each partition is handled by one of them, and by another one
    if that process dies.
    """
    from headwater.views.query_server import QueryServer

    awake, ring = os.pipe()
    answering = None
    if server_fd is not None:
        # A terminal's Ctrl-C reaches the server too, which then tells us to end: after the queries that it waits for.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.set_inheritable(server_fd, False)  # what user code starts need not know of it
        answering = QueryServer(socket.socket(fileno=server_fd), lambda: os.write(ring, b"."))
    try:
        _run(data, address, answering, awake, ring)
    except HeadwaterError as error:
        if answering is None:
            raise
        answering.broken(error)  # the server tells it, and prints it
        raise Exit(FAILED) from error


def in_directory(hw: Store, verb: str, rest: str) -> Store:
    """An open log that is a directory; raises Unsupported for a server, with what to run where the directory is."""

    try:
        hw.directory  # noqa: B018  # raises for any other store
    except Unsupported as error:
        hint = f"run 'headwater views {verb} DIRECTORY {rest}' on the machine that has the directory"
        raise Unsupported(error.message, hint=hint, code=error.code) from None
    return hw


def load_app(address: str) -> App:
    """Return the application; an error while it is imported is printed with its traceback."""
    from headwater.views.app import load_app

    try:
        return load_app(address)
    except HeadwaterError:
        raise
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        told = f"{address} cannot be imported: {type(error).__name__}: {error}"
        raise Invalid(told, hint="see the traceback", code="app_broken") from error


def _run(data: str, address: str, answering: QueryServer | None, awake: int, ring: int) -> None:
    from headwater.cli.opening import directory_of, open_log

    app = load_app(address)
    for number in (signal.SIGTERM, signal.SIGINT) if answering is None else (signal.SIGTERM,):
        signal.signal(number, lambda *_: os.write(ring, b"."))  # until now, it would have ended nothing that matters
    with open_log(str(directory_of(data))) as hw, app.running(hw):
        if answering is None:
            show.done(f"running {address} on {data}")
        else:
            answering.ready(app, hw)
        sys.stdout.flush()
        os.read(awake, 1)


# The rest of the family, each in a file of its own: they are added to it when they are imported.
from headwater.cli import views_follow, views_rebuild, views_resume, views_status  # noqa: E402, F401
