"""Keeping the archive of a log directory up to date: once, or until it is stopped.

Only finished segments are archived, the oldest first, each as one Parquet file, or several if it has huge events. A
segment is archived when the manifest that names its files was swapped in, after all of them are durable in the store.
An archiver that is killed before leaves files that no manifest names. Two archivers at once do the same work, and one
of them finds that it is done. What is archived is never replaced, even if the segment is packed or repaired later. Logs
are archived in parallel. An `Archiver` is for one thread; `write` may be called in other processes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import msgspec

from headwater.directory import local_manifest
from headwater.directory.directory import Directory
from headwater.directory.local_log import LocalLog
from headwater.directory.local_manifest import is_of
from headwater.directory.log_directory import LogDirectory
from headwater.directory.sealer import reindex, unsealed
from headwater.directory.segment import read_header
from headwater.errors import Conflict, Corrupt, HeadwaterError, NotFound
from headwater.format import producers
from headwater.format.events import EventBatch
from headwater.format.history import HistoryFile, HistoryManifest
from headwater.format.settings import TopicRecord
from headwater.history.files import reaching
from headwater.history.records import HistoryStore
from headwater.history.writing import write_files
from headwater.info import ArchivedRange, Progress, advancing
from headwater.limits import Limits

DELETED = ("topic_not_found", "offset_gone", "segment_not_found")  # by others, meanwhile: it was archived, or is gone

Live = Callable[[], Iterable[tuple[TopicRecord, list[LocalLog]] | HeadwaterError]]


class ArchiveLag(NamedTuple):
    """What is not archived yet: events of all logs, and whole segments among them."""

    events: int
    segments: int


class ArchiveTask(msgspec.Struct, frozen=True):
    """A range of offsets to archive: a finished segment of a directory, or what was cut out of another log."""

    topic: TopicRecord
    partition: int
    start: int
    end: int
    bytes: int  # of the log

    @property
    def log(self) -> tuple[str, int]:
        return self.topic.uuid, self.partition


class Archiver:
    """Archives what is finished, in every topic or in one, whenever it is told to look."""

    def __init__(
        self, archive: HistoryStore, live: Live, limits: Limits, stopping: threading.Event | None = None
    ) -> None:
        """`live` yields the topics with their logs, and errors. Work under way ends soon after `stopping` is set."""
        self.url = archive.store.url
        self._archive = archive
        self._live = live
        self._limits = limits
        self._stopping = stopping or threading.Event()
        self._told: dict[str, TopicRecord] = {}  # topics as the archive has them
        self._manifests: dict[tuple[str, int], HistoryManifest] = {}
        self._done: dict[tuple[str, int], int] = {}  # of each log, the active segment before which all was archived
        self._swept: set[str] = set()  # topics whose garbage was deleted
        self._found: dict[tuple[str, int], LocalLog] = {}  # those that were looked at last
        self.failures: list[HeadwaterError] = []  # of the topics and logs that were left out

    def once(self, *, seal: bool = False, progress: Progress | None = None) -> list[ArchivedRange]:
        """Archive all that is finished now; returns what this call has archived, durable in the store.

        `seal` finishes the active segments first, so that the archive is complete up to now. If something cannot be
        archived, the rest is all the same, and then the first error is raised, with the number of files `archived`.
        """
        planned = self.plan(seal=seal)
        advance = advancing(sum(task.bytes for tasks in planned for task in tasks), progress)
        done: list[ArchivedRange] = []

        def archive(tasks: list[ArchiveTask]) -> None:
            for task in tasks:
                self._pause()
                done.extend(self.commit(task, self.write(task)))
                advance(task.bytes)

        with ThreadPoolExecutor(self._limits.archive_transfers, "headwater-archive") as pool:
            for work in [pool.submit(archive, tasks) for tasks in planned]:
                try:
                    work.result()
                except ArchiverStopError:
                    pass
                except NotFound as error:
                    if error.code not in DELETED:
                        self.failures.append(error)
                except HeadwaterError as error:
                    self.failures.append(error)
                except BaseException:
                    self._stopping.set()  # the pool waits for all of them
                    raise
        return result(done, self.failures)

    def run(
        self,
        told: Callable[[list[ArchivedRange]], None],
        failed: Callable[[HeadwaterError], None],
        *,
        seal: bool = False,
    ) -> None:
        """Archive what is finished and what becomes so, until `stopping` is set.

        `told` is called with what each look has archived, also if that is nothing; `failed` with what it raised.
        """
        while not self._stopping.is_set():
            try:
                told(self.once(seal=seal))
                seal = False
            except HeadwaterError as error:
                failed(error)
            self._stopping.wait(self._limits.archive_look_s)

    def lag(self) -> ArchiveLag:
        """Return what is not archived yet, as far as the directory knows."""
        events = segments = 0
        for _, log in self._logs():
            known = log.archived.known() if log.archived is not None else None
            start = known.end if known is not None else log.start()
            events += max(0, log.end() - start)
            segments += sum(base >= start for base in log.place.segments()[:-1])
        return ArchiveLag(events, segments)

    def plan(self, *, seal: bool = False) -> list[list[ArchiveTask]]:
        """Return the finished segments of each log that are not archived, in order; see `failures` for other logs.

        Raises Conflict, through `failures`, if the archive holds other events than the log.
        """
        self.failures, self._found = [], {}
        planned: list[list[ArchiveTask]] = []
        for topic, log in self._logs():
            try:
                self._tell(topic)
                if seal:
                    log.roll(tell=False)
                tasks = self._tasks(topic, log)
                if tasks:
                    planned.append(tasks)
                    self._found[tasks[0].log] = log
            except (NotFound, ArchiverStopError):
                continue  # the topic was deleted meanwhile; or nothing more is wanted
            except HeadwaterError as error:
                self.failures.append(error)
        return planned

    def write(self, task: ArchiveTask) -> list[HistoryFile]:
        """Put the files of a finished segment; returns them, for `commit`. Empty if another archiver was first.

        It is sealed first, unless another process is at it: many small batches become few. Raises Corrupt for a damaged
        segment, which is not archived, and Unavailable.
        """
        log = self._find(task)
        place = log.place
        with reaching(self.url):
            manifest = self._archive.manifest(task.topic, task.partition)
            if manifest.end > task.start:
                return []
            try:
                if task.start in unsealed(place, task.end):
                    reindex(place, task.start, self._pause)
                return write_files(
                    self._archive.store,
                    manifest,
                    (task.start, task.end),
                    (EventBatch(log, batch, 0, batch.count, None) for batch in log.stored(task.start, task.end)),
                    (read_header(place, task.start).previous_ticks, read_header(place, task.end).previous_ticks),
                    _producers(place, task.end),
                    self._pause,
                )
            except Corrupt as error:
                if error.code == "not_as_written":
                    raise
                raise _not_archived(place, task.start, error) from error

    def commit(self, task: ArchiveTask, files: list[HistoryFile]) -> list[ArchivedRange]:
        """Have the manifest name files, durably, and the directory know; returns what was archived by that.

        Files of another archiver, which was first, stay. Raises Conflict if they hold other events.
        """
        place = self._find(task).place
        topic, partition = task.topic, task.partition
        with reaching(self.url):
            manifest = (
                self._archive.extend(topic, partition, files) if files else self._archive.manifest(topic, partition)
            )
            mine = bool(files) and manifest.at(task.start) == files[0]
            if not mine:
                self._check(place, manifest, task.start, task.end)
            if files and not mine:
                self._archive.sweep(topic)
        self._manifests[task.log] = manifest
        local_manifest.remember(place, manifest)
        where = place.topic, partition
        return [ArchivedRange(*where, each.start, each.end, each.bytes) for each in files] if mine else []

    def _logs(self) -> Iterator[tuple[TopicRecord, LocalLog]]:
        for found in self._live():
            if isinstance(found, HeadwaterError):
                self.failures.append(found)
            else:
                for log in found[1]:
                    yield found[0], log

    def _find(self, task: ArchiveTask) -> LocalLog:
        if task.log not in self._found:
            self._found = {(topic.uuid, log.partition): log for topic, log in self._logs()}
        if task.log in self._found:
            return self._found[task.log]
        raise NotFound(f"topic {task.topic.name!r} was deleted", code="topic_not_found")

    def _tasks(self, topic: TopicRecord, log: LocalLog) -> list[ArchiveTask]:
        place, which = log.place, (topic.uuid, log.partition)
        active = log.state().segment
        if self._done.get(which) == active:
            return []
        bases = [base for base in place.segments() if base <= active]
        manifest = self._manifests.get(which)
        if manifest is None and bases and bases[0] < active:
            manifest = self._begin(topic, place, bases)
        end = -1 if manifest is None else manifest.end
        tasks = [
            ArchiveTask(topic, log.partition, base, stop, _bytes(place, base))
            for base, stop in pairwise(bases)
            if base >= end
        ]
        if not tasks and (manifest is None or end == active):
            self._done[which] = active
        return tasks

    def _begin(self, topic: TopicRecord, place: LogDirectory, bases: list[int]) -> HistoryManifest:
        """Return what is archived of a log, after it was compared with its segments, and garbage was deleted."""
        with reaching(self.url):
            manifest = self._archive.manifest(topic, place.partition)
            self._check_history(place, manifest, bases)
            if topic.uuid not in self._swept:
                self._archive.sweep(topic)
                self._swept.add(topic.uuid)
        if manifest.parts:
            local_manifest.remember(place, manifest)
        if len(self._manifests) >= self._limits.open_topics_max:
            del self._manifests[next(iter(self._manifests))]  # it is read again when it is needed
        self._manifests[topic.uuid, place.partition] = manifest
        return manifest

    def _check_history(self, place: LogDirectory, manifest: HistoryManifest, bases: list[int]) -> None:
        """Raise Conflict if the archive holds other events than this log, whose last segment is the active one."""
        if manifest.end > bases[-1]:
            raise _diverged(place, f"the archive ends at offset {manifest.end}, but the log is not that long")
        for base, end in pairwise(bases):
            if base < manifest.end:
                self._check(place, manifest, base, end)
        if manifest.parts and bases[0] > manifest.end:
            raise Conflict(
                f"{place}: offsets {manifest.end} to {bases[0] - 1} are neither in the archive nor here",
                hint="they were deleted while the directory had no archive; archive it to a new location",
                code="archive_gap",
            )

    def _check(self, place: LogDirectory, manifest: HistoryManifest, base: int, end: int) -> None:
        if not is_of(place, manifest, base, end):
            raise _diverged(place, f"the archive has other events at offset {base}")

    def _tell(self, topic: TopicRecord) -> None:
        """Have the archive know a topic as it is now, before anything of it comes there; also if that is nothing."""
        if self._told.get(topic.name) != topic:
            with reaching(self.url):
                self._archive.tell(topic)
            self._told[topic.name] = topic

    def _pause(self) -> None:
        if self._stopping.is_set():
            raise ArchiverStopError


class ArchiverStopError(Exception):  # it is a signal, not an error
    """Ends the work between two pieces of it."""


def result(done: list[ArchivedRange], failures: list[HeadwaterError]) -> list[ArchivedRange]:
    """Return what was archived, in order; raises the first error, if there was one."""
    if failures:
        failures[0].facts["archived"] = len(done)
        raise failures[0]
    return sorted(done, key=lambda each: (each.topic, each.partition, each.first))


def _producers(place: LogDirectory, end: int) -> bytes | None:
    """Return what is remembered of producers at the end of a segment, while it is there: until the next roll."""
    with contextlib.suppress(FileNotFoundError, Corrupt, NotFound):
        if read_header(place, end).producers:
            stored = place.disk.read_file(place.producers(end))
            producers.decode(stored, place.uuid, end)
            return stored
    return None


def _bytes(place: LogDirectory, base: int) -> int:
    return place.disk.file_size(place.segment(base)) + sum(place.disk.sizes(place.blobs(base)).values())


def _not_archived(place: LogDirectory, base: int, error: Corrupt) -> Corrupt:
    return Corrupt(
        f"{place}: segment {base} is damaged and was not archived: {error.facts.get('reason') or error.message}",
        hint="run 'headwater check', then 'headwater repair', which keeps the bytes it removes",
        code=error.code,
        **{name: error.facts[name] for name in ("path", "position", "size") if name in error.facts},
    )


def _diverged(place: LogDirectory, why: str) -> Conflict:
    return Conflict(
        f"{place}: {why}",
        hint="the log was restored or changed after it was archived; archive it to a new location",
        code="archive_diverged",
    )


def archiver_of(
    directory: Directory,
    url: str | None = None,
    *,
    topic: str | None = None,
    stopping: threading.Event | None = None,
) -> Archiver:
    """Return what keeps the archive of a directory up to date for as long as it is wanted.

    `url` may be left out once the directory has an archive. `Archiver.run` ends after `stopping` is set.
    """
    directory.check_open()
    opened: HistoryStore = directory.archive.begin(url, directory.uuid)
    return Archiver(opened, partial(directory.live, topic), directory.limits, stopping)
