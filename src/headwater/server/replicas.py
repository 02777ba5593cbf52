"""The replicas of a served log: their requests wait in a few dedicated threads.

So replicas that wait for more take no thread from other requests.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from headwater.directory.directory import Directory
from headwater.replication.source import LocalSource


class Replicas:
    """The replicas of one served log."""

    def __init__(self, backend: Directory, threads: int) -> None:
        self.source = LocalSource(backend)
        self.threads = ThreadPoolExecutor(threads, "headwater-replica")

    def close(self) -> None:
        """Answer waiting requests, and release the threads."""
        self.source.stop()
        self.threads.shutdown(wait=True, cancel_futures=True)
