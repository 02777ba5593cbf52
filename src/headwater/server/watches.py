"""Threads that sleep until a topic has new events, from any process, and then wake its followers.

A quiet topic costs nothing. Above a number of threads, several topics share one, which sleeps on all of them at once.
`Watches` belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from headwater.errors import HeadwaterError
from headwater.log.topic_cursor import CursorBell, TopicCursor

SLICE_S = 1.0  # the longest sleep without a look around: a writer that dies during a commit sends no wake-up


class Follower(ABC):
    """A channel or a waiting reader. It reads on only when the loop has processed its last read."""

    def __init__(self, cursor: TopicCursor) -> None:
        self.cursor = cursor  # of the watch's thread
        self.watch: TailWatch | None = None
        self._busy = False  # the loop has something that was posted; set by the thread, taken back by the loop
        self.wanted = False  # there is more to read when it is not busy any more; the same
        self.failed = False  # of the thread

    @abstractmethod
    def advance(self) -> tuple[Any, ...] | None:
        """Read on, in the thread. Returns what to call on the loop, and with what; None if nothing was new.

        Whatever is called has `done` called at some time.
        """

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Reading failed, for good. Called on the loop."""

    def is_busy(self) -> bool:
        """Return whether the loop has something that was posted."""
        return self._busy

    def post(self, loop: asyncio.AbstractEventLoop, what: tuple[Any, ...]) -> None:
        """Hand something to the loop. In the thread."""
        self._busy = True
        loop.call_soon_threadsafe(*what)

    def done(self) -> None:
        """What was posted is done: read on."""
        self._busy = False
        if self.wanted and self.watch is not None:
            self.wanted = False
            self.watch.ring()


class TailWatch:
    """One thread and its followers. All but `_run` and what it calls belongs to the loop's thread."""

    def __init__(self, bell: CursorBell, loop: asyncio.AbstractEventLoop) -> None:
        self._bell = bell
        self._loop = loop
        self._followers: tuple[Follower, ...] = ()  # replaced as one, for the thread
        self._stopped = self._rung = False
        self._thread = threading.Thread(target=self._run, name="headwater-watch", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._followers)

    def add(self, follower: Follower) -> None:
        follower.watch = self
        self._followers = (*self._followers, follower)
        self.ring()

    def remove(self, follower: Follower) -> None:
        follower.watch = None
        self._followers = tuple([other for other in self._followers if other is not follower])
        self.ring()

    def ring(self) -> None:
        """Have the thread look around."""
        self._rung = True
        self._bell.ring()

    def stop(self) -> None:
        """Have the thread end; what it has posted is still done."""
        self._stopped = True
        self.ring()

    @property
    def alive(self) -> bool:
        """Return whether its thread has not ended."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait for its end, which is near: nothing that it does takes long."""
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            self._rung = False
            followers = [follower for follower in self._followers if not follower.failed]
            moved = [self._advance(follower) for follower in followers]
            if not any(moved):
                self._wait([follower.cursor for follower in followers if not (follower.failed or follower.wanted)])

    def _advance(self, follower: Follower) -> bool:
        """Have a follower read on, unless the loop is still busy with it; False if it did not."""
        post: tuple[Any, ...] | None
        try:
            if follower.is_busy():
                follower.wanted = follower.cursor.has_more()
                if not follower.wanted or follower.is_busy():  # else the loop was done before it could know
                    return False
            follower.wanted = False
            post = follower.advance()
        except Exception as error:  # noqa: BLE001  # whatever it is, its subscribers hear of it, and the others go on
            follower.failed = True
            post = self._fail, follower, error
        if post is None:
            return False
        try:
            follower.post(self._loop, post)
        except RuntimeError:  # the loop was closed under it
            self._stopped = True
        return True

    def _fail(self, follower: Follower, error: Exception) -> None:
        follower.fail(error)
        if not isinstance(error, HeadwaterError):
            raise error  # a bug: the loop's handler of exceptions shows it

    def _wait(self, cursors: list[TopicCursor]) -> None:
        try:
            self._bell.wait(cursors, SLICE_S, lambda: self._rung)
        except HeadwaterError:
            return  # the follower of that topic meets the same when it reads


class Watches:
    """Assigns topics to threads."""

    def __init__(self, new_bell: Callable[[], CursorBell], loop: asyncio.AbstractEventLoop, threads_max: int) -> None:
        self._new_bell = new_bell
        self._threads_max = threads_max
        self._loop = loop
        self._by_topic: dict[str, TailWatch] = {}
        self._followers: dict[Follower, TailWatch] = {}
        self._ending: list[TailWatch] = []  # which were told to

    def __len__(self) -> int:
        """Return how many threads there are."""
        return len(set(self._by_topic.values()))

    def add(self, follower: Follower) -> None:
        """Have it read when there is more. All followers of one topic share a thread, and so one sleep."""
        uuid = follower.cursor.uuid
        watch = self._by_topic.get(uuid)
        if watch is None:
            watches = set(self._by_topic.values())
            full = len(watches) >= self._threads_max
            watch = min(watches, key=len) if full else TailWatch(self._new_bell(), self._loop)
            self._by_topic[uuid] = watch
        self._followers[follower] = watch
        watch.add(follower)

    def remove(self, follower: Follower) -> None:
        """Let go of it; the thread ends with its last one. May be called twice."""
        watch = self._followers.pop(follower, None)
        if watch is None:
            return
        watch.remove(follower)
        uuid = follower.cursor.uuid
        if all(other.cursor.uuid != uuid for other in self._followers):
            del self._by_topic[uuid]
            if watch not in self._by_topic.values():
                self._end(watch)

    def close(self) -> None:
        """End all threads, and wait until none reads from the log."""
        for watch in set(self._by_topic.values()):
            self._end(watch)
        self._by_topic.clear()
        self._followers.clear()
        for watch in self._ending:
            watch.join()
        self._ending.clear()

    def _end(self, watch: TailWatch) -> None:
        watch.stop()
        self._ending = [other for other in self._ending if other.alive]
        self._ending.append(watch)
