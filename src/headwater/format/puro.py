"""Messages of Puro, an event log in one file (docs/TRANSFER.md, "Puro").

```text
crc          u8        CRC-8 of the rest of the message
totalLength  varlong   bytes that follow this field
topicLength  varlong
topic        byte[]
keyLength    varlong
key          byte[]
value        byte[]
```

Bytes only, many messages at a time. `encode` and `decode` are functions of their arguments; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from headwater.limits import PURO_KEY_BYTES_MAX, PURO_TOPIC_BYTES_MAX, PURO_VALUE_BYTES_MAX

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

POLYNOMIAL = 0x07  # x^8 + x^2 + x + 1; initial value 0, not reflected, no final XOR
PERIOD = 127  # after so many zero bytes the state of this CRC is what it was
TOTAL_MAX = 2 + PURO_TOPIC_BYTES_MAX + 2 + PURO_KEY_BYTES_MAX + PURO_VALUE_BYTES_MAX
VARLONG_BYTES_MAX = 4  # what TOTAL_MAX takes; a longer one claims more than a message may have
SLAB_ROWS = 512  # a slab of 512 times 127 bytes and its intermediate results stay in the processor's cache


def varlong(value: int) -> bytes:
    """An unsigned number in groups of 7 bits, the lowest first; the high bit says that more follow."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def encode(topic: bytes, keys: Sequence[bytes], values: Sequence[bytes]) -> bytearray:
    """The messages of one topic, one after the other. The caller has checked the limits."""
    count = len(values)
    key_sizes, value_sizes = list(map(len, keys)), list(map(len, values))
    named = varlong(len(topic)) + topic
    known: dict[tuple[int, int], bytes] = {}
    heads = []
    for sizes in zip(key_sizes, value_sizes, strict=True):
        head = known.get(sizes)
        if head is None:
            rest = named + varlong(sizes[0])
            head = known[sizes] = b"\0" + varlong(len(rest) + sum(sizes)) + rest
        heads.append(head)
    lengths = np.fromiter(map(len, heads), np.int64, count)
    lengths += np.array(key_sizes, np.int64) + np.array(value_sizes, np.int64)
    starts = np.cumsum(lengths) - lengths
    found = bytearray().join(chain.from_iterable(zip(heads, keys, values, strict=True)))
    stored = np.frombuffer(found, np.uint8)
    stored[starts] = checksums(stored, starts)
    return found


