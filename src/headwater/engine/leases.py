"""What one member of a consumer stores: its place among the members, its leases, and how far it has come.

Every method takes the lock of the file of cursors once, compares owner and fence of each partition, and changes only
what is still this member's. No method locks a log: the caller has made durable what it stores. Safe from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headwater.format.cursors import NOBODY, CursorSlot, Member
from headwater.storage.cursors import Cursors
from headwater.storage.disk import Clock


class Progress(msgspec.Struct, frozen=True):
    """How far a member has come in a partition that it holds by `fence`: what is to be stored."""

    partition: int
    fence: int
    cursor: int
    reached: int
    failing: int
    failures: int


class Claim(msgspec.Struct, frozen=True):
    """A partition that was taken. If its owner died, an event before `careful_until` may have been the cause."""

    slot: CursorSlot
    partition: int
    careful_until: int


class Round(msgspec.Struct, frozen=True):
    """What a look at the file found: partitions that are not ours any more, those taken, how many we may hold.

    `more` tells that there are some to take.
    """

    expiry_ns: int
    lost: list[int]
    claimed: list[Claim]
    share: int
    more: bool


class Leases:
    """One member's part in the file of a consumer. `id` is new for each member, and never used again."""

    def __init__(self, cursors: Cursors, clock: Clock, lease_ms: int) -> None:
        self.cursors = cursors
        self.id = clock.random_bytes(16)
        self._clock = clock
        self._lease_ns = lease_ms * 1_000_000

    def tend(self, held: dict[int, int], *, claim: bool) -> Round:
        """Refresh the member and the leases of what it holds, by their fences; with `claim`, take up to its share.

        What was taken is durable when this returns.
        """
        cursors = self.cursors
        with cursors.held():
            now = self._now_ns()
            expiry = now + self._lease_ns
            members = cursors.put_member(Member(self.id, expiry), now)
            slots = cursors.slots()
            lost = [number for number, fence in held.items() if not self._owns(slots[number], fence)]
            ours = held.keys() - set(lost)
            for number in ours:
                if slots[number].expiry_ns - now < self._lease_ns * 2 // 3:
                    cursors.put(number, cursors.next(number, expiry_ns=expiry))
                else:
                    expiry = min(expiry, slots[number].expiry_ns)
            share = share_of(members, self.id, len(slots))
            room = max(0, share - len(ours))
            free = [
                number
                for number, slot in enumerate(slots)
                if number not in ours and not slot.leased(cursors.boot_id, now)
            ][:room]
            claimed = [self._take(number, slots[number], now) for number in free] if claim else []
            if claimed:
                cursors.sync()
            return Round(expiry, lost, claimed, share, bool(free) and not claimed)

    def store(self, progress: Iterable[Progress], *, sync: bool) -> tuple[int, list[int]]:
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
        return expiry, lost

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

    def seek(self, progress: Sequence[Progress]) -> list[CursorSlot]:
        """Move cursors that the member holds, durably, under new fences; raises Fenced, and then nothing was moved."""
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
            return moved

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
        return Claim(taken, number, slot.reached if died else 0)

    def _owns(self, slot: CursorSlot, fence: int) -> bool:
        return slot.owner == self.id and slot.fence == fence

    def _next(self, each: Progress, slot: CursorSlot, **changes: object) -> CursorSlot:
        """The slot with this progress. A transaction may have moved the cursor further: it never goes back."""
        if each.cursor >= slot.cursor:
            changes = {"cursor": each.cursor, "failing": each.failing, "failures": each.failures, **changes}
        return self.cursors.next(each.partition, **{"reached": max(each.reached, slot.reached), **changes})

    def _now_ns(self) -> int:
        return int(self._clock.monotonic() * 1e9)


def share_of(members: Sequence[bytes], me: bytes, partitions: int) -> int:
    """How many partitions a member may hold: an equal part, the first members one more where it does not come out."""
    each, more = divmod(partitions, len(members))
    return each + (members.index(me) < more)
