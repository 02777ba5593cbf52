"""The consumers of a log directory, and the leases of their members, in one small file for each consumer and topic.

Consumers are created and deleted under the lock `consumers/.lock`; their cursors change under the lock of their own
file, which every method of `FileLeases` takes once. Leases expire by the monotonic clock that all processes of the
machine share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import unquote
from uuid import UUID

from headwater.consumers.leases import Claim, LeaseState, Progress, Round, check_name, consumer_not_found, share_of
from headwater.directory.cursor_file import (
    CursorMove,
    Cursors,
    Redo,
    read_header,
    read_slots,
    redo_nothing,
    slots_damaged,
)
from headwater.directory.failures import FULL
from headwater.disk.disk import Clock, Disk, locked
from headwater.errors import Corrupt, NotFound, Unavailable, Unsupported
from headwater.format import names
from headwater.format.cursors import NOBODY, CursorSlot, MemberRecord
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
        """Return the stored cursors, created durably with these starts if the consumer or its topic is new."""
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
        """Return the stored cursors, in a durable file: the process that made it may have died before its name was."""
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


class FileLeases:
    """One member's part in the file of a consumer. A guest is no member, and takes of `guest` what is free."""

    reach_s = 0.0
    transactional = True

    def __init__(
        self, cursors: Cursors, clock: Clock, lease_ms: int, ack_ms: int, guest: Sequence[int] | None = None
    ) -> None:
        self.cursors = cursors
        self.id = clock.random_bytes(16)
        self.ack_s = ack_ms / 1000
        self._clock = clock
        self._lease_ns = lease_ms * 1_000_000
        self.guest = guest
        self._first: dict[int, int] = {}  # the counter of each slot when it was seen first

    def tend(self, held: dict[int, int], *, claim: bool) -> Round:
        """Refresh the member and the leases of what it holds, by their fences; with `claim`, take up to its share.

        What was taken is durable when this returns.
        """
        cursors = self.cursors
        with cursors.held():
            now = self._now_ns()
            expiry = now + self._lease_ns
            members = [] if self.guest is not None else cursors.put_member(MemberRecord(self.id, expiry), now)
            slots = cursors.slots()
            lost = [number for number, fence in held.items() if not self._owns(slots[number], fence)]
            ours = held.keys() - set(lost)
            for number in ours:
                if slots[number].expiry_ns - now < self._lease_ns * 2 // 3:
                    cursors.put(number, cursors.next(number, expiry_ns=expiry))
                else:
                    expiry = min(expiry, slots[number].expiry_ns)
            share = share_of(members, self.id, len(slots)) if members else len(slots)
            room = max(0, share - len(ours))
            wanted = range(len(slots)) if self.guest is None else self.guest
            others = [number for number in wanted if number not in ours]
            for number in others:
                self._first.setdefault(number, slots[number].counter)
            free = [number for number in others if not slots[number].leased(cursors.boot_id, now)][:room]
            claimed = [self._take(number, slots[number], now) for number in free] if claim else []
            if claimed:
                cursors.sync()
            return Round(expiry / 1e9, lost, claimed, share, bool(free) and not claimed)

    def store(self, progress: Iterable[Progress], *, sync: bool) -> tuple[float, list[int]]:
        """Store how far the member has come; returns until when the leases hold, and the partitions that were lost."""
        cursors = self.cursors
        lost = []
        with cursors.held():
            expiry = self._now_ns() + self._lease_ns
            for each in progress:
                slot = cursors.slot(each.partition)
                if self._owns(slot, each.fence):
                    cursors.put(each.partition, self._next(each, slot, expiry_ns=expiry))
                else:
                    lost.append(each.partition)
            if sync:
                cursors.sync()
        return expiry / 1e9, lost

    def release(self, progress: Sequence[Progress], *, leave: bool = False, died: bool = False) -> list[int]:
        """Give partitions up, durably; with `leave`, the place among the members too. Returns what was lost before.

        With `died`, they are left as if their owner's process had ended with events in its hands.
        """
        cursors = self.cursors
        lost = []
        changes: dict[str, object] = {"expiry_ns": 0} if died else {"owner": NOBODY, "expiry_ns": 0, "reached": 0}
        with cursors.held():
            for each in progress:
                slot = cursors.slot(each.partition)
                if self._owns(slot, each.fence):
                    cursors.put(each.partition, self._next(each, slot, **changes))
                else:
                    lost.append(each.partition)
            if leave:
                cursors.remove_member(self.id)
            cursors.sync()
        return lost

    def seek(self, progress: Sequence[Progress]) -> tuple[float, list[LeaseState]]:
        """Move cursors that the member holds, durably, under new fences; returns until when these hold.

        Raises Fenced, and then nothing was moved.
        """
        cursors = self.cursors
        with cursors.held():
            for each in progress:
                cursors.owned(each.partition, self.id, each.fence)
            moved = []
            for each in progress:
                changes = {"cursor": each.cursor, "reached": each.cursor, "failing": 0, "failures": 0}
                moved.append(cursors.next(each.partition, fence=each.fence + 1, **changes))
                cursors.put(each.partition, moved[-1])
            cursors.sync()
            expires_s = min((slot.expiry_ns for slot in moved), default=0) / 1e9
            return expires_s, [_standing(slot) for slot in moved]

    def peek(self, partitions: Iterable[int]) -> dict[int, LeaseState]:
        """Return where the consumer is in some partitions, by a look without the lock.

        None for those unreadable just now.
        """
        return {number: _standing(slot) for number, slot in self.cursors.peek(partitions).items()}

    def busy(self, partitions: Iterable[int]) -> set[int]:
        """Return those of which a change was seen since this member began."""
        slots = self.cursors.peek(partitions)
        return {number for number, slot in slots.items() if slot.counter != self._first.get(number, slot.counter)}

    def move(self, partition: int, fence: int, cursor: int) -> CursorMove:
        """Return what a transaction stores to move a cursor."""
        return CursorMove(self.cursors, partition, fence, self.id, cursor)

    def _take(self, number: int, slot: CursorSlot, now_ns: int) -> Claim:
        """Become the owner of a free partition. An owner that died had an event in its hands: that may be why."""
        cursors = self.cursors
        died = slot.owner != NOBODY and slot.boot_id == cursors.boot_id and slot.reached > slot.cursor
        taken = cursors.next(
            number,
            fence=slot.fence + 1,
            owner=self.id,
            boot_id=cursors.boot_id,
            expiry_ns=now_ns + self._lease_ns,
            reached=slot.cursor,
            failing=slot.cursor,
            failures=slot.failures_at(slot.cursor) + died,
        )
        cursors.put(number, taken)
        return Claim(number, _standing(taken), slot.reached if died else 0)

    def _owns(self, slot: CursorSlot, fence: int) -> bool:
        return slot.owner == self.id and slot.fence == fence

    def _next(self, each: Progress, slot: CursorSlot, **changes: object) -> CursorSlot:
        """Return the slot with this progress. A transaction may have moved the cursor further: it never goes back."""
        if each.cursor >= slot.cursor:
            changes = {"cursor": each.cursor, "failing": each.failing, "failures": each.failures, **changes}
        return self.cursors.next(each.partition, **{"reached": max(each.reached, slot.reached), **changes})

    def _now_ns(self) -> int:
        return int(self._clock.monotonic() * 1e9)


def _standing(slot: CursorSlot) -> LeaseState:
    return LeaseState(slot.fence, slot.cursor, slot.failing, slot.failures)
