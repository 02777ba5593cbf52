"""The index of a sealed segment: where its batches are, and which types they hold (docs/FORMAT.md, "Index")."""

from __future__ import annotations

import struct
from struct import Struct
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from headwater.errors import Corrupt
from headwater.format.column import DICTIONARY_MAX, I64, Column

MAGIC = b"HWINDEX1"
OFFSETS, TICKS, POSITIONS, TYPES = 1, 2, 3, 4  # kinds of sections; must stay
_HEADER = Struct("<8sIIIIqqq")
_ENTRY = Struct("<IIQ")
HEADER_BYTES = _HEADER.size


class Index(msgspec.Struct, frozen=True):
    """Batches of one segment, in order. `types` maps each type to the numbers of its batches; None: not kept."""

    file_id: int
    base_offset: int
    end_offset: int
    segment_bytes: int
    offsets: I64
    ticks: I64
    positions: I64
    types: dict[bytes, npt.NDArray[np.int32]] | None

    def encode(self) -> bytes:
        sections: list[tuple[int, bytes]] = [
            (OFFSETS, self.offsets.tobytes()),
            (TICKS, self.ticks.tobytes()),
            (POSITIONS, self.positions.tobytes()),
        ]
        if self.types is not None and len(self.types) <= DICTIONARY_MAX:
            sections.append((TYPES, _encode_types(self.types)))
        table, body = b"", b""
        for kind, section in sections:
            padded = section + bytes(-len(section) % 8)
            table += _ENTRY.pack(kind, crc32c(padded), len(padded))
            body += padded
        head = _HEADER.pack(
            MAGIC,
            0,
            len(sections),
            self.file_id,
            len(self.offsets),
            self.base_offset,
            self.end_offset,
            self.segment_bytes,
        )
        crc = crc32c(head[12:] + table)
        return head[:8] + crc.to_bytes(4, "little") + head[12:] + table + body

    @classmethod
    def decode(cls, stored: bytes | memoryview) -> Self:
        """Verify and point into the bytes of an index file; raises Corrupt."""
        try:
            magic, crc, n, file_id, batches, base, end, size = _HEADER.unpack_from(stored)
            at = HEADER_BYTES + n * _ENTRY.size
            if magic != MAGIC or crc32c(stored[12:at]) != crc:
                raise Corrupt("the header of an index is damaged", position=0, size=HEADER_BYTES)
            sections: dict[int, Any] = {}
            for i in range(n):
                kind, section_crc, section_size = _ENTRY.unpack_from(stored, HEADER_BYTES + i * _ENTRY.size)
                section = stored[at : at + section_size]
                if len(section) != section_size or crc32c(section) != section_crc:
                    raise Corrupt(f"section {kind} of an index is damaged", position=at, size=section_size)
                sections[kind] = section
                at += section_size
            if at != len(stored):
                raise Corrupt("an index has bytes behind its end", position=at, size=len(stored) - at)
            numbers = [np.frombuffer(sections[kind], np.int64, batches) for kind in (OFFSETS, TICKS, POSITIONS)]
            types = _decode_types(sections[TYPES]) if TYPES in sections else None
        except (ValueError, KeyError, struct.error) as error:
            raise Corrupt(f"an index does not parse: {error}", position=0, size=len(stored)) from error
        offsets, ticks, positions = numbers
        return cls(file_id, base, end, size, offsets, ticks, positions, types)

    def batch_of(self, offset: int) -> int:
        """The number of the batch that holds an offset."""
        return int(np.searchsorted(self.offsets, offset, "right")) - 1


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
