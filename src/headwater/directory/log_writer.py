"""Committing to a local log: lock, absorb, write, sync, publish, let go.

A `LogWriter` is used by one thread at a time (see `group`), and by as many processes as like: the `flock` on the
log's `lock` file orders them. Nothing is visible before its batch is whole, and nothing is acknowledged as
`fsync` before `fdatasync` returned. A failed sync freezes the log for all processes until it is opened again, a failed
write until the next append.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import structs

from headwater.directory import copying, journal, recovery, repair
from headwater.directory.admission import Admission, VersionOf
from headwater.directory.failures import FULL, frozen, locked, repeated, unavailable
from headwater.directory.holes import missing
from headwater.directory.log_directory import LogDirectory
from headwater.directory.repair import Action
from headwater.directory.segment import read_header
from headwater.directory.tail import Tail
from headwater.disk.disk import wait_for_lock
from headwater.errors import Unavailable
from headwater.format.batch import BLOB, Batch, encode_one
from headwater.format.journal import JournalShare
from headwater.format.producers import ProducerState, stamped_bytes
from headwater.format.segment import HEADER_BYTES, SegmentHeader
from headwater.format.tail import DELETING, FROZEN_BY_SYNC, FROZEN_BY_WRITE, OPEN, ROLLING, TailSlot
from headwater.log.failures import deleted
from headwater.log.rows import Rows, encode, mergeable

log = logging.getLogger("headwater")

YIELD_S = 0.0002  # how long a writer stands back when another process waits for the lock
TICKS_PER_MS = 10_000
_unlock_nothing: Callable[[], object] = bool
RESERVE_BYTES_MIN, RESERVE_BYTES_MAX = 16 * 1024, 4 * 1024 * 1024


class PreparedWrite:
    """One log's part of a transaction: encoded, with its offsets, and the log locked until it is applied or dropped."""

    __slots__ = ("data", "end_offset", "group", "last_ticks", "rolled", "slot", "tail")

    def __init__(self, tail: Tail, slot: TailSlot, group: list[Rows], *, rolled: bool) -> None:
        self.tail = tail
        self.slot = slot
        self.group = group
        self.rolled = rolled
        self.data = b""
        self.end_offset = self.last_ticks = 0


