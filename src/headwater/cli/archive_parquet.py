"""`headwater archive --on spark`: the sealed history of a log as Parquet files."""

from __future__ import annotations

import click

from headwater.cli import show
from headwater.cli.opening import open_log, tell_workers
from headwater.cli.progress import ProgressLine
from headwater.cli.spark_options import Cluster

PREFIX = "parquet:"


def is_parquet(address: str) -> bool:
    """Whether an address is that of Parquet files."""
    return address.startswith(PREFIX)


def archive_parquet(
    data: str, url: str | None, on: str | None, topic: str | None, cluster: Cluster, *, seal: bool, as_json: bool
) -> None:
    """Archive what is not there yet, once, and tell what was done."""
    if on is None:
        raise click.UsageError(f"Parquet files are written on Spark: headwater archive --on spark {data} {url}")
    target = url or _remembered(data)
    if not is_parquet(target):
        raise click.UsageError(f"on Spark, a log is archived as Parquet: write {PREFIX}{target}")
    with open_log(data, mode="existing") as hw:  # so that what is wrong is told before Spark starts
        hw.topics() if topic is None else hw.describe(topic)
    from headwater.spark.parquet.archiving import archive

    tell_workers(data)
    spark = cluster.started()
    with ProgressLine("archived", as_bytes=True) as waiting:
        topics = None if topic is None else [topic]
        done = archive(spark, data, target, topics=topics, seal=seal, progress=waiting.update)
    size, events = sum(each.bytes for each in done), sum(each.end - each.first for each in done)
    if as_json:
        click.echo(show.json_line({"url": target, "archived": done, "bytes": size, "events": events}))
    elif done:
        files = show.count(len(done), "file")
        show.done(f"archived {show.count(events, 'event')} in {files} ({show.size(size)}) to {show.printable(target)}")
    else:
        show.done(f"all that is finished is in {show.printable(target)} already")


def _remembered(data: str) -> str:
    """Where the log was archived to last."""
    with open_log(data, mode="existing") as hw:
        url = getattr(hw, "parquet_url", None)
    if url is None:
        raise click.UsageError(f"{data} was never archived as Parquet: name the place, as in {PREFIX}out/")
    return f"{PREFIX}{url}"
