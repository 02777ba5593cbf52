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

from headwater.backoff import delay_s
from headwater.consumers.log_consumer import LogConsumer
from headwater.consumers.log_consumers import log_consumers
from headwater.errors import Conflict, Fenced, HeadwaterError, NotFound, Unavailable
from headwater.event import Event
from headwater.info import ViewError
from headwater.limits import MIB
from headwater.requests import Consume
from headwater.store import Store
from headwater.views import database, registry
from headwater.views.app import Projection
from headwater.views.document_fold import DocumentFold, Halt
from headwater.views.files import Files
from headwater.views.rebuild import rebuild

TAKE_EVENTS = 4096  # at a time, from the log
TAKE_BYTES = 8 * MIB
ROUND_EVENTS = 200_000  # in one transaction: a document that many of them change is written once
ROUND_S = 3.0  # and so long it may take: others who fill the binder wait for it
WAIT_S = 0.1  # for events; then it is noted that all up to here was looked at, for those who wait for that
LOOK_S = 0.5  # between two looks whether something that it waits for has come
AGAIN_S = 0.02  # until it looks again for what was there just now
PAUSE_S, PAUSE_MAX_S = 0.1, 5.0  # between retries
LEASE_MS = 2000  # shorter than others': it goes on soon after a crash, and an owner that only stalled does no harm
RATE_S = 1.0  # over which the rate is measured

_log = logging.getLogger("headwater")


