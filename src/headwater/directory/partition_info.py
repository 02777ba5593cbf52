"""What `describe` tells of a topic."""

from __future__ import annotations

import contextlib
import os

from headwater.directory import recovery
from headwater.directory.local_log import LocalLog
from headwater.errors import HeadwaterError
from headwater.event import time_of
from headwater.format.losses import Ranges
from headwater.info import PartitionInfo
from headwater.log.reading import time_at

STATES = ("open", "frozen: a sync failed", "frozen: a write failed", "being deleted", "open: rolling")


def partition_info(log: LocalLog) -> PartitionInfo:
    place = log.place
    start, local = log.start(), log.local_start()
    state = log.state()  # after them: retention may delete meanwhile, and an end only grows
    names = place.disk.names(place.path)
    known = log.archived.known() if log.archived is not None else None
    lost = known_lost(log)
    return PartitionInfo(
        place.partition,
        start,
        state.visible_offset,
        state.durable_offset,
        sum(name.endswith(".log") for name in names),
        sum(name.endswith(".index") for name in names),
        _bytes_below(place.path),
        _first_time(log, lost[0][1] if lost and lost[0][0] == start else start, state.visible_offset),
        time_of(state.last_ticks).isoformat() if state.last_ticks else None,
        STATES[state.state],
        recovery.reports(place),
        known.end if known is not None else None,
        local if local > start else None,
        state.segment,
        lost,
    )


def known_lost(log: LocalLog) -> Ranges:
    """Return the lost offsets of a log; none where damage, which is for `check` to tell, hides them."""
    with contextlib.suppress(HeadwaterError):
        return log.lost(log.start(), log.end())
    return []


def _first_time(log: LocalLog, start: int, end: int) -> str | None:
    told = log.first_ticks(start)  # it is not fetched from the archive for that
    return time_of(told).isoformat() if told is not None else time_at(log, start, end)


def _bytes_below(path: os.PathLike[str]) -> int:
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:  # sealed or deleted meanwhile
                continue
    return total
