"""Durable subscriptions: members of a consumer of that name, which live as long as their connections.

One connection of a server has a durable subscription at a time; between servers, and programs that open the directory,
the leases of consumers decide. A closed connection or a killed server does not count as a failure: unacknowledged
events are delivered again without limit.

The member's thread reads and encodes; everything else belongs to the loop's thread, unless it says otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from headwater.errors import Conflict, HeadwaterError, NotFound
from headwater.event import Event
from headwater.position import Position
from headwater.server.member import Formats, MemberOwner, RemoteMember
from headwater.server.tcp import recev
from headwater.server.tcp.acks import AckedRange
from headwater.server.tcp.subscription import TcpSubscription, stopping

if TYPE_CHECKING:
    from headwater.server.tcp.connection import TcpConnection

NEVER = 1 << 30  # failures before an event is dead-lettered: in effect, never
HELD_S = 0.25  # how long to wait for the owning connection to end: its client may have closed it
LEAVE_S = 15.0  # how long to wait for an owner that is leaving: it stores acknowledgements, and may wait for a lock


class Owner:
    """The connection that owns a durable subscription. `left` is set when it is released."""

    def __init__(self, connection: TcpConnection, key: tuple[str, str]) -> None:
        self.connection = connection
        self.leaving = False
        self.left = asyncio.Event()
        self._key = key

    def release(self) -> None:
        if not self.left.is_set():
            self.left.set()
            del self.connection.service.durable[self._key]


async def owned(
    connection: TcpConnection, topic: str, name: str, user: str, start: Position, selection: dict[str, Any]
) -> DurableSubscription:
    """Return a durable subscription that this connection owns, not yet open. `start` is for a new one.

    Raises Conflict with the code `subscription_held` if another connection of this server has it.
    """
    owner = await _own(connection, (topic, name))
    try:
        options = {"start": start, "failures_max": NEVER, **selection}
        return DurableSubscription(connection, owner, topic, name, user, options)
    except HeadwaterError:
        owner.release()
        raise


async def _own(connection: TcpConnection, key: tuple[str, str]) -> Owner:
    """Become the owner, when the previous one has left."""
    owners: dict[tuple[str, str], Owner] = connection.service.durable
    while key in owners:
        other = owners[key]
        wait_s = LEAVE_S if other.leaving else HELD_S if other.connection is not connection else 0.0
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(other.left.wait(), wait_s)
        if owners.get(key) is other and (not other.leaving or wait_s == LEAVE_S):
            raise Conflict(
                f"the durable subscription {key[1]!r} of topic {key[0]!r} is held by another connection",
                hint="wait until that connection closes or unsubscribes",
                code="subscription_held",
            )
    owner = owners[key] = Owner(connection, key)
    return owner


class DurableSubscription(TcpSubscription):
    """A durable subscription: a member of a consumer, and the sink that it writes to."""

    def __init__(
        self, connection: TcpConnection, owner: Owner, topic: str, name: str, user: str, options: dict[str, Any]
    ) -> None:
        """`options` are those of `Store.consumer`."""
        super().__init__(connection)
        self.topic = topic
        self.name = name
        self._user = user
        self._options = options
        self._joining = False
        self.formats = Formats("", self._encode, b"", self._fail)
        self.bound = MemberOwner(connection.limits.subscription_unacked_max, self._settle)
        self._owner = owner
        self._member: RemoteMember | None = None
        self._encoded: deque[tuple[recev.EventFrames, int]] = deque()  # with the fence; from the member's thread
        self._failure: HeadwaterError | None = None  # why the member left; the same
        self._acked: deque[AckedRange] = deque()  # to be told to the consumer
        self._settling = threading.Lock()  # held while that is done, maybe with I/O: never taken by the loop's thread
        self._asked = False  # whether a thread will do so
        self._sending: asyncio.Task[None] | None = None  # a huge frame; kept so that it is not lost

    async def open(self) -> None:
        """Join the consumer, which creates it durably if it is new; raises as `Store.consumer`."""
        service, options = self.connection.service, self._options
        if self.awaits and options["start"] == "latest":
            options = {**options, "start": "earliest"}  # there was nothing when it was asked for
        self.several = len((await service.blocking(service.store.describe, self.topic)).partitions) > 1
        who = self._user, self.name, self.topic, self.formats
        joining = asyncio.ensure_future(service.blocking(service.members.join, *who, bound=self.bound, **options))
        self._joining = True
        try:
            self._member = await asyncio.shield(joining)
        except asyncio.CancelledError:  # the client has gone, and the thread joins nevertheless
            joining.add_done_callback(self.joined_too_late)
            raise
        except BaseException:
            self._joining = False
            raise
        self._joining = False

    def joined_too_late(self, joining: asyncio.Future[RemoteMember]) -> None:
        """Leave the consumer: the client disconnected while it was being joined."""
        self._joining = False
        if not joining.cancelled() and joining.exception() is None:
            self._member = joining.result()
        self.close()

    # Sending

    def begin(self) -> None:
        if self.closed:
            return
        if self._member is not None:
            self._member.begin(_Sink(self))
        elif self.awaits:
            super().begin()

    async def run(self) -> None:
        """Wait for the topic, then begin."""
        await self.arrive()
        self.begin()

    def resume(self) -> None:
        if self._member is not None:
            self._member.resume()

    def flush(self) -> bool:
        """Send the frames that the member has encoded; False if the buffer is full."""
        connection, live = self.connection, self.connection.service.metrics.live
        while self._encoded and not self.closed:
            encoded, fence = self._encoded.popleft()
            for frames in encoded.frames:
                self.unacked.add(frames.partition, frames.offsets, fence)
                if frames.huge is not None:
                    self._sending = connection.loop.create_task(connection.out.send_huge(frames.huge))
                connection.out.write(frames.data)
                live.events += len(frames.offsets)
                live.bytes += len(frames.data)
            if encoded.error is not None:
                self.end(encoded.error)
        return connection.out.write(b"") and not self.closed

    def acked(self, acked: AckedRange) -> None:
        self._acked.append(acked)
        if not self._asked:
            self._asked = True
            self.connection.service.later(self._settle)

    # Ending

    async def unsubscribe(self, *, delete: bool) -> None:
        """End the subscription. Stores acknowledgements before it returns, or deletes the consumer. Raises Denied."""
        if delete:
            await self.connection.require("UNSUBSCRIBE with delete", self.topic)
        self.close()
        await self._owner.left.wait()
        if delete:
            with contextlib.suppress(NotFound):
                service = self.connection.service
                await service.blocking(service.store.forget, self.name, self.topic)

    def close(self) -> None:
        super().close()
        member, self._owner.leaving = self._member, True
        if member is None:
            if not self._joining:  # else it is left when it has joined
                self._owner.release()
        elif not self._owner.left.is_set():
            member.begin(_Sink(self))  # if it was not begun: it tells its sink when it has left
            member.leave()

    def left(self) -> None:
        """Release the subscription: the member has left, and all acknowledgements are stored."""
        self._owner.release()
        self.end(self._failure or stopping())

    # In other threads

    def _encode(self, events: Sequence[Event], in_memory: int) -> Iterator[bytes]:
        """Encode the next events of the member, huge ones one by one. Runs in its thread."""
        del in_memory  # a frame has a limit of its own
        assert self._member is not None
        fence = self._member.consumer.fences.get(events[0].partition, 0)
        for huge, some in groupby(events, _is_huge):
            for run in ([each] for each in some) if huge else [list(some)]:
                self._encoded.append((recev.encode_events(self.id, run, self.connection.limits.frame_bytes_max), fence))
                yield b""

    def _fail(self, error: HeadwaterError) -> bytes:
        """End the member because of an error. Runs in its thread."""
        self._failure = error
        return b""

    def _settle(self) -> None:
        """Pass acknowledgements to the consumer. Runs in any thread but the loop's."""
        if self._member is None:
            return
        with self._settling:
            self._asked = False
            last: dict[tuple[int, int], int] = {}
            while self._acked:
                acked = self._acked.popleft()
                last[acked.partition, acked.fence] = acked.offset
            for (partition, fence), offset in last.items():
                try:
                    self._member.consumer.ack_to((partition, offset), fence)
                except HeadwaterError as error:
                    with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                        self.connection.loop.call_soon_threadsafe(self.end, error)
                self._member.done(partition, 0, offset + 1)


def _is_huge(event: Event) -> bool:
    return event.data is None


class _Sink:
    """The sink of a member. It is given frames with the offsets of their events, not plain bytes."""

    def __init__(self, subscription: DurableSubscription) -> None:
        self._subscription = subscription

    def write(self, chunk: bytes) -> bool:
        del chunk
        return self._subscription.flush()

    def write_framed(self, chunk: bytes, framed: bytes) -> bool:
        del framed
        return self.write(chunk)

    def end(self) -> None:
        self._subscription.left()
