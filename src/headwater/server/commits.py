"""Group commit: concurrent appends of many connections to one log share one sync.

Requests are gathered until a turn of the loop brings none, and handed to a thread, which writes and syncs them. Then
all are answered, and only then the next group is handed over: those who got an answer are soon back and come along, and
thread and loop seldom want the interpreter at the same time. (Both at once, with groups of half the size, was measured
to be slower.) Large requests, which take long to parse and to write, are handed over as they come.
Everything but `Commits._run` belongs to the loop's thread.

The committing thread may also write the responses of connections that have nothing else to write (`write_prompt`),
which saves a turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from time import perf_counter
from typing import Protocol

from headwater.directory.directory import Directory
from headwater.errors import Closed
from headwater.event import Ref
from headwater.limits import MIB
from headwater.log.log import Log
from headwater.log.pending import PendingAppend
from headwater.requests import Append
from headwater.server.metrics import Metrics

_log = logging.getLogger("headwater.server")

Done = Callable[[PendingAppend], None]
Group = Sequence[tuple[PendingAppend, Done]]
THREADS_MAX = 8  # logs that sync at once; more wait for their turn
MUCH_BYTES = MIB  # which take so long to parse and to write that both should go on at once
TURNS_MAX = 8  # of the loop, that a group gathers for: a turn that is busy otherwise may be long


class Commits:
    """The appends of one server."""

    def __init__(self, backend: Directory, loop: asyncio.AbstractEventLoop, metrics: Metrics) -> None:
        self._backend = backend
        self._loop = loop
        self._metrics = metrics
        self._queues: dict[int, _CommitQueue] = {}  # by the identity of their log, which they hold
        self._work: SimpleQueue[_CommitQueue | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._closed = False
        self._writers: list[Callable[[Group], None]] = []

    def write_answers(self, write: Callable[[Group], None]) -> None:
        """Have this called with each group that was committed, in the thread that did it, before their `done`."""
        self._writers.append(write)

    def submit(self, waiting: PendingAppend, done: Done) -> None:
        """Commit it with others; `done` is called on the loop when it has its place or its error."""
        log = waiting.log
        queue = self._queues.get(id(log))
        if queue is None:
            if self._closed:
                raise Closed("the server is stopping", code="stopping")
            queue = self._queues[id(log)] = _CommitQueue(log)
        queue.waiting.append((waiting, done))
        queue.size += waiting.rows.size
        if not queue.scheduled:
            queue.scheduled = True
            self._loop.call_soon(self._gather, queue, 0, TURNS_MAX)

    async def append(self, request: Append) -> Ref:
        """Append one event; returns where it is."""
        waiting = self._backend.prepare(request)
        await self.commit([waiting])
        return waiting.ref()

    async def commit(self, group: Sequence[PendingAppend]) -> None:
        """Commit the parts of one request; each has its place or its error then."""
        if not group:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        left = len(group)

        def done(_: PendingAppend) -> None:
            nonlocal left
            left -= 1
            if not left and not future.done():
                future.set_result(None)

        for waiting in group:
            self.submit(waiting, done)
        await future

    def close(self) -> None:
        """Finish what waits, answer it, and end the threads. No append may come any more."""
        self._closed = True
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    @property
    def idle(self) -> bool:
        """Return whether nothing waits."""
        return not self._queues

    def _gather(self, queue: _CommitQueue, seen: int, turns: int) -> None:
        """Hand over what waits, if the last turn of the loop brought nothing new, or it is much."""
        count = len(queue.waiting)
        if count > seen and turns and queue.size < MUCH_BYTES:
            self._loop.call_soon(self._gather, queue, count, turns - 1)
        else:
            self._hand_over(queue)

    def _hand_over(self, queue: _CommitQueue) -> None:
        queue.group, queue.waiting, queue.size = queue.waiting, [], 0
        self._busy += 1
        if self._busy > len(self._threads) < THREADS_MAX:
            thread = threading.Thread(target=self._run, name="headwater-commit", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._work.put(queue)

    def _run(self) -> None:
        backend, work, loop = self._backend, self._work, self._loop
        while (queue := work.get()) is not None:
            group = [waiting for waiting, _ in queue.group]
            begun = perf_counter()
            try:
                backend.commit(group)
            except Exception as error:  # noqa: BLE001  # each of them must be answered
                for waiting in group:
                    if waiting.rows.error is None and waiting.rows.offset < 0:
                        waiting.rows.error = error
            queue.seconds = perf_counter() - begun
            try:
                for write in self._writers:
                    write(queue.group)
            except Exception:  # noqa: BLE001  # then the loop writes them
                _log.exception("responses cannot be written")
            loop.call_soon_threadsafe(self._finished, queue)

    def _finished(self, queue: _CommitQueue) -> None:
        group, queue.group = queue.group, []
        self._busy -= 1
        self._metrics.committed(queue.seconds, len(group))
        much = queue.size >= MUCH_BYTES
        if much:
            self._hand_over(queue)
        appends = events = size = 0
        for waiting, done in group:
            rows = waiting.rows
            if rows.error is None:
                appends += 1
                events += rows.count
                size += rows.size
            try:
                done(waiting)
            except Exception:  # noqa: BLE001  # the others must be answered too
                _log.exception("the response to an append cannot be sent")
        self._metrics.appended(queue.topic, events, size, appends)
        if much:
            return
        if queue.waiting:
            self._loop.call_soon(self._gather, queue, 0, TURNS_MAX)
        else:
            queue.scheduled = False
            self._queues.pop(id(queue.log), None)


class _CommitQueue:
    """The pending appends of one log, and those being committed."""

    __slots__ = ("group", "log", "scheduled", "seconds", "size", "topic", "waiting")

    def __init__(self, log: Log) -> None:
        self.log = log
        self.topic = log.place.topic
        self.waiting: list[tuple[PendingAppend, Done]] = []
        self.group: list[tuple[PendingAppend, Done]] = []
        self.scheduled = False
        self.size = 0  # bytes that wait
        self.seconds = 0.0


class Way:
    """A duplicate socket descriptor for the committing thread; closed after its last use.

    The loop may close its own at any time, and the next connection may get its number: no answer must go there.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = os.dup(number)

    def __del__(self) -> None:
        os.close(self.number)


class Prompt(Protocol):
    """An answer that was `made`. The loop writes what is left of it, if not all was `written`."""

    way: Way | None
    made: bytes
    sent: int
    written: bool


def write_prompt(answers: Iterable[Prompt]) -> None:
    """Write answers that are all made: clients that are awake need not be woken for each."""
    for answer in answers:
        if answer.way is None:
            continue  # only the loop may write
        try:
            answer.sent = os.write(answer.way.number, answer.made)
            answer.written = answer.sent == len(answer.made)
        except OSError:
            continue  # the socket is full or closed: the loop handles it
