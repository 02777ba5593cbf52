"""The verbs that change a local log: commit, transactions' shares, copies of batches, rolling, repair and deletion.

A `LogWriter` is used by one thread at a time (see `group`). Each verb takes the lock of the log, learns what other
processes did, and releases the lock in a `finally`; `HeldLog` has the steps, and says what holds after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headwater.directory import copying, journal, repair
from headwater.directory.admission import Admission, VersionOf
from headwater.directory.failures import repeated
from headwater.directory.held_log import HeldLog
from headwater.directory.log_directory import LogDirectory
from headwater.directory.repair import Action
from headwater.directory.tail import Tail
from headwater.format.batch import BLOB, Batch, encode_one
from headwater.format.journal import JournalShare
from headwater.format.producers import ProducerState, stamped_bytes
from headwater.format.segment import HEADER_BYTES
from headwater.format.tail import OPEN, TailSlot
from headwater.log.rows import Rows, encode, mergeable

YIELD_S = 0.0002  # how long a writer pauses when another process waits for the lock


class PreparedWrite:
    """One log's share of a transaction: encoded, and the log locked until it is applied or dropped."""

    __slots__ = ("data", "end_offset", "group", "last_ticks", "rolled", "slot", "tail")

    def __init__(self, tail: Tail, slot: TailSlot, group: list[Rows]) -> None:
        self.tail = tail
        self.slot = slot
        self.group = group
        self.rolled = False
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
        """`identity` is that of the log's lock: another one there means another log.

        `version_of` finds a key's version. `may_roll` raises if a new segment must not be begun, `guard` if nothing may
        be appended.
        """
        self._place = place
        self._clock = place.clock
        self._on_roll = on_roll
        self._may_roll = may_roll
        self._guard = guard
        self._admission = Admission(place, version_of)
        self.held = HeldLog(place, identity, self._admission.producers)

    @property
    def segment(self) -> int:
        """Return the first offset of the segment that this writer appended to last."""
        return self.held.active.header.base_offset

    # Appending

    def commit(self, group: list[Rows]) -> list[Rows]:
        """Append all rows of the group with one write and at most one sync, and set the offset and ticks of each.

        Rows whose conditions do not hold get an `error` instead. Returns those that must wait for others in the group:
        they are to be committed next.
        """
        if self._guard is not None:
            self._guard()
        held = self.held
        rolled = False
        rest: list[Rows] = []
        try:
            tail, slot = held.take()
            for rows in group:
                if rows.guarded:
                    group, rest = self._sift(tail, slot, group)
                    slot = held.slot or slot
                    break
            if group:
                ticks = max(self._clock.ticks(), slot.last_ticks + 1)
                data, offset, last_ticks = self._encode(
                    group, slot.visible_offset, ticks, self._place.limits.pack_bytes
                )
                if held.active.is_full(slot, len(data), ticks):
                    self._may_roll(slot)
                    slot = held.roll(tail, slot)
                    rolled = True
                tail.begin()
                sync = stamped = False
                for rows in group:
                    sync = sync or rows.sync
                    stamped = stamped or rows.producer is not None
                    if rows.spooled is not None:
                        held.place_blob(rows.spooled, rows.offset)
                held.write(tail, slot, data, sync=sync)
                end = slot.visible_position + len(data)
                durable = (offset, end) if sync else (slot.durable_offset, slot.durable_position)
                producers = end if stamped else slot.producers_position
                slot = held.publish(tail, slot, offset, end, *durable, last_ticks, producers=producers)
                if stamped or self._admission.versions:
                    self._admission.committed(group, slot)
        finally:
            held.release()
        tail.wake()
        if rolled:
            self._on_roll()
        if tail.contended():
            self._clock.sleep(YIELD_S)
        return rest

    def _sift(self, tail: Tail, slot: TailSlot, group: list[Rows]) -> tuple[list[Rows], list[Rows]]:
        """Return those of a group that may be committed now, and those that wait for them."""
        admitted, rest = self._admission.sift(group, slot)
        if len(admitted) + len(rest) == len(group):
            return admitted, rest
        answered = (rows for rows in group if rows.answered and rows.sync)
        late = [rows for rows in answered if rows.offset + rows.count > slot.durable_offset]
        if late:  # the first answer was for less
            try:
                self.held.sync_visible(tail, slot)
            except BaseException:
                for rows in late:
                    rows.answered = False  # so that they get the error
                raise
        return admitted, rest

    def _encode(self, group: list[Rows], offset: int, ticks: int, bytes_max: int = 0) -> tuple[bytes, int, int]:
        """Return the bytes of all rows, the offset behind them and the ticks of the last; set where each row will be.

        Rows of a transaction are merged as far as possible, others only up to `bytes_max`: sealing would split them.
        """
        zstd = self._place.zstd
        if len(group) == 1:
            rows = group[0]
            rows.offset, rows.ticks = offset, ticks
            # By far the most frequent, without the call of `encode`.
            if rows.columns is None and rows.spooled is None and rows.producer is None:
                args = rows.content, rows.data, rows.type, rows.key, rows.meta
                return encode_one(offset, ticks, *args), offset + 1, ticks
            return encode(group, offset, ticks, zstd=zstd), offset + rows.count, ticks + rows.count - 1
        encoded: list[bytes] = []
        for run in mergeable(group, self._place.limits, bytes_max):
            encoded.append(encode(run, offset, ticks, zstd=zstd))
            for rows in run:
                rows.offset, rows.ticks = offset, ticks
                offset += rows.count
                ticks += rows.count
        return b"".join(encoded), offset, ticks - 1

    # Transactions

    def prepare(self, group: list[Rows], *, journaled: bool) -> PreparedWrite:
        """Take the lock for a transaction, and encode its share of this log. Raises if that may not be appended."""
        if self._guard is not None:
            self._guard()
        held = self.held
        try:
            tail, slot = held.take()
            for rows in group:
                if rows.guarded and self._admission.answered(rows, slot):
                    raise repeated(self._place)
            ticks = max(self._clock.ticks(), slot.last_ticks + 1)
            prepared = PreparedWrite(tail, slot, group)
            prepared.data, prepared.end_offset, prepared.last_ticks = self._encode(group, slot.visible_offset, ticks)
            if held.active.is_full(slot, len(prepared.data), ticks):
                self._may_roll(slot)
                prepared.slot = held.roll(tail, slot)
                prepared.rolled = True
            elif journaled and slot.safe_offset < slot.visible_offset and slot.durable_offset < slot.visible_offset:
                # A journal can bring back only what follows events that are safe.
                prepared.slot = held.sync_visible(tail, slot)
            tail.begin()
            for rows in group:
                if rows.spooled is not None:
                    held.place_blob(rows.spooled, rows.offset)
        except BaseException:
            held.release()
            raise
        return prepared

    def share(self, prepared: PreparedWrite) -> JournalShare:
        """Return what the journal records of this log's share."""
        slot, place = prepared.slot, self._place
        return JournalShare(
            place.topic,
            place.partition,
            place.uuid.hex(),
            slot.segment,
            self.held.active.header.file_id,
            slot.visible_position,
            slot.visible_offset,
            prepared.end_offset,
            prepared.last_ticks,
            len(prepared.data),
        )

    def apply(self, prepared: PreparedWrite, *, journaled: bool) -> None:
        """Write a transaction's share and make it visible. Without a journal it is synced here."""
        tail, slot, offset = prepared.tail, prepared.slot, prepared.end_offset
        try:
            end = slot.visible_position + len(prepared.data)
            sync = not journaled and any(rows.sync for rows in prepared.group)
            self.held.write(tail, slot, prepared.data, sync=sync)
            durable = (offset, end) if sync else (slot.durable_offset, slot.durable_position)
            safe = offset if journaled else None
            stamped = stamped_bytes(prepared.data) if prepared.group[0].producer is not None else 0
            producers = slot.visible_position + stamped if stamped else slot.producers_position
            ends = *durable, prepared.last_ticks
            slot = self.held.publish(tail, slot, offset, end, *ends, safe=safe, producers=producers)
            self._admission.committed(prepared.group, slot)
        finally:
            self.held.release()
        tail.wake()
        if prepared.rolled:
            self._on_roll()

    def drop(self, prepared: PreparedWrite, *, freeze: bool = False) -> None:
        """Give up a transaction's share. `freeze` if a later recovery may find that the transaction is committed."""
        try:
            if freeze:
                self.held.freeze_in_doubt(prepared.tail, prepared.slot)
            else:
                self.held.slot = None
                prepared.tail.publish(prepared.slot.then(OPEN))
        finally:
            self.held.release()
        if prepared.rolled:
            self._on_roll()

    def recall(self, rows: Rows) -> bool:
        """Return whether the request of these rows' producer was committed before; sets their offset and ticks then.

        Those events are as durable as the rows want to be when this returns.
        """
        try:
            tail, slot = self.held.take()
            if not self._admission.recalled(rows, slot):
                return False
            if rows.sync and slot.durable_offset < slot.visible_offset:
                self.held.sync_visible(tail, slot)
        finally:
            self.held.release()
        return True

    def unlocking(self) -> Callable[[], object]:
        """Return what unlocks the log, in C, if it is locked. In a transaction, the next to lock it recovers."""
        self.held.open_lock()
        return self.held.release

    # Replicas

    def take(self, batches: Sequence[Batch], spooled: Mapping[int, Path]) -> None:
        """Append batches of another log as they are, durably; raises Conflict if they do not follow on what is here."""
        held = self.held
        rolled = False
        try:
            tail, slot = held.take()
            copying.check_follows(self._place, slot, batches)
            old = self._clock.ticks() > held.active.ends_ticks and slot.visible_position > HEADER_BYTES
            segment_bytes = self._place.limits.segment_bytes
            position = segment_bytes if old else slot.visible_position
            for number, run in enumerate(copying.runs(batches, position, segment_bytes)):
                if number:
                    slot = held.roll(tail, slot)
                    rolled = True
                if run:
                    slot = self._take_run(tail, slot, run, spooled)
        finally:
            held.release()
        tail.wake()
        if rolled:
            self._on_roll()

    def _take_run(self, tail: Tail, slot: TailSlot, run: list[Batch], spooled: Mapping[int, Path]) -> TailSlot:
        tail.begin()
        for batch in run:
            if batch.flags & BLOB:
                self.held.place_blob(spooled[batch.base_offset], batch.base_offset)
        data, stamped = copying.joined(run)
        self.held.write(tail, slot, data, sync=True)
        offset, end = run[-1].end_offset, slot.visible_position + len(data)
        producers = slot.visible_position + stamped if stamped else slot.producers_position
        return self.held.publish(tail, slot, offset, end, offset, end, run[-1].last_ticks, producers=producers)

    def producers(self) -> tuple[int, dict[str, ProducerState]]:
        """Return what is remembered of producers, and the offset as of which that is."""
        try:
            _, slot = self.held.take()
            return slot.visible_offset, self._admission.producers.known(slot)
        finally:
            self.held.release()

    def remember(self, known: dict[str, ProducerState]) -> tuple[bool, bool]:
        """Remember more of producers; return whether that is done, and whether it took a new segment for a snapshot.

        An empty segment has no place for it: its snapshot is of its first offset, which is written already.
        """
        try:
            tail, slot = self.held.take()
            news = self._admission.producers.merged(known, slot)
            if news is None:
                return True, False
            if slot.visible_position == HEADER_BYTES:
                return False, False
            self._admission.producers.learn(news)
            self.held.roll(tail, slot, producers=True)
        finally:
            self.held.release()
        tail.wake()
        return True, True

    # Upkeep

    def recover(self) -> TailSlot:
        """Take the lock and bring the log into order, whatever state it is in; returns that state."""
        try:
            return self.held.take()[1]
        finally:
            self.held.release()

    def sync(self) -> None:
        """Make all that is visible durable."""
        try:
            tail, slot = self.held.take()
            if slot.durable_offset < slot.visible_offset:
                self.held.sync_visible(tail, slot)
        finally:
            self.held.release()

    def roll(self) -> bool:
        """Begin a new segment, so that the events so far can be sealed. False if there is nothing to seal."""
        try:
            tail, slot = self.held.take()
            if slot.visible_position == HEADER_BYTES:
                return False
            self.held.roll(tail, slot)
        finally:
            self.held.release()
        tail.wake()
        return True

    def repair(self) -> list[Action]:
        """Cut out damage, keeping it beside the log; then bring the log into order."""
        try:
            tail = self.held.lock()
            journal.redo(self._place, None)
            done = repair.apply(self._place)
            if self._place.segments():
                self.held.slot = self.held.recover(tail, believe=False)
        finally:
            self.held.release()
        tail.wake()
        return done
