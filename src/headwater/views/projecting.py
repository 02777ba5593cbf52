"""A live projection: follows its topic, folds what comes, commits documents and cursors in one SQLite transaction.

Partitions are shared with other processes by leases, as those of any consumer, so that no work is done twice. What
makes it exact is the transaction alone: it compares the cursor of each partition with where this process has read from,
and ends without effect if another one has been there.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from headwater.engine.consumer import Consumer
from headwater.engine.engine import Engine
from headwater.errors import Conflict, Fenced, HeadwaterError, NotFound, Unavailable
from headwater.event import Event
from headwater.limits import MIB
from headwater.views import database, registry
from headwater.views.app import Projection
from headwater.views.files import Files
from headwater.views.folding import Folder, Halt
from headwater.views.rebuild import rebuild

TAKE_EVENTS = 4096  # at a time, from the log
TAKE_BYTES = 8 * MIB
ROUND_EVENTS = 131_072  # in one transaction: a document that many of them change is written once
ROUND_S = 1.5  # and so long it may take: others who fill the binder wait for it
WAIT_S = 0.1  # for events; then it is noted that all up to here was looked at, for those who wait for that
LOOK_S = 0.5  # between two looks whether something that it waits for has come
PAUSE_S_MAX = 5.0  # between two tries, when something outside is wrong
LEASE_MS = 2000  # shorter than others': it goes on soon after a crash, and an owner that only stalled does no harm
RATE_S = 1.0  # over which the rate is measured

_log = logging.getLogger("headwater")


class Projector:
    """One projection at work in this process. `run` belongs to one thread; the rest may be called from any."""

    def __init__(self, hw: Engine, projection: Projection, together: Sequence[Projection]) -> None:
        """`together` are all projections of the application that fill the same binder, this one among them."""
        self.name = projection.name
        self._hw = hw
        self._projection = projection
        self._together = together
        self._files = Files.of(hw)
        self._round_events = min(ROUND_EVENTS, hw.limits.unacked_max // 2)  # none is acked before the transaction ends
        self._stopping = threading.Event()
        self._consumer: Consumer | None = None
        self._fresh = True  # in its first session: what stopped it before is tried again
        self._trouble: HeadwaterError | None = None

    def run(self) -> None:
        """Work until `stop` is called."""
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            try:
                pause_s = self._session()
                self._trouble = None
            except Fenced:
                pause_s = 0.0  # another process has taken over: look again what is ours
            except HeadwaterError as error:
                if str(error) != str(self._trouble):
                    _log.warning("projection %r: %s", self.name, error)
                self._trouble = error
                pause_s = min(max(0.1, pause_s * 2), PAUSE_S_MAX)

    def stop(self) -> None:
        """End `run`, soon."""
        self._stopping.set()
        consumer = self._consumer
        if consumer is not None:
            consumer.wake()

    def settled(self) -> bool:
        """Whether all that is in the topic now is folded, by whomever; raises Unavailable if it cannot be."""
        trouble = self._trouble
        if trouble is not None:
            raise Unavailable(f"projection {self.name!r} cannot go on: {trouble.message}", hint=trouble.hint)
        try:
            topic = registry.topic_of(self._hw, self._projection.topic)
            with contextlib.closing(database.connect(self._files.current(self._projection.binder))) as connection:
                registry.check_running(connection, self.name)
                row = registry.find(connection, self.name)
                if row is None or (row.topic_uuid, row.version) != (topic.uuid, self._projection.version):
                    return row is not None and row.version > self._projection.version
                cursors = registry.cursors(connection, self.name)
        except NotFound:
            return self._projection.topic not in self._hw.topics()
        return all(cursors.get(number, 0) >= end for number, end in enumerate(topic.ends))

    # For the consumer: where its cursors are kept

    def cursor(self, partition: int) -> int:
        """Where to read on in a partition that was just taken."""
        next = registry.cursors(self._connection, self.name)[partition]
        next = max(next, self._reached.get(partition, 0))  # it was lost and taken again in the midst of a transaction
        end = registry.topic_of(self._hw, self._projection.topic).ends[partition]
        if next > end:
            raise Conflict(
                f"binder {self._projection.binder!r} is at offset {next} of partition {partition}, which ends at {end}",
                hint="is the log older than the binder, from a backup? then rebuild: headwater views rebuild",
                code="binder_ahead",
            )
        self._next.setdefault(partition, next)
        if partition not in self._reached:
            self._next[partition] = next
        return next

    def set_aside(self, consumer: Consumer, event: Event, error: object) -> None:
        """An event has ended the process several times: it is treated as if its fold had raised."""
        with database.writing(self._connection):
            self._folder.begin()
            try:
                self._folder.fail(event, str(error))
                reached = {event.partition: event.offset + 1}
            except Halt as halt:
                self._folder.halt(halt.error)
                reached = {event.partition: event.offset}
            self._folder.write(reached)
        self._next[event.partition] = reached[event.partition]
        if reached[event.partition] == event.offset:
            raise Fenced("the projection has stopped")
        consumer.ack(event)

    # A session: as long as nothing about the binder and the topic changes

    def _session(self) -> float:
        """Fold as long as the file, the topic and the state of the projection stay; how long to wait for the next."""
        projection = self._projection
        try:
            topic = registry.topic_of(self._hw, projection.topic)
        except NotFound:
            return LOOK_S
        registry.check_order(self._together, projection, len(topic.ends))
        file = self._files.ensure(projection.binder)
        with database.translated(file), contextlib.closing(database.connect(file)) as connection:
            row = registry.enter(connection, projection, topic, retry=self._fresh)
            fresh, self._fresh = self._fresh, False
            if row.version > projection.version:
                return LOOK_S  # superseded
            if (row.topic_uuid, row.version) != (topic.uuid, projection.version):
                return self._rebuild(connection, fresh or row.error is None)
            if row.state != "running":
                return LOOK_S  # until somebody resumes it
            self._live(connection, file)
        return 0.0

    def _rebuild(self, connection: sqlite3.Connection, again: bool) -> float:
        """Build the binder anew, unless another process does, or it failed and nobody has asked for another try."""
        if not again:
            return LOOK_S
        try:
            rebuild(self._hw, self._together, wait=False, stop=self._stopping.is_set)
        except Halt as halt:
            with database.writing(connection):
                registry.note_error(connection, self.name, halt.error)
        except Unavailable as error:
            if error.code not in ("locked", "stopped"):
                raise
            return LOOK_S
        return 0.0

    def _live(self, connection: sqlite3.Connection, file: Path) -> None:
        projection = self._projection
        self._connection = connection
        self._file = file
        self._folder = Folder(connection, projection)
        self._next: dict[int, int] = {}  # by partition, as far as this process knows: where it is read from
        self._reached: dict[int, int] = {}  # the same, in the transaction that is in work
        self._rest: list[Event] = []  # taken, and for the next transaction
        self._missed = 0
        self._window = time.monotonic(), 0
        joined = self._hw.consumer(
            projection.consumer,
            projection.topic,
            type=projection.type,
            match=projection.match,
            lease_ms=min(LEASE_MS, self._hw.limits.lease_ms),
            kept=self,
        )
        with joined as consumer:
            self._consumer = consumer
            try:
                while not self._stopping.is_set() and self._round(consumer):
                    pass
            finally:
                self._consumer = None

    def _round(self, consumer: Consumer) -> bool:
        """Take what is there and commit it; False if the session is over."""
        events, self._rest = self._rest or consumer.take(TAKE_EVENTS, TAKE_BYTES, WAIT_S), []
        if not events and all(self._next.get(number) == next for number, next in consumer.places.items()):
            return self._stays()
        halted = False
        try:
            with database.writing(self._connection):
                if not self._stays():
                    return False
                self._folder.begin()
                try:
                    self._fold(consumer, events)
                except Halt as halt:
                    self._folder.halt(halt.error)
                    halted = True
                self._verify()
                for partition, next in self._reached.items():
                    consumer.secure(partition, next)
                missed, self._missed = consumer.skipped - self._missed, consumer.skipped
                self._folder.write(self._reached, missed=missed, rate=self._rate())
        except BaseException:
            self._folder.abandon()
            raise
        reached, self._reached = self._reached, {}
        self._next.update(reached)
        for partition, next in reached.items():
            if next and partition in consumer.fences:
                consumer.ack_to((partition, next - 1))
        return not halted

    def _fold(self, consumer: Consumer, events: list[Event]) -> None:
        """Fold these events and more, as long as there are any and the time is not over. Notes how far it came."""
        reached = self._reached
        until_s = time.monotonic() + ROUND_S
        count = 0
        while events:
            partition = events[0].partition
            # A partition that was lost and taken again is handed out from its cursor on, maybe for the second time.
            begin = reached.get(partition, self._next[partition])
            if events[0].offset < begin:
                events = [event for event in events if event.offset >= begin]
            try:
                done = self._folder.fold(events, until_s)
            except Halt as halt:
                reached[partition] = halt.error.offset
                raise
            count += done
            if done < len(events):
                self._rest = events[done:]
                reached[partition] = self._rest[0].offset
                break
            if events:
                reached[partition] = events[-1].offset + 1
            if count >= self._round_events or time.monotonic() >= until_s or self._stopping.is_set():
                break
            events = consumer.take(TAKE_EVENTS, TAKE_BYTES, 0.0)
        places = consumer.places
        if self._rest:
            places.pop(self._rest[0].partition, None)
        reached.update(places)

    def _verify(self) -> None:
        """Compare the cursors with where this process has read from: another one may have come further."""
        stored = registry.cursors(self._connection, self.name)
        if any(stored[partition] != self._next[partition] for partition in self._reached):
            raise Fenced(f"another process has folded for projection {self.name!r}", hint="it is read anew")

    def _stays(self) -> bool:
        """Whether this is still the file that is read, of a projection that is to run."""
        try:
            current = self._files.current(self._projection.binder)
        except NotFound:
            return False
        row = registry.find(self._connection, self.name)
        return current == self._file and row is not None and row.state == "running"

    def _rate(self) -> float | None:
        """Events a second, when enough time has passed to tell."""
        since, count = self._window
        now, count = time.monotonic(), count + self._folder.folded
        if now - since < RATE_S:
            self._window = since, count
            return None
        self._window = now, 0
        return count / (now - since)
