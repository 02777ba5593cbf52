"""`headwater maintain`: compact, trim and collect a bucket."""

from __future__ import annotations

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import data_argument, json_option, optional_topic_argument
from headwater.cli.opening import open_log


@command(examples=["headwater maintain s3://bucket/prefix", "headwater maintain s3://bucket/prefix orders --json"])
@data_argument
@optional_topic_argument
@json_option("One JSON object.")
def maintain(data: str, topic: str | None, as_json: bool) -> None:
    """Compact, trim and garbage-collect a bucket, once.

    Compacts many small objects into segments, trims topics by their retention, and deletes objects that have been
    garbage for ten minutes or more. Programs that append to a bucket do this automatically; run this for a bucket that
    receives no more appends. It is safe at any time, also several at once.
    """
    with open_log(data, mode="existing") as hw:
        done = hw.maintain(topic)
    if as_json:
        click.echo(show.json_line(done))
        return
    made, trimmed = show.count(done.segments, "segment"), show.count(len(done.trimmed), "segment")
    show.done(f"{made} created, {trimmed} trimmed, {show.count(done.collected, 'object')} deleted")
