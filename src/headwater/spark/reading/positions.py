"""The position of a stream: offsets of all partitions of its topics, and the limit of the next trigger. Needs no Spark.

Spark keeps positions as JSON in its checkpoint and compares them as text: the same position must always be the same
text. So topics are in order, and where a stream began in a topic stays in its position for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from headwater.errors import Invalid, NotFound
from headwater.info import Split, TopicInfo
from headwater.spark.reading.scan import remade

if TYPE_CHECKING:
    from headwater.store import Store

CUTS = 16  # in how many parts what is looked at for a trigger is cut, to admit as many of them as fit


class TopicProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a stream is in one topic: from where it began to before `end`, in each partition."""

    uuid: str
    start: list[int]
    end: list[int]


Positions: TypeAlias = dict[str, TopicProgress]
"""By topic, sorted."""


def told(positions: Positions) -> dict[str, Any]:
    """Return positions as Spark stores them, always in the same order."""
    found: dict[str, Any] = msgspec.to_builtins({topic: positions[topic] for topic in sorted(positions)})
    return found


def understood(given: Mapping[str, Any]) -> Positions:
    """Return positions that Spark has stored; raises Invalid for those of another source."""
    try:
        return msgspec.convert(given, Positions)
    except msgspec.ValidationError as error:
        raise Invalid(f"the checkpoint does not belong to a stream of topics: {error}", hint="use a new one") from None


def latest(before: Positions, there: Mapping[str, TopicInfo], *, fail_on_data_loss: bool = True) -> Positions:
    """Return the durable ends of all topics, the new ones included, which begin with their oldest event.

    Raises Conflict with the code `topic_remade` for a topic that is another one now, and NotFound for one that is gone,
    unless losses are allowed.
    """
    found = dict(before)
    for topic in before.keys() - there.keys() if fail_on_data_loss else ():
        raise NotFound(
            f"topic {topic!r} was deleted while a stream reads it",
            hint="set failOnDataLoss=false to continue without it",
        )
    for topic, info in there.items():
        known = before.get(topic)
        ends = [each.durable for each in info.partitions]
        if known is None:
            found[topic] = TopicProgress(info.uuid, [each.start for each in info.partitions], ends)
        elif known.uuid != info.uuid:
            raise remade(topic)
        else:
            found[topic] = msgspec.structs.replace(known, end=list(map(max, known.end, ends)))
    return found


def begun(before: Positions, after: Positions) -> dict[str, list[int]]:
    """Return where what lies between two positions begins, in each topic."""
    return {topic: before[topic].end if topic in before else reached.start for topic, reached in after.items()}


def within_events(before: Positions, after: Positions, events_max: int) -> Positions:
    """Return the positions after so many events, of each partition in proportion to its backlog."""
    starts = begun(before, after)
    counts = [
        end - start for topic, reached in after.items() for start, end in zip(starts[topic], reached.end, strict=True)
    ]
    shares = iter(_shares(counts, events_max))
    return {
        topic: msgspec.structs.replace(reached, end=[start + next(shares) for start in starts[topic]])
        for topic, reached in after.items()
    }


def within_bytes(
    hw: Store, before: Positions, after: Positions, there: Mapping[str, TopicInfo], bytes_max: int
) -> Positions:
    """Return the positions after about so many bytes of the log, at least one batch; cut between batches."""
    starts = begun(before, after)
    near = {topic: _near(starts[topic], reached, there.get(topic), bytes_max) for topic, reached in after.items()}
    waiting = [
        split
        for topic, reached in near.items()
        if starts[topic] != reached.end
        for split in hw.splits(topic, start=starts[topic], end=reached.end, split_bytes=-(-bytes_max // CUTS))
    ]
    if sum(split.bytes for split in waiting) <= bytes_max:
        return near
    ends = {topic: list(starts[topic]) for topic in after}
    for split in _admitted(waiting, bytes_max) or waiting[:1]:
        ends[split.topic][split.partition] = split.end
    return {topic: msgspec.structs.replace(reached, end=ends[topic]) for topic, reached in after.items()}


def _near(starts: list[int], reached: TopicProgress, info: TopicInfo | None, bytes_max: int) -> TopicProgress:
    """Not further than twice the bytes take it, by the mean size of events: what is looked at costs for its length."""
    if info is None:
        return reached
    ends = []
    for each, start, end in zip(info.partitions, starts, reached.end, strict=True):
        events = max(1, each.end - each.start)
        ends.append(min(end, start + 1 + 2 * bytes_max * events // max(1, each.bytes)))
    return msgspec.structs.replace(reached, end=ends)


def _admitted(waiting: Sequence[Split], bytes_max: int) -> list[Split]:
    """Return the first splits of each partition that fit its share of the bytes."""
    sizes: dict[tuple[str, int], int] = {}
    for split in waiting:
        log = split.topic, split.partition
        sizes[log] = sizes.get(log, 0) + split.bytes
    shares = dict(zip(sizes, _shares(list(sizes.values()), bytes_max), strict=True))
    admitted = []
    for split in waiting:
        log = split.topic, split.partition
        shares[log] -= split.bytes
        if shares[log] >= 0:
            admitted.append(split)
    return admitted


def _shares(amounts: Sequence[int], most: int) -> list[int]:
    """Each amount, or where they are more than `most` together its share of that: whole numbers that add up to it."""
    total = sum(amounts)
    if total <= most:
        return list(amounts)
    shares, before = [], 0
    passed = 0
    for amount in amounts:
        passed += amount
        reached = passed * most // total
        shares.append(reached - before)
        before = reached
    return shares
