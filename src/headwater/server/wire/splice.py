"""Copy many byte strings to many places at once, without a loop over them.

splice(at, source, starts, lengths, size) -> bytearray
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.format.column import I64, Bytes

_WIDTH_MAX = 4096
_BLOCK_BYTES = 96 * 1024  # copied at once: above 128 KiB, memory comes from the system, and its first touch is slow


def splice(at: I64, source: Bytes, starts: I64, lengths: I64, size: int) -> bytearray:
    """So many bytes with `source[starts[i]:starts[i] + lengths[i]]` at `at[i]`, for all `i`; `at` must ascend.

    What lies between is not defined. All strings are copied in steps of one width, which may go beyond the end of a
    string: what is written there wrongly is written again by the strings that follow, as they come in order.
    """
    longest, mean = int(lengths.max()), int(lengths.mean())
    width = 1 << min(longest if longest <= 4 * mean else 2 * mean, _WIDTH_MAX).bit_length()
    first, last = int(starts.min()), int((starts + lengths).max())
    padded = b"".join((source[first:last], bytes(width)))
    if longest > width:
        steps = -(-lengths // width)
        before = np.repeat(np.cumsum(steps) - steps, steps)
        shift = (np.arange(len(before)) - before) * width
        at, starts = np.repeat(at, steps) + shift, np.repeat(starts, steps) + shift
    out = bytearray(size + width)
    to, of = windows(out, width), windows(padded, width)
    rows = max(1, _BLOCK_BYTES // width)
    for lo in range(0, len(at), rows):
        to[at[lo : lo + rows]] = of[starts[lo : lo + rows] - first]
    del to
    del out[size:]
    return out


def windows(buffer: bytes | bytearray, width: int) -> Any:
    """Return the strings of so many bytes that begin at each position."""
    return np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, 0, (1,))
