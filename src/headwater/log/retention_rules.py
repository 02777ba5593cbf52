"""Which of the oldest segments of a log need not be kept: the rules of retention, wherever the log is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

import msgspec

from headwater.errors import Invalid
from headwater.event import ticks_of
from headwater.format.settings import TopicRecord, TopicSettings
from headwater.log.log import Log
from headwater.log.reading import resolve

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
