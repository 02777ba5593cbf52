"""Copying a log to another directory, batch by batch, as it grows (docs/REPLICATION.md).

One question asks for what follows in all logs; while its answer is written, each log's share with one sync, the next is
under way. What is here says where to go on, so nothing that stops either side at any moment needs to be remembered.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from headwater.backoff import delay_s
from headwater.directory import copying
from headwater.directory.catalog import DirectoryCatalog
from headwater.disk.disk import Clock, Disk
from headwater.errors import Closed, Conflict, Corrupt, HeadwaterError, NotFound, Unavailable, Unsupported
from headwater.format.batch import Batch
from headwater.format.producers import ProducerState
from headwater.format.replication import LogShare, ReplicationResponse, TopicState
from headwater.format.settings import Replica, TopicRecord
from headwater.info import ReplicaInfo
from headwater.limits import DEFAULTS, REPLICA_LOGS_MAX, Limits
from headwater.replication.destination import Parts, ReplicaDirectory, SourceError, take
from headwater.replication.marker import TICKS_PER_S, Copy, Marker, now, write_progress
from headwater.replication.source import ReplicationSource

BYTES_MAX = (
    8 * 1024 * 1024
)  # of one answer: large enough to make its sync and its way cheap, and two are held in memory
LOOK_EVERY_S = 1.0  # at the topics of the source, and for how it is told how far this is
LOOK_PAUSE = 5  # times as long as a look at them takes, which is long if they are many
WRITERS = 4  # logs that are written at the same time: each waits for its sync
BACKOFF_S, BACKOFF_MAX_S = 0.1, 5.0
TRIES = 8  # in a row, after which a huge event is given up, with its topic, and who copies only once gives up at all

_log = logging.getLogger("headwater")

Told = Callable[[ReplicaInfo], None]
T = TypeVar("T")


class _Round(NamedTuple):
    """A question that is under way: which logs it is about, and its answer."""

    copies: list[Copy]
    answer: Future[ReplicationResponse]


class Replicator:
    """Copies a source to a directory. `run` belongs to one thread; `stop` may be called from any, and from a signal."""

    def __init__(
        self,
        source: ReplicationSource,
        path: Path,
        parts: Parts,
        *,
        address: str,
        topics: Iterable[str] | None = None,
        delete: bool = False,
        restart: Iterable[str] = (),
        told: Told | None = None,
        limits: Limits = DEFAULTS,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`parts` makes what other rooms hand to a directory.

        `address` names the source for people, without anything secret. `topics`: only these, else all.
        `delete`: topics that were deleted at the source are deleted here. `restart`: topics that are deleted here
        first, and copied again. `told` is called about every second with how it is.
        """
        self._source = source
        self._path = path
        self._parts = parts
        self._address = address
        self._topics = None if topics is None else set(topics)
        self._delete = delete
        self._restart = set(restart)
        self._told = told
        self._limits = limits
        self._disk, self._clock = disk or Disk(), clock or Clock()
        self._marker = Marker(path, self._disk, self._clock)
        self._stopped = threading.Event()
        self._copies: dict[tuple[str, int], Copy] = {}
        self._troubles: dict[str, HeadwaterError] = {}
        self._turn = 0
        self._look_s = self._wrote_s = float("-inf")  # when to look at the topics; when it was told how far this is
        self._once = False
        self._targets: dict[tuple[str, int], int] | None = None
        self._heard: str | None = None
        self._error = ""

    def run(self, *, once: bool = False) -> ReplicaInfo:
        """Copy until it is stopped, or `once`, until all is here that was there at the beginning; returns how it is.

        What is told to be here is durable. It waits for as long as the source cannot be reached, unless it never could
        be. Raises Unavailable if somebody else copies to the directory, Conflict if that is no replica of this source,
        what the disk here raises, and with `once` what kept a topic from being copied.
        """
        self._once = once
        catalogue = DirectoryCatalog(self._path, self._disk, self._clock, self._limits)
        catalogue.refuse_strangers()  # before anything is put there
        with self._marker.held():
            marker = self._marker.begin(self._address, self._uuid(), catalogue.init)
            with contextlib.closing(
                ReplicaDirectory(self._path, self._parts, self._limits, self._disk, self._clock)
            ) as here:
                self._here = here
                with (  # two ask: when new topics come, the question that is under way is left to its end
                    ThreadPoolExecutor(2, "headwater-asking") as asking,
                    ThreadPoolExecutor(WRITERS, "headwater-copying") as writing,
                ):
                    self._asking, self._writing = asking, writing
                    try:
                        self._follow(marker)
                    finally:
                        self._tell(marker, "stopped")
                info = self._info(marker, "stopped")
        if once and self._troubles and not self._stopped.is_set():
            raise next(iter(self._troubles.values()))
        return info

    def stop(self) -> None:
        """Have `run` return, within about a second."""
        self._stopped.set()

    def _uuid(self) -> str:
        """Return which log the source is.

        One that was copied before may be away; a new one that is may be a typing error.
        """
        known = self._marker.read()
        tries = 0
        while True:
            try:
                return self._source.uuid
            except Unavailable as error:
                if known is None or known.promoted is not None:
                    raise
                self._error = str(error)
                self._tell(known, "unreachable")
                tries += 1
                if not self._pause(tries):
                    raise

    def _follow(self, marker: Replica) -> None:
        tries = 0
        pending: _Round | None = None
        while not self._stopped.is_set():
            try:
                if self._look():
                    pending = None
                if self._once and self._done():
                    return
                pending = self._step(pending)
                tries, self._error = 0, ""
                self._tell(marker, "copying", every_s=LOOK_EVERY_S)
            except SourceError as error:
                if not _passes(error.error) or (self._once and tries >= TRIES):
                    raise error.error from error
                pending, self._error = None, str(error.error)
                for copy in self._living():
                    copy.begin()
                self._tell(marker, "unreachable")
                tries += 1
                self._pause(tries)

    def _step(self, pending: _Round | None) -> _Round | None:
        """Write what was answered, while the next question is under way, which is returned."""
        if pending is None:
            pending = self._ask()
        if pending is None:
            self._stopped.wait(LOOK_EVERY_S)
            return None
        answer = self._asked(pending.answer.result)
        self._heard = now(self._clock)
        work = self._received(pending.copies, answer)
        following = self._ask()
        self._write(work, answer.ticks)
        self._learn_producers()
        return following

    def _ask(self) -> _Round | None:
        copies = self._living()
        if not copies:
            return None
        self._turn %= len(copies)
        copies = copies[self._turn :] + copies[: self._turn]  # so that nobody is always the last
        if len(copies) > REPLICA_LOGS_MAX:
            copies = copies[:REPLICA_LOGS_MAX]
            self._turn += REPLICA_LOGS_MAX
        wanted = [copy.wanted() for copy in copies]
        wait_s = 0.0 if self._once else LOOK_EVERY_S
        return _Round(copies, self._asking.submit(self._source.more, wanted, BYTES_MAX, wait_s))

    def _received(self, copies: list[Copy], answer: ReplicationResponse) -> list[tuple[Copy, list[Batch]]]:
        """Return what is to be written, and where each log is then."""
        work = []
        size = sum(share.size for share in answer.shares)
        looked_at = len(copies) if size < BYTES_MAX else answer.shares[-1].number + 1
        for copy in copies[:looked_at]:
            copy.unsure = False
        for share, stored in zip(answer.shares, answer.data, strict=True):
            copy = copies[share.number]
            self._turn += 1
            if copy.trouble:
                continue
            if share.state != "ok":
                self._refused(copy, share)
                continue
            copy.told(share)
            try:
                batches = copying.behind(stored, copy.next, zstd=copy.log.place.zstd)
            except Corrupt as error:
                self._give_up(copy.log.topic, error)
                continue
            if batches:
                copy.producers_due = copy.producers_due or batches[0].buffer is not stored
                copy.next = batches[-1].end_offset
                copy.bytes_left = share.bytes_left
                work.append((copy, batches))
        return work

    def _write(self, work: list[tuple[Copy, list[Batch]]], ticks: int) -> None:
        """Append each log's share, with one sync for each; when all are durable or failed, raises the first failure."""
        work = [each for each in work if not each[0].trouble]  # its topic may have been given up since
        futures = [self._writing.submit(take, copy.log, batches, self._source) for copy, batches in work]
        failed: BaseException | None = None
        for (copy, batches), future in zip(work, futures, strict=True):
            try:
                future.result()
                copy.lag_s, copy.failures = max(0.0, (ticks - batches[-1].last_ticks) / TICKS_PER_S), 0
            except Corrupt as error:
                self._give_up(copy.log.topic, error)
            except SourceError as error:
                # One that is away says nothing of the event; one that always ends in its midst may be damaged there.
                copy.failures += error.error.code != "unreachable"
                if copy.failures < TRIES:
                    failed = failed or error
                else:
                    self._give_up(copy.log.topic, error.error)
            except BaseException as error:  # noqa: BLE001  # the others are waited for
                failed = failed or error
        if failed is not None:
            raise failed

    def _learn_producers(self) -> None:
        """Have the logs here remember what those of the source remember of producers, as far as they have come."""
        for copy in self._living():
            if copy.producers_due and copy.next >= copy.stamped_from:
                end = copy.log.end()
                known = self._asked(partial(self._source.producers, copy.log.topic, copy.log.partition))
                copy.producers_due = not copy.log.remember(_up_to(known, end))

    # Topics

    def _look(self) -> bool:
        """Look at the topics of the source, now and then; whether the logs that are copied are others now."""
        now_s = self._clock.monotonic()
        if now_s < self._look_s:
            return False
        states = {state.name: state for state in self._asked(self._source.topics) if self._wants(state.name)}
        took_s = self._clock.monotonic() - now_s
        self._look_s = now_s + max(LOOK_EVERY_S, took_s * LOOK_PAUSE)
        before = set(self._copies)
        for name in self._restart & set(self._here.topics()):
            self._here.drop(name)
        self._restart.clear()
        here = self._here.here()
        for name, there in here.items():
            if self._wants(name):
                self._guarded(name, there, states.get(name))
        for state in states.values():
            if state.name not in here:
                self._follow_topic(state, None)
        if self._targets is None:
            self._targets = _ends(states.values())
            missing = sorted((self._topics or set()) - set(states) - set(here))
            if missing and self._once:
                raise NotFound(f"there is no topic {missing[0]!r} at the source", code="topic_not_found")
            if missing:
                _log.warning("there is no topic %r at the source yet", missing[0])
        return set(self._copies) != before

    def _guarded(self, name: str, here: TopicRecord | HeadwaterError, state: TopicState | None) -> None:
        """Look at a topic that is here; if it is damaged, it is given up, and the others go on."""
        try:
            if isinstance(here, HeadwaterError):
                raise here
            if state is None:  # it is asked for, so that the source says whether it is gone
                self._copy(name, here.uuid)
            else:
                self._follow_topic(state, here)
        except (Corrupt, Unsupported) as error:
            self._give_up(name, error)

    def _follow_topic(self, state: TopicState, here: TopicRecord | None) -> None:
        if here is not None and here.uuid != state.uuid:
            self._made_again(state)
        elif state.name not in self._troubles:
            opened = self._here.adopt(state, here)
            self._copy(state.name, state.uuid)
            for log, there in zip(opened.logs, state.logs, strict=True):
                copy = self._copies[state.name, log.partition]
                copy.source_end = max(there.end, copy.log.end())
                if there.start <= log.end():  # else it has fallen behind, and keeps what it has
                    self._here.forget_before(log, there.start)

    def _made_again(self, state: TopicState) -> None:
        """The source has another topic of this name: the one here is of a deleted one."""
        if self._delete:
            self._drop(state.name)
            self._here.adopt(state)
            self._copy(state.name, state.uuid)
        elif state.name not in self._troubles:
            self._give_up(state.name, _deleted(state.name, again=True))

    def _copy(self, name: str, uuid: str) -> None:
        if name not in self._troubles:
            for log in self._here.opened(name).logs:
                known = self._copies.get((name, log.partition))
                if known is None or known.uuid != uuid:
                    self._copies[name, log.partition] = Copy(log, uuid)

    def _refused(self, copy: Copy, share: LogShare) -> None:
        """The source cannot go on from where a log is."""
        name = copy.log.topic
        if share.state == "gone" and self._delete:
            self._drop(name)
            _log.warning("topic %r was deleted at the source, and is deleted here, too", name)
        elif share.state == "gone":
            self._give_up(name, _deleted(name, again=False))
        elif share.state == "behind" and not self._holds_any(name):
            self._drop(name)  # the source has deleted its first events: it is created again at the next poll
            self._look_s = float("-inf")
        elif share.state == "behind":
            self._give_up(name, _fell_behind(copy, share))
        elif share.state == "damaged":
            self._give_up(name, Corrupt(f"the source cannot be read: {share.reason}"))
        else:
            self._give_up(name, _diverged(copy, share))

    def _holds_any(self, name: str) -> bool:
        return any(log.start() < log.end() for log in self._here.opened(name).logs)

    def _drop(self, name: str) -> None:
        self._here.drop(name)
        self._troubles.pop(name, None)
        for place in [place for place in self._copies if place[0] == name]:
            self._copies.pop(place).trouble = "deleted"

    def _give_up(self, topic: str, error: HeadwaterError) -> None:
        """Copy a topic no further, and say why; the others go on."""
        if topic not in self._troubles:
            self._troubles[topic] = error
            _log.warning("topic %r is no longer replicated: %s", topic, error)
        for copy in self._copies.values():
            if copy.log.topic == topic:
                copy.trouble = str(error)

    def _wants(self, name: str) -> bool:
        return self._topics is None or name in self._topics

    def _living(self) -> list[Copy]:
        return [copy for copy in self._copies.values() if not copy.trouble]

    def _done(self) -> bool:
        """Return whether all is here that was there at the beginning, producers included."""
        assert self._targets is not None
        ends = {(copy.log.topic, copy.log.partition): copy.log.end() for copy in self._living()}
        reached = all(ends[place] >= target for place, target in self._targets.items() if place in ends)
        return reached and not any(copy.unsure for copy in self._living())

    # Others

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except HeadwaterError as error:
            raise SourceError(error) from error

    def _pause(self, tries: int) -> bool:
        """Sleep before the next try; False if there shall be none."""
        return not self._stopped.wait(delay_s(tries, BACKOFF_S, BACKOFF_MAX_S))

    def _info(self, marker: Replica, state: str) -> ReplicaInfo:
        logs = [copy.info() for _, copy in sorted(self._copies.items())]
        about = marker.source, marker.source_uuid, marker.since
        return ReplicaInfo(*about, state, self._heard, None, self._error, logs)

    def _tell(self, marker: Replica, state: str, every_s: float = 0.0) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._wrote_s < every_s:
            return
        self._wrote_s = now_s
        info = self._info(marker, state)
        with contextlib.suppress(OSError):  # it is not truth
            write_progress(self._path, self._disk, info)
        if self._told is not None:
            self._told(info)


