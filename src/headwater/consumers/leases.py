"""Protocols of a place that keeps cursors: `Consumers`, all consumers of a log, and `Leases`, one member's share.

A log directory keeps them in files (file_consumers.py), a bucket and DynamoDB in records that are swapped
(coordinated_consumers.py, coordinated_leases.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from headwater.directory.cursor_file import CursorMove
from headwater.errors import Invalid, NotFound, TooLarge
from headwater.format import names
from headwater.format.settings import TopicRecord
from headwater.info import ConsumerInfo
from headwater.limits import CONSUMER_NAME_BYTES_MAX, Limits
from headwater.log.log import Log


class LeaseState(msgspec.Struct, frozen=True):
    """The stored place of a consumer in a partition: `failing` is an event that failed, `failures` how often."""

    fence: int
    cursor: int
    failing: int = 0
    failures: int = 0


class Progress(msgspec.Struct, frozen=True):
    """The progress of a member in a partition that it holds by `fence`, to be stored."""

    partition: int
    fence: int
    cursor: int
    reached: int
    failing: int
    failures: int


class Claim(msgspec.Struct, frozen=True):
    """A partition that was taken. If its owner died, an event before `careful_until` may have been the cause."""

    partition: int
    standing: LeaseState
    careful_until: int


class Round(msgspec.Struct, frozen=True):
    """The result of `tend`: partitions that were lost, those taken, and how many the member may hold.

    All that is held or was taken is so until `expires_s` of the monotonic clock. `more` means that others are free.
    """

    expires_s: float
    lost: list[int]
    claimed: list[Claim]
    share: int
    more: bool


class Leases(Protocol):
    """One member's part in a consumer, or that of a guest, which takes what is free and is not counted. Thread-safe.

    Every method compares owner and fence of each partition, and changes only what is still this member's. No method
    locks a log: the caller has made durable what it stores. NotFound means that the consumer was deleted.
    """

    guest: Sequence[int] | None
    """The partitions that a guest wants; None for a member."""

    @property
    def id(self) -> bytes:
        """Return the id of this member: new for each, and never used again."""

    @property
    def ack_s(self) -> float:
        """Return how often acks are to be stored."""

    @property
    def reach_s(self) -> float:
        """Return how old what is stored of events handed out may be; 0: it is stored before each chunk."""

    @property
    def transactional(self) -> bool:
        """Return whether transactions can move its cursors."""

    def tend(self, held: dict[int, int], *, claim: bool) -> Round:
        """Refresh the member and the leases of what it holds, by their fences; with `claim`, take up to its share.

        What was taken is durable when this returns.
        """

    def store(self, progress: Iterable[Progress], *, sync: bool) -> tuple[float, list[int]]:
        """Store how far the member has come; returns until when the leases hold, and the partitions that were lost."""

    def release(self, progress: Sequence[Progress], *, leave: bool = False, died: bool = False) -> list[int]:
        """Give partitions up, durably; with `leave`, the place among the members too. Returns what was lost before.

        With `died`, they are left as if their owner's process had ended with events in its hands.
        """

    def seek(self, progress: Sequence[Progress]) -> tuple[float, list[LeaseState]]:
        """Move cursors that the member holds, durably, under new fences; returns until when these hold.

        Raises Fenced if one is not held. In a file nothing was moved then.
        """

    def peek(self, partitions: Iterable[int]) -> dict[int, LeaseState]:
        """Return where the consumer is in some partitions, held here or not; none for those unreadable just now."""

    def busy(self, partitions: Iterable[int]) -> set[int]:
        """Return those of some partitions that changed since this member began: a live member reads them.

        For a guest, which looks at all that it wants and does not hold with each `tend`.
        """

    def move(self, partition: int, fence: int, cursor: int) -> CursorMove:
        """Return what a transaction stores to move a cursor; raises Unsupported unless it is `transactional`."""


def share_of(members: Sequence[bytes], me: bytes, partitions: int) -> int:
    """Return how many partitions a member may hold: an equal share; the first members get one more of a remainder."""
    each, more = divmod(partitions, len(members))
    return each + (members.index(me) < more)


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
    """Return the error for a consumer that a topic does not have."""
    return NotFound(
        f"topic {topic!r} has no consumer {name!r}",
        hint="'headwater consumers' lists them",
        code="consumer_not_found",
        consumer=name,
        topic=topic,
    )
