"""Waits for topics that do not exist yet, whichever process creates them.

A directory sends no notification when a topic is created, so all awaited topics are polled together, ten times a
second, and only while there are waiters. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headwater.errors import Closed, HeadwaterError, NotFound, Unavailable
from headwater.server.channels import Blocking

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
