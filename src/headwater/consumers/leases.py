"""What one member of a consumer stores: its place among the members, its leases, and how far it has come.

`Leases` is all that a member knows of where cursors are kept. `file_leases` keeps them in the consumer's file of a log
directory, `coordinated_leases` in a bucket or in DynamoDB.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from headwater.directory.cursor_file import CursorMove


class LeaseState(msgspec.Struct, frozen=True):
    """Where a consumer is in a partition, as it is stored: `failing` is an event that failed, `failures` how often."""

    fence: int
    cursor: int
    failing: int = 0
    failures: int = 0


class Progress(msgspec.Struct, frozen=True):
    """How far a member has come in a partition that it holds by `fence`: what is to be stored."""

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
    """What a look around found: partitions that are not ours any more, those taken, how many we may hold.

    All that is held or was taken is so until `expires_s` of the monotonic clock. `more` tells that there are some to
    take.
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
        """Return what tells this member from all others: new for each, and never used again."""

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

        With `died`, whoever takes them next finds them as if their owner's process had ended with events in its hands.
        """

    def seek(self, progress: Sequence[Progress]) -> tuple[float, list[LeaseState]]:
        """Move cursors that the member holds, durably, under new fences; returns until when these hold.

        Raises Fenced if one is not held. In a file nothing was moved then.
        """

    def peek(self, partitions: Iterable[int]) -> dict[int, LeaseState]:
        """Return where the consumer is in some partitions, whoever holds them; none for those unreadable just now."""

    def busy(self, partitions: Iterable[int]) -> set[int]:
        """Those of some partitions of which a change was seen since this member began: somebody lives who reads there.

        For a guest, which looks at all that it wants and does not hold with each `tend`.
        """

    def move(self, partition: int, fence: int, cursor: int) -> CursorMove:
        """Return what a transaction stores to move a cursor; raises Unsupported unless it is `transactional`."""


def share_of(members: Sequence[bytes], me: bytes, partitions: int) -> int:
    """How many partitions a member may hold: an equal part, the first members one more where it does not come out."""
    each, more = divmod(partitions, len(members))
    return each + (members.index(me) < more)
