"""`headwater views rebuild`: rebuild a binder."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from headwater.cli import show
from headwater.cli.arguments import binder_argument, data_argument, json_option
from headwater.cli.opening import open_log
from headwater.cli.progress import ProgressLine
from headwater.cli.spark_options import Cluster, spark_options
from headwater.cli.views import app_option, in_directory, load_app, views
from headwater.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.info import ViewError
    from headwater.store import Store
    from headwater.views.app import App


@views.command(
    examples=[
        "headwater views rebuild data baskets --app shop.py",
        "headwater views rebuild data baskets --app shop.py --on spark",
    ]
)
@data_argument
@binder_argument
@app_option
@click.option(
    "--on",
    type=click.Choice(["spark"]),
    help="Rebuild with Spark, on all cores or on a cluster that can read the directory.",
)
@json_option("One JSON object.")
@spark_options
def rebuild(data: str, binder: str, address: str, on: str | None, as_json: bool, cluster: Cluster) -> None:
    """Rebuild a binder from all events beside the current one, then replace it.

    The current binder is served, and kept up to date by a running application, until the new one has caught up. If the
    rebuild fails or is interrupted, nothing changes. If the fold of a projection has changed, raise its version first:
    an application that runs the lower version then leaves the new binder alone.

    With --on spark, the history is folded by many processes, each for a share of the documents, with the same result;
    the Spark options apply to it.
    """
    from headwater.views.document_fold import Halt

    with open_log(data, mode="existing") as opened:
        hw = in_directory(opened, "rebuild", f"{binder} --app {address}")
        app = load_app(address)
        app.of_binder(binder)  # raises, before anything is started
        spark = None if on is None else cluster.started(quick=True)
        began_s = time.monotonic()
        try:
            folded = _build(hw, app, binder, spark)
        except Halt as halt:
            raise _failure(binder, halt.error) from halt
    seconds = time.monotonic() - began_s
    if as_json:
        click.echo(show.json_line({"binder": binder, "events": folded, "seconds": round(seconds, 3)}))
    else:
        name = show.printable(binder)
        show.done(f"rebuilt {name} from {show.count(folded, 'event')}, {folded / max(seconds, 1e-9):,.0f} events/s")


def _build(hw: Store, app: App, binder: str, spark: SparkSession | None) -> int:
    """Build it, here or on Spark, with a bar for a person who waits; the events that were folded."""
    from headwater.views.rebuild import rebuild as build

    with ProgressLine("rebuilding", patience_s=0.3) as waiting:
        if spark is None:
            indexes = app.binders[binder].indexes
            return build(hw, app.of_binder(binder), indexes=indexes, progress=waiting.update)
        from headwater.spark import rebuild as build_on_spark

        return build_on_spark(spark, hw, app, binder, progress=waiting.update)


def _failure(binder: str, error: ViewError) -> Invalid:
    """What the user's fold raised, and for which event; where in it, for a person who watches."""
    if show.is_terminal(sys.stderr):
        click.echo(error.trace, err=True, nl=False)
    place = show.log_name(error.topic, error.partition)
    return Invalid(
        f"binder {binder!r} is unchanged: the projection of offset {error.offset} of {place} (type {error.type!r}, id"
        f" {error.id}) raised {error.error}",
        hint="fix the projection function, and rebuild again",
        code="fold_failed",
    )
