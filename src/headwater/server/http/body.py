"""Buffers the body of a request between the connection that receives it and the handler that reads it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.server.http.protocol import ServerConnection


class Body:
    """The body of one request on its way in."""

    __slots__ = (
        *("connection", "dropped", "expected", "failure", "pieces", "received", "size", "taken", "waiter", "whole"),
    )

    def __init__(self, connection: ServerConnection, whole: bytes | None = None) -> None:
        """`whole` is all of it, if it has arrived with its head."""
        self.connection = connection
        self.pieces: list[bytes] = [whole] if whole else []
        self.received = self.size = len(whole or b"")  # in all; and of the pieces that wait, or were thrown away
        self.whole = whole is not None
        self.taken = False  # whether its request has begun to be answered, or waits for that
        self.dropped = False  # whether the request was answered without it
        self.expected = False  # whether the client waits for a word before it sends
        self.failure: BaseException | None = None
        self.waiter: asyncio.Future[None] | None = None

    async def receive(self) -> bytes:
        """Return the next piece; b"" at the end."""
        while not self.pieces:
            if self.failure is not None:
                raise self.failure
            if self.whole:
                return b""
            waiter = self.waiter = self.connection.loop.create_future()
            self.connection.more_wanted(self)
            await waiter
        piece = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)  # they are parsed in small slices
        self.pieces.clear()
        self.size = 0
        return piece

    def drop(self) -> None:
        """Throw away what has come of it, and what will."""
        self.dropped = True
        self.pieces.clear()
        self.size = 0

    def put(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.dropped:
            return
        self.pieces.append(piece)
        self.received += len(piece)
        if self.waiter is not None:
            self._wake()

    def end(self) -> None:
        self.whole = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        if not self.whole and self.failure is None:
            self.failure = error
        self._wake()

    def _wake(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
