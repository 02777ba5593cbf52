"""Threads that sleep until a topic has new events, from any process, and then wake its followers.

`Arrivals` waits for topics that do not exist yet. A quiet topic costs nothing. Above a number of threads,
several topics share one, which sleeps on all of them at once. `Watches` belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwater.errors import Closed, HeadwaterError, NotFound, Unavailable
from headwater.log.topic_cursor import CursorBell, TopicCursor

if TYPE_CHECKING:
    from headwater.server.channels import Blocking

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
        """Continue reading: what was posted is done."""
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


POLL_S = 0.1


class Arrivals:
    """The topics that clients of one server wait for."""

    def __init__(self, find: Callable[[str], object], blocking: Blocking, waiting_max: int) -> None:
        """`find` raises NotFound for a missing topic; `blocking` calls it in a thread."""
        self._find = find
        self._blocking = blocking
        self._waiting_max = waiting_max
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._count = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        """Return how many clients wait."""
        return self._count

    async def wait(self, topic: str) -> None:
        """Return when the topic exists.

        Raises Unavailable with the code `too_many` if too many wait already, Closed when the server stops, and what
        finding the topic raises beside NotFound.
        """
        self.check(topic)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(topic, set())
        waiting.add(future)
        self._count += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._poll())
        try:
            await future
        finally:
            self._count -= 1
            waiting.discard(future)
            if not waiting and self._waiting.get(topic) is waiting:
                del self._waiting[topic]

    def check(self, topic: str) -> None:
        """Raise what `wait` would raise at once."""
        if self._closed:
            raise _stopping()
        if self._count >= self._waiting_max:
            raise Unavailable(
                f"{self._waiting_max} clients are already waiting for topics that do not exist yet",
                hint=f"create topic {topic!r} first, or wait for fewer topics at a time",
                code="too_many",
                limit="awaited_topics_max",
                maximum=self._waiting_max,
            )

    def close(self) -> None:
        """Have all who wait hear that the server stops. May be called twice."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for topic in list(self._waiting):
            self._settle(topic, _stopping())

    async def _poll(self) -> None:
        while self._waiting:
            await asyncio.sleep(POLL_S)
            for topic, error in (await self._blocking(self._look, list(self._waiting))).items():
                self._settle(topic, error)
        self._task = None

    def _look(self, topics: list[str]) -> dict[str, HeadwaterError | None]:
        """Find which of the topics exist, with an error for those that cannot be read. In a worker thread."""
        found: dict[str, HeadwaterError | None] = {}
        for topic in topics:
            try:
                self._find(topic)
            except NotFound:
                continue
            except HeadwaterError as error:
                found[topic] = error
            else:
                found[topic] = None
        return found

    def _settle(self, topic: str, error: HeadwaterError | None) -> None:
        for future in self._waiting.pop(topic, ()):
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


def _stopping() -> Closed:
    return Closed("the server is stopping", code="stopping")
