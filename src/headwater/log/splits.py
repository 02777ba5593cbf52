"""Cutting a topic into splits: ranges of offsets of about the same bytes, to be read by different workers.

What is in a split is durable when it is told: whoever notes how far it has read can rely on it after any crash.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.errors import Invalid, NotFound
from headwater.info import Split
from headwater.limits import SPLITS_MAX
from headwater.log import reading
from headwater.log.extents import cut
from headwater.log.log import Log
from headwater.position import Position

SMALL = 4  # what is smaller than this share of a split is not looked into: splits are then of up to so much more


def splits(
    logs: Sequence[Log], start: Position | Sequence[int], end: Position | Sequence[int], split_bytes: int
) -> list[Split]:
    """Return the splits from `start` to before `end`, up to what is durable now, partition after partition."""
    if split_bytes < 1:
        raise Invalid(f"split_bytes is {split_bytes}, but must be positive", hint="64 MiB is a good size")
    secured = [log.state().secured_offset for log in logs]
    while True:
        starts, ends = reading.begin(logs, start), secured
        if end != "latest":
            ends = [min(pair) for pair in zip(reading.begin(logs, end), secured, strict=True)]
        try:
            bounds = zip(logs, starts, ends, strict=True)
            return [split for log, lo, hi in bounds for split in _of_log(log, lo, hi, split_bytes)]
        except NotFound as error:
            if error.code != "offset_gone" or (isinstance(start, (int, Sequence)) and start != "earliest"):
                raise  # else retention came in between: look again in what is left


def _of_log(log: Log, start: int, end: int, split_bytes: int) -> list[Split]:
    if start >= end:
        return []
    extents = log.extents(start, end, split_bytes // SMALL)
    parts = cut(extents, split_bytes, SPLITS_MAX)
    starts, sizes = parts.starts.tolist(), parts.sizes.tolist()
    return [
        Split(log.topic, log.partition, lo, hi, size)
        for lo, hi, size in zip(starts, [*starts[1:], end], sizes, strict=True)
    ]
