"""A Spark session that is set up for Headwater: quiet, on loopback, with a Java of its own if there is no other."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.errors import Unsupported
from headwater.spark import home, java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    with home.chosen() if master.startswith("local") else contextlib.nullcontext():
        return builder.getOrCreate()


def _local(quick: bool) -> dict[str, str]:
    """What is set where the driver does the work itself."""
    os.environ["JAVA_HOME"] = str(java.home())
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    quiet = f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}"
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{quiet} {_STACK} {_QUICK}" if quick else f"{quiet} {_STACK}",
        "spark.sql.shuffle.partitions": str(len(os.sched_getaffinity(0))),
        "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
    }
