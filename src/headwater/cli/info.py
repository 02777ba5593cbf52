"""`headwater info`: describe a log and its topics."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from headwater.address import absolute
from headwater.cli import show
from headwater.cli.app import FAILED, command
from headwater.cli.arguments import data_argument, json_option, optional_topic_argument
from headwater.cli.opening import open_log
from headwater.cli.topics import describe_all, last_time, reasons

if TYPE_CHECKING:
    from headwater.info import PartitionInfo, TopicInfo
    from headwater.store import Store

COLUMNS = ("topic", "partition", "start", "end", "durable", "segments", "sealed", "bytes", "state")
RANGES_MAX = 10  # of lost offsets that are listed for one partition
NUMBERS = (*COLUMNS[1:-1], "archived", "local")


@command(examples=["headwater info data", "headwater info data orders", "headwater info data --json | jq .topics"])
@data_argument
@optional_topic_argument
@json_option("One JSON object.")
@click.pass_context
def info(ctx: click.Context, data: str, topic: str | None, as_json: bool) -> None:
    """Show the contents of a log, by partition.

    start is the oldest offset, end the offset of the next event, and durable how far events are known to be on disk. If
    the log has an archive, events before archived are in it, and local is the oldest offset on this disk. Also lists
    what recovery after a crash cut off and where it is kept, and the offsets of events that a repair removed. A topic
    that cannot be read is listed with the reason, and the exit code is 1.
    """
    with open_log(data, mode="existing") as hw:
        described, failed = describe_all(hw) if topic is None else ([hw.describe(topic)], [])
        if as_json:
            click.echo(show.json_line(_told(hw, described) | {"failed": reasons(failed)}))
            ctx.exit(FAILED if failed else 0)
        show.facts(_about_topic(described[0]) if topic is not None else _about_log(hw, described))
    archived = any(partition.archived is not None for each in described for partition in each.partitions)
    rows = [_row(each, partition, archived) for each in described for partition in each.partitions]
    if rows:
        click.echo()
        columns = (*COLUMNS[:-1], "archived", "local", COLUMNS[-1]) if archived else COLUMNS
        show.table(columns, rows, right=NUMBERS)
    _show_recoveries(described)
    _show_lost(described)
    for name, reason in failed:
        click.echo(f"{click.style('✗', fg='red', bold=True)} {show.printable(name)}: {show.printable(str(reason))}")
    if failed:
        ctx.exit(FAILED)


def _about_log(hw: Store, described: list[TopicInfo]) -> list[tuple[str, str]]:
    return [
        where(hw),
        *_archive(hw),
        ("uuid", hw.uuid),
        *_about_replica(hw),
        ("topics", show.number(len(described))),
        ("events", show.number(sum(topic.events for topic in described))),
        *_lost(described),
        ("bytes", show.size(sum(topic.bytes for topic in described))),
    ]


def _about_replica(hw: Store) -> list[tuple[str, str]]:

    found = hw.replica
    if found is None:
        return []
    return [("replica of" if found.promoted is None else "promoted; formerly a replica of", found.source)]


def where(hw: Store) -> tuple[str, str]:
    """Return where a log is, and what that is."""
    return hw.backend.kind, absolute(hw.address)


def _archive(hw: Store) -> list[tuple[str, str]]:

    url = hw.archive_url
    return [("archive", show.printable(url))] if url is not None else []


def _about_topic(topic: TopicInfo) -> list[tuple[str, str]]:
    last = last_time(topic)
    facts = [
        ("topic", topic.name),
        ("uuid", topic.uuid),
        ("events", show.number(topic.events)),
        *_lost([topic]),
        ("bytes", show.size(topic.bytes)),
        ("last event", f"{show.local(last)}  ({show.ago(last)})" if last else "none"),
    ]
    oldest = first_time(topic)
    facts.insert(-1, ("oldest event", f"{show.local(oldest)}  ({show.ago(oldest)})" if oldest else "none"))
    return facts + [setting(name, value) for name, value in topic.settings.items()]


def setting(name: str, value: Any) -> tuple[str, str]:
    """Return a setting of a topic as people read it."""
    if name.endswith("_ms"):
        text = show.duration(value)
    elif "_bytes" in name:
        text = show.size(value)
    else:
        text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return name.removesuffix("_ms").replace("_", " "), text


def first_time(topic: TopicInfo) -> datetime | None:
    """When the oldest event that is left was appended; None if there is none."""
    times = [datetime.fromisoformat(partition.first_time) for partition in topic.partitions if partition.first_time]
    return min(times, default=None)


def _row(topic: TopicInfo, partition: PartitionInfo, archived: bool) -> list[show.Cell]:
    behind = partition.durable < partition.end
    local = partition.start if partition.local is None else partition.local
    told: list[show.Cell] = [show.number(partition.archived or 0), show.number(local)]
    return [
        (topic.name, "bold"),
        str(partition.partition),
        show.number(partition.start),
        (show.number(partition.end), "cyan"),
        (show.number(partition.durable), "yellow" if behind else ""),
        show.number(partition.segments),
        show.number(partition.sealed),
        show.size(partition.bytes),
        *(told if archived else []),
        (partition.state, "green" if partition.state == "open" else "red"),
    ]


def _show_recoveries(described: list[TopicInfo]) -> None:
    for topic in described:
        for partition in topic.partitions:
            for report in partition.recovered:
                first, end = report.lost_offsets
                when = show.local(datetime.fromisoformat(report.time))
                parts = []
                if report.cut_bytes:
                    parts.append(
                        f"cut {show.size(report.cut_bytes)} at position {report.position}, kept in {report.kept}"
                    )
                if end > first:
                    parts.append(f"lost offsets {first}..{end - 1}, which were never synced")
                mark = click.style("recovered", fg="yellow")
                click.echo(f"{mark} {topic.name}/{partition.partition}, {when}: {'; '.join(parts)}")


def _lost(described: list[TopicInfo]) -> list[tuple[str, str]]:
    lost = sum(topic.lost for topic in described)
    return [("lost events", show.number(lost))] if lost else []


def _show_lost(described: list[TopicInfo]) -> None:
    for topic in described:
        for partition in topic.partitions:
            if partition.lost:
                ranges = [f"{lo}..{hi - 1}" for lo, hi in partition.lost]
                rest = f" and {len(ranges) - RANGES_MAX} more ranges" if len(ranges) > RANGES_MAX else ""
                which = f"offsets {', '.join(ranges[:RANGES_MAX])}{rest}"
                mark = click.style("lost", fg="red")
                click.echo(f"{mark} {topic.name}/{partition.partition}: {which} were damaged and cut by repair")


def _told(hw: Store, described: list[TopicInfo]) -> dict[str, Any]:
    import msgspec

    return {
        **dict([where(hw), *_archive(hw)]),
        "uuid": hw.uuid,
        "events": sum(topic.events for topic in described),
        "lost": sum(topic.lost for topic in described),
        "bytes": sum(topic.bytes for topic in described),
        "topics": [msgspec.to_builtins(topic) for topic in described],
    }
