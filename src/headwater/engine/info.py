"""What `describe` tells of a topic."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import msgspec

from headwater.errors import HeadwaterError
from headwater.event import time_of
from headwater.storage import recovery
from headwater.storage.log import LocalLog
from headwater.storage.recovery import Report

STATES = ("open", "frozen: a sync failed", "frozen: a write failed", "being deleted", "open: rolling")


class PartitionInfo(msgspec.Struct, frozen=True):
    """One partition: offsets from `start` to before `end`, files, state, and what recoveries gave up."""

    partition: int
    start: int
    end: int
    durable: int
    segments: int
    sealed: int
    bytes: int
    first_time: str | None  # of the oldest event; None if there is none, or it is damaged
    last_time: str | None
    state: str
    recovered: list[Report]


class TopicInfo(msgspec.Struct, frozen=True):
    """A topic and its partitions."""

    name: str
    uuid: str
    settings: dict[str, Any]
    partitions: list[PartitionInfo]

    @property
    def events(self) -> int:
        return sum(partition.end - partition.start for partition in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(partition.bytes for partition in self.partitions)


def partition_info(log: LocalLog) -> PartitionInfo:
    place, state = log.place, log.state()
    start = log.start()
    names = place.disk.names(place.path)
    return PartitionInfo(
        place.partition,
        start,
        state.visible_offset,
        state.durable_offset,
        sum(name.endswith(".log") for name in names),
        sum(name.endswith(".index") for name in names),
        _bytes_below(place.path),
        _time_at(log, start, state.visible_offset),
        time_of(state.last_ticks).isoformat() if state.last_ticks else None,
        STATES[state.state],
        recovery.reports(place),
    )


def _time_at(log: LocalLog, start: int, end: int) -> str | None:
    """When the first event of a range was appended."""
    with contextlib.suppress(HeadwaterError):  # damage is for `check` to tell; retention may have come in between
        for batch in log.batches(start, end):
            return time_of(batch.base_ticks).isoformat()
    return None


def _bytes_below(path: os.PathLike[str]) -> int:
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:  # sealed or deleted meanwhile
                continue
    return total
