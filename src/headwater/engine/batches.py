"""What a read finds, batch by batch: a range or a selection of the events of one stored batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from headwater.event import Event
from headwater.format import arrow
from headwater.format.batch import BLOB, DATA, KEY, META, TYPE, Batch
from headwater.format.column import I64, Column
from headwater.storage.log import LocalLog

if TYPE_CHECKING:
    import pyarrow as pa


class EventBatch:
    """Some events of one batch, in order. `len()` tells how many."""

    __slots__ = ("_batch", "_hi", "_lo", "_log", "_rows")

    def __init__(self, log: LocalLog, batch: Batch, lo: int, hi: int, rows: I64 | None) -> None:
        """`rows` picks some of the events `lo` to `hi`; None takes all of them."""
        self._log = log
        self._batch = batch
        self._lo = lo
        self._hi = hi
        self._rows = rows

    def __len__(self) -> int:
        return self._hi - self._lo if self._rows is None else len(self._rows)

    @property
    def partition(self) -> int:
        """The partition that the batch is of."""
        return self._log.place.partition

    def offsets(self) -> I64:
        """The offset of each event."""
        rows = np.arange(self._lo, self._hi) if self._rows is None else self._rows
        return rows + self._batch.base_offset

    def ticks(self) -> I64:
        """The ticks of each event."""
        ticks = self._batch.ticks()
        return ticks[self._lo : self._hi] if self._rows is None else ticks[self._rows]

    def events(self) -> list[Event]:
        """The events as objects. The data of those above the limit for memory is None: stream it."""
        batch, place = self._batch, self._log.place
        count = len(self)
        if batch.flags & BLOB:
            return [self._huge()] if count else []
        types = batch.column(TYPE)
        return list(
            map(
                Event,
                repeat(place.topic, count),
                repeat(place.partition),
                self.offsets().tolist(),
                self.ticks().tolist(),
                repeat("") if types is None else self._types(types),
                self._values(KEY),
                self._values(DATA),
                repeat(batch.content),
                repeat(self._log.node),
                self._values(META),
            )
        )

    def reversed(self) -> list[Event]:
        """The events as objects, the last first."""
        return self.events()[::-1]

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The events as an Arrow record batch; keys, data and meta are not copied unless events were picked."""
        return self.record_batch(arrow.schema(columns or arrow.DEFAULT_COLUMNS))

    def record_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """The events as an Arrow record batch of a schema made by `headwater.format.arrow.schema`."""
        place = self._log.place
        args = schema, place.topic, place.partition, self._log.node
        if self._rows is None:
            return arrow.record_batch(self._batch, self._lo, self._hi, *args)
        return arrow.record_batch(self._batch, 0, self._batch.count, *args).take(arrow.pyarrow().array(self._rows))

    def _values(self, kind: int) -> Iterator[bytes | None] | list[bytes | None]:
        column = self._batch.column(kind)
        if column is None:
            return repeat(None)
        return column.values(self._lo, self._hi) if self._rows is None else column.take(self._rows)

    def _types(self, column: Column) -> Iterator[str] | list[str]:
        if column.offsets is None:
            return repeat(bytes(column.data).decode())
        if column.codes is None:
            values = column.values(self._lo, self._hi) if self._rows is None else column.take(self._rows)
            return [(value or b"").decode() for value in values]
        size = len(column.offsets) - 1
        names = [(value or b"").decode() for value in Column(size, column.data, column.offsets).values(0, size)]
        codes = column.codes[self._lo : self._hi] if self._rows is None else column.codes[self._rows]
        return list(map(names.__getitem__, codes.tolist()))

    def _huge(self) -> Event:
        batch, place = self._batch, self._log.place
        blob = self._log.blob(batch)
        small = blob.size <= self._log.place.limits.blob_bytes_in_memory
        types = batch.column(TYPE)
        return Event(
            place.topic,
            place.partition,
            batch.base_offset,
            batch.base_ticks,
            "" if types is None else bytes(types.data).decode(),
            next(iter(self._values(KEY))),
            b"".join(blob.chunks()) if small else None,
            batch.content,
            self._log.node,
            next(iter(self._values(META))),
            blob,
        )
