"""The server's counters: plain numbers, because a request takes 20 µs and may spend one of them on counting.

`Metrics` belongs to the loop's thread, which alone changes it; its exporter (server/prometheus.py) reads it from
another thread, one number or one copied list at a time. Syncs are counted where they are made, by `CountingDisk`.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.disk.disk import Disk

if TYPE_CHECKING:
    from headwater.server.accesslog import AccessLog

# In seconds. A commit is a sync: tens of microseconds on an SSD, tens of milliseconds on a disk that turns.
COMMIT_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
REQUEST_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

OTHER = "other"  # the label of what has none of its own; a topic of this name is counted there too
METHODS = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TCP"))  # the last: frames over TCP
TOPICS_MAX = 100  # labels are kept forever, here and in Prometheus: further topics are added up
CODES_MAX = 200  # ours are some dozens; a plug-in may bring its own


class Histogram:
    """A histogram: counts of values by bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last: above all bounds
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add a value that was seen `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: the bound's text and how many are at most that; the last counts all."""
        counts, total, found = self.counts.copy(), 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class RouteMeter:
    """The answers of one route: `answered` is called once for each."""

    __slots__ = ("method", "route", "seconds", "statuses")

    def __init__(self, method: str, route: str) -> None:
        self.method = method
        self.route = route
        self.statuses: defaultdict[int, int] = defaultdict(int)
        self.seconds = Histogram(REQUEST_BOUNDS)

    def answered(self, status: int, seconds: float, count: int = 1) -> None:
        """An answer, or several, have begun, so long after their requests did."""
        self.statuses[status] += count
        self.seconds.observe(seconds, count)


class TopicMeter:
    """Appends to one topic through this server."""

    __slots__ = ("appends", "bytes", "events")

    def __init__(self) -> None:
        self.appends = 0
        self.events = 0
        self.bytes = 0


class CountingDisk(Disk):
    """A disk that counts its syncs. Unlike the rest of this module it is safe from any thread."""

    def __init__(self) -> None:
        self.syncs = 0
        self.sync_seconds = 0.0
        self._counting = threading.Lock()  # protects the two, for a few instructions

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]  # there it is the function of os itself
        begun = time.perf_counter()
        Disk.fdatasync(fd)
        self._count(begun)

    def write_synced(self, fd: int, data: bytes, position: int) -> None:
        begun = time.perf_counter()
        super().write_synced(fd, data, position)
        if hasattr(os, "RWF_DSYNC"):  # else it was done, and counted, by fdatasync
            self._count(begun)

    def sync_directory(self, path: Path) -> None:
        begun = time.perf_counter()
        super().sync_directory(path)
        self._count(begun)

    def _count(self, begun: float) -> None:
        took = time.perf_counter() - begun
        with self._counting:
            self.syncs += 1
            self.sync_seconds += took


class LiveMeter:
    """Counters of live delivery. Belongs to the loop's thread."""

    __slots__ = ("behind", "bytes", "channels", "events", "gaps", "subscribers")

    def __init__(self) -> None:
        self.subscribers = 0  # streams that are open now
        self.channels = 0  # what they share: one reader for all that want the same
        self.events = 0  # that were handed to streams
        self.bytes = 0
        self.behind = 0  # times that the client of a stream was too slow, so that it had to read for itself
        self.gaps = 0  # times that retention passed such a one


class ApplicationMeter:
    """The state of the server's application. `up` is None if there is no application."""

    __slots__ = ("restarts", "up")

    def __init__(self) -> None:
        self.up: bool | None = None
        self.restarts = 0  # times that it was started again because it had died


class Metrics:
    """All counters of a server. The attributes may be changed directly, in the loop's thread."""

    def __init__(self, disk: CountingDisk | None = None) -> None:
        self.disk = disk or CountingDisk()
        self.topics: dict[str, TopicMeter] = {}
        self.routes: dict[tuple[str, str], RouteMeter] = {}
        self.errors: dict[str, int] = {}
        self.commits = 0
        self.commit_seconds = Histogram(COMMIT_BOUNDS)  # of each append: how long it took to be committed
        self.connections = 0  # that are open now
        self.connections_accepted = 0
        self.connections_refused = 0  # because there were too many
        self.bytes_received = 0
        self.bytes_sent = 0
        self.live = LiveMeter()
        self.application = ApplicationMeter()
        self.access_log: AccessLog | None = None  # counts the lines that it had to drop

    def appended(self, topic: str, events: int, size: int, appends: int = 1) -> None:
        """A request, or several, appended events, whose data has so many bytes."""
        meter = self.topics.get(topic) or self._topic(topic)
        meter.appends += appends
        meter.events += events
        meter.bytes += size

    def committed(self, seconds: float, appends: int = 1) -> None:
        """A commit was made for so many appends, which waited so long each."""
        self.commits += 1
        self.commit_seconds.observe(seconds, appends)

    def failed(self, code: str, count: int = 1) -> None:
        """A request was answered with an error of this code, or several were."""
        if code not in self.errors and len(self.errors) >= CODES_MAX:
            code = OTHER
        self.errors[code] = self.errors.get(code, 0) + count

    def route(self, method: str, route: str) -> RouteMeter:
        """The meter of a route, by the pattern of its path: "" for requests that found none. Keep it, and use it."""
        if method not in METHODS:  # it came from outside, and may be anything
            method = OTHER
        found = self.routes.get((method, route))
        if found is None:
            found = self.routes[method, route] = RouteMeter(method, route)
        return found

    def _topic(self, topic: str) -> TopicMeter:
        """Return the meter of a topic that has none yet: one of its own, as long as there are few."""
        if len(self.topics) >= TOPICS_MAX:
            topic = OTHER
        return self.topics.setdefault(topic, TopicMeter())
