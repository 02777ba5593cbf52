"""Counts the elements of a JSON array by its commas, without decoding it. Bytes only.

    more_than(array, most) -> bool

A small element becomes an object of many times its size, so an array is counted before it is taken apart. The time it
takes depends on its bytes alone: it is looked at in blocks, with arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BLOCK_BYTES = 1024 * 1024
COMMAS_MAX = 1_000_000  # with no more, it may be taken apart whatever they are for


def more_than(array: bytes, most: int) -> bool:
    """Return whether a JSON array has more elements. For invalid JSON the result is arbitrary: decoding it fails."""
    if array.count(b",") <= COMMAS_MAX:
        return False
    letters = np.frombuffer(array, np.uint8)
    depth = elements = 0
    quoted, slashes = False, 0  # whether the last letter was in a string, and the backslashes that it ended with
    for at in range(0, len(letters), BLOCK_BYTES):
        block = letters[at : at + BLOCK_BYTES]
        quotes, slashes = _quotes(block, slashes)
        outside = (np.cumsum(quotes, dtype=np.int32) + quoted) & 1 == 0
        opening = outside & ((block == 91) | (block == 123))
        closing = outside & ((block == 93) | (block == 125))
        depths = depth + np.cumsum(opening.astype(np.int8) - closing.astype(np.int8), dtype=np.int32)
        elements += int(np.count_nonzero(outside & (block == 44) & (depths == 1)))
        if elements >= most:
            return True
        depth, quoted = int(depths[-1]), not outside[-1]
    return False


def _quotes(block: Any, slashes: int) -> tuple[Any, int]:
    """Return which letters begin or end a string, after so many backslashes; and with how many the block ends."""
    quotes = block == 34
    others = np.flatnonzero(block != 92)  # a quote is escaped by an odd number of backslashes before it
    last = len(block) - 1 - int(others[-1]) if len(others) else slashes + len(block)
    if len(others) < len(block) or slashes:
        before = np.diff(others, prepend=-1 - slashes) - 1
        quotes[others[before % 2 == 1]] = False
    return quotes, last
