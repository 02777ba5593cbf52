"""The consumers of a log: what the verbs ask of the place that keeps their cursors.

`file_consumers` keeps them in a log directory, `coordinated_consumers` in a bucket or in DynamoDB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from headwater.consumers.leases import Leases
from headwater.errors import Invalid, NotFound, TooLarge
from headwater.format import names
from headwater.format.settings import TopicRecord
from headwater.info import ConsumerInfo
from headwater.limits import CONSUMER_NAME_BYTES_MAX, Limits
from headwater.log.log import Log

LEASE_MS_MIN = 50  # below, a stall of the machine would take every lease away


class Consumers(Protocol):
    """All consumers of one place. Safe from any thread and process."""

    def join(
        self,
        name: str,
        topic: TopicRecord,
        lease_ms: int,
        starts: Callable[[], list[int]],
        guest: Sequence[int] | None = None,
    ) -> Leases:
        """Return the part of a new member; a consumer that is new is made durably, with these starts.

        A guest is no member with a share of its own: it takes what is free of the partitions in `guest`.
        """

    def check(self, name: str, topic: TopicRecord) -> None:
        """Raise NotFound if the topic has no such consumer."""

    def names(self, topic: TopicRecord) -> list[str]:
        """Return the names of all consumers of a topic, sorted."""

    def infos(self, topic: TopicRecord, logs: Sequence[Log]) -> list[ConsumerInfo]:
        """Return all consumers of a topic, partition by partition."""

    def slowest(self, topic: TopicRecord, partition: int) -> int | None:
        """Return the lowest cursor of all consumers of a topic in a partition; None if it has none."""

    def seek(self, name: str, topic: TopicRecord, cursors: dict[int, int]) -> None:
        """Move cursors, durably, under new fences: the process that holds a partition loses it, and it is free."""

    def forget(self, name: str, topic: str) -> None:
        """Delete a consumer's cursors of a topic, durably; raises NotFound. Its members find out and stop."""


def consumer_limits(limits: Limits, lease_ms: int | None, failures_max: int | None) -> Limits:
    """Return the limits with what a member has chosen; raises Invalid."""
    changes = {"lease_ms": lease_ms, "failures_max": failures_max}
    chosen = {name: value for name, value in changes.items() if value is not None}
    limits = msgspec.structs.replace(limits, **chosen)
    if limits.lease_ms < LEASE_MS_MIN or limits.failures_max < 1:
        raise Invalid(f"lease_ms must be at least {LEASE_MS_MIN}, and failures_max at least 1")
    return limits


def check_name(name: str) -> str:
    """Return the name of a consumer as that of a directory or of a part of a key; raises Invalid."""
    size = len(names.utf8(name, "a consumer's name"))
    if not size:
        raise Invalid("a consumer's name is empty")
    if size > CONSUMER_NAME_BYTES_MAX:
        raise TooLarge(
            f"a consumer's name has {size} bytes; the limit is {CONSUMER_NAME_BYTES_MAX}",
            limit="consumer_name_bytes_max",
            maximum=CONSUMER_NAME_BYTES_MAX,
        )
    return names.directory_of(name)


def consumer_not_found(name: str, topic: str) -> NotFound:
    """A topic has no such consumer."""
    return NotFound(
        f"topic {topic!r} has no consumer {name!r}",
        hint="'headwater consumers' lists them",
        code="consumer_not_found",
        consumer=name,
        topic=topic,
    )
