"""The hash of a key, by which an index finds it (docs/FORMAT.md, "Index", "Key hash").

It is made of 8-byte words, so that numpy hashes a whole column with a few operations on all keys at once. It is not
meant to withstand an adversary: what it finds is compared with the real key, so colliding keys only cost time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headwater.format.column import I64, Column

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

HASHED_BYTES = 1024  # of a key; further bytes change only its length, so that a huge key stays cheap
_FIRST, _EACH = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93  # odd, and so without a loss when multiplied; must stay
_MASK = 2**64 - 1
_KEEP = np.array([(1 << 8 * length) - 1 for length in range(9)], np.uint64)
_HALF = np.uint64(32)


def key_hash(key: bytes) -> int:
    """The hash of one key."""
    hash = (len(key) + 1) * _FIRST & _MASK
    for at in range(0, min(len(key), HASHED_BYTES), 8):
        hash = (hash ^ int.from_bytes(key[at : min(at + 8, HASHED_BYTES)], "little")) * _EACH & _MASK
        hash ^= hash >> 32
    return (hash * _FIRST & _MASK) >> 32


def key_hashes(column: Column) -> U32:
    """The hash of each key of a column that is there, in order; one for a constant column."""
    if column.offsets is None:
        return np.array([key_hash(bytes(column.data))], np.uint32)
    starts = column.offsets[:-1].astype(np.int64)
    lengths = np.diff(column.offsets).astype(np.int64)
    if column.valid is not None:
        present = column.present()
        starts, lengths = starts[present], lengths[present]
    hashes = (lengths + 1).astype(np.uint64) * np.uint64(_FIRST)
    left = np.minimum(lengths, HASHED_BYTES)
    _add_words(hashes, _words(column.data), starts, left)
    hashes *= np.uint64(_FIRST)
    return (hashes >> _HALF).astype(np.uint32)


def _add_words(hashes: U64, words: U64, starts: I64, left: I64) -> None:
    """Mix each key's words into its hash, word by word of all keys at once; short keys drop out on the way."""
    rows: Any = slice(None)
    at = 0
    while len(left):
        longer = left > at
        if not longer.all():
            kept = np.flatnonzero(longer)
            rows = kept if isinstance(rows, slice) else rows[kept]
            starts, left = starts[kept], left[kept]
            if not len(left):
                return
        word = words[starts + at]
        word &= _KEEP[np.minimum(left - at, 8)]
        mixed = hashes[rows] ^ word
        mixed *= np.uint64(_EACH)
        mixed ^= mixed >> _HALF
        hashes[rows] = mixed
        at += 8


def _words(data: bytes | memoryview) -> U64:
    """The 8 bytes from each position on, with zeros behind the end."""
    padded = np.zeros(len(data) + 8, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    return np.ndarray((len(data) + 1,), np.uint64, padded.data, 0, (1,))
