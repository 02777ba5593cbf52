"""All connections of a server: their number, their deadlines, and their end."""

from __future__ import annotations

import asyncio

from headwater.limits import ServerLimits
from headwater.server.http.app import App
from headwater.server.http.protocol import Connection

SWEEP_S = 1.0


class Connections:
    """All connections of a server: their number, their deadlines, their end."""

    def __init__(self, app: App, limits: ServerLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.app = app
        self.limits = limits
        self.loop = loop
        self.open: set[Connection] = set()
        self.stopping = False
        self._timer = loop.call_later(SWEEP_S, self._sweep)

    def __call__(self) -> Connection:
        """A new one, for `loop.create_server`."""
        return Connection(self)

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
