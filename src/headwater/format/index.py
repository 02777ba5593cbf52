"""The index of a sealed segment: where its batches are, which types and keys they hold (docs/FORMAT.md, "Index").

An index is encoded and verified as a whole. To find one key, `decode_head` takes all but the key entries, which may
be megabytes, and `KeyPages` says which page of them to read.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from headwater.errors import Corrupt
from headwater.format.column import DICTIONARY_MAX, I64, Column
from headwater.format.hashes import U64
from headwater.format.losses import Ranges, merged

MAGIC = b"HWINDEX1"
OFFSETS, TICKS, POSITIONS, TYPES, KEYS, KEY_ENTRIES = 1, 2, 3, 4, 5, 6  # kinds of sections; must stay
PAGE_BYTES = 8192  # of key entries: small to read and verify, large enough that the directory of pages stays small
_HEADER = Struct("<8sIIIIqqq")
_ENTRY = Struct("<IIQ")
_KEYS = Struct("<II")
HEADER_BYTES = _HEADER.size


class KeyPages(msgspec.Struct, frozen=True):
    """The directory of the key entries: the first hash and the CRC of each page, and where in the file they begin."""

    entries: int
    first_hashes: memoryview  # of u32, as `crcs`
    crcs: memoryview
    position: int

    def find(self, hash: int) -> tuple[int, int]:
        """Return the pages, from one to before the other, that may hold a hash; none if the two are equal."""
        first = max(0, bisect_left(self.first_hashes, hash) - 1)
        return first, max(first, bisect_right(self.first_hashes, hash))

    def range(self, first: int, end: int) -> tuple[int, int]:
        """Return where in the file some pages are."""
        size = 8 * self.entries
        return self.position + min(first * PAGE_BYTES, size), self.position + min(end * PAGE_BYTES, size)

    def batches(self, hash: int, first: int, stored: bytes) -> list[int]:
        """Return the numbers of the batches that hold a hash, from the bytes of its pages.

        Raises Corrupt if they are not.
        """
        for number, at in enumerate(range(0, len(stored), PAGE_BYTES), first):
            if crc32c(stored[at : at + PAGE_BYTES]) != self.crcs[number]:
                start, end = self.range(number, number + 1)
                raise Corrupt("a page of keys of an index is damaged", position=start, size=end - start)
        entries = memoryview(stored).cast("Q")
        at = bisect_left(entries, hash << 32)
        return [entry & 0xFFFFFFFF for entry in entries[at : bisect_left(entries, hash + 1 << 32, at)]]


class Index(msgspec.Struct, frozen=True):
    """Batches of one segment, in order. `types` maps each type to the numbers of its batches; None: not kept.

    `keys` are the key entries, where all were read; `pages` says where they are, where only the head was. Both are
    None if the index has none: earlier versions kept no keys.
    """

    file_id: int
    base_offset: int
    end_offset: int
    segment_bytes: int
    offsets: I64
    ticks: I64
    positions: I64
    types: dict[bytes, npt.NDArray[np.int32]] | None
    keys: U64 | None = None
    pages: KeyPages | None = None

    def lost(self) -> Ranges | None:
        """Return the offsets of lost events: of the batches without any type. None if types are not kept."""
        if self.types is None:
            return None
        lost = np.ones(len(self.offsets), np.bool_)
        for numbers in self.types.values():
            lost[numbers] = False
        ends = np.append(self.offsets[1:], self.end_offset)
        return merged(zip(self.offsets[lost].tolist(), ends[lost].tolist(), strict=True))

    def encode(self) -> bytes:
        sections: list[tuple[int, bytes]] = [
            (OFFSETS, self.offsets.tobytes()),
            (TICKS, self.ticks.tobytes()),
            (POSITIONS, self.positions.tobytes()),
        ]
        if self.types is not None and len(self.types) <= DICTIONARY_MAX:
            sections.append((TYPES, _encode_types(self.types)))
        if self.keys is not None:
            entries = self.keys.tobytes()
            sections += [(KEYS, _encode_directory(entries)), (KEY_ENTRIES, entries)]
        table: list[bytes] = []
        body: list[bytes] = []
        for kind, section in sections:
            padding = bytes(-len(section) % 8)
            table.append(_ENTRY.pack(kind, crc32c(padding, crc32c(section)), len(section) + len(padding)))
            body += (section, padding)
        numbers = self.file_id, len(self.offsets), self.base_offset, self.end_offset, self.segment_bytes
        head = b"".join((_HEADER.pack(MAGIC, 0, len(sections), *numbers)[12:], *table))
        return b"".join((MAGIC, crc32c(head).to_bytes(4, "little"), head, *body))

    @classmethod
    def decode(cls, stored: bytes | memoryview) -> Self:
        """Verify and point into the bytes of an index file; raises Corrupt."""
        return cls._decode(memoryview(stored), len(stored), whole=True)

    @classmethod
    def decode_head(cls, stored: bytes, size: int) -> Self:
        """Like `decode`, from what is in front of the key entries in a file of this size (see `head_bytes`)."""
        return cls._decode(memoryview(stored), size, whole=False)

    @classmethod
    def _decode(cls, stored: memoryview, size: int, *, whole: bool) -> Self:
        try:
            (file_id, batches, base, end, segment_bytes), table = _decode_table(stored)
            sections: dict[int, memoryview] = {}
            for kind, (position, section_size, crc) in table.items():
                if whole or kind != KEY_ENTRIES:
                    section = sections[kind] = stored[position : position + section_size]
                    if len(section) != section_size or crc32c(section) != crc:
                        raise Corrupt(f"section {kind} of an index is damaged", position=position, size=section_size)
            at = sum(list(table.values())[-1][:2]) if table else len(stored)
            if at != size:
                raise Corrupt(
                    "an index does not have the size in its header", position=min(at, size), size=abs(size - at)
                )
            numbers = [np.frombuffer(sections[kind], np.int64, batches) for kind in (OFFSETS, TICKS, POSITIONS)]
            types = _decode_types(sections[TYPES]) if TYPES in sections else None
            pages = _decode_directory(sections[KEYS], *table[KEY_ENTRIES][:2]) if KEYS in sections else None
            keys = np.frombuffer(sections[KEY_ENTRIES], np.uint64) if pages is not None and whole else None
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise Corrupt(f"an index does not parse: {error}", position=0, size=len(stored)) from error
        if keys is not None and _encode_directory(keys.tobytes()) != sections[KEYS]:
            raise Corrupt("the pages of an index do not match its keys", position=table[KEYS][0], size=table[KEYS][1])
        offsets, ticks, positions = numbers
        kept = keys, None if whole else pages
        return cls(file_id, base, end, segment_bytes, offsets, ticks, positions, types, *kept)

    def batch_of(self, offset: int) -> int:
        """Return the number of the batch that holds an offset."""
        return int(np.searchsorted(self.offsets, offset, "right")) - 1


def head_bytes(stored: bytes, size: int) -> int:
    """Return how many bytes of an index of this size precede its key entries. `stored` holds at least its table.

    Raises Corrupt.
    """
    try:
        _, table = _decode_table(memoryview(stored))
    except struct.error as error:
        raise Corrupt(f"an index does not parse: {error}", position=0, size=len(stored)) from error
    return table[KEY_ENTRIES][0] if KEY_ENTRIES in table else size


def _decode_table(stored: memoryview) -> tuple[tuple[int, ...], dict[int, tuple[int, int, int]]]:
    """Return the numbers of the header, verified; and the position, size and CRC of each section by kind, in order."""
    magic, crc, n, *numbers = _HEADER.unpack_from(stored)
    at = HEADER_BYTES + n * _ENTRY.size
    if magic != MAGIC or at > len(stored) or crc32c(stored[12:at]) != crc:
        raise Corrupt("the header of an index is damaged", position=0, size=HEADER_BYTES)
    table = {}
    for i in range(n):
        kind, section_crc, section_size = _ENTRY.unpack_from(stored, HEADER_BYTES + i * _ENTRY.size)
        table[kind] = at, section_size, section_crc
        at += section_size
    return tuple(numbers), table


def _encode_directory(entries: bytes) -> bytes:
    pages = range(0, len(entries), PAGE_BYTES)
    first_hashes = np.frombuffer(entries, np.uint32)[1 :: PAGE_BYTES // 4]
    crcs = np.fromiter((crc32c(entries[at : at + PAGE_BYTES]) for at in pages), np.uint32, len(pages))
    return b"".join((_KEYS.pack(len(entries) // 8, len(pages)), first_hashes.tobytes(), crcs.tobytes()))


def _decode_directory(stored: memoryview, position: int, size: int) -> KeyPages:
    entries, pages = _KEYS.unpack_from(stored)
    if size != 8 * entries or pages != -(-size // PAGE_BYTES) or len(stored) != 8 + 8 * pages:
        raise ValueError("the directory of keys does not match the keys")
    numbers = stored[8:].cast("I")
    return KeyPages(entries, numbers[:pages], numbers[pages:], position)


def _encode_types(types: dict[bytes, npt.NDArray[np.int32]]) -> bytes:
    names = Column.of(list(types))
    starts = np.zeros(len(types) + 1, np.int32)
    np.cumsum([len(batches) for batches in types.values()], out=starts[1:])
    numbers = np.concatenate([np.zeros(0, np.int32), *types.values()]).astype(np.int32)
    head = np.array([len(types), len(numbers)], np.uint32).tobytes()
    assert names.offsets is not None
    return b"".join((head, names.offsets.tobytes(), starts.tobytes(), numbers.tobytes(), names.data))


def _decode_types(stored: bytes | memoryview) -> dict[bytes, npt.NDArray[np.int32]]:
    k, m = (int(n) for n in np.frombuffer(stored, np.uint32, 2))
    offsets = np.frombuffer(stored, np.int32, k + 1, 8)
    starts = np.frombuffer(stored, np.int32, k + 1, 12 + 4 * k)
    numbers = np.frombuffer(stored, np.int32, m, 16 + 8 * k)
    names = Column(k, memoryview(stored)[16 + 8 * k + 4 * m :], offsets).values(0, k)
    return {name or b"": numbers[starts[j] : starts[j + 1]] for j, name in enumerate(names)}
