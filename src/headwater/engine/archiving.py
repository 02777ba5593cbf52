"""Keeping the archive of a log directory up to date: once, or for as long as somebody wants it.

Only finished segments are archived: what is not sealed yet is sealed here, unless another process is at it. The logs
are seen to in parallel, the segments of each one after the other. An `Archiver` is for one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from headwater.engine.catalogue import DirectoryCatalog
from headwater.engine.topics import OpenTopics
from headwater.errors import HeadwaterError, NotFound
from headwater.format.archive import ArchivedSegment, topic_key
from headwater.format.settings import TopicRecord
from headwater.info import ArchivedRange
from headwater.limits import Limits
from headwater.storage.archive.archive import ArchiveStore, reaching
from headwater.storage.archive.upload import LogArchive
from headwater.storage.failures import being_sealed
from headwater.storage.log import LocalLog
from headwater.storage.seal import BUSY_POLL_S
from headwater.storage.sealer import reindex

Progress = Callable[[int, int], None]


class Lag(NamedTuple):
    """What is not archived yet: events of all logs, and whole segments among them."""

    events: int
    segments: int


class Archiver:
    """Archives what is finished, in every topic or in one, whenever it is told to look."""

    def __init__(
        self,
        archive: ArchiveStore,
        catalogue: DirectoryCatalog,
        topics: OpenTopics[LocalLog],
        limits: Limits,
        topic: str | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        """For all topics, or the one that is named. What is under way ends soon after `stopping` is set."""
        self.url = archive.store.url
        self._archive = archive
        self._catalogue = catalogue
        self._topics = topics
        self._topic = topic
        self._limits = limits
        self._stopping = stopping or threading.Event()
        self._told: dict[str, TopicRecord] = {}  # topics as the archive has them
        self._logs: dict[bytes, LogArchive] = {}
        self._done: dict[bytes, int] = {}  # of each log, the active segment before which all was archived

    def once(self, *, seal: bool = False, wait: bool = True, progress: Progress | None = None) -> list[ArchivedRange]:
        """Archive all that is finished now; returns what was archived by this call, durable in the store.

        `seal` finishes the active segments first, so that the archive is complete up to now. A segment that another
        process is sealing is waited for; without `wait`, it is left for the next time. If something cannot be
        archived, the rest is all the same, and then the first error is raised; it tells how much was `archived`.
        """
        failures: list[HeadwaterError] = []
        pending = list(self._find(seal, failures))
        advance = advancing(sum(size for _, segments in pending for _, _, size in segments), progress)
        done: list[ArchivedRange] = []
        with ThreadPoolExecutor(self._limits.archive_transfers, "headwater-archive") as pool:
            work = [pool.submit(self._archive_log, log, segments, wait, done, advance) for log, segments in pending]
            for each in work:
                try:
                    each.result()
                except ArchiverStopError:
                    pass
                except HeadwaterError as error:
                    failures.append(error)
                except BaseException:
                    self._stopping.set()  # the pool waits for all of them
                    raise
        if failures:
            failures[0].facts["archived"] = len(done)
            raise failures[0]
        return sorted(done, key=lambda each: (each.topic, each.partition, each.first))

    def run(
        self,
        told: Callable[[list[ArchivedRange]], None],
        failed: Callable[[HeadwaterError], None],
        *,
        seal: bool = False,
    ) -> None:
        """Archive what is finished and what becomes so, until `stopping` is set.

        `told` hears what each look archived, also if that is nothing; `failed` what it raised: it is tried again.
        """
        while not self._stopping.is_set():
            try:
                told(self.once(seal=seal, wait=False))
                seal = False
            except HeadwaterError as error:
                failed(error)
            self._stopping.wait(self._limits.archive_look_s)

    def lag(self) -> Lag:
        """What is not archived yet, as far as the directory knows."""
        events = segments = 0
        for _, log in self._live([]):
            noted = log.archived.note() if log.archived is not None else None
            start = noted.end if noted is not None else log.start()
            events += max(0, log.end() - start)
            segments += sum(base >= start for base in log.place.segments()[:-1])
        return Lag(events, segments)

    def _find(
        self, seal: bool, failures: list[HeadwaterError]
    ) -> Iterator[tuple[LogArchive, list[tuple[int, int, int]]]]:
        """The logs that have something to archive, and their segments."""
        for topic, log in self._live(failures):
            try:
                self._tell(topic)
                if seal:
                    log.roll(tell=False)
                active = log.state().segment
                if self._done.get(log.place.uuid) == active:
                    continue
                found = self._log(topic, log, active)
                segments = found.pending(active) if found is not None else []
                if segments and found is not None:
                    yield found, segments
                elif found is None or found.manifest.end == active:
                    self._done[log.place.uuid] = active
            except (NotFound, ArchiverStopError):
                continue  # the topic was deleted meanwhile; or nothing more is wanted
            except HeadwaterError as error:
                failures.append(error)

    def _live(self, failures: list[HeadwaterError]) -> Iterator[tuple[TopicRecord, LocalLog]]:
        described, broken = self._catalogue.survey(self._topic)
        failures += broken
        for each in described:
            try:
                for log in self._topics.live(each.name).logs:
                    yield each, log
            except NotFound:
                continue
            except HeadwaterError as error:
                failures.append(error)

    def _log(self, topic: TopicRecord, log: LocalLog, active: int) -> LogArchive | None:
        """The way of a log into the archive; None before anything of it is finished."""
        place = log.place
        found = self._logs.get(place.uuid)
        if found is None and place.segments()[0] < active:
            found = LogArchive(place, topic, self._archive, self._pause)
            found.check_history(active)
            found.remember()
            if len(self._logs) >= self._limits.open_topics_max:
                del self._logs[next(iter(self._logs))]  # it is read anew when it is needed
            self._logs[place.uuid] = found
        return found

    def _tell(self, topic: TopicRecord) -> None:
        """Have the archive know a topic as it is now, before anything of it comes there; also if that is nothing."""
        if self._told.get(topic.name) == topic:
            return
        records, key = self._archive.topics, topic_key(topic.name)
        with reaching(self.url):
            while True:
                found = records.read(key)
                if found is not None and found.record == topic:
                    break
                done = records.create(key, topic) if found is None else records.swap(key, topic, found.version)
                if done is not None:
                    break
        self._told[topic.name] = topic

    def _archive_log(
        self,
        log: LogArchive,
        segments: list[tuple[int, int, int]],
        wait: bool,
        done: list[ArchivedRange],
        advance: Callable[[int], None],
    ) -> None:
        place = log.place
        for base, end, size in segments:
            archived = self._archive_sealed(log, base, end, wait)
            if archived is None:
                return  # the next look finds it, if it is still there
            done.append(ArchivedRange(place.topic, place.partition, base, end, archived.bytes))
            advance(size)

    def _archive_sealed(self, log: LogArchive, base: int, end: int, wait: bool) -> ArchivedSegment | None:
        """Archive a segment, sealed here if nobody has; None if it is gone, or, without `wait`, in work elsewhere."""
        place = log.place
        deadline = place.clock.monotonic() + place.limits.lock_wait_s
        while (archived := log.archive(base, end)) is None and place.disk.inode(place.segment(base)) is not None:
            if reindex(place, base, self._pause):
                continue
            if not wait:
                break
            if place.clock.monotonic() > deadline:
                raise being_sealed(place, base)
            self._pause()
            place.clock.sleep(BUSY_POLL_S)
        return archived

    def _pause(self) -> None:
        if self._stopping.is_set():
            raise ArchiverStopError


class ArchiverStopError(Exception):  # it is a signal, not an error
    """Ends the work between two pieces of it."""


def advancing(total: int, progress: Progress | None) -> Callable[[int], None]:
    """Adds up what is done, from any thread, and tells of it."""
    mutex = threading.Lock()
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        with mutex:
            done += size
            if progress is not None:
                progress(min(done, total), total)

    return advance
