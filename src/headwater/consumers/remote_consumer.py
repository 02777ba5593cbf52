"""Named consumers on a server: their verbs, and `RemoteConsumer`, one member of a consumer.

A `Membership` (membership.py) lasts until the connection breaks, the server restarts, or this process was stopped for
longer than its lease. The next call for an event joins again then: what was not acked is delivered again. Iterating
belongs to one thread; acks and failures may come from any.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator

import msgspec

from headwater import position
from headwater.consumers.leases import check_name
from headwater.consumers.membership import Membership, MembershipState, too_late
from headwater.errors import Closed, Fenced, HeadwaterError, Invalid, Unavailable, Unsupported, within_memory
from headwater.event import Event
from headwater.info import ConsumerInfo
from headwater.limits import Limits
from headwater.position import Position
from headwater.protocols import Consumer
from headwater.remote.remote import Remote, delete
from headwater.remote.transport import Transport
from headwater.requests import Consume, Drain

GLANCE_S = 0.2  # how often to ask for what has no stream: whether others have drained their partitions
FULL_S = 30.0  # how long to wait for acks when so much is not acked that the server sends no more

_decode_infos = msgspec.json.Decoder(list[ConsumerInfo]).decode


class RemoteConsumers:
    """The consumers of a server."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._transport = remote.transport

    def join(self, request: Consume) -> RemoteConsumer:
        check_name(request.consumer)
        member = RemoteConsumer(self._transport, request, self._remote.limits)
        self._remote.members.add(member)
        return member

    def visit(self, request: Drain) -> RemoteVisit:
        """Return a visit to all partitions; it waits for those that other members hold."""
        if request.partitions is not None:
            raise Unsupported("a server drains all partitions of a topic", hint="leave out partitions=")
        return RemoteVisit(self, request)

    def infos(self, topic: str | None) -> list[ConsumerInfo]:
        return _decode_infos(self._transport.call("GET", ("consumers",), {"topic": topic}, repeat=True).body)

    def seek(self, consumer: str, topic: str, at: Position, partition: int | None) -> dict[int, int]:
        asked = {"at": position.format(at), "partition": partition}
        told = self._transport.json("POST", ("consumer", consumer, topic, "seek"), value=asked, repeat=True)
        return {int(number): cursor for number, cursor in told.items()}

    def forget(self, consumer: str, topic: str) -> None:
        delete(self._transport, ("consumer", consumer, topic))

    def replay(self, topic: str, consumer: str | None) -> int:
        done: int = self._transport.json("POST", ("topic", topic, "replay"), {"consumer": consumer}, repeat=False)
        return done


class RemoteVisit:
    """A visit to a consumer on a server, as one of its members (draining.py)."""

    def __init__(self, consumers: RemoteConsumers, request: Drain) -> None:
        self.monotonic = time.monotonic
        self._consumers = consumers
        self._request = request
        self._consumer: RemoteConsumer | None = None

    def behind(self) -> bool:
        """Return whether events wait; a consumer that is new is joined to find out."""
        found = [info for info in self._consumers.infos(self._request.topic) if info.name == self._request.consumer]
        new = not found and self._consumer is None
        return new or any(info.lag for info in found)

    def join(self) -> RemoteConsumer:
        self._consumer = self._consumers.join(self._request)
        return self._consumer

    def events(self, until_s: float) -> Iterator[Event]:
        """Yield the events that are there now; a timer ends it, as it may wait for other members."""
        consumer = self._consumer
        assert consumer is not None, "it was joined"
        if until_s == math.inf:
            yield from consumer.drain()
            return
        timer = threading.Timer(max(0.0, until_s - self.monotonic()), consumer.stop)
        timer.start()
        try:
            yield from consumer.drain()
        finally:
            timer.cancel()


