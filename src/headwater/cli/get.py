"""`headwater get`: one document of a binder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import at_least_options, binder_argument, data_argument, json_option, passed_options
from headwater.cli.opening import open_log
from headwater.errors import NotFound

if TYPE_CHECKING:
    from headwater.protocols import AtLeast


@command(
    examples=[
        "headwater get data baskets ann",
        "headwater get data baskets ann --at-least orders:0:41 --json",
        "headwater get http://127.0.0.1:7450 baskets ann | jq .total",
    ]
)
@data_argument
@binder_argument
@click.argument("id", metavar="ID")
@at_least_options
@json_option("One JSON object: id, version and data.")
def get(data: str, binder: str, id: str, at_least: AtLeast | None, timeout: float | None, as_json: bool) -> None:
    """Print the document ID of a binder as JSON; BSON types as relaxed Extended JSON.

    If it does not exist, the exit code is 1. Its version is the offset of the last event folded into it.
    """
    from headwater.cli.documents import pretty
    from headwater.format import documents

    with open_log(data, mode="existing") as hw:
        found = hw.binder(binder).get(id, **passed_options(at_least, timeout))
    if found is None:
        raise NotFound(f"binder {binder!r} has no document {id!r}", code="no_such_document")
    if as_json:
        click.echo(documents.encode(found))
    else:
        click.echo(pretty(found.data))
        show.note(f"version {found.version}")
