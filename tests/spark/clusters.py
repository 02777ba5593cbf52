"""A job on two executors that are on two hosts, as far as Spark can tell. Run as a program:

    python -m tests.spark.clusters LOG DIRECTORY

Both workers are in the JVM of the driver, as in a `local-cluster`; but Spark starts no second attempt of a task on a
host that has one already, so they have addresses of their own. What was found is told as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkContext, TaskContext

import headwater.spark
from headwater.spark import installation

COUNT, TASKS = 20_000, 4
HOSTS = ("127.0.0.1", "127.0.0.2")
SLOW, FLAKY = 0, 1  # tasks: one waits for a second attempt of itself, one fails at first
WAIT_S = 200.0
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # as in sessions for short work


def troubled(directory: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does with its rows, noting which attempts there were."""

    def attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        task, number = context.partitionId(), context.attemptNumber()
        Path(directory, f"{task}-{number}-{os.getppid()}").touch()
        if task == SLOW and number == 0:
            ends = time.monotonic() + WAIT_S
            while time.monotonic() < ends and not list(Path(directory).glob(f"{SLOW}-1-*")):
                time.sleep(0.01)
        yield from batches
        if task == FLAKY and number == 0:
            raise RuntimeError("the first attempt fails, when all its rows are staged")

    return attempt


def cluster(directory: str) -> str:
    """Start a master and two workers in the JVM of this process; returns the address of the master."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("JAVA_HOME", str(installation.java_home()))
    os.environ["SPARK_LOCAL_IP"] = HOSTS[0]
    os.environ["SPARK_HOME"] = str(installation.spark_home())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-java-options '{QUICK}' pyspark-shell"
    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    conf = jvm.org.apache.spark.SparkConf().set("spark.master.rest.enabled", "false").set("spark.ui.enabled", "false")
    nothing = jvm.scala.Option.apply(None)
    deploy = jvm.org.apache.spark.deploy
    address = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, conf)._1().address()
    url = f"spark://{HOSTS[0]}:{address.port()}"
    masters = SparkContext._gateway.new_array(jvm.java.lang.String, 1)  # type: ignore[union-attr]
    masters[0] = url
    for number, host in enumerate(HOSTS):
        place = (host, 0, 0, 1, 512, masters, f"{directory}/worker-{number}")
        deploy.worker.Worker.startRpcEnvAndEndpoint(*place, jvm.scala.Option.apply(number), conf, nothing)
    return url


def main(address: str, directory: str) -> None:
    config = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK,
        "spark.driver.host": HOSTS[0],
        "spark.driver.bindAddress": HOSTS[0],
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = headwater.spark.session(cluster(directory), memory="512m", config=config)
    rows = spark.range(0, COUNT, 1, TASKS).selectExpr("cast(id AS string) AS data", "cast(id % 97 AS string) AS key")
    written = rows.mapInArrow(troubled(directory), rows.schema)
    written.write.format("headwater").option("topic", "orders").option("partitions", 3).mode("append").save(address)
    read = spark.read.format("headwater").option("topic", "orders").load(address)
    found = read.selectExpr("count(*) AS count", "count(DISTINCT data) AS distinct").first()
    assert found is not None
    sys.stdout.write(json.dumps({"count": found["count"], "distinct": found["distinct"]}) + "\n")
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
