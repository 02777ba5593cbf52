"""`headwater views`: run an application, show its state, follow and rebuild binders, resume projections."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.exceptions import Exit

from headwater.cli import show
from headwater.cli.app import FAILED, group
from headwater.cli.arguments import (
    Cluster,
    binder_argument,
    complete_projection,
    data_argument,
    json_option,
    spark_options,
)
from headwater.cli.opening import directory_of, open_log
from headwater.cli.show import ProgressLine
from headwater.errors import HeadwaterError, Invalid, Unsupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.info import ViewError, ViewInfo
    from headwater.store import Store
    from headwater.views.app import App
    from headwater.views.query_server import QueryServer


COLUMNS = ("view", "kind", "topic → binder", "state", "lag", "rate", "events", "errors", "aside")
RIGHT = ("lag", "rate", "events", "errors", "aside")
STYLES = {"running": "green", "stopped": "red", "unreadable": "red", "rebuilding": "cyan"}
BROKEN = ("stopped", "unreadable")

Seen = list[tuple["ViewInfo", "list[ViewError] | None"]]
"""Views, each with the events that it has quarantined, if they were requested."""


@group
def views() -> None:
    """Run an application's projections and functions, and show their state (docs/VIEWS.md)."""


def app_option(function: Any) -> Any:
    """Add the required option --app."""
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
    """Return the store if it is a directory; raises Unsupported for another, with the command to run instead."""
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
    """Build the binder, here or on Spark, with a progress bar; return the number of folded events."""
    from headwater.views.rebuild import rebuild as build

    with ProgressLine("rebuilding", patience_s=0.3) as waiting:
        if spark is None:
            indexes = app.binders[binder].indexes
            return build(hw, app.of_binder(binder), indexes=indexes, progress=waiting.update)
        from headwater.spark import rebuild as build_on_spark

        return build_on_spark(spark, hw, app, binder, progress=waiting.update)


def _failure(binder: str, error: ViewError) -> Invalid:
    """Return the error for what the projection function raised, with its event; on a terminal, print the traceback."""
    if show.is_terminal(sys.stderr):
        click.echo(error.trace, err=True, nl=False)
    place = show.log_name(error.topic, error.partition)
    return Invalid(
        f"binder {binder!r} is unchanged: the projection of offset {error.offset} of {place} (type {error.type!r}, id"
        f" {error.id}) raised {error.error}",
        hint="fix the projection function, and rebuild again",
        code="fold_failed",
    )


@views.command(examples=["headwater views resume data basket"])
@data_argument
@click.argument("name", metavar="NAME", shell_complete=complete_projection)
def resume(data: str, name: str) -> None:
    """Resume the projection NAME, which an error has stopped, at the event it stopped at.

    The running application notices within a second. If you have fixed its code, restart the application instead: that
    resumes its projections as well.
    """
    from headwater.views.status import resume

    with open_log(data, mode="existing") as opened:
        hw = in_directory(opened, "resume", name)
        binders = resume(hw, name)
        running = any(view.name == name and view.state == "running" for view in hw.views())
    show.done(f"projection {show.printable(name)} resumes with binder {', '.join(map(show.printable, binders))}")
    if not running:
        show.note(f"it is processed when the application runs — headwater views run {data} --app MODULE")


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
        show.watch(lambda: _look(hw, events), _print, _drawn, as_json=as_json)


def _look(hw: Store, events: bool) -> Seen:
    """Return all views; with `events`, each with the events that it has quarantined."""
    found = hw.views()
    if not events:
        return [(view, None) for view in found]
    from headwater.views.status import quarantined

    local = in_directory(hw, "status", "--events")
    return [(view, quarantined(local, view.name) if view.aside and view.binder else []) for view in found]


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
    """Return the table, and the errors below it."""
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
    """Return the event and its error, in one line."""
    why = show.printable(error.error)
    if not error.topic:  # it was no event
        return f"— {why}"
    type = f", type {show.printable(error.type)}" if error.type else ""
    return f"at offset {error.offset} of {show.log_name(error.topic, error.partition)}{type}: {why}"
