"""Group commit: appends of several threads that wait together become one batch and share one sync.

The first thread to come is the leader: it commits for all that wait, wakes each through a lock of its own (one
lock for all would wake all threads for each), and hands the lead to the next that came meanwhile.

A signal handler may raise between any two instructions of the main thread, also in the middle of handing over. So each
leader and waiter is known by the call that it makes, and a thread that waits for a call that has ended takes the lead.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import call
from sys import _getframe
from types import FrameType, TracebackType

from headwater.directory.log_writer import LogWriter
from headwater.disk.open_files import open_files
from headwater.errors import Unavailable
from headwater.log.rows import Rows

GROUP_EVENTS_MAX = 50_000
PATIENCE_S = 0.05  # a thread that waits longer makes sure that the leader has not been interrupted


class Group:
    """The threads of one process that append to one log. Between two appends it keeps the writer's files open."""

    files = 2  # the lock and the active segment

    def __init__(self, writer: LogWriter, bytes_max: int) -> None:
        self.writer = writer  # for the leader alone
        self.used = 0
        writer.held.on_open = partial(open_files.opened, self)
        self._bytes_max = bytes_max
        self._mutex = threading.Lock()  # protects all below; never held during I/O
        self._queue: deque[Rows] = deque()
        self._leader: Rows | None = None  # whose call may use the writer

    @property
    def led(self) -> bool:
        """Return whether a thread of this process is at the writer."""
        leader = self._leader
        return leader is not None and leader.runs()

    def rest(self, may: Callable[[LogWriter], bool] = lambda _: True) -> bool:
        """Close the writer's files until they are needed; False if a thread is at it, or it may not. Never waits."""
        turn = WriterTurn(self)
        try:
            if not turn.try_take(_getframe()) or not may(self.writer):
                return False
            self.close_files(self.writer)
        finally:
            turn.leave()
        return True

    def close_files(self, writer: LogWriter) -> None:
        """Close the writer's files. For the leader."""
        open_files.closed(self)
        writer.held.trim()
        writer.held.close()

    def after_fork(self) -> None:
        """In a forked child, which makes a group of its own: close the descriptors that it got from its parent."""
        open_files.closed(self)
        self.writer.held.close()

    def __del__(self) -> None:
        self.after_fork()

    def append(self, rows: Rows) -> None:
        """Return when the rows are committed, with their offset and ticks set; raises what the commit raised.

        A signal that comes while they wait is raised afterwards: rows that a leader may have taken cannot be recalled.
        """
        self.used = open_files.turn
        try:
            interruption = self.enter(rows, _getframe())
            if not rows.settled:
                if self._queue:
                    self._lead(rows)
                else:
                    self._commit([rows])
        finally:
            self.leave(rows)
        if interruption is not None:
            raise interruption
        if rows.error is not None:
            raise rows.error

    def append_all(self, group: list[Rows]) -> None:
        """Commit the rows of many requests that one thread brings: each has its offset and ticks then, or its error."""
        for rows in group:
            rows.error = None
        with self.exclusive():
            self._commit(group)

    def exclusive(self) -> WriterTurn:
        """Return the writer for this thread alone, in a `with`, when the appends that came before are committed."""
        self.used = open_files.turn
        return WriterTurn(self)

    def try_enter(self, rows: Rows, frame: FrameType) -> bool:
        """Have these rows lead if no others lead or wait; never waits itself."""
        rows.thread = threading.get_ident()
        rows.frame = frame
        with self._mutex:
            if self._leader is None:
                self._leader = rows
            return self._leader is rows

    def enter(self, rows: Rows, frame: FrameType) -> BaseException | None:
        """Return when these rows lead, or a leader has settled them; with what interrupted the wait for that."""
        rows.error = rows.leader = None  # it may be tried again, on another log
        rows.settled = False
        rows.thread = threading.get_ident()
        rows.frame = frame
        with self._mutex:
            if self._leader is None:
                self._leader = rows
                return None
            rows.done = threading.Lock()
            rows.done.acquire()
            self._queue.append(rows)
        interruption: BaseException | None = None
        while not rows.settled and self._leader is not rows:
            try:
                self._wait(rows)
            except BaseException as error:
                if isinstance(error, Unavailable):
                    raise
                interruption = error  # whatever a signal handler raises
        return interruption

    def _wait(self, rows: Rows) -> None:
        """Wait for a while until the rows are settled or lead; takes over from a leader that has ended unnoticed."""
        assert rows.done is not None
        leader = self._leader
        ours = leader is not None and leader.thread == rows.thread
        if not ours and rows.done.acquire(timeout=PATIENCE_S):
            return
        if leader is not None and leader.runs():
            if ours:
                raise _reentered()
            return
        taker = rows.leader
        abandoned = taker is not None and not taker.runs()  # outside the mutex: it may release objects of that call
        with self._mutex:
            if abandoned:
                if not rows.settled:
                    rows.error = _interrupted()
                    rows.settled = True
            elif rows.leader is None and self._leader is leader:
                self._leader = rows
                with contextlib.suppress(ValueError):
                    self._queue.remove(rows)

    def leave(self, rows: Rows) -> None:
        """Hand over the lead, if these rows have it. May be called again."""
        with self._mutex:
            if self._leader is rows:
                self._leader = successor = self._successor() if self._queue else None
                if successor is not None:
                    _wake(successor)
            elif not rows.settled and rows.leader is None:  # interrupted, and no leader has taken them
                with contextlib.suppress(ValueError):
                    self._queue.remove(rows)
        rows.frame = None

    def _successor(self) -> Rows | None:
        """Take the next who waits from the queue; what an interrupted leader had settled already is left out."""
        while self._queue:
            rows = self._queue.popleft()
            if not rows.settled:
                return rows
        return None

    def _lead(self, rows: Rows) -> None:
        """Commit the rows together with those that wait."""
        group = [rows]
        try:
            self._gather(group)
            self._commit(group)
        finally:
            _settle(group)

    def _commit(self, pending: list[Rows]) -> None:
        try:
            while pending:
                pending = self.writer.commit(pending)
        except BaseException as error:
            for rows in pending:
                if rows.error is None and not rows.answered:
                    rows.error = error if isinstance(error, Exception) else _interrupted()
            if not isinstance(error, Exception):
                self.writer.held.wake()
                raise

    def _gather(self, group: list[Rows]) -> None:
        """Take all who wait, up to a size, and up to one that wants the writer for itself."""
        leader = group[0]
        size, count = leader.size, leader.count
        queue = self._queue
        with self._mutex:
            while queue and queue[0].count and size < self._bytes_max and count < GROUP_EVENTS_MAX:
                rows = queue[0]
                if rows is not leader and not rows.settled:
                    rows.leader = leader  # first: rows in neither place would wait for ever
                    group.append(rows)
                    size += rows.size
                    count += rows.count
                queue.popleft()


