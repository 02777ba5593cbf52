"""The access log: one line of JSON for each request, written by a thread of its own (docs/RUNNING.md lists the fields).

A request only puts a record into a bounded queue. While the file cannot be written, or not as fast as requests come,
lines are dropped; the log records their number as soon as it can be written again. Nothing is synced. Secrets are
never written: only parameters that the server knows keep their values, and headers are omitted. Unprintable
characters are escaped, so that a request cannot forge a line or send control codes to a terminal.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from headwater.disk.disk import Clock, Disk
from headwater.event import time_of
from headwater.server.http.routes import QUERY_NAMES

QUEUE_MAX = 10_000  # lines that wait: at most some 20 MB, and what a second of a busy server brings
LINES_PER_WRITE = 1000
FLUSH_S = 0.25  # how late a line may be
CLOSE_S = 5.0  # how long a stopping server waits for a slow reader of the log's pipe
TARGET_CHARS_MAX = 1024  # a longer address is cut
STANDARD_ERROR = 2
TICKS_PER_SECOND = 10_000_000
HIDDEN = "***"


class RequestRecord(NamedTuple):
    """One request and its answer."""

    ticks: int
    client: str  # the address
    user: str  # empty if not authenticated
    method: str
    target: str  # the path and the query as they were asked for, not decoded
    route: str  # the pattern of the path; empty if there is none
    status: int
    bytes_in: int
    bytes_out: int
    seconds: float


class AccessLogLine(msgspec.Struct, omit_defaults=True):
    """The fields of a line, in their order."""

    time: str
    client: str
    method: str
    path: str
    status: int
    ms: float
    bytes_in: int
    bytes_out: int
    route: str = ""
    query: str = ""
    user: str = ""


class AccessLogNotice(msgspec.Struct, omit_defaults=True):
    """A line of the log about itself."""

    time: str
    dropped: int = 0
    error: str = ""


_encode = msgspec.json.Encoder().encode
_encode(AccessLogLine("", "", "", "", 0, 0.0, 0, 0))  # here, in one thread, as msgspec needs it
_encode(AccessLogNotice(""))


class AccessLog:
    """An open access log. `note` and `dropped` are for the loop's thread, the rest is safe from any."""

    def __init__(self, path: Path | None, disk: Disk | None = None, clock: Clock | None = None) -> None:
        """Write to this file, made if it is not there, or to standard error. Raises OSError."""
        self._path = path
        self._disk = disk or Disk()
        self._clock = clock or Clock()
        self._fd = STANDARD_ERROR if path is None else self._disk.open_append(path)
        self._queue: deque[RequestRecord] = deque()
        self._refused = 0  # changed by the loop's thread alone,
        self._failed = 0  # and this by the writing one
        self._told = 0
        self._torn = False  # the last write failed, maybe in the midst of a line
        self._reopen = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headwater-access-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Return how many lines could not be written since the start."""
        return self._refused + self._failed

    def note(
        self,
        client: str,
        user: str,
        method: str,
        target: str,
        route: str,
        status: int,
        bytes_in: int,
        bytes_out: int,
        seconds: float,
    ) -> None:
        """Have a line written for an answer that has ended. Never waits."""
        if len(self._queue) >= QUEUE_MAX:
            self._refused += 1
            return
        known = client, user, method, target[:TARGET_CHARS_MAX], route, status, bytes_in, bytes_out, seconds
        self._queue.append(RequestRecord(self._clock.ticks(), *known))

    def reopen(self) -> None:
        """Go on in a new file: the old one has been renamed. Lines that wait go to the old one."""
        self._reopen = True

    def close(self) -> None:
        """Write what waits, and end. May be called twice."""
        self._closing.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closing.wait(FLUSH_S):
            self._flush()
        self._flush()
        if self._fd != STANDARD_ERROR:
            self._disk.close(self._fd)
            self._fd = STANDARD_ERROR

    def _flush(self) -> None:
        again, self._reopen = self._reopen, False
        while self._queue:
            taken = [self._queue.popleft() for _ in range(min(len(self._queue), LINES_PER_WRITE))]
            if not self._write(b"".join(map(line_of, taken))):
                self._failed += len(taken)
        dropped = self.dropped
        if dropped > self._told and self._write(self._notice(dropped=dropped - self._told)):
            self._told = dropped
        if again and self._path is not None:
            try:
                fresh = self._disk.open_append(self._path)
            except OSError as error:
                self._write(self._notice(error=f"cannot be reopened: {error.strerror}"))
            else:
                self._disk.close(self._fd)
                self._fd = fresh

    def _write(self, data: bytes) -> bool:
        try:
            self._disk.append(self._fd, b"\n" + data if self._torn else data)
        except OSError:  # a full disk, or a pipe without a reader: a notice follows as soon as there is room
            self._torn = True
        else:
            self._torn = False
        return not self._torn

    def _notice(self, *, dropped: int = 0, error: str = "") -> bytes:
        return _encode(AccessLogNotice(_time(self._clock.ticks()), dropped, error)) + b"\n"


def line_of(access: RequestRecord) -> bytes:
    """Return the line of a request, with its end."""
    path, _, query = access.target.partition("?")
    if not path.startswith("/") and "://" in path:  # a whole address, which may have a password in it
        path = "/" + path.partition("://")[2].partition("/")[2]
    return (
        _encode(
            AccessLogLine(
                _time(access.ticks),
                access.client,
                _printable(access.method),
                _printable(path),
                access.status,
                round(access.seconds * 1000, 3),
                access.bytes_in,
                access.bytes_out,
                access.route,
                _printable(_without_secrets(query)) if query else "",
                _printable(access.user),
            )
        )
        + b"\n"
    )


def _time(ticks: int) -> str:
    second, rest = divmod(ticks, TICKS_PER_SECOND)
    return f"{_until_seconds(second)}.{rest // 10_000:03d}Z"


@lru_cache(maxsize=8)
def _until_seconds(second: int) -> str:
    """Return the text of a second: many requests share one."""
    return time_of(second * TICKS_PER_SECOND).strftime("%Y-%m-%dT%H:%M:%S")


def _without_secrets(query: str) -> str:
    pairs = query.split("&")
    return "&".join(pair if pair.partition("=")[0] in QUERY_NAMES and "=" in pair else HIDDEN for pair in pairs)


def _printable(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape", "surrogatepass").decode("ascii")
