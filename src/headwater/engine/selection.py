"""Which events a reader wants: by a pattern over the type (RE2, whole type) and by the key."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.errors import Invalid
from headwater.format.batch import KEY, TYPE, Batch
from headwater.format.column import I64, Column

PATTERN_BYTES_MAX = 1024  # a pattern comes from outside: RE2 bounds its time, this its memory


class Selection:
    """A compiled filter; wants everything when both are None. Safe from any thread."""

    def __init__(self, type: str | None = None, key: bytes | None = None) -> None:
        self.key = key
        self._pattern = compile_pattern(type) if type is not None else None
        self._known: dict[bytes, bool] = {}
        self.types = self._wants_type if self._pattern is not None else None
        self.everything = type is None and key is None

    def rows(self, batch: Batch, lo: int, hi: int) -> I64 | None:
        """Which of the events `lo` to `hi` of a batch are wanted; None if all of them are."""
        if self.everything:
            return None
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
        rows = np.flatnonzero(mask)
        return None if len(rows) == hi - lo else rows

    def _wants_type(self, type: bytes) -> bool:
        wanted = self._known.get(type)
        if wanted is None:
            assert self._pattern is not None
            wanted = self._known[type] = self._pattern.fullmatch(type.decode()) is not None
        return wanted


def compile_pattern(pattern: str) -> Any:
    """A pattern of RE2, which takes linear time whatever the pattern; raises Invalid."""
    import re2

    if len(pattern.encode(errors="replace")) > PATTERN_BYTES_MAX:
        raise Invalid(f"a pattern may have {PATTERN_BYTES_MAX} bytes", code="bad_pattern")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise Invalid(
            f"the pattern {pattern!r} is not valid: {error}",
            hint="patterns are RE2: no look-around, no back-references",
            code="bad_pattern",
        ) from error
