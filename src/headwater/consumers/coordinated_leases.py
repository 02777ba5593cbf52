"""Leases in records that are swapped: in a bucket, or in DynamoDB (docs/decisions/0022).

No two clocks are compared. An owner relies on its lease for `lease_ms` from before it sent the last swap; a contender
takes the record when it has not changed for `lease_ms` by its own clock, counted from after it first saw it so. A
commit and a renewal are the same swap of the same record, under owner and fence: a replaced member can do neither.

Requests cost money here, so what this member wrote is remembered, and others are watched only while there may be
something to take.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

import msgspec
from msgspec import structs

from headwater.consumers.coordinator import CursorRecord, CursorVersion, SharedCursors, Sign
from headwater.consumers.leases import Claim, LeaseState, Progress, Round, share_of
from headwater.directory.cursor_file import CursorMove
from headwater.disk.disk import Clock
from headwater.errors import Fenced, NotFound, Unavailable, Unsupported
from headwater.limits import CONSUMER_MEMBERS_MAX

RENEWED = 0.32  # of a lease: when a member's thread comes, after a third, it finds everything due
SWEPT_LEASES = 10  # a member that was silent for so many leases is taken out of the list

S = TypeVar("S")
T = TypeVar("T")


class LeaseSighting(msgspec.Struct, frozen=True):
    """The last state seen of a record or a member, and since when it has not changed, by our own clock."""

    mark: str
    since_s: float


class Memory:
    """The records of one consumer as last seen. It outlives members: a new one need not watch from the beginning."""

    def __init__(self) -> None:
        self.records: dict[int, LeaseSighting] = {}

    def unchanged_s(self, partition: int, version: str, now_s: float) -> float:
        """Return for how many seconds a record has had this version, as far as was seen."""
        seen = self.records.get(partition)
        if seen is None or seen.mark != version:
            seen = self.records[partition] = LeaseSighting(version, now_s)
        return now_s - seen.since_s


class _Mine(msgspec.Struct, frozen=True):
    kept: CursorVersion
    until_s: float


class CoordinatedLeases:
    """One member's part in the records of a consumer. A guest is no member, and takes of `guest` what is free."""

    transactional = False

    def __init__(
        self,
        cursors: SharedCursors,
        partitions: int,
        clock: Clock,
        lease_ms: int,
        ack_ms: int,
        memory: Memory,
        threads: Executor,
        guest: Sequence[int] | None = None,
    ) -> None:
        self.id = clock.random_bytes(16)
        self.ack_s = self.reach_s = ack_ms / 1000
        self._owner = self.id.hex()
        self._cursors = cursors
        self._partitions = partitions
        self._clock = clock
        self._lease_ms = lease_ms
        self._lease_s = lease_ms / 1000
        self._memory = memory
        self._threads = threads
        self.guest = guest
        self._mutex = threading.Lock()  # protects all below; held during requests, which are in order for that
        self._mine: dict[int, _Mine] = {}  # what this member wrote last
        self._first: dict[int, str] = {}  # the version of each record of others when it was seen first
        self._signs: dict[str, tuple[LeaseSighting, float]] = {}  # of members, and their leases in seconds
        self._signed_s: float | None = None

    def tend(self, held: dict[int, int], *, claim: bool) -> Round:
        """Renew what is due of the leases by which partitions are held; with `claim`, take up to the share."""
        with self._mutex:
            lost = self._renew(held)
            ours = held.keys() - set(lost)
            if self.guest is None:
                live, doubtful = self._look_at_members()
                share = share_of([bytes.fromhex(member) for member in live], self.id, self._partitions)
                wanted: Sequence[int] = range(self._partitions)
            else:
                share, doubtful, wanted = self._partitions, False, self.guest
            room = max(0, share - len(ours))
            others = [number for number in wanted if number not in ours]
            free = self._watch(others)[:room] if others and (room or doubtful) else []
            claimed = [each for each in self._each(self._take, free) if each is not None] if claim else []
            expires_s = self._until_s([*ours, *(each.partition for each in claimed)])
            return Round(expires_s, lost, claimed, share, bool(free) and not claim)

    def store(self, progress: Iterable[Progress], *, sync: bool) -> tuple[float, list[int]]:  # noqa: ARG002  # it always is
        """Store how far the member has come; returns until when the leases hold, and the partitions that were lost."""
        with self._mutex:
            progress = list(progress)
            stored = self._each(lambda each: self._update(each.partition, each.fence, _further(each)), progress)
            lost = [each.partition for each, there in zip(progress, stored, strict=True) if not there]
            return self._until_s([each.partition for each in progress if each.partition not in lost]), lost

    def release(self, progress: Sequence[Progress], *, leave: bool = False, died: bool = False) -> list[int]:
        """Give partitions up, durably; with `leave`, the place among the members too. Returns what was lost before."""
        freed = {"lease_ms": 0} if died else {"lease_ms": 0, "owner": "", "reached": 0}
        with self._mutex:
            released = self._each(
                lambda each: self._update(each.partition, each.fence, _further(each, **freed), last=True), progress
            )
            if leave and self.guest is None:
                self._cursors.leave([self._owner])
        return [each.partition for each, there in zip(progress, released, strict=True) if not there]

    def seek(self, progress: Sequence[Progress]) -> tuple[float, list[LeaseState]]:
        """Move cursors that the member holds, durably, under new fences; raises Fenced if one is not held."""
        with self._mutex:
            moved = []
            for each in progress:
                changes = {"fence": each.fence + 1, "cursor": each.cursor, "reached": each.cursor}
                sought = _changed(**changes, failing=0, failures=0)
                if not self._update(each.partition, each.fence, sought):
                    raise Fenced(
                        f"{self._cursors.url}: partition {each.partition} is no longer held",
                        hint="discard its events: they are delivered again to the member that holds it now",
                        partition=each.partition,
                        fence=each.fence,
                    )
                moved.append(LeaseState(each.fence + 1, each.cursor))
            return self._until_s([each.partition for each in progress]), moved

    def peek(self, partitions: Iterable[int]) -> dict[int, LeaseState]:
        """Return where the consumer is in some partitions.

        What this member holds is not read: its next renewal finds out.
        """
        numbers = list(partitions)
        now_s = self._clock.monotonic()
        mine = {number: each for number in numbers if (each := self._mine.get(number)) and now_s < each.until_s}
        found = {number: _standing(each.kept.record) for number, each in mine.items()}
        others = [number for number in numbers if number not in mine]
        try:
            read = self._each(self._cursors.read, others)
        except Unavailable:
            return found
        return found | {number: _standing(kept.record) for number, kept in zip(others, read, strict=True) if kept}

    def busy(self, partitions: Iterable[int]) -> set[int]:
        """Return those of some partitions that others hold and that changed: a live member reads them."""
        with self._mutex:
            found: set[int] = set()
            for number in partitions:
                seen = self._memory.records.get(number)
                if seen is not None and seen.mark != self._first.setdefault(number, seen.mark):
                    found.add(number)
            return found

    def move(self, partition: int, fence: int, cursor: int) -> CursorMove:  # noqa: ARG002  # nothing is moved
        """Raises Unsupported."""
        raise Unsupported(
            f"a transaction cannot ack partition {partition} here",
            hint="append, then ack: this gives at-least-once delivery; give the events keys to recognize duplicates",
        )

    def doubt(self, partition: int) -> None:
        """Look at the record before it is next said that a partition is held: another process has changed it."""
        self._mine.pop(partition, None)

    def left_ms(self, partition: int, fence: int) -> int:
        """Return for how many milliseconds this member surely holds a partition; 0 if it does not."""
        mine = self._mine.get(partition)
        if mine is None or mine.kept.record.fence != fence:
            return 0
        return max(0, int((mine.until_s - self._clock.monotonic()) * 1000))

    # Under the mutex

    def _until_s(self, partitions: Sequence[int]) -> float:
        """Return until when all of these are held; what another process moved just now is not."""
        mine = [self._mine.get(number) for number in partitions]
        until_s = [each.until_s if each is not None else 0.0 for each in mine]
        return min(until_s, default=self._clock.monotonic() + self._lease_s)

    def _renew(self, held: dict[int, int]) -> list[int]:
        """Renew what is due; returns what was lost."""
        due_s = self._clock.monotonic() + self._lease_s * (1 - RENEWED)
        due = [
            (number, fence)
            for number, fence in held.items()
            if (mine := self._mine.get(number)) is None or mine.kept.record.fence != fence or mine.until_s < due_s
        ]
        renewed = self._each(lambda each: self._update(*each, _changed()), due)
        return [number for (number, _), there in zip(due, renewed, strict=True) if not there]

    def _update(
        self, partition: int, fence: int, change: Callable[[CursorRecord], CursorRecord], *, last: bool = False
    ) -> bool:
        """Change a record that is this member's under this fence, and renew its lease; False if it is not any more.

        Nothing is written if nothing changes and the lease is young. With `last`, it is given up.
        """
        mine = self._mine.get(partition)
        kept = mine.kept if mine is not None and mine.kept.record.fence == fence else self._cursors.read(partition)
        while True:
            if kept is None:
                raise self._gone()
            if kept.record.owner != self._owner or kept.record.fence != fence:
                self._mine.pop(partition, None)
                return False
            before_s = self._clock.monotonic()
            record = change(kept.record)
            if mine is not None and record == kept.record and before_s < mine.until_s - self._lease_s * (1 - RENEWED):
                return True
            record = structs.replace(record, beat=kept.record.beat + 1)
            version = self._cursors.swap(partition, record, kept.version)
            if version is not None:
                if last:
                    self._mine.pop(partition, None)
                else:
                    self._mine[partition] = _Mine(CursorVersion(record, version), before_s + self._lease_s)
                return True
            # It may be our own write whose answer was lost before: who else writes changes owner or fence.
            mine, kept = None, self._cursors.read(partition)

    def _watch(self, partitions: Sequence[int]) -> list[tuple[int, CursorVersion]]:
        """Look at records that are not held; returns those that may be taken."""
        found = []
        for number, kept in zip(partitions, self._each(self._cursors.read, partitions), strict=True):
            if kept is None:
                raise self._gone()
            now_s = self._clock.monotonic()  # after the look: an owner that wrote what was seen did so before
            unchanged_s = self._memory.unchanged_s(number, kept.version, now_s)
            self._first.setdefault(number, kept.version)
            # One of our own is one of which we did not hear that we got it.
            if kept.record.free or kept.record.owner == self._owner or unchanged_s >= kept.record.lease_ms / 1000:
                found.append((number, kept))
        return found

    def _take(self, free: tuple[int, CursorVersion]) -> Claim | None:
        """Become the owner of a partition; None if another process was first."""
        number, (record, version) = free
        died = record.owner not in ("", self._owner) and record.reached > record.cursor
        taken = CursorRecord(
            cursor=record.cursor,
            fence=record.fence + 1,
            owner=self._owner,
            lease_ms=self._lease_ms,
            beat=record.beat + 1,
            reached=record.cursor,
            failing=record.cursor,
            failures=record.failures_at(record.cursor) + died,
        )
        before_s = self._clock.monotonic()
        swapped = self._cursors.swap(number, taken, version)
        if swapped is None:
            return None
        self._mine[number] = _Mine(CursorVersion(taken, swapped), before_s + self._lease_s)
        return Claim(number, _standing(taken), record.reached if died else 0)

    def _look_at_members(self) -> tuple[list[str], bool]:
        """Return who lives, this member too, in one order for all.

        And whether a member is late with its sign of life.
        """
        now_s = self._clock.monotonic()
        if self._signed_s is None or now_s >= self._signed_s + self._lease_s * RENEWED:
            first = self._signed_s is None
            self._cursors.sign(self._owner, self._lease_ms)
            self._see(self._cursors.signs())
            if first and len(self._live()) > CONSUMER_MEMBERS_MAX:
                raise Unavailable(
                    f"{self._cursors.url} has the maximum of {CONSUMER_MEMBERS_MAX} members",
                    hint="use fewer members: each partition is read by one member at a time",
                    code="too_many_members",
                )
            self._signed_s = now_s
        live, now_s = self._live(), self._clock.monotonic()
        late = [self._signs[member] for member in live if member != self._owner]
        return live, any(now_s >= seen.since_s + lease_s / 2 for seen, lease_s in late)

    def _see(self, signs: dict[str, Sign]) -> None:
        now_s = self._clock.monotonic()
        before, self._signs = self._signs, {}
        silent = []
        for member, sign in signs.items():
            seen = before[member][0] if member in before else None
            if seen is None or seen.mark != sign.mark:
                seen = LeaseSighting(sign.mark, now_s)
            elif now_s >= seen.since_s + SWEPT_LEASES * sign.lease_ms / 1000:
                silent.append(member)
                continue
            self._signs[member] = seen, sign.lease_ms / 1000
        if silent:
            self._cursors.leave(silent)

    def _live(self) -> list[str]:
        now_s = self._clock.monotonic()
        live = (m for m, (seen, lease_s) in self._signs.items() if now_s < seen.since_s + lease_s)
        return sorted({*live, self._owner})

    def _each(self, work: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """Do requests at once, in a few threads; raises what the first of them raised that failed."""
        if len(items) <= 1:
            return [work(item) for item in items]
        return list(self._threads.map(work, items))

    def _gone(self) -> NotFound:
        return NotFound(
            f"there is no consumer at {self._cursors.url}, or it was deleted",
            hint="'headwater consumers' lists them",
            code="consumer_not_found",
        )


def _further(each: Progress, **changes: object) -> Callable[[CursorRecord], CursorRecord]:
    """Return the change of a record by this progress. A cursor never goes back."""

    def change(record: CursorRecord) -> CursorRecord:
        further: dict[str, object] = {"reached": max(each.reached, record.reached)}
        if each.cursor >= record.cursor:
            further |= {"cursor": each.cursor, "failing": each.failing, "failures": each.failures}
        return structs.replace(record, **(further | changes))

    return change


def _changed(**changes: object) -> Callable[[CursorRecord], CursorRecord]:
    return lambda record: structs.replace(record, **changes)


def _standing(record: CursorRecord) -> LeaseState:
    return LeaseState(record.fence, record.cursor, record.failing, record.failures)
