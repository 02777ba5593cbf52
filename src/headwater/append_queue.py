"""`AppendQueue`: appends in the background. What is queued together is appended as one batch.

A directory and a server have one each, for `append_later`; a bucket gathers for each of its partitions by itself
(`bucket/appender.py`). The events of a topic keep their order. One thread appends batch after batch; it starts with the
first event, and ends when none has come for a while. Safe from any thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Protocol

import msgspec

from headwater.disk.latch import Latch
from headwater.errors import Closed, HeadwaterError, Invalid, TooLarge, Unavailable
from headwater.event import Ref, Refs
from headwater.format.batch import DATA, KEY, META, TYPE
from headwater.format.column import Column
from headwater.limits import Limits
from headwater.requests import Append, AppendMany

IDLE_S = 10.0  # the thread ends when nothing was queued for so long
LINGER_MS = 5  # how long the first event of a batch waits for others: about as long as a few syncs take
FAILED_MAX = 1000  # batches that failed without a caller that knows of it; one is enough for `flush` to raise


class QueueTarget(Protocol):
    """What the queue appends to."""

    def append(self, request: Append) -> Ref: ...
    def append_many(self, request: AppendMany) -> Refs: ...


class QueuedAppend(msgspec.Struct, frozen=True, gc=False):
    """One event that was given to `append_later`. Safe from any thread."""

    batch: QueuedBatch
    index: int

    def done(self) -> bool:
        """Return whether the event is appended, or has failed."""
        return self.batch.done.is_set()

    def result(self, timeout: float | None = None) -> Ref:
        """Wait until the event is appended and return where it is.

        Raises the error that kept it from being appended, and Unavailable after `timeout` seconds.
        """
        if not self.batch.done.wait(timeout):
            raise Unavailable(f"the append did not finish within {timeout:g} s", hint="keep waiting", code="pending")
        return self.batch.ref(self.index)


class QueuedBatch:
    """Events of one topic that are appended together. The queue's lock protects it until it is taken."""

    __slots__ = (
        "alone",
        "content",
        "done",
        "due_s",
        "error",
        "partition",
        "raised",
        "refs",
        "requests",
        "size",
        "sync",
        "topic",
    )

    def __init__(self, first: Append, due_s: float) -> None:
        self.topic = first.topic
        self.content, self.partition, self.sync = first.content, first.partition, first.sync
        self.alone = first.expected is not None or first.producer is not None
        self.requests: list[Append] = []
        self.size = 0
        self.due_s = due_s
        self.done = Latch()
        self.refs: Refs | list[Ref | HeadwaterError] | None = None
        self.error: BaseException | None = None
        self.raised = False  # whether a caller has seen the error

    def takes(self, request: Append) -> bool:
        """Return whether a request can be appended as one with those that are here."""
        return (
            request.content == self.content
            and request.partition == self.partition
            and request.sync is self.sync
            and request.expected is None
            and request.producer is None
            and not self.alone
        )

    def ref(self, index: int) -> Ref:
        """Return where an event is; raises the error that kept it from being appended."""
        if self.refs is None:
            assert self.error is not None
            self.raised = True
            raise self.error
        found = self.refs[index]
        if isinstance(found, HeadwaterError):
            self.raised = True
            raise found
        ref: Ref = found
        return ref

    def append_to(self, target: QueueTarget) -> None:
        """Append the events and set their references, or their errors. Never raises."""
        try:
            self.refs = self._append_to(target)
        except HeadwaterError as error:
            self.error = error
        except BaseException as error:  # noqa: BLE001  # callers that wait must learn of it, whatever it is
            self.error = Unavailable(f"an append in the background failed: {error!r}", code="append_failed")
        self.done.set()

    def _append_to(self, target: QueueTarget) -> Refs | list[Ref | HeadwaterError]:
        if len(self.requests) == 1:
            return [target.append(self.requests[0])]
        try:
            return target.append_many(joined(self.requests))
        except (Invalid, TooLarge):  # nothing was appended; one of them may be to blame: the others must not suffer
            return [self._append_one(target, request) for request in self.requests]

    def _append_one(self, target: QueueTarget, request: Append) -> Ref | HeadwaterError:
        try:
            return target.append(request)
        except HeadwaterError as error:
            self.error = self.error or error
            return error


