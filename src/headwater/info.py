"""What a log tells of itself, the same from a directory and from a server: plain records, without I/O."""

from __future__ import annotations

from typing import Any

import msgspec


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


class TopicInfo(msgspec.Struct, frozen=True):
    """A topic and its partitions."""

    name: str
    uuid: str
    settings: dict[str, Any]
    partitions: list[PartitionInfo]

    @property
    def events(self) -> int:
        return sum(partition.end - partition.start for partition in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(partition.bytes for partition in self.partitions)


class ConsumerInfo(msgspec.Struct, frozen=True):
    """One partition of one consumer. `owner` is None where nobody reads; `lease_ms` is what is left of its lease."""

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


class Deleted(msgspec.Struct, frozen=True):
    """A segment that was deleted, or would be: the offsets from `first` to before `end`, and the bytes of its files."""

    topic: str
    partition: int
    first: int
    end: int
    bytes: int
