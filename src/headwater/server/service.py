"""State shared by all handlers: the store, pending appends, live delivery, metrics, and worker threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from headwater.consumers.log_consumers import log_consumers
from headwater.server.access import Access
from headwater.server.apps import Application
from headwater.server.changes import ChangeFeeds
from headwater.server.commits import Commits
from headwater.server.feeds import Feeds
from headwater.server.http.message import Budget
from headwater.server.members import Members
from headwater.server.metrics import Metrics
from headwater.server.replicas import Replicas
from headwater.server.settings import ServerSettings
from headwater.server.watches import Arrivals
from headwater.store import Store
from headwater.views.local_views import LocalViews

_log = logging.getLogger("headwater.server")

THAW_S, THAW_S_MAX = 1.0, 15.0  # how often to look whether a log is frozen, and to bring it back

P = ParamSpec("P")
R = TypeVar("R")


class Service:
    """A store that is served. Made on the loop, and belongs to its thread."""

    def __init__(self, store: Store, access: Access, settings: ServerSettings, metrics: Metrics) -> None:
        self.store = store
        self.backend = store.directory
        assert isinstance(store.attached_views, LocalViews), "a directory has them"
        self.views = store.attached_views
        self.access = access
        self.settings = settings
        self.limits = settings.limits
        self.budget = Budget(settings.limits.held_bytes_max)
        self.metrics = metrics
        self.application: Application | None = None
        self.loop = asyncio.get_running_loop()
        self.durable: dict[tuple[str, str], Any] = {}  # by topic and name: which connection of ours has a subscription
        self.ignores_credentials = False  # they are checked neither by `access` nor by a surrounding application
        self._said_ignored = False
        self._under_way: dict[str, asyncio.Task[Any]] = {}
        self._threads = ThreadPoolExecutor(settings.limits.threads, "headwater-worker")
        self.commits = Commits(self.backend, self.loop, metrics)
        self.feeds = Feeds(self.backend, self.blocking, self.loop, settings, metrics.live)
        self.arrivals = Arrivals(self.backend.topic, self.blocking, settings.limits.awaited_topics_max)
        self.changes = ChangeFeeds(self.views, self.blocking, self.loop, settings)
        self.replicas = Replicas(self.backend, settings.limits.replicas_max)
        self.members = Members(self.backend, log_consumers(store.consumption), settings.limits, settings.heartbeat_s)
        self._thawing = self.loop.create_task(self._thaw())

    def ignored(self, headers: Mapping[str, str]) -> bool:
        """Return whether a client sent credentials although authentication is off; logs this once."""
        if not self.ignores_credentials or "authorization" not in headers:
            return False
        if not self._said_ignored:
            self._said_ignored = True
            _log.warning("a client sent credentials, but authentication is off — give --auth FILE")
        return True

    async def blocking(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call what reads or writes files, in a thread of its own, and wait for it."""
        return await self.loop.run_in_executor(self._threads, partial(function, *args, **kwargs))

    async def shared(self, name: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function in a worker thread, once for all concurrent callers that give this name."""
        task = self._under_way.get(name)
        if task is None:
            task = self._under_way[name] = self.loop.create_task(self.blocking(function, *args, **kwargs))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # there may be no waiter left
            task.add_done_callback(lambda _: self._under_way.pop(name))
        found: R = await asyncio.shield(task)
        return found

    async def _thaw(self) -> None:
        """Bring frozen logs back when the disk works again, as a restart does; seldomer the longer it does not."""
        pause_s = THAW_S
        while True:
            await asyncio.sleep(pause_s)
            frozen = self.backend.frozen()
            if frozen:
                await self.shared("thaw", self.backend.thaw)
            pause_s = min(pause_s * 2, THAW_S_MAX) if frozen else THAW_S

    async def make(self, topic: str) -> None:
        """Make a topic that is not there: that of the bus as it is to be, any other with one partition."""
        bus = self.settings.bus
        create = partial(self.store.create, topic)
        if topic == bus.topic:
            create = partial(create, segment_bytes=bus.segment_bytes, retention_segments=bus.segments)
        await self.shared(f"create {topic}", create)

    def later(self, function: Callable[[], object]) -> None:
        """Call this soon in a thread, without waiting: for resources to release when a client leaves."""
        self.loop.run_in_executor(self._threads, function)

    async def pump(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Pieces that are read from files, one at a time, as fast as they are consumed."""
        while (found := [await self.loop.run_in_executor(self._threads, next, pieces, b"")])[0]:
            yield found.pop()  # so that nothing is held here for a slow client

    async def close(self) -> None:
        """End live delivery, finish pending work, and release the threads. The log stays open: the caller owns it."""
        self.arrivals.close()
        self._thawing.cancel()
        self.feeds.close()
        self.changes.close()
        await self.loop.run_in_executor(None, self.replicas.close)
        await self.loop.run_in_executor(None, self.members.close)
        while not self.commits.idle:
            await asyncio.sleep(0.005)
        self.commits.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
