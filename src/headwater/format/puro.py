"""Messages of Puro, an event log in files (docs/TRANSFER.md, "Puro").

```text
crc          u8        of the rest of the message: there are two ways, see below
totalLength  varlong   bytes that follow this field
topicLength  varlong
topic        byte[]    one byte of 0 to 3: a control message
keyLength    varlong
key          byte[]
value        byte[]
```

Bytes only, many messages at a time. `encode` and `decode` are functions of their arguments; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal

import numpy as np
import numpy.typing as npt

from headwater.limits import PURO_KEY_BYTES_MAX, PURO_TOPIC_BYTES_MAX, PURO_VALUE_BYTES_MAX

Checksum = Literal["code", "documented"]
"""Which checksum messages have: the one of Puro's code, or the one that Puro's document describes."""

TOMBSTONE, INVALID, BLOCK_START, BLOCK_END = range(4)  # the topics of control messages; stored, so they stay
TOTAL_MAX = 2 + PURO_TOPIC_BYTES_MAX + 2 + PURO_KEY_BYTES_MAX + PURO_VALUE_BYTES_MAX
VARLONG_BYTES_MAX = 4  # what TOTAL_MAX takes; a longer one claims more than a message may have
INVALID_CRC = 0xFF  # what Puro writes over a message that it gives up, whatever its bytes are

Bools = npt.NDArray[np.bool_]


def varlong(value: int) -> bytes:
    """Return an unsigned number in groups of 7 bits, the lowest first; the high bit says that more follow."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def encode(topic: bytes, keys: Sequence[bytes], values: Sequence[bytes], checksum: Checksum = "code") -> bytearray:
    """Return the messages of one topic, one after the other. The caller has checked the limits."""
    count = len(values)
    key_sizes, value_sizes = list(map(len, keys)), list(map(len, values))
    named = varlong(len(topic)) + topic
    known: dict[tuple[int, int], tuple[bytes, int]] = {}
    heads = []
    for sizes in zip(key_sizes, value_sizes, strict=True):
        head = known.get(sizes)
        if head is None:
            rest = named + varlong(sizes[0])
            total = b"\0" + varlong(len(rest) + sum(sizes))
            head = known[sizes] = (total + rest, len(total))
        heads.append(head)
    found = bytearray().join(
        chain.from_iterable((head, k, v) for (head, _), k, v in zip(heads, keys, values, strict=True))
    )
    stored = np.frombuffer(found, np.uint8)
    lengths = np.fromiter((len(head) for head, _ in heads), np.int64, count)
    keyed, valued = np.array(key_sizes, np.int64), np.array(value_sizes, np.int64)
    ends = np.cumsum(lengths + keyed + valued)
    starts = ends - lengths - keyed - valued
    if checksum == "documented":
        stored[starts] = documented(stored, starts)
    elif count:
        bodies = starts + np.fromiter((body for _, body in heads), np.int64, count)
        name = bodies + len(named) - len(topic)
        bounds = (starts + 1, bodies, name, bodies + len(named), starts + lengths, ends - valued, ends)
        stored[starts] = combined(stored, np.stack(bounds, axis=1))
    return found


def encode_control(topic: int, value: bytes) -> bytes:
    """Return a control message."""
    return bytes(encode(bytes([topic]), [b""], [value]))


