"""A client of server-sent events over a real socket, as the standard says, for tests.

    async with subscribed(url, "/api/events", last_event_id=None) as source:
        event = await source.next()          # id, event, data
        await source.until(lambda: len(source.events) >= 100)

`source.pause()` stops reading, as a slow client does. `source.ended` tells whether the answer was ended properly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

PATIENCE_S = 20.0


class Got(NamedTuple):
    """One event; `id` is the last that was said, as `lastEventId` is."""

    id: str
    event: str
    data: str
    at: float  # of the monotonic clock


class Source(asyncio.Protocol):
    """One subscription. What comes is parsed as it comes."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""  # of an answer that is no stream of events
        self.events: list[Got] = []
        self.comments = 0
        self.retry_ms = 0
        self.ended = False
        self.lost = False
        self.transport: asyncio.Transport
        self._buffer = b""
        self._text = b""
        self._block: list[str] = []
        self._in_body = self._chunked = False
        self._id = ""
        self._changed = asyncio.Event()
        self._taken = 0

    @property
    def ids(self) -> list[str]:
        """Of all events that have data; those about the stream itself are left out."""
        return [got.id for got in self.events if not got.event.startswith("headwater.")]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for events or the end until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            self._changed.clear()
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._changed.wait()

    async def until_events(self, count: int) -> None:
        await self.until(lambda: len(self.events) >= count)

    async def next(self) -> Got:
        """The next event that was not taken."""
        await self.until(lambda: len(self.events) > self._taken)
        self._taken += 1
        return self.events[self._taken - 1]

    def pause(self) -> None:
        self.transport.pause_reading()

    def resume(self) -> None:
        self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self.lost = True
        self._changed.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._in_body:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            self._in_body, self._buffer = True, rest
            first, *lines = head.decode("latin-1").split("\r\n")
            self.status = int(first.split()[1])
            self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            self._chunked = self.headers.get("transfer-encoding") == "chunked"
        if self._chunked:
            self._read_chunks()
        else:
            self.body += self._buffer
            self._buffer = b""
        self._changed.set()

    def _read_chunks(self) -> None:
        while not self.ended:
            size_line, found, rest = self._buffer.partition(b"\r\n")
            if not found:
                return
            size = int(size_line, 16)
            if len(rest) < size + 2:
                return
            assert rest[size : size + 2] == b"\r\n"
            self._buffer = rest[size + 2 :]
            if size == 0:
                self.ended = True
            self._text += rest[:size]
            *lines, self._text = self._text.split(b"\n")
            for line in lines:
                if line.startswith(b":"):
                    self.comments += 1
                elif line:
                    self._block.append(line.decode())
                else:
                    self._dispatch()

    def _dispatch(self) -> None:
        """End a block, which must be an event: some clients take any other for one."""
        event, data = "message", []
        block, self._block = self._block, []
        for line in block:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                self._id = value
            elif name == "event":
                event = value
            elif name == "data":
                data.append(value)
            elif name == "retry":
                self.retry_ms = int(value)
            else:
                raise AssertionError(f"a field that nobody knows: {line!r}")
        assert data, f"a block without data: {block}"
        if event == "headwater.begin":  # which says where the changes of a binder begin
            return
        self.events.append(Got(self._id, event, "\n".join(data), time.monotonic()))


@asynccontextmanager
async def subscribed(
    url: str, target: str, *, last_event_id: str | None = None, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Source]:
    """A subscription for the time of a block. It is given once the answer has begun."""
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    loop = asyncio.get_running_loop()
    _, source = await loop.create_connection(Source, address.hostname, address.port)
    wanted = {"Host": address.netloc, "Accept": "text/event-stream", **(headers or {})}
    if last_event_id is not None:
        wanted["Last-Event-ID"] = last_event_id
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in wanted.items()), "", ""]
    source.transport.write("\r\n".join(lines).encode())
    try:
        await source.until(lambda: source.status != 0 or source.lost)
        yield source
    finally:
        source.transport.abort()
