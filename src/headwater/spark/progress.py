"""Polls the progress of a session's jobs: finished tasks of all known tasks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S = 0.2

Told = Callable[[int, int], object]
"""Called with the tasks that are done, and all that are known by now. Both grow."""


@contextlib.contextmanager
def watching(spark: SparkSession, told: Told) -> Iterator[None]:
    """Tell of the tasks of all jobs of a session as long as the block runs, from another thread."""
    done = threading.Event()
    watch = threading.Thread(target=_watch, args=(spark, told, done), name="headwater-progress", daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()
        watch.join()


def _watch(spark: SparkSession, told: Told, done: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    tasks: dict[int, tuple[int, int]] = {}  # by stage: how many are done, and how many there are
    active = set(tracker.getActiveStageIds())  # what ran before is not of this work
    before = frozenset(active)
    while not done.wait(LOOK_S):
        active = {*tracker.getActiveStageIds()} - before
        for stage in tasks.keys() - active:  # it has ended since the last look
            tasks[stage] = tasks[stage][1], tasks[stage][1]
        for stage in active:
            info = tracker.getStageInfo(stage)
            if info is not None:
                tasks[stage] = info.numCompletedTasks, info.numTasks
        if tasks:
            told(sum(each[0] for each in tasks.values()), sum(each[1] for each in tasks.values()))
