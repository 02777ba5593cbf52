"""What an append hands to the log, before offsets and times are known; and how waiting appends merge into batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from headwater.event import Content
from headwater.format import batch as format
from headwater.format.batch import DATA, KEY, META, TYPE
from headwater.format.column import Column, concat, concat_repeated
from headwater.limits import Limits

KINDS = (TYPE, KEY, DATA, META)


class Rows:
    """Events of one append to one log, and, once committed, where they are.

    Either one event (`data`, `type`, `key`, `meta`) or many (`columns`, by kind). `spooled` is the file of a huge
    event, whose `data` is then the reference to it. Committed as a whole, within one batch.
    """

    __slots__ = (
        *("columns", "content", "count", "data", "key", "meta", "size", "spooled", "sync", "type"),
        *("done", "error", "leads", "offset", "ticks"),
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
        self.leads = False

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

    def column(self, kind: int) -> Column | None:
        if self.columns is not None:
            return self.columns.get(kind)
        value = {TYPE: self.type or None, KEY: self.key, DATA: self.data, META: self.meta}[kind]
        return None if value is None else Column(1, value)


def encode(group: list[Rows], offset: int, ticks: int, *, zstd: bool) -> bytes:
    """The bytes of one batch that holds all rows of the group, which have the same content."""
    first = group[0]
    if len(group) == 1:
        if first.columns is None:
            flags = format.BLOB if first.spooled is not None else 0
            return format.encode_one(offset, ticks, first.content, first.data, first.type, first.key, first.meta, flags)
        return format.encode(offset, ticks, first.count, first.content, first.columns, zstd=zstd)
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


def mergeable(group: list[Rows], limits: Limits) -> Iterator[list[Rows]]:
    """Split rows, in order, into runs that fit one batch: the same content, no huge event, within the limits."""
    run: list[Rows] = []
    events = size = 0
    for rows in group:
        fits = events + rows.count <= limits.batch_events_max and size + rows.size <= limits.batch_bytes_max
        if run and not (fits and rows.content == run[0].content and rows.spooled is None and run[0].spooled is None):
            yield run
            run, events, size = [], 0, 0
        run.append(rows)
        events += rows.count
        size += rows.size
    yield run
