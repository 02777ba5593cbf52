"""A subscription: sends frames as events arrive, as fast as the client reads and acknowledges them.

    subscription = Topic(connection, ...)        a kind of it: `run` sends, with `await self.send(frames)`
    return subscription.accepted()               the Answer to SUBSCRIBE; it streams when that is written

It ends when its client says so or is gone (`close`), or by itself (`end`, which tells the client why with SUBEND).
Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headwater.errors import HeadwaterError, Invalid, NotFound, Unavailable
from headwater.format import protocol
from headwater.server.tcp.acks import AckedRange, ConnectionPart, UnackedEvents
from headwater.server.tcp.frame_io import AnswerSlot
from headwater.server.tcp.frames import response, told

if TYPE_CHECKING:
    from headwater.server.tcp.connection import TcpConnection
    from headwater.server.tcp.frames import FrameFields

_log = logging.getLogger("headwater.server")


class Frames(NamedTuple):
    """RECEV frames of one partition: their bytes, where each ends, and the offset of each event.

    The frame of a huge event has no bytes here: `huge` gives them, piece by piece.
    """

    data: bytes
    ends: Sequence[int]
    partition: int
    offsets: Sequence[int]
    huge: Iterator[bytes] | None = None


class TcpSubscription(ConnectionPart):
    """The base of all subscriptions: a subID, unacknowledged events, and an end.

    `several` means that there are several partitions, so an acknowledgement must name one.
    """

    several = False
    awaits = False  # its topic did not exist when it was accepted
    topic = ""

    def __init__(self, connection: TcpConnection) -> None:
        """Raises Unavailable with the code `too_many` if the connection has the maximum number."""
        check_number(connection)
        self.id = 0  # until it is accepted
        self.connection = connection
        self.unacked = UnackedEvents(connection.limits.subscription_unacked_max)
        self.closed = False
        self._task: asyncio.Task[None] | None = None
        self._news: asyncio.Future[None] | None = None  # what `run` waits for: an acknowledgement

    # For subclasses to implement

    async def open(self) -> None:
        """Find the first event; raises NotFound for a missing topic, and other errors of the request."""

    async def run(self) -> None:
        """Send events until the subscription ends. An exception ends it, and is sent to the client."""

    def acked(self, acked: AckedRange) -> None:
        """Process newly acknowledged events."""

    # For the handler

    def accepted(self) -> AnswerSlot:
        """Return the response to SUBSCRIBE; the subscription begins when it is written. Await nothing after this."""
        self.connection.subscribed += 1
        self.id = self.connection.subscribed
        self.connection.parts["ACKEV", self.id] = self
        self.connection.service.metrics.live.subscribers += 1
        return AnswerSlot(response("SUBRESPONSE", subID=self.id), self.begin)

    async def unsubscribe(self, *, delete: bool) -> None:
        """End the subscription, and with `delete`, delete it. Nothing is sent after this."""
        if delete:
            raise Invalid(
                f"subscription {self.id} is not durable: there is nothing to delete",
                hint="send UNSUBSCRIBE without 'delete'",
                code="not_durable",
            )
        self.close()

    # Sending

    def begin(self) -> None:
        """Begin to send: the response to SUBSCRIBE is written."""
        if not self.closed:
            self._task = self.connection.loop.create_task(self._run())

    async def arrive(self) -> None:
        """Wait until the topic exists, and open it; raises Denied if the user has lost the right meanwhile."""
        while True:
            await self.connection.service.arrivals.wait(self.topic)
            await self.connection.require("SUBSCRIBE", self.topic)
            try:
                await self.open()
            except NotFound as error:
                if error.code != "topic_not_found":
                    raise
                continue  # it was deleted again
            return

    async def send(self, frames: Frames) -> None:
        """Send frames, as many at a time as may be unacknowledged and the connection has room for."""
        at, count, ends, live = 0, len(frames.offsets), frames.ends, self.connection.service.metrics.live
        begin = 0
        if frames.huge is not None:
            await self.has_room()
            self.unacked.add(frames.partition, frames.offsets)
            live.events += 1
            await self.connection.out.send_huge(frames.huge)
            return
        while at < count:
            to = min(count, at + await self.has_room())
            end = ends[to - 1]
            self.unacked.add(frames.partition, frames.offsets[at:to])
            self.connection.out.write(frames.data[begin:end])
            live.events += to - at
            live.bytes += end - begin
            at, begin = to, end

    async def has_room(self) -> int:
        """Wait until events may be sent; return how many."""
        while True:
            await self.connection.out.room()
            room = self.unacked.room
            if room:
                return room
            self._news = self.connection.loop.create_future()
            await self._news

    def acknowledge(self, fields: FrameFields) -> None:
        """Process an ACKEV. Events in it that were not sent are ignored."""
        offset = fields.integer("seqNo", least=-1)
        partition = fields.integer("partition", most=(1 << 31) - 1)
        if offset is None:
            found = self.unacked.one()
        elif partition is None and self.several:
            raise fields.wrong("needs 'partition' with 'seqNo'", hint="the subscription has several partitions")
        else:
            found = self.unacked.upto(self.only if partition is None else partition, offset)
        if found is not None:
            self.acked(found)
            news, self._news = self._news, None
            if news is not None and not news.done():
                news.set_result(None)

    only = 0  # the partition, where there is one

    async def _run(self) -> None:
        try:
            await self.run()
        except HeadwaterError as error:
            self.end(error)
        except Exception as bug:  # noqa: BLE001  # a bug of ours must be heard of at the other end
            _log.exception("a subscription failed")
            self.end(bug)

    # Ending

    def end(self, error: BaseException) -> None:
        """End the subscription with an error, which is sent to the client."""
        if not self.closed:
            metrics = self.connection.service.metrics
            if isinstance(error, HeadwaterError):
                metrics.failed(error.code)
                metrics.live.gaps += error.code == "offset_gone"
            self.connection.out.write(protocol.encode("SUBEND", {"subID": self.id, **told(error)}))
            self.close()

    def stop(self) -> None:
        self.end(stopping())

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.connection.parts.pop(("ACKEV", self.id), None) is not None:
                self.connection.service.metrics.live.subscribers -= 1
            if self._task is not None and self._task is not asyncio.current_task():
                self._task.cancel()


def find(connection: TcpConnection, id: int) -> TcpSubscription:
    """Return the subscription of a connection that has this subID; raises NotFound."""
    part = connection.parts.get(("ACKEV", id))
    if not isinstance(part, TcpSubscription):
        raise NotFound(f"no such subscription: {id}", hint="it may have ended", code="subscription_not_found")
    return part


def check_number(connection: TcpConnection) -> None:
    """Raise Unavailable if the connection has the maximum number of subscriptions."""
    most = connection.limits.subscriptions_max
    if sum(isinstance(part, TcpSubscription) for part in connection.parts.values()) >= most:
        raise Unavailable(
            f"a connection may have at most {most} subscriptions",
            hint="end one, or open another connection",
            code="too_many",
            limit="subscriptions_max",
            maximum=most,
        )


def stopping() -> Unavailable:
    """Return the error for clients when the server is stopping."""
    return Unavailable("the server is stopping", hint="connect again soon", code="stopping")
