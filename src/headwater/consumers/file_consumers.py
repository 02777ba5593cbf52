"""The consumers of a log directory: found, made, listed, moved and deleted, by any process.

Consumers are made and deleted under the lock `consumers/.lock`; their cursors change under the lock of their own file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import unquote
from uuid import UUID

from headwater.consumers.consumers import check_name, consumer_not_found
from headwater.consumers.file_leases import FileLeases
from headwater.directory.cursor_file import Cursors, Redo, read_header, read_slots, redo_nothing, slots_damaged
from headwater.directory.failures import FULL
from headwater.disk.disk import Clock, Disk, locked
from headwater.errors import Corrupt, NotFound, Unavailable, Unsupported
from headwater.format import names
from headwater.format.cursors import NOBODY
from headwater.format.settings import TopicRecord
from headwater.info import ConsumerInfo
from headwater.limits import Limits
from headwater.log.log import Log

LOCK_FILE = ".lock"


class FileConsumers:
    """All consumers of one directory. Safe from any thread and process: it keeps no state of its own."""

    def __init__(self, path: Path, disk: Disk, clock: Clock, limits: Limits, redo: Redo = redo_nothing) -> None:
        self._root = path
        self._path = path / "consumers"
        self._disk = disk
        self._clock = clock
        self._limits = limits
        self._redo = redo

    def join(
        self,
        name: str,
        topic: TopicRecord,
        lease_ms: int,
        starts: Callable[[], list[int]],
        guest: Sequence[int] | None = None,
    ) -> FileLeases:
        """Return the part of a new member.

        A consumer is made durably, with these starts, if it is new or its topic is.
        """
        return FileLeases(self._find_or_make(name, topic, starts), self._clock, lease_ms, self._limits.ack_ms, guest)

    def check(self, name: str, topic: TopicRecord) -> None:
        """Raise NotFound if the topic has no such consumer."""
        self._find(name, topic)

    def settle(self, file: str) -> None:
        """Make durable what transactions have brought to a consumer's file, by its path; nothing if it is gone."""
        path = self._path / file
        header = read_header(path, self._disk)
        if header is not None:
            place = path, header.topic_uuid, header.partitions
            cursors = Cursors(*place, self._disk, self._clock, self._limits.lock_wait_s, self._redo)
            with contextlib.suppress(NotFound), cursors.held():
                cursors.sync()

    def slowest(self, topic: TopicRecord, partition: int) -> int | None:
        """Return the lowest cursor of all consumers of a topic in a partition; None if it has none."""
        cursors = []
        for name in self.names(topic):
            stored = read_slots(self._file(name, topic.name), self._disk)
            slot = stored[2][partition] if stored is not None and partition < len(stored[2]) else None
            cursors.append(slot.cursor if slot is not None else 0)
        return min(cursors, default=None)

    def names(self, topic: TopicRecord) -> list[str]:
        """Return the names of all consumers of a topic, sorted."""
        file = names.directory_of(topic.name)
        found = []
        for directory in self._directories():
            header = read_header(self._path / directory / file, self._disk)
            if header is not None and header.topic_uuid == UUID(topic.uuid).bytes:
                found.append(unquote(directory))
        return sorted(found)

    def _directories(self) -> list[str]:
        return sorted(name for name in self._disk.names(self._path) if not name.startswith("."))

    def infos(self, topic: TopicRecord, logs: Sequence[Log]) -> list[ConsumerInfo]:
        """Return all consumers of a topic, partition by partition; takes no lock. One that is damaged says so."""
        found: list[ConsumerInfo] = []
        for directory in self._directories():
            try:
                found += self._infos(directory, topic, logs)
            except (Corrupt, Unsupported) as error:
                found.append(ConsumerInfo.damaged(unquote(directory), topic.name, -1, error))
        return sorted(found, key=lambda info: (info.name, info.partition))

    def _infos(self, directory: str, topic: TopicRecord, logs: Sequence[Log]) -> Iterator[ConsumerInfo]:
        """Yield one consumer, if it is one of this topic; raises Corrupt."""
        name, path = unquote(directory), self._path / directory / names.directory_of(topic.name)
        stored = read_slots(path, self._disk)
        if stored is None or stored[0].topic_uuid != UUID(topic.uuid).bytes:
            return
        now_ns = int(self._clock.monotonic() * 1e9)
        for number, (log, slot) in enumerate(zip(logs, stored[2], strict=False)):
            if slot is None:
                yield ConsumerInfo.damaged(name, topic.name, number, slots_damaged(path, number))
                continue
            end = log.end()
            leased = slot.leased(self._clock.boot_id(), now_ns) and slot.owner != NOBODY
            left_ms = (slot.expiry_ns - now_ns) // 1_000_000 if leased else 0
            place = name, topic.name, number, slot.cursor, end, max(0, end - slot.cursor)
            owner = slot.owner.hex() if leased else None
            yield ConsumerInfo(*place, owner, slot.fence, left_ms, slot.failures_at(slot.cursor))

    def seek(self, name: str, topic: TopicRecord, cursors: dict[int, int]) -> None:
        """Move cursors, durably, under new fences: the process that holds a partition loses it, and it is free."""
        stored = self._find(name, topic)
        with stored.held():
            for number, cursor in cursors.items():
                fence = stored.slot(number).fence + 1
                changes = {"cursor": cursor, "reached": 0, "failing": 0, "failures": 0, "expiry_ns": 0}
                stored.put(number, stored.next(number, fence=fence, owner=NOBODY, **changes))
            stored.sync()

    def forget(self, name: str, topic: str) -> None:
        """Delete a consumer's cursors of a topic, durably; raises NotFound. Its members find out and stop."""
        path = self._file(name, topic)
        try:
            with self._locked():
                self._disk.unlink(path)
                self._disk.sync_directory(path.parent)
        except FileNotFoundError:
            raise consumer_not_found(name, topic) from None
        except OSError as error:
            raise Unavailable(
                f"consumer {name!r} cannot be deleted: {error.strerror}: {path}",
                hint="is the directory writable? Move away what is not a file",
                code="read_only",
                path=str(path),
            ) from error

    def _find(self, name: str, topic: TopicRecord) -> Cursors:
        """Return the stored cursors of a consumer; raises NotFound."""
        path, uuid = self._file(name, topic.name), UUID(topic.uuid).bytes
        try:
            return Cursors.open(
                path, uuid, topic.partitions, self._disk, self._clock, self._limits.lock_wait_s, self._redo
            )
        except NotFound:
            raise consumer_not_found(name, topic.name) from None

    def _find_or_make(self, name: str, topic: TopicRecord, starts: Callable[[], list[int]]) -> Cursors:
        """The stored cursors, made durably, with these starts, if the consumer is new or its topic was deleted."""
        path, uuid = self._file(name, topic.name), UUID(topic.uuid).bytes
        try:
            with contextlib.suppress(NotFound):
                return self._made(name, topic)
            with self._locked():
                header = read_header(path, self._disk)
                if header is not None and header.topic_uuid == uuid:
                    return self._made(name, topic)  # another process was first
                with contextlib.suppress(FileExistsError):
                    self._disk.mkdir(path.parent)
                # The process that made the directories may have died before they were durable.
                self._disk.sync_directory(self._path)
                self._disk.sync_directory(self._root)
                wait_s = self._limits.lock_wait_s
                return Cursors.create(path, uuid, starts(), self._disk, self._clock, wait_s, self._redo)
        except OSError as error:
            raise Unavailable(
                f"consumer {name!r} cannot be created: {error.strerror}",
                hint="is the directory writable, and is there space?",
                code="disk_full" if error.errno in FULL else "read_only",
            ) from error

    def _made(self, name: str, topic: TopicRecord) -> Cursors:
        """The stored cursors, in a file that stays: whoever made it may have died before its name was durable."""
        found = self._find(name, topic)
        self._disk.sync_directory(found.path.parent)
        return found

    def _file(self, name: str, topic: str) -> Path:
        return self._path / check_name(name) / names.directory_of(topic)

    def _locked(self) -> AbstractContextManager[object]:
        """Take the lock under which consumers are made and deleted."""
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(self._path)
        return locked(self._path / LOCK_FILE, self._disk, self._clock, self._limits.lock_wait_s)
