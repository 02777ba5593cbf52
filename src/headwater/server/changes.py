"""Live changes of binders: one poll of each binder for all followers, and a read for each follower on a change.

SQLite does not notify other processes of a commit, so one task polls each followed binder every few milliseconds, in
a worker thread. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial

from headwater.document import Change
from headwater.errors import Closed, HeadwaterError
from headwater.server.channels import Blocking
from headwater.server.settings import ServerSettings
from headwater.views.binder import LocalBinder
from headwater.views.following import DocumentChanges
from headwater.views.local_views import LocalViews

LOOK_S = 0.02  # between two looks at a binder that is followed
PIECE_BYTES = 64 * 1024  # of changes that a stream writes at once

Encode = Callable[[Change], bytes]
Pieces = AsyncGenerator[list[bytes], None]


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

    async def follow(self, name: str, after: str | None, encode: Encode) -> tuple[str, Pieces]:
        """Where it begins; and the encoded changes from there, then those that come, some at a time; none to show life.

        As `Binder.follow`; changes are encoded in a worker's thread. Raises NotFound if there is no such binder,
        Invalid for a place that is none. It ends when the server stops.
        """
        if self.closed:
            raise Closed("the server is stopping", code="stopping")
        binder = self._views.binder(name)
        reading = _ChangeCursor(binder, after, encode)
        first = await self._blocking(reading.more)  # raises what is to be told before the answer begins
        return reading.begins, self._follow(reading, first)

    def close(self) -> None:
        """End all streams properly. May be called twice."""
        self.closed = True
        for watch in list(self._watches.values()):
            watch.close()

    async def _follow(self, reading: _ChangeCursor, some: list[bytes]) -> Pieces:
        watch = self._join(reading.binder)
        seen = -1  # what it was told before it joined, it may have read too early
        try:
            while not self.closed:
                while some and not self.closed:
                    yield some
                    some = await self._blocking(reading.more)
                if not await watch.wait(seen, self._heartbeat_s) and not self.closed:
                    yield []
                seen = watch.news  # before it reads: whatever comes later is news
                some = await self._blocking(reading.more)
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

    def __init__(self, binder: LocalBinder, after: str | None, encode: Encode) -> None:
        self.binder = binder
        self.begins = ""  # the place behind which the first read was
        self._after = after
        self._encode = encode
        self._found: DocumentChanges | None = None
        self._stopped = False

    def more(self) -> list[bytes]:
        """Some of the changes that are there, encoded; empty if there are none."""
        if self._stopped:
            return []
        if self._found is None:
            self._found = self.binder.follow(after=self._after, timeout=0)
            self.begins = self.begins or self._found.place
        pieces, size = [], 0
        for change in self._found:
            pieces.append(self._encode(change))
            self._after = change.place
            size += len(pieces[-1])
            if size >= PIECE_BYTES:
                break
        else:
            self._after, self._found = self._found.place, None
        return pieces

    def stop(self) -> None:
        """The client has gone: a read that is under way ends soon. The loop's thread calls it."""
        self._stopped = True
        if self._found is not None:
            self._found.stop()
