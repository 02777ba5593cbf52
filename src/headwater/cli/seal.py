"""`headwater seal`: finish and pack segments."""

from __future__ import annotations

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import data_argument, topic_argument
from headwater.cli.opening import open_log


@command(examples=["headwater seal data orders"])
@data_argument
@topic_argument
def seal(data: str, topic: str) -> None:
    """Close, compact and index the segments of a topic.

    Segments are sealed automatically when they are full or old; this does it now, before a backup or a long scan. In a
    bucket, it compacts all small objects into segments.
    """
    with open_log(data, mode="existing") as hw:
        sealed = hw.seal(topic)
        partitions = hw.describe(topic).partitions
    if sealed:
        total = show.count(sum(partition.sealed for partition in partitions), "sealed segment")
        show.done(f"topic {topic} has {total}, {sealed} of them new")
    else:
        show.done(f"topic {topic} has nothing to seal")
