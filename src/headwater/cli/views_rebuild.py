"""`headwater views rebuild`: a binder made anew."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from headwater.cli import show
from headwater.cli.arguments import binder_argument, data_argument, json_option
from headwater.cli.opening import open_log
from headwater.cli.progress import Waiting
from headwater.cli.views import app_option, in_directory, load_app, views
from headwater.errors import Invalid

if TYPE_CHECKING:
    from headwater.info import ViewError


@views.command(
    examples=[
        "headwater views rebuild data baskets --app shop.py",
    ]
)
@data_argument
@binder_argument
@app_option
@json_option("One JSON object.")
def rebuild(data: str, binder: str, address: str, as_json: bool) -> None:
    """Make a binder anew from all events, beside the one that is read, and put it in its place.

    The old one is read, and kept up to date by an application that runs, until the new one has caught up. If it fails,
    or is interrupted, everything is as before. Give a projection whose fold has changed a higher version first: an
    application that runs with the lower one then leaves the new binder alone.
    """
    from headwater.views.folding import Halt
    from headwater.views.rebuild import rebuild as build

    with open_log(data, mode="existing") as opened, Waiting("rebuilding", patience_s=0.3) as waiting:
        hw = in_directory(opened, "rebuild", f"{binder} --app {address}")
        app = load_app(address)
        projections = app.of_binder(binder)
        began_s = time.monotonic()
        try:
            folded = build(hw, projections, indexes=app.binders[binder].indexes, progress=waiting.update)
        except Halt as halt:
            raise _failure(binder, halt.error) from halt
    seconds = time.monotonic() - began_s
    if as_json:
        click.echo(show.json_line({"binder": binder, "events": folded, "seconds": round(seconds, 3)}))
    else:
        name = show.printable(binder)
        show.done(f"rebuilt {name} from {show.count(folded, 'event')}, {folded / max(seconds, 1e-9):,.0f} events/s")


def _failure(binder: str, error: ViewError) -> Invalid:
    """What the user's fold raised, and for which event; where in it, for a person who watches."""
    if show.is_terminal(sys.stderr):
        click.echo(error.trace, err=True, nl=False)
    place = show.log_name(error.topic, error.partition)
    return Invalid(
        f"binder {binder!r} is as before: the fold of offset {error.offset} of {place} (type {error.type!r}, id"
        f" {error.id}) raised {error.error}",
        hint="mend the fold, and rebuild again",
        code="fold_failed",
    )
