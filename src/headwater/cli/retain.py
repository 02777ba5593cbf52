"""`headwater retain`: what a topic keeps, and deleting the rest."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import (
    PositionType,
    data_argument,
    json_option,
    partition_option,
    retention_of,
    retention_options,
    topic_argument,
)
from headwater.cli.info import setting
from headwater.cli.opening import open_log

if TYPE_CHECKING:
    from headwater.api import Log
    from headwater.info import Deleted

COLUMNS = ("partition", "offsets", "events", "bytes")


@command(
    examples=[
        "headwater retain data orders",
        "headwater retain data orders --bytes 1GB --age 7d",
        "headwater retain data orders --consumers --hard-bytes 10GB --overflow refuse",
        "headwater retain data orders --before 2025-03-01 --dry-run",
    ]
)
@data_argument
@topic_argument
@retention_options("")
@click.option("--before", type=PositionType(), metavar="POSITION", help="Also delete what ends before this, once.")
@partition_option
@click.option("--dry-run", is_flag=True, help="Change and delete nothing: show what would be deleted.")
@json_option("One JSON object.")
def retain(
    data: str,
    topic: str,
    before: Any,
    partition: int | None,
    dry_run: bool,
    as_json: bool,
    **retention: Any,
) -> None:
    """Say what a topic keeps, and delete the rest now.

    Whole segments are deleted, the oldest first; by itself that happens whenever a segment is full. Every bound is for
    one partition, and 0 takes it away. The active segment is never deleted, unless all its events are too old.

    With --consumers, what the slowest consumer has not passed is kept. --hard-bytes bounds even that: then, with
    --overflow delete, the oldest is deleted all the same, and with refuse, appends fail until the consumers have caught
    up. Of a log with an archive, only what is in it is deleted, and stays readable there.

    PLACE is an offset (with --partition, if there are several) or a time. Without options, only deletes.
    """
    if before is not None and not isinstance(before, int | datetime):
        raise click.UsageError("--before takes an offset or a time")
    with open_log(data, mode="existing") as hw:
        changes = retention_of(retention)
        deleted = hw.retain(topic, before=before, partition=partition, dry_run=dry_run, **changes)
        kept = _kept(hw, topic)
        if dry_run:
            kept = {name: value for name, value in (kept | changes).items() if value}
    if as_json:
        click.echo(show.json_line({"topic": topic, "retention": kept, "dry_run": dry_run, "deleted": deleted}))
        return
    if kept:
        show.facts([setting(name, value) for name, value in kept.items()])
    else:
        click.echo("everything is kept")
    _show(topic, deleted, dry_run)


def _kept(hw: Log, topic: str) -> dict[str, Any]:
    from headwater.format.settings import Retention

    settings = hw.describe(topic).settings
    return {name: settings[name] for name in Retention.__annotations__ if name in settings}


def _show(topic: str, deleted: list[Deleted], dry_run: bool) -> None:
    if deleted:
        rows = [
            (
                str(each.partition),
                f"{each.first}..{each.end - 1}",
                show.number(each.end - each.first),
                show.size(each.bytes),
            )
            for each in deleted
        ]
        click.echo()
        show.table(COLUMNS, rows, right=COLUMNS)
    segments = show.count(len(deleted), "segment")
    what = f"{segments} of topic {topic} ({show.size(sum(each.bytes for each in deleted))})"
    if dry_run:
        click.echo(f"Nothing was changed. Without --dry-run, {what} would be deleted.")
    else:
        show.done(f"deleted {what}" if deleted else f"topic {topic} has nothing to delete")
