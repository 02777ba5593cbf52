"""Where a log can be cut into parts of about the same bytes, told without reading its events."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headwater.format.column import I64


class Extents(NamedTuple):
    """Parts of a log, in order: where each begins, at the first event of a batch, and about how many bytes it has.

    Each ends where the next begins. Only the very first may begin within a batch, where it was asked for so.
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
    """The same in fewer and larger parts: as many as there are `bytes_max` in it, each with about its share."""
    starts, sizes = extents
    total = int(sizes.sum())
    wanted = min(-(-total // bytes_max), parts_max)
    if wanted <= 1:
        return Extents(starts[:1], np.array([total] if len(starts) else [], np.int64))
    before = np.cumsum(sizes) - sizes
    share = (before * (wanted / total)).astype(np.int64)
    first = np.flatnonzero(np.diff(share, prepend=-1))
    return Extents(starts[first], np.add.reduceat(sizes, first))
