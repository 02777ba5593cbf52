"""The texts of many times, ids and numbers at once, as rows of ASCII: what lines and server-sent events are full of.

Bytes only; safe from any thread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headwater.event import UNIX_EPOCH_TICKS
from headwater.format.column import I64

U8 = npt.NDArray[np.uint8]
ID_BYTES = 36
TIME_BYTES = 27
_TICKS_PER_SECOND = 10_000_000
_GROUPS = ((0, 0, 8), (9, 8, 12), (14, 12, 16), (19, 16, 20), (24, 20, 32))  # of the digits of a UUID, between hyphens


def ids(ticks: I64, nodes: int | npt.NDArray[np.uint64]) -> U8:
    """Return the ids of events, one in each row, as `str(id_of(ticks, node))` has them."""
    count = len(ticks)
    halves = np.empty((count, 2), ">u8")
    halves[:, 0] = (ticks >> 12) << 16 | 0x6000 | (ticks & 0x0FFF)
    halves[:, 1] = (np.uint64(nodes) if isinstance(nodes, int) else nodes) | np.uint64(2 << 62)
    digits = np.frombuffer(halves.tobytes().hex().encode(), np.uint8).reshape(count, 32)
    found = np.full((count, ID_BYTES), ord("-"), np.uint8)
    for at, lo, hi in _GROUPS:
        found[:, at : at + hi - lo] = digits[:, lo:hi]
    return found


def times(ticks: I64) -> U8:
    """Return the times of events, one in each row: ISO 8601 in UTC with six digits of a second and a `Z`."""
    count = len(ticks)
    since = ticks - UNIX_EPOCH_TICKS
    seconds = since // _TICKS_PER_SECOND
    begins = np.flatnonzero(np.diff(seconds, prepend=seconds[:1] - 1))  # neighbours are mostly of the same second
    texts = np.datetime_as_string(seconds[begins].astype("datetime64[s]")).astype("S19")
    found = np.empty((count, TIME_BYTES), np.uint8)
    rows = texts.view(np.uint8).reshape(len(begins), 19)
    found[:, :19] = np.repeat(rows, np.diff(begins, append=count), axis=0)
    found[:, 19] = ord(".")
    rest = (since - seconds * _TICKS_PER_SECOND) // 10
    for at in range(25, 19, -1):
        rest, digit = np.divmod(rest, 10)
        found[:, at] = digit + ord("0")
    found[:, 26] = ord("Z")
    return found


def strings(rows: U8) -> list[bytes]:
    """Return the rows as byte strings."""
    whole, width = rows.tobytes(), rows.shape[1]
    return [whole[at : at + width] for at in range(0, len(whole), width)]
