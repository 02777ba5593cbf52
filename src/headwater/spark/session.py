"""A Spark session that is set up for Headwater: quiet, on loopback, with a Java of its own if there is no other.

Also what every job needs: the store that it works on, the progress of its tasks, and silence about processes that
PySpark ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater import opening
from headwater.environment import open_options
from headwater.errors import Unsupported
from headwater.spark import installation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.store import Store


ROWS_MAX = 65_536  # in one Arrow batch: larger ones are not faster, and take more memory
_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_STACK = "-Xss8m"  # how Spark looks through the message of a stream that is stopped takes a deep one
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# What may be set in a session that is there already.
_SETTINGS = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_MAX),
    "spark.sql.session.timeZone": "UTC",
}
_DAEMON = "pyspark.daemon"
LOOK_S = 0.2
Told = Callable[[int, int], object]
"""Called with the tasks that are done, and all that are known by now. Both grow."""


def session(
    master: str | None = None,
    *,
    name: str = "headwater",
    memory: str = "1g",
    checkpoints: str | os.PathLike[str] | None = None,
    quick: bool = False,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the session of this process: made, or the one that is there with what Headwater needs set in it.

    `master` is Spark's, `local[*]` unless it is said. `memory` is the heap of the driver. `checkpoints` is where
    streaming queries keep their progress, each in a directory of its own. With `quick` it starts sooner and works more
    slowly, for short work. `config` is for settings of Spark's own, and wins. Raises Unsupported without PySpark, or
    without Java.
    """
    try:
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Unsupported("Spark needs PySpark", hint="pip install 'headwater[spark]'") from error
    PySparkLogger.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)  # which tells what is raised
    chosen = dict(_SETTINGS)
    if checkpoints is not None:
        chosen["spark.sql.streaming.checkpointLocation"] = os.fspath(checkpoints)
    active = SparkSession.getActiveSession()
    if active is not None:
        for key, value in {**chosen, **(config or {})}.items():
            active.conf.set(key, value)
        return active
    master = master or "local[*]"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen |= {
        "spark.driver.memory": memory,
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / f"headwater-warehouse-{os.getuid()}"),
    }
    if master.startswith("local"):
        chosen |= _local(quick)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**chosen, **(config or {})}.items():
        builder = builder.config(key, value)
    with installation.using_spark_home() if master.startswith("local") else contextlib.nullcontext():
        return builder.getOrCreate()


def _local(quick: bool) -> dict[str, str]:
    """Return the settings for a driver that runs the tasks itself."""
    os.environ["JAVA_HOME"] = str(installation.java_home())
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    quiet = f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}"
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{quiet} {_STACK} {_QUICK}" if quick else f"{quiet} {_STACK}",
        "spark.sql.shuffle.partitions": str(len(os.sched_getaffinity(0))),
        "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
    }


def open_place(address: str, **options: Any) -> Store:
    """Open a store that must exist, with the credentials of the environment."""
    options.setdefault("mode", "existing")
    return opening.open(address, **options, **open_options(address))


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


@contextlib.contextmanager
def watching_tasks(spark: SparkSession, told: Told) -> Iterator[None]:
    """Report the tasks of all jobs of a session while the block runs, from another thread."""
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