class WriterTurn:
    """The writer of a group for one thread alone. Used in a `with`, or taken and left, by a plain function.

    The turn is over when that function's call is; a generator's would not do.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._rows = Rows("bytes", False)
        self._rows.count = 0  # which no leader takes along

    def take(self, frame: FrameType) -> LogWriter:
        """Wait for the writer; `frame` is the call that uses it, and leaves."""
        interruption = self._group.enter(self._rows, frame)
        if interruption is not None:
            self.leave()
            raise interruption
        return self._group.writer

    def try_take(self, frame: FrameType) -> bool:
        """Take the writer if no thread is at it or waits for it; never waits."""
        return self._group.try_enter(self._rows, frame)

    def leave(self) -> None:
        """Leave it to others. May be called twice."""
        self._group.leave(self._rows)

    def __enter__(self) -> LogWriter:
        return self.take(_getframe(1))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


class WriterTurns:
    """The writers of several logs, taken in one order by one call, whose `finally` is `any(turns.locks)`, then `leave`.

    `locks` unlocks the files as it is iterated, in C: a signal handler that raises cannot leave one of them locked.
    """

    def __init__(self) -> None:
        self._frame = _getframe(1)  # the call that takes them
        self._taken: list[WriterTurn] = []
        self.writers: list[LogWriter] = []
        self._unlocking: list[Callable[[], object]] = []
        self.locks = map(call, self._unlocking)

    def take(self, turn: WriterTurn) -> LogWriter:
        """Wait for one more writer; whatever it locks is unlocked with the others."""
        self._taken.append(turn)
        writer = turn.take(self._frame)
        self.writers.append(writer)
        self._unlocking.append(writer.unlocking())
        return writer

    def leave(self) -> None:
        """Leave all of them to others, and wake the threads that sleep on their logs."""
        for turn in self._taken:
            turn.leave()
        for writer in self.writers:
            writer.held.wake()


def _settle(group: list[Rows]) -> None:
    for rows in group[1:]:
        rows.settled = True
        _wake(rows)


def _wake(rows: Rows) -> None:
    if rows.done is not None:
        with contextlib.suppress(RuntimeError):  # it was woken before
            rows.done.release()


def _interrupted() -> Unavailable:
    return Unavailable(
        "the thread that was committing for several callers was interrupted",
        hint="read the end of the log to see whether the event is there",
        code="interrupted",
    )


def _reentered() -> Unavailable:
    return Unavailable(
        "a signal handler cannot append to the log that the interrupted call is appending to",
        hint="set a flag in the handler, and append outside it",
        code="reentered",
    )
