"""The stored cursors of one consumer of one topic: read and changed under a file lock (docs/FORMAT.md, "Consumer").

`held()` takes the lock, finishes what a process that died left unfinished, and lets go in the end; everything but
`peek` is called inside it. The order of locks is: logs, then files of cursors, sorted by path; so no log may be locked
while one of these is held. Each `held()` opens the file again: a forked child has nothing to inherit. Safe from any
thread: a second one waits.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from headwater.directory.failures import FULL
from headwater.disk.disk import Clock, Disk, wait_for_lock
from headwater.errors import Corrupt, Fenced, HeadwaterError, NotFound, Unavailable
from headwater.format import cursors as format
from headwater.format.cursors import CursorsHeader, CursorSlot, MemberRecord, Words
from headwater.limits import CONSUMER_MEMBERS_MAX

Redo = Callable[["Cursors"], None]
"""Finish the transactions that name this file: `restore` the slots that they say. Called with the lock held."""

LOOKS_MAX = 20  # at slots that look damaged: a write takes microseconds, damage stays


def redo_nothing(cursors: Cursors) -> None:
    """Do nothing: for a place without transactions."""


class Cursors:
    """The cursors of one consumer of one topic."""

    def __init__(
        self,
        path: Path,
        topic_uuid: bytes,
        partitions: int,
        disk: Disk,
        clock: Clock,
        lock_wait_s: float,
        redo: Redo = redo_nothing,
    ) -> None:
        self.path = path
        self.topic_uuid = topic_uuid
        self.partitions = partitions
        self.boot_id = clock.boot_id()
        self.disk = disk
        self._clock = clock
        self._lock_wait_s = lock_wait_s
        self._redo = redo
        self._mutex = threading.Lock()  # one thread at a time waits for the file's lock, which protects all below
        self.id = format.NOBODY  # of the file, once it was held
        self._fd = -1
        self._words = Words(0, 0, format.NOBODY)
        self._mark = self._new_mark()  # what this object writes into `unsynced`
        self._unsynced: set[int] = set()  # partitions whose newest slot was written by this object and is not synced

    @classmethod
    def open(
        cls,
        path: Path,
        topic_uuid: bytes,
        partitions: int,
        disk: Disk,
        clock: Clock,
        lock_wait_s: float,
        redo: Redo = redo_nothing,
    ) -> Cursors:
        """Return the stored cursors; NotFound if there are none for this topic, Corrupt if the header is damaged."""
        cursors = cls(path, topic_uuid, partitions, disk, clock, lock_wait_s, redo)
        header = read_header(path, disk)
        if header is None or header.topic_uuid != topic_uuid:
            raise cursors._gone()
        return cursors

    @classmethod
    def create(
        cls,
        path: Path,
        topic_uuid: bytes,
        starts: list[int],
        disk: Disk,
        clock: Clock,
        lock_wait_s: float,
        redo: Redo = redo_nothing,
    ) -> Cursors:
        """Put a new file in place, durably, of whatever was there; `starts` has the cursor of each partition.

        The caller holds the lock under which consumers are made, and has synced the directories above that of the file.
        """
        header = CursorsHeader(topic_uuid, len(starts), clock.random_bytes(16))
        slots = [CursorSlot(1, start) for start in starts]
        disk.replace(path, format.encode(header, clock.boot_id(), slots))
        return cls(path, topic_uuid, len(starts), disk, clock, lock_wait_s, redo)

    def held(self) -> FileIO:
        """Take the lock until the `with` of what is returned ends. Raises NotFound if the consumer was deleted.

        Raises Unavailable if others keep the lock. What was put and not synced is in the hands of the system: it
        survives the end of the process.
        """
        files: list[FileIO] = []
        closing = map(FileIO.close, files)  # in C, as its `with` is: a signal handler may raise anywhere in between
        try:
            self.hold(files)
        except BaseException:
            any(closing)
            raise
        return files[0]

    def hold(self, files: list[FileIO]) -> None:
        """Take the lock until the file that is added to `files` is closed, which the caller does in any case."""
        with self._translated():
            self._fd = self._lock(files)
        self._settle()

    # With the lock held

    def slot(self, partition: int) -> CursorSlot:
        """Return the newest slot of a partition."""
        return self._newest(partition, self._read(format.PAIR_BYTES, format.slot_at(partition, 0)))

    def slots(self) -> list[CursorSlot]:
        """Return the newest slot of each partition."""
        size = format.PAIR_BYTES
        stored = self._read(size * self.partitions, format.SLOTS_AT)
        return [self._newest(number, stored[size * number : size * (number + 1)]) for number in range(self.partitions)]

    def next(self, partition: int, **changes: Any) -> CursorSlot:
        """Return the slot to `put` next: the newest one with changes. It takes the place of one that is not synced."""
        slot = self.slot(partition)
        step = 2 if partition in self._unsynced else 1
        return structs.replace(slot, counter=slot.counter + step, **changes)

    def owned(self, partition: int, owner: bytes, fence: int) -> CursorSlot:
        """Return the newest slot.

        Fenced unless it has this owner and fence. A lease that expired unnoticed is still held.
        """
        slot = self.slot(partition)
        if slot.owner != owner or slot.fence != fence:
            raise fenced(self, partition, fence, slot.fence)
        return slot

    def put(self, partition: int, slot: CursorSlot, *, journaled: bool = False) -> None:
        """Write a slot that `next` made. Others see it at once; `sync` makes it durable.

        One that a journal has must not be written over by the next: a kill in the middle of that would undo it.
        """
        if not self._words.unsynced:
            self._write_words(unsynced=self._mark)
        mark, self._mark = self._mark, self._new_mark()  # if this is interrupted, the slots are written again
        if journaled:
            self._unsynced.discard(partition)
        else:
            self._unsynced.add(partition)
        self._write(slot.encode(), format.slot_at(partition, slot.counter))
        self._mark = mark

    def restore(self, partition: int, slot: CursorSlot) -> bool:
        """Put a slot that a transaction decided on, unless it or a later one is there; for `redo`."""
        newest = format.newest(self._read(format.PAIR_BYTES, format.slot_at(partition, 0)))
        if newest is not None and newest.counter >= slot.counter:
            return False
        self.put(partition, slot)
        return True

    def sync(self) -> None:
        """Make all that was put durable, by any process."""
        if self._words.unsynced:
            try:
                with self._translated():
                    self.disk.fdatasync(self._fd)
            except Unavailable:
                self._mark = self._new_mark()  # so that the slots are written again before the next sync
                raise
            self._unsynced.clear()
            self._write_words(unsynced=0)

    @property
    def busy(self) -> bool:
        """Return whether a transaction that moves these cursors is under way."""
        return self._words.busy != 0

    def set_busy(self, busy: bool) -> None:
        """Say so. Who finds it set when the lock is free calls `redo`."""
        self._write_words(busy=int(busy))

    def members(self, now_ns: int) -> list[MemberRecord | None]:
        """Return the table of members; None where a record is free or expired."""
        stored = self._read(format.MEMBERS_BYTES, format.MEMBERS_AT)
        found = format.decode_members(stored)
        return [member if member is not None and now_ns < member.expiry_ns else None for member in found]

    def put_member(self, member: MemberRecord, now_ns: int) -> list[bytes]:
        """Enter or refresh a member; returns the ids of all live ones, in their order. Unavailable if it is full."""
        table = self.members(now_ns)
        there = [number for number, other in enumerate(table) if other is not None and other.id == member.id]
        number = there[0] if there else table.index(None) if None in table else -1
        if number < 0:
            raise Unavailable(
                f"{self.path} has the maximum of {CONSUMER_MEMBERS_MAX} members",
                hint="use fewer members: each partition is read by one member at a time",
                code="too_many_members",
            )
        self._write(member.encode(), format.MEMBERS_AT + format.MEMBER_BYTES * number)
        table[number] = member
        return [other.id for other in table if other is not None]

    def remove_member(self, id: bytes) -> None:
        """Take a member out of the table, if it is there."""
        for number, member in enumerate(self.members(0)):
            if member is not None and member.id == id:
                free = bytes(format.MEMBER_BYTES)
                self._write(free, format.MEMBERS_AT + format.MEMBER_BYTES * number)

    # Without the lock

    def peek(self, partitions: Iterable[int]) -> dict[int, CursorSlot]:
        """Return the newest slots of some partitions as they look without the lock.

        None for those unreadable just now.
        """
        try:
            fd = self.disk.open_read(self.path)
        except OSError:
            return {}
        try:
            pairs = {number: self.disk.pread(fd, format.PAIR_BYTES, format.slot_at(number, 0)) for number in partitions}
        finally:
            self.disk.close(fd)
        return {number: slot for number, pair in pairs.items() if (slot := format.newest(pair)) is not None}

    def _lock(self, files: list[FileIO]) -> int:
        disk = self.disk
        while True:
            try:
                files.append(disk.guard(disk.open_write(self.path)))
            except FileNotFoundError:
                raise self._gone() from None
            fd = files[-1].fileno()
            with self._mutex:
                taken = wait_for_lock(disk.try_lock, fd, self._clock, self._lock_wait_s)
            if not taken:
                raise Unavailable(
                    f"{self.path} has been locked by another process for more than {self._lock_wait_s:g} s",
                    hint=f"is a process stopped or stuck? 'fuser {self.path}' shows it",
                    code="locked",
                )
            if disk.inode(fd) == disk.inode(self.path):  # else it was deleted or replaced while we waited
                header = _decode_header(self.path, disk.pread(fd, format.HEADER_BYTES, 0))
                if (header.topic_uuid, header.partitions) != (self.topic_uuid, self.partitions):
                    raise self._gone()
                self.id = header.id
                return fd
            files.pop().close()

    def _settle(self) -> None:
        """Finish what a crash of a process or of the machine left."""
        self._words = format.decode_words(self._read(format.WORDS_BYTES, format.BUSY_AT))
        rebooted = self._words.boot_id != self.boot_id
        if rebooted:  # the clock of all leases started over; and what is here now is what the disk has
            self._write(bytes(format.MEMBERS_BYTES), format.MEMBERS_AT)
            self._unsynced.clear()
        if self._words.unsynced != self._mark:
            self._unsynced.clear()
        if self._words.unsynced and self._words.unsynced != self._mark:
            # Written again and not only synced: after a sync that failed, the system believes that they are on disk.
            stored = self._read(format.PAIR_BYTES * self.partitions, format.SLOTS_AT)
            self._write(stored, format.SLOTS_AT)
            self.sync()
        if rebooted or self._words.busy:
            self._redo(self)
            self.sync()
            self._write_words(busy=0, boot_id=self.boot_id)

    def _read(self, size: int, position: int) -> bytes:
        with self._translated():
            return self.disk.pread(self._fd, size, position)

    def _write(self, data: bytes, position: int) -> None:
        with self._translated():
            self.disk.write(self._fd, data, position)

    def _new_mark(self) -> int:
        return int.from_bytes(self._clock.random_bytes(4), "little") | 1

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unavailable(
                f"{self.path}: {error.strerror or error}",
                hint="is the directory writable, and is there space?",
                code="disk_full" if error.errno in FULL else "disk_failed",
                errno=error.errno,
            ) from error

    def _write_words(self, **changes: Any) -> None:
        self._words = structs.replace(self._words, **changes)
        self._write(format.encode_words(self._words), format.BUSY_AT)

    def _newest(self, partition: int, pair: bytes) -> CursorSlot:
        slot = format.newest(pair)
        if slot is None:
            raise slots_damaged(self.path, partition)
        return slot

    def _gone(self) -> NotFound:
        return NotFound(
            f"there is no consumer at {self.path}, or it was deleted",
            hint="'headwater consumers' lists them",
            code="consumer_not_found",
        )


def fenced(cursors: Cursors, partition: int, fence: int, newer: int) -> Fenced:
    """Another member reads the partition, or it was moved."""
    return Fenced(
        f"{cursors.path}: partition {partition} is no longer held",
        hint="discard its events: they are delivered again to the member that holds it now",
        partition=partition,
        fence=fence,
        newer=newer,
    )


def slots_damaged(path: Path, partition: int) -> Corrupt:
    """Return the error for a partition whose cursor cannot be read."""
    return Corrupt(
        f"{path}: both slots of partition {partition} are damaged",
        hint="delete the consumer with 'headwater forget', then create it again at its last position",
        path=str(path),
        position=format.slot_at(partition, 0),
        size=format.PAIR_BYTES,
    )


def read_header(path: Path, disk: Disk) -> CursorsHeader | None:
    """Return which topic the cursors at a path are of; None if there are none. Takes no lock."""
    try:
        fd = disk.open_read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return _decode_header(path, disk.pread(fd, format.HEADER_BYTES, 0))
    finally:
        disk.close(fd)


def read_slots(path: Path, disk: Disk) -> tuple[CursorsHeader, Words, list[CursorSlot | None]] | None:
    """All that is stored, by a look without the lock; a slot is None where it cannot be read. None without a file.

    A slot that is just being written is looked at again: else an older one would be taken for the newest.
    """
    try:
        stored = disk.read_file(path)
        header = _decode_header(path, stored)
        looks = 1
        while looks < LOOKS_MAX and not all(map(format.sound, _pairs(header, stored))):
            stored = disk.read_file(path)
            looks += 1
    except (FileNotFoundError, NotADirectoryError):
        return None
    words = format.decode_words(stored[format.BUSY_AT : format.MEMBERS_AT])
    return header, words, [format.newest(pair) for pair in _pairs(header, stored)]


def _pairs(header: CursorsHeader, stored: bytes) -> list[bytes]:
    """Return the two slots of each partition."""
    places = range(format.SLOTS_AT, header.file_bytes, format.PAIR_BYTES)
    return [stored[at : at + format.PAIR_BYTES] for at in places]


def _decode_header(path: Path, stored: bytes) -> CursorsHeader:
    try:
        return format.decode_header(stored)
    except HeadwaterError as error:
        facts = {**error.facts, "path": str(path)}
        hint = error.hint or "delete the consumer with 'headwater forget', then create it again at its last position"
        raise type(error)(f"{path}: {error.message}", hint=hint, code=error.code, **facts) from None


class CursorMove(msgspec.Struct, frozen=True):
    """A cursor that a transaction moves: it checks owner and fence under the file's lock, then puts the new cursor."""

    cursors: Cursors
    partition: int
    fence: int
    owner: bytes
    cursor: int
