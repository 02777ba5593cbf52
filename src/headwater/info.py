"""Records that describe a log, the same for a directory and a server: topics, consumers, views, findings of a check.

Plain values without I/O. Only `Counts` may be changed, by several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from headwater.errors import HeadwaterError


class Report(msgspec.Struct, frozen=True):
    """What a recovery had to give up. Kept in `recovered.jsonl` beside the log, newest last."""

    time: str
    segment: int
    position: int
    cut_bytes: int
    kept: str
    lost_offsets: tuple[int, int]  # events that were visible under "os" durability and are gone; empty if equal


class PartitionInfo(msgspec.Struct, frozen=True):
    """One partition: offsets from `start` to before `end`, files, state, and what recoveries gave up."""

    partition: int
    start: int
    end: int
    durable: int
    segments: int
    sealed: int
    bytes: int
    first_time: str | None  # of the oldest event; None if there is none, or it is damaged
    last_time: str | None
    state: str
    recovered: list[Report]
    archived: int | None = None  # what is before this offset is in the archive; None if nothing is known to be
    local: int | None = None  # the oldest offset on the local disk, where that is not `start`: the rest is archived
    finished: int | None = None  # what is before this offset is in finished segments; None if a server does not tell
    lost: list[tuple[int, int]] = []  # ranges of offsets whose events were damaged, and cut out by `repair`

    @property
    def events(self) -> int:
        """Return how many events can be read: offsets without those that are lost."""
        return self.end - self.start - sum(hi - lo for lo, hi in self.lost)


class TopicInfo(msgspec.Struct, frozen=True):
    """A topic and its partitions."""

    name: str
    uuid: str
    settings: dict[str, Any]
    partitions: list[PartitionInfo]

    @property
    def events(self) -> int:
        """Return how many events can be read: lost ones do not count."""
        return sum(partition.events for partition in self.partitions)

    @property
    def lost(self) -> int:
        """Return how many events were damaged, and cut out by `repair`."""
        return sum(hi - lo for partition in self.partitions for lo, hi in partition.lost)

    @property
    def bytes(self) -> int:
        return sum(partition.bytes for partition in self.partitions)


class Split(msgspec.Struct, frozen=True):
    """A part of a topic to read by itself: the offsets from `start` to before `end` of one partition.

    `bytes` is about how much of the log that is; the data of huge events is not counted.
    """

    topic: str
    partition: int
    start: int
    end: int
    bytes: int


class ConsumerInfo(msgspec.Struct, frozen=True):
    """One partition of one consumer. `owner` is None where nobody reads; `lease_ms` is what is left of its lease.

    With an `error`, what is stored of it is damaged: in a partition, or, if that is -1, in all of them.
    """

    name: str
    topic: str
    partition: int
    cursor: int
    end: int
    lag: int
    owner: str | None
    fence: int
    lease_ms: int
    failures: int
    error: str | None = None

    @classmethod
    def damaged(cls, name: str, topic: str, partition: int, error: HeadwaterError) -> ConsumerInfo:
        """Return a consumer of which nothing can be told but the reason."""
        return cls(name, topic, partition, 0, 0, 0, None, 0, 0, 0, str(error))


class DrainResult(msgspec.Struct, frozen=True):
    """How many events were handled, and whether more is waiting: then it is true."""

    handled: int
    more: bool

    def __bool__(self) -> bool:
        return self.more


class DeletedSegment(msgspec.Struct, frozen=True):
    """A segment that was deleted, or would be: the offsets from `first` to before `end`, and the bytes of its files."""

    topic: str
    partition: int
    first: int
    end: int
    bytes: int


class ArchivedRange(msgspec.Struct, frozen=True):
    """A segment that was archived: the offsets from `first` to before `end`, and the bytes of its files."""

    topic: str
    partition: int
    first: int
    end: int
    bytes: int


class RestoreResult(msgspec.Struct, frozen=True):
    """A partition that was restored: the offsets from `first` to before `end`, and the bytes that were fetched.

    `lost` counts the offsets among them whose events a `repair` had cut out before they were archived.
    """

    topic: str
    partition: int
    first: int
    end: int
    bytes: int
    lost: int = 0

    @property
    def events(self) -> int:
        """Return how many events can be read."""
        return self.end - self.first - self.lost


class BinderInfo(msgspec.Struct, frozen=True):
    """A binder: how many documents, the bytes of its files, the fields with an index, the projections that fill it."""

    name: str
    documents: int
    bytes: int
    indexes: list[str]
    projections: list[str]


class ViewError(msgspec.Struct, frozen=True):
    """An event that a projection could not fold, or a function could not handle, and why."""

    topic: str
    partition: int
    offset: int
    id: str
    type: str
    error: str
    trace: str
    time: str


class ViewPartition(msgspec.Struct, frozen=True):
    """How far a view has come in one partition, and who works there: None if nobody does."""

    partition: int
    next: int
    end: int
    lag: int
    owner: str | None


class ViewInfo(msgspec.Struct, frozen=True):
    """A projection or a function. `events` counts those folded or handled, `rate` is of the last seconds, per second.

    `state` is `running`, `idle` (nobody runs it), `stopped` (by `error`), `rebuilding`, or, for a binder whose file
    cannot be read, `unreadable`: then it has the binder's name. `skipped` events had no key; `missed` ones were deleted
    by retention before they were read, or are lost; `aside` counts those quarantined or dead-lettered.
    """

    kind: Literal["projection", "function"]
    name: str
    topic: str
    binder: str | None
    version: int
    state: str
    lag: int
    events: int
    rate: float
    skipped: int
    missed: int
    errors: int
    aside: int
    error: ViewError | None
    partitions: list[ViewPartition]


class MaintenanceResult(msgspec.Struct):
    """What was done to the logs of a bucket: segments made, what was trimmed, and objects that were deleted."""

    segments: int = 0
    trimmed: list[DeletedSegment] = []
    collected: int = 0


class ReplicaLog(msgspec.Struct, frozen=True):
    """One partition of a replica: where it and its source end, and how far behind it is.

    `lag_s` is how old the newest event is that it has, while there are others; 0 when it has all. `trouble` says why it
    is not copied any further. `lost` counts the offsets of the copy whose events a `repair` cut out of its source.
    """

    topic: str
    partition: int
    end: int
    source_end: int
    lag: int
    lag_bytes: int
    lag_s: float
    trouble: str = ""
    lost: int = 0


class ReplicaInfo(msgspec.Struct, frozen=True):
    """How a replica is. `state` is `copying`, `unreachable` (its source is, since `heard`), `stopped` or `promoted`."""

    source: str
    source_uuid: str
    since: str
    state: str
    heard: str | None  # when the source last answered
    promoted: str | None
    error: str
    logs: list[ReplicaLog]

    @property
    def lag(self) -> int:
        """Return events that the source has, as far as it told, and the replica has not."""
        return sum(log.lag for log in self.logs)

    @property
    def lost(self) -> int:
        """Return events that a repair cut out of the source, and that the replica does not have either."""
        return sum(log.lost for log in self.logs)


class Finding(msgspec.Struct, frozen=True):
    """Something that `check` has to say. `damage` is False for what is merely worth knowing."""

    topic: str
    partition: int
    path: str
    position: int
    size: int
    problem: str
    damage: bool = True


class Counts(msgspec.Struct):
    """How much was checked."""

    segments: int = 0
    batches: int = 0
    events: int = 0
    bytes: int = 0
    lost: int = 0  # offsets of events that a repair has cut out: they do not count as events


Progress = Callable[[int, int], None]


class CheckReport(msgspec.Struct):
    """What a check found, and how much it looked at."""

    findings: list[Finding] = []
    topics: int = 0
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    events: int = 0
    bytes: int = 0
    lost: int = 0  # events that a repair has cut out: they do not count among the others

    def add(self, counts: Counts) -> None:
        """Take over how much was looked at."""
        self.segments, self.batches, self.events = counts.segments, counts.batches, counts.events
        self.bytes, self.lost = counts.bytes, counts.lost

    @property
    def damaged(self) -> bool:
        """Return whether any stored byte is not what was written."""
        return any(finding.damage for finding in self.findings)


def advancing(total: int, progress: Progress | None) -> Callable[[int], None]:
    """Return a function that adds up how much is done, from any thread, and calls `progress`."""
    mutex = threading.Lock()  # protects `done`
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        with mutex:
            done += size
            if progress is not None:
                progress(min(done, total), total)

    return advance
