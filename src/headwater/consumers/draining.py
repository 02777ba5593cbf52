"""Draining: hand what waits for a consumer to a handler, commit, and release everything, on every backend.

For a function that is woken when there is something to do. `LogVisit` joins as a guest: it takes the partitions that
are free and behind, and is not counted among the members. `RemoteVisit` (remote_consumer.py) joins as a member, and
waits for the partitions of others.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

from headwater.backend import DrainVisit
from headwater.consumers.leases import Leases
from headwater.consumers.log_consumer import LogConsumer
from headwater.disk.disk import Clock
from headwater.errors import Fenced
from headwater.event import Event
from headwater.info import DrainResult
from headwater.log.log import Log


def drain(visit: DrainVisit, handler: Callable[[Event], object], seconds: float | None) -> DrainResult:
    """Hand events to `handler` until the consumer has caught up, or the time is over."""
    until_s = math.inf if seconds is None else visit.monotonic() + seconds
    if not visit.behind():
        return DrainResult(0, False)
    handled = 0
    with visit.join() as consumer:
        for event in visit.events(until_s):
            if visit.monotonic() >= until_s:
                break  # it was not handled, and is delivered again
            with contextlib.suppress(Fenced):  # another process has it now
                handled += consumer.handle(event, handler)
    # After everything was released: this look finds what came before that, and what comes later finds it free. So of
    # two that drain at once, the one that looks last sees what the other one had just missed.
    return DrainResult(handled, visit.behind())


class LogVisit:
    """A guest of a consumer in a directory or a bucket."""

    def __init__(
        self, join: Callable[[Leases], LogConsumer], leases: Leases, logs: Sequence[Log], clock: Clock
    ) -> None:
        self.monotonic = clock.monotonic
        self._join = join
        self._leases = leases
        self._logs = logs
        self._consumer: LogConsumer | None = None
        self._behind: dict[int, int] = {}  # the partitions in which something waits, with their ends

    def behind(self) -> bool:
        """Return whether events wait; a partition whose cursor cannot be read counts as one in which they do."""
        stored = self._leases.peek([log.partition for log in self._logs])
        ends = _ends(self._logs)
        self._behind = {n: end for n, end in ends.items() if n not in stored or stored[n].cursor < end}
        return bool(self._behind)

    def join(self) -> LogConsumer:
        self._consumer = self._join(self._leases)
        return self._consumer

    def events(self, until_s: float) -> Iterator[Event]:
        """Yield the events that wait. With a time to end, look again after each round that brought some."""
        consumer, behind = self._consumer, self._behind
        assert consumer is not None, "it was joined"
        while behind:
            some = False
            for event in consumer.catch_up(behind, until_s):
                some = True
                yield event
            if until_s == math.inf or not some or self.monotonic() >= until_s:
                return
            places = consumer.places
            ends = _ends([log for log in self._logs if log.partition in places])
            behind = {number: end for number, end in ends.items() if end > places[number]}


def _ends(logs: Sequence[Log]) -> dict[int, int]:
    return {log.partition: log.end() for log in logs}
