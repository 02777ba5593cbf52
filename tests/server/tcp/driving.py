"""A connection without a socket: its transport is ours, and keeps the rules that sockets have."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import bson

from headwater.errors import Denied
from headwater.limits import SERVER_DEFAULTS, ServerLimits
from headwater.opening import open_directory
from headwater.server.connections import Connections
from headwater.server.http.app import HttpApplication
from headwater.server.http.message import Client
from headwater.server.metrics import CountingDisk, Metrics
from headwater.server.rights import EVERYONE, User
from headwater.server.service import Service
from headwater.server.settings import ServerSettings
from headwater.server.tcp.connection import TcpConnection
from headwater.server.tcp.handlers import Handler
from headwater.store import Store

WAIT_S = 20.0


class Forgetful:
    """An access that lets everyone do everything, but often does not know that without waiting."""

    authenticates = True
    challenge = ""

    def __init__(self) -> None:
        self.known_each = 1  # every so many times
        self.removed = False
        self._asked = 0

    def known(self, headers: Mapping[str, str], client: Client) -> User | None:
        del headers, client
        self._asked += 1
        return EVERYONE if self._asked % self.known_each == 0 and not self.removed else None

    def check(self, headers: Mapping[str, str], client: Client) -> User:
        del headers, client
        if self.removed:
            raise Denied("you are not known here", code="unauthenticated")
        return EVERYONE


class _Socket:
    """What is told of keep-alive."""

    def setsockopt(self, *_: int) -> None:
        pass


class Transport(asyncio.Transport):
    """A transport that keeps what is written, and takes `room` bytes at once."""

    def __init__(self, room: int | None = None) -> None:
        super().__init__()
        self.written = bytearray()
        self._reading = True
        self.sent_end = False
        self._aborted = False
        self.closed = False
        self._room = room
        self._waiting = 0
        self._protocol: Any = None

    def attach(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        assert not self.sent_end, "written after the end"
        if self.closed:
            return
        self.written += data
        self._waiting += len(data)
        if self._room is not None and self._waiting > self._room >= self._waiting - len(data):
            self._protocol.pause_writing()
            asyncio.get_running_loop().call_later(0.001, self.drain)

    def drain(self) -> None:
        self._waiting = 0
        if not self.closed:
            self._protocol.resume_writing()

    def answers(self) -> list[tuple[str, dict[str, Any]]]:
        """The whole frames that were written."""
        found, at, written = [], 0, bytes(self.written)
        while at < len(written):
            (size,) = struct.unpack_from(">I", written, at)
            whole = bson.decode(written[at + 4 : at + 4 + size])
            found.append((whole["type"], whole["frame"]))
            at += 4 + size
        return found

    @property
    def over(self) -> bool:
        return self.closed or self.sent_end

    def is_reading(self) -> bool:
        return self._reading

    def was_aborted(self) -> bool:
        return self._aborted

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self._aborted = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "socket": _Socket()}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return max(1, self._waiting)  # so that only the loop writes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        assert self._reading
        self._reading = False

    def resume_reading(self) -> None:
        assert not self._reading
        self._reading = True

    def write_eof(self) -> None:
        self.sent_end = True


class Driven:
    """A log, served to transports of ours, in a loop that runs when it is told to."""

    def __init__(self, runner: asyncio.Runner, engine: Store, limits: ServerLimits) -> None:
        self.runner = runner
        self.engine = engine
        self.access = Forgetful()
        self.connections = runner.run(self._open(limits))
        self.loop = runner.get_loop()

    async def _open(self, limits: ServerLimits) -> Connections:
        self.store = Service(self.engine, self.access, ServerSettings(limits=limits), Metrics(CountingDisk()))
        return Connections(HttpApplication(self.store), asyncio.get_running_loop())

    async def close(self) -> None:
        self.connections.abort()
        await self.store.close()

    @contextlib.contextmanager
    def connection(
        self, handlers: dict[str, Handler] | None = None, room: int | None = None
    ) -> Iterator[tuple[TcpConnection, Transport]]:
        """A connection, which is lost at the end if it was not before."""
        transport = Transport(room)
        connection = TcpConnection(self.connections, handlers or {})
        transport.attach(connection)
        try:
            yield connection, transport
        finally:
            transport.closed = True
            if connection in self.connections.open:
                connection.connection_lost(None)


@contextlib.contextmanager
def driving(path: Path, limits: ServerLimits = SERVER_DEFAULTS) -> Iterator[Driven]:
    with asyncio.Runner() as runner, open_directory(path, durability="os") as engine:
        made = Driven(runner, engine, limits)
        try:
            yield made
        finally:
            runner.run(made.close())
