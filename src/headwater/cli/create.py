"""`headwater create`: create a topic."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import DurationType, SizeType, data_argument, retention_of, retention_options
from headwater.cli.opening import open_log


@command(
    examples=[
        "headwater create data orders --partitions 4",
        "headwater create data videos --data-bytes-max 2GiB --segment-bytes 256MiB",
        "headwater create data logs --retain-bytes 10GB --retain-age 7d",
    ]
)
@data_argument
@click.argument("topic", metavar="TOPIC")
@click.option(
    "--partitions", default=1, metavar="N", help="Number of partitions; cannot be changed later.  [default: 1]"
)
@click.option(
    "--segment-bytes", type=SizeType(), metavar="SIZE", help="Start a new segment at this size.  [default: 64MiB]"
)
@click.option(
    "--segment-age", type=DurationType(), metavar="AGE", help="Start a new segment at this age.  [default: 7d]"
)
@click.option("--data-bytes-max", type=SizeType(), metavar="SIZE", help="Largest data of one event.  [default: 10MiB]")
@click.option("--compression", type=click.Choice(["none", "zstd"]), default="none", help="Compression of stored data.")
@retention_options("retain-")
def create(
    data: str,
    topic: str,
    partitions: int,
    segment_bytes: int | None,
    segment_age: timedelta | None,
    data_bytes_max: int | None,
    compression: Literal["none", "zstd"],
    **retention: Any,
) -> None:
    """Create a topic.

    The first append creates it as well, with one partition. Write sizes as 64MiB, 10MB or 4096, and ages as 90s, 15m,
    2h or 7d. Retention can be changed later with 'headwater retain'.
    """
    with open_log(data) as hw:
        new = hw.create(
            topic,
            partitions=partitions,
            segment_bytes=segment_bytes or 0,
            segment_age_ms=int(segment_age / timedelta(milliseconds=1)) if segment_age else 0,
            data_bytes_max=data_bytes_max or 0,
            compression=compression,
            **retention_of(retention),
        )
    if new:
        show.done(f"created topic {topic} with {show.count(partitions, 'partition')}")
    else:
        show.done(f"topic {topic} exists already; nothing was changed")
