"""Which batches of a segment a read wants, and where they are. Pure functions over an index or a batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headwater.directory.keys import Positions
from headwater.directory.log_cursor import TypeTest
from headwater.directory.segment import SegmentFile
from headwater.format.batch import KEY, Batch
from headwater.format.index import Index


class Places(NamedTuple):
    """Some batches of an open segment by their positions, ascending. Where there are none, it need not be open."""

    segment: SegmentFile | None
    positions: list[int] | Positions


NOWHERE = Places(None, [])


def last_of(batch: Batch, key: bytes) -> int | None:
    """Return the number of the last event of a batch that has this key; None if none has."""
    if batch.count == 1:
        return 0 if batch.only(KEY) == key else None
    column = batch.column(KEY)
    rows = np.flatnonzero(column.equals(key)) if column is not None else np.zeros(0, np.int64)
    return int(rows[-1]) if len(rows) else None


def wanted_batches(index: Index | None, types: TypeTest | None) -> np.ndarray | None:
    """Return which batches of a sealed segment hold a wanted type; None if that is not known."""
    if index is None or index.types is None or types is None:
        return None
    wanted = np.zeros(len(index.offsets), np.bool_)
    for type, numbers in index.types.items():
        if types(type):
            wanted[numbers] = True
    return wanted
