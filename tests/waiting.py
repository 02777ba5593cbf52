"""Waiting for what another thread or process does."""

from __future__ import annotations

import threading
from collections.abc import Callable


def wait_for(condition: Callable[[], object]) -> None:
    """Look until it is so; the timeout of the tests ends what never comes."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.002)
