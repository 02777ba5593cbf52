"""Rebuilds a binder on Spark: workers fold the history, shard by shard, and this process continues from there.

Each shard has some of the documents, and its task reads all events that may change them, in order: of one partition,
as long as documents are those of the event's key, else of all. Nothing is shuffled. A task leaves a file beside the new
binder, under a name of its own, so that one that is tried again, or twice at a time, disturbs no other. Everything else
is as in `views.rebuild`: locks, the last events, the exact place where the live projection goes on, and the swap.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any

import msgspec

from headwater.disk.disk import Disk
from headwater.errors import HeadwaterError, Unavailable
from headwater.remote.failures import ErrorBody, revive
from headwater.spark.failures import cause
from headwater.spark.folding import shipping
from headwater.spark.folding.shard_fold import fold_shard
from headwater.spark.folding.sharding import Task, plan
from headwater.spark.session import open_place
from headwater.store import Store
from headwater.views import rebuild as local
from headwater.views.app import App, Projection
from headwater.views.shards import ProjectionRange, Shard

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Progress = Callable[[int, int], object]
"""Called with the events that are folded, and all there are now."""

LOOK_S = 0.2  # between two looks at how far the tasks are
_PASSED = Struct("<q")


def rebuild(spark: SparkSession, hw: Any, app: App, binder: str, progress: Progress | None = None) -> int:
    """Rebuild a binder on Spark from all events of its topics, and make it current; return the number of events folded.

    The documents are those of the live projection, which goes on at the exact offset where this ends. A projection with
    `many=True` is folded in this process: what its fold reads may be anywhere. Raises what `views.rebuild` raises, and
    Unsupported for a log that is not in a directory.
    """
    hw.directory  # noqa: B018  # raises Unsupported for any other store
    projections = app.of_binder(binder)
    elsewhere = None if any(each.many for each in projections) else _OnSpark(spark, hw, projections)
    indexes = app.binders[binder].indexes
    return local.rebuild(hw, projections, indexes=indexes, progress=progress, elsewhere=elsewhere)


class _Job(msgspec.Struct, frozen=True):
    """The input of all tasks of a rebuild."""

    log: str
    projections: bytes
    tasks: list[Task]
    fields: list[str]
    beside: str


class _Done(msgspec.Struct, frozen=True):
    """The result of a task: its shard, or its error."""

    shard: Shard | None = None
    error: ErrorBody | None = None


class _OnSpark:
    """The workers of a session, as `views.rebuild` calls them."""

    def __init__(self, spark: SparkSession, hw: Store, projections: Sequence[Projection]) -> None:
        self._spark = spark
        self._hw = hw
        functions = [code for each in projections for code in (each.fold, each.key) if callable(code)]
        self._projections = shipping.pack(list(projections), functions)
        self._order = [each.name for each in projections]

    def fold(
        self,
        spans: Sequence[ProjectionRange],
        fields: Sequence[str],
        beside: Path,
        progress: Progress,
        *,
        by_partition: bool,
    ) -> list[Shard]:
        places = {name: place for place, name in enumerate(self._order)}
        cores = self._spark.sparkContext.defaultParallelism
        tasks = plan(spans, places, cores, by_partition=by_partition)
        job = _Job(str(self._hw.path.absolute()), self._projections, tasks, list(fields), str(beside.absolute()))
        with _watching(self._hw.directory.disk, beside, tasks, sum(span.events for span in spans), progress):
            found = _run(self._spark, msgspec.msgpack.encode(job), len(tasks))
        for done in found:
            if done.error is not None:
                raise revive(done.error)
        return [done.shard for done in found if done.shard is not None]


def _run(spark: SparkSession, job: bytes, tasks: int) -> list[_Done]:
    """Run the tasks, each in one of Spark's, and wait for them."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _work(job, batches)

    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
    from pyspark.errors import PySparkException

    try:
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(work, "done binary").collect()
    except (PySparkException, Py4JError) as error:
        raise Unavailable(
            f"the rebuild failed on Spark; the binder is unchanged: {cause(error)}",
            hint="if a projection function ends its process, rebuild without --on spark to see at which event",
            code="spark_failed",
        ) from error
    return [msgspec.msgpack.decode(bytes(row["done"]), type=_Done) for row in rows]


def _work(job: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fold the shards with the given numbers; runs in a worker."""
    import pyarrow as pa

    for batch in batches:
        numbers: list[Any] = batch.column(0).to_pylist()
        done = [msgspec.msgpack.encode(_fold(msgspec.msgpack.decode(job, type=_Job), number)) for number in numbers]
        yield pa.RecordBatch.from_arrays([pa.array(done, pa.binary())], ["done"])


def _fold(job: _Job, number: int) -> _Done:
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = 0 if context is None else context.taskAttemptId()
    beside = Path(job.beside)
    file = beside.with_name(f"{beside.stem}.{number}-{attempt}.tmp")
    projections: list[Projection] = shipping.unpack(job.projections)
    try:
        with open_place(job.log) as hw, _telling(beside, number) as told:
            return _Done(fold_shard(hw, projections, job.tasks[number], job.fields, file, told))
    except HeadwaterError as error:
        return _Done(error=ErrorBody(type(error).__name__, error.code, error.message, error.hint))


# How far the tasks are: a file beside the new one, with a number for each


def _passed_file(beside: Path) -> Path:
    return beside.with_name(f"{beside.stem}.passed.tmp")


@contextlib.contextmanager
def _telling(beside: Path, number: int) -> Iterator[Callable[[int], None]]:
    """Report how many events were passed; runs in a worker. Errors are ignored: nothing depends on it."""
    disk = Disk()
    try:
        fd = disk.open_write(_passed_file(beside))
    except OSError:
        yield lambda _: None
        return
    try:
        yield lambda passed: _ignore(disk.pwrite(fd, _PASSED.pack(passed), number * _PASSED.size))
    finally:
        disk.close(fd)


def _ignore(_: object) -> None:
    """Ignore a result."""


@contextlib.contextmanager
def _watching(disk: Disk, beside: Path, tasks: Sequence[Task], events: int, progress: Progress) -> Iterator[None]:
    """Report the progress of the tasks while the block runs, from another thread."""
    fd = disk.create(_passed_file(beside))
    done = threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_S):
            told = disk.pread(fd, len(tasks) * _PASSED.size, 0)
            passed = [number for (number,) in _PASSED.iter_unpack(told[: len(told) // _PASSED.size * _PASSED.size])]
            progress(sum(each // task.shards for each, task in zip(passed, tasks, strict=False)), events)

    thread = threading.Thread(target=watch, name="headwater-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        disk.close(fd)
        with contextlib.suppress(OSError):
            disk.unlink(_passed_file(beside))