class Messages:
    """Whole and verified messages at the beginning of a buffer.

    `consumed` bytes of it are theirs. If `problem` is not empty, it says what is wrong with the message that follows
    them; if it is, what follows them is the beginning of a message, of which more must be read. `right` counts the
    messages whose checksum is right, also behind a wrong one: it shows with which of two a buffer was written.
    """

    __slots__ = ("_bounds", "_buffer", "_topics", "consumed", "problem", "right")

    def __init__(self, buffer: bytes, bounds: I64, topics: I64, consumed: int, problem: str, right: int) -> None:
        self._buffer = buffer
        self._bounds = bounds  # a row for each message: where the first field begins, and where each one ends
        self._topics = topics  # the topics of control messages, and -1 for the others
        self.consumed = consumed
        self.problem = problem
        self.right = right

    def __len__(self) -> int:
        return len(self._bounds)

    def controls(self) -> list[tuple[int, int, int, bytes]]:
        """Each control message: its number among all, where it begins in the buffer, its topic and its value."""
        rows = np.flatnonzero(self._topics >= 0)
        begin = (self._bounds[rows, 0] - 1).tolist()
        values = self._cut(self._bounds[rows, 5], self._bounds[rows, 6])
        return list(zip(rows.tolist(), begin, self._topics[rows].tolist(), values, strict=True))

    def events(self, before: int) -> Messages:
        """Return those that are no control messages, of so many from the first on."""
        picked = np.flatnonzero(self._topics[:before] < 0)
        return Messages(self._buffer, self._bounds[picked], self._topics[picked], self.consumed, "", len(picked))

    def all_topics(self) -> list[bytes]:
        """Return the topic of each message."""
        begin, end = self._bounds[:, 2], self._bounds[:, 3]
        if not len(self):
            return []
        first = bytes(self._buffer[begin[0] : end[0]])
        if (end - begin == len(first)).all():
            at = begin[:, None] + np.arange(len(first))
            if (np.frombuffer(self._buffer, np.uint8)[at] == np.frombuffer(first, np.uint8)).all():
                return [first] * len(self)  # as in most files, without looking at each
        return self._cut(begin, end)

    def all_keys(self) -> list[bytes]:
        """Return the key of each message; empty where it has none."""
        return self._cut(self._bounds[:, 4], self._bounds[:, 5])

    def all_values(self) -> list[bytes]:
        """Return the value of each message."""
        return self._cut(self._bounds[:, 5], self._bounds[:, 6])

    def _cut(self, begin: I64, end: I64) -> list[bytes]:
        buffer = self._buffer
        return [buffer[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]


def decode(buffer: bytes, checksum: Checksum = "code") -> Messages:
    """Return the messages of a buffer, up to the first that is damaged or not there as a whole."""
    starts, bodies, consumed, problem = _frames(buffer)
    if not starts:
        return Messages(buffer, np.zeros((0, 7), np.int64), np.zeros(0, np.int64), 0, problem, 0)
    stored = np.frombuffer(buffer, np.uint8)[:consumed]
    first = np.array(starts, np.int64)
    bounds, topics, misfit = _bounds(stored, first, np.array(bodies, np.int64), np.append(first[1:], consumed))
    if checksum == "documented":
        blank = stored.copy()
        blank[first] = 0
        wrong = documented(blank, first) != stored[first]
    else:
        wrong = _wrong(stored, bounds, topics, misfit)
    bad = np.flatnonzero(wrong | misfit)
    count = len(first)
    right = count - len(bad)
    if len(bad):
        count = int(bad[0])
        consumed = int(first[count])
        problem = "the checksum of a message is wrong" if wrong[count] else "the lengths of a message do not fit"
    return Messages(buffer, bounds[:count], topics[:count], consumed, problem, right)


def _bounds(stored: U8, first: I64, body: I64, end: I64) -> tuple[I64, I64, Bools]:
    """Return the bounds of fields, the topics of control messages, and which messages have lengths that do not fit."""
    last = len(stored) - 1
    topic, topic_bytes, bad_topic = _short_varlongs(stored, body)
    after = topic + topic_bytes
    key, key_bytes, bad_key = _short_varlongs(stored, np.minimum(after, last))
    value = key + key_bytes
    cut = bad_topic | (after >= end)
    topics = np.where(~cut & (topic_bytes == 1), stored[np.minimum(topic, last)], 0xFF).astype(np.int64)
    topics[topics > BLOCK_END] = -1
    misfit = cut | bad_key | (value > end)
    misfit |= (topic_bytes > PURO_TOPIC_BYTES_MAX) | (key_bytes > PURO_KEY_BYTES_MAX)
    misfit |= end - value > PURO_VALUE_BYTES_MAX
    given_up = (topics == INVALID) & (stored[first] == INVALID_CRC)  # what follows its topic means nothing
    misfit &= ~given_up
    key, value = np.where(given_up, end, key), np.where(given_up, end, value)
    return np.stack((first + 1, body, topic, after, key, value, end), axis=1), topics, misfit


def _wrong(stored: U8, bounds: I64, topics: I64, misfit: Bools) -> Bools:
    """Return which messages have another checksum than Puro's code would give them, and than it does give them."""
    given = stored[bounds[:, 0] - 1]
    found = given.copy()
    fit = np.flatnonzero(~misfit)
    found[fit] = combined(stored, bounds[fit])
    wrong: Bools = (found != given) & ~((topics == INVALID) & (given == INVALID_CRC))
    begins = np.flatnonzero(wrong & (topics == BLOCK_START))
    if len(begins):  # some versions of Puro take the bytes of this one as a whole, when they commit the block
        wrong[begins] = walk(stored, bounds[begins, 0], bounds[begins, 6]) != given[begins]
    for row in begins[wrong[begins]].tolist():
        wrong[row] = not _is_half_committed(stored, bounds[row], int(given[row]))
    return wrong


def _is_half_committed(stored: U8, bounds: I64, given: int) -> bool:
    """Return whether a block's beginning has the checksum of its commit already, and not yet the signal."""
    begin, signal, end = int(bounds[0]), int(bounds[5]), int(bounds[6])
    if signal == end or stored[signal]:
        return False
    committed = stored[begin:end].copy()
    committed[signal - begin] = 1
    whole = walk(committed, np.array([0]), np.array([end - begin]))
    return given in (int(whole[0]), int(combined(committed, bounds[None] - begin)[0]))


def _frames(buffer: bytes) -> tuple[list[int], list[int], int, str]:
    """Return where each whole message and its body begin, where the last one ends, and what is wrong with the next."""
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
    """Return a number and where it ends.

    None if it is cut off. What is too long or not in its shortest form gives -1.
    """
    value = 0
    for i, byte in enumerate(buffer[at : at + VARLONG_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return (value if byte else -1), at + i + 1
    return (-1, at) if at + VARLONG_BYTES_MAX <= len(buffer) else None


def _short_varlongs(stored: U8, at: I64) -> tuple[I64, I64, npt.NDArray[np.bool_]]:
    """Return where numbers of at most two bytes end, the numbers, and which are longer or not in shortest form."""
    low = stored[at].astype(np.int64)
    more = low >= 0x80
    high = np.where(more, stored[np.minimum(at + 1, len(stored) - 1)], 0).astype(np.int64)
    return at + 1 + more, (low & 0x7F) | high << 7, more & ((high >= 0x80) | (high == 0))


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
