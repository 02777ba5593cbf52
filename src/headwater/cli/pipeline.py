"""`headwater pipeline`: run the pipelines of an application on Spark, list them, and show their state."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from headwater.cli import show
from headwater.cli.app import FAILED, INTERRUPTED, group, on_signals
from headwater.cli.arguments import Cluster, complete_directory, json_option, spark_options
from headwater.cli.opening import open_log, server_options, tell_workers
from headwater.cli.views import load_app
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.spark.pipelines.runs import Status
    from headwater.store import Store
    from headwater.views.pipeline import Pipeline


COLUMNS = ("pipeline", "topics → to", "mode", "state", "lag", "events", "rows", "rate", "last run")
RIGHT = ("lag", "events", "rows", "rate")
STYLES = {"running": "green", "failed": "red", "interrupted": "yellow"}


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
    stop = threading.Event()  # a stream then ends between two batches, and a batch at once
    with cluster.working("pipelines") as spark, on_signals(stop.set):
        found = run_all(
            spark, data, app, only, follow=follow, fresh=fresh, checkpoints=checkpoints, stop=stop, told=told
        )
    if any(each.state == "interrupted" for each in found):
        ctx.exit(INTERRUPTED)


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


@pipeline.command(
    examples=[
        "headwater pipeline status",
        "headwater pipeline status data --watch",
        "headwater pipeline status data --json | jq '{name, state, lag}'",
    ]
)
@data_argument
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@checkpoints_option
@json_option("One JSON object a line.")
@click.pass_context
def status(ctx: click.Context, data: str, watch: bool, checkpoints: str | None, as_json: bool) -> None:
    """Show the pipelines that have run over a log: progress, rate and errors.

    The lag counts events that a pipeline has not processed. Events and rows are those of the current run, or of the
    last one. A pipeline is running, idle, failed or interrupted (killed, or stopped before its end). If one has failed,
    the exit code is 1.
    """
    with open_log(data, mode="existing") as hw:
        found = _look(hw, data, checkpoints)
        if watch:
            show.watch(lambda: _look(hw, data, checkpoints), _print, _drawn, as_json=as_json)
            return
        _print(found, as_json)
        if not found:
            show.note("no pipeline has run yet — headwater pipeline run MODULE")
    if any(each.state == "failed" for each in found):
        ctx.exit(FAILED)


def _look(hw: Store, data: str, checkpoints: str | None) -> list[Status]:
    from headwater.spark.pipelines import runs
    from headwater.spark.pipelines.frames import lag

    found = runs.statuses(runs.root_of(data, checkpoints))
    for each in found:
        with contextlib.suppress(HeadwaterError):  # a topic that cannot be read hides nothing else
            each.lag = lag(hw, each)
    return found


def _print(found: Sequence[Status], as_json: bool) -> None:
    if as_json:
        for each in found:
            click.echo(show.json_line(msgspec.to_builtins(each)))
    elif found:
        show.console().print(_drawn(found))


def _drawn(found: Sequence[Status]) -> Any:
    """Return the table, and the errors below it."""
    from rich.console import Group
    from rich.text import Text

    wrong = [Text.assemble((f"{show.printable(each.name)}: ", "red"), each.error) for each in found if each.error]
    table = show.drawn(COLUMNS, [_status_row(each) for each in found], right=RIGHT)
    return Group(table, *([Text(), *wrong] if wrong else []))


def _status_row(each: Status) -> Sequence[show.Cell]:
    began = show.ago(datetime.fromisoformat(each.began)) if each.began else ""
    return [
        (each.name, "bold"),
        show.printable(f"{', '.join(each.topics)} → {each.to}"),
        each.mode,
        (each.state, STYLES.get(each.state, "")),
        "?" if each.lag is None else (show.number(each.lag), "yellow" if each.lag else "green"),
        show.number(each.events),
        show.number(each.rows),
        f"{each.rate:,.0f}/s" if each.rate else "",
        f"{began}, {each.seconds:.1f} s",
    ]
