"""From places to splits: which topics are meant, where they begin and end now, and the parts that tasks read.

The ends are pinned when a job is planned, and all of it is durable then: a task that runs again reads the same events,
and the checkpoint of a stream can rely on it. Needs no Spark.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from headwater.errors import Denied, Invalid, NotFound, Unavailable
from headwater.info import TopicInfo
from headwater.position import OFFSET_MAX
from headwater.spark.reading.options import SourceOptions, Start
from headwater.spark.reading.scan import PlannedSplit, nodes

if TYPE_CHECKING:
    from headwater.store import Store


_FIRST = datetime(1582, 10, 15, tzinfo=UTC)  # what ticks are counted from: no event is older


class FilterBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What filters leave of a read, told by topic, partition and ranges; half-open. Everything by default."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offsets: tuple[int | None, int | None] = (None, None)
    times: tuple[datetime | None, datetime | None] = (None, None)


EVERYTHING = FilterBounds()


def look(hw: Store, topic: str) -> TopicInfo:
    """Return a topic as it is now, and all that is visible is durable then. Raises NotFound.

    It is synced, as a consumer does it before it notes how far it is: a reader sees what `read` does. Whoever may not
    sync, because they may only read, or because the disk has failed, sees what is durable.
    """
    info = hw.describe(topic)
    if any(each.durable < each.end for each in info.partitions):
        with contextlib.suppress(Denied, Unavailable):
            hw.sync(topic)
        info = hw.describe(topic)
    return info


def plan(hw: Store, options: SourceOptions, narrowing: FilterBounds = EVERYTHING) -> list[PlannedSplit]:
    """Return the splits of a batch read, topic after topic; empty if there is nothing."""
    topics = options.chosen(hw.topics() if options.has_pattern else ())
    wanted = [topic for topic in topics if narrowing.topics is None or topic in narrowing.topics]
    return [piece for topic in wanted for piece in _of_topic(hw, topic, options, narrowing)]


def _of_topic(hw: Store, topic: str, options: SourceOptions, narrowing: FilterBounds) -> list[PlannedSplit]:
    while True:
        info = look(hw, topic)
        bounds = begin(hw, info, options), resolved(hw, info, options.end, "end")
        starts, ends = _narrowed(hw, info, *bounds, narrowing)
        try:
            return pieces(hw, topic, info.uuid, starts, ends, options.split_bytes)
        except NotFound as error:
            if error.code != "offset_gone":
                raise  # else retention came in between: look again


def _narrowed(
    hw: Store, info: TopicInfo, starts: list[int], ends: list[int], narrowing: FilterBounds
) -> tuple[list[int], list[int]]:
    lo, hi = narrowing.offsets
    after, before = narrowing.times
    if lo is not None:
        starts = [max(start, lo) for start in starts]
    if hi is not None:
        ends = [min(end, hi) for end in ends]
    if after is not None and after > _FIRST:
        starts = list(map(max, starts, since(hw, info, after)))
    if before is not None:
        ends = list(map(min, ends, since(hw, info, max(before, _FIRST))))
    if narrowing.partitions is not None:
        ends = [end if number in narrowing.partitions else 0 for number, end in enumerate(ends)]
    return starts, ends


def begin(hw: Store, info: TopicInfo, options: SourceOptions) -> list[int]:
    """Return where a read of a topic begins in each partition; raises NotFound where retention has passed an offset."""
    return held(info, resolved(hw, info, options.start, "start"), options)


def held(info: TopicInfo, starts: list[int], options: SourceOptions) -> list[int]:
    """Return the starts, moved to the oldest events left if losses are allowed; otherwise raises NotFound."""
    for each, start in zip(info.partitions, starts, strict=True):
        if start < each.start and options.fail_on_data_loss:
            raise NotFound(
                f"topic {info.name!r}, partition {each.partition}: offset {start} is gone; the oldest is {each.start}",
                hint="set failOnDataLoss=false to start at the oldest offset",
                code="offset_gone",
                oldest=each.start,
            )
    return [max(each.start, start) for each, start in zip(info.partitions, starts, strict=True)]


def resolved(hw: Store, info: TopicInfo, place: Start, name: str) -> list[int]:
    """Return the offset of a place in each partition. Raises Invalid for a place that the topic cannot have."""
    partitions = info.partitions
    usual = [each.start for each in partitions] if name == "start" else [each.durable for each in partitions]
    if isinstance(place, dict):
        given = place.get(info.name, {})
        unknown = sorted(number for number in given if number >= len(partitions))
        if unknown:
            told = f"topic {info.name!r} has {len(partitions)} partitions"
            raise Invalid(f"{name} has an offset of partition {unknown[0]}, but {told}")
        return [given.get(number, otherwise) for number, otherwise in enumerate(usual)]
    if isinstance(place, int):
        if len(partitions) > 1:
            raise Invalid(
                f"topic {info.name!r} has {len(partitions)} partitions, but {name} {place} is a single offset",
                hint='use {"0": 17, "1": 4}, or a time',
                code="partition_needed",
            )
        return [place]
    if isinstance(place, datetime):
        return since(hw, info, place)
    return [each.start if place == "earliest" else each.durable for each in partitions]


def since(hw: Store, info: TopicInfo, time: datetime) -> list[int]:
    """Return the first offset of each partition whose event has this time or a later one; the end if there is none."""
    first = {each.partition: each.durable for each in info.partitions}
    for split in reversed(hw.splits(info.name, start=time, split_bytes=OFFSET_MAX - 1)):
        first[split.partition] = split.start
    return [first[each.partition] for each in info.partitions]


def pieces(
    hw: Store, topic: str, uuid: str, starts: list[int], ends: list[int], split_bytes: int
) -> list[PlannedSplit]:
    """Return the splits of a topic between these offsets, in order; empty if there is nothing."""
    if not any(start < end for start, end in zip(starts, ends, strict=True)):
        return []
    known = nodes(uuid, len(starts))
    found = hw.splits(topic, start=starts, end=ends, split_bytes=split_bytes)
    return [PlannedSplit(split, known[split.partition]) for split in found]
