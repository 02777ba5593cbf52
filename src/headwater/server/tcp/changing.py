"""SUBSCRIBE to a binder: changes of its documents, as they come (docs/PROTOCOL.md, "Changes of documents").

The followers of a binder share one poll (server/changes.py); each reads separately, as fast as its client
acknowledges. Belongs to the loop's thread.
"""

from __future__ import annotations

from contextlib import aclosing
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from bson.int64 import Int64

from headwater.document import Change
from headwater.event import UNIX_EPOCH_TICKS
from headwater.format import protocol
from headwater.server.changes import Pieces
from headwater.server.scopes import binder_scope
from headwater.server.tcp.answers import response
from headwater.server.tcp.fields import FrameFields
from headwater.server.tcp.slots import AnswerSlot
from headwater.server.tcp.subscription import Frames, TcpSubscription, stopping

if TYPE_CHECKING:
    from headwater.server.tcp.connection import TcpConnection

NAMES = ("binder", "after")
EVERYTHING = ""  # the place before all documents
NOW = "latest"
TICKS_PER_MS = 10_000


async def subscribe(connection: TcpConnection, fields: FrameFields) -> AnswerSlot:
    """Follow a binder from a place, or from now on. The SUBRESPONSE tells where that is.

    Raises NotFound if there is no such binder, Invalid for a place that is none, Denied.
    """
    name, after = fields.text("binder", needed=True) or "", fields.text("after")
    for other in fields:
        if other not in NAMES:
            raise fields.wrong(f"has {other!r} and 'binder'", hint="a subscription to a binder takes only 'after'")
    await connection.require("SUBSCRIBE with binder", binder_scope(name))
    subscription = ChangeSubscription(connection)
    begin = NOW if after is None else None if after == EVERYTHING else after
    place, subscription.changes = await connection.service.changes.follow(name, begin, subscription.encode)
    return subscription.accepted()._replace(data=response("SUBRESPONSE", subID=subscription.id, place=place))


class ChangeSubscription(TcpSubscription):
    """A subscription to the documents of a binder."""

    changes: Pieces

    def __init__(self, connection: TcpConnection) -> None:
        super().__init__(connection)
        self._clock = connection.service.backend.clock
        self._encoded = self._sent = 0
        self._next_id = connection.subscribed + 1  # its future id, as no other can come first

    def encode(self, change: Change) -> bytes:
        """Return the RECEV of a change. In a worker's thread, for one after the other."""
        fields: dict[str, Any] = {
            "subID": self._next_id,
            "eventType": change.kind,
            "seqNo": Int64(self._encoded),
            "timestamp": Int64((self._clock.ticks() - UNIX_EPOCH_TICKS) // TICKS_PER_MS),
            "place": change.place,
        }
        if change.kind != "reset":
            fields["id"] = change.id
        if change.version is not None:
            fields["version"] = Int64(change.version)
        frame = protocol.encode("RECEV", {**fields, "event": change.data or {}})
        protocol.check_depth(frame[protocol.PREFIX.size :])
        self._encoded += 1
        return frame

    async def run(self) -> None:
        async with aclosing(self.changes) as pieces:
            async for frames in pieces:
                first, self._sent = self._sent, self._sent + len(frames)
                ends = list(accumulate(map(len, frames)))
                await self.send(Frames(b"".join(frames), ends, self.only, range(first, self._sent)))
        raise stopping()
