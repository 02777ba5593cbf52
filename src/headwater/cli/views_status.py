"""`headwater views status`: show the state of projections and functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from headwater.cli import show
from headwater.cli.app import FAILED
from headwater.cli.arguments import data_argument, json_option
from headwater.cli.opening import open_log
from headwater.cli.views import views

if TYPE_CHECKING:
    from headwater.info import ViewError, ViewInfo
    from headwater.store import Store

EVERY_S = 1.0  # between two looks
COLUMNS = ("view", "kind", "topic → binder", "state", "lag", "rate", "events", "errors", "aside")
RIGHT = ("lag", "rate", "events", "errors", "aside")
STYLES = {"running": "green", "stopped": "red", "unreadable": "red", "rebuilding": "cyan"}
BROKEN = ("stopped", "unreadable")


@views.command(
    examples=[
        "headwater views status data",
        "headwater views status data --watch",
        "headwater views status data --events",
        "headwater views status http://127.0.0.1:7450 --json | jq '{name, state, lag}'",
    ]
)
@data_argument
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@click.option("--events", is_flag=True, help="Also list quarantined events.")
@json_option("One JSON object a line.")
@click.pass_context
def status(ctx: click.Context, data: str, watch: bool, events: bool, as_json: bool) -> None:
    """Show all projections and functions: lag, rate and errors.

    The lag counts events that are not handled; the rate is events per second over the last seconds. A view is running,
    idle (no process runs it), stopped by an error, or rebuilding. The column aside counts events that a projection
    quarantined or a function dead-lettered. The last error of each view is shown below, with its event.

    If a view is stopped, or a binder cannot be read, the exit code is 1.
    """
    with open_log(data, mode="existing") as hw:
        if not watch:
            found = _look(hw, events)
            _print(found, as_json)
            if not found:
                show.note(f"no views yet — headwater views run {data} --app MODULE")
            if any(view.state in BROKEN for view, _ in found):
                ctx.exit(FAILED)
            return
        try:
            _watch(lambda: _look(hw, events), as_json)
        except KeyboardInterrupt:
            return  # this is how it ends


Seen = list[tuple["ViewInfo", "list[ViewError] | None"]]


def _look(hw: Store, events: bool) -> Seen:
    """Return all views, and of each what it has quarantined, if that is wanted."""
    found = hw.views()
    if not events:
        return [(view, None) for view in found]
    from headwater.cli.views import in_directory
    from headwater.views import status

    local = in_directory(hw, "status", "--events")
    return [(view, status.quarantined(local, view.name) if view.aside and view.binder else []) for view in found]


def _watch(look: Callable[[], Seen], as_json: bool) -> None:
    from rich.live import Live

    console = show.console()
    if as_json or not console.is_terminal:
        while True:
            _print(look(), as_json)
            time.sleep(EVERY_S)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(_drawn(look()), refresh=True)
            time.sleep(EVERY_S)


def _print(found: Seen, as_json: bool) -> None:
    if as_json:
        for view, quarantined in found:
            told: dict[str, Any] = msgspec.to_builtins(view)
            if quarantined is not None:
                told["quarantined"] = msgspec.to_builtins(quarantined)
            click.echo(show.json_line(told))
    elif found:
        show.console().print(_drawn(found))


def _drawn(found: Seen) -> Any:
    """Return the table, and below it what has gone wrong."""
    from rich.console import Group
    from rich.text import Text

    below: list[Any] = []
    for view, quarantined in found:
        if view.error is not None:
            below.append(_trouble(view, view.error))
        below += [Text(f"  {_told(error)}") for error in quarantined or ()]
    return Group(
        show.drawn(COLUMNS, [_row(view) for view, _ in found], right=RIGHT), *([Text(), *below] if below else [])
    )


def _row(view: ViewInfo) -> Sequence[show.Cell]:
    where = show.printable(view.topic)
    if view.binder is not None:
        where += f" → {show.printable(view.binder)}"
    return [
        (view.name, "bold"),
        view.kind,
        where.removeprefix(" → "),
        (view.state, STYLES.get(view.state, "")),
        (show.number(view.lag), "yellow" if view.lag else "green"),
        f"{view.rate:,.0f}/s" if view.rate else "",
        show.number(view.events),
        (show.number(view.errors), "red") if view.errors else "0",
        (show.number(view.aside), "yellow") if view.aside else "0",
    ]


def _trouble(view: ViewInfo, error: ViewError) -> Any:
    from rich.text import Text

    how = "cannot be read" if view.state == "unreadable" else "stopped" if view.state == "stopped" else "last error"
    style = "red" if view.state in BROKEN else "yellow"
    return Text.assemble((f"{show.printable(view.name)}: {how}", style), f" {_told(error)}")


def _told(error: ViewError) -> str:
    """Return which event, and why, in one line."""
    why = show.printable(error.error)
    if not error.topic:  # it was no event
        return f"— {why}"
    type = f", type {show.printable(error.type)}" if error.type else ""
    return f"at offset {error.offset} of {show.log_name(error.topic, error.partition)}{type}: {why}"
