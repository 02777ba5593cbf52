"""Threads that sleep until a topic has more, from any process, and then have its followers read.

A quiet topic costs nothing. Above a number of threads, several topics share one, which sleeps on all of them at once.
`Watches` belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Protocol

from headwater.engine.cursor import Bell, TopicCursor
from headwater.errors import HeadwaterError

IN_FLIGHT_MAX = 2  # what a thread may hand to the loop before it was taken: one is written while the next is encoded
SLICE_S = 1.0  # the longest sleep without a look around: a writer that dies in the midst of a commit wakes nobody


class Follower(Protocol):
    """What is followed: a channel, or somebody who waits."""

    cursor: TopicCursor

    def advance(self, post: Callable[..., None]) -> bool:
        """Read on, in the thread of the watch, and `post` what is to be done on the loop; False if nothing was new."""
        ...

    def fail(self, error: Exception) -> None:
        """Reading failed, for good. Called on the loop."""
        ...


class Watch:
    """One thread and its followers. All but `_run` and what it calls belongs to the loop's thread."""

    def __init__(self, bell: Bell, loop: asyncio.AbstractEventLoop) -> None:
        self._bell = bell
        self._loop = loop
        self._followers: tuple[Follower, ...] = ()  # replaced as one, for the thread
        self._failed: set[Follower] = set()  # of the thread alone
        self._room = threading.Semaphore(IN_FLIGHT_MAX)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="headwater-watch", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._followers)

    def add(self, follower: Follower) -> None:
        self._followers = (*self._followers, follower)
        self._bell.ring()

    def remove(self, follower: Follower) -> None:
        self._followers = tuple([other for other in self._followers if other is not follower])
        self._bell.ring()

    def stop(self) -> None:
        """Have the thread end; what it has posted is still done."""
        self._stopped = True
        self._room.release()
        self._bell.ring()

    def join(self) -> None:
        """Wait for its end, which is near: nothing that it does takes long."""
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            followers = self._followers
            self._failed.intersection_update(followers)
            moved = False
            for follower in followers:
                if follower not in self._failed:
                    moved = self._advance(follower) or moved
            if not moved:
                self._wait(followers)

    def _advance(self, follower: Follower) -> bool:
        try:
            return follower.advance(self._post)
        except Exception as error:  # noqa: BLE001  # whatever it is, its subscribers hear of it, and the others go on
            self._failed.add(follower)
            self._post(self._fail, follower, error)
            return False

    def _fail(self, follower: Follower, error: Exception) -> None:
        follower.fail(error)
        if not isinstance(error, HeadwaterError):
            raise error  # a bug: the loop's handler of exceptions shows it

    def _wait(self, followers: tuple[Follower, ...]) -> None:
        cursors = [follower.cursor for follower in followers if follower not in self._failed]
        try:
            self._bell.wait(cursors, SLICE_S, lambda: self._stopped or self._followers is not followers)
        except HeadwaterError:
            return  # the follower of that topic meets the same when it reads

    def _post(self, function: Callable[..., None], *args: Any) -> None:
        """Have it called on the loop. Waits while the loop is behind, so that little is held between the two."""
        self._room.acquire()
        if self._stopped:
            return
        try:
            self._loop.call_soon_threadsafe(self._take, function, args)
        except RuntimeError:  # the loop was closed under it
            self._stopped = True

    def _take(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._room.release()
        function(*args)


class Watches:
    """Which thread follows which topic."""

    def __init__(self, new_bell: Callable[[], Bell], loop: asyncio.AbstractEventLoop, threads_max: int) -> None:
        self._new_bell = new_bell
        self._threads_max = threads_max
        self._loop = loop
        self._by_topic: dict[str, Watch] = {}
        self._followers: dict[Follower, Watch] = {}

    def __len__(self) -> int:
        """How many threads there are."""
        return len(set(self._by_topic.values()))

    def add(self, follower: Follower) -> None:
        """Have it read when there is more. All followers of one topic share a thread, and so one sleep."""
        uuid = follower.cursor.uuid
        watch = self._by_topic.get(uuid)
        if watch is None:
            watches = set(self._by_topic.values())
            full = len(watches) >= self._threads_max
            watch = min(watches, key=len) if full else Watch(self._new_bell(), self._loop)
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
                watch.stop()

    def close(self) -> None:
        """End all threads, and wait for that."""
        watches = set(self._by_topic.values())
        self._by_topic.clear()
        self._followers.clear()
        for watch in watches:
            watch.stop()
        for watch in watches:
            watch.join()