class ProjectionWorker:
    """Runs one projection in this process. `run` belongs to one thread; the rest may be called from any."""

    def __init__(self, hw: Store, projection: Projection, together: Sequence[Projection]) -> None:
        """`together` are all projections of the application that fill the same binder, this one among them."""
        self.name = projection.name
        self._hw = hw
        self._projection = projection
        self._together = together
        self._files = Files.of(hw)
        self._stopping = threading.Event()
        self._consumer: LogConsumer | None = None
        self._fresh = True  # in its first session: what stopped it before is tried again
        self._refused: tuple[str, int] | None = None  # the topic and the version that could not be built
        self._superseded = False  # whether the binder was built by a newer version
        self._trouble: HeadwaterError | None = None

    def run(self) -> None:
        """Work until `stop` is called."""
        pause_s, tries = 0.0, 0
        while not self._stopping.wait(pause_s):
            try:
                pause_s = self._session()
                self._trouble, tries = None, 0
            except Fenced:
                pause_s = 0.0  # another process has taken over: look again what is ours
            except NotFound:
                pause_s = AGAIN_S  # the topic was deleted, or the file: look again what is there
            except HeadwaterError as error:
                self._tell(error)
                tries += 1
                pause_s = delay_s(tries, PAUSE_S, PAUSE_MAX_S)
            except Exception as error:  # noqa: BLE001  # a thread that ends would tell nobody
                _log.exception("projection %r", self.name)
                self._tell(
                    Unavailable(f"{type(error).__name__}: {error}", hint="see the log; this may be a bug in Headwater")
                )
                pause_s = PAUSE_MAX_S

    def _tell(self, error: HeadwaterError) -> None:
        if str(error) != str(self._trouble) and not self._stopping.is_set():
            _log.warning("projection %r: %s", self.name, error)
        self._trouble = error

    def stop(self) -> None:
        """End `run`, soon."""
        self._stopping.set()
        consumer = self._consumer
        if consumer is not None:
            consumer.wake()

    def settled(self) -> bool:
        """Return whether all present events are folded, by any process; raises Unavailable if they cannot be."""
        trouble = self._trouble
        if trouble is not None:
            raise Unavailable(f"projection {self.name!r} cannot continue: {trouble.message}", hint=trouble.hint)
        try:
            topic = registry.topic_of(self._hw, self._projection.topic)
            if self._fresh:
                return False  # what stopped it before is about to be tried again
            file = self._files.current(self._projection.binder)
            with database.translated(file), contextlib.closing(database.connect(file)) as connection:
                row = registry.find(connection, self.name)
                wanted = topic.uuid, self._projection.version
                if row is None or (row.topic_uuid, row.version) != wanted:
                    if row is not None and row.error is not None and self._refused == wanted:
                        raise registry.stopped(row)
                    return row is not None and row.version > self._projection.version
                registry.check_running(connection, self.name)
                cursors = registry.cursors(connection, self.name)
            ends = registry.topic_of(self._hw, self._projection.topic).ends
        except NotFound:
            return self._projection.topic not in self._hw.topics()
        # One that is ahead of the log is about to be refused.
        return all(end <= cursors.get(number, 0) <= ends[number] for number, end in enumerate(topic.ends))

    # For the consumer: where its cursors are kept

    def cursor(self, partition: int) -> int:
        """Return where to read on in a partition that was just taken."""
        next = registry.cursors(self._connection, self.name)[partition]
        next = max(next, self._reached.get(partition, 0))  # it was lost and taken again in the midst of a transaction
        end = registry.topic_of(self._hw, self._projection.topic).ends[partition]
        if next > end:
            raise Conflict(
                f"binder {self._projection.binder!r} is at offset {next} of partition {partition}, which ends at {end}",
                hint="if the log was restored from a backup, rebuild the binder: headwater views rebuild",
                code="binder_ahead",
            )
        self._next.setdefault(partition, next)
        if partition not in self._reached:
            self._next[partition] = next
        return next

    def set_aside(self, _consumer: LogConsumer, event: Event, error: object) -> None:
        """Treat an event that ended the process several times as if its fold had raised."""
        self._aside.append((event, str(error)))

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
            row = registry.enter(connection, projection, topic, self._together, retry=self._fresh)
            self._fresh = False
            if row.version > projection.version:
                if not self._superseded:
                    told = "projection %r: superseded: the binder was built by version %d, but this is version %d"
                    _log.warning(told, self.name, row.version, projection.version)
                self._superseded = True
                return LOOK_S
            self._superseded = False
            wanted = topic.uuid, projection.version
            if (row.topic_uuid, row.version) == wanted:
                self._refused = None
                if row.state != "running":
                    return LOOK_S  # until it is resumed
                self._live(connection, file, topic)
            elif self._refused == wanted and row.error is not None:
                return LOOK_S  # it cannot be built, and no retry was requested
            else:
                return self._rebuild(connection, file, wanted)
        return 0.0

    def _rebuild(self, connection: sqlite3.Connection, file: Path, wanted: tuple[str, int]) -> float:
        """Rebuild the binder instead of this file, unless another process does."""
        try:
            rebuild(self._hw, self._together, instead_of=file, wait=False, stop=self._stopping.is_set)
        except Halt as halt:
            with database.writing(connection):
                registry.note_error(connection, self.name, halt.error)
            self._refused = wanted
        except (Conflict, Unavailable) as error:
            if error.code not in ("locked", "stopped", "superseded"):
                raise
            return LOOK_S
        return 0.0

    def _live(self, connection: sqlite3.Connection, file: Path, topic: registry.TopicBounds) -> None:
        projection = self._projection
        self._connection = connection
        self._file = file
        self._folder = DocumentFold(connection, projection, self._stopping.is_set)
        self._next: dict[int, int] = {}  # by partition, as far as this process knows: where it is read from
        self._reached: dict[int, int] = {}  # the same, in the transaction that is in work
        self._rest: list[Event] = []  # taken, and for the next transaction
        self._aside: list[tuple[Event, str]] = []  # what the next transaction, or the one in work, is to pass over
        self._missed = 0
        self._window = time.monotonic(), 0
        request = Consume(
            projection.consumer,
            projection.topic,
            type=projection.type,
            match=projection.match,
            lease_ms=min(LEASE_MS, self._hw.limits.lease_ms),
        )
        with log_consumers(self._hw.consumption).join(request, kept=self) as consumer:
            self._consumer = consumer
            try:
                if registry.topic_of(self._hw, projection.topic).uuid != topic.uuid:
                    return  # it was recreated just before: the cursors do not belong to these events
                while not self._stopping.is_set() and self._round(consumer):
                    pass
            finally:
                self._consumer = None

    def _round(self, consumer: LogConsumer) -> bool:
        """Take what is there and commit it; False if the session is over."""
        events, self._rest = self._rest or consumer.take(TAKE_EVENTS, TAKE_BYTES, WAIT_S), []
        moved = any(self._next.get(number) != next for number, next in consumer.places.items())
        if not events and not self._aside and not moved:
            return self._stays()
        halted: ViewError | None = None
        try:
            with database.writing(self._connection, give_up=self._stopping.is_set):
                if not self._stays():
                    return False
                self._folder.begin()
                try:
                    self._fold(consumer, events)
                except Halt as halt:
                    halted = halt.error
                self._verify()
                for partition, next in self._reached.items():
                    consumer.secure(partition, next)
                missed, self._missed = consumer.skipped - self._missed, consumer.skipped
                self._folder.write(self._reached, missed=missed, rate=self._rate())
                if halted is not None:
                    self._folder.halt(halted)
        except BaseException:
            self._folder.abandon()
            raise
        reached, self._reached = self._reached, {}
        for partition, next in reached.items():
            if next > self._next[partition] and partition in consumer.fences:
                consumer.ack_to((partition, next - 1))
        self._next.update(reached)
        if halted is not None:  # its failures are forgotten: resuming the projection retries the event
            consumer.seek(halted.offset, halted.partition)
        return halted is None

    def _fold(self, consumer: LogConsumer, events: list[Event]) -> None:
        """Fold these events and more, as long as there are any and the time is not over. Notes how far it came."""
        reached = self._reached
        until_s = time.monotonic() + ROUND_S
        left = min(ROUND_EVENTS, self._hw.limits.unacked_max)  # what is taken is acked when it is committed
        self._pass_aside()
        while events:
            partition = events[0].partition
            left -= len(events)
            # A partition that was lost and taken again is handed out from its cursor on, maybe for the second time.
            begin = reached.get(partition, self._next[partition])
            if events[0].offset < begin:
                events = [event for event in events if event.offset >= begin]
            try:
                done = self._folder.fold(events, until_s)
            except Halt as halt:
                reached[partition] = halt.error.offset
                raise
            if done < len(events):
                self._rest = events[done:]
                reached[partition] = self._rest[0].offset
                break
            if events:
                reached[partition] = events[-1].offset + 1
            # What may have ended a process is committed before more is taken: so it is found which event did.
            if left <= 0 or consumer.careful or time.monotonic() >= until_s or self._stopping.is_set():
                break
            events = consumer.take(TAKE_EVENTS, TAKE_BYTES, 0.0)
            self._pass_aside()
        places = consumer.places
        if self._rest:
            places.pop(self._rest[0].partition, None)
        reached.update(places)

    def _pass_aside(self) -> None:
        """Record the quarantined events, which come before all events taken after them."""
        aside, self._aside = self._aside, []
        for event, error in aside:
            if event.offset < self._reached.get(event.partition, self._next[event.partition]):
                continue
            self._reached[event.partition] = event.offset
            self._folder.fail(event, error)  # raises Halt
            self._reached[event.partition] = event.offset + 1

    def _verify(self) -> None:
        """Compare the cursors with where this process has read from: another one may have come further."""
        stored = registry.cursors(self._connection, self.name)
        if any(stored[partition] != self._next[partition] for partition in self._reached):
            raise Fenced(f"another process has folded for projection {self.name!r}", hint="the binder is read again")

    def _stays(self) -> bool:
        """Return whether this is still the file that is read, of a projection that is to run."""
        try:
            current = self._files.current(self._projection.binder)
        except NotFound:
            return False
        row = registry.find(self._connection, self.name)
        return current == self._file and row is not None and row.state == "running"

    def _rate(self) -> float | None:
        """Return events per second; None if too little time has passed."""
        since, count = self._window
        now, count = time.monotonic(), count + self._folder.folded
        if now - since < RATE_S:
            self._window = since, count
            return None
        self._window = now, 0
        return count / (now - since)
