"""A log under its lock: take the lock, learn what other processes did, write, sync, publish, release.

A `HeldLog` is used by one thread at a time (see `group`), and by any number of processes: the `flock` on the log's
`lock` file orders them. Nothing is visible before its batch is whole, and nothing is acknowledged as `fsync` before
`fdatasync` returned. A failed sync freezes the log for all processes until it is opened again, a failed write until the
next append. `LogWriter` has the verbs, each of which is a few of the steps here.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from headwater.directory import recovery
from headwater.directory.active_segment import RESERVE_BYTES_MIN, ActiveSegment
from headwater.directory.failures import FULL, frozen, locked, unavailable
from headwater.directory.log_directory import LogDirectory
from headwater.directory.losses import missing
from headwater.directory.producer_memory import ProducerMemory
from headwater.directory.tail import Tail
from headwater.disk.disk import wait_for_lock
from headwater.errors import Unavailable
from headwater.format.segment import HEADER_BYTES, SegmentHeader
from headwater.format.tail import DELETING, FROZEN_BY_SYNC, FROZEN_BY_WRITE, OPEN, ROLLING, TailSlot
from headwater.log.log import deleted

log = logging.getLogger("headwater")

_unlock_nothing: Callable[[], object] = bool


class HeldLog:
    """One log as the process that appends to it has it: the lock, the tail and the active segment."""

    def __init__(self, place: LogDirectory, identity: int | None, producers: ProducerMemory) -> None:
        """`identity` is that of the log's lock: another one there means another log."""
        self.on_open: Callable[[], None] = lambda: None  # called when files are opened, which stay open until `close`
        self.active = ActiveSegment(place)
        self.slot: TailSlot | None = None  # the state that this process published or read last; None: look again
        self.release = _unlock_nothing  # in C, and no method: a signal handler that raises must not come before it
        self._place = place
        self._identity = identity
        self._disk = place.disk
        self._clock = place.clock
        self._producers = producers
        self._boot_id = place.clock.boot_id()
        self._lock_fd = -1
        self._tail: Tail | None = None
        # Only a process that opens the log after it was frozen may bring it back: the counter says what came later.
        tail = Tail.open(place)
        known = tail.newest() if tail is not None else None
        self._opened_at = known.counter if known is not None else 0
        self._refused = False  # an append has failed and was logged, and none has succeeded since

    # The lock

    def take(self) -> tuple[Tail, TailSlot]:
        """Take the lock, and return the tail and the state of the log, after recovery if a process died holding it.

        Called in a `try` that ends in `release`.
        """
        tail, mine = self.lock(), self.slot
        if mine is not None and mine.state == OPEN and not tail.disturbed():
            return tail, mine
        return tail, self._absorb(tail, mine)

    def lock(self) -> Tail:
        """Take the lock, waiting for other processes up to a limit. Called in a `try` that ends in `release`."""
        if self._lock_fd < 0:
            self.open_lock()
        if not self._disk.try_lock(self._lock_fd):
            self._wait_for_lock()
        if self._tail is None:
            self._check_identity()
            try:
                self._tail = Tail.open(self._place) or Tail.create(self._place)
            except OSError as error:
                raise unavailable(self._place, "the tail cannot be made", error) from error
        return self._tail

    def open_lock(self) -> None:
        """Open the lock's file, so that `release` unlocks it. Nothing to do if it is open."""
        if self._lock_fd >= 0:
            return
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
        self.release = self._disk.unlocking(fd)  # first: nothing is locked without it
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

    # With the lock held

    def _absorb(self, tail: Tail, mine: TailSlot | None) -> TailSlot:
        """Learn what others did since this process held the lock; recover if one died holding it."""
        self.slot = None  # if this raises, the next append must find what this one found: it is frozen, or deleted
        self._check_identity()
        slot = self._absorb_slot(tail, mine)
        if tail.busy():
            slot = self.recover(tail)
        self.slot = slot
        return slot

    def _absorb_slot(self, tail: Tail, mine: TailSlot | None) -> TailSlot:
        slot = tail.newest()
        if slot is not None and slot.state == FROZEN_BY_SYNC and slot.counter > self._opened_at:
            raise frozen(self._place)
        # A process that left it deleting or rolling died in the middle of that; what a failed write left is cut off.
        if slot is None or slot.boot_id != self._boot_id or slot.state != OPEN or not tail.sound():
            return self.recover(tail)
        if mine is None or slot.generation != mine.generation or slot.segment != mine.segment:
            self._open_segment(slot.segment)
            if not self.active.is_intact(slot.visible_position):
                return self.recover(tail)
        return slot

    def recover(self, tail: Tail, *, believe: bool = True) -> TailSlot:
        """Bring the log into order and return its state. `believe`: the tail, where that can be."""
        self.slot = None  # so that the next append tries again, whatever this one leaves
        try:
            slot = recovery.recover(self._place, tail, believe=believe)
            self._open_segment(slot.segment)
        except OSError as error:
            raise unavailable(self._place, "the log cannot be recovered", error) from error
        return slot

    def _open_segment(self, base: int) -> None:
        try:
            self.active.open(base)
        except FileNotFoundError as error:
            self.slot = None
            slot = self._tail.newest() if self._tail is not None else None
            raise missing(self._place, base, slot.visible_offset if slot is not None else base) from error
        except OSError as error:
            self.slot = None  # there is no file to write to: the next append opens it
            raise unavailable(self._place, "the active segment cannot be opened", error) from error

    def write(self, tail: Tail, slot: TailSlot, data: bytes, *, sync: bool) -> None:
        """Write a batch behind the last one, durably with `sync`; a failure freezes the log."""
        try:
            if sync and slot.durable_offset == slot.visible_offset:
                self.active.write_synced(data, slot.visible_position)
                return
            self.active.write(data, slot.visible_position)
        except OSError as error:
            state = FROZEN_BY_WRITE if error.errno in FULL or not sync else FROZEN_BY_SYNC
            raise self._freeze(tail, slot, state, "a write failed", error) from error
        if sync:
            self.sync(tail, slot)

    def sync(self, tail: Tail, slot: TailSlot) -> None:
        """Make durable what was written; a failure freezes the log."""
        try:
            self.active.sync()
        except OSError as error:
            raise self._freeze(tail, slot, FROZEN_BY_SYNC, "a sync failed", error) from error

    def sync_visible(self, tail: Tail, slot: TailSlot) -> TailSlot:
        """Make all that is visible durable, and publish that."""
        self.sync(tail, slot)
        visible = slot.visible_offset, slot.visible_position
        return self.publish(tail, slot, *visible, *visible, slot.last_ticks)

    def place_blob(self, spooled: Path, offset: int) -> None:
        """Move a spooled blob to its offset, before the batch that names it is written."""
        try:
            self.active.place_blob(spooled, offset)
        except OSError as error:
            raise unavailable(self._place, "a huge event cannot be put in place", error) from error

    def publish(
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
        """Make what was written visible to all processes, and return the new state."""
        if safe is None:
            safe = durable if durable == visible else slot.safe_offset
        self.slot = None  # until it is published: if this is interrupted, the next append reads the tail
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
        self.slot = slot
        if self._refused and slot.segment < visible:
            self._thawed()
        return slot

    def roll(self, tail: Tail, slot: TailSlot, *, producers: bool = False) -> TailSlot:
        """Begin a new segment, with a snapshot of the producers if there are any, or `producers` says so.

        The old one is synced first, so that only the last can have a torn tail. The state says so before the new file
        is there: if this process dies, the next one must not append to the old segment, or the new one would stand for
        offsets that the old one has.
        """
        self._end_segment(tail, slot)
        slot = self.slot = slot.then(ROLLING)
        tail.publish(slot)
        base = slot.visible_offset
        begun_ticks = max(self._clock.ticks(), slot.last_ticks + 1)
        file_id = int.from_bytes(self._clock.random_bytes(4), "little")
        old = self.active.header
        producers = producers or old.producers or slot.producers_position > 0
        try:
            snapshot = self._producers.snapshot(slot, base) if producers else None
            if snapshot is not None:
                self._disk.replace(self._place.producers(base), snapshot)
            header = SegmentHeader(
                file_id, self._place.uuid, base, slot.last_ticks, begun_ticks, producers=snapshot is not None
            )
            fd = recovery.write_segment(self._place, header)
        except OSError as error:
            raise self._freeze(tail, slot, FROZEN_BY_WRITE, "a new segment cannot be made", error) from error
        self.active.replace(fd, header)
        slot = structs.replace(slot, segment=base)
        slot = self.publish(tail, slot, base, HEADER_BYTES, base, HEADER_BYTES, slot.last_ticks, producers=0)
        if snapshot is not None:
            self._producers.rolled(slot)
        if old.producers:
            with contextlib.suppress(OSError):  # recovery sweeps it
                self._disk.unlink(self._place.producers(old.base_offset))
        return slot

    def _end_segment(self, tail: Tail, slot: TailSlot) -> None:
        """End the segment's file with its last batch, durably, before another segment follows it."""
        try:
            self.active.cut(slot.visible_position)
        except OSError as error:
            raise self._freeze(tail, slot, FROZEN_BY_WRITE, "a segment cannot be finished", error) from error
        self.sync(tail, slot)  # in any case: a process that cut it before, at a close or in a roll, may not have

    def begin_deleting(self) -> None:
        """Take the lock, and publish that the topic is being removed. Call `wake` when it is unlocked."""
        tail = self.lock()
        self._check_identity()
        self.slot = None
        slot = tail.newest()
        if slot is not None and slot.state == OPEN:  # a frozen one stays frozen, should the removal fail
            tail.publish(slot.then(DELETING))

    def end_deleting(self) -> None:
        """Publish that the topic is gone, in whatever state it was. The lock is still held."""
        slot = self._tail.newest() if self._tail is not None else None
        if self._tail is not None and slot is not None and slot.state != DELETING:
            self._tail.publish(slot.then(DELETING))

    # Freezing

    def _freeze(self, tail: Tail, slot: TailSlot, state: int, what: str, error: OSError) -> Unavailable:
        """Freeze the log for all processes: after a failed write up to the next append, after a failed sync for good.

        What was not acknowledged is cut, best effort, so that it cannot come back. Returns what to raise.
        """
        with contextlib.suppress(OSError):
            self.active.cut(slot.visible_position)
        self.slot = slot.then(state)
        tail.publish(self.slot)
        failure = unavailable(self._place, what, error)
        if not self._refused:
            self._refused = True
            ends = "it is opened again" if state == FROZEN_BY_SYNC else "a write works again"
            log.error("%s; the log is frozen until %s, and nothing acknowledged is lost", failure.message, ends)
        return failure

    def freeze_in_doubt(self, tail: Tail, slot: TailSlot) -> None:
        """Freeze the log because a later recovery may find that a transaction, which failed here, is committed."""
        doubt = OSError(0, "it could be neither written nor taken back")
        self._freeze(tail, slot, FROZEN_BY_SYNC, "the entry of a transaction", doubt)

    def frozen_state(self) -> int | None:
        """Return the state of the log if it is frozen, else None. Reads memory only; safe from any thread."""
        slot = self._tail.peek() if self._tail is not None else None
        return slot.state if slot is not None and slot.state in (FROZEN_BY_SYNC, FROZEN_BY_WRITE) else None

    def has_frozen(self) -> bool:
        """Return whether the log was frozen since this object was made, so that a new one would thaw it unasked."""
        tail = self._tail or Tail.open(self._place)
        slot = tail.newest() if tail is not None else None
        return slot is not None and slot.state in (FROZEN_BY_SYNC, FROZEN_BY_WRITE) and slot.counter > self._opened_at

    def thaw(self) -> None:
        """Bring a frozen log back, as opening it again does, once a write works; raises what keeps it frozen."""
        opened_at = self._opened_at
        try:
            tail = self.lock()
            newest = tail.peek()
            if newest is not None:
                self._opened_at = newest.counter
            slot = self._absorb(tail, self.slot)
            opened_at = slot.counter
            # Zeros stand behind the last batch in any case, where space is reserved.
            self.write(tail, slot, bytes(RESERVE_BYTES_MIN), sync=False)
            if self._refused:
                self._thawed()
        finally:
            self.release()
            self._opened_at = opened_at

    def _thawed(self) -> None:
        self._refused = False
        log.warning("%s is no longer frozen and accepts appends", self._place)

    # Without the lock

    def is_abandoned(self) -> bool:
        """Return whether a process died in the middle of a commit: the lock is free, and it is not finished."""
        tail = self._tail = self._tail or Tail.open(self._place)
        if tail is None or not tail.busy():
            return False
        try:
            self.open_lock()
            if not self._disk.try_lock(self._lock_fd):
                return False
        finally:
            self.release()
        return tail.busy()

    def wake(self) -> None:
        """Wake the followers, after an interruption or a deletion: there may be news."""
        if self._tail is not None:
            self._tail.wake()

    def trim(self) -> None:
        """Give back reserved space, if no other process is at the log: before closing. Best effort."""
        if not self.active.is_open or self._tail is None or self.slot is None:
            return
        try:
            if not self._disk.try_lock(self._lock_fd):
                return
            if not self._tail.disturbed() and self.slot.state == OPEN:
                with contextlib.suppress(OSError):
                    self.active.cut(self.slot.visible_position)
        finally:
            self.release()

    def close(self) -> None:
        """Close the files, until it is used again. In a forked child, a lock that the parent holds stays locked."""
        self.active.close()
        fd, self._lock_fd = self._lock_fd, -1
        self.release = _unlock_nothing
        if fd >= 0:
            self._disk.close(fd)
        self._tail = self.slot = None
