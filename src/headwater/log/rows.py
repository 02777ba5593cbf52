"""What an append hands to the log, before offsets and times are known; and how waiting appends merge into batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from headwater.event import Content
from headwater.format import batch as format
from headwater.format.batch import DATA, KEY, META, PRODUCER, TYPE
from headwater.format.column import Column, concat, concat_repeated
from headwater.format.producers import Producer
from headwater.limits import Limits

KINDS = (TYPE, KEY, DATA, META)


class Rows:
    """Events of one append to one log, and, once committed, where they are.

    Either one event (`data`, `type`, `key`, `meta`) or many (`columns`, by kind). `spooled` is the file of a huge
    event, whose `data` is then the reference to it. Committed as a whole, within one batch.

    `guard` adds conditions: the version that is `expected` of `key`, which all events then share, and the `producer`.
    """

    __slots__ = (
        *("columns", "content", "count", "data", "key", "meta", "size", "spooled", "sync", "type"),
        *("done", "error", "offset", "ticks"),
        *("frame", "leader", "settled", "thread"),
        *("answered", "expected", "guarded", "producer"),
    )

    def __init__(self, content: Content, sync: bool) -> None:
        self.content = content
        self.sync = sync
        self.count = 1
        self.size = 0
        self.data = b""
        self.type = b""
        self.key: bytes | None = None
        self.meta: bytes | None = None
        self.columns: dict[int, Column | None] | None = None
        self.spooled: Path | None = None
        self.offset = -1
        self.ticks = 0
        self.error: BaseException | None = None
        self.done: threading.Lock | None = None  # held while the append waits for its leader
        self.settled = False  # a leader has committed or refused them
        self.leader: Rows | None = None  # who took them along
        self.frame: FrameType | None = None  # the call that appends them
        self.thread = 0
        self.guarded = False
        self.answered = False  # it is a retry, and `offset` and `ticks` are of the first time
        self.expected: int | None = None
        self.producer: Producer | None = None

    @classmethod
    def one(
        cls,
        content: Content,
        sync: bool,
        data: bytes,
        type: bytes = b"",
        key: bytes | None = None,
        meta: bytes | None = None,
    ) -> Rows:
        rows = cls(content, sync)
        rows.data, rows.type, rows.key, rows.meta = data, type, key, meta
        rows.size = len(data)
        return rows

    @classmethod
    def many(cls, content: Content, sync: bool, columns: dict[int, Column | None], count: int) -> Rows:
        rows = cls(content, sync)
        rows.columns, rows.count = columns, count
        rows.size = sum(column.bytes_of() for column in columns.values() if column is not None)
        return rows

    def guard(self, expected: int | None, producer: Producer | None) -> None:
        """Commit only if the key's version is as expected, and only once for this request of the producer."""
        self.expected, self.producer = expected, producer
        self.guarded = expected is not None or producer is not None

    def runs(self) -> bool:
        """Return whether the call that appends them is under way: an exception may end it at any instruction.

        Only an executing frame refuses to be cleared. The frames of another thread cannot be walked instead: in
        CPython 3.11 they may be freed on the way, and `f_back` is then whatever took their memory.
        """
        frame = self.frame
        if frame is None:
            return False
        try:
            frame.clear()  # of a call that has ended, so nothing needs its variables
        except RuntimeError:
            return True
        return False

    def column(self, kind: int) -> Column | None:
        if self.columns is not None:
            return self.columns.get(kind)
        value = {TYPE: self.type or None, KEY: self.key, DATA: self.data, META: self.meta}[kind]
        return None if value is None else Column(1, value)


def encode(group: list[Rows], offset: int, ticks: int, *, zstd: bool) -> bytes:
    """Return the bytes of one batch that holds all rows of the group, which have the same content."""
    first = group[0]
    if len(group) == 1:
        if first.columns is None:
            flags = format.BLOB if first.spooled is not None else 0
            stamp = None if first.producer is None else first.producer.stamp()
            values = first.data, first.type, first.key, first.meta
            return format.encode_one(offset, ticks, first.content, *values, flags, stamp)
        stamped = first.columns
        if first.producer is not None:
            stamped = {**stamped, PRODUCER: Column(first.count, first.producer.stamp())}
        return format.encode(offset, ticks, first.count, first.content, stamped, zstd=zstd)
    counts = [rows.count for rows in group]
    columns: dict[int, Column | None]
    if all(rows.columns is None for rows in group):
        columns = {
            TYPE: Column.of_repeated([rows.type for rows in group]),
            KEY: Column.of_optional([rows.key for rows in group]),
            DATA: Column.of([rows.data for rows in group]),
            META: Column.of_optional([rows.meta for rows in group]),
        }
    else:
        columns = {
            kind: (concat_repeated if kind == TYPE else concat)([rows.column(kind) for rows in group], counts)
            for kind in KINDS
        }
    return format.encode(offset, ticks, sum(counts), first.content, columns, zstd=zstd)


def one_batch(group: list[Rows], limits: Limits) -> bool:
    """Return whether all rows fit one batch, and so are there together or not at all."""
    runs = mergeable(group, limits)
    return next(runs, None) is not None and next(runs, None) is None


def mergeable(group: list[Rows], limits: Limits, bytes_max: int = 0) -> Iterator[list[Rows]]:
    """Split rows, in order, into runs that fit one batch: the same content, within the limits; some stay alone.

    `bytes_max` is less than a batch may have: rows that are larger are not split by it, but not merged either.
    """
    run: list[Rows] = []
    events = size = 0
    content, alone = None, False  # of the run
    events_max, bytes_max = limits.batch_events_max, bytes_max or limits.batch_bytes_max
    for rows in group:
        events += rows.count
        size += rows.size
        # A huge event and the request of a producer are batches of their own.
        after_alone, alone = alone, rows.producer is not None or rows.spooled is not None
        if events > events_max or size > bytes_max or rows.content != content or after_alone or alone:
            if run:
                yield run
            run, events, size, content = [rows], rows.count, rows.size, rows.content
        else:
            run.append(rows)
    yield run
