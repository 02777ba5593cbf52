"""The part of a consumer that works in the background: it keeps leases alive and stores what was acked.

A `ConsumerMember` has the partitions that it holds in memory, one thread, and one mutex, which is never held during
I/O. The thread renews the leases while a handler works, however long that takes, and stores acks within `ack_ms`; it
ends with the member, also when that is dropped without being closed. A process that is stopped cannot renew: another
member takes its partitions when the leases expire, and when it continues, its clock makes it compare fences before
it does anything.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence

from msgspec import structs

from headwater.consumers.delivery_ledger import DeliveryLedger
from headwater.consumers.leases import Claim, Leases, LeaseState, Progress, Round
from headwater.disk.disk import Clock
from headwater.disk.latch import Latch
from headwater.errors import Fenced, HeadwaterError, NotFound
from headwater.limits import Limits
from headwater.log.log import Log

TEND_S = 1.0  # how often, at least, a member that waits looks for partitions that have become free


class ConsumerMember:
    """One reader of a consumer: what it holds, and until when. Safe from any thread."""

    def __init__(
        self,
        name: str,
        logs: Sequence[Log],
        leases: Leases,
        limits: Limits,
        clock: Clock,
        cursor_of: Callable[[int], int] | None = None,
    ) -> None:
        """`cursor_of` returns where to read a partition from, if that is kept elsewhere."""
        self.leases = leases
        self.mutex = threading.Lock()  # protects all below; never held during I/O
        self.held: dict[int, DeliveryLedger] = {}
        self.until_s = 0.0  # until then, and no longer, no other member can hold what this one holds
        self.dirty_s: float | None = None  # since when acks wait to be stored
        self.trouble: HeadwaterError | None = None  # what the thread met, for the caller that iterates
        self.closed = False
        self.period_s = min(TEND_S, limits.lease_ms / 3000)
        self._name = name
        self._logs = logs
        self._clock = clock
        self._cursor_of = cursor_of
        self._ack_s = leases.ack_s
        self._renew_s = limits.lease_ms / 3000
        self._tended_s = 0.0
        self._refused: Fenced | None = None
        self._wake = Latch()
        try:
            self.tend(claim=True)
        except BaseException:
            self.leases.release([], leave=True)
            raise
        arguments = weakref.ref(self), self._wake
        self._thread = threading.Thread(target=_keep, args=arguments, name=f"headwater-{name}", daemon=True)
        self._thread.start()

    def tend(self, *, claim: bool) -> None:
        """Renew the leases, notice what was lost, give up what is above the share; with `claim`, take what is free."""
        self._tended_s = self._clock.monotonic()
        with self.mutex:
            fences = {number: holding.fence for number, holding in self.held.items()}
        found = self.leases.tend(fences, claim=claim)
        expires_s = found.expires_s
        claimed = self._begin_all(found.claimed, expires_s)
        with self.mutex:
            for number, fence in fences.items():
                holding = self.held.get(number)
                if holding is not None and holding.fence == fence:
                    if number in found.lost:
                        self._drop(holding)
                    else:
                        holding.expires_s = expires_s
            for holding in claimed:
                self.held[holding.partition] = holding
            self._share(found)
        self.give_up()

    def _begin_all(self, claims: list[Claim], expires_s: float) -> list[DeliveryLedger]:
        """Hold what was taken. If the place to begin cannot be found, release it."""
        begun = []
        fences = {each.partition: each.standing.fence for each in claims}
        try:
            for each in claims:
                standing, until_s = self._begin(each, expires_s)
                fences[each.partition] = standing.fence
                begun.append(DeliveryLedger(self._logs[each.partition], standing, until_s, each.careful_until))
        except BaseException:
            # Below every cursor: of what is stored, only the lease is changed.
            self.leases.release([Progress(number, fence, -1, 0, 0, 0) for number, fence in fences.items()])
            raise
        return begun

    def _begin(self, claim: Claim, expires_s: float) -> tuple[LeaseState, float]:
        """Return where to begin in a partition that was taken, and until when it is held."""
        standing = claim.standing
        if self._cursor_of is None:
            return standing, expires_s
        cursor = self._cursor_of(claim.partition)
        if cursor < standing.cursor:  # what was made of the events is gone, and is made again
            sought = [Progress(claim.partition, standing.fence, cursor, cursor, 0, 0)]
            until_s, (moved,) = self.leases.seek(sought)
            return moved, min(until_s, expires_s)
        return structs.replace(standing, cursor=cursor), expires_s

    def give_up(self) -> None:
        """Release what is above the fair share, as far as the program has nothing of it in its hands."""
        with self.mutex:
            leaving = [holding for holding in self.held.values() if holding.leaving]
            for holding in leaving:
                holding.recall()
            idle = [holding for holding in leaving if holding.idle]
        if idle:
            self.release(idle)

    def due(self) -> bool:
        """Return whether it is time to `tend`."""
        return self._clock.monotonic() >= self._tended_s + self.period_s

    def store(self, holdings: Iterable[DeliveryLedger], *, exact: bool = True, sync: bool = False) -> None:
        """Store how far these have come, and renew their leases; `sync` makes it durable.

        Unless `exact`, acks of events that are not durable themselves wait for another time. What is lost is dropped.
        """
        progress = [self._progress(holding, exact=exact) for holding in holdings]
        expires_s, lost = self.leases.store(progress, sync=sync)
        with self.mutex:
            for each in progress:
                holding = self.held.get(each.partition)
                if holding is None or holding.fence != each.fence:
                    continue
                if each.partition in lost:
                    self._drop(holding)
                else:
                    holding.stored = max(holding.stored, each.cursor)
                    holding.reached = max(holding.reached, each.reached)
                    holding.told_s = self._clock.monotonic()
                    holding.expires_s = expires_s
            self._set_until()

    def store_all(self) -> None:
        """Store everything, durably."""
        with self.mutex:
            holdings = list(self.held.values())
            self.dirty_s = None
        self.store(holdings, sync=True)

    def refused(self) -> Fenced | None:
        """Return why acks that were taken could not be stored, if there were any since the last question."""
        with self.mutex:
            refused, self._refused = self._refused, None
        return refused

    def release(self, holdings: list[DeliveryLedger], *, leave: bool = False, died: bool = False) -> None:
        """Give up partitions, durably, and with `leave` the place among the members."""
        with self.mutex:
            for holding in holdings:
                holding.recall()
        progress = [self._progress(holding) for holding in holdings]
        lost = self.leases.release(progress, leave=leave, died=died)
        with self.mutex:
            for holding in holdings:
                if self.held.get(holding.partition) is holding:
                    if holding.partition not in lost:
                        holding.stored = holding.cursor
                    self._drop(holding)

    def replace(self, holding: DeliveryLedger) -> None:
        """Hold a partition from another place on."""
        with self.mutex:
            self.held[holding.partition] = holding
            self.look_up()

    def verified(self, partition: int) -> bool:
        """Return whether the partition is held now; a lease that may have expired is compared and renewed."""
        with self.mutex:
            holding = self.held.get(partition)
            if holding is None or self._clock.monotonic() < holding.expires_s:
                return holding is not None
        self.store([holding])
        with self.mutex:
            return self.held.get(partition) is holding

    # Under the mutex

    def stir(self) -> None:
        """Note that there is something to be stored."""
        if self.dirty_s is None:
            self.dirty_s = self._clock.monotonic()
            self._wake.set()

    def look_up(self) -> None:
        """Have the caller that iterates look around before it hands out the next event."""
        self.until_s = 0.0

    def looked(self) -> None:
        """The caller that iterates has looked around."""
        self._set_until(looked=True)

    # Ending

    def close(self, *, died: bool = False) -> None:
        """Store all acks, give up all partitions, durably, and leave. May be called twice; `died` as in `release`."""
        with self.mutex:
            if self.closed:
                return
            self.closed = True
            self.look_up()
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        try:
            self.release(list(self.held.values()), leave=True, died=died)
        except NotFound:  # the consumer or its topic was deleted: there is nothing left to give up
            self.held.clear()

    def after_fork(self) -> None:
        """Drop the leases in a forked child: they are the parent's."""
        self.mutex = threading.Lock()
        self.closed = True
        self.held.clear()
        self.look_up()

    def _drop(self, holding: DeliveryLedger) -> None:
        del self.held[holding.partition]
        if holding.cursor > holding.stored:
            self._refused = not_held(self._name, holding.partition, holding.stored)
        self.look_up()

    def _share(self, found: Round) -> None:
        """Choose what to give up: what is above the share, first of all what is idle."""
        holdings = sorted(self.held.values(), key=lambda holding: (not holding.leaving, not holding.idle))
        above = max(0, len(holdings) - found.share)
        for number, holding in enumerate(holdings):
            holding.leaving = number < above
        self._set_until()
        if found.more or above:
            self.look_up()

    def _set_until(self, *, looked: bool = False) -> None:
        if self.until_s or looked:  # what asked for a look around still wants it
            self.until_s = min((holding.expires_s for holding in self.held.values()), default=0.0)

    def _progress(self, holding: DeliveryLedger, *, exact: bool = True) -> Progress:
        """Return what to store of a partition; its log is made durable that far, before the cursor is stored."""
        with self.mutex:
            cursor, failures = holding.failing()
            failing, reached = cursor, holding.handed
        durable = holding.log.secured()
        if cursor > durable:
            if exact:
                holding.log.sync()
            else:
                cursor = max(holding.stored, durable)
        return Progress(holding.partition, holding.fence, cursor, reached, failing, failures)

    def round(self) -> float:
        """Do what is due; returns in how many seconds to come again."""
        now = self._clock.monotonic()
        try:
            if self.dirty_s is not None and now >= self.dirty_s + self._ack_s:
                with self.mutex:
                    self.dirty_s = None
                    changed = [holding for holding in self.held.values() if _changed(holding)]
                self.store(changed)
            if now >= self._tended_s + self._renew_s:
                self.tend(claim=False)
        except HeadwaterError as error:
            with self.mutex:
                self.trouble = error
                if isinstance(error, NotFound):  # the consumer or its topic was deleted
                    self.held.clear()
                self.look_up()
                self.dirty_s = now if self.held else None  # tried again
            self._tended_s = now
        dirty_s = self.dirty_s
        soonest = self._tended_s + self._renew_s
        if dirty_s is not None:
            soonest = min(soonest, dirty_s + self._ack_s)
        return max(0.0, soonest - self._clock.monotonic())


def not_held(name: str, partition: int, offset: int) -> Fenced:
    """Return the error for an event that came too late to be acked."""
    return Fenced(
        f"consumer {name!r} no longer holds partition {partition}, or not from offset {offset}",
        hint="do not ack the event: it is delivered again, here or to another member",
        partition=partition,
        offset=offset,
    )


def _changed(holding: DeliveryLedger) -> bool:
    return holding.cursor != holding.stored or bool(holding.failures)


def _keep(member_of: weakref.ref[ConsumerMember], wake: Latch) -> None:
    """The thread. Between two rounds it does not keep the member alive."""
    pause_s = 0.0
    while True:
        wake.wait(pause_s)
        wake.clear()
        member = member_of()
        if member is None or member.closed:
            return
        pause_s = member.round()
        del member
