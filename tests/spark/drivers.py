"""Drivers in processes of their own, which tests kill; and a sink whose driver dies when a part of a batch is there.

Run as a program, it streams the numbers in a directory's files into a topic until all are there:

    python -m tests.spark.drivers INPUT CHECKPOINT LOG FORMAT
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pyspark.sql.types import StructType

import headwater.spark
from headwater.spark.source import HeadwaterSource
from headwater.spark.writing import publishing, sink, spreading

DRIVER = "HEADWATER_TEST_DRIVER"  # its process
DIES_IN_BATCH = 1
CHUNKS = 3  # that are published of it


class DyingSource(HeadwaterSource):
    """The sink `dying`: whoever commits batch 1 kills the driver in the midst of it."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingWriter:  # noqa: N802  # Spark's name
        spreading.CHUNK_EVENTS = 20  # so that a batch has many
        return DyingWriter(sink.settings(self.options, schema, overwrite=overwrite, streaming=True))


class DyingWriter(sink.StreamWriter):
    def write(self, iterator):  # type: ignore[no-untyped-def]
        spreading.CHUNK_EVENTS = 20
        return super().write(iterator)

    def commit(self, messages, batchId):  # type: ignore[no-untyped-def]  # noqa: N803
        if batchId == DIES_IN_BATCH:
            publishing.PARTITIONS_AT_ONCE = 1
            die_after(CHUNKS)
        super().commit(messages, batchId)


def die_after(chunks: int) -> None:
    """Have the driver, its JVM and this process killed when so many chunks were read and appended."""
    read, left = publishing._read, iter(range(chunks, -1, -1))

    def reads(*args):  # type: ignore[no-untyped-def]
        if next(left) == 0:
            for process in (int(os.environ[DRIVER]), jvm(), os.getpid()):
                os.kill(process, signal.SIGKILL)
        return read(*args)

    publishing._read = reads


def jvm() -> int:
    """The process of the JVM, of which this one is a descendant."""
    process = os.getpid()
    while b"java" not in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0]:
        status = Path(f"/proc/{process}/status").read_text()
        process = int(next(line for line in status.splitlines() if line.startswith("PPid")).split()[1])
    return process


def main(directory: str, checkpoint: str, address: str, format: str) -> None:
    os.environ[DRIVER] = str(os.getpid())
    spark = headwater.spark.session("local[2]", quick=True, memory="512m")
    if format == "dying":
        spark.dataSource.register(DyingSource)
    source = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(directory)
    keyed = source.selectExpr("value AS data", "cast(value % 10 AS string) AS key")
    stream = keyed.writeStream.format(format).option("topic", "orders").option("partitions", 2)
    query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(address)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
