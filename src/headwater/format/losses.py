"""Ranges of offsets whose events are lost: they were damaged, and `repair` cut them out of the log.

Half-open, ascending and apart. A `lost` batch stands for each in the log (docs/FORMAT.md, "Batch").
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

_log = logging.getLogger("headwater")

Ranges = list[tuple[int, int]]


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ascending ranges, with those that follow each other joined."""
    found: Ranges = []
    for lo, hi in ranges:
        if found and found[-1][1] == lo:
            found[-1] = found[-1][0], hi
        else:
            found.append((lo, hi))
    return found


def within(ranges: Iterable[tuple[int, int]], start: int, stop: int) -> Ranges:
    """Return what of the ranges lies from `start` to before `stop`."""
    return [(max(lo, start), min(hi, stop)) for lo, hi in ranges if lo < stop and hi > start]


def total(ranges: Iterable[tuple[int, int]]) -> int:
    """Return how many offsets there are in the ranges."""
    return sum(hi - lo for lo, hi in ranges)


def warn(place: object, lost: Iterable[tuple[int, int]]) -> None:
    """Warn of events of a log, which `place` names, that a read passes over."""
    for lo, hi in lost:
        _log.warning("%s: offsets %d to %d are lost: they were damaged, and repair removed them", place, lo, hi - 1)
