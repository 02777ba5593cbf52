"""The protocol of one log, wherever it is kept, and the errors that every log raises.

`LocalLog` (directory) and `ObjectLog` (bucket) implement it. `Extents` say where a log can be cut into parts of about
the same bytes, without reading its events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from headwater.disk.disk import Word
from headwater.errors import NotFound, TooLarge
from headwater.event import Blob, Content
from headwater.format.batch import Batch
from headwater.format.column import I64
from headwater.format.losses import Ranges
from headwater.format.producers import Producer, ProducerState
from headwater.limits import Limits
from headwater.log.rows import Rows

TypeTest = Callable[[bytes], bool]


class LogIdentity(Protocol):
    """Which log it is, and how it behaves. `str()` names it in messages."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def uuid(self) -> bytes: ...
    @property
    def limits(self) -> Limits: ...


class LogProgress(Protocol):
    """How far a log has come. What is secured can be mentioned outside of it: no crash takes it back."""

    @property
    def visible_offset(self) -> int: ...
    @property
    def secured_offset(self) -> int: ...
    @property
    def last_ticks(self) -> int: ...


class LogCursor(Protocol):
    """A place in a log that moves forward over batches."""

    @property
    def offset(self) -> int:
        """Return the next one."""

    @property
    def lost(self) -> int:
        """Return how many offsets it has passed whose events are lost: damaged, and cut out by `repair`."""

    def batches(self, stop: int, types: TypeTest | None = None, key: bytes | None = None) -> Iterator[Batch]:
        """Yield the batches from here to the one that holds `stop - 1`, moving along; ends at what is visible.

        They may overlap: after a pause, one may come that sealing has merged with those that came before it.
        """


class LogBell(Protocol):
    """What to sleep on until a log has more."""

    def expect(self) -> Word:
        """Return the word to wait on, with its value as of now."""

    def wake(self) -> None:
        """Wake all who sleep on it."""


class EventUpload(Protocol):
    """One huge event whose pieces arrive in their own time; discard it in any case."""

    def write(self, piece: bytes) -> None: ...
    def commit(self) -> Rows: ...
    def discard(self) -> None: ...


class Log(Protocol):
    """One partition. Safe from any thread."""

    @property
    def place(self) -> LogIdentity: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def node(self) -> int:
        """Return what the ids of its events have in common."""

    @property
    def blob_bytes_in_memory(self) -> int: ...

    def append(self, rows: Rows) -> None:
        """Commit rows; returns when their durability is reached, with their offset and ticks set."""

    def append_all(self, group: list[Rows]) -> None:
        """Commit the rows of many requests together; each has then its offset and ticks, or its `error`."""

    def upload(
        self,
        content: Content,
        type: bytes,
        key: bytes | None,
        meta: bytes | None,
        *,
        sync: bool,
        guard: tuple[int | None, Producer | None] | None = None,
    ) -> EventUpload:
        """Return one event whose pieces arrive in their own time."""

    def producers(self) -> tuple[int, dict[str, ProducerState]]:
        """Return what is remembered of producers now, and the offset as of which that is."""

    def sync(self) -> None:
        """Make all that is visible durable."""

    def start(self) -> int:
        """Return the oldest readable offset."""

    def end(self) -> int:
        """Return the offset that the next event will get."""

    def seen(self) -> int:
        """Return the end for callers that poll: where a look costs, it may be as old as `pause_s` allows."""

    def pause_s(self) -> float | None:
        """Return after how many seconds a sleeper should poll; None if every append wakes it."""

    def secured(self) -> int:
        """Return up to where it is durable, at least: a crash does not take that back. Does not look for more."""

    def state(self) -> LogProgress:
        """Return how far it has come; raises NotFound if its topic was deleted."""

    def batches(
        self,
        start: int,
        stop: int,
        *,
        backwards: bool = False,
        types: TypeTest | None = None,
        key: bytes | None = None,
    ) -> Iterator[Batch]:
        """Yield the batches that hold the offsets from `start` to `stop`, whole, less some that hold nothing wanted.

        They may overlap, as those of a cursor. The logger `headwater` warns of lost events that they pass over.
        """

    def version(self, key: bytes) -> int | None:
        """Return the offset of the key's last event; None if there is none."""

    def cursor(self, offset: int) -> LogCursor:
        """Return a place that moves forward through the log."""

    def ticks_before_start(self) -> int:
        """Return the ticks of the last event before the oldest readable one; 0 if there never was one."""

    def offset_at(self, ticks: int) -> int:
        """Return the first offset whose event has these ticks or later ones; the end if there is none."""

    def lost(self, start: int, stop: int) -> Ranges:
        """Return the offsets from `start` to before `stop` whose events are lost; raises Corrupt on damage."""

    def extents(self, start: int, stop: int, whole: int) -> Extents:
        """Return where the offsets from `start` to before `stop`, which are visible, can be cut; maybe none.

        What has up to `whole` bytes need not be cut. Reads no events; raises NotFound for what is gone.
        """

    def blob(self, batch: Batch) -> Blob:
        """Return the data of a huge event."""

    def wait_on(self) -> LogBell | None:
        """Return what to sleep on until there is more; None where nothing comes."""

    def stop_followers(self) -> None:
        """Wake the threads that sleep on this log, so that they look around."""

    def settle(self) -> None:
        """Finish what a process that died has left, so that it can be read; best effort."""

    @property
    def used(self) -> int:
        """Return the turn of `open_files` in which it was used last."""

    def idle(self) -> bool:
        """Release what it holds, if it can be rebuilt when needed; False if it is in use. Never waits."""

    def close(self) -> None:
        """Release it, after appends under way."""

    def after_fork(self) -> None:
        """In a forked child: start over."""


