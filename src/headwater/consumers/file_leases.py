"""Leases in the file of a consumer, in a log directory: every method takes the file's lock once.

Leases expire by the monotonic clock that all processes of the machine share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headwater.consumers.leases import Claim, LeaseState, Progress, Round, share_of
from headwater.directory.cursor_file import CursorMove, Cursors
from headwater.disk.disk import Clock
from headwater.format.cursors import NOBODY, CursorSlot, MemberRecord


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

        With `died`, whoever takes them next finds them as if their owner's process had ended with events in its hands.
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