class AppendQueue:
    """The appends of one store that wait in the background."""

    def __init__(self, target: QueueTarget, limits: Limits) -> None:
        self._target = target
        self._limits = limits
        self._huge, self._room_bytes = limits.blob_bytes_min, limits.buffer_bytes
        self._events_max, self._bytes_max = limits.pack_events, limits.linger_bytes
        self._linger_s = (LINGER_MS if limits.linger_ms is None else limits.linger_ms) / 1000
        self._mutex = threading.Lock()  # protects all below
        self._open: dict[str, QueuedBatch] = {}  # the batch of each topic that takes more events
        self._batches: deque[QueuedBatch] = deque()  # in the order of their first events
        self._current: QueuedBatch | None = None  # the batch that is being appended
        self._size = 0  # bytes of all that wait
        self._failed: list[QueuedBatch] = []  # since the last flush
        self._flushing = 0  # callers that wait for all batches
        self._closed = False
        self._thread: threading.Thread | None = None
        self._sleeping: Latch | None = None  # set it to wake the thread
        self._room: Latch | None = None  # set when a batch is done: callers wait for room

    def add(self, request: Append) -> QueuedAppend:
        """Queue one event. Blocks while the queue holds `buffer_bytes`. Raises TooLarge for a huge event."""
        data = request.data
        if data.__class__ is not bytes or (size := len(data)) > self._huge:
            raise TooLarge(
                "a huge event cannot be appended in the background", hint="use append", limit="blob_bytes_min"
            )
        with self._mutex:
            batch = self._open.get(request.topic)
            if batch is None or self._size + size > self._room_bytes or not batch.takes(request):
                batch = self._begin(request, size)
            requests = batch.requests
            index = len(requests)
            requests.append(request)
            batch.size += size
            self._size += size
            if index + 1 >= self._events_max or batch.size >= self._bytes_max:
                del self._open[request.topic]
                self._wake()
        return QueuedAppend(batch, index)

    def flush(self) -> None:
        """Wait until all events that are queued now are appended. Raises the first error that no `result` raised."""
        with self._mutex:
            waiting = list(self._batches)
            if self._current is not None:
                waiting.append(self._current)
            self._flushing += 1
            self._wake()
        try:
            for batch in waiting:
                batch.done.wait()
        finally:
            with self._mutex:
                self._flushing -= 1
                failed, self._failed = self._failed, []
        for batch in failed:
            if not batch.raised and batch.error is not None:
                raise batch.error

    def close(self) -> None:
        """Append what is queued, and refuse more. Raises as `flush`. May be called twice."""
        with self._mutex:
            self._closed = True
        self.flush()

    def after_fork(self) -> None:
        """Start empty in a forked child: the events that wait belong to the parent, which appends them."""
        self.__init__(self._target, self._limits)  # type: ignore[misc]

    # With the lock held

    def _begin(self, request: Append, size: int) -> QueuedBatch:
        """Return a new batch, at the end of the queue, once there is room for a request."""
        while self._size and self._size + size > self._room_bytes:
            self._check_open()
            self._wait_for_room()
        self._check_open()
        batch = QueuedBatch(request, time.monotonic() + self._linger_s)
        self._open[request.topic] = batch
        self._batches.append(batch)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headwater-append-later", daemon=True)
            self._thread.start()
        self._wake()
        return batch

    def _wait_for_room(self) -> None:
        """Give up the lock until a batch is done."""
        self._flushing += 1  # a full queue does not linger
        self._wake()
        room = self._room = self._room or Latch()
        self._mutex.release()
        try:
            room.wait()
        finally:
            self._mutex.acquire()
            self._flushing -= 1

    def _wake(self) -> None:
        if self._sleeping is not None:
            self._sleeping.set()
            self._sleeping = None

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed", hint="open it again")

    # The thread

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            batch.append_to(self._target)
            with self._mutex:
                self._current = None
                self._size -= batch.size
                if batch.error is not None and len(self._failed) < FAILED_MAX:
                    self._failed.append(batch)
                room, self._room = self._room, None
            if room is not None:
                room.set()

    def _take(self) -> QueuedBatch | None:
        """Return the next batch when it is due; None when nothing has come for a while, and the thread ends."""
        idle = False
        while True:
            with self._mutex:
                if self._batches:
                    batch = self._batches[0]
                    wait_s = batch.due_s - time.monotonic()
                    is_open = self._open.get(batch.topic) is batch
                    if wait_s <= 0 or not is_open or self._flushing or self._closed:
                        self._current = self._batches.popleft()
                        if is_open:
                            del self._open[batch.topic]
                        return batch
                elif idle:
                    self._thread = None
                    return None
                else:
                    wait_s = IDLE_S
                sleeping = self._sleeping = Latch()
            idle = not sleeping.wait(wait_s)


def joined(requests: list[Append]) -> AppendMany:
    """Return requests that differ in data, type, key and meta alone as one."""
    first = requests[0]
    columns = {
        TYPE: Column.of_repeated([request.type for request in requests]),
        KEY: Column.of_optional([request.key for request in requests]),
        DATA: Column.of([request.data for request in requests]),  # type: ignore[misc]  # none is a stream
        META: Column.of_optional([request.meta for request in requests]),
    }
    return AppendMany(first.topic, first.content, columns, len(requests), first.partition, first.sync)