L = TypeVar("L", bound=Log)


class Extents(NamedTuple):
    """Parts of a log, in order: where each begins, at the first event of a batch, and about how many bytes it has.

    Each ends where the next begins. Only the very first may begin within a batch, where the caller wants that.
    """

    starts: I64
    sizes: I64

    @classmethod
    def of(cls, starts: list[int], sizes: list[int]) -> Extents:
        return cls(np.array(starts, np.int64), np.array(sizes, np.int64))


def joined(parts: list[Extents]) -> Extents:
    """Return parts that follow each other, as one; none at all if there are none."""
    if not parts:
        return Extents.of([], [])
    return Extents(np.concatenate([part.starts for part in parts]), np.concatenate([part.sizes for part in parts]))


def cut(extents: Extents, bytes_max: int, parts_max: int) -> Extents:
    """Return fewer and larger parts: as many as there are `bytes_max` in it, each with about its share."""
    starts, sizes = extents
    total = int(sizes.sum())
    wanted = min(-(-total // bytes_max), parts_max)
    if wanted <= 1:
        return Extents(starts[:1], np.array([total] if len(starts) else [], np.int64))
    before = np.cumsum(sizes) - sizes
    share = (before * (wanted / total)).astype(np.int64)
    first = np.flatnonzero(np.diff(share, prepend=-1))
    return Extents(starts[first], np.add.reduceat(sizes, first))


class NamedLog(Protocol):
    """Which log it is; `str()` is for messages."""

    @property
    def topic(self) -> str: ...


def deleted(place: NamedLog) -> NotFound:
    """Return the error for a topic that is gone."""
    return NotFound(f"topic {place.topic!r} was deleted", code="topic_deleted", topic=place.topic)


def offset_gone(place: NamedLog, offset: int, oldest: int) -> NotFound:
    """Return the error for an event that retention has deleted."""
    return NotFound(
        f"{place}: offset {offset} is gone; the oldest is {oldest}",
        hint="read from start='earliest'",
        code="offset_gone",
        oldest=oldest,
    )


def too_large(bytes_max: int) -> TooLarge:
    """Return the error for an event above the limit of its topic."""
    return TooLarge(
        f"the data exceeds the topic's limit of {bytes_max} bytes",
        hint="create the topic with a larger data_bytes_max",
        limit="data_bytes_max",
        maximum=bytes_max,
    )
