"""Live changes of binders: one poll of each binder for all followers, and a read for each follower on a change.

SQLite does not notify other processes of a commit, so one task polls each followed binder every few milliseconds, in
a worker thread. A large document is encoded as it is sent (wire/encodings.py). Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import chain
from typing import NamedTuple

from headwater.errors import Closed, HeadwaterError
from headwater.server.channels import Blocking
from headwater.server.settings import ServerSettings
from headwater.server.wire.encodings import slices
from headwater.views.binder import LocalBinder
from headwater.views.following import DocumentChanges, StoredChange
from headwater.views.local_views import LocalViews

LOOK_S = 0.02  # between two looks at a binder that is followed
PIECE_BYTES = 64 * 1024  # of changes that a stream writes at once

Encode = Callable[[StoredChange, int], Callable[[], bytes]]
"""Takes a change and its number in the stream, from 0. Each call of what it returns returns the same bytes."""


class EncodedChanges(NamedTuple):
    """Some changes, each as bytes. `large` is the last of them if it is large: its bytes, as they are needed."""

    whole: list[bytes]
    large: Iterator[bytes] | None = None

    @property
    def number(self) -> int:
        """Return the number of changes."""
        return len(self.whole) + (self.large is not None)


Pieces = AsyncGenerator[EncodedChanges, None]
Turn = Callable[[], AbstractAsyncContextManager[int]]  # when there is room for changes, and for how many


@asynccontextmanager
async def _at_once() -> AsyncIterator[int]:
    yield sys.maxsize


class ChangeFeeds:
    """All followers of binders on one server."""

    def __init__(
        self,
        views: LocalViews,
        blocking: Blocking,
        loop: asyncio.AbstractEventLoop,
        settings: ServerSettings,
    ) -> None:
        self.closed = False
        self._views = views
        self._blocking = blocking
        self._loop = loop
        self._heartbeat_s = settings.heartbeat_s
        self._watches: dict[str, _Watch] = {}

    async def follow(
        self, name: str, after: str | None, form: Hashable, encode: Encode, turn: Turn = _at_once
    ) -> tuple[str, Pieces]:
        """Return where it begins, and the encoded changes from there, then those that come, some at a time.

        None at a time shows that it is alive. As `Binder.follow`; changes are encoded in a worker's thread. `form`
        names what `encode` does: followers with equal ones share the bytes of large changes. What is read within a
        `turn` is sent within it. Raises NotFound if there is no such binder, Invalid for a place that is none. It ends
        when the server stops.
        """
        if self.closed:
            raise Closed("the server is stopping", code="stopping")
        binder = self._views.binder(name)
        reading = _ChangeCursor(binder, after, form, encode)
        begins = await self._blocking(reading.begin)  # raises what is to be told before the answer begins
        return begins, self._follow(reading, turn)

    def close(self) -> None:
        """End all streams properly. May be called twice."""
        self.closed = True
        for watch in list(self._watches.values()):
            watch.close()

    async def _follow(self, reading: _ChangeCursor, turn: Turn) -> Pieces:
        watch = self._join(reading.binder)
        try:
            while not self.closed:
                seen = watch.news  # before it reads: whatever comes later is news
                more = True
                while more and not self.closed:
                    async with turn() as room:
                        some = await self._blocking(reading.more, room)
                        more = some.number > 0
                        if more:
                            yield some
                        del some
                if not await watch.wait(seen, self._heartbeat_s) and not self.closed:
                    yield EncodedChanges([])
        finally:
            reading.stop()
            self._leave(watch)

    def _join(self, binder: LocalBinder) -> _Watch:
        watch = self._watches.get(binder.name)
        if watch is None:
            watch = self._watches[binder.name] = _Watch(binder, self._blocking, self._loop)
        watch.followers += 1
        return watch

    def _leave(self, watch: _Watch) -> None:
        watch.followers -= 1
        if not watch.followers:
            watch.close()
            self._watches.pop(watch.name, None)


class _Watch:
    """Polls one binder for all its followers. `news` grows with each commit that it sees."""

    def __init__(self, binder: LocalBinder, blocking: Blocking, loop: asyncio.AbstractEventLoop) -> None:
        self.name = binder.name
        self.followers = 0
        self.news = 0
        self._place = partial(_latest, binder)
        self._blocking = blocking
        self._waiting: set[asyncio.Future[bool]] = set()
        self._loop = loop
        self._closed = False
        self._task = loop.create_task(self._look())

    async def wait(self, seen: int, timeout_s: float) -> bool:
        """Wait until there are more news than were seen; False if nothing came in time."""
        if self.news != seen or self._closed:
            return True
        waiter: asyncio.Future[bool] = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, _settle, waiter, False)
        self._waiting.add(waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiting.discard(waiter)

    def close(self) -> None:
        """Wake all who wait, and look no more."""
        self._closed = True
        self._wake()
        self._task.cancel()

    async def _look(self) -> None:
        before: str | None = None
        while True:
            try:
                place = await self._blocking(self._place)
            except HeadwaterError:
                place = None  # those who follow it meet the error when they read
            if place is None or place != before:
                self._wake()
            before = place
            await asyncio.sleep(LOOK_S)

    def _wake(self) -> None:
        self.news += 1
        for waiter in self._waiting:
            _settle(waiter, True)


def _settle(waiter: asyncio.Future[bool], value: bool) -> None:
    if not waiter.done():
        waiter.set_result(value)


def _latest(binder: LocalBinder) -> str:
    """Return the place of the last commit."""
    with binder.follow(after="latest", timeout=0) as following:
        return following.place


class _ChangeCursor:
    """The position of one stream. Its reads run one after the other, in worker threads."""

    def __init__(self, binder: LocalBinder, after: str | None, form: Hashable, encode: Encode) -> None:
        self.binder = binder
        self._after = after
        self._form = form
        self._encode = encode
        self._encoded = 0
        self._found: DocumentChanges | None = None
        self._stopped = False

    def begin(self) -> str:
        """Return the place where it begins; raises what is wrong with that, or with what is read first.

        Nothing is kept of that: it may be long before there is room for it.
        """
        with self.binder.follow(after=self._after, timeout=0) as found:
            self._after = place = found.place
            size = 0
            while size < PIECE_BYTES and (change := found.take()) is not None and change.large is None:
                size += len(self._encode(change, 0)())
        return place

    def more(self, most: int) -> EncodedChanges:
        """Return some of the changes that are there, at most so many.

        A large one must be sent, or given up, before this is called again.
        """
        pieces: list[bytes] = []
        if self._stopped:
            return EncodedChanges(pieces)
        if self._found is None:
            self._found = self.binder.follow(after=self._after, timeout=0)
        size = 0
        while size < PIECE_BYTES and len(pieces) < most:
            change = self._found.take()
            if change is None:
                self._after, self._found = self._found.place, None
                break
            self._after = change.place
            encode = self._encode(change, self._encoded)
            self._encoded += 1
            if change.large is not None:
                large = slices((self._form, change.place, change.large.key), encode)
                first = next(large)  # raises what keeps it from being sent
                return EncodedChanges(pieces, chain((first,), large))
            pieces.append(encode())
            size += len(pieces[-1])
        return EncodedChanges(pieces)

    def stop(self) -> None:
        """The client has gone: a read that is under way ends soon. The loop's thread calls it."""
        self._stopped = True
        if self._found is not None:
            self._found.stop()
