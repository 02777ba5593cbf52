"""SUBSCRIBE to a binder: changes of its documents, as they come (docs/PROTOCOL.md, "Changes of documents").

The followers of a binder share one poll (server/changes.py); each reads separately, as fast as its client
acknowledges. Belongs to the loop's thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from bson.int64 import Int64

from headwater.event import UNIX_EPOCH_TICKS
from headwater.format import protocol
from headwater.server.changes import Pieces
from headwater.server.rights import binder_scope
from headwater.server.tcp.frame_io import AnswerSlot
from headwater.server.tcp.frames import FrameFields, response
from headwater.server.tcp.subscription import Frames, TcpSubscription, stopping
from headwater.views.following import StoredChange

if TYPE_CHECKING:
    from headwater.server.tcp.connection import TcpConnection

NAMES = ("binder", "after")
EVERYTHING = ""  # the place before all documents
NOW = "latest"
TICKS_PER_MS = 10_000


async def subscribe(connection: TcpConnection, fields: FrameFields) -> AnswerSlot:
    """Follow a binder from a position, or from now on. The SUBRESPONSE has the position.

    Raises NotFound if there is no such binder, Invalid for a place that is none, Denied.
    """
    name, after = fields.text("binder", needed=True) or "", fields.text("after")
    for other in fields:
        if other not in NAMES:
            raise fields.wrong(f"has {other!r} and 'binder'", hint="a subscription to a binder takes only 'after'")
    await connection.require("SUBSCRIBE with binder", binder_scope(name))
    subscription = ChangeSubscription(connection)
    begin = NOW if after is None else None if after == EVERYTHING else after
    follow = connection.service.changes.follow
    place, subscription.changes = await follow(name, begin, subscription, subscription.encode, subscription.turn)
    return subscription.accepted()._replace(data=response("SUBRESPONSE", subID=subscription.id, place=place))


class ChangeSubscription(TcpSubscription):
    """A subscription to the documents of a binder."""

    changes: Pieces

    def __init__(self, connection: TcpConnection) -> None:
        super().__init__(connection)
        self._clock = connection.service.backend.clock
        self._sent = 0
        self._next_id = connection.subscribed + 1  # its future id, as no other can come first

    def encode(self, change: StoredChange, number: int) -> Callable[[], bytes]:
        """Return the encoder of the RECEV of a change. Runs in a worker thread."""
        fields: dict[str, Any] = {
            "subID": self._next_id,
            "eventType": change.kind,
            "seqNo": Int64(number),
            "timestamp": Int64((self._clock.ticks() - UNIX_EPOCH_TICKS) // TICKS_PER_MS),
            "place": change.place,
        }
        if change.kind != "reset":
            fields["id"] = change.id
        if change.version is not None:
            fields["version"] = Int64(change.version)
        return partial(_frame, fields, change)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[int]:
        """Wait until changes may be sent; return how many. None are held in memory for a slow client."""
        await self.has_room()  # before its turn: others need not wait for what its client acknowledges
        async with self.connection.out.turn:
            yield await self.has_room()

    async def run(self) -> None:
        async with aclosing(self.changes) as pieces:
            async for changes in pieces:
                first, self._sent = self._sent, self._sent + changes.number
                ends = list(accumulate(map(len, changes.whole)))
                numbers = range(first, self._sent)
                await self.send(Frames(b"".join(changes.whole), ends, self.only, numbers[: len(ends)]))
                if changes.large is not None:
                    await self.send(Frames(b"", (), self.only, numbers[-1:], changes.large))
        raise stopping()


def _frame(fields: dict[str, Any], change: StoredChange) -> bytes:
    data = change.load() or protocol.EMPTY
    protocol.check_depth(data, 3)
    return protocol.encode_around("RECEV", fields, "event", data)
