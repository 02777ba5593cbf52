"""Cutting the history of a binder into shards: which task reads what, and keeps which documents. Needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headwater.views.bulk import ProjectionRange

SHARD_EVENTS_MIN = 100_000  # fewer are not worth a task of their own
TASKS_PER_CORE = 2  # so that none waits long for the slowest


class FoldRange(msgspec.Struct, frozen=True):
    """Events of one partition that one projection folds: `projection` is its place in the list of them."""

    projection: int
    partition: int
    start: int
    end: int


class Task(msgspec.Struct, frozen=True):
    """One shard: what is to be read, in this order, of which the documents of shard `shard` of `shards` are kept."""

    number: int
    parts: list[FoldRange]
    shard: int
    shards: int


def plan(spans: Sequence[ProjectionRange], places: Mapping[str, int], cores: int, *, by_partition: bool) -> list[Task]:
    """Return the tasks for these spans: as many as keep all cores busy, and each with enough to do."""
    parts = [
        FoldRange(places[span.projection.name], partition, start, end)
        for span in spans
        for partition, (start, end) in enumerate(zip(span.starts, span.ends, strict=True))
        if start < end
    ]
    groups = [[part] for part in parts] if by_partition else [parts]
    tasks: list[Task] = []
    for group in sorted(groups, key=_events, reverse=True):  # what takes longest is begun first
        wanted = -(-cores * TASKS_PER_CORE * _events(group) // max(1, _events(parts)))
        shards = max(1, min(wanted, _events(group) // SHARD_EVENTS_MIN))
        tasks += [Task(len(tasks) + shard, group, shard, shards) for shard in range(shards)]
    return tasks


def _events(parts: Sequence[FoldRange]) -> int:
    return sum(part.end - part.start for part in parts)
