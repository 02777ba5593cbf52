"""The verbs of consumers on a backend that keeps its logs itself. Safe from any thread.

`join` makes a `LogConsumer` of the logs of a topic and of leases, which the backend's `consumers` keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from headwater.backend import ConsumerVerbs
from headwater.consumers import dead_letters as dead
from headwater.consumers.draining import LogVisit
from headwater.consumers.leases import Consumers, Leases, consumer_limits
from headwater.consumers.log_consumer import ExternalCursors, LogConsumer, place, places
from headwater.errors import Corrupt, NotFound, Unsupported
from headwater.info import ConsumerInfo
from headwater.limits import Limits
from headwater.log import reading
from headwater.log.log_backend import LogBackend
from headwater.log.open_topics import OpenTopic
from headwater.match.matcher import Selection
from headwater.position import Position
from headwater.requests import Consume, Drain


def log_consumers(verbs: ConsumerVerbs) -> LogConsumers:
    """Return the consumers of a store that keeps its logs itself; raises Unsupported for any other."""
    if not isinstance(verbs, LogConsumers):
        raise Unsupported("this needs a directory or a bucket", hint="open the directory", code="verb_unsupported")
    return verbs


class LogConsumers:
    """The consumers of a directory or a bucket."""

    def __init__(self, backend: LogBackend[Any], consumers: Consumers) -> None:
        """`consumers` keep the cursors and leases."""
        self._backend = backend
        self._consumers = consumers

    def join(self, request: Consume, kept: ExternalCursors | None = None) -> LogConsumer:
        """Join a consumer. With `kept`, its cursors are kept elsewhere, and those stored here only follow."""
        opened = self._backend.opened(request.topic)
        limits = consumer_limits(self._backend.limits, request.lease_ms, request.failures_max)
        selection = Selection(request.type, request.key, request.match)
        return self._member(request, opened, selection, limits, self._leases(request, opened, limits), kept)

    def visit(self, request: Drain) -> LogVisit:
        """Return a visit as a guest, which takes what is free of the partitions."""
        opened = self._backend.opened(request.topic)
        numbers = range(len(opened.logs)) if request.partitions is None else sorted(request.partitions)
        logs = [log for number in numbers for log in opened.chosen(number)]
        limits = consumer_limits(self._backend.limits, request.lease_ms, request.failures_max)
        selection = Selection(request.type, request.key, request.match)
        leases = self._leases(request, opened, limits, guest=())
        return LogVisit(partial(self._member, request, opened, selection, limits), leases, logs, self._backend.clock)

    def infos(self, topic: str | None) -> list[ConsumerInfo]:
        """Return all consumers of a topic, or of all topics; what is damaged is among them, with its error."""
        found: list[ConsumerInfo] = []
        for name in [topic] if topic is not None else self._backend.topics():
            try:
                opened = self._backend.opened(name)
                found += self._consumers.infos(opened.topic, opened.logs)
            except NotFound:
                if topic is not None:  # else it was deleted meanwhile
                    raise
            except (Corrupt, Unsupported) as error:
                if topic is not None:
                    raise
                found.append(ConsumerInfo.damaged("", name, -1, error))
        return found

    def seek(self, consumer: str, topic: str, at: Position, partition: int | None) -> dict[int, int]:
        opened = self._backend.opened(topic)
        logs = opened.chosen(partition)
        reading.check_id(logs, at)
        self._consumers.check(consumer, opened.topic)
        cursors = {log.place.partition: place(log, at, len(logs)) for log in logs}
        self._consumers.seek(consumer, opened.topic, cursors)
        for log in logs:
            log.stop_followers()  # members that sleep there find out
        return cursors

    def forget(self, consumer: str, topic: str) -> None:
        self._backend.check_open()
        self._consumers.forget(consumer, topic)

    def replay(self, topic: str, consumer: str | None) -> int:
        return dead.replay(self._backend, self.join, topic, consumer)

    def _leases(
        self, request: Consume, opened: OpenTopic[Any], limits: Limits, guest: Sequence[int] | None = None
    ) -> Leases:
        """Return the leases of a new member or guest of a consumer, which is created if it is new."""
        reading.check_id(opened.logs, request.start)
        starts = partial(places, opened.logs, request.start)
        return self._consumers.join(request.consumer, opened.topic, limits.lease_ms, starts, guest)

    def _member(
        self,
        request: Consume,
        opened: OpenTopic[Any],
        selection: Selection,
        limits: Limits,
        leases: Leases,
        kept: ExternalCursors | None = None,
    ) -> LogConsumer:
        backend = self._backend
        aside = partial(dead.set_aside, backend) if kept is None else kept.set_aside
        place_of = None if kept is None else kept.cursor
        own = backend.disk, backend.clock
        member = LogConsumer(
            request.consumer, opened.logs, leases, selection, limits, *own, aside, request.timeout, place_of
        )
        backend.members.add(member)
        return member
