"""A flag that threads wait for.

As `threading.Event`, but in steps that are C: a signal handler that raises in the middle of `Event.set` or `Event.wait`
leaves its lock taken, and every other thread stuck. A wake-up that is lost here costs `PATIENCE_S`.
"""

from __future__ import annotations

import contextlib
import threading
import time

PATIENCE_S = 0.5


class Latch:
    """A flag that is not set at first. Safe from any thread."""

    def __init__(self) -> None:
        self._set = False
        self._closed = threading.Lock()  # held until it is set: who waits tries to take it
        self._closed.acquire()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it, and wake all who wait."""
        self._set = True
        self._open()

    def clear(self) -> None:
        """Take it back."""
        self._set = False
        self._closed.acquire(blocking=False)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set; returns whether it is, when the time is over."""
        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while not self._set:
            left_s = min(PATIENCE_S, deadline - time.monotonic())
            if left_s <= 0:
                break
            if self._closed.acquire(timeout=left_s):
                self._open()  # for the others who wait
        return self._set

    def _open(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is open
            self._closed.release()
