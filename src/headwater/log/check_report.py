"""What a check found, and how much it looked at."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec


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