class Messages:
    """Whole and verified messages at the beginning of a buffer.

    `consumed` bytes of it are theirs. If `problem` is not empty, it says what is wrong with the message that follows
    them; if it is, what follows them is the beginning of a message, of which more must be read.
    """

    __slots__ = ("_buffer", "_spans", "consumed", "problem")

    def __init__(self, buffer: bytes, spans: I64, consumed: int, problem: str) -> None:
        self._buffer = buffer
        self._spans = spans  # a row for each message: where topic, key and value begin, and where the message ends
        self.consumed = consumed
        self.problem = problem

    def __len__(self) -> int:
        return len(self._spans)

    def all_topics(self) -> list[bytes]:
        """The topic of each message."""
        begin, end = self._spans[:, 0], self._spans[:, 1]
        if not len(self):
            return []
        first = bytes(self._buffer[begin[0] : end[0]])
        if (end - begin == len(first)).all():
            at = begin[:, None] + np.arange(len(first))
            if (np.frombuffer(self._buffer, np.uint8)[at] == np.frombuffer(first, np.uint8)).all():
                return [first] * len(self)  # as in most files, without looking at each
        return self._cut(begin, end)

    def all_keys(self) -> list[bytes]:
        """The key of each message; empty where it has none."""
        return self._cut(self._spans[:, 2], self._spans[:, 3])

    def all_values(self) -> list[bytes]:
        """The value of each message."""
        return self._cut(self._spans[:, 3], self._spans[:, 4])

    def _cut(self, begin: I64, end: I64) -> list[bytes]:
        buffer = self._buffer
        return [buffer[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]


def decode(buffer: bytes) -> Messages:
    """The messages of a buffer, up to the first that is damaged or not there as a whole."""
    starts, bodies, consumed, problem = _frames(buffer)
    if not starts:
        return Messages(buffer, np.zeros((0, 5), np.int64), 0, problem)
    first, body = np.array(starts, np.int64), np.array(bodies, np.int64)
    end = np.append(first[1:], consumed)
    stored = np.frombuffer(buffer, np.uint8)[:consumed]
    blank = stored.copy()
    blank[first] = 0
    wrong = checksums(blank, first) != stored[first]
    topic, topic_bytes, bad_topic = _short_varlongs(stored, body)
    after = np.minimum(topic + topic_bytes, consumed - 1)
    key, key_bytes, bad_key = _short_varlongs(stored, after)
    value = key + key_bytes
    misfit = bad_topic | bad_key | (topic + topic_bytes >= end) | (value > end)
    misfit |= (topic_bytes > PURO_TOPIC_BYTES_MAX) | (key_bytes > PURO_KEY_BYTES_MAX)
    misfit |= end - value > PURO_VALUE_BYTES_MAX
    bad = np.flatnonzero(wrong | misfit)
    count = len(first)
    if len(bad):
        count = int(bad[0])
        consumed = int(first[count])
        problem = "the checksum of a message is wrong" if wrong[count] else "the lengths of a message do not fit"
    spans = np.stack((topic, topic + topic_bytes, key, value, end), axis=1)[:count]
    return Messages(buffer, spans, consumed, problem)


def checksums(data: U8, starts: I64) -> U8:
    """The CRC-8 of each message, whose first byte, where the checksum goes, is 0. The last one reaches to the end.

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


def _frames(buffer: bytes) -> tuple[list[int], list[int], int, str]:
    """Where each whole message and its body begin, where the last one ends, and what is wrong with the next."""
    starts: list[int] = []
    bodies: list[int] = []
    at, size = 0, len(buffer)
    while at + 1 < size:
        total, body = buffer[at + 1], at + 2
        if total >= 0x80:
            read = _varlong(buffer, at + 1)
            if read is None:
                break
            total, body = read
        if not 2 <= total <= TOTAL_MAX:
            return starts, bodies, at, "the length of a message is impossible"
        if body + total > size:
            break
        starts.append(at)
        bodies.append(body)
        at = body + total
    return starts, bodies, at, ""


def _varlong(buffer: bytes, at: int) -> tuple[int, int] | None:
    """A number and where it ends; None if it is cut off. What is too long or not in its shortest form gives -1."""
    value = 0
    for i, byte in enumerate(buffer[at : at + VARLONG_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return (value if byte else -1), at + i + 1
    return (-1, at) if at + VARLONG_BYTES_MAX <= len(buffer) else None


def _short_varlongs(stored: U8, at: I64) -> tuple[I64, I64, npt.NDArray[np.bool_]]:
    """Where the numbers of at most two bytes end, the numbers, and which are longer or not in their shortest form."""
    low = stored[at].astype(np.int64)
    more = low >= 0x80
    high = np.where(more, stored[np.minimum(at + 1, len(stored) - 1)], 0).astype(np.int64)
    return at + 1 + more, (low & 0x7F) | high << 7, more & ((high >= 0x80) | (high == 0))


def _powers() -> Any:
    """`_powers()[k, b]`: the state after the byte `b` and `k - 1` zeros; for 0, the byte itself."""
    after = np.arange(256)
    for _ in range(8):
        after = np.where(after & 0x80, after << 1 ^ POLYNOMIAL, after << 1) & 0xFF
    found = np.zeros((PERIOD, 256), np.uint8)
    found[0] = np.arange(256)
    for k in range(1, PERIOD):
        found[k] = after[found[k - 1]]
    return found


_POWERS: U8 = _powers()
_ROW = (-np.arange(PERIOD) % PERIOD * 256).astype(np.uint16)
