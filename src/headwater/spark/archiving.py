"""The history of a log as Parquet files, written on Spark: `headwater.spark.archive(spark, "data", "out/")`.

The driver cuts what is new into tasks, each of one partition and a range of offsets. A worker reads the events of one,
verifies them, and puts its files into the store; when all before it are there, the driver has the manifest name them.
Whatever dies, the archive has no gap and nothing twice, and the next run goes on. Of a directory, a task is a finished
segment, as in `headwater archive` without Spark (history/archiver.py); a bucket or a server is cut by bytes.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Protocol

import msgspec

from headwater.address import absolute
from headwater.errors import Conflict, HeadwaterError, NotFound
from headwater.format.history import HistoryFile, HistoryManifest, nothing
from headwater.format.settings import TopicRecord, TopicSettings
from headwater.history.archiver import ArchiveTask, archiver_of, result
from headwater.history.files import reaching
from headwater.history.records import HistoryStore, open_history, url_of
from headwater.history.writing import write_files
from headwater.info import ArchivedRange, PartitionInfo, TopicInfo
from headwater.limits import MIB
from headwater.position import Position
from headwater.spark.session import open_place
from headwater.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.store import Store


FILE_BYTES = 64 * MIB  # of a log that is cut by bytes: as much as a segment of a directory has
JOBS_MAX = 32  # at once: each is a thread of the driver; on a large cluster, one has many tasks

Progress = Callable[[int, int], object]
TaskResult = tuple[ArchiveTask, list[HistoryFile] | HeadwaterError]


class ArchivePlanner(Protocol):
    """What decides which offsets are archived, and has the manifest name their files."""

    failures: list[HeadwaterError]

    def plan(self, *, seal: bool = False) -> list[list[ArchiveTask]]: ...
    def commit(self, task: ArchiveTask, files: list[HistoryFile]) -> list[ArchivedRange]: ...


def archive(
    spark: SparkSession,
    address: str,
    target: str,
    *,
    topics: str | Sequence[str] | None = None,
    seal: bool = False,
    file_bytes: int = FILE_BYTES,
    progress: Progress | None = None,
) -> list[ArchivedRange]:
    """Archive the finished segments of a log, or of some of its topics, that are not in `target` yet, as Parquet files.

    `target` is a directory, `s3://bucket/prefix` or `objects:///…`; the log remembers it. `seal` finishes the active
    segments first, so that all is archived that is durable. `file_bytes` is how much of a bucket or a server goes into
    one file. Returns what this call added, durable and named by the manifest; empty if there was nothing. Raises
    Corrupt for a damaged batch, Conflict if the archive is of another log, or the log is not the one any more that was
    archived, NotFound if retention has deleted what was not archived yet. What was archived before an error stays, and
    the rest is all the same; the error has the number of files `archived`. `progress` is called with the bytes of the
    log that are done, and all of them.
    """
    address, url = absolute(address), url_of(target)
    chosen = None if topics is None else [topics] if isinstance(topics, str) else list(topics)
    with open_place(address) as hw, contextlib.closing(open_history(url)) as store:
        planners: list[ArchivePlanner]
        if hw.can("archive"):
            planners = [archiver_of(hw.directory, url, topic=topic) for topic in ([None] if chosen is None else chosen)]
        else:
            store.begin(hw.uuid)
            hw.backend.remember_archive(url)
            planners = [SplitPlanner(hw, store, hw.topics() if chosen is None else chosen, file_bytes)]
        return _archive(spark, planners, (address, url), seal, progress)


def _archive(
    spark: SparkSession, planners: list[ArchivePlanner], places: tuple[str, str], seal: bool, progress: Progress | None
) -> list[ArchivedRange]:
    """Run all tasks. What another run has cut differently meanwhile is planned again."""
    done: list[ArchivedRange] = []
    failures: list[HeadwaterError] = []
    total = finished = 0
    again = True
    while again and not failures:
        again = False
        planned = [(planner, tasks) for planner in planners for tasks in planner.plan(seal=seal)]
        seal = False
        failures += [failure for planner in planners for failure in planner.failures]
        commits = _Commits(planned)
        total += sum(task.bytes for _, tasks in planned for task in tasks)
        for task, found in _run_all(spark, places, _by_turns([tasks for _, tasks in planned])):
            try:
                if isinstance(found, HeadwaterError):
                    raise found
                archived, superseded = commits.add(task, found)
                done += archived
                again = again or superseded
            except HeadwaterError as error:
                failures.append(error)
            finished += task.bytes
            if progress is not None:
                progress(finished, total)
    return result(done, failures)


class SplitPlanner:
    """Plans the archive of a bucket, or of the log behind a server: it is cut by bytes, between batches."""

    def __init__(self, hw: Store, store: HistoryStore, names: Sequence[str], file_bytes: int) -> None:
        self.failures: list[HeadwaterError] = []
        self._hw = hw
        self._store = store
        self._names = names
        self._file_bytes = file_bytes
        self._ends: dict[tuple[str, int], int] = {}  # how far each partition is archived, decided when it is planned

    def plan(self, *, seal: bool = False) -> list[list[ArchiveTask]]:
        """Return the tasks of each partition, in order; see `failures` for topics that were left out."""
        self.failures = []
        planned: list[list[ArchiveTask]] = []
        for name in self._names:
            try:
                planned += self._plan(name, seal)
            except HeadwaterError as error:
                self.failures.append(error)
        return planned

    def commit(self, task: ArchiveTask, files: list[HistoryFile]) -> list[ArchivedRange]:
        """Add files to the manifest, durably, unless another archiver was first; return what was added."""
        topic, partition = task.topic, task.partition
        with reaching(self._store.store.url):
            ticks = self._store.manifest(topic, partition).end_ticks
            chained: list[HistoryFile] = []
            for file in files:
                end = file.end_ticks if file.rows else ticks + file.end - file.start
                chained.append(msgspec.structs.replace(file, previous_ticks=ticks, end_ticks=end))
                ticks = end
            manifest = self._store.extend(topic, partition, chained)
            if manifest.at(task.start) != chained[0]:
                self._store.sweep(topic)
                return []
        return [ArchivedRange(topic.name, partition, each.start, each.end, each.bytes) for each in chained]

    def _plan(self, name: str, seal: bool) -> Iterator[list[ArchiveTask]]:
        if seal:
            _seal(self._hw, name)
        info = self._hw.describe(name)
        chosen = msgspec.convert(info.settings, TopicSettings)
        topic = TopicRecord(name=name, uuid=info.uuid, partitions=len(info.partitions), settings=chosen)
        self._store.tell(topic)
        info, manifests = look_at_archive(self._hw, self._store, topic)
        self._store.sweep(topic)
        for there, manifest in zip(info.partitions, manifests, strict=True):
            end = self._ends.setdefault((topic.uuid, there.partition), _reach(there, seal=seal))
            start: Position = manifest.end if manifest.parts else "earliest"
            if manifest.end < end:
                bounds = {"partition": there.partition, "start": start, "end": end, "split_bytes": self._file_bytes}
                splits = self._hw.splits(name, **bounds)  # type: ignore[arg-type]  # they are as they say
                yield [ArchiveTask(topic, there.partition, each.start, each.end, each.bytes) for each in splits]


class _Commits:
    """Files that are written, until all before them are, too."""

    def __init__(self, planned: list[tuple[ArchivePlanner, list[ArchiveTask]]]) -> None:
        self._planners = {tasks[0].log: planner for planner, tasks in planned if tasks}
        self._next = {tasks[0].log: tasks[::-1] for _, tasks in planned if tasks}
        self._waiting: dict[tuple[str, int, int], list[HistoryFile]] = {}

    def add(self, task: ArchiveTask, files: list[HistoryFile]) -> tuple[list[ArchivedRange], bool]:
        """Commit files, and those that waited for them; returns what is archived by that, and if others were first."""
        self._waiting[*task.log, task.start] = files
        following = self._next[task.log]
        archived: list[ArchivedRange] = []
        superseded = False
        while following and (found := self._waiting.pop((*task.log, following[-1].start), None)) is not None:
            done = self._planners[task.log].commit(following.pop(), found)
            archived += done
            superseded = superseded or not done
        return archived, superseded


def _seal(hw: Store, topic: str) -> None:
    """Finish what is there; a server does that by itself, and makes it durable."""
    if hw.can("seal"):
        hw.seal(topic)
    else:
        hw.sync(topic)


def _reach(there: PartitionInfo, *, seal: bool) -> int:
    """Return how far a partition is to be archived."""
    return there.durable if seal or there.finished is None else min(there.finished, there.durable)


def _by_turns(logs: list[list[ArchiveTask]]) -> list[ArchiveTask]:
    """Return the tasks of all partitions in turn."""
    longest = max(map(len, logs), default=0)
    return [tasks[turn] for turn in range(longest) for tasks in logs if turn < len(tasks)]


def _run_all(spark: SparkSession, places: tuple[str, str], tasks: Sequence[ArchiveTask]) -> Iterator[TaskResult]:
    """Each task and what became of it, as they are done: several jobs of Spark at once, each of a few tasks."""
    slots = 2 * spark.sparkContext.defaultParallelism  # so that none waits for the driver
    size = -(-slots // JOBS_MAX)
    tag = f"headwater-archive-{uuid.uuid4()}"
    waiting: set[Future[list[TaskResult]]] = set()
    with ThreadPoolExecutor(min(slots, JOBS_MAX), "headwater-archive") as pool:
        try:
            for lo in range(0, len(tasks), size):
                waiting.add(pool.submit(_run_job, spark, tag, places, tasks[lo : lo + size]))
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for each in done:
                    yield from each.result()
        except BaseException:
            for each in waiting:
                each.cancel()
            spark.sparkContext.cancelJobsWithTag(tag)
            raise


def _run_job(spark: SparkSession, tag: str, places: tuple[str, str], tasks: Sequence[ArchiveTask]) -> list[TaskResult]:
    context = spark.sparkContext
    context.addJobTag(tag)
    context.setJobDescription(f"archive {tasks[0].topic.name} as Parquet")
    return context.parallelize([(places, task) for task in tasks], len(tasks)).map(write).collect()


def write(work: tuple[tuple[str, str], ArchiveTask]) -> TaskResult:
    """Write the files of one task, in a worker. What it raises is the answer, so that the driver raises it as it is."""
    (address, url), task = work
    try:
        with open_place(address) as hw:
            if hw.can("archive"):
                return task, archiver_of(hw.directory, topic=task.topic.name).write(task)
            bounds = {"partition": task.partition, "start": task.start, "end": task.end}
            batches = hw.read_batches(task.topic.name, **bounds)  # type: ignore[arg-type]  # they are as they say
            with contextlib.closing(open_history(url)) as store:
                log = nothing(task.topic, task.partition)
                return task, write_files(store.store, log, (task.start, task.end), batches, (0, None))
    except HeadwaterError as error:
        return task, error


def look_at_archive(hw: Store, store: HistoryStore, topic: TopicRecord) -> tuple[TopicInfo, list[HistoryManifest]]:
    """Return a topic as it is now, and the manifest of each partition.

    The log goes on where each manifest ends, and is the one that was archived: else this raises Conflict, or NotFound
    where retention has deleted what was not archived yet. The log is looked at after its manifests, as that only grows.
    """
    before: list[HistoryManifest] | None = None
    while True:
        manifests = [store.manifest(topic, partition) for partition in range(topic.partitions)]
        info = hw.describe(topic.name)
        if info.uuid != topic.uuid:
            raise other_topic(store, topic.name)
        try:
            for there, manifest in zip(info.partitions, manifests, strict=True):
                _check(hw, there, manifest)
        except NotFound as error:
            if error.code != "offset_gone" or manifests == before:
                raise
            before = manifests  # somebody may have archived it meanwhile, and then had retention delete it
        else:
            return info, manifests


def other_topic(store: HistoryStore, name: str) -> Conflict:
    """Return the error for an archive of an earlier topic of this name."""
    return Conflict(
        f"{store.store.url} has another topic {name!r}, which was deleted in the log and recreated",
        hint="archive this one to a new location, or move the old one's folders away",
        code="archive_diverged",
    )


def _check(hw: Store, there: PartitionInfo, manifest: HistoryManifest) -> None:
    if not manifest.parts:
        return
    log = f"topic {manifest.topic!r}, partition {manifest.partition}"
    last = manifest.end - 1
    if there.start > manifest.end:
        raise NotFound(
            f"{log}: the archive ends at offset {manifest.end}, but retention has deleted up to {there.start}",
            hint="archive to a new location, and archive more often than retention deletes",
            code="offset_gone",
            oldest=there.start,
        )
    diverged = there.durable < manifest.end
    if not diverged and last >= (there.local or there.start):  # else it would be fetched from the archive
        batches = hw.read_batches(manifest.topic, partition=manifest.partition, start=last, end=last + 1)
        ticks = [int(tick) for batch in batches for tick in batch.ticks()]
        diverged = bool(ticks) and ticks != [manifest.parts[-1].last_ticks]
    if diverged:
        raise Conflict(
            f"{log}: the archive has other events at offset {last}",
            hint="the log was restored or changed after it was archived; archive it to a new location",
            code="archive_diverged",
        )
