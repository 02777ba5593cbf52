"""The verbs on a log directory. `Engine` is what `headwater.open("data")` returns; safe from any thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Unpack
from weakref import WeakSet

import msgspec

from headwater.engine import archive_checking, checking
from headwater.engine.catalogue import DirectoryCatalog
from headwater.engine.checking import CheckReport
from headwater.engine.file_consumers import FileConsumers
from headwater.engine.info import STATES, partition_info
from headwater.engine.replica.marker import Marker
from headwater.engine.replica.source import LocalSource
from headwater.engine.retaining import Keeper
from headwater.engine.rules import not_found
from headwater.engine.topics import OpenTopic
from headwater.engine.transaction import DirectoryTransaction
from headwater.engine.verbs import Verbs
from headwater.errors import HeadwaterError, NotFound, Unavailable, enough_memory
from headwater.event import Durability
from headwater.format import given
from headwater.format.journal import Entry
from headwater.format.producers import Producer
from headwater.format.settings import Replica, Retention, TopicRecord, TopicSettings
from headwater.history.archive import DirectoryArchive
from headwater.history.archiver import Archiver, Progress
from headwater.info import ArchivedRange, DeletedSegment, TopicInfo
from headwater.limits import DEFAULTS, Limits
from headwater.requests import wants_sync
from headwater.storage import repair as log_repair
from headwater.storage.disk import Clock, Disk
from headwater.storage.failures import deleted
from headwater.storage.group import WriterTurns
from headwater.storage.journal import Journal, restore
from headwater.storage.log import LocalLog
from headwater.storage.place import LogDirectory
from headwater.storage.repair import Action
from headwater.storage.sealer import Sealer, seal_all

_engines: WeakSet[Engine] = WeakSet()  # which must begin anew in a forked child


class Engine(Verbs[LocalLog]):
    """An open log directory. Close it, or use it in a `with` statement."""

    _catalogue: DirectoryCatalog
    _consumers: FileConsumers

    def __init__(
        self,
        path: Path,
        *,
        create: bool = True,
        durability: Durability = "fsync",
        limits: Limits = DEFAULTS,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        sync = wants_sync(durability)
        disk, clock = disk or Disk(), clock or Clock()
        self._catalogue = DirectoryCatalog(path, disk, clock, limits)
        if create:
            self._catalogue.init()
        self._store = self._catalogue.open()
        self._marker = Marker(path, disk, clock)
        self._guard = self._marker.refuse if self._marker.follows() else None  # only a replica needs to look again
        self._catalogue.guard = self._guard
        self._consumers = FileConsumers(path, disk, clock, limits, partial(restore, path / "journal"))
        super().__init__(str(path), limits, disk, clock, sync=sync)
        self._archive = DirectoryArchive(path, disk, clock, limits)
        follows = (lambda: False) if self._guard is None else self._marker.follows
        self._keeper = Keeper(self._catalogue, self._consumers.slowest, self._archive, follows)
        self._sealer = Sealer(self._keeper.rolled)
        self._closing = threading.Lock()  # protects `_closed`
        self._journal = Journal(path / "journal", self._disk, self._checkpoint)
        _engines.add(self)
        self._journal.finish_abandoned()

    @property
    def path(self) -> Path:
        """The directory."""
        return self._catalogue.path

    @property
    def uuid(self) -> str:
        """What identifies this log directory, wherever it is moved."""
        return self._store.uuid

    def probe(self) -> None:
        """Raise what keeps the log from being read: it is closed, its directory is gone or damaged. Reads one file."""
        self.check_open()
        self._catalogue.open()

    def frozen(self) -> list[tuple[str, int, str]]:
        """The open logs that are frozen: topic, partition and why. Looks at memory only."""
        return [(log.topic, log.partition, STATES[state]) for log, state in self._frozen()]

    def thaw(self) -> None:
        """Bring the frozen logs back that can be, as opening the directory again does; the others stay frozen."""
        for log, _ in self._frozen():
            with contextlib.suppress(HeadwaterError):
                log.thaw()

    def _frozen(self) -> list[tuple[LocalLog, int]]:
        logs = [log for opened in list(self._topics.open.values()) for log in opened.logs]
        return [(log, state) for log in logs if (state := log.frozen()) is not None]

    def replication(self) -> LocalSource:
        """What a replica asks this directory."""
        return LocalSource(self)

    @property
    def replica(self) -> Replica | None:
        """What it is a replica of, also once it was promoted; None if it never was one."""
        return self._marker.read()

    # Topics

    def describe(self, topic: str) -> TopicInfo:
        """What a topic is and holds; raises NotFound."""
        opened = self._topics.live(topic)
        described = self._catalogue.find(topic)  # another process may have changed what it keeps
        partitions = [partition_info(log) for log in opened.logs]
        return TopicInfo(
            name=described.name,
            uuid=described.uuid,
            settings=msgspec.to_builtins(described.settings),
            partitions=partitions,
        )

    def settings_of(self, topic: str) -> TopicSettings:
        """What a topic was made with, and keeps, as any process may have changed it; raises NotFound."""
        return self._catalogue.find(topic).settings

    def delete(self, topic: str) -> None:
        """Delete a topic and all its events, for every process; raises NotFound. Made again, it starts afresh."""
        opened = self._topics.live(topic)
        if self._guard is not None:
            self._guard()
        self._delete(opened)

    def _delete(self, opened: OpenTopic[LocalLog]) -> None:
        turns = WriterTurns()
        try:
            for log in opened.logs:  # in the order of partitions, as everybody who locks several
                turns.take(log.transacting()).begin_deleting()
            self._catalogue.remove(opened.topic)
            for writer in turns.writers:
                writer.end_deleting()
        except FileNotFoundError as error:  # another process was first
            self._topics.forget(opened)
            raise not_found(opened.topic.name, self.path) from error
        except OSError as error:
            hint = "is the directory writable?"
            message = f"topic {opened.topic.name!r} cannot be deleted: {error.strerror}: {error.filename}"
            raise Unavailable(message, hint=hint, path=str(error.filename)) from error
        finally:
            any(turns.locks)
            turns.leave()
        self._topics.forget(opened)
        for log in opened.logs:
            log.close()
            self._archive.cache.forget(log.place.uuid)

    def transaction(
        self, *, durability: Durability | None = None, producer: Producer | tuple[str, int, int] | None = None
    ) -> DirectoryTransaction:
        """Appends to any topics, and acks, all or nothing: `with hw.transaction() as tx: tx.append(…)`.

        Committed when the block ends, and discarded if it raises. Over several partitions it is always durable.
        `producer` is (id, epoch, seq): the same appends under the same seq again are done once, and have the first
        answer; see docs/TRANSACTIONS.md.
        """
        self.check_open()
        sync = self._sync if durability is None else wants_sync(durability)
        told = given.check_producer(producer, self._limits)
        return DirectoryTransaction(self, self._journal, sync=sync, producer=told)

    # Keeping

    @enough_memory("the segments cannot be sealed")
    def seal(self, topic: str) -> int:
        """Finish the active segments of a topic, pack and index all that is finished; returns how many were sealed.

        What another process or thread is sealing is waited for: Unavailable if that takes too long.
        """
        logs = self._topics.live(topic).logs
        for log in logs:
            log.roll(tell=False)
        return sum(seal_all(log.place, wait=True) for log in logs)

    def retain(
        self,
        topic: str,
        *,
        before: int | datetime | None = None,
        partition: int | None = None,
        dry_run: bool = False,
        **changes: Unpack[Retention],
    ) -> list[DeletedSegment]:
        """Delete the oldest segments that need not be kept; returns them. `dry_run` only tells which.

        `changes` change what the topic keeps, durably and for every process from its next roll on; each bound is for
        one partition, and 0 takes it away. `before` also deletes what ends before an offset or a time, once. The active
        segment stays, unless all its events are older than `retention_age_ms`. Without `dry_run`, what is returned is
        gone durably: a read of it raises NotFound with the code `offset_gone` and the `oldest` offset. Of a directory
        with an archive, only what is in it is deleted, and read from there; Unavailable if that is out of reach.
        """
        logs = self._topics.live_logs(topic, partition)
        if self._guard is not None and not dry_run:
            self._guard()
        return self._keeper.retain(logs, changes=changes, before=before, dry_run=dry_run)

    def archive(
        self,
        url: str | None = None,
        *,
        topic: str | None = None,
        seal: bool = False,
        progress: Progress | None = None,
    ) -> list[ArchivedRange]:
        """Write all finished segments that are not there yet to an archive, as Parquet files; returns what was written.

        The directory remembers the `url` (a path, `s3://…`, `objects:///…`), which may be left out then: from the first
        call on, retention deletes only what is archived, and reads go on there in every process. `seal` finishes the
        active segments first. Raises Conflict for an archive of another log, Unsupported without pyarrow, Unavailable.
        See docs/HISTORY.md.
        """
        return self.archiver(url, topic=topic).once(seal=seal, progress=progress)

    def archiver(
        self, url: str | None = None, *, topic: str | None = None, stopping: threading.Event | None = None
    ) -> Archiver:
        """Return what keeps the archive up to date for as long as it is wanted: `run` ends after `stopping` is set."""
        self.check_open()
        opened = self._archive.begin(url, self.uuid)
        return Archiver(opened, partial(self._live, topic), self._limits, stopping)

    def _live(self, topic: str | None) -> Iterator[tuple[TopicRecord, list[LocalLog]] | HeadwaterError]:
        """The topics with their logs; or, of one topic. What is wrong with a topic comes in its place."""
        described, broken = self._catalogue.survey(topic)
        yield from broken
        for each in described:
            try:
                yield each, self._topics.live(each.name).logs
            except NotFound:
                continue  # it was deleted meanwhile
            except HeadwaterError as error:
                yield error

    @property
    def archive_url(self) -> str | None:
        """Where the archive of this directory is; None if it has none."""
        return self._archive.url()

    def reindex(self, topic: str | None = None, progress: Progress | None = None) -> int:
        """Make the indexes of a topic, or of all, again from the segments; returns how many. They are never truth.

        `progress` is called with the bytes that are done, and all of them.
        """
        self.check_open()
        topics, broken = self._catalogue.survey(topic)
        made = checking.reindex([log.place for each in topics for log in self._topics.live(each.name).logs], progress)
        if broken:
            raise broken[0]  # the others are done
        return made

    @enough_memory("the log cannot be checked")
    def check(self, topic: str | None = None, progress: Progress | None = None) -> CheckReport:
        """Verify every checksum and invariant of a topic, or of all; changes nothing.

        `progress` is called with the bytes that are done, and all of them.
        """
        self.check_open()
        return checking.check(self._catalogue, self._journal, topic, progress)

    def check_archive(self, topic: str | None = None, progress: Progress | None = None) -> CheckReport:
        """Verify what the archive of this directory holds, by fetching all of it; and that nothing is missing there.

        Raises NotFound if the directory has no archive, Unavailable if it is out of reach.
        """
        self.check_open()
        opened = self._archive.open()
        return archive_checking.check_archive(opened, self._catalogue, topic, progress)

    @enough_memory("the log cannot be repaired")
    def repair(self, topic: str | None = None, *, apply: bool = False) -> list[Action]:
        """What would mend a topic, or all; done only with `apply`. What is cut is kept beside the log."""
        self.check_open()
        return checking.repair(self._catalogue, topic, self._repaired if apply else log_repair.plan)

    def _repaired(self, place: LogDirectory) -> list[Action]:
        return self._topics.get(place.topic).logs[place.partition].repair()

    def after_fork(self) -> None:
        """In a forked child, where it is called by itself: begin anew, with descriptors and locks of its own."""
        self._closing = threading.Lock()
        self._journal.after_fork()
        self._archive.after_fork()
        self._sealer = Sealer(self._keeper.rolled)
        for member in list(self._members):
            member.after_fork()
        self._topics.after_fork()

    def close(self) -> None:
        """Stop followers and sealing, wait for appends under way, and let go of all files. May be called twice."""
        for member in list(self._members):
            member.close()
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._sealer.close()
        self._journal.close()
        self._topics.close()
        self._archive.close()

    def _new_log(self, topic: TopicRecord, partition: int) -> LocalLog:
        place = self._catalogue.place(topic, partition)
        log = LocalLog(
            place, self._rolled, self._keeper.may_roll, self._damaged, self._archive.reader(place), self._guard
        )
        # What all of them found there is of this topic only if that was there before the first and after the last.
        if partition == topic.partitions - 1 and self._catalogue.find(topic.name).uuid != topic.uuid:
            raise deleted(place)
        return log

    def _rolled(self, place: LogDirectory) -> None:
        self._sealer.rolled(place)

    def _damaged(self, place: LogDirectory, base: int) -> None:
        self._sealer.damaged(place, base)

    def _checkpoint(self, entries: list[Entry]) -> None:
        """Make durable in their own places what transactions have brought. What is deleted needs no more.

        Raises what the last log raised that could not, after all were tried.
        """
        failed: HeadwaterError | None = None
        for topic, partition, uuid in sorted({(s.topic, s.partition, s.uuid) for e in entries for s in e.shares}):
            try:
                opened = self._topics.known(topic)
                if partition < len(opened.logs) and opened.logs[partition].place.uuid.hex() == uuid:
                    opened.logs[partition].sync()
            except NotFound:
                pass
            except HeadwaterError as error:
                failed = error
        for path in sorted({move.path for entry in entries for move in entry.moves}):
            self._consumers.settle(path)
        if failed is not None:
            raise failed


def _after_fork() -> None:
    for engine in list(_engines):
        engine.after_fork()


os.register_at_fork(after_in_child=_after_fork)
