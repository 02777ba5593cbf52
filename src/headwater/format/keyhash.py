"""The hash of a key, by which an index finds it (docs/FORMAT.md, "Index", "Key hash").

It is made of 8-byte words, so that numpy hashes a whole column with a few operations on all keys at once. It is not
meant to withstand an adversary: what it finds is compared with the real key, so colliding keys only cost time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headwater.format.column import I32, I64, Column

U32 = npt.NDArray[np.uint32]
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
