"""Sealed history as Parquet, on Spark: `headwater.spark.archive(spark, "data", "parquet:out/")`.

The driver cuts what is new into files, each of one partition and a range of offsets. A task reads the events of one,
verifies them, and puts the file into the store; when all before it are there, the driver has the manifest name it. So
whatever dies, the archive has no gap and nothing twice, and the next run goes on (storage/parquet/archive.py).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import msgspec

from headwater.address import absolute
from headwater.errors import HeadwaterError
from headwater.event import At
from headwater.format import parquet as format
from headwater.format.parquet import ParquetFile
from headwater.format.settings import TopicRecord, TopicSettings
from headwater.info import ArchivedRange, PartitionInfo
from headwater.limits import MIB
from headwater.spark.parquet import history
from headwater.spark.places import open_place
from headwater.storage.parquet.archive import ParquetStore, open_parquet, url_of
from headwater.storage.parquet.writing import write_part
from headwater.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.store import Store

FILE_BYTES = 256 * MIB  # about how large a file becomes at most
SHRINKS = 3  # how much smaller events become that the log does not compress
JOBS_MAX = 32  # at once: each is a thread of the driver; on a large cluster, one has many tasks

Progress = Callable[[int, int], object]


class Work(msgspec.Struct, frozen=True):
    """One file to write: where from, where to, and what."""

    address: str
    url: str
    topic: TopicRecord
    partition: int
    start: int
    end: int
    bytes: int

    @property
    def log(self) -> tuple[str, int]:
        return self.topic.name, self.partition


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

    `target` is `parquet:a/directory`, `parquet:s3://bucket/prefix` or `parquet:objects:///…`; the log remembers it, for
    `table`. `seal` finishes the active segments first, so that all is archived that is durable. Returns what this call
    added, durable and named by the manifest; empty if there was nothing. Raises Corrupt for a damaged batch, Conflict
    if the archive is of another log, or the log is not the one any more that was archived, NotFound if retention has
    deleted what was not archived yet. What was archived before an error stays, and the rest is all the same; the error
    tells how many files were `archived`. `progress` is called with the bytes of the log that are done, and all of them.
    """
    address, url = absolute(address), url_of(target)
    with open_place(address) as hw, contextlib.closing(open_parquet(url)) as store:
        store.begin(hw.uuid)
        hw.backend.remember_parquet(url)
        run = _ArchiveRun(spark, hw, store, (address, url), file_bytes, progress)
        names = hw.topics() if topics is None else [topics] if isinstance(topics, str) else topics
        for name in names:
            run.plan(name, seal=seal)
        run.work()
    return run.result()


class _ArchiveRun:
    """One call of `archive`."""

    def __init__(
        self,
        spark: SparkSession,
        hw: Store,
        store: ParquetStore,
        places: tuple[str, str],
        file_bytes: int,
        progress: Progress | None,
    ) -> None:
        """`places` are the addresses of the log and of the archive, for those who work elsewhere."""
        self._spark = spark
        self._hw = hw
        self._store = store
        self._places = places
        self._file_bytes = file_bytes
        self._progress = progress
        self._topics: dict[str, tuple[TopicRecord, list[int]]] = {}  # by name, and where each partition is archived to
        self._failures: list[HeadwaterError] = []
        self._done: list[ArchivedRange] = []

    def plan(self, name: str, *, seal: bool) -> None:
        """Decide how far a topic is archived; what is wrong with it is told at the end."""
        try:
            if seal:
                _seal(self._hw, name)
            info = self._hw.describe(name)
            chosen = msgspec.convert(info.settings, TopicSettings)
            topic = TopicRecord(name=name, uuid=info.uuid, partitions=len(info.partitions), settings=chosen)
            self._store.tell(topic)
            info, _ = history.look(self._hw, self._store, topic)
            self._topics[name] = topic, [_reach(each, seal=seal) for each in info.partitions]
        except HeadwaterError as error:
            self._failures.append(error)

    def work(self) -> None:
        """Archive all that was planned. What another run has cut differently meanwhile is planned anew."""
        total = done = 0
        while works := self._works():
            total = done + sum(work.bytes for work in works)
            failed = len(self._failures)
            for part in self._write(works):
                done += part.bytes
                if self._progress is not None:
                    self._progress(done, total)
            if len(self._failures) > failed:
                break
        for topic, _ in self._topics.values():
            self._store.sweep(topic)

    def result(self) -> list[ArchivedRange]:
        """What was archived; raises the first error, if there was one."""
        if self._failures:
            self._failures[0].facts["archived"] = len(self._done)
            raise self._failures[0]
        return sorted(self._done, key=lambda each: (each.topic, each.partition, each.first))

    def _works(self) -> list[Work]:
        """The files that are missing, those of all partitions by turns."""
        logs: list[list[Work]] = []
        for name, (topic, ends) in self._topics.items():
            bytes_max = self._file_bytes * (1 if topic.settings.compression == "zstd" else SHRINKS)
            for partition, end in enumerate(ends):
                manifest = self._store.manifest(topic, partition)
                start: At = manifest.end if manifest.parts else "earliest"
                if manifest.end >= end:
                    continue
                splits = self._hw.splits(name, partition=partition, start=start, end=end, split_bytes=bytes_max)
                bounds = [(split.start, split.end, split.bytes) for split in splits]
                logs.append([Work(*self._places, topic, partition, *each) for each in bounds])
        longest = max(map(len, logs), default=0)
        return [works[turn] for turn in range(longest) for works in logs if turn < len(works)]

    def _write(self, works: list[Work]) -> Iterator[Work]:
        """Have files written and named; gives each that is done, and notes why others are not."""
        commits = _Commits(self._store, works)
        for work, found in _run_all(self._spark, works):
            if isinstance(found, HeadwaterError):
                self._failures.append(found)
            else:
                self._done += commits.add(work, found)
            yield work


