"""Acknowledgements: the frames ACKEV and QUERYACK, and the unacknowledged events of a subscription.

Both frames have no response; errors in them are only counted. `ConnectionPart` is what they acknowledge: a subscription
or a query. `UnackedEvents` knows how many more events may be sent, and what an ACKEV covers; it keeps what was sent in
runs of one partition, in the order in which it was sent. Memory only, in the loop's thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from headwater.errors import HeadwaterError
from headwater.format import protocol
from headwater.server.metrics import Metrics
from headwater.server.tcp.frames import INT32, FrameFields

HEARD = {
    "ACKEV": ("subID", "seqNo", "partition"),
    "QUERYACK": ("queryID",),
}  # the first is the id of the subscription or query


class ConnectionPart:
    """A subscription or a query of a connection. It may write frames at any time."""

    def acknowledge(self, fields: FrameFields) -> None:
        """Process an acknowledgement. Raises what is wrong with its fields, which is only counted."""

    def resume(self) -> None:
        """Continue to send: there is room in the buffer again."""

    def stop(self) -> None:
        """Notify the client that the server stops, and release everything."""
        self.close()

    def close(self) -> None:
        """Release everything after the client has disconnected. May be called twice."""


def _head(type: str) -> bytes:
    """Return how a frame of this type begins, after its length, as nearly all clients write it."""
    return b"\x02type\0" + protocol.LENGTH.pack(len(type) + 1) + type.encode() + b"\0"


SMALL_BYTES = 128  # a frame that is worth caching
HEADS = tuple(_head(type) for type in HEARD)


@lru_cache(maxsize=256)  # a client that acknowledges one by one repeats the same bytes
def understood(raw: bytes) -> tuple[str, FrameFields | HeadwaterError]:
    """Return the type and the fields of a small frame, or what is wrong with them. Raises as `protocol.decode`."""
    type, frame = protocol.decode(raw)
    try:
        return type, FrameFields(type, frame, HEARD[type])
    except HeadwaterError as error:
        return type, error


def hear_small(parts: dict[Any, ConnectionPart], raw: bytes, metrics: Metrics) -> None:
    """Process a small frame that begins with one of `HEADS`. Raises Invalid if it is no frame."""
    type, fields = understood(raw)
    if isinstance(fields, HeadwaterError):
        metrics.failed(fields.code)
    else:
        _hear(parts, type, fields, metrics)


def hear(parts: dict[Any, ConnectionPart], type: str, frame: dict[str, Any], metrics: Metrics) -> None:
    """Process a frame without a response: what is wrong with it is only counted."""
    try:
        fields = FrameFields(type, frame, HEARD[type])
    except HeadwaterError as error:
        metrics.failed(error.code)
    else:
        _hear(parts, type, fields, metrics)


def _hear(parts: dict[Any, ConnectionPart], type: str, fields: FrameFields, metrics: Metrics) -> None:
    try:
        part = parts.get((type, fields.integer(HEARD[type][0], least=-INT32 - 1, most=INT32, needed=True)))
        if part is not None:
            part.acknowledge(fields)
    except HeadwaterError as error:
        metrics.failed(error.code)


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
        """`most` is how many events may be unacknowledged."""
        self.count = 0
        self._most = most
        self._runs: deque[_UnackedRun] = deque()

    @property
    def room(self) -> int:
        """Return how many more may be sent."""
        return max(0, self._most - self.count)

    def add(self, partition: int, offsets: Sequence[int], fence: int = 0) -> None:
        """Add events that were sent."""
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
    """Events of one partition that were sent together; those from `at` on are unacknowledged."""

    __slots__ = ("at", "fence", "offsets", "partition")

    def __init__(self, partition: int, offsets: Sequence[int], fence: int) -> None:
        self.partition = partition
        self.offsets = offsets
        self.fence = fence
        self.at = 0
