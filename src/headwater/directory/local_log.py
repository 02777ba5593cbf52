"""The local log: one partition in a directory that several processes append to and read.

Ties together the writer (through the group), the reader and blobs. Safe from any thread, and in a forked child,
which starts over with descriptors of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from headwater.directory import copying, recovery
from headwater.directory.blobs import BlobSpool, StoredBlob
from headwater.directory.group import Group, WriterTurn
from headwater.directory.log_cursor import SegmentCursor
from headwater.directory.log_directory import LogDirectory
from headwater.directory.log_reader import LogReader
from headwater.directory.log_writer import LogWriter
from headwater.directory.parts import ArchivedSegments
from headwater.directory.producer_memory import ProducerMemory
from headwater.directory.repair import Action
from headwater.directory.sealer import seal_all
from headwater.directory.tail import Tail
from headwater.errors import Corrupt, HeadwaterError, Unavailable
from headwater.event import Blob, Content, time_of
from headwater.format.batch import LOST, Batch
from headwater.format.losses import Ranges
from headwater.format.names import file_of
from headwater.format.producers import Producer, ProducerState
from headwater.format.segment import SegmentHeader
from headwater.format.tail import TailSlot
from headwater.info import PartitionInfo
from headwater.log.log import Extents, TypeTest, deleted
from headwater.log.reading import time_at
from headwater.log.rows import Rows
from headwater.log.upload import BlobUpload

STATES = ("open", "frozen: a sync failed", "frozen: a write failed", "being deleted", "open: rolling")


def create(place: LogDirectory, base: int = 0, previous_ticks: int = 0) -> None:
    """Make the files of a new log. The caller syncs the directory that holds `place.path`.

    It begins at offset `base`, behind an event with `previous_ticks`: a replica begins where its source does.
    """
    place.disk.mkdir(place.path)
    file_id = int.from_bytes(place.clock.random_bytes(4), "little")
    header = SegmentHeader(file_id, place.uuid, base, previous_ticks, place.clock.ticks())
    place.disk.close(place.disk.create(place.lock))
    if base:
        place.mark(base)
    place.disk.close(recovery.write_segment(place, header))


class LocalLog:
    """An open log. Before it is first used, only its tail is looked at.

    It keeps files open for its next use, and closes them when the process has many (see `open_files`).
    """

    def __init__(
        self,
        place: LogDirectory,
        on_roll: Callable[[LogDirectory], None],
        may_roll: Callable[[LogDirectory, TailSlot], None] = lambda _place, _slot: None,
        on_damaged_index: Callable[[LogDirectory, int], None] = lambda _place, _base: None,
        archived: ArchivedSegments | None = None,
        guard: Callable[[], None] | None = None,
    ) -> None:
        """`on_roll` hears of a finished segment, `on_damaged_index` of a segment whose index cannot be used.

        `may_roll` raises if a new segment must not be begun, `guard` if nothing may be appended: to a replica. What was
        dropped here is read from the `archived` segments.
        """
        self.place = place
        self.topic = place.topic
        self.partition = place.partition
        self.node = place.node
        self.blob_bytes_in_memory = place.limits.blob_bytes_in_memory
        self._on_roll = on_roll
        self._may_roll = may_roll
        self._guard = guard
        self._learned = -1  # the segment whose keys were read last
        self._identity = _identity(place)
        self.archived = archived
        on_damage = partial(on_damaged_index, place)
        self._reader = LogReader(place, self._identity, self._recover, on_damage, self.archived)
        self._begin()

    def append(self, rows: Rows) -> None:
        """Commit rows; returns when their durability is reached, with their offset and ticks set."""
        if rows.expected is not None:
            self.learn_keys(rows)
        self._group.append(rows)

    def append_all(self, group: list[Rows]) -> None:
        """Commit the rows of many requests with one sync; each has then its offset and ticks, or its `error`."""
        for rows in group:
            if rows.expected is not None:
                self.learn_keys(rows)
        self._group.append_all(group)

    def learn_keys(self, rows: Rows) -> None:
        """Read the keys of the active segment before the lock is taken, unless that was done: it may take long.

        So may fetching from the archive, where the key may be: what is fetched here is there when the lock is held.
        """
        if self._reader.in_archive() and rows.key is not None:
            self._reader.version(rows.key, self._reader.slot())
        if self._group.writer.segment == self._learned:
            return
        slot = self._reader.glance()
        if slot is not None and slot.segment != self._learned and rows.key is not None:
            self._reader.version(rows.key, slot)
            self._learned = slot.segment

    def upload(
        self,
        content: Content,
        type: bytes,
        key: bytes | None,
        meta: bytes | None,
        *,
        sync: bool,
        guard: tuple[int | None, Producer | None] | None = None,
    ) -> BlobUpload:
        """Return one event whose pieces arrive in their own time: bounded memory, and no lock held meanwhile."""
        if self._guard is not None:
            self._guard()
        return BlobUpload(
            self.place.limits,
            partial(BlobSpool, self.place),
            self.append,
            content,
            type,
            key,
            meta,
            sync=sync,
            guard=guard,
        )

    def start(self) -> int:
        """Return the oldest readable offset."""
        return self._reader.start()

    def end(self) -> int:
        """Return the offset that the next event will get."""
        return self._reader.slot().visible_offset

    seen = end  # a look costs nothing

    def pause_s(self) -> None:
        """Return None: the process that appends wakes all threads that sleep on the tail."""

    def state(self) -> TailSlot:
        """Return what is visible, durable and last."""
        return self._reader.slot()

    def secured(self) -> int:
        """Return up to where it is durable."""
        return self.state().secured_offset

    def batches(
        self,
        start: int,
        stop: int,
        *,
        backwards: bool = False,
        types: TypeTest | None = None,
        key: bytes | None = None,
    ) -> Iterator[Batch]:
        """Yield batches that hold the offsets from `start` to `stop`, whole.

        Those that cannot hold a wanted type or the key are left out; others may hold neither.
        """
        return self._reader.batches(start, stop, backwards=backwards, types=types, key=key)

    def stored(self, start: int, stop: int) -> Iterator[Batch]:
        """Return every batch that holds the offsets from `start` to `stop`, also those that stand for lost events."""
        return SegmentCursor(self._reader, start).batches(stop, lost=True)

    def take(self, batches: Sequence[Batch], spooled: Mapping[int, Path]) -> None:
        """Append batches of another log of the same uuid as they are; returns when they are durable.

        They must begin at the end of this one, else Conflict. `spooled` has the files of huge events, by their offsets.
        For a replica, which takes them from its source: whatever guards against appends does not hold here.
        """
        copying.check(batches)
        if any(batch.flags & LOST for batch in batches):
            self.place.mark_lost()
        with self._group.exclusive() as writer:
            writer.take(batches, spooled)

    def producers(self) -> tuple[int, dict[str, ProducerState]]:
        """Return what is remembered of producers now, and the offset as of which that is."""
        try:
            with self._group.exclusive() as writer:
                return writer.producers()
        except Unavailable as error:
            if error.code != "read_only":
                raise
            slot = self.state()  # on read-only media nothing changes, and no lock is needed
            return slot.visible_offset, ProducerMemory(self.place).known(slot)

    def remember(self, known: dict[str, ProducerState]) -> bool:
        """Remember what another log of the same uuid remembers of producers, durably; False if it must wait.

        Nothing in it may be behind the end of this log.
        """
        with self._group.exclusive() as writer:
            done, rolled = writer.remember(known)
        if rolled:
            self._on_roll(self.place)
        return done

    def version(self, key: bytes, slot: TailSlot | None = None) -> int | None:
        """Return the offset of the key's last event; None if there is none.

        A writer that holds the log's lock gives the `slot` it will follow: then no lock is taken here.
        """
        return self._reader.version(key, slot or self._reader.slot())

    def cursor(self, offset: int) -> SegmentCursor:
        """Return a place that moves forward through the log."""
        return SegmentCursor(self._reader, offset)

    def ticks_before_start(self) -> int:
        """Return the ticks of the last event before the oldest readable one; 0 if there never was one."""
        return self._reader.ticks_before_start()

    def first_ticks(self, start: int) -> int | None:
        """Return the ticks of the event at `start`, the oldest one, if the archive has them.

        None if it is read here.
        """
        return self._reader.first_ticks(start)

    def local_start(self) -> int:
        """Return the oldest offset that is on the local disk."""
        return self._reader.local_start()

    def offset_at(self, ticks: int) -> int:
        """Return the first offset whose event has these ticks or later ones; the end if there is none."""
        return self._reader.offset_at(ticks)

    def lost(self, start: int, stop: int) -> Ranges:
        """Return the offsets from `start` to before `stop` whose events are lost: damaged, and cut out by `repair`."""
        return self._reader.losses.between(start, stop)

    def known_lost(self) -> Ranges:
        """Return the lost offsets; none where damage, which `check` reports, hides them."""
        with contextlib.suppress(HeadwaterError):
            return self.lost(self.start(), self.end())
        return []

    def info(self) -> PartitionInfo:
        """Return what `describe` says of this partition."""
        place = self.place
        start, local = self.start(), self.local_start()
        state = self.state()  # after them: retention may delete meanwhile, and an end only grows
        names = place.disk.names(place.path)
        known = self.archived.known() if self.archived is not None else None
        lost = self.known_lost()
        return PartitionInfo(
            place.partition,
            start,
            state.visible_offset,
            state.durable_offset,
            sum(name.endswith(".log") for name in names),
            sum(name.endswith(".index") for name in names),
            _bytes_below(place.path),
            self._first_time(lost[0][1] if lost and lost[0][0] == start else start, state.visible_offset),
            time_of(state.last_ticks).isoformat() if state.last_ticks else None,
            STATES[state.state],
            recovery.reports(place),
            known.end if known is not None else None,
            local if local > start else None,
            state.segment,
            lost,
        )

    def _first_time(self, start: int, end: int) -> str | None:
        ticks = self.first_ticks(start)  # it is not fetched from the archive for that
        return time_of(ticks).isoformat() if ticks is not None else time_at(self, start, end)

    def extents(self, start: int, stop: int, whole: int) -> Extents:
        """Return where the offsets from `start` to before `stop` can be cut: at batches, or at archived segments."""
        return self._reader.extents(start, stop, whole)

    def blob(self, batch: Batch) -> Blob:
        """Return the data of a huge event."""
        path = Path(batch.path).with_suffix(".blobs") / file_of(batch.base_offset, "blob")
        return StoredBlob(self.place, path, batch.blob_reference(), self.archived.blob if self.archived else None)

    def wait_on(self) -> Tail | None:
        """Return what to sleep on until there is more; None on read-only media, where nothing comes."""
        return self._reader.wait_on()

    def stop_followers(self) -> None:
        """Wake the threads that sleep on this log, so that they look around."""
        self._reader.wake()

    def settle(self) -> None:
        """Finish what a process that died in the middle of a commit has left, so that it can be read; best effort."""
        tail = self._reader.wait_on()
        if tail is not None and tail.writable and tail.busy() and not self._group.led:
            with contextlib.suppress(HeadwaterError), self._group.exclusive() as writer:
                if writer.held.is_abandoned():
                    writer.recover()

    def transacting(self) -> WriterTurn:
        """Return the writer's turn for a transaction or a deletion, which takes several in one order."""
        return self._group.exclusive()

    def sync(self) -> None:
        """Make all that is visible durable."""
        with self._group.exclusive() as writer:
            writer.sync()

    def frozen_state(self) -> int | None:
        """Return the state of the log if it is frozen, by a look at memory; None if it is not, or was never used."""
        return self._group.writer.held.frozen_state()

    def thaw(self) -> None:
        """Bring a frozen log back, as opening it again does; raises what keeps it frozen."""
        with self._group.exclusive() as writer:
            writer.held.thaw()

    def roll(self, *, tell: bool = True) -> bool:
        """Begin a new segment; False if the active one is empty. `tell` has the old one sealed in the background."""
        with self._group.exclusive() as writer:
            rolled = writer.roll()
        if rolled and tell:
            self._on_roll(self.place)
        return rolled

    def repair(self) -> list[Action]:
        """Cut out damage, keeping it beside the log, and mark its offsets as lost."""
        with self._group.exclusive() as writer:
            done = writer.repair()
        seal_all(self.place)
        return done

    @property
    def used(self) -> int:
        """Return the turn of `open_files` in which it was used last."""
        return max(self._group.used, self._reader.used)

    def idle(self) -> bool:
        """Release all that it holds, if it can be rebuilt when needed; False if it is in use, or frozen."""
        if not self._group.rest(lambda writer: not writer.held.has_frozen()):
            return False
        self._reader.close()
        return True

    def close(self) -> None:
        """Release all files, after appends under way."""
        with self._group.exclusive() as writer:
            self._group.close_files(writer)
        self._reader.close()

    def after_fork(self) -> None:
        """In a forked child: start over, with descriptors and locks of its own."""
        self._group.after_fork()
        self._reader.after_fork()
        self._begin()

    def _begin(self) -> None:
        writer = LogWriter(
            self.place,
            self._identity,
            lambda: self._on_roll(self.place),
            self._reader.version,
            lambda slot: self._may_roll(self.place, slot),
            self._guard,
        )
        self._group = Group(writer, self.place.limits.commit_bytes_max)

    def _recover(self) -> TailSlot:
        with self._group.exclusive() as writer:
            return writer.recover()


def _identity(place: LogDirectory) -> int | None:
    """Return what distinguishes this log from a later one in its place; None without a lock on read-only media."""
    disk = place.disk
    if disk.inode(place.lock) is None:
        if disk.inode(place.path) is None:
            if disk.inode(place.path.parent) is None:
                raise deleted(place)
            hint = "restore it from a backup"
            raise Corrupt(f"{place} is missing: there is no {place.path}", hint=hint, path=str(place.path))
        with contextlib.suppress(OSError):  # it was removed: it is empty, and any new one serves
            disk.close(disk.create(place.lock))
    return disk.inode(place.lock)


def _bytes_below(path: os.PathLike[str]) -> int:
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:  # sealed or deleted meanwhile
                continue
    return total
