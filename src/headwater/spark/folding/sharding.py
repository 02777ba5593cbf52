"""Cutting the history of a binder into shards: which task reads what, and keeps which documents. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from headwater.event import Event
from headwater.format import arrow, events
from headwater.format.batch import BLOB, KEY
from headwater.format.column import Column
from headwater.format.events import EventBatch
from headwater.format.hashes import key_hashes
from headwater.views.shards import ProjectionRange

if TYPE_CHECKING:
    import pyarrow as pa


SHARD_EVENTS_MIN = 100_000  # fewer are not worth a task of their own
TASKS_PER_CORE = 2  # so that none waits long for the slowest
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
PIECE_EVENTS = 2048  # of which objects are made together
_COLUMNS = ("key", "offset", "ticks", "type", "data", "meta")


class FoldRange(msgspec.Struct, frozen=True):
    """Events of one partition that one projection folds: `projection` is its place in the list of them."""

    projection: int
    partition: int
    start: int
    end: int


class Task(msgspec.Struct, frozen=True):
    """One shard: what is to be read, in this order, of which the documents of shard `shard` of `shards` are kept."""

    number: int
    parts: list[FoldRange]
    shard: int
    shards: int


def plan(spans: Sequence[ProjectionRange], places: Mapping[str, int], cores: int, *, by_partition: bool) -> list[Task]:
    """Return the tasks for these spans: as many as keep all cores busy, and each with enough to do."""
    parts = [
        FoldRange(places[span.projection.name], partition, start, end)
        for span in spans
        for partition, (start, end) in enumerate(zip(span.starts, span.ends, strict=True))
        if start < end
    ]
    groups = [[part] for part in parts] if by_partition else [parts]
    tasks: list[Task] = []
    for group in sorted(groups, key=_events, reverse=True):  # what takes longest is begun first
        wanted = -(-cores * TASKS_PER_CORE * _events(group) // max(1, _events(parts)))
        shards = max(1, min(wanted, _events(group) // SHARD_EVENTS_MIN))
        tasks += [Task(len(tasks) + shard, group, shard, shards) for shard in range(shards)]
    return tasks


def _events(parts: Sequence[FoldRange]) -> int:
    return sum(part.end - part.start for part in parts)


class KeyedChunk:
    """Some batches of one partition, whose events have been put into the order of their keys."""

    def __init__(self, batches: Sequence[EventBatch]) -> None:
        table = events.table(batches, _COLUMNS)
        keys = table.column("key").combine_chunks().dictionary_encode()
        self.skipped: int = keys.null_count
        """Events that have no key."""
        self.keys = [key or b"" for key in arrow.values_of(keys.dictionary)]
        codes: I64 = np.asarray(keys.indices.fill_null(len(self.keys)))
        self._order = np.argsort(codes, kind="stable")[: len(codes) - self.skipped]
        self._ends = np.cumsum(np.bincount(codes, minlength=len(self.keys))[: len(self.keys)])
        self._codes = codes
        self._log = batches[0].log
        self._offsets: I64 = table.column("offset").to_numpy()
        self._ticks: I64 = table.column("ticks").to_numpy()
        types: Any = table.column("type").unify_dictionaries().combine_chunks()
        self._types = types.dictionary.to_pylist()
        self._type_codes: I64 = np.asarray(types.indices)
        self._data = table.column("data").combine_chunks()
        self._meta = table.column("meta").combine_chunks()
        self._contents, self._content_codes = _contents(batches)
        self._huge = _huge(batches)

    def __len__(self) -> int:
        """Return how many events have a key."""
        return len(self._order)

    def runs(self) -> Iterator[tuple[int, list[list[Event]]]]:
        """Yield the events of each key in the order of offsets, a piece at a time: of the keys from a number on.

        What is too long for one piece goes on in the next.
        """
        start = first = 0
        while first < len(self._order):
            end = min(first + PIECE_EVENTS, len(self._order))
            stop = int(np.searchsorted(self._ends, end, side="left")) + 1
            if stop - start > 1 and self._ends[stop - 1] > end:  # the last one is left whole for the next piece
                stop -= 1
                end = int(self._ends[stop - 1])
            made = self._events(first, end)
            ends = np.minimum(self._ends[start:stop], end) - first
            yield start, [made[lo:hi] for lo, hi in pairwise([0, *ends.tolist()])]
            start = stop if self._ends[stop - 1] == end else stop - 1
            first = end

    def _events(self, first: int, end: int) -> list[Event]:
        """Return the events at these places of the order, as objects."""
        rows = self._order[first:end]
        log, count = self._log, end - first
        taken = arrow.pyarrow().array(rows)
        contents = self._contents
        found = list(
            map(
                Event,
                repeat(log.topic, count),
                repeat(log.partition),
                self._offsets[rows].tolist(),
                self._ticks[rows].tolist(),
                map(self._types.__getitem__, self._type_codes[rows].tolist()),
                map(self.keys.__getitem__, self._codes[rows].tolist()),
                _values(self._data, taken),
                repeat(contents[0])
                if len(contents) == 1
                else map(contents.__getitem__, self._content_codes[rows].tolist()),
                repeat(log.node),
                _values(self._meta, taken),
            )
        )
        if self._huge:
            for at, row in enumerate(rows.tolist()):
                if row in self._huge:
                    found[at] = self._huge[row]
        return found


def _values(column: pa.Array[Any], rows: pa.Array[Any]) -> Iterator[bytes | None] | list[bytes | None]:
    if column.null_count == len(column):
        return repeat(None)
    return arrow.values_of(column.take(rows))


def _contents(batches: Sequence[EventBatch]) -> tuple[list[Any], I64]:
    """Return the kinds of content that batches have, and which of them each event has."""
    kinds: dict[Any, int] = {}
    codes = [kinds.setdefault(batch.piece.batch.content, len(kinds)) for batch in batches]
    return list(kinds), np.repeat(np.array(codes, np.int64), [len(batch) for batch in batches])


def _huge(batches: Sequence[EventBatch]) -> dict[int, Event]:
    """Return the huge events, which are each in a batch of their own, by their row: their data is not in the batch."""
    found: dict[int, Event] = {}
    row = 0
    for batch in batches:
        if batch.piece.batch.flags & BLOB and len(batch):
            (found[row],) = batch.events()
        row += len(batch)
    return found


def own(batch: EventBatch, shard: int, shards: int) -> EventBatch | None:
    """Return the events of a batch whose keys belong to a shard; None if none do. The first has those without a key."""
    if shards == 1:
        return batch
    stored = batch.piece.batch
    column = stored.column(KEY)
    if column is None or column.offsets is None:
        mine = 0 if column is None else int(key_hashes(column)[0]) % shards
        return batch if mine == shard else None
    numbers = np.zeros(stored.count, np.uint32)
    numbers[column.present()] = key_hashes(column) % np.uint32(shards)
    _, lo, hi = batch.piece
    rows = np.arange(lo, hi) if batch.rows is None else batch.rows
    rows = rows[numbers[rows] == shard]
    if not len(rows):
        return None
    return EventBatch(batch.log, stored, lo, hi, rows)


def shards_of(ids: Sequence[str | None], shards: int) -> U32:
    """Return the shard of each document; the first, where there is none."""
    hashes = key_hashes(Column.of([b"" if id is None else id.encode() for id in ids]))
    return hashes % np.uint32(shards) * np.array([id is not None for id in ids], np.uint32)
