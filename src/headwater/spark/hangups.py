"""Silences the stack traces that PySpark prints for processes that it no longer needs.

Processes that plan and commit are kept for a while, and then hung up on. They find that out when they answer, and the
daemon of PySpark, which they were forked from, prints where that was: a stack trace now and then, of nothing that went
wrong.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

_DAEMON = "pyspark.daemon"


def keep_silent() -> None:
    """Suppress exceptions of closed connections in a process of the daemon; do nothing elsewhere."""
    main: Any = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == _DAEMON:
        main.traceback = _Traceback()


class _Traceback:
    """The module `traceback`, as far as the daemon uses it."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            traceback.print_exc()