def _passes(error: HeadwaterError) -> bool:
    """Return whether it may be otherwise soon: the source is away, or what it told was damaged or is gone meanwhile."""
    return isinstance(error, Unavailable | Closed | Corrupt) or (
        isinstance(error, NotFound) and error.code != "no_such_route"
    )


def _ends(states: Iterable[TopicState]) -> dict[tuple[str, int], int]:
    return {(state.name, number): log.end for state in states for number, log in enumerate(state.logs)}


def _up_to(known: dict[str, ProducerState], end: int) -> dict[str, ProducerState]:
    """Return what is known of requests whose events are before an offset: the events of others are not here yet."""
    found = {}
    for id, producer in known.items():
        answers = [answer for answer in producer.answers if answer.offset + answer.count <= end]
        if answers:
            found[id] = ProducerState(producer.epoch, answers)
    return found


def _deleted(topic: str, *, again: bool) -> Conflict:
    what = "deleted at the source and created again" if again else "deleted at the source"
    return Conflict(
        f"topic {topic!r} was {what}; the replica keeps its copy",
        hint="give --delete to delete it here, too",
        code="topic_deleted",
        topic=topic,
    )


def _fell_behind(copy: Copy, share: LogShare) -> Conflict:
    return Conflict(
        f"{copy.log.place} ends at offset {copy.next}, but the source has deleted everything before {share.start}",
        hint=f"copy the topic again: --restart-topic {copy.log.topic}",
        code="fell_behind",
        end=copy.next,
        oldest=share.start,
    )


def _diverged(copy: Copy, share: LogShare) -> Conflict:
    return Conflict(
        f"{copy.log.place} ends at offset {copy.next}, beyond the source, which ends at {share.end}",
        hint=f"was the source restored from a backup? To copy the topic again: --restart-topic {copy.log.topic}",
        code="diverged",
        end=copy.next,
    )
