"""`headwater pipeline status`: show the state of pipelines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from headwater.cli import show
from headwater.cli.app import FAILED
from headwater.cli.arguments import json_option
from headwater.cli.opening import open_log
from headwater.cli.pipeline import checkpoints_option, data_argument, pipeline
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.spark.pipelines.runs import Status
    from headwater.store import Store

EVERY_S = 1.0  # between two looks
COLUMNS = ("pipeline", "topics → to", "mode", "state", "lag", "events", "rows", "rate", "last run")
RIGHT = ("lag", "events", "rows", "rate")
STYLES = {"running": "green", "failed": "red", "interrupted": "yellow"}


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
            with contextlib.suppress(KeyboardInterrupt):  # this is how it ends
                _watch(hw, data, checkpoints, as_json)
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


def _watch(hw: Store, data: str, checkpoints: str | None, as_json: bool) -> None:
    from rich.live import Live

    console = show.console()
    if as_json or not console.is_terminal:
        while True:
            _print(_look(hw, data, checkpoints), as_json)
            time.sleep(EVERY_S)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(_drawn(_look(hw, data, checkpoints)), refresh=True)
            time.sleep(EVERY_S)


def _print(found: Sequence[Status], as_json: bool) -> None:
    if as_json:
        for each in found:
            click.echo(show.json_line(msgspec.to_builtins(each)))
    elif found:
        show.console().print(_drawn(found))


def _drawn(found: Sequence[Status]) -> Any:
    """Return the table, and below it what has gone wrong."""
    from rich.console import Group
    from rich.text import Text

    wrong = [Text.assemble((f"{show.printable(each.name)}: ", "red"), each.error) for each in found if each.error]
    table = show.drawn(COLUMNS, [_row(each) for each in found], right=RIGHT)
    return Group(table, *([Text(), *wrong] if wrong else []))


def _row(each: Status) -> Sequence[show.Cell]:
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
