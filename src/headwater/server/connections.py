"""All connections of a server, of either protocol: their number, their deadlines, and their end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from headwater.server import tls
from headwater.server.http.message import Client

if TYPE_CHECKING:
    from headwater.server.http.app import HttpApplication

SWEEP_S = 1.0
DECODING_MAX = 2  # large frames that are decoded at once: each wants the interpreter, as the loop does


class AnyConnection(Protocol):
    """The interface of a connection of either protocol."""

    deadline: float

    def expire(self) -> None:
        """Its time is over."""
        ...

    def stop(self) -> None:
        """End when what was asked is answered."""
        ...

    def abort(self) -> None:
        """End now."""
        ...


class Connections:
    """All connections of a server: counts them, checks their deadlines, closes them."""

    def __init__(self, app: HttpApplication, loop: asyncio.AbstractEventLoop) -> None:
        self.app = app
        self.service = app.service
        self.limits = app.service.limits
        self.loop = loop
        self.open: set[AnyConnection] = set()
        self.stopping = False
        self.decoding = asyncio.Semaphore(DECODING_MAX)
        self._timer = loop.call_later(SWEEP_S, self._sweep)

    @property
    def full(self) -> bool:
        """Return whether there can be no more."""
        return self.stopping or len(self.open) >= self.limits.connections_max

    def accept(self, connection: AnyConnection, transport: asyncio.BaseTransport) -> Client | None:
        """Count a new connection, and tell who is at its other end; None if there can be no more."""
        metrics = self.service.metrics
        if self.full:
            metrics.connections_refused += 1
            return None
        self.open.add(connection)
        metrics.connections += 1
        metrics.connections_accepted += 1
        peer = transport.get_extra_info("peername")
        secure = transport.get_extra_info("ssl_object")
        return Client(
            str(peer[0]) if isinstance(peer, tuple) else "",
            secure=secure is not None,
            certificate=tls.subject(secure) if secure is not None else None,
        )

    def forget(self, connection: AnyConnection) -> None:
        """It has ended."""
        if connection in self.open:
            self.open.remove(connection)
            self.service.metrics.connections -= 1

    def stop(self) -> None:
        """Answer what was asked, end streams properly, and take no more requests."""
        self.stopping = True
        for connection in list(self.open):
            connection.stop()

    def abort(self) -> None:
        """End all connections now."""
        self._timer.cancel()
        for connection in list(self.open):
            connection.abort()

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in [each for each in self.open if each.deadline < now]:
            connection.expire()
        self._timer = self.loop.call_later(SWEEP_S, self._sweep)
