"""`headwater pipeline`: run the pipelines of an application on Spark."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from headwater.cli import show
from headwater.cli.app import INTERRUPTED, group
from headwater.cli.arguments import complete_directory, json_option
from headwater.cli.opening import server_options, tell_workers
from headwater.cli.spark_options import Cluster, spark_options
from headwater.cli.views import load_app

if TYPE_CHECKING:
    from headwater.spark.pipelines.runs import Status
    from headwater.views.pipeline import Pipeline


@group
def pipeline() -> None:
    """Run an application's pipelines on Spark, and show their state (docs/PIPELINES.md)."""


def app_argument(function: Any) -> Any:
    """Return the argument MODULE, an application."""
    return click.argument("address", metavar="MODULE")(function)


def data_argument(function: Any) -> Any:
    """Return the argument DATA, a log; `data` by default."""
    argument = click.argument("data", metavar="[DATA]", default="data", shell_complete=complete_directory)
    return argument(server_options(function))


def checkpoints_option(function: Any) -> Any:
    """Return the option --checkpoints."""
    help = "Directory for checkpoints.  [default: pipelines/ in DATA, if that is a directory]"
    return click.option("--checkpoints", metavar="DIRECTORY", help=help)(function)


@pipeline.command(
    examples=[
        "headwater pipeline run shop.py",
        "headwater pipeline run shop.py data --only revenue",
        "headwater pipeline run shop.py data --follow --master 'local[4]'",
        "headwater pipeline run shop.views:app http://127.0.0.1:7450 --checkpoints state",
    ]
)
@app_argument
@data_argument
@click.option("--only", metavar="NAME", multiple=True, help="Only this pipeline; may be repeated.")
@click.option("--follow/--once", help="Run streams until Ctrl-C, or only over present events.  [default: --once]")
@click.option("--fresh", is_flag=True, help="Discard previous progress and start over.")
@checkpoints_option
@json_option("One JSON object a line, for each pipeline when it ends.")
@spark_options
@click.pass_context
def run(
    ctx: click.Context,
    address: str,
    data: str,
    only: tuple[str, ...],
    follow: bool,
    fresh: bool,
    checkpoints: str | None,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Run the pipelines of the application MODULE (shop.py or package.module:app) over a log.

    They run one after the other, in the order of their declaration. Progress is kept: after a crash, or when there are
    new events, run the command again, and nothing is written twice. Ctrl-C ends it; the next run continues.
    """
    from headwater.spark.pipelines.running import run as run_all

    app = load_app(address)

    def told(status: Status) -> None:
        if status.ended is not None and status.state == "idle":
            if as_json:
                click.echo(show.json_line(msgspec.to_builtins(status)))
            else:
                show.done(_ended(status))

    tell_workers(data)
    with cluster.working("pipelines") as spark, _stopping() as stop:
        found = run_all(
            spark, data, app, only, follow=follow, fresh=fresh, checkpoints=checkpoints, stop=stop, told=told
        )
    if any(each.state == "interrupted" for each in found):
        ctx.exit(INTERRUPTED)


@contextlib.contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Have SIGINT and SIGTERM set an event: a stream ends between two batches then, and a batch at once."""
    stop = threading.Event()
    before = [(number, signal.signal(number, lambda *_: stop.set())) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield stop
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _ended(status: Status) -> str:
    """`revenue: 100 events → 2 rows in parquet:out (1.7 s, 58 events/s)`"""
    if not status.batches:
        return f"{show.printable(status.name)}: nothing new"
    what = f"{show.count(status.events, 'event')} → {show.count(status.rows, 'row')}"
    took = f"{status.seconds:.1f} s, {status.events / max(status.seconds, 0.001):,.0f} events/s"
    return f"{show.printable(status.name)}: {what} in {show.printable(status.to)} ({took})"


@pipeline.command(examples=["headwater pipeline list shop.py", "headwater pipeline list shop.py --json"], name="list")
@app_argument
@json_option("One JSON object a line.")
def list_(address: str, as_json: bool) -> None:
    """List the pipelines of the application MODULE, with their sources and targets. Does not start Spark."""
    found = list(load_app(address).pipelines.values())
    if as_json:
        for each in found:
            click.echo(show.json_line({"name": each.name, **each.declared()}))
    elif found:
        show.table(("pipeline", "topics", "to", "mode", "description"), [_row(each) for each in found])
    else:
        show.note(f"{address} has no pipelines — declare one with @app.pipeline")


def _row(each: Pipeline) -> list[show.Cell]:
    about = (each.compute.__doc__ or "").strip().partition("\n")[0]
    return [(each.name, "bold"), ", ".join(each.topics), str(each.target), each.mode, about]


# The rest of the family, in a file of its own: it is added to it when it is imported.
from headwater.cli import pipeline_status  # noqa: E402, F401
