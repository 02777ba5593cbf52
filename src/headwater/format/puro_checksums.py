"""The two checksums of a Puro message (docs/TRANSFER.md, "Checksums").

Puro's document describes a CRC-8 over the rest of the message. Puro's code computes another one: it walks a table
with eight wrong entries over each of the six fields, and then over the six results. Functions of their arguments;
safe from any thread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

DOCUMENTED_POLYNOMIAL = 0x07  # x^8 + x^2 + x + 1; initial value 0, not reflected, no final XOR
PERIOD = 127  # after so many zero bytes the state of the documented CRC is what it was
SLAB_ROWS = 512  # a slab of 512 times 127 bytes and its intermediate results stay in the processor's cache

POLYNOMIAL = 0x31  # x^8 + x^5 + x^4 + 1
WRONG_ENTRIES = {  # in the table of Puro's code, beside what the polynomial gives
    0x4A: 0xE2,  # e6
    0x59: 0xF2,  # f6
    0x6D: 0xF3,  # f7
    0x7E: 0xE3,  # e7
    0x89: 0xF0,  # f2
    0x9A: 0xDE,  # e2
    0xAE: 0xDF,  # e3
    0xBD: 0xF1,  # f3
}
TOGETHER = 16_384  # fields that are walked together, so that their bytes stay in the processor's cache
FEW = 100  # so many fields are cheaper to walk one by one, in Python, than together


def documented(data: U8, starts: I64) -> U8:
    """Return the CRC-8 of each message, whose first byte, where the checksum goes, is 0. The last reaches to the end.

    A byte's part in the checksum depends on its distance from the end of its message alone, and repeats with the
    PERIOD; leading zeros have none. So all bytes are looked up at once, as if there were one end for all, and the
    XOR over each message is moved to that message's own end.
    """
    size = len(data)
    parts = np.zeros(-(-size // PERIOD) * PERIOD, np.uint8)
    parts[:size] = data
    rows = parts.reshape(-1, PERIOD)
    for at in range(0, len(rows), SLAB_ROWS):
        slab = rows[at : at + SLAB_ROWS]
        slab[:] = _POWERS.ravel().take(slab + _ROW)
    ends = np.append(starts[1:], size)
    found: U8 = _POWERS[ends % PERIOD, np.bitwise_xor.reduceat(parts[:size], starts)]
    return found


def combined(data: U8, bounds: I64) -> U8:
    """Return the checksum that Puro's code gives each message: the table over each field, then over the results.

    `bounds` has a row for each message: where its first field begins, and where each of its fields ends.
    """
    begin, end = bounds[:, :-1], bounds[:, 1:]
    fields = walk(data, begin.ravel(), end.ravel()).reshape(begin.shape)
    found: U8 = fields[:, 0]
    for column in fields.T[1:]:
        found = _TABLE[found ^ column]
    return found


def walk(data: U8, begin: I64, end: I64) -> U8:
    """Return the state of Puro's table after each range of bytes; 0 after an empty one."""
    found = np.empty(len(begin), np.uint8)
    for at in range(0, len(begin), TOGETHER):
        slab = slice(at, at + TOGETHER)
        found[slab] = _walk_together(data, begin[slab], end[slab])
    return found


def _walk_together(data: U8, begin: I64, end: I64) -> U8:
    """With its wrong entries the table is not linear, so the bytes of a range are taken one after the other.

    Those of all ranges are taken together, the longest ranges first, until only a few are left.
    """
    sizes = end - begin
    order = np.argsort(-sizes, kind="stable")
    at, left = begin[order], -sizes[order]
    states = np.zeros(len(order), np.uint8)
    step = 0
    while (active := int(np.searchsorted(left, -step))) > FEW:
        states[:active] = _TABLE.take(states[:active] ^ data.take(at[:active] + step, mode="clip"), mode="clip")
        step += 1
    for i in range(active):
        state = int(states[i])
        for byte in data[at[i] + step : at[i] - left[i]].tobytes():
            state = _TABLE_BYTES[state ^ byte]
        states[i] = state
    found = np.empty_like(states)
    found[order] = states
    return found


def _table(polynomial: int) -> U8:
    """Return the state after each byte, from the state 0."""
    after = np.arange(256)
    for _ in range(8):
        after = np.where(after & 0x80, after << 1 ^ polynomial, after << 1) & 0xFF
    return after.astype(np.uint8)


def _powers() -> U8:
    """`_powers()[k, b]`: the state after the byte `b` and `k - 1` zeros; for 0, the byte itself."""
    after = _table(DOCUMENTED_POLYNOMIAL)
    found = np.zeros((PERIOD, 256), np.uint8)
    found[0] = np.arange(256)
    for k in range(1, PERIOD):
        found[k] = after[found[k - 1]]
    return found


_POWERS = _powers()
_ROW = (-np.arange(PERIOD) % PERIOD * 256).astype(np.uint16)
_TABLE = _table(POLYNOMIAL)
_TABLE[list(WRONG_ENTRIES)] = list(WRONG_ENTRIES.values())
_TABLE_BYTES = _TABLE.tobytes()
