"""`headwater retain`: set the retention of a topic, and delete expired segments."""

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
    from headwater.info import DeletedSegment
    from headwater.store import Store

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
@click.option(
    "--before",
    type=PositionType(),
    metavar="POSITION",
    help="Also delete segments that end before this position, once.",
)
@partition_option
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; change nothing.")
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
    """Set what a topic keeps, and delete the rest now.

    Whole segments are deleted, the oldest first; this also happens automatically whenever a segment is full. Every
    limit applies to one partition; 0 removes it. The active segment is only deleted when all its events are too old.

    With --consumers, events that the slowest consumer has not passed are kept. --hard-bytes limits even those: with
    --overflow delete, the oldest are deleted anyway; with refuse, appends fail until the consumers have caught up. If
    the log has an archive, only archived segments are deleted, and they stay readable there.

    POSITION is an offset (with --partition, if there are several) or a time. Without options, only deletes.
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


def _kept(hw: Store, topic: str) -> dict[str, Any]:
    from headwater.format.settings import Retention

    settings = hw.describe(topic).settings
    return {name: settings[name] for name in Retention.__annotations__ if name in settings}


def _show(topic: str, deleted: list[DeletedSegment], dry_run: bool) -> None:
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