class _Commits:
    """Files that are written, until all before them are, too."""

    def __init__(self, store: ParquetStore, works: Sequence[Work]) -> None:
        self._store = store
        self._next: dict[tuple[str, int], list[Work]] = {}
        for work in reversed(works):
            self._next.setdefault(work.log, []).append(work)
        self._waiting: dict[tuple[str, int, int], ParquetFile] = {}

    def add(self, work: Work, part: ParquetFile) -> list[ArchivedRange]:
        """Have the manifest name a file, and those that waited for it; returns what is archived by that."""
        self._waiting[*work.log, work.start] = part
        following = self._next[work.log]
        ready: list[ParquetFile] = []
        while following and (found := self._waiting.pop((*work.log, following[-1].start), None)) is not None:
            ready.append(found)
            following.pop()
        if not ready:
            return []
        named = {each.file for each in self._store.extend(work.topic, work.partition, ready).parts}
        return [ArchivedRange(*work.log, each.start, each.end, each.bytes) for each in ready if each.file in named]


def _seal(hw: Store, topic: str) -> None:
    """Finish what is there; a server does that by itself, and is asked to make it durable."""
    if hw.can("seal"):
        hw.seal(topic)
    else:
        hw.sync(topic)


def _reach(there: PartitionInfo, *, seal: bool) -> int:
    """How far a partition is archived."""
    return there.durable if seal or there.finished is None else min(there.finished, there.durable)


def _run_all(spark: SparkSession, works: Sequence[Work]) -> Iterator[tuple[Work, ParquetFile | HeadwaterError]]:
    """Each work and what became of it, as they are done: several jobs of Spark at once, each of a few tasks."""
    slots = 2 * spark.sparkContext.defaultParallelism  # so that none waits for the driver
    size = -(-slots // JOBS_MAX)
    tag = f"headwater-archive-{uuid.uuid4()}"
    waiting: set[Future[list[tuple[Work, ParquetFile | HeadwaterError]]]] = set()
    with ThreadPoolExecutor(min(slots, JOBS_MAX), "headwater-archive") as pool:
        try:
            for lo in range(0, len(works), size):
                waiting.add(pool.submit(_run_job, spark, tag, works[lo : lo + size]))
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for each in done:
                    yield from each.result()
        except BaseException:
            for each in waiting:
                each.cancel()
            spark.sparkContext.cancelJobsWithTag(tag)
            raise


def _run_job(spark: SparkSession, tag: str, works: Sequence[Work]) -> list[tuple[Work, ParquetFile | HeadwaterError]]:
    context = spark.sparkContext
    context.addJobTag(tag)
    context.setJobDescription(f"archive {works[0].topic.name} as Parquet")
    return context.parallelize(works, len(works)).map(write).collect()


def write(work: Work) -> tuple[Work, ParquetFile | HeadwaterError]:
    """In a worker: write one file. What it raises is the answer, so that the driver raises it as it is."""
    try:
        with open_place(work.address) as hw, contextlib.closing(open_parquet(work.url)) as store:
            bounds = {"partition": work.partition, "start": work.start, "end": work.end}
            batches = hw.read_batches(work.topic.name, **bounds)  # type: ignore[arg-type]  # they are as they say
            log = format.nothing(work.topic, work.partition)
            return work, write_part(store.store, log, work.start, work.end, batches)
    except HeadwaterError as error:
        return work, error
