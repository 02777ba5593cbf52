"""Which events a reader wants: by a pattern over the type (RE2, whole type), by the key, and by what the data holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headwater import match as matching
from headwater.format.batch import BLOB, DATA, KEY, TYPE, Batch
from headwater.format.column import I64, Column
from headwater.match.pattern import compile_pattern

LoadBlob = Callable[[Batch], bytes | None]
"""Gives the data of a huge event, or None if it is above the limit for memory."""


class Selection:
    """A compiled filter; wants everything when all three are None. Safe from any thread.

    Raises Invalid for a bad pattern or match.
    """

    def __init__(
        self, type: str | None = None, key: bytes | None = None, match: Mapping[str, Any] | None = None
    ) -> None:
        self.key = key
        self.matcher = matching.compile(match) if match is not None else None
        self._pattern = compile_pattern(type) if type is not None else None
        self._known: dict[bytes, bool] = {}
        self.types = self._wants_type if self._pattern is not None else None
        self.everything = type is None and key is None and match is None

    def rows(self, batch: Batch, lo: int, hi: int, load_blob: LoadBlob) -> I64 | None:
        """Return which of the events `lo` to `hi` of a batch are wanted; None if all of them are."""
        if self.everything:
            return None
        rows = self._by_type_and_key(batch, lo, hi)
        if self.matcher is not None and len(rows):  # last, because it is by far the most work
            rows = self._matching(self.matcher, batch, rows, load_blob)
        return None if len(rows) == hi - lo else rows

    def _by_type_and_key(self, batch: Batch, lo: int, hi: int) -> I64:
        if self._pattern is None and self.key is None:
            return np.arange(lo, hi)
        mask = np.zeros(batch.count, np.bool_)
        mask[lo:hi] = True
        if self._pattern is not None:
            column = batch.column(TYPE)
            if column is None or column.offsets is None:
                if not self._wants_type(b"" if column is None else bytes(column.data)):
                    return np.zeros(0, np.int64)
            else:
                size = len(column.offsets) - 1
                distinct = Column(size, column.data, column.offsets).values(0, size)
                wanted = np.fromiter((self._wants_type(value or b"") for value in distinct), np.bool_, size)
                mask &= wanted if column.codes is None else wanted[column.codes]
        if self.key is not None:
            column = batch.column(KEY)
            if column is None:
                return np.zeros(0, np.int64)
            mask &= column.equals(self.key)
        return np.flatnonzero(mask)

    def _matching(self, matcher: matching.Matcher, batch: Batch, rows: I64, load_blob: LoadBlob) -> I64:
        column = batch.column(DATA) if batch.content in ("json", "bson") else None
        if column is None:
            return rows[:0]
        if column.offsets is None:  # one value for all
            data = load_blob(batch) if batch.flags & BLOB else bytes(column.data)
            return rows if data is not None and matcher.hits(batch.content, [data]) else rows[:0]
        lo, hi = int(rows[0]), int(rows[-1]) + 1
        found: Any = column.values(lo, hi) if hi - lo == len(rows) else column.take(rows)  # data is never null
        return rows[matcher.hits(batch.content, found)]

    def _wants_type(self, type: bytes) -> bool:
        wanted = self._known.get(type)
        if wanted is None:
            assert self._pattern is not None
            wanted = self._known[type] = self._pattern.fullmatch(type.decode()) is not None
        return wanted
