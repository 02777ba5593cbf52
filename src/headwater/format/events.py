"""What a read finds, batch by batch: a range or a selection of the events of one stored batch, as objects or Arrow.

Bytes only: what a batch is of, and where its huge data is, its `BatchLog` knows, a log of a directory or of a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import numpy as np

from headwater.event import Blob, Event, id_of
from headwater.format import arrow
from headwater.format.batch import BLOB, DATA, KEY, META, TYPE, Batch, decode, encode_one
from headwater.format.column import I64, Column

if TYPE_CHECKING:
    import pyarrow as pa


class BatchLog(Protocol):
    """The log that a batch is of."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def node(self) -> int: ...
    @property
    def blob_bytes_in_memory(self) -> int:
        """Up to this size, the data of a huge event is loaded with it."""
        ...

    def blob(self, batch: Batch) -> Blob:
        """Return the data of a huge event."""
        ...


class EventBatch:
    """Some events of one batch, in order. `len()` is how many."""

    __slots__ = ("_batch", "_hi", "_lo", "log", "rows")

    def __init__(self, log: BatchLog, batch: Batch, lo: int, hi: int, rows: I64 | None) -> None:
        """`rows` picks some of the events `lo` to `hi`; None takes all of them."""
        self.log = log
        self._batch = batch
        self._lo = lo
        self._hi = hi
        self.rows = rows

    def __len__(self) -> int:
        return self._hi - self._lo if self.rows is None else len(self.rows)

    @property
    def piece(self) -> arrow.BatchSlice:
        """Return the range of the stored batch that it covers."""
        return arrow.BatchSlice(self._batch, self._lo, self._hi)

    @property
    def picked(self) -> bool:
        """Return whether only some events of the range are in it."""
        return self.rows is not None

    @property
    def partition(self) -> int:
        """Return the partition that the batch is of."""
        return self.log.partition

    @property
    def size(self) -> int:
        """Return about how many bytes its events take in the log; a huge event's data is not counted."""
        return self._batch.size * len(self) // self._batch.count

    @property
    def huge_bytes(self) -> int:
        """Return the size of a huge event's data, if it is loaded with the event; else 0."""
        if not self._batch.flags & BLOB:
            return 0
        size = self.log.blob(self._batch).size
        return size if size <= self.log.blob_bytes_in_memory else 0

    def part(self, lo: int, hi: int) -> EventBatch:
        """Return the events number `lo` to `hi` of it."""
        if self.rows is None:
            return EventBatch(self.log, self._batch, self._lo + lo, min(self._hi, self._lo + hi), None)
        return EventBatch(self.log, self._batch, self._lo, self._hi, self.rows[lo:hi])

    @property
    def end_offset(self) -> int:
        """Return the offset after its last event."""
        return self._batch.base_offset + (self._hi if self.rows is None else int(self.rows[-1]) + 1)

    @property
    def last_id(self) -> UUID:
        """Return the id of its last event."""
        return id_of(int(self.ticks()[-1]), self.log.node)

    def offsets(self) -> I64:
        """Return the offset of each event."""
        rows = np.arange(self._lo, self._hi) if self.rows is None else self.rows
        return rows + self._batch.base_offset

    def ticks(self) -> I64:
        """Return the ticks of each event."""
        ticks = self._batch.ticks()
        return ticks[self._lo : self._hi] if self.rows is None else ticks[self.rows]

    def values(self, column: Column) -> list[bytes | None]:
        """Return the values that a column of the stored batch has for each event."""
        return column.values(self._lo, self._hi) if self.rows is None else column.take(self.rows)

    def events(self, *, load: bool = True) -> list[Event]:
        """Return the events as objects. The data of those above the limit for memory is None: stream it.

        Without `load`, that of every huge event is.
        """
        batch, log = self._batch, self.log
        count = len(self)
        if batch.count == 1:
            return [self._only(load)] if count else []
        types = batch.column(TYPE)
        return list(
            map(
                Event,
                repeat(log.topic, count),
                repeat(log.partition),
                self.offsets().tolist(),
                self.ticks().tolist(),
                repeat("") if types is None else self._types(types),
                self._values(KEY),
                self._values(DATA),
                repeat(batch.content),
                repeat(log.node),
                self._values(META),
            )
        )

    def reversed(self) -> list[Event]:
        """Return the events as objects, the last first."""
        return self.events()[::-1]

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return the events as an Arrow record batch; keys, data and meta are not copied unless events were picked."""
        schema = arrow.schema(columns or arrow.DEFAULT_COLUMNS)
        arrays = [_whole(chunks) for chunks in _chunks([self], schema)]
        return arrow.pyarrow().RecordBatch.from_arrays(arrays, schema=schema)  # type: ignore[no-any-return]  # lazy

    def _values(self, kind: int) -> Iterator[bytes | None] | list[bytes | None]:
        column = self._batch.column(kind)
        if column is None:
            return repeat(None)
        return self.values(column)

    def _types(self, column: Column) -> Iterator[str] | list[str]:
        if column.offsets is None:
            return repeat(bytes(column.data).decode())
        if column.codes is None:
            return [(value or b"").decode() for value in self.values(column)]
        size = len(column.offsets) - 1
        names = [(value or b"").decode() for value in Column(size, column.data, column.offsets).values(0, size)]
        codes = column.codes[self._lo : self._hi] if self.rows is None else column.codes[self.rows]
        return list(map(names.__getitem__, codes.tolist()))

    def _only(self, load: bool) -> Event:
        """Return the event of a batch of one, without the detour over arrays. Alone, it may be a huge one."""
        batch, log = self._batch, self.log
        type, key, data, meta = (batch.only(kind) for kind in (TYPE, KEY, DATA, META))
        blob = None
        if batch.flags & BLOB:
            blob = log.blob(batch)
            data = data_in_memory(log, batch) if load else None
        return Event(
            log.topic,
            log.partition,
            batch.base_offset,
            batch.base_ticks,
            "" if type is None else type.decode(),
            key,
            data,
            batch.content,
            log.node,
            meta,
            blob,
        )


def with_data(batch: EventBatch, bytes_max: int) -> EventBatch:
    """Return the events with the data of a huge one in it, unless there is more than `bytes_max` of that."""
    stored = batch.piece.batch
    if not stored.flags & BLOB or not len(batch):
        return batch
    blob = batch.log.blob(stored)
    if blob.size > bytes_max:
        return batch
    type, key, meta = (stored.only(kind) for kind in (TYPE, KEY, META))
    data = b"".join(blob.chunks())
    made = encode_one(stored.base_offset, stored.base_ticks, stored.content, data, type or b"", key, meta)
    return EventBatch(batch.log, decode(memoryview(made), 0, len(made), stored.path), 0, 1, None)


def data_in_memory(log: BatchLog, batch: Batch) -> bytes | None:
    """Return the data of a huge event; None if it is above the limit for memory."""
    blob = log.blob(batch)
    return b"".join(blob.chunks()) if blob.size <= log.blob_bytes_in_memory else None


def _whole(chunks: list[Any]) -> Any:
    """Return one array; only a batch of more events than usual comes in several."""
    return chunks[0] if len(chunks) == 1 else arrow.pyarrow().concat_arrays(chunks)


def table(batches: Iterable[EventBatch], columns: Sequence[str] | None) -> pa.Table:
    """Return one Arrow table of all batches, which may be none."""
    pa = arrow.pyarrow()
    schema = arrow.schema(columns or arrow.DEFAULT_COLUMNS)
    found: list[list[Any]] = [[] for _ in schema]
    for run in _runs(batches):
        for chunks, more in zip(found, _chunks(run, schema), strict=True):
            chunks.extend(more)
    arrays = [pa.chunked_array(chunks, field.type) for chunks, field in zip(found, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)  # type: ignore[no-any-return]  # a lazy module


def _runs(batches: Iterable[EventBatch]) -> Iterator[list[EventBatch]]:
    """Yield batches of one log of which nothing was left out, together; the others alone."""
    run: list[EventBatch] = []
    for batch in batches:
        if run and (batch.picked or run[0].picked or batch.log.node != run[0].log.node):
            yield run
            run = []
        run.append(batch)
    if run:
        yield run


def _chunks(run: list[EventBatch], schema: pa.Schema) -> list[list[Any]]:
    """Return the chunks of each column over a run of batches."""
    first = run[0]
    log = first.log
    if not first.picked:
        return arrow.chunks([batch.piece for batch in run], schema, log.topic, log.partition, log.node)
    whole = [arrow.BatchSlice(first.piece.batch, 0, first.piece.batch.count)]
    assert first.rows is not None
    rows = arrow.indices(first.rows)
    return [
        [chunk.take(rows) for chunk in chunks]
        for chunks in arrow.chunks(whole, schema, log.topic, log.partition, log.node)
    ]
