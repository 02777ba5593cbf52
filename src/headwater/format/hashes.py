"""Hashes of many keys at once, with numpy: CRC-32C for partitions, and the key hash of an index (docs/FORMAT.md).

A CRC is linear: that of a string is the CRC of as many zeros, changed by what each of its bytes adds, which follows
from the byte and from how many come behind it. So numpy takes the last 8 bytes of all strings at once, then those
before them, and looks up what each two of them add.

The key hash is made of 8-byte words, so that numpy hashes a whole column with a few operations on all keys at once. It
is not meant to withstand an adversary: what it finds is compared with the real key, so colliding keys only cost time.
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


U64 = npt.NDArray[np.uint64]

HASHED_BYTES = 1024  # of a key; further bytes change only its length, so that a huge key stays cheap
_FIRST, _EACH = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93  # odd, and so without a loss when multiplied; must stay
_MASK = 2**64 - 1
_KEEP = np.array([(1 << 8 * length) - 1 for length in range(9)], np.uint64)
_HALF = np.uint64(32)


def key_hash(key: bytes) -> int:
    """Return the hash of one key."""
    hash = (len(key) + 1) * _FIRST & _MASK
    for at in range(0, min(len(key), HASHED_BYTES), 8):
        hash = (hash ^ int.from_bytes(key[at : min(at + 8, HASHED_BYTES)], "little")) * _EACH & _MASK
        hash ^= hash >> 32
    return (hash * _FIRST & _MASK) >> 32


def key_hashes(column: Column) -> U32:
    """Return the hash of each key of a column that is there, in order; one for a constant column."""
    if column.offsets is None:
        return np.array([key_hash(bytes(column.data))], np.uint32)
    starts = column.offsets[:-1]
    lengths = column.offsets[1:] - starts
    if column.valid is not None:
        present = column.present()
        starts, lengths = starts[present], lengths[present]
    hashes = lengths.astype(np.uint64)
    hashes += np.uint64(1)
    hashes *= np.uint64(_FIRST)
    if len(hashes):
        longest = int(lengths.max())
        if longest == int(lengths.min()) and column.valid is None:
            _add_even_words(hashes, column.data, longest)
        else:
            _add_words(hashes, column.data, starts.astype(np.int64), np.minimum(lengths, HASHED_BYTES))
    hashes *= np.uint64(_FIRST)
    hashes >>= _HALF
    return hashes.astype(np.uint32)


def _add_even_words(hashes: U64, data: bytes | memoryview, length: int) -> None:
    """Mix the words of keys that are all of one length, as is usual, into their hashes: they are evenly spaced."""
    padded = _padded(data)
    for at in range(0, min(length, HASHED_BYTES), 8):
        words = np.ndarray((len(hashes),), np.uint64, padded.data, at, (length,))
        _mix(hashes, words & _KEEP[min(length - at, HASHED_BYTES - at, 8)])


def _add_words(hashes: U64, data: bytes | memoryview, starts: I64, left: I32) -> None:
    """Mix each key's words into its hash, word by word of all keys at once; short keys drop out on the way."""
    words = np.ndarray((len(data) + 1,), np.uint64, _padded(data).data, 0, (1,))
    rows = np.arange(len(hashes))
    at = 0
    while True:
        kept = np.flatnonzero(left > at)
        if not len(kept):
            return
        if len(kept) < len(left):
            rows, starts, left = rows[kept], starts[kept], left[kept]
        mixed = hashes[rows]
        _mix(mixed, words[starts + at] & _KEEP[np.minimum(left - at, 8)])
        hashes[rows] = mixed
        at += 8


def _mix(hashes: U64, words: U64) -> None:
    hashes ^= words
    hashes *= np.uint64(_EACH)
    hashes ^= hashes >> _HALF


def _padded(data: bytes | memoryview) -> npt.NDArray[np.uint8]:
    """Return the bytes, with enough zeros behind them that 8 can be read from each."""
    padded = np.zeros(len(data) + 8, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    return padded
