"""`headwater views follow`: changes of documents as they come."""

from __future__ import annotations

import sys

import click

from headwater.cli.arguments import binder_argument, data_argument
from headwater.cli.opening import open_log
from headwater.cli.views import views


@views.command(
    examples=[
        "headwater views follow data baskets",
        "headwater views follow data baskets --after latest | jq -r .id",
    ]
)
@data_argument
@binder_argument
@click.option("--after", metavar="PLACE", help="Continue after this place of a change; latest: only new changes.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Exit after this long without a change."
)
def follow(data: str, binder: str, after: str | None, timeout: float | None) -> None:
    """Print changes of documents as they happen, one JSON object a line.

    Without --after, all documents come first. Each change has a kind (put, delete or reset) and a place to continue
    after. A reset means that all documents follow again, because the binder was rebuilt or too much has changed since.
    Ends with Ctrl-C, or after --timeout.
    """
    from headwater.format import documents

    out = sys.stdout.buffer
    with open_log(data, mode="existing") as hw:
        try:
            for change in hw.binder(binder).follow(after=after, timeout=timeout):
                out.write(documents.encode_change(change) + b"\n")
                out.flush()
        except KeyboardInterrupt:
            return  # this is how it ends
