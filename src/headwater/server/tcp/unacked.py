"""The unacknowledged events of a subscription: how many more may be sent, and what an ACKEV covers.

Memory only, in the loop's thread. What was sent is kept in runs of one partition, in the order in which it was sent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class AckedRange(NamedTuple):
    """All events of a partition up to an offset, sent under `fence`, are acknowledged; `events` of them newly."""

    partition: int
    offset: int
    fence: int
    events: int


class UnackedEvents:
    """The events that a client has not acknowledged yet. Offsets of a partition ascend, with gaps."""

    __slots__ = ("_most", "_runs", "count")

    def __init__(self, most: int) -> None:
        """`most` of them may be unacknowledged."""
        self.count = 0
        self._most = most
        self._runs: deque[_UnackedRun] = deque()

    @property
    def room(self) -> int:
        """Return how many more may be sent."""
        return max(0, self._most - self.count)

    def add(self, partition: int, offsets: Sequence[int], fence: int = 0) -> None:
        """These were sent."""
        if offsets:
            self._runs.append(_UnackedRun(partition, offsets, fence))
            self.count += len(offsets)

    def one(self) -> AckedRange | None:
        """Acknowledge the first unacknowledged event; return None if there is none."""
        if not self._runs:
            return None
        run = self._runs[0]
        offset = run.offsets[run.at]
        run.at += 1
        self.count -= 1
        if run.at == len(run.offsets):
            self._runs.popleft()
        return AckedRange(run.partition, offset, run.fence, 1)

    def upto(self, partition: int, offset: int) -> AckedRange | None:
        """Acknowledge all events of a partition up to an offset; return None if none was unacknowledged."""
        found: _UnackedRun | None = None
        count = last = over = 0
        for run in self._runs:
            if run.partition != partition:
                continue
            end = bisect_right(run.offsets, offset, run.at)
            if end > run.at:
                found, last = run, run.offsets[end - 1]
                count += end - run.at
                run.at = end
            if end < len(run.offsets):
                break
            over += 1
        if found is None:
            return None
        self.count -= count
        while over and self._runs[0].at == len(self._runs[0].offsets):
            self._runs.popleft()
            over -= 1
        if over:  # those of other partitions came before them
            self._runs = deque(run for run in self._runs if run.at < len(run.offsets))
        return AckedRange(partition, last, found.fence, count)


class _UnackedRun:
    """What was sent at once, of one partition: from `at` on it is not acknowledged."""

    __slots__ = ("at", "fence", "offsets", "partition")

    def __init__(self, partition: int, offsets: Sequence[int], fence: int) -> None:
        self.partition = partition
        self.offsets = offsets
        self.fence = fence
        self.at = 0
