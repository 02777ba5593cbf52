"""`headwater replicate`: copy a log to another directory, and follow it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from headwater.cli import show
from headwater.cli.app import command, on_signals
from headwater.cli.arguments import complete_directory, data_argument, json_option
from headwater.cli.opening import credentials, directory_of

if TYPE_CHECKING:
    from headwater.info import ReplicaInfo


@command(
    examples=[
        "headwater replicate http://primary:7450 data",
        "headwater replicate https://primary:7450 data --topic orders --topic payments",
        "headwater replicate /mnt/primary/data data --once",
        "headwater replicate http://primary:7450 data --json | jq .lag",
    ]
)
@click.argument("source", metavar="SOURCE", shell_complete=complete_directory)
@data_argument
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be repeated.")
@click.option("--once", is_flag=True, help="End when everything present at the source is copied.")
@click.option("--delete", is_flag=True, help="Also delete topics that were deleted at the source.")
@click.option(
    "--restart-topic", "restart", multiple=True, metavar="TOPIC", help="Delete this topic here and copy it again."
)
@json_option("One JSON object a second, as replica does.")
def replicate(
    source: str,
    data: str,
    topics: tuple[str, ...],
    once: bool,
    delete: bool,
    restart: tuple[str, ...],
    as_json: bool,
) -> None:
    """Copy the log SOURCE, a server or a directory, to the directory DATA, and follow it.

    DATA receives the same batches: the same offsets, times, ids and producers. It can be read, followed, consumed and
    served, but not appended to until it is promoted. After an interruption, run the command again: it continues where
    it stopped. Ends with Ctrl-C or SIGTERM; see replica and docs/REPLICATION.md.
    """
    from headwater.limits import DEFAULTS
    from headwater.opening import replicator

    path = directory_of(data)
    with (
        _shown(as_json) as told,
        replicator(source, path, topics or None, delete, restart, told, DEFAULTS, credentials(source)) as copying,
        on_signals(copying.stop),
    ):
        info = copying.run(once=once)
    if not as_json:
        behind = f", {show.count(info.lag, 'event')} behind" if info.lag else ""
        lost = f"; {show.count(info.lost, 'event')} of them lost at the source" if info.lost else ""
        show.done(
            f"{data} has {show.count(sum(log.end for log in info.logs), 'offset')} of {info.source}{behind}{lost}"
        )


@contextlib.contextmanager
def _shown(as_json: bool) -> Iterator[Callable[[ReplicaInfo], None]]:
    """Yield a function that shows the state: on a terminal a table, elsewhere a line when something has changed."""
    from headwater.cli.replica import drawn, told

    console = show.console()
    if as_json:
        yield lambda info: click.echo(show.json_line(told(info)))
    elif console.is_terminal:
        from rich.live import Live

        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda info: live.update(drawn(info), refresh=True)
    else:
        yield _StateLines()


class _StateLines:
    """A line whenever the state changes, or whether it has caught up."""

    def __init__(self) -> None:
        self._last: Any = None

    def __call__(self, info: ReplicaInfo) -> None:
        now = info.state, info.lag > 0, info.error
        if now != self._last and info.state != "stopped":
            self._last = now
            how = info.error or (f"{show.count(info.lag, 'event')} behind" if info.lag else "has all")
            click.echo(f"{info.state}: {how}")
