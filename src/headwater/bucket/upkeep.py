"""Keeping the logs of a bucket: compacting, trimming and collecting them, by command and in the background.

Whoever appends does it, now and then, in a thread of its own that no append waits for: a bucket with writers needs no
job beside them. Any number of programs may do it at once, and each may die at it. Safe from any thread.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import datetime
from weakref import WeakKeyDictionary

import msgspec

from headwater.bucket.catalog import BucketCatalog
from headwater.bucket.compaction import compact
from headwater.bucket.garbage import collect
from headwater.bucket.object_log import ObjectLog
from headwater.bucket.trimming import trim
from headwater.disk.disk import Clock
from headwater.errors import HeadwaterError, NotFound
from headwater.format.settings import Retention, TopicRecord
from headwater.info import DeletedSegment, MaintenanceResult
from headwater.log.packing import Pause
from headwater.log.topic_rules import Rules, Slowest, bound_of, with_retention

log = logging.getLogger("headwater")

SWEEP_S = 3600.0  # how often a program that goes on looks for what deleted topics have left: a request for each topic


class BucketKeeper:
    """Keeps the logs of one bucket. No thread before there is work."""

    def __init__(self, catalogue: BucketCatalog, clock: Clock, pool: Callable[[], Executor], slowest: Slowest) -> None:
        """`pool` gives the threads that fetch."""
        self._catalogue = catalogue
        self._clock = clock
        self._pool = pool
        self._slowest = slowest
        self._mutex = threading.Lock()  # protects all below
        self._left: WeakKeyDictionary[ObjectLog, int] = WeakKeyDictionary()  # objects until it is its turn
        self._work: queue.SimpleQueue[ObjectLog | None] = queue.SimpleQueue()
        self._waiting: set[ObjectLog] = set()
        self._collected_s: WeakKeyDictionary[ObjectLog, float] = WeakKeyDictionary()
        self._swept_s = clock.monotonic()
        self._thread: threading.Thread | None = None
        self._stopping = False

    # By command

    def seal(self, logs: list[ObjectLog]) -> int:
        """Make segments of all that was appended until now; returns how many."""
        return sum(
            compact(each.place, each.chain.knowledge, self._pool, each.end(), cache=each.chain.cache) for each in logs
        )

    def retain(
        self, logs: list[ObjectLog], *, changes: Retention, before: int | datetime | None, dry_run: bool
    ) -> list[DeletedSegment]:
        """Change what the topic of these logs keeps, if there are changes, and trim what it need not keep now."""
        name = logs[0].topic
        bounds = [bound_of(each, before, len(logs)) for each in logs]
        topic = self._catalogue.find(name)
        if changes and dry_run:
            topic = msgspec.structs.replace(topic, settings=with_retention(topic.settings, changes))
        elif changes:
            topic = self._catalogue.change(name, changes)
        found: list[DeletedSegment] = []
        for each, (offset, ticks) in zip(logs, bounds, strict=True):
            rules = msgspec.structs.replace(self._rules(each, topic), before=offset, before_ticks=ticks)
            found += trim(each.place, each.chain, rules, dry_run=dry_run)
        return found

    def maintain(self, topic: TopicRecord, logs: list[ObjectLog], pause: Pause = lambda: None) -> MaintenanceResult:
        """Compact what is worth it, trim what need not be kept, and collect what nobody can believe in any more."""
        done = MaintenanceResult()
        for each in logs:
            place, knowledge = each.place, each.chain.knowledge
            done.segments += compact(place, knowledge, self._pool, pause=pause, cache=each.chain.cache)
            done.trimmed += trim(place, each.chain, self._rules(each, topic))
            pause()
            done.collected += collect(place, knowledge)
        return done

    def sweep(self, name: str | None = None) -> int:
        """Delete what is left of deleted topics, of one name or of all; returns how many objects went."""
        return self._catalogue.sweep(name)

    # In the background

    def was_put(self, each: ObjectLog) -> None:
        """An object was put: if it is the log's turn, see to it soon."""
        every = each.place.limits.compact_objects
        with self._mutex:
            if not every or self._stopping:
                return
            # Those who append together, and those who append little before they end, come to their turn at different
            # times: each begins anywhere.
            left = self._left.get(each)
            left = int.from_bytes(self._clock.random_bytes(4)) % every if left is None else left - 1
            self._left[each] = left if left > 0 else every
            if left > 0 or each in self._waiting:
                return
            self._waiting.add(each)
            self._work.put(each)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headwater-upkeep", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop soon: what is under way is left as it is, and done by the process that comes next."""
        with self._mutex:
            self._stopping = True
            thread = self._thread
        if thread is not None:
            self._work.put(None)
            thread.join()

    def _run(self) -> None:
        while (each := self._work.get()) is not None:
            with self._mutex:
                self._waiting.discard(each)
            try:
                self._see_to(each)
            except _KeeperClosedError:
                return
            except NotFound:
                continue  # its topic was deleted
            except HeadwaterError as error:
                if not self._stopping:
                    log.warning("%s could not be compacted, and is unchanged: %s", each.place, error)

    def _see_to(self, each: ObjectLog) -> None:
        place, knowledge = each.place, each.chain.knowledge
        compact(place, knowledge, self._pool, pause=self._pause, cache=each.chain.cache)
        trim(place, each.chain, self._rules(each, self._catalogue.find(each.topic)))
        self._pause()
        now_s = self._clock.monotonic()
        if now_s - self._collected_s.get(each, -place.limits.collect_s) >= place.limits.collect_s:
            self._collected_s[each] = now_s
            collect(place, knowledge)
        self._pause()
        if now_s - self._swept_s >= SWEEP_S:
            self._swept_s = now_s
            self._catalogue.sweep()

    def _pause(self) -> None:
        if self._stopping:
            raise _KeeperClosedError

    def _rules(self, each: ObjectLog, topic: TopicRecord) -> Rules:
        consumers = topic.settings.retention_consumers
        return Rules(topic.settings, self._slowest(topic, each.partition) if consumers else None)


class _KeeperClosedError(Exception):
    """It is closed."""
