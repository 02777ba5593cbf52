"""Stored batches as an answer, and the batch of a request as columns (docs/HTTP.md, "Batches"). Bytes only.

A batch goes out as it is stored, with what is meant of it in its frame. Where that would send much that is not meant,
or more than is good at once, the events that are go out as new batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from headwater.errors import Corrupt, TooLarge
from headwater.event import Content
from headwater.format import batch as format
from headwater.format import frames
from headwater.format.batch import BLOB, DATA, KEY, META, TYPE, Batch
from headwater.format.column import I64, Column
from headwater.format.events import EventBatch
from headwater.format.frames import Frame
from headwater.server.wire.pieces import joined, parted

SMALL_BYTES = 4096  # up to this, a batch goes out whole, whatever is meant of it
SPARSE = 8  # when less than one in so many is meant, only those go out
_KINDS = (TYPE, KEY, DATA, META)


def encode_all(batches: Iterable[EventBatch]) -> Iterator[bytes]:
    """The frames of batches, in pieces of a good size."""
    return joined(frame for batch in batches for frame in encode(batch))


def encode(batch: EventBatch) -> Iterator[bytes]:
    """The frames of a batch: one, unless it is large, or little of it is meant."""
    stored, lo, hi = batch.piece
    if stored.flags & BLOB or stored.size <= SMALL_BYTES or (len(batch) * SPARSE > stored.count and _fits(stored)):
        yield frames.encode(batch.partition, stored.raw(), lo, hi, batch.rows)
        return
    ticks = stored.ticks()
    for part in parted(batch):
        rows = part.rows if part.rows is not None else np.arange(part.piece.lo, part.piece.hi)
        for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
            yield frames.encode(batch.partition, _encode(stored, run, ticks[run]), 0, len(run))


def columns_of(found: Sequence[Frame], events_max: int) -> tuple[Content, dict[int, Column | None], int]:
    """The columns of the batch that a request holds; raises Corrupt unless it is one, whole and sound.

    A batch whose columns are constant may claim any number of events: TooLarge, before anything is made of it.
    """
    if len(found) != 1 or found[0].rows is not None or found[0].batch.flags:
        raise Corrupt("a request has one batch, without blobs", position=0, size=0)
    batch = found[0].batch
    if batch.count > events_max:
        raise TooLarge(
            f"the batch has {batch.count} events, and may have {events_max}", limit="batch_events_max", size=batch.count
        )
    batch.validate()
    return batch.content, {kind: batch.column(kind) for kind in _KINDS}, batch.count


def _fits(batch: Batch) -> bool:
    return batch.size <= 4 * 1024 * 1024


def _encode(stored: Batch, rows: I64, ticks: I64) -> bytes:
    """A batch of some events that follow each other."""
    lo, hi = int(rows[0]), int(rows[-1]) + 1
    columns = {kind: None if (column := stored.column(kind)) is None else column.slice(lo, hi) for kind in _KINDS}
    return format.encode(stored.base_offset + lo, int(ticks[0]), hi - lo, stored.content, columns, ticks=ticks)
