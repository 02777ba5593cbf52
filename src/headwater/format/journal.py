"""Entries of a journal: transactions over several logs, with the final bytes (docs/FORMAT.md, "Journal")."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import msgspec
from crc32c import crc32c

MAGIC = b"HWJOURN1"

_HEADER = Struct("<8sIIQQ")
HEADER_BYTES = _HEADER.size


class JournalShare(msgspec.Struct, frozen=True):
    """What one log gets: `size` bytes of whole batches, at a position of one of its segments' files."""

    topic: str
    partition: int
    uuid: str  # of the log
    segment: int
    file_id: int
    position: int
    offset: int
    end_offset: int
    last_ticks: int
    size: int


class JournalMove(msgspec.Struct, frozen=True):
    """A consumer's cursor: the slot that its file gets for a partition; `id` and `slot` as hexadecimal digits."""

    path: str  # of the file, below `consumers`
    id: str
    partition: int
    slot: str


class Entry(msgspec.Struct, frozen=True):
    """One transaction."""

    shares: list[JournalShare]
    moves: list[JournalMove]


_decode_entry = msgspec.json.Decoder(Entry).decode
_encode_entry = msgspec.json.Encoder().encode


def encode(number: int, entry: Entry, datas: list[bytes]) -> bytes:
    """Return the bytes of an entry; `datas` are those of its shares, in their order."""
    table = _encode_entry(entry)
    size = sum(map(len, datas))
    head = _HEADER.pack(MAGIC, 0, len(table), size, number)
    crc = crc32c(head[12:])
    for part in (table, *datas):
        crc = crc32c(part, crc)
    return b"".join((MAGIC, crc.to_bytes(4, "little"), head[12:], table, *datas))


def decode(stored: bytes) -> Iterator[tuple[Entry, list[bytes]]]:
    """Yield the whole entries of a journal, in order, each with the bytes of its shares.

    Ends at the first that is not whole, or not the successor of the one before: it was never committed, or is left from
    before the file was started over.
    """
    at, expected = 0, None
    while at + HEADER_BYTES <= len(stored):
        magic, crc, table, size, number = _HEADER.unpack_from(stored, at)
        end = at + HEADER_BYTES + table + size
        if magic != MAGIC or end > len(stored) or (expected is not None and number != expected):
            return
        if crc32c(memoryview(stored)[at + 12 : end]) != crc:
            return
        entry = _decode_entry(stored[at + HEADER_BYTES : at + HEADER_BYTES + table])
        position = at + HEADER_BYTES + table
        datas = []
        for share in entry.shares:
            datas.append(stored[position : position + share.size])
            position += share.size
        yield entry, datas
        at, expected = end, number + 1
