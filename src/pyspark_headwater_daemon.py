"""The process that Spark forks its Python workers from, as PySpark has it, but silent where a worker ends in peace.

Spark hangs up on a worker that had nothing to do for a minute. The worker finds nobody to take its last bytes, and
PySpark prints a stack for each. Its name is at the top, so that it loads nothing before it forks.
"""

import sys
import traceback
from typing import Any

from pyspark import daemon


class _Traceback:
    """The module, without what is no trouble."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            traceback.print_exc()


daemon.traceback = _Traceback()  # type: ignore[assignment,attr-defined]  # all that it calls is there

if __name__ == "__main__":
    daemon.manager()
