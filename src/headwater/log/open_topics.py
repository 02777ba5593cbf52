"""The topics that are in use: opened at their first use, forgotten when they are deleted, by whichever process.

Those that were not used for longest are closed when they are many. What is in use is not: a caller that holds a
log keeps it, and others get the same one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count as counter
from typing import Generic, Protocol
from weakref import WeakValueDictionary

import numpy as np

from headwater.disk.open_files import open_files
from headwater.errors import NotFound
from headwater.format.column import I64, Column
from headwater.format.names import partition_of, partitions_of_column, turn_of
from headwater.format.producers import Producer
from headwater.format.settings import TopicRecord, TopicSettings
from headwater.limits import PARTITIONS_MAX, Limits
from headwater.log.log import L
from headwater.log.rows import Rows

OPEN_PARTITIONS_MAX = 2 * PARTITIONS_MAX  # of all open topics: about 6 KiB each, and two maps


class Catalog(Protocol):
    """Which topics there are."""

    def find(self, name: str) -> TopicRecord:
        """Return the topic; raises NotFound."""

    def create(self, name: str, partitions: int, chosen: TopicSettings) -> bool:
        """Make a topic, durably; False if it is there, with the same number of partitions."""


class OpenTopic(Generic[L]):
    """A topic in use: its settings and one log per partition."""

    __slots__ = ("_rounds", "logs", "only", "topic")

    def __init__(self, topic: TopicRecord, logs: list[L]) -> None:
        self.topic = topic
        self.logs = logs
        self.only = logs[0] if len(logs) == 1 else None
        self._rounds = counter()

    def chosen(self, partition: int | None) -> list[L]:
        """Return the log of one partition, or all of them."""
        if partition is None:
            return self.logs
        if not 0 <= partition < len(self.logs):
            raise NotFound(
                f"topic {self.topic.name!r} has no partition {partition}",
                hint=f"it has {len(self.logs)} partitions, numbered from 0",
                code="partition_not_found",
            )
        return [self.logs[partition]]

    def choose(self, key: bytes | None, partition: int | None, producer: Producer | None = None) -> L:
        """Return the log that an event goes to: of its partition, of its key, or the next in turn.

        A retry of a producer must find the answer to the first try, so its turn follows from the request itself.
        """
        logs = self.logs
        if len(logs) == 1 and not partition:
            return logs[0]
        if partition is not None:
            return self.chosen(partition)[0]
        if key is not None:
            return logs[partition_of(key, len(logs))]
        return logs[self._turn(producer)]

    def spread(self, keys: Column, producer: Producer | None = None) -> Iterator[tuple[L, I64]]:
        """Return which events go to which partition: by the hash of the key; those without one, together, in turn."""
        partitions = np.broadcast_to(partitions_of_column(keys, len(self.logs)), keys.count)
        if keys.valid is not None:
            partitions = np.where(keys.present(), partitions, self._turn(producer))
        for number in np.unique(partitions).tolist():
            yield self.logs[number], np.flatnonzero(partitions == number)

    def deleted(self) -> bool:
        """Tell whether its topic was deleted, by any process."""
        try:
            self.logs[0].state()
        except NotFound:
            return True
        return False

    def _turn(self, producer: Producer | None) -> int:
        if producer is None:
            return next(self._rounds) % len(self.logs)
        return turn_of(producer.id, producer.seq, len(self.logs))


class OpenTopics(Generic[L]):
    """The open topics of one backend. Safe from any thread."""

    def __init__(
        self,
        catalogue: Catalog,
        limits: Limits,
        new_log: Callable[[TopicRecord, int], L],
        check_open: Callable[[], None],
    ) -> None:
        """`check_open` raises once the backend was closed."""
        self.open: dict[str, OpenTopic[L]] = {}
        self._logs: WeakValueDictionary[tuple[str, int], L] = WeakValueDictionary()  # all that anybody holds
        self._catalogue = catalogue
        self._limits = limits
        self._new_log = new_log
        self._check_open = check_open
        self._mutex = threading.Lock()  # protects changes of `open` and `_logs`

    def get(self, name: str) -> OpenTopic[L]:
        """Return the topic, opened if it is not; raises NotFound."""
        opened = self.open.get(name)
        if opened is None:
            self._check_open()
            opened = self.known(name)
        return opened

    def known(self, name: str) -> OpenTopic[L]:
        """Return the topic as `get`, also while the backend is being opened or closed."""
        opened = self.open.get(name)
        if opened is None:
            topic = self._catalogue.find(name)
            with self._mutex:
                opened = self.open.get(name)
                if opened is None:
                    self._make_room(topic.partitions)
                    logs = [self._log(topic, number) for number in range(topic.partitions)]
                    opened = self.open[name] = OpenTopic(topic, logs)
        return opened

    def _log(self, topic: TopicRecord, number: int) -> L:
        """Return the log that a caller has of this topic, which may have been closed since; else a new one."""
        log = self._logs.get((topic.uuid, number))
        if log is None:
            log = self._logs[topic.uuid, number] = self._new_log(topic, number)
        return log

    def _make_room(self, partitions: int) -> None:
        """Close topics that were not used for longest, some at once, if there are many. The caller has the mutex."""
        open_files.turn += 1  # a topic that is used from now on was used later
        topics_max, count = self._limits.open_topics_max, sum(len(opened.logs) for opened in self.open.values())
        if len(self.open) < topics_max and count + partitions <= OPEN_PARTITIONS_MAX:
            return
        by_use = sorted(self.open.values(), key=lambda opened: max(log.used for log in opened.logs))
        for opened in by_use:
            if len(self.open) <= topics_max * 3 // 4 and count + partitions <= OPEN_PARTITIONS_MAX * 3 // 4:
                break
            if all(log.idle() for log in opened.logs):
                del self.open[opened.topic.name]
                count -= len(opened.logs)

    def live(self, name: str, partition: int | None = None) -> OpenTopic[L]:
        """Return the topic as it is now, also when another process deleted it and made it again, or died in a commit.

        Only one `partition` of it, if that is given: the others are not looked at.
        """
        opened = self.get(name)
        if opened.deleted():
            self.forget(opened)
            opened = self.get(name)
        for log in opened.chosen(partition):
            log.settle()
        return opened

    def live_logs(self, name: str, partition: int | None) -> list[L]:
        """Return the logs of a topic as it is now, or the one of a partition of it."""
        return self.live(name, partition).chosen(partition)

    def for_append(self, name: str) -> OpenTopic[L]:
        """Return the topic, made if it is not there."""
        try:
            return self.get(name)
        except NotFound:
            self._check_open()
            self._catalogue.create(name, 1, TopicSettings())
            return self.get(name)

    def forget(self, opened: OpenTopic[L]) -> None:
        """Release a topic that was deleted."""
        with self._mutex:
            if self.open.get(opened.topic.name) is opened:
                del self.open[opened.topic.name]
            for number in range(len(opened.logs)):
                self._logs.pop((opened.topic.uuid, number), None)

    def commit(self, opened: OpenTopic[L], log: L, rows: Rows) -> L:
        """Append; if the topic was deleted meanwhile, to the one of that name that comes after it. Returns the log."""
        try:
            log.append(rows)
        except NotFound:
            log = self.commit_to_successor(opened, log, rows)
        return log

    def commit_to_successor(self, opened: OpenTopic[L], log: L, rows: Rows) -> L:
        """Append to the topic that took the name of a deleted one. Returns the log."""
        log = self._successor(opened, log)
        log.append(rows)
        return log

    def living(self, opened: OpenTopic[L], log: L) -> L:
        """Return the log, or its successor if the topic was deleted: for streams, which cannot be read twice."""
        try:
            log.state()
        except NotFound:
            log = self._successor(opened, log)
        return log

    def after_fork(self) -> None:
        """In a forked child: start over, with descriptors and locks of its own."""
        self._mutex = threading.Lock()
        for log in list(self._logs.values()):
            log.after_fork()

    def close(self) -> None:
        """Stop all followers, and release all files, after appends under way."""
        with self._mutex:
            logs = list(self._logs.values())
            self.open.clear()
            self._logs.clear()
        for log in logs:
            log.stop_followers()
            log.close()

    def _successor(self, opened: OpenTopic[L], log: L) -> L:
        """Return the partition in the topic that took the name of a deleted one; NotFound if its partitions differ."""
        self.forget(opened)
        successor = self.for_append(opened.topic.name)
        if len(successor.logs) != len(opened.logs):
            raise NotFound(f"topic {opened.topic.name!r} was deleted and created again with other partitions")
        return successor.logs[log.place.partition]
