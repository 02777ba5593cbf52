"""Runs the pipelines of an application: each once over the present events, or streams until they are stopped.

A run is planned before it begins, and the plan is kept: a batch that was killed is done again over the same events, and
a stream goes on from its checkpoint. Whatever the place is that it writes to knows the name of the run, and takes what
it was given before for done.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headwater.address import absolute
from headwater.errors import Corrupt, HeadwaterError, Invalid, NotFound
from headwater.spark.failures import cause
from headwater.spark.pipelines import runs
from headwater.spark.pipelines.frames import bounds, frames, passed
from headwater.spark.pipelines.runs import Notebook, RunPlan, Status
from headwater.spark.pipelines.targets import StreamWrites, target_of
from headwater.spark.session import open_place, watching_tasks
from headwater.views.app import App
from headwater.views.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 0.2  # between two looks at streams
STARTS_MAX = 8  # of a stream
INITIALIZING, LATE = "Initializing sources", "Python worker failed to connect back"  # as Spark calls it
PATIENCE_S = 30.0  # what a batch of a stream is given to end, when it is stopped

Told = Callable[[Status], object]
"""Called now and then with how a pipeline is."""


def run(
    spark: SparkSession,
    address: str | os.PathLike[str],
    app: App,
    names: Sequence[str] | None = None,
    *,
    follow: bool = False,
    fresh: bool = False,
    checkpoints: str | os.PathLike[str] | None = None,
    stop: threading.Event | None = None,
    told: Told | None = None,
) -> list[Status]:
    """Run the pipelines of an application, or those with these names, over the log at an address; how each has ended.

    They are run one after the other, in the order in which they were declared; a stream ends when it has done what is
    there. With `follow`, streams are run together behind the others until `stop` is set. With `fresh`, they forget what
    they did before. `checkpoints` is a directory to keep their progress in, which is beside the log if that is in a
    directory. Raises NotFound for a name that is unknown, Unavailable for a pipeline that another process runs, and
    what went wrong with the name of its pipeline: those behind it are not run then.
    """
    place = absolute(os.fspath(address))
    root = runs.root_of(place, checkpoints)
    ending = stop or threading.Event()
    all_of_them = [_PipelineRun(spark, place, app, each, root, ending, told) for each in _chosen(app, names)]
    now = [each for each in all_of_them if not (follow and each.pipeline.mode == "stream")]
    for each in now:
        if not ending.is_set():
            each.once(fresh)
    later = [each for each in all_of_them if each not in now]
    if later:
        _follow(later, fresh, ending)
    return [each.status for each in all_of_them]


def _chosen(app: App, names: Sequence[str] | None) -> list[Pipeline]:
    there = ", ".join(app.pipelines)
    if not app.pipelines:
        raise NotFound("the application has no pipelines", hint="declare one with @app.pipeline", code="no_pipeline")
    for name in names or ():
        if name not in app.pipelines:
            raise NotFound(f"the application has no pipeline {name!r}", hint=f"it has {there}", code="no_pipeline")
    return [each for name, each in app.pipelines.items() if not names or name in names]


def _follow(streams: list[_PipelineRun], fresh: bool, stop: threading.Event) -> None:
    """Run streams together until they are stopped, or one of them fails: then all end."""
    with contextlib.ExitStack() as stack:
        queries = [(each, stack.enter_context(each.streaming(fresh, follow=True))) for each in streams]
        while not stop.wait(LOOK_S) and all(query.isActive for _, query in queries):
            for each, query in queries:
                each.look(query)


class _PipelineRun:
    """One pipeline, while it is run."""

    def __init__(
        self,
        spark: SparkSession,
        address: str,
        app: App,
        pipeline: Pipeline,
        root: Path,
        stop: threading.Event,
        told: Told | None,
    ) -> None:
        self.pipeline = pipeline
        self._spark = spark
        self._address = address
        self._stop = stop
        self._told = told
        self._notebook = Notebook(root, pipeline.name)
        shelf = app.binders.get(pipeline.target.place)
        indexes = shelf.indexes if shelf is not None and pipeline.target.kind == "binder" else []
        self._target = target_of(address, pipeline, indexes, self._notebook.path)
        self._batches = StreamWrites()
        self._began_s = 0.0
        self._seen = "", -2  # the time and the batch of what was noted last of a stream
        self.status = Status(pipeline.name, pipeline.mode, list(pipeline.topics), str(pipeline.target))

    def once(self, fresh: bool) -> None:
        """Do what is there to be done."""
        if self.pipeline.mode == "stream":
            with self.streaming(fresh, follow=False) as query:
                while query.isActive and not self._stop.wait(LOOK_S):
                    self.look(query)
            return
        with self._running():
            plan = self._batch_plan(fresh)
            if plan is not None:
                self._batch(plan)

    def _batch_plan(self, fresh: bool) -> RunPlan | None:
        """Return the plan of a run that was killed, or one for all present events; None if those were processed before.

        Only what is appended must not be done again: anything else is replaced by the same, or by more.
        """
        plan = self._notebook.plan()
        with open_place(self._address) as hw:
            starts, ends = bounds(hw, self._address, self.pipeline)
        appends = self.pipeline.target.kind == "topic"
        if appends and not fresh and plan is not None and plan.declared == self.pipeline.declared():
            if not plan.done:
                return plan
            if plan.ends == ends:
                return None
        if plan is not None and not plan.done:
            self._target.settle(plan.run)
        return runs.new_plan(self.pipeline, ends, runs.between(starts, ends))

    def _batch(self, plan: RunPlan) -> None:
        self._notebook.keep(plan)
        with watching_tasks(self._spark, self._tasks):
            result = self._computed(frames(self._spark, self._address, self.pipeline, plan.ends))
            rows = self._target.write(result, plan.run)
        self._notebook.keep(msgspec.structs.replace(plan, done=True))
        self.status.events, self.status.rows, self.status.batches = plan.events, rows or 0, 1
        self.status.reached = plan.ends

    @contextlib.contextmanager
    def streaming(self, fresh: bool, *, follow: bool) -> Iterator[StreamingQuery]:
        """Return a stream that runs as long as the block does; what it raises, the end of the block raises."""
        with self._running():
            plan = self._notebook.plan()
            if plan is None or fresh:
                plan = runs.new_plan(self.pipeline)
                self._notebook.keep(plan)
            runs.check_same(plan, self.pipeline)
            query = self._started(plan, follow)
            try:
                yield query
                self.look(query)
            finally:
                _end(query)
                self.look(query)
            error = query.exception()
            if error is not None and not self._stop.is_set():
                raise self._batches.raised or error

    def _started(self, plan: RunPlan, follow: bool) -> StreamingQuery:
        """Start a stream, again if needed: Spark gives a process that it starts for it ten seconds, busy or not."""
        for _ in range(STARTS_MAX - 1):
            query = self._start(plan, follow)
            while query.isActive and query.status["message"] == INITIALIZING and not self._stop.wait(LOOK_S / 4):
                pass
            if query.isActive or LATE not in str(query.exception()):
                return query
        return self._start(plan, follow)

    def _start(self, plan: RunPlan, follow: bool) -> StreamingQuery:
        result = self._computed(frames(self._spark, self._address, self.pipeline, None))

        writer = self._target.stream(result, plan.run, self._batches).queryName(self.pipeline.name)
        every = {"processingTime": f"{self.pipeline.every or 0} seconds"} if follow else {"availableNow": True}
        checkpoint = self._notebook.checkpoint(plan).as_uri()
        return writer.trigger(**every).option("checkpointLocation", checkpoint).start()

    def _computed(self, given: Sequence[DataFrame]) -> DataFrame:
        """Return the result of the user's function."""
        from pyspark.sql import DataFrame

        found: Any = self.pipeline.compute(*given)
        if not isinstance(found, DataFrame):
            raise Invalid(f"its function returned {type(found).__name__}, not a DataFrame")
        if found.isStreaming != (self.pipeline.mode == "stream"):
            raise Invalid("its function returned a DataFrame that is not derived from its arguments")
        return found

    def look(self, query: StreamingQuery) -> None:
        """Note how far a stream is."""
        status = self.status
        for progress in self._unseen(query):
            self._seen = progress["timestamp"], progress["batchId"]
            self._batches.rows += max(0, progress["sink"]["numOutputRows"])  # which only a topic counts
            events, reached = passed(progress)
            status.events += events
            status.batches += events > 0  # Spark tells of those without any, too
            status.reached = {**status.reached, **reached}
            status.rate = events / max(progress["durationMs"].get("triggerExecution", 0) / 1000, 0.001)
        status.rows = self._batches.rows
        self._tell(now=False)

    def _unseen(self, query: StreamingQuery) -> list[Any]:
        """Return the progress reports since the last poll. Fetching all that Spark remembers is not cheap."""
        last: Any = query.lastProgress
        if last is None or last["timestamp"] <= self._seen[0]:
            return []
        if last["batchId"] == self._seen[1] + 1:
            return [last]
        return [each for each in query.recentProgress if each["timestamp"] > self._seen[0]]

    def _tasks(self, done: int, total: int) -> None:
        if self._stop.is_set():
            self._spark.sparkContext.cancelAllJobs()
        self.status.tasks = done, total
        self._tell(now=False)

    def _tell(self, *, now: bool) -> None:
        self.status.seconds = round(time.monotonic() - self._began_s, 3)
        self._notebook.tell(self.status, now=now)
        if self._told is not None:
            self._told(self.status)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Hold the pipeline's lock, and keep its status."""
        with self._notebook.held():
            self._begin()
            try:
                self._target.check()
                yield
                self.status.state = "idle"
            except KeyboardInterrupt:
                self.status.state = "interrupted"
                raise
            except Exception as error:
                if self._stop.is_set():  # what was cancelled fails in many ways
                    self.status.state = "interrupted"
                    return
                if isinstance(error, HeadwaterError) and "pipeline" in error.facts:
                    self.status.state = "interrupted"  # by another that runs at the same time
                    raise
                self.status.state, self.status.error = "failed", cause(error)
                raise _named(self.pipeline.name, error) from error
            finally:
                self.status.ended = runs.moment()
                self.status.tasks = (self.status.tasks[1],) * 2 if self.status.state == "idle" else self.status.tasks
                if self.pipeline.mode == "batch":
                    self.status.rate = self.status.events / max(time.monotonic() - self._began_s, 0.001)
                self._tell(now=True)

    def _begin(self) -> None:
        with contextlib.suppress(Corrupt):
            before = self._notebook.status()
            self.status.reached = before.reached if before is not None else {}
        self._began_s = time.monotonic()
        self.status.state, self.status.began, self.status.pid = "running", runs.moment(), os.getpid()
        self._tell(now=True)


def _end(query: StreamingQuery) -> None:
    """Stop a stream between two batches, if that can be had soon: one that is cut off is done again by the next run."""
    until_s = time.monotonic() + PATIENCE_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until_s:
        time.sleep(LOOK_S / 4)
    query.stop()


def _named(pipeline: str, error: Exception) -> HeadwaterError:
    """Return an error with the name of the pipeline and without the stacks of Spark."""
    if isinstance(error, HeadwaterError):
        kind, hint, code, facts = type(error), error.hint, error.code, {**error.facts, "pipeline": pipeline}
        return kind(f"pipeline {pipeline!r}: {error.message}", hint=hint, code=code, **facts)
    told, dash, hint = cause(error).partition(" — ")
    hint = hint if dash else "fix it, and run it again"
    return Invalid(f"pipeline {pipeline!r} failed: {told}", hint=hint, code="pipeline_failed", pipeline=pipeline)
