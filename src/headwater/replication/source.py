"""The source of a replica: the protocol, and its implementations for a directory and for a server.

`RemoteSource` sends requests to a server (docs/HTTP.md, "Replication"), which uses a `LocalSource` of its own. A source
returns only durable events: after a power loss, it could otherwise give the offsets of events that a replica has to
other events.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec

from headwater.directory import retention
from headwater.directory.local_log import LocalLog
from headwater.errors import Corrupt, HeadwaterError, NotFound, Unavailable, Unsupported
from headwater.event import Blob
from headwater.format import producers, replication
from headwater.format.batch import Batch
from headwater.format.names import log_uuid
from headwater.format.producers import ProducerState
from headwater.format.replication import (
    LogRequest,
    LogShare,
    LogState,
    ReplicationRequest,
    ReplicationResponse,
    TopicState,
)
from headwater.format.settings import TopicRecord
from headwater.log.follow import SLICE_S, wait_for_more

if TYPE_CHECKING:
    from headwater.directory.directory import Directory
    from headwater.remote.transport import Transport


_log = logging.getLogger("headwater")
_encode = msgspec.json.Encoder().encode

SYNC_EVERY_S = 0.05  # events without durability of their own are synced for replicas, but not more often than this


Opened = dict[str, tuple[TopicRecord, list[LocalLog]] | HeadwaterError]
"""Topics and their logs, by name."""


class ReplicationSource(Protocol):
    """A log that can be copied, batch by batch. Safe from any thread."""

    @property
    def uuid(self) -> str:
        """Return what identifies the log."""
        ...

    def topics(self) -> list[TopicState]:
        """Return all topics that may be read."""
        ...

    def more(self, logs: Sequence[LogRequest], bytes_max: int, wait_s: float) -> ReplicationResponse:
        """Return the next batches of these logs, about `bytes_max` in all, as soon as there are any."""
        ...

    def blob(self, topic: str, partition: int, batch: Batch) -> Blob:
        """Return the data of a huge event, verified as it is read."""
        ...

    def producers(self, topic: str, partition: int) -> dict[str, ProducerState]:
        """Return what is remembered of the producers of a log."""
        ...


class LocalSource:
    """A directory as a source, opened and closed by the caller."""

    def __init__(self, directory: Directory) -> None:
        self.uuid = directory.uuid
        self._directory = directory
        self._bell = directory.disk.shared_word()  # rung when no call is to wait any more
        self._synced_s: WeakKeyDictionary[LocalLog, float] = WeakKeyDictionary()
        self._syncing = threading.Lock()  # protects `_synced_s`
        self._over = False

    def topics(self, may: Callable[[str], bool] = lambda _: True) -> list[TopicState]:
        """Return all topics, or those that one may read. One that is deleted meanwhile is left out."""
        return [state for name in self._directory.topics() if may(name) for state in self._state(name)]

    def more(self, logs: Sequence[LogRequest], bytes_max: int, wait_s: float) -> ReplicationResponse:
        """Return the next batches of these logs; a damaged log is reported, and the others continue."""
        clock = self._directory.clock
        deadline = clock.monotonic() + wait_s
        opened = self._open(logs)  # once: there may be more than stay open
        while True:
            answer = self._look(logs, opened, bytes_max)
            left_s = deadline - clock.monotonic()
            if answer.shares or left_s <= 0 or self._over:
                return answer
            self._wait(logs, opened, min(left_s, SLICE_S))

    def blob(self, topic: str, partition: int, batch: Batch) -> Blob:
        log = self._directory.partition_log(topic, partition)
        stored = next(log.stored(batch.base_offset, batch.end_offset))  # which knows the file that it is in
        return log.blob(stored)

    def producers(self, topic: str, partition: int) -> dict[str, ProducerState]:
        return self._directory.partition_log(topic, partition).producers()[1]

    def stop(self) -> None:
        """Wake up all waiting calls; later calls do not wait."""
        self._over = True
        self._directory.disk.store(self._bell, 0, b"\1")
        self._directory.disk.wake(self._bell, 0)

    def _state(self, name: str) -> Iterator[TopicState]:
        try:
            opened = self._directory.opened(name)
            topic, logs = opened.topic, opened.logs
            ends = [self._durable(log, beyond=log.state().durable_offset) for log in logs]
            states = [LogState(log.start(), log.ticks_before_start(), end) for log, end in zip(logs, ends, strict=True)]
            # The settings as they are now, which another process may have changed; the uuid as of these logs.
            yield TopicState(name, topic.uuid, self._directory.settings_of(name), states)
        except NotFound:
            return
        except (Corrupt, Unsupported) as error:  # a replica that copies it already gets the error with its next request
            _log.warning("topic %r cannot be replicated: %s", name, error)

    def _open(self, logs: Sequence[LogRequest]) -> Opened:
        """Return the requested topics, each opened once, or its error. Topics that do not exist are left out."""
        opened: Opened = {}
        for name in {wanted.topic for wanted in logs}:
            try:
                topic = self._directory.opened(name)
                opened[name] = topic.topic, topic.logs
            except NotFound:
                continue
            except (Corrupt, Unsupported) as error:
                opened[name] = error
        return opened

    def _look(self, logs: Sequence[LogRequest], opened: Opened, bytes_max: int) -> ReplicationResponse:
        shares: list[LogShare] = []
        data: list[memoryview] = []
        room = bytes_max
        for number, wanted in enumerate(logs):
            there = opened.get(wanted.topic)
            if isinstance(there, HeadwaterError):
                share, found = LogShare(number, "damaged", reason=there.message), b""
            elif there is None or there[0].uuid != wanted.uuid or wanted.partition >= len(there[1]):
                share, found = LogShare(number, "gone"), b""
            else:
                share, found = self._share(number, wanted, there[1][wanted.partition], room)
            if share.state != "ok" or share.size:
                shares.append(share)
                data.append(memoryview(found))
                room -= share.size
                if room <= 0:
                    break
        return ReplicationResponse(self._directory.clock.ticks(), shares, data)

    def _share(self, number: int, wanted: LogRequest, log: LocalLog, room: int) -> tuple[LogShare, bytes]:
        try:
            end = self._durable(log, beyond=wanted.offset)
            start = log.start()
            if wanted.offset < start:
                return LogShare(number, "behind", start, end), b""
            if wanted.offset > end or not _same(log, wanted, start):
                return LogShare(number, "diverged", start, end), b""
            found, reached = _read(log, wanted.offset, end, room)
            left = _bytes_between(log, reached, end) if reached < end else 0
        except NotFound as error:
            oldest = error.facts.get("oldest", 0)
            return LogShare(number, "behind" if error.code == "offset_gone" else "gone", oldest), b""
        except Corrupt as error:  # of this log: the others can go on
            return LogShare(number, "damaged", reason=error.message), b""
        return LogShare(number, "ok", start, end, log.state().segment, left, len(found)), found

    def _durable(self, log: LocalLog, beyond: int) -> int:
        """Return how far a log is durable; sync it first if there are events beyond an offset that are not."""
        slot = log.state()
        durable = max(slot.durable_offset, slot.safe_offset)
        if durable <= beyond and slot.visible_offset > durable and self._may_sync(log):
            with contextlib.suppress(Unavailable):  # a log that is frozen: what is durable stays so
                log.sync()
                durable = log.state().durable_offset
        return durable

    def _may_sync(self, log: LocalLog) -> bool:
        now = self._directory.clock.monotonic()
        with self._syncing:
            if now - self._synced_s.get(log, -SYNC_EVERY_S) < SYNC_EVERY_S:
                return False
            self._synced_s[log] = now
        return True

    def _wait(self, logs: Sequence[LogRequest], opened: Opened, wait_s: float) -> None:
        places = []
        bell = self._bell, 0, 0
        for wanted in logs:
            try:
                there = opened[wanted.topic]
                if isinstance(there, HeadwaterError):
                    continue
                log = there[1][wanted.partition]
                slot = log.state()
            except (KeyError, IndexError, HeadwaterError):
                continue  # the next request reports it
            if max(slot.durable_offset, slot.safe_offset) > wanted.offset:
                return  # it came meanwhile
            if slot.visible_offset > wanted.offset:
                wait_s = min(wait_s, SYNC_EVERY_S)  # then it may be synced
            places.append((log, max(slot.visible_offset, wanted.offset)))
        wait_for_more(places, wait_s, self._directory.disk, self._directory.clock, lambda: self._over, bell)


def _same(log: LocalLog, wanted: LogRequest, start: int) -> bool:
    """Return whether the replica has the same event before the wanted ones; True if that is not known."""
    last = wanted.offset - 1
    if wanted.ticks is None or last < start:
        return True
    try:
        for batch in log.stored(last, wanted.offset):
            return int(batch.ticks()[last - batch.base_offset]) == wanted.ticks
    except NotFound as error:
        if error.code != "offset_gone":  # else retention came in between, and what is wanted may yet be there
            raise
    return True


def _read(log: LocalLog, offset: int, end: int, room: int) -> tuple[bytes, int]:
    """Return whole batches from an offset on, at least one, and their end."""
    found: list[memoryview] = []
    size = 0
    for batch in log.stored(offset, end):
        if found and (size + batch.size > room or batch.base_offset < offset):
            break
        found.append(batch.raw())
        size += batch.size
        offset = batch.end_offset
    return b"".join(found), offset


def _bytes_between(log: LocalLog, offset: int, end: int) -> int:
    """Return about how many bytes of segments hold these offsets."""
    total = 0.0
    for segment in retention.survey(log.place, log.state()):
        events = min(segment.end, end) - max(segment.base, offset)
        if events > 0:
            total += segment.bytes * events / (segment.end - segment.base)
    return int(total)


class RemoteSource:
    """A server as a source. Safe from any thread; raises what any request may, and Corrupt for a damaged response."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._uuids: dict[str, str] = {}  # of topics, as last received

    @property
    def uuid(self) -> str:
        """Return what identifies the log that is served."""
        told: str = self._transport.json("GET", ("version",), repeat=True)["uuid"]
        return told

    def topics(self) -> list[TopicState]:
        """Return all topics that this user may read."""
        found = replication.decode_topics(self._transport.call("GET", ("replication", "topics"), repeat=True).body)
        self._uuids = {topic.name: topic.uuid for topic in found}
        return found

    def more(self, logs: Sequence[LogRequest], bytes_max: int, wait_s: float) -> ReplicationResponse:
        """Return the next batches of these logs, as soon as there are any."""
        asked = ReplicationRequest(list(logs), bytes_max, int(wait_s * 1000))
        path, headers = ("replication", "batches"), {"Content-Type": "application/json"}
        answer = self._transport.call("POST", path, body=_encode(asked), headers=headers, repeat=True)
        return replication.decode(answer.body, logs)

    def blob(self, topic: str, partition: int, batch: Batch) -> Blob:
        """Return the data of a huge event."""
        from headwater.remote.reading import RemoteBlob  # not needed to open a directory

        return RemoteBlob(self._transport, topic, partition, batch.base_offset, batch.blob_reference())

    def producers(self, topic: str, partition: int) -> dict[str, ProducerState]:
        """Return what is remembered of the producers of a log."""
        query = {"partition": partition}
        answer = self._transport.call("GET", ("topic", topic, "producers"), query, repeat=True)
        uuid = log_uuid(UUID(self._uuids[topic]), partition)
        return producers.decode(answer.body, uuid, int(answer.headers.get("headwater-from", "-1")))
