"""Group commit: appends of several threads that wait together become one batch and share one sync.

The first thread to come is the leader: it commits for all who wait, tells each through a lock of its own (one
lock for all would wake everybody for everyone), and hands the lead to the next who came meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from functools import partial

from headwater.errors import Unavailable
from headwater.storage.open_files import open_files
from headwater.storage.rows import Rows
from headwater.storage.writer import Writer

GROUP_EVENTS_MAX = 50_000


class Group:
    """The threads of one process that append to one log. Between two appends it keeps the writer's files open."""

    files = 2  # the lock and the active segment

    def __init__(self, writer: Writer, bytes_max: int) -> None:
        self.writer = writer  # for the leader alone
        self.used = 0
        writer.on_open = partial(open_files.opened, self)
        self._bytes_max = bytes_max
        self._queue: deque[Rows] = deque()
        self._mutex = threading.Lock()  # protects `_led` and the moment of queueing; never held during I/O
        self._led = False  # whether a thread leads, and so may use the writer

    @property
    def led(self) -> bool:
        """Whether a thread of this process is at the writer."""
        return self._led

    def rest(self) -> bool:
        """Close the writer's files until they are needed; False if a thread is at it or waits for it. Never waits."""
        with self.idle() as writer:
            if writer is not None:
                self.let_go(writer)
            return writer is not None

    def let_go(self, writer: Writer) -> None:
        """Close the writer's files. For the leader."""
        open_files.closed(self)
        writer.trim()
        writer.close()

    def after_fork(self) -> None:
        """In a forked child, which makes a group of its own: close the descriptors that it got from its parent."""
        open_files.closed(self)
        self.writer.close()

    def __del__(self) -> None:
        self.after_fork()

    def append(self, rows: Rows) -> None:
        """Return when the rows are committed, with their offset and ticks set; raises what the commit raised.

        A signal that comes while they wait is raised afterwards: rows that a leader may have taken cannot be recalled.
        """
        rows.error = None  # it may be tried again, on another log
        self.used = open_files.turn
        with self._mutex:
            alone = not self._led
            self._led = True
        if alone:
            self._lead(rows)
            return
        interruption = self._wait_for_turn(rows)
        if rows.leads:
            self._lead(rows)
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

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[Writer]:
        """The writer for this thread alone, when the appends that came before are committed."""
        self.used = open_files.turn
        turn = Rows("bytes", False)
        turn.count = 0  # which no leader takes along
        interruption = self._wait_for_turn(turn)
        try:
            if interruption is not None:
                raise interruption
            yield self.writer
        finally:
            self._hand_over()

    @contextlib.contextmanager
    def idle(self) -> Iterator[Writer | None]:
        """The writer, if no thread is at it or waits for it; None if one does. Never waits."""
        with self._mutex:
            free = not self._led
            self._led = True
        try:
            yield self.writer if free else None
        finally:
            if free:
                self._hand_over()

    def _wait_for_turn(self, rows: Rows) -> BaseException | None:
        """Wait until these rows lead, or a leader has committed them; returns what interrupted that."""
        with self._mutex:
            if not self._led:
                self._led = rows.leads = True
                return None
            rows.done = threading.Lock()
            rows.done.acquire()
            self._queue.append(rows)
        interruption: BaseException | None = None
        waits = True
        while waits:
            try:
                rows.done.acquire()  # the leader releases it
                waits = False
            except BaseException as error:  # noqa: BLE001  # whatever a signal handler raises
                interruption = error
        return interruption

    def _lead(self, rows: Rows) -> None:
        group = [rows]
        if self._queue:
            self._gather(group)
        try:
            self._commit(group)
        finally:
            self._hand_over()
            if len(group) > 1:
                _release(group)
        if rows.error is not None:
            raise rows.error

    def _commit(self, pending: list[Rows]) -> None:
        try:
            while pending:
                pending = self.writer.commit(pending)
        except BaseException as error:
            for rows in pending:
                if rows.error is None and not rows.answered:
                    rows.error = error if isinstance(error, Exception) else _interrupted()
            if not isinstance(error, Exception):
                raise

    def _gather(self, group: list[Rows]) -> None:
        """Take all who wait, up to a size, and up to one that wants the writer for itself."""
        size, count = group[0].size, group[0].count
        queue = self._queue
        while queue and queue[0].count and size < self._bytes_max and count < GROUP_EVENTS_MAX:
            rows = queue.popleft()
            size += rows.size
            count += rows.count
            group.append(rows)

    def _hand_over(self) -> None:
        with self._mutex:
            if not self._queue:
                self._led = False
                return
            successor = self._queue.popleft()
        successor.leads = True
        assert successor.done is not None
        successor.done.release()


def _release(group: list[Rows]) -> None:
    for rows in group[1:]:
        assert rows.done is not None
        rows.done.release()


def _interrupted() -> Unavailable:
    return Unavailable(
        "the thread that committed for several was interrupted",
        hint="read the end of the log: the event may be there",
        code="interrupted",
    )
