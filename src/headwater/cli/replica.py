"""`headwater replica`: show the progress of a replica."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from headwater.cli import show
from headwater.cli.app import FAILED, command
from headwater.cli.arguments import complete_directory, json_option
from headwater.cli.opening import directory_of

if TYPE_CHECKING:
    from headwater.info import ReplicaInfo, ReplicaLog

COLUMNS = ("topic", "partition", "end", "source", "lag", "bytes", "seconds", "")
STYLES = {"copying": "green", "promoted": "cyan", "unreachable": "red"}


@command(examples=["headwater replica data", "headwater replica data --json | jq .lag"])
@click.argument("data", metavar="DATA", shell_complete=complete_directory)
@json_option("One JSON object.")
@click.pass_context
def replica(ctx: click.Context, data: str, as_json: bool) -> None:
    """Show how far a replica has come, as its replicator last reported (about every second).

    The lag counts events, bytes, and the age in seconds of the newest copied event while newer ones exist. The state is
    copying, unreachable (the source is), stopped (no replicator runs) or promoted. If a topic can no longer be copied,
    the exit code is 1.
    """
    from headwater import replica

    info = replica(directory_of(data))
    if as_json:
        click.echo(show.json_line(told(info)))
    else:
        show.facts(_about(info))
        if info.logs:
            click.echo()
            show.console().print(drawn(info))
    if any(log.trouble for log in info.logs):
        ctx.exit(FAILED)


def told(info: ReplicaInfo) -> dict[str, Any]:
    """For programs."""
    import msgspec

    return {**msgspec.to_builtins(info), "lag": info.lag, "lost": info.lost}


def drawn(info: ReplicaInfo) -> Any:
    """Return a table of the logs."""
    return show.drawn(COLUMNS, [_row(log) for log in info.logs], right=COLUMNS[1:-1])


def _about(info: ReplicaInfo) -> list[tuple[str, str]]:
    facts = [("replica of", info.source), ("since", _time(info.since)), ("state", info.state)]
    if info.heard is not None:
        facts.append(("last answer", _time(info.heard)))
    if info.promoted is not None:
        facts.append(("promoted", _time(info.promoted)))
    if info.error:
        facts.append(("error", info.error))
    facts.append(("lag", show.count(info.lag, "event")))
    return [*facts, ("lost at the source", show.count(info.lost, "event"))] if info.lost else facts


def _time(text: str) -> str:
    time = datetime.fromisoformat(text)
    return f"{show.local(time)}  ({show.ago(time)})"


def _row(log: ReplicaLog) -> list[show.Cell]:
    return [
        (log.topic, "bold"),
        str(log.partition),
        (show.number(log.end), "cyan"),
        show.number(log.source_end),
        (show.number(log.lag), "yellow" if log.lag else "green"),
        show.size(log.lag_bytes) if log.lag_bytes else "",
        f"{log.lag_s:.1f}" if log.lag else "",
        (log.trouble, "red"),
    ]