class LogWriter:
    """The appending side of one log in one process."""

    def __init__(
        self,
        place: LogDirectory,
        identity: int | None,
        on_roll: Callable[[], None],
        version_of: VersionOf,
        may_roll: Callable[[TailSlot], None] = lambda _: None,
        guard: Callable[[], None] | None = None,
    ) -> None:
        """`identity` is of the log's lock: another one there means another log. `version_of` tells a key's version.

        `may_roll` raises if a new segment must not be begun, `guard` if nothing may be appended.
        """
        self._place = place
        self._identity = identity
        self._disk = place.disk
        self._pwrite = place.disk.pwrite
        self._clock = place.clock
        self._on_roll = on_roll
        self._may_roll = may_roll
        self._guard = guard
        self._boot_id = place.clock.boot_id()
        self.on_open: Callable[[], None] = lambda: None  # hears that files are kept open from now on, until `close`
        self._lock_fd = -1
        self._unlock = _unlock_nothing  # C, and no method: a signal handler that raises must not come before it
        self._fd = -1
        self._reserved_to = 0
        self._zstd = place.zstd
        self._segment_bytes = place.limits.segment_bytes
        self._header = SegmentHeader(0, place.uuid, 0, 0, 0)  # of the active segment, once it is open
        self._segment_ends_ticks = 0  # when the active segment is too old to be appended to
        self._tail: Tail | None = None
        self._slot: TailSlot | None = None
        self._admission = Admission(place, version_of)
        # Only who opens the log after it was frozen may bring it back: the counter tells what came later.
        tail = Tail.open(place)
        known = tail.newest() if tail is not None else None
        self._opened_at = known.counter if known is not None else 0
        self._refused = False  # whether an append failed and was told in the log, and none has worked since

    @property
    def segment(self) -> int:
        """The first offset of the segment that this writer appended to last."""
        return self._header.base_offset

    def commit(self, group: list[Rows]) -> list[Rows]:
        """Append all rows of the group with one write and at most one sync, and tell each where it is.

        Rows whose conditions do not hold get an `error` instead. Returns those that must wait for others in the group:
        they are to be committed next.
        """
        if self._guard is not None:
            self._guard()
        rolled = False
        rest: list[Rows] = []
        try:
            tail = self._lock()
            slot = self._absorb(tail)
            for rows in group:
                if rows.guarded:
                    group, rest = self._sift(tail, slot, group)
                    slot = self._slot or slot
                    break
            if group:
                ticks = max(self._clock.ticks(), slot.last_ticks + 1)
                data, offset, last_ticks = self._encode(
                    group, slot.visible_offset, ticks, self._place.limits.pack_bytes
                )
                if self._must_roll(slot, len(data), ticks):
                    self._may_roll(slot)
                    slot = self._roll(tail, slot)
                    rolled = True
                tail.begin()
                sync = stamped = False
                for rows in group:
                    sync = sync or rows.sync
                    stamped = stamped or rows.producer is not None
                    if rows.spooled is not None:
                        self._settle_blob(rows.spooled, rows.offset, slot)
                end = slot.visible_position + len(data)
                self._write(tail, slot, data, end, sync)
                durable = (offset, end) if sync else (slot.durable_offset, slot.durable_position)
                producers = end if stamped else slot.producers_position
                slot = self._publish(tail, slot, offset, end, *durable, last_ticks, producers=producers)
                if stamped or self._admission.watching:
                    self._admission.committed(group, slot)
        finally:
            self._unlock()
        tail.wake()
        if rolled:
            self._on_roll()
        if tail.contended():
            self._clock.sleep(YIELD_S)
        return rest

    def prepare(self, group: list[Rows], *, journaled: bool) -> PreparedWrite:
        """Take the lock for a transaction, and make ready what it brings to this log. Raises if it may not go in."""
        if self._guard is not None:
            self._guard()
        try:
            tail = self._lock()
            slot = self._absorb(tail)
            for rows in group:
                if rows.guarded and self._admission.answered(rows, slot):
                    raise repeated(self._place)
            ticks = max(self._clock.ticks(), slot.last_ticks + 1)
            prepared = PreparedWrite(tail, slot, group, rolled=False)
            prepared.data, prepared.end_offset, prepared.last_ticks = self._encode(group, slot.visible_offset, ticks)
            if self._must_roll(slot, len(prepared.data), ticks):
                self._may_roll(slot)
                prepared.slot = self._roll(tail, slot)
                prepared.rolled = True
            elif journaled and slot.safe_offset < slot.visible_offset and slot.durable_offset < slot.visible_offset:
                # A journal can bring back only what follows events that are safe.
                prepared.slot = self._sync_visible(tail, slot)
            tail.begin()
            for rows in group:
                if rows.spooled is not None:
                    self._settle_blob(rows.spooled, rows.offset, prepared.slot)
        except BaseException:
            self._unlock()
            raise
        return prepared

    def share(self, prepared: PreparedWrite) -> JournalShare:
        """What the journal tells of this log's part."""
        slot, place = prepared.slot, self._place
        return JournalShare(
            place.topic,
            place.partition,
            place.uuid.hex(),
            slot.segment,
            self._header.file_id,
            slot.visible_position,
            slot.visible_offset,
            prepared.end_offset,
            prepared.last_ticks,
            len(prepared.data),
        )

    def apply(self, prepared: PreparedWrite, *, journaled: bool) -> None:
        """Write a transaction's part and make it visible. Without a journal it is synced here."""
        tail, slot, offset = prepared.tail, prepared.slot, prepared.end_offset
        try:
            end = slot.visible_position + len(prepared.data)
            sync = not journaled and any(rows.sync for rows in prepared.group)
            self._write(tail, slot, prepared.data, end, sync)
            durable = (offset, end) if sync else (slot.durable_offset, slot.durable_position)
            safe = offset if journaled else None
            stamped = stamped_bytes(prepared.data) if prepared.group[0].producer is not None else 0
            producers = slot.visible_position + stamped if stamped else slot.producers_position
            ends = *durable, prepared.last_ticks
            slot = self._publish(tail, slot, offset, end, *ends, safe=safe, producers=producers)
            self._admission.committed(prepared.group, slot)
        finally:
            self._unlock()
        tail.wake()
        if prepared.rolled:
            self._on_roll()

    def recall(self, rows: Rows) -> bool:
        """Whether the request of these rows' producer was committed before; then they learn where they are.

        What it brought is as durable as the rows want to be when this returns.
        """
        try:
            tail = self._lock()
            slot = self._absorb(tail)
            if not self._admission.recalled(rows, slot):
                return False
            if rows.sync and slot.durable_offset < slot.visible_offset:
                self._sync_visible(tail, slot)
        finally:
            self._unlock()
        return True

    def take(self, batches: Sequence[Batch], spooled: Mapping[int, Path]) -> None:
        """Append batches of another log as they are, durably; raises Conflict if they do not follow on what is here."""
        rolled = False
        try:
            tail = self._lock()
            slot = self._absorb(tail)
            copying.check_follows(self._place, slot, batches)
            old = self._clock.ticks() > self._segment_ends_ticks and slot.visible_position > HEADER_BYTES
            position = self._segment_bytes if old else slot.visible_position
            for number, run in enumerate(copying.runs(batches, position, self._segment_bytes)):
                if number:
                    slot = self._roll(tail, slot)
                    rolled = True
                if run:
                    slot = self._take_run(tail, slot, run, spooled)
        finally:
            self._unlock()
        tail.wake()
        if rolled:
            self._on_roll()

    def _take_run(self, tail: Tail, slot: TailSlot, run: list[Batch], spooled: Mapping[int, Path]) -> TailSlot:
        tail.begin()
        for batch in run:
            if batch.flags & BLOB:
                self._settle_blob(spooled[batch.base_offset], batch.base_offset, slot)
        data, stamped = copying.joined(run)
        end = slot.visible_position + len(data)
        self._write(tail, slot, data, end, sync=True)
        offset = run[-1].end_offset
        producers = slot.visible_position + stamped if stamped else slot.producers_position
        return self._publish(tail, slot, offset, end, offset, end, run[-1].last_ticks, producers=producers)

    def producers(self) -> tuple[int, dict[str, ProducerState]]:
        """What is remembered of producers, and the offset as of which that is."""
        try:
            tail = self._lock()
            slot = self._absorb(tail)
            return slot.visible_offset, self._admission.producers.known(slot)
        finally:
            self._unlock()

    def remember(self, known: dict[str, ProducerState]) -> tuple[bool, bool]:
        """Remember more of producers; whether that is done, and whether it took a new segment, with its snapshot.

        An empty segment has no place for it: its snapshot is of its first offset, which is written already.
        """
        try:
            tail = self._lock()
            slot = self._absorb(tail)
            news = self._admission.producers.merged(known, slot)
            if news is None:
                return True, False
            if slot.visible_position == HEADER_BYTES:
                return False, False
            self._admission.producers.learn(news)
            self._roll(tail, slot, producers=True)
        finally:
            self._unlock()
        tail.wake()
        return True, True

    def drop(self, prepared: PreparedWrite, *, freeze: bool = False) -> None:
        """Let go of a transaction that is not to be. `freeze` if a later recovery may yet find that it is."""
        try:
            if freeze:
                doubt = OSError(0, "it could be neither written nor taken back")
                self._freeze(prepared.tail, prepared.slot, FROZEN_BY_SYNC, "the entry of a transaction", doubt)
            else:
                self._slot = None
                prepared.tail.publish(prepared.slot.then(OPEN))
        finally:
            self._unlock()
        if prepared.rolled:
            self._on_roll()

    def unlocking(self) -> Callable[[], object]:
        """What unlocks the log, in C, if it is locked. In the midst of a transaction, who locks it next recovers."""
        if self._lock_fd < 0:
            self._open_lock()
        return self._unlock

    def _must_roll(self, slot: TailSlot, size: int, ticks: int) -> bool:
        return slot.visible_position > HEADER_BYTES and (
            slot.visible_position + size > self._segment_bytes or ticks > self._segment_ends_ticks
        )

    def _sift(self, tail: Tail, slot: TailSlot, group: list[Rows]) -> tuple[list[Rows], list[Rows]]:
        """Those of a group that may be committed now, and those that wait for them."""
        admitted, rest = self._admission.sift(group, slot)
        if len(admitted) + len(rest) == len(group):
            return admitted, rest
        answered = (rows for rows in group if rows.answered and rows.sync)
        late = [rows for rows in answered if rows.offset + rows.count > slot.durable_offset]
        if late:  # the first answer was for less
            try:
                self._sync_visible(tail, slot)
            except BaseException:
                for rows in late:
                    rows.answered = False  # so that they get the error
                raise
        return admitted, rest

    def _encode(self, group: list[Rows], offset: int, ticks: int, bytes_max: int = 0) -> tuple[bytes, int, int]:
        """The bytes of all rows, the offset behind them and the ticks of the last; rows learn where they will be.

        Rows of a transaction are merged as far as can be, others only up to `bytes_max`: sealing would split them.
        """
        if len(group) == 1:
            rows = group[0]
            rows.offset, rows.ticks = offset, ticks
            if (
                rows.columns is None and rows.spooled is None and rows.producer is None
            ):  # by far the most frequent: save a call
                args = rows.content, rows.data, rows.type, rows.key, rows.meta
                return encode_one(offset, ticks, *args), offset + 1, ticks
            return encode(group, offset, ticks, zstd=self._zstd), offset + rows.count, ticks + rows.count - 1
        encoded: list[bytes] = []
        for run in mergeable(group, self._place.limits, bytes_max):
            encoded.append(encode(run, offset, ticks, zstd=self._zstd))
            for rows in run:
                rows.offset, rows.ticks = offset, ticks
                offset += rows.count
                ticks += rows.count
        return b"".join(encoded), offset, ticks - 1

    def sync(self) -> None:
        """Make all that is visible durable."""
        try:
            tail = self._lock()
            slot = self._absorb(tail)
            if slot.durable_offset < slot.visible_offset:
                self._sync_visible(tail, slot)
        finally:
            self._unlock()

    def _sync_visible(self, tail: Tail, slot: TailSlot) -> TailSlot:
        self._sync(tail, slot)
        visible = slot.visible_offset, slot.visible_position
        return self._publish(tail, slot, *visible, *visible, slot.last_ticks)

    def abandoned(self) -> bool:
        """Whether somebody died in the midst of a commit: nobody holds the lock, and it is not finished."""
        tail = self._tail = self._tail or Tail.open(self._place)
        if tail is None or not tail.busy():
            return False
        try:
            if self._lock_fd < 0:
                self._open_lock()
            if not self._disk.try_lock(self._lock_fd):
                return False
        finally:
            self._unlock()
        return tail.busy()

    def recover(self) -> TailSlot:
        """Take the lock and bring the log into order, whatever state it is in; returns that state."""
        try:
            tail = self._lock()
            return self._absorb(tail)
        finally:
            self._unlock()

    def frozen(self) -> int | None:
        """The state of the log if it is frozen, by a look at memory; from any thread."""
        tail = self._tail
        slot = tail.peek() if tail is not None else None
        return slot.state if slot is not None and slot.state in (FROZEN_BY_SYNC, FROZEN_BY_WRITE) else None

    def thaw(self) -> None:
        """Bring a frozen log back, as opening it again does, once a write works; raises what keeps it frozen."""
        opened_at = self._opened_at
        try:
            tail = self._lock()
            newest = tail.peek()
            if newest is not None:
                self._opened_at = newest.counter
            slot = self._absorb(tail)
            opened_at = slot.counter
            # Zeros stand behind the last batch in any case, where space is reserved.
            self._write(tail, slot, bytes(RESERVE_BYTES_MIN), slot.visible_position + RESERVE_BYTES_MIN, sync=False)
            if self._refused:
                self._accepted()
        finally:
            self._unlock()
            self._opened_at = opened_at

    def roll(self) -> bool:
        """Begin a new segment, so that the events so far can be sealed. False if there is nothing to seal."""
        try:
            tail = self._lock()
            slot = self._absorb(tail)
            if slot.visible_position == HEADER_BYTES:
                return False
            self._roll(tail, slot)
        finally:
            self._unlock()
        tail.wake()
        return True

    def repair(self) -> list[Action]:
        """Cut out damage, keeping it beside the log; then bring the log into order."""
        try:
            tail = self._lock()
            journal.redo(self._place, None)
            done = repair.apply(self._place)
            if self._place.segments():
                self._slot = self._recover(tail, believe=False)
        finally:
            self._unlock()
        tail.wake()
        return done

    def begin_deleting(self) -> None:
        """Take the lock, and tell every process that the topic is being removed. Call `wake` when it is unlocked."""
        tail = self._lock()
        self._check_identity()
        self._slot = None
        slot = tail.newest()
        if slot is not None and slot.state == OPEN:  # a frozen one stays frozen, should the removal fail
            tail.publish(slot.then(DELETING))

    def end_deleting(self) -> None:
        """Tell every process that the topic is gone, in whatever state it was. The lock is held still."""
        slot = self._tail.newest() if self._tail is not None else None
        if self._tail is not None and slot is not None and slot.state != DELETING:
            self._tail.publish(slot.then(DELETING))

    def wake(self) -> None:
        """Wake the followers, after an interruption or a deletion: there may be news."""
        if self._tail is not None:
            self._tail.wake()

    def froze(self) -> bool:
        """Whether a write or sync failed since this writer was made, and it must not be made anew unasked."""
        tail = self._tail or Tail.open(self._place)
        slot = tail.newest() if tail is not None else None
        return slot is not None and slot.state in (FROZEN_BY_SYNC, FROZEN_BY_WRITE) and slot.counter > self._opened_at

    def close(self) -> None:
        """Let go of the files, until it is used again.

        In a forked child this does not release a lock that the parent holds.
        """
        self._use(-1)
        fd, self._lock_fd = self._lock_fd, -1
        self._unlock = _unlock_nothing
        if fd >= 0:
            self._disk.close(fd)
        self._tail = self._slot = None

    def trim(self) -> None:
        """Give back reserved space, if nobody else is at the log: before closing. Best effort."""
        if self._fd < 0 or self._tail is None or self._slot is None:
            return
        try:
            if not self._disk.try_lock(self._lock_fd):
                return
            quiet = not self._tail.changed() and not self._tail.busy() and self._slot.state == OPEN
            if quiet and self._disk.size(self._fd) > self._slot.visible_position:
                with contextlib.suppress(OSError):
                    self._disk.truncate(self._fd, self._slot.visible_position)
        finally:
            self._unlock()

    def _use(self, fd: int) -> None:
        """Write to another file from now on. Swapped before it is closed: a fork may come in between."""
        self._reserved_to = 0
        fd, self._fd = self._fd, fd
        if fd >= 0:
            self._disk.close(fd)

    def _lock(self) -> Tail:
        """Take the lock, waiting for other processes up to a limit. Called in a `try` that ends in `_unlock`."""
        if self._lock_fd < 0:
            self._open_lock()
        if not self._disk.try_lock(self._lock_fd):
            self._wait_for_lock()
        if self._tail is None:
            self._check_identity()
            try:
                self._tail = Tail.open(self._place) or Tail.create(self._place)
            except OSError as error:
                raise unavailable(self._place, "the tail cannot be made", error) from error
        return self._tail

    def _open_lock(self) -> None:
        try:
            if self._identity is None:  # it was missing where nothing can be made: the error says why
                self._disk.close(self._disk.create(self._place.lock))
            fd = self._disk.open_write(self._place.lock)
        except FileNotFoundError as error:
            raise deleted(self._place) from error
        except OSError as error:
            raise unavailable(self._place, "the log cannot be written", error) from error
        if self._disk.inode(fd) != self._identity:
            self._disk.close(fd)
            raise deleted(self._place)
        self._unlock = self._disk.unlocking(fd)  # first: nothing is locked without it
        self._lock_fd = fd
        self.on_open()

    def _check_identity(self) -> None:
        """Raise NotFound if another topic has the name by now. As long as the lock is held, none can take it."""
        if self._disk.inode(self._place.lock) != self._disk.inode(self._lock_fd):
            raise deleted(self._place)

    def _wait_for_lock(self) -> None:
        self._tail = self._tail or Tail.open(self._place)
        contend = self._tail.contend if self._tail is not None else None
        if not wait_for_lock(self._disk.try_lock, self._lock_fd, self._clock, self._place.limits.lock_wait_s, contend):
            raise locked(self._place)

    def _absorb(self, tail: Tail) -> TailSlot:
        """Learn what others did since this writer last held the lock; recover if somebody died holding it."""
        mine = self._slot
        if mine is not None and mine.state == OPEN and not tail.disturbed():
            return mine
        self._slot = None  # if this raises, the next append must find what this one found: it is frozen, or deleted
        self._check_identity()
        slot = self._absorb_slot(tail, mine)
        if tail.busy():
            slot = self._recover(tail)
        self._slot = slot
        return slot

    def _absorb_slot(self, tail: Tail, mine: TailSlot | None) -> TailSlot:
        slot = tail.newest()
        if slot is not None and slot.state == FROZEN_BY_SYNC and slot.counter > self._opened_at:
            raise frozen(self._place)
        # Whoever left it deleting or rolling died in the midst of that; what a failed write left is cut off.
        if slot is None or slot.boot_id != self._boot_id or slot.state != OPEN or not tail.sound():
            return self._recover(tail)
        if mine is None or slot.generation != mine.generation or slot.segment != mine.segment:
            self._open_segment(slot.segment)
            position = slot.visible_position
            if self._disk.size(self._fd) < position or any(self._disk.pread(self._fd, 8, position)):
                return self._recover(tail)  # cut short, or bytes of nobody where zeros should be
        return slot

    def _recover(self, tail: Tail, *, believe: bool = True) -> TailSlot:
        self._slot = None  # so that the next append tries again, whatever this one leaves
        try:
            slot = recovery.recover(self._place, tail, believe=believe)
            self._open_segment(slot.segment)
        except OSError as error:
            raise unavailable(self._place, "the log cannot be recovered", error) from error
        return slot

    def _open_segment(self, base: int) -> None:
        try:
            self._use(self._disk.open_write(self._place.segment(base)))
        except FileNotFoundError as error:
            self._slot = None
            slot = self._tail.newest() if self._tail is not None else None
            raise missing(self._place, base, slot.visible_offset if slot is not None else base) from error
        except OSError as error:
            self._slot = None  # there is no file to go on with: the next append opens it
            raise unavailable(self._place, "the active segment cannot be opened", error) from error
        self._begin_segment(read_header(self._place, base))

    def _begin_segment(self, header: SegmentHeader) -> None:
        self._header = header
        self._segment_ends_ticks = header.begun_ticks + self._place.limits.segment_age_ms * TICKS_PER_MS

    def _roll(self, tail: Tail, slot: TailSlot, *, producers: bool = False) -> TailSlot:
        """Begin a new segment. The old one is synced first, so that only the last can have a torn tail.

        The state says so before the new file is there: if this process dies, whoever comes next must not go on in
        the old one, or the new one would stand for offsets that the old one has.
        """
        self._cut_reserved(tail, slot)
        slot = self._slot = slot.then(ROLLING)
        tail.publish(slot)
        base = slot.visible_offset
        begun_ticks = max(self._clock.ticks(), slot.last_ticks + 1)
        file_id = int.from_bytes(self._clock.random_bytes(4), "little")
        producers = producers or self._header.producers or slot.producers_position > 0
        try:
            snapshot = self._admission.producers.snapshot(slot, base) if producers else None
            if snapshot is not None:
                self._disk.replace(self._place.producers(base), snapshot)
            header = SegmentHeader(
                file_id, self._place.uuid, base, slot.last_ticks, begun_ticks, producers=snapshot is not None
            )
            fd = recovery.write_segment(self._place, header)
        except OSError as error:
            raise self._freeze(tail, slot, FROZEN_BY_WRITE, "a new segment cannot be made", error) from error
        old = self._header
        self._use(fd)
        self._begin_segment(header)
        slot = structs.replace(slot, segment=base)
        slot = self._publish(tail, slot, base, HEADER_BYTES, base, HEADER_BYTES, slot.last_ticks, producers=0)
        if snapshot is not None:
            self._admission.producers.rolled(slot)
        if old.producers:
            with contextlib.suppress(OSError):  # recovery sweeps it
                self._disk.unlink(self._place.producers(old.base_offset))
        return slot

    def _cut_reserved(self, tail: Tail, slot: TailSlot) -> None:
        """End the segment's file with its last batch, durably, before another segment follows it."""
        try:
            if self._disk.size(self._fd) > slot.visible_position:
                self._disk.truncate(self._fd, slot.visible_position)
        except OSError as error:
            raise self._freeze(tail, slot, FROZEN_BY_WRITE, "a segment cannot be finished", error) from error
        self._sync(tail, slot)  # in any case: who cut it before, at a close or in a roll, may not have synced that

    def _write(self, tail: Tail, slot: TailSlot, data: bytes, end: int, sync: bool) -> None:
        if end > self._reserved_to:
            self._reserve(slot, end)
        try:
            if sync and slot.durable_offset == slot.visible_offset:
                self._disk.write_synced(self._fd, data, slot.visible_position)
                return
            written = self._pwrite(self._fd, data, slot.visible_position)
            if written < len(data):  # a full disk: try the rest, so that its error shows
                self._disk.write(self._fd, data[written:], slot.visible_position + written)
        except OSError as error:
            state = FROZEN_BY_WRITE if error.errno in FULL or not sync else FROZEN_BY_SYNC
            raise self._freeze(tail, slot, state, "a write failed", error) from error
        if sync:
            self._sync(tail, slot)

    def _reserve(self, slot: TailSlot, end: int) -> None:
        """Reserve a quarter more than there is, within bounds, so that most syncs find the file's size unchanged."""
        more = min(max(end // 4, RESERVE_BYTES_MIN), RESERVE_BYTES_MAX)
        self._reserved_to = max(end, min(end + more, self._segment_bytes))
        self._disk.reserve(self._fd, slot.visible_position, self._reserved_to)

    def _sync(self, tail: Tail, slot: TailSlot) -> None:
        try:
            self._disk.fdatasync(self._fd)
        except OSError as error:
            raise self._freeze(tail, slot, FROZEN_BY_SYNC, "a sync failed", error) from error

    def _freeze(self, tail: Tail, slot: TailSlot, state: int, what: str, error: OSError) -> Unavailable:
        """Freeze the log for all processes: after a failed write up to the next append, after a failed sync for good.

        What was not acknowledged is cut, best effort, so that it cannot come back. Returns what to raise.
        """
        with contextlib.suppress(OSError):
            self._disk.truncate(self._fd, slot.visible_position)
        self._slot = slot.then(state)
        tail.publish(self._slot)
        failure = unavailable(self._place, what, error)
        if not self._refused:
            self._refused = True
            ends = "it is opened again" if state == FROZEN_BY_SYNC else "a write works again"
            log.error("%s; the log is frozen until %s, and nothing acknowledged is lost", failure.message, ends)
        return failure

    def _accepted(self) -> None:
        self._refused = False
        log.warning("%s is no longer frozen and accepts appends", self._place)

    def _settle_blob(self, spooled: Path, offset: int, slot: TailSlot) -> None:
        """Move a spooled blob to its offset in the active segment, before the batch that names it is written."""
        blobs = self._place.blobs(slot.segment)
        try:
            with contextlib.suppress(FileExistsError):
                self._disk.mkdir(blobs)
            self._disk.rename(spooled, blobs / f"{offset:020d}.blob")
            self._disk.sync_directory(blobs)
            self._disk.sync_directory(self._place.path)  # each time: who made it may have died before it was durable
        except OSError as error:
            raise unavailable(self._place, "a huge event cannot be put in place", error) from error

    def _publish(
        self,
        tail: Tail,
        slot: TailSlot,
        visible: int,
        position: int,
        durable: int,
        durable_position: int,
        last_ticks: int,
        *,
        safe: int | None = None,
        producers: int | None = None,
    ) -> TailSlot:
        if safe is None:
            safe = durable if durable == visible else slot.safe_offset
        self._slot = None  # until it is published: whoever is interrupted in between looks at what is
        slot = TailSlot(
            slot.counter + 1,
            self._boot_id,
            slot.segment,
            visible,
            position,
            durable,
            durable_position,
            last_ticks,
            slot.generation,
            OPEN,
            safe,
            slot.producers_position if producers is None else producers,
        )
        tail.publish(slot)
        self._slot = slot
        if self._refused and slot.segment < visible:
            self._accepted()
        return slot
