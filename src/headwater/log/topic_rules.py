"""The rules for topics, wherever they are kept: names, settings, and which of the oldest segments retention deletes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

import msgspec

from headwater.errors import Invalid, NotFound, TooLarge
from headwater.event import ticks_of
from headwater.format import names
from headwater.format.settings import Retention, TopicRecord, TopicSettings
from headwater.limits import DATA_BYTES_CEILING, PARTITIONS_MAX, Limits
from headwater.log.log import Log
from headwater.log.reading import resolve

SEGMENT_BYTES_MIN = 4096


def check_topic(name: str, partitions: int, chosen: TopicSettings, limits: Limits) -> None:
    """Raise Invalid, or TooLarge, for what cannot be a topic."""
    checked_name(name, limits)
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise Invalid(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")
    if chosen.data_bytes_max > DATA_BYTES_CEILING:
        raise TooLarge(
            f"data_bytes_max is {chosen.data_bytes_max}; the maximum is {DATA_BYTES_CEILING}",
            limit="data_bytes_ceiling",
            maximum=DATA_BYTES_CEILING,
        )
    numbers = (chosen.segment_age_ms, chosen.data_bytes_max, chosen.retention_bytes, chosen.retention_segments)
    if min(*numbers, chosen.retention_age_ms, chosen.retention_bytes_hard) < 0:
        raise Invalid("a setting of a topic is negative", hint="0 means the default")
    if chosen.compression not in ("none", "zstd"):
        raise Invalid(f"compression {chosen.compression!r} is unknown", hint="use 'none' or 'zstd'")
    if chosen.overflow not in ("delete", "refuse"):
        raise Invalid(f"overflow {chosen.overflow!r} is unknown", hint="use 'delete' or 'refuse'")
    if chosen.overflow == "refuse" and not chosen.retention_bytes_hard:
        hint = "set retention_bytes_hard, or overflow='delete'"
        raise Invalid("overflow 'refuse' needs a hard limit", hint=hint, code="hard_bound_needed")
    if chosen.segment_bytes and chosen.segment_bytes < SEGMENT_BYTES_MIN:
        raise Invalid(f"segment_bytes is {chosen.segment_bytes}; the minimum is {SEGMENT_BYTES_MIN}")


def checked_name(name: str, limits: Limits) -> str:
    """Return the name itself; raises Invalid, or TooLarge, if it cannot be one."""
    size = len(names.utf8(name, "a topic's name"))
    if not size:
        raise Invalid("a topic's name is empty")
    if size > limits.topic_name_bytes_max:
        raise TooLarge(
            f"a topic's name has {size} bytes; the limit is {limits.topic_name_bytes_max}",
            limit="topic_name_bytes_max",
            maximum=limits.topic_name_bytes_max,
        )
    return name


def same(topic: TopicRecord, partitions: int) -> bool:
    """Return False, which says that the topic is not new; raises Invalid if it has another number of partitions."""
    there = topic.partitions
    if there != partitions:
        raise Invalid(
            f"topic {topic.name!r} has {there} partitions, not {partitions}",
            hint="the number of partitions cannot change; create another topic",
            code="partitions_differ",
            partitions=there,
        )
    return False


def with_retention(chosen: TopicSettings, changes: Retention) -> TopicSettings:
    """Return settings with another retention; raises TypeError for anything that is not a part of that."""
    strange = sorted(changes.keys() - Retention.__annotations__.keys())
    if strange:
        raise TypeError(f"{strange[0]!r} is not a setting of retention")
    return msgspec.structs.replace(chosen, **changes)


def limits_of(topic: TopicRecord, limits: Limits) -> Limits:
    """Return the limits with the topic's own settings laid over: the same object if it has none, for all such logs."""
    own = {
        field: value
        for field in ("segment_bytes", "segment_age_ms", "data_bytes_max")
        if (value := getattr(topic.settings, field))
    }
    return msgspec.structs.replace(limits, **own) if own else limits


def not_found(name: str, where: object) -> NotFound:
    """Return the error for a topic that does not exist."""
    return NotFound(
        f"there is no topic {name!r} in {where}",
        hint="'headwater topics' lists them",
        code="topic_not_found",
        topic=name,
    )


TICKS_PER_MS = 10_000


class ClosedSegments(Protocol):
    """A segment that is finished, wherever it is."""

    @property
    def end(self) -> int: ...
    @property
    def bytes(self) -> int: ...


S = TypeVar("S", bound=ClosedSegments)


class Rules(msgspec.Struct, frozen=True):
    """What one partition keeps: the settings of its topic, and what the caller adds."""

    settings: TopicSettings
    passed: int | None = None  # the slowest consumer's cursor; None if there are no consumers
    before: int = 0  # what ends at or before this offset is not wanted,
    before_ticks: int = 0  # nor is what is older than this
    archived: int | None = None  # what ends after this is not in the archive, and stays; None if there is no archive

    @property
    def bounded(self) -> bool:
        """Return whether anything may have to go."""
        kept = self.settings
        hard = kept.retention_bytes_hard and (kept.overflow == "delete" or kept.retention_consumers)
        wanted = kept.retention_bytes or kept.retention_segments or kept.retention_age_ms
        return bool(wanted or hard or self.before or self.before_ticks)

    def free(self, end: int) -> bool:
        """Return whether all consumers that count have passed what ends here."""
        return not self.settings.retention_consumers or self.passed is None or end <= self.passed

    def oldest_ticks(self, now: int) -> int:
        """A segment whose last event is older than this is not wanted."""
        age_ms = self.settings.retention_age_ms
        return max(self.before_ticks, now - age_ms * TICKS_PER_MS if age_ms else 0)


def surplus(
    finished: Sequence[S], total: int, left: int, rules: Rules, now: int, last_ticks: Callable[[S], int]
) -> list[S]:
    """Return the finished segments, oldest first, that have to go from a log of so many bytes and segments in all."""
    kept = rules.settings
    hard = kept.retention_bytes_hard
    oldest_ticks = rules.oldest_ticks(now)
    found: list[S] = []
    for segment in finished:
        if rules.archived is not None and segment.end > rules.archived:
            break
        wanted = not (
            (kept.retention_bytes and total > kept.retention_bytes)
            or (kept.retention_segments and left > kept.retention_segments)
            or segment.end <= rules.before
            or (oldest_ticks and last_ticks(segment) < oldest_ticks)
        )
        over = hard and total > hard and (kept.overflow == "delete" or kept.retention_consumers)
        if not over and wanted:
            break
        if not rules.free(segment.end) and not (over and kept.overflow == "delete"):
            break
        found.append(segment)
        total -= segment.bytes
        left -= 1
    return found


Slowest = Callable[[TopicRecord, int], int | None]
"""The lowest cursor of all consumers of a topic in a partition; None if it has none."""


def no_consumers(_topic: TopicRecord, _partition: int) -> int | None:
    return None


def bound_of(log: Log, before: int | datetime | None, logs: int) -> tuple[int, int]:
    """Return what ends before this may go: an offset, and ticks."""
    if before is None:
        return 0, 0
    if isinstance(before, datetime):
        return 0, ticks_of(before)
    if isinstance(before, int):
        return resolve(log, before, logs), 0
    raise Invalid(f"{before!r} is neither an offset nor a time")
