"""`headwater topics`: list the topics of a log."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from headwater.cli import show
from headwater.cli.app import FAILED, command
from headwater.cli.arguments import data_argument, json_option
from headwater.cli.opening import open_log
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.info import TopicInfo
    from headwater.store import Store

    Failed = list[tuple[str, HeadwaterError]]


@command(examples=["headwater topics data", "headwater topics data --json"])
@data_argument
@json_option("One JSON object a line.")
@click.pass_context
def topics(ctx: click.Context, data: str, as_json: bool) -> None:
    """List the topics, with their partitions, events and bytes.

    Events that a repair has cut out are counted as lost. A topic that cannot be read is listed with the reason, and the
    exit code is 1.
    """
    with open_log(data, mode="existing") as hw:
        described, failed = describe_all(hw)
    if as_json:
        for topic in described:
            click.echo(show.json_line(_told(topic)))
        for failure in reasons(failed):
            click.echo(show.json_line(failure))
    elif described or failed:
        lost = any(topic.lost for topic in described)
        columns = ("topic", "partitions", "events", *(["lost"] if lost else []), "bytes", "offsets", "last event")
        rows = [_row(topic, lost) for topic in described]
        rows += [[name, *[""] * (len(columns) - 2), (str(reason), "red")] for name, reason in failed]
        show.table(columns, rows, right=columns[1:-1])
    else:
        show.note(f"no topics yet — headwater append {data} TOPIC VALUE")
    if failed:
        ctx.exit(FAILED)


def describe_all(hw: Store) -> tuple[list[TopicInfo], Failed]:
    """Describe all topics of a log; and why some cannot be described."""
    described: list[TopicInfo] = []
    failed: Failed = []
    for name in hw.topics():
        try:
            described.append(hw.describe(name))
        except HeadwaterError as error:
            failed.append((name, error))
    return described, failed


def reasons(failed: Failed) -> list[dict[str, str]]:
    """Why topics cannot be described, as JSON tells it."""
    return [{"topic": name, "error": error.code, "message": error.message} for name, error in failed]


def _row(topic: TopicInfo, lost: bool) -> list[show.Cell]:
    last = last_time(topic)
    told: list[show.Cell] = [(show.number(topic.lost), "red" if topic.lost else "")]
    return [
        (topic.name, "bold"),
        str(len(topic.partitions)),
        show.number(topic.events),
        *(told if lost else []),
        show.size(topic.bytes),
        (offsets(min(p.start for p in topic.partitions), max(p.end for p in topic.partitions)), "cyan"),
        f"{show.local(last)}  ({show.ago(last)})" if last else "",
    ]


def _told(topic: TopicInfo) -> dict[str, Any]:
    last = last_time(topic)
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "events": topic.events,
        "lost": topic.lost,
        "bytes": topic.bytes,
        "start": min(partition.start for partition in topic.partitions),
        "end": max(partition.end for partition in topic.partitions),
        "last_time": show.utc(last) if last else None,
    }


def offsets(start: int, end: int) -> str:
    """Return the offsets of the oldest and the newest event."""
    return f"{start:,}..{end - 1:,}" if end > start else "none"


def last_time(topic: TopicInfo) -> datetime | None:
    """When the last event was appended; None if there is none."""
    times = [datetime.fromisoformat(p.last_time) for p in topic.partitions if p.last_time and p.end > p.start]
    return max(times, default=None)
