"""`Directory`: the backend that keeps logs in a directory, shared by any number of processes. Safe from any thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import ClassVar
from weakref import WeakSet

import msgspec

from headwater.append_queue import AppendQueue, QueuedAppend
from headwater.backend import Kind, Lack
from headwater.directory import repair as log_repair
from headwater.directory.catalog import DirectoryCatalog
from headwater.directory.check import check_topics
from headwater.directory.group import WriterTurns
from headwater.directory.journal import Journal
from headwater.directory.local_log import STATES, LocalLog
from headwater.directory.log_directory import LogDirectory
from headwater.directory.parts import DirectoryParts, LocalArchive
from headwater.directory.repair import Action
from headwater.directory.retention import Keeper
from headwater.directory.sealer import Sealer, reindex_all, seal_all
from headwater.directory.transaction import DirectoryCommitter
from headwater.disk.disk import Clock, Disk
from headwater.errors import Corrupt, HeadwaterError, NotFound, Unavailable, enough_memory, within_memory
from headwater.event import Durability, Ref
from headwater.format.journal import Entry
from headwater.format.producers import Producer
from headwater.format.settings import Replica, Retention, TopicRecord, TopicSettings
from headwater.info import CheckReport, DeletedSegment, Progress, TopicInfo
from headwater.limits import DEFAULTS, Limits
from headwater.log.log import deleted
from headwater.log.log_backend import LogBackend
from headwater.log.open_topics import OpenTopic
from headwater.log.topic_rules import not_found
from headwater.requests import Append, wants_sync
from headwater.transaction import Requests, Transaction

_directories: WeakSet[Directory] = WeakSet()  # which start over in a forked child


@within_memory("append_later")
class Directory(LogBackend[LocalLog]):
    """An open log directory."""

    kind: ClassVar[Kind] = "directory"
    producers_max = DEFAULTS.producers_max
    lacks: ClassVar[Mapping[str, Lack]] = {
        "maintain": Lack("be maintained by hand", "maintenance is automatic; see seal and retain"),
        "query": Lack("run queries of an application", "call app.ask(store, …) where the application is"),
    }
    _catalogue: DirectoryCatalog

    def __init__(
        self,
        path: Path,
        parts: DirectoryParts,
        *,
        create: bool = True,
        durability: Durability = "fsync",
        limits: Limits = DEFAULTS,
        disk: Disk,
        clock: Clock,
    ) -> None:
        sync = wants_sync(durability)
        self._catalogue = DirectoryCatalog(path, disk, clock, limits)
        if create:
            self._catalogue.init()
        self._store = self._catalogue.open()
        self._marker = parts.replica
        self._guard = self._marker.refuse if self._marker.follows() else None  # only a replica needs to look again
        self._catalogue.guard = self._guard
        self._consumers = parts.consumers
        super().__init__(str(path), limits, disk, clock, sync=sync)
        self._archive = parts.archive
        follows = (lambda: False) if self._guard is None else self._marker.follows
        self._keeper = Keeper(self._catalogue, self._consumers.slowest, self._archive, follows)
        self._sealer = Sealer(self._keeper.rolled)
        self._closing = threading.Lock()  # protects `_closed`
        self._journal = Journal(path / "journal", self.disk, self._checkpoint)
        _directories.add(self)
        self._queue = AppendQueue(self, limits)
        self._journal.finish_abandoned()

    @property
    def address(self) -> str:
        return str(self.path)

    @property
    def path(self) -> Path:
        """Return the directory."""
        return self._catalogue.path

    @property
    def uuid(self) -> str:
        """Return what identifies this log directory, wherever it is moved."""
        return self._store.uuid

    def probe(self) -> None:
        """Raise what keeps the log from being read: it is closed, its directory is gone or damaged. Reads one file."""
        self.check_open()
        self._catalogue.open()

    def frozen(self) -> list[tuple[str, int, str]]:
        """Return the open logs that are frozen: topic, partition and why. Looks at memory only."""
        return [(log.topic, log.partition, STATES[state]) for log, state in self._frozen()]

    def thaw(self) -> None:
        """Bring the frozen logs back that can be, as opening the directory again does; the others stay frozen."""
        for log, _ in self._frozen():
            with contextlib.suppress(HeadwaterError):
                log.thaw()

    def _frozen(self) -> list[tuple[LocalLog, int]]:
        logs = [log for opened in list(self._topics.open.values()) for log in opened.logs]
        return [(log, state) for log in logs if (state := log.frozen_state()) is not None]

    @property
    def replica(self) -> Replica | None:
        """Return what it is a replica of, also once it was promoted; None if it never was one."""
        return self._marker.read()

    # Topics

    def describe(self, topic: str) -> TopicInfo:
        opened = self._topics.live(topic)
        described = self._catalogue.find(topic)  # another process may have changed what it keeps
        partitions = [log.info() for log in opened.logs]
        return TopicInfo(
            name=described.name,
            uuid=described.uuid,
            settings=msgspec.to_builtins(described.settings),
            partitions=partitions,
        )

    def settings_of(self, topic: str) -> TopicSettings:
        """Return what a topic was made with, and keeps, as any process may have changed it; raises NotFound."""
        return self._catalogue.find(topic).settings

    def delete(self, topic: str) -> None:
        opened = self._topics.live(topic)
        if self._guard is not None:
            self._guard()
        self._delete(opened)

    def _delete(self, opened: OpenTopic[LocalLog]) -> None:
        turns = WriterTurns()
        try:
            for log in opened.logs:  # in the order of partitions, as every process that locks several
                turns.take(log.transacting()).held.begin_deleting()
            self._catalogue.remove(opened.topic)
            for writer in turns.writers:
                writer.held.end_deleting()
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
            self._archive.forget(log.place.uuid)

    def transaction(self, sync: bool | None, producer: Producer | None) -> Transaction:
        self.check_open()
        return Transaction(DirectoryCommitter(self, self._journal, sync=self._wants_sync(sync), producer=producer))

    def recall(self, requests: Requests, sync: bool | None, producer: Producer | None) -> list[Ref] | None:
        """Return the answer to a producer's transaction, if that was committed before; None if it was not."""
        self.check_open()
        committer = DirectoryCommitter(self, self._journal, sync=self._wants_sync(sync), producer=producer)
        return committer.recall(requests)

    def append_later(self, request: Append) -> QueuedAppend:
        return self._queue.add(request)

    def flush(self) -> None:
        self._queue.flush()

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
        before: int | datetime | None,
        partition: int | None,
        dry_run: bool,
        changes: Retention,
    ) -> list[DeletedSegment]:
        logs = self._topics.live_logs(topic, partition)
        if self._guard is not None and not dry_run:
            self._guard()
        return self._keeper.retain(logs, changes=changes, before=before, dry_run=dry_run)

    def live(self, topic: str | None) -> Iterator[tuple[TopicRecord, list[LocalLog]] | HeadwaterError]:
        """Return all topics with their logs, or one of them. What is wrong with a topic comes in its place."""
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
    def archive(self) -> LocalArchive:
        """Return the archive of this directory, if it has one."""
        return self._archive

    @property
    def catalog(self) -> DirectoryCatalog:
        """Return the topics of this directory."""
        return self._catalogue

    def remember_archive(self, url: str) -> None:
        """Store where this directory is archived, durably."""
        self._archive.begin(url, self.uuid)

    @property
    def archive_url(self) -> str | None:
        """Return where the archive of this directory is; None if it has none."""
        return self._archive.url()

    def reindex(self, topic: str | None = None, progress: Progress | None = None) -> int:
        """Make the indexes of a topic, or of all, again from the segments; returns how many. They are never truth.

        `progress` is called with the bytes that are done, and all of them.
        """
        self.check_open()
        topics, broken = self._catalogue.survey(topic)
        made = reindex_all([log.place for each in topics for log in self._topics.live(each.name).logs], progress)
        if broken:
            raise broken[0]  # the others are done
        return made

    @enough_memory("the log cannot be checked")
    def check(self, topic: str | None = None, progress: Progress | None = None) -> CheckReport:
        """Verify every checksum and invariant of a topic, or of all; changes nothing.

        `progress` is called with the bytes that are done, and all of them.
        """
        self.check_open()
        return check_topics(self._catalogue, self._journal, topic, progress)

    @enough_memory("the log cannot be repaired")
    def repair(self, topic: str | None = None, *, apply: bool = False) -> list[Action]:
        """Return what would mend a topic, or all; done only with `apply`. What is cut is kept beside the log."""
        self.check_open()
        return log_repair.repair_topics(self._catalogue, topic, self._repaired if apply else log_repair.plan)

    def _repaired(self, place: LogDirectory) -> list[Action]:
        return self._topics.get(place.topic).logs[place.partition].repair()

    def after_fork(self) -> None:
        """In a forked child, where it is called by itself: start over, with descriptors and locks of its own."""
        self._closing = threading.Lock()
        self._queue.after_fork()
        self._journal.after_fork()
        self._archive.after_fork()
        self._sealer = Sealer(self._keeper.rolled)
        for member in list(self.members):
            member.after_fork()
        self._topics.after_fork()

    def close(self) -> None:
        """Stop followers and sealing, wait for appends under way, and release all files. May be called twice."""
        for member in list(self.members):
            member.close()
        try:
            self._queue.close()
        finally:
            self._close()

    def _close(self) -> None:
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
        archived = self._archive.reader(place)
        try:
            log = LocalLog(place, self._rolled, self._keeper.may_roll, self._damaged, archived, self._guard)
        except Corrupt:
            if self._catalogue.find(topic.name).uuid != topic.uuid:  # deleted, and made again, while it was opened
                raise deleted(place) from None
            raise
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
    for directory in list(_directories):
        directory.after_fork()


os.register_at_fork(after_in_child=_after_fork)