@within_memory()
class RemoteConsumer(Consumer):
    """One member of a consumer on a server; `Consumer` has the documentation of its verbs."""

    def __init__(self, transport: Transport, request: Consume, limits: Limits) -> None:
        """Join. Raises NotFound for a missing topic, Invalid for options that make no sense."""
        self.name = request.consumer
        self.topic = request.topic
        self._transport = transport
        self._timeout = request.timeout
        self._ack_s = limits.ack_ms / 1000
        self._query: dict[str, object] = {
            "start": position.format(request.start),
            "type": request.type,
            "key": request.key,
            "match": None if request.match is None else msgspec.json.encode(request.match),
            "lease_ms": request.lease_ms,
            "failures_max": request.failures_max,
        }
        self._pid = os.getpid()
        self._stopped = self._closed = False
        self._skipped = 0  # in memberships before this one
        self._last: Event | None = None
        self._failures: dict[tuple[int, int], int] = {}
        self._awaited: set[tuple[int, int]] = set()  # what failed and comes again
        self._refused: Fenced | None = None
        self._acks = 0  # so far; while it grows, the handler still works
        self._memberships = [self._join(None)]  # the one that there is, for the finalizer too
        self._finalizer = weakref.finalize(self, _let_go, self._memberships)

    @property
    def id(self) -> str:
        return self._member.owner

    @property
    def partitions(self) -> list[int]:
        return sorted(self._state().held)

    @property
    def fences(self) -> dict[int, int]:
        return {number: held.fence for number, held in sorted(self._state().held.items())}

    @property
    def skipped(self) -> int:
        return self._skipped + self._state().skipped

    # Events

    def __next__(self) -> Event:
        event = self._more()
        if event is None:
            raise StopIteration
        return event

    def __iter__(self) -> Iterator[Event]:  # a generator is quicker than calls of __next__
        """Yield what `next` returns, until there is no more."""
        while (event := self._more()) is not None:
            yield event

    # Acks

    def ack(self, event: Event | Iterable[Event], *more: Event) -> None:
        for each in (event, *more) if isinstance(event, Event) else (*event, *more):
            if each.topic != self.topic:
                raise _of_another(each, self)
            self._ack(each.partition, each.offset, all_before=False)

    def ack_to(self, at: Event | tuple[int, int]) -> None:
        partition, offset = (at.partition, at.offset) if isinstance(at, Event) else at
        self._ack(partition, offset, all_before=True)

    def fail(self, event: Event, error: object = "") -> bool:
        if event.topic != self.topic:
            raise _of_another(event, self)
        member = self._verified()
        if not member.holds(event):
            raise too_late(self.name, event.partition, event.offset)
        told = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
        place = event.partition, event.offset
        self._failures[place] = self._failures.get(place, 0) + 1
        try:
            aside = member.fail(event, told)
        except Unavailable:  # whether it was counted is not known; joined again, the event comes again in any case
            member.end()
            return False
        if aside:
            self._failures.pop(place, None)
        else:
            self._awaited.add(place)
        return aside

    def failures(self, event: Event) -> int:
        return self._failures.get((event.partition, event.offset), 0)

    def flush(self) -> None:
        self._check_open()
        member = self._member
        if not member.over:
            try:
                member.settle(flush=True)
            except Fenced:
                member.end()
        refused = self._refused or member.refused
        self._refused = member.refused = None
        if refused is not None:
            raise refused

    # For transactions

    def holds(self, event: Event) -> bool:
        """Return whether it handed out this event, and holds its partition still, as far as it knows."""
        return event.topic == self.topic and not self._closed and self._member.holds(event)

    def sending(self, events: Iterable[Event]) -> Membership:
        """Return the membership that these events came by, with all acks before them sent; raises Fenced."""
        member = self._verified()
        for event in events:
            if not member.holds(event):
                raise too_late(self.name, event.partition, event.offset)
        member.send_acks()
        return member

    # Places

    def seek(self, at: Position, partition: int | None = None) -> dict[int, int]:
        self._check_open()
        return self._joined().seek(position.format(at), partition)

    def lag(self) -> dict[int, int]:
        if not self._member.over:
            self._member.settle(flush=True)
        return {info.partition: info.lag for info in self._infos()}

    # Ending

    def stop(self) -> None:
        self._stopped = True
        with self._member.changed:
            self._member.changed.notify_all()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self._stopped = True
        if os.getpid() == self._pid:
            self._finalizer.detach()
            if not self._member.over:
                self._member.leave()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        event = self._last
        if error is None:
            self.close()
            return
        try:
            failed = isinstance(error, Exception) and not isinstance(error, HeadwaterError)
            if failed and event is not None and self._member.first(event.partition) == event.offset:
                self.fail(event, error)
            self.close()
        except HeadwaterError:
            pass  # the error that ended the block says more

    # Below, how events come

    @property
    def _member(self) -> Membership:
        return self._memberships[0]

    def _join(self, instead: str | None) -> Membership:
        query = {**self._query, "instead": instead}
        return Membership(self._transport, self.name, self.topic, query, self._ack_s, self.name)

    def _joined(self) -> Membership:
        """Return the membership, a new one if the last one is over.

        Raises what ended that, if it is for the user to know.
        """
        member = self._member
        if member.over:
            error, member.error = member.error, None
            if error is not None:
                raise error
            if self._refused is None:
                self._refused = member.refused
            self._failures.clear()
            self._awaited.clear()
            self._memberships[0] = member = self._join(member.token)
        return member

    def _verified(self) -> Membership:
        self._check_open()
        member = self._member
        if not member.over:
            member.verify()
        return member

    def _ack(self, partition: int, offset: int, *, all_before: bool) -> None:
        if os.getpid() != self._pid or self._closed:
            raise too_late(self.name, partition, offset)
        member = self._member
        if not member.over:
            member.verify()
        if not member.ack(partition, offset, all_before=all_before):
            raise too_late(self.name, partition, offset)
        self._acks += 1
        if self._failures:
            self._failures.pop((partition, offset), None)

    def _over(self) -> bool:
        return self._stopped or self._closed

    def _more(self) -> Event | None:
        """Return the next event; None at the end."""
        if os.getpid() != self._pid:
            return None
        wait_s = FULL_S if self._timeout is None else self._timeout
        while not self._over():
            acks = self._acks
            member = self._joined()
            event = self._take(member, wait_s)
            if event is not None:
                return event
            if member.over or self._over():
                continue
            state = self._looked(member)  # nothing came for long: is that so, or was it on its way?
            if state is None or not self._all_here(member, state):
                continue
            if state.full and not self._awaited and (self._timeout is not None or acks == self._acks):
                raise _full()
            if self._timeout is not None and state.idle:
                return None
        return None

    def _take(self, member: Membership, wait_s: float) -> Event | None:
        event = member.take(wait_s, self._over)
        if event is not None:
            self._last = event
            if self._awaited:
                self._awaited.discard((event.partition, event.offset))
        return event

    def _looked(self, member: Membership) -> MembershipState | None:
        """Return what the server has, after a look; None if the membership is over."""
        try:
            return member.settle(look=True)
        except Fenced:
            member.end()
            return None

    def _all_here(self, member: Membership, state: MembershipState) -> bool:
        """Wait until all has come that was sent; False if there is something to hand out, or it is over."""
        with member.changed:
            member.changed.wait_for(lambda: member.over or member.received >= state.sent or self._over(), GLANCE_S)
            return member.received >= state.sent and not member.waits and not member.over

    def _drain(self) -> Iterator[Event]:
        ends = {info.partition: info.end for info in self._infos()}
        reached: dict[int, int] = {}
        idle_s = time.monotonic()
        while not self._over():
            member = self._joined()
            event = self._take(member, 0)
            if event is not None:
                yield event
                reached[event.partition] = event.offset + 1
                idle_s = time.monotonic()
                if not self._awaited and all(reached.get(number, 0) >= end for number, end in ends.items()):
                    return
                continue
            state = None if member.over else self._looked(member)
            if state is None or not self._all_here(member, state):
                continue
            if state.full and not self._awaited:
                raise _full()
            if self._drained(state, ends):
                return
            if self._timeout is not None and time.monotonic() >= idle_s + self._timeout and not self._awaited:
                return
            with member.changed:
                member.changed.wait_for(lambda: member.waits or member.over or self._over(), GLANCE_S)  # noqa: B023

    def _drained(self, state: MembershipState, ends: dict[int, int]) -> bool:
        """Return whether everything up to these ends was handed out here, or acked elsewhere."""
        others = {number for number, end in ends.items() if number not in state.held and end}
        if any(held.next < ends.get(number, 0) for number, held in state.held.items()):
            return False
        return not others or all(
            info.cursor >= ends[info.partition] for info in self._infos() if info.partition in others
        )

    def _infos(self) -> list[ConsumerInfo]:
        found = self._transport.call("GET", ("consumers",), {"topic": self.topic}, repeat=True)
        return [info for info in _decode_infos(found.body) if info.name == self.name]

    def _state(self) -> MembershipState:
        """Return what it holds now."""
        over = self._closed or self._member.over or os.getpid() != self._pid
        state = None if over else self._looked(self._member)
        return state or MembershipState(0, False, False, 0, {})

    def _check_open(self) -> None:
        if self._closed or os.getpid() != self._pid:
            raise Closed(f"consumer {self.name!r} was closed")


def _of_another(event: Event, consumer: RemoteConsumer) -> Invalid:
    return Invalid(
        f"the event belongs to topic {event.topic!r}, but consumer {consumer.name!r} reads {consumer.topic!r}"
    )


def _full() -> Unavailable:
    return Unavailable(
        "the server sends no more events, as too many are not acked yet",
        hint="ack handled events; the limits are member_events_max and member_bytes_max of the server",
        code="too_many_unacked",
    )


def _let_go(memberships: list[Membership]) -> None:
    """End the membership of a consumer that was dropped without being closed; the server sees the connection end."""
    memberships[0].end()
