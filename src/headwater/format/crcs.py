"""CRC-32C of many short byte strings at once, by which keys are spread over partitions (docs/FORMAT.md, "Segment").

A checksum is linear: that of a string is the one of as many zeros, changed by what each of its bytes adds, which
follows from the byte and from how many come behind it. So numpy takes the last 8 bytes of all strings at once, then
those before them, and looks up what each two of them add.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from headwater.format.column import I32, I64, Column

U32 = npt.NDArray[np.uint32]

LENGTH_MAX = 64  # of strings for which this is quicker than one after the other
_LAST = np.array([2**64 - 2 ** (64 - 8 * length) for length in range(9)], np.uint64)  # so many bytes of a word


def crc32c_of_each(column: Column) -> I64:
    """Return the checksum of each value; of one that is null, that of no bytes. One for a constant column."""
    if column.offsets is None:
        return np.array([crc32c(bytes(column.data))], np.int64)
    if column.codes is not None:
        distinct = crc32c_of_each(Column(len(column.offsets) - 1, column.data, column.offsets))
        of_codes: I64 = distinct[column.codes]
        return of_codes
    lengths = np.diff(column.offsets)
    longest = int(lengths.max(initial=0))
    if longest > LENGTH_MAX:
        values = [value or b"" for value in column.values(0, column.count)]
        return np.fromiter(map(crc32c, values), np.int64, len(values))
    found: U32 = _zeros()[lengths]
    if longest == int(lengths.min(initial=longest)):
        _add_even(found, column.data, longest)
    else:
        _add(found, column.data, column.offsets[1:].astype(np.int64), lengths)
    return found.astype(np.int64)


def _add_even(found: U32, data: bytes | memoryview, length: int) -> None:
    """Add the bytes of strings that are all of one length, as is usual: they are evenly spaced. Two at a time."""
    for first in range(length % 2, length, 2):
        pairs = np.ndarray((len(found),), "<u2", data, first, (length,))
        found ^= _added_pair(length - 2 - first)[pairs]
    if length % 2:
        found ^= _added(length - 1)[np.ndarray((len(found),), np.uint8, data, 0, (length,))]


def _add(found: U32, data: bytes | memoryview, ends: I64, lengths: I32) -> None:
    """Add the bytes of all strings, 8 at a time, from the last ones on. Those before a string count as zeros."""
    padded = np.zeros(8 + len(data), np.uint8)
    padded[8:] = np.frombuffer(data, np.uint8)
    words = np.ndarray((len(data) + 1,), "<u8", padded.data, 0, (1,))  # the one at n has the 8 bytes before byte n
    for behind in range(0, int(lengths.max()), 8):
        own = np.clip(lengths - behind, 0, 8)
        pairs = (words[np.maximum(ends - behind, 0)] & _LAST[own]).view("<u2").reshape(-1, 4)
        for number in range(4):
            found ^= _added_pair(behind + 6 - 2 * number)[pairs[:, number]]


@cache
def _zeros() -> U32:
    """Return the checksum of so many zeros."""
    return np.array([crc32c(bytes(length)) for length in range(LENGTH_MAX + 1)], np.uint32)


@cache
def _added_pair(behind: int) -> U32:
    """Return what two bytes, as a number whose lower half comes first, change with so many bytes behind them."""
    return (_added(behind)[:, np.newaxis] ^ _added(behind + 1)[np.newaxis, :]).ravel()


@cache
def _added(behind: int) -> U32:
    """Return what each byte changes with so many bytes behind it."""
    zeros = bytes(behind)
    return np.array([crc32c(bytes([byte]) + zeros) for byte in range(256)], np.uint32) ^ np.uint32(
        crc32c(b"\0" + zeros)
    )
