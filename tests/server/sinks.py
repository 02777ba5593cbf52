"""Sinks for streams, and a form that is easy to read back: for tests of delivery without HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

from headwater.errors import HeadwaterError
from headwater.format.events import EventBatch
from headwater.log.topic_cursor import Gap, Offsets
from headwater.server.feeds import Feeds
from headwater.server.metrics import LiveMeter
from headwater.server.settings import ServerSettings
from headwater.store import Store

PATIENCE_S = 20.0


class Lines:
    """A form of one line an event: `partition offset data`."""

    key = "lines"
    opening = b""
    first = b""
    heartbeat = b"beat\n"

    def __init__(self) -> None:
        self.encoded = 0  # batches, in any thread

    def encode(self, batches: Sequence[EventBatch], before: Offsets) -> Iterator[bytes]:
        del before
        self.encoded += len(batches)
        lines = [
            b"%d %d %b\n" % (event.partition, event.offset, (event.data or b"").replace(b"\n", b" "))
            for batch in batches
            for event in batch.events()
        ]
        yield b"".join(lines)

    def gap(self, gap: Gap, before: Offsets, last_id: UUID | None) -> bytes:
        del before, last_id
        return b"gap %d\n" % gap.oldest

    def failure(self, error: HeadwaterError) -> bytes:
        return f"failed {error.code}\n".encode()


class Collector:
    """A sink that keeps what it gets. `room` is how much it takes before it is full; None never is."""

    def __init__(self, room: int | None = None) -> None:
        self.data = bytearray()
        self.room = room
        self.untaken = 0
        self.most = 0  # that it ever held untaken
        self.ended = 0
        self.stream: Any = None
        self._changed = asyncio.Event()

    def write(self, chunk: bytes) -> bool:
        assert not self.ended, "a stream was written to after its end"
        self.data += chunk
        self.untaken += len(chunk)
        self.most = max(self.most, self.untaken)
        self._changed.set()
        return self.room is None or self.untaken < self.room

    def write_framed(self, chunk: bytes, framed: bytes) -> bool:
        assert framed == b"%x\r\n%b\r\n" % (len(chunk), chunk)
        return self.write(chunk)

    def end(self) -> None:
        self.ended += 1
        self._changed.set()

    def drain(self) -> None:
        """Take all that waits, as a client does that reads again."""
        self.untaken = 0
        self.stream.resume()

    @property
    def lines(self) -> list[str]:
        return bytes(self.data).decode().splitlines()

    @property
    def offsets(self) -> list[int]:
        """Of the first partition."""
        return [int(line.split()[1]) for line in self.lines if line.startswith("0 ")]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what is written, or for the end, until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            self._changed.clear()
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._changed.wait()

    async def until_offset(self, offset: int) -> None:
        """Wait for an event of the first partition, which is short."""
        await self.until(lambda: b"\n0 %d " % offset in b"\n" + self.data[-500:])

    async def until_longer(self, size: int) -> None:
        await self.until(lambda: len(self.data) > size)

    async def until_end(self) -> None:
        await self.until(lambda: self.ended == 1)

    async def until_lines(self, count: int) -> None:
        await self.until(lambda: self.data.count(b"\n") >= count)


@asynccontextmanager
async def feeding(engine: Store, settings: ServerSettings | None = None) -> AsyncIterator[Feeds]:
    """Feeds as a store makes them."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(4) as threads:

        async def blocking(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return await loop.run_in_executor(threads, partial(function, *args, **kwargs))

        feeds = Feeds(engine.directory, blocking, loop, settings or ServerSettings(), LiveMeter())
        try:
            yield feeds
        finally:
            feeds.close()


async def begin(feeds: Feeds, topic: str, sink: Collector, form: Lines | None = None, **options: Any) -> Any:
    """Subscribe, and let it write to the sink."""
    stream = await feeds.subscribe(topic, form or Lines(), **options)
    sink.stream = stream
    stream.begin(sink)
    return stream
