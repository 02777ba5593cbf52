"""A function at work in a test, and waiting for what it does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headwater import App, Limits, Store
from headwater.info import ViewInfo
from headwater.views.function_counts import function_infos
from headwater.views.function_worker import FunctionWorker

LIMITS = Limits(retry_ms=5, retry_ms_max=20, lease_ms=60_000)
PATIENCE_S = 60.0


def values(hw: Store, topic: str) -> list[Any]:
    return [event.value for event in hw.read(topic)]


def place_of(hw: Store, name: str, topic: str = "in") -> list[int]:
    return [info.cursor for info in hw.consumers(topic) if info.name == f"function.{name}"]


def info_of(hw: Store, name: str) -> ViewInfo:
    [found] = [info for info in function_infos(hw) if info.name == name]
    return found


@contextmanager
def acting_on(hw: Store, app: App, name: str) -> Iterator[FunctionWorker]:
    """One function of an application at work, without the others."""
    actor = FunctionWorker(hw, app.functions[name])
    thread = threading.Thread(target=actor.run)
    thread.start()
    try:
        yield actor
    finally:
        actor.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
