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
    """Finish, pack and index the segments of a topic.

    They are sealed by themselves when they are full or old; this does it now, before a backup or a long scan. In a
    bucket, it makes segments of all small objects.
    """
    with open_log(data, mode="existing") as hw:
        sealed = hw.seal(topic)
        partitions = hw.describe(topic).partitions
    if sealed:
        total = show.count(sum(partition.sealed for partition in partitions), "sealed segment")
        show.done(f"topic {topic} has {total}, {sealed} of them new")
    else:
        show.done(f"topic {topic} has nothing to seal")
