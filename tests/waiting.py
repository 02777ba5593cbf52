"""Waiting for what another thread, process or task does: the only place where tests poll."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LIMIT_S = 50.0  # below the timeout of a test, so that a test that waits in vain says for what
PAUSE_S = 0.002


def wait_for(condition: Callable[[], T], limit_s: float = LIMIT_S) -> T:
    """Poll until a condition holds, and return what it gave; fail with the text of the condition after `limit_s`."""
    pause, until_s = threading.Event(), time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > until_s:
            raise AssertionError(_in_vain(condition, limit_s))
        pause.wait(PAUSE_S)
    return found


async def wait_in_loop(condition: Callable[[], T], limit_s: float = LIMIT_S) -> T:
    """Poll as `wait_for` does, while the tasks of the running loop go on."""
    until_s = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > until_s:
            raise AssertionError(_in_vain(condition, limit_s))
        await asyncio.sleep(PAUSE_S / 10)
    return found


def _in_vain(condition: Callable[[], object], limit_s: float) -> str:
    try:
        text = inspect.getsource(condition).strip()
    except (OSError, TypeError):  # a bound method of C, for one
        text = repr(condition)
    return f"waited {limit_s:g} s in vain for: {text}"
