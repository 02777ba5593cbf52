"""Where the batches of a segment are that may hold a wanted type and a key: by indexes, or by keys kept in memory.

An index is never truth: one that is missing, damaged or of another file is reported, and the segment is read whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headwater.directory.keys import KeyIndexes, Positions
from headwater.directory.parts import ArchivedSegments
from headwater.directory.segment import SegmentFile
from headwater.errors import Corrupt
from headwater.format.batch import KEY, Batch
from headwater.format.hashes import key_hash
from headwater.format.index import Index
from headwater.format.tail import TailSlot
from headwater.log.log import TypeTest

if TYPE_CHECKING:
    from headwater.directory.log_reader import LogReader


class BatchPositions(NamedTuple):
    """Some batches of an open segment by their positions, ascending. Where there are none, it need not be open."""

    segment: SegmentFile | None
    positions: list[int] | Positions


NOWHERE = BatchPositions(None, [])


class BatchLookup:
    """Finds batches for the `LogReader` of one log. Safe from several threads."""

    def __init__(self, reader: LogReader, archived: ArchivedSegments | None) -> None:
        self._reader = reader
        self._archived = archived
        self._hashed: tuple[bytes, int] = b"", key_hash(b"")  # the last key, which is looked up in each segment

    def find(self, base: int, slot: TailSlot, types: TypeTest | None, key: bytes | None) -> BatchPositions | None:
        """Return where the batches of a segment are that may hold a wanted type and the key; None if unknown."""
        reader = self._reader
        archived = self._archived if types is not None and reader.archived_part(base) is not None else None
        if archived is not None and not archived.may_hold(base, types, None):
            return NOWHERE
        found = self._find_key(base, slot, self._hash(key)) if key is not None else None
        if types is None or (found is not None and not found.positions):
            return found
        segment = reader.segment(base, slot) if found is None else found.segment
        assert segment is not None
        index = segment.index()
        wanted = _wanted_batches(index, types)
        if index is None or wanted is None:
            if segment.index_damaged:
                reader.key_indexes.damaged(base)
            return found
        typed: list[int] = index.positions[wanted].tolist()
        return BatchPositions(segment, typed if found is None else sorted(set(typed).intersection(found.positions)))

    def _hash(self, key: bytes) -> int:
        hashed = self._hashed
        if hashed[0] != key:
            hashed = self._hashed = key, key_hash(key)
        return hashed[1]

    def _find_key(self, base: int, slot: TailSlot, hash: int) -> BatchPositions | None:
        found = self._find_indexed(base, slot, hash) if base != slot.segment else None
        if found is None:
            segment = self._reader.segment(base, slot)
            positions = segment.key_positions(hash, self._reader.end_position(segment, slot))
            found = None if positions is None else BatchPositions(segment, positions)
        return found

    def _find_indexed(self, base: int, slot: TailSlot, hash: int) -> BatchPositions | None:
        """Return where a key may be in a sealed segment; None if it has no sound index."""
        reader, archived, found = self._reader, self._archived, None
        if not reader.is_archived_only(base):
            found = self._find_in(reader.key_indexes, base, slot, hash, lambda: reader.segment(base, slot).identity())
        if found is None and archived is not None and archived.part(base) is not None and not reader.is_here(base):
            if not archived.may_hold(base, None, hash):
                return NOWHERE
            identity = archived.open(base).identity  # fetched with its index
            found = self._find_in(archived.key_indexes, base, slot, hash, identity)
        return found

    def _find_in(
        self, indexes: KeyIndexes, base: int, slot: TailSlot, hash: int, identity: Callable[[], tuple[int, int]]
    ) -> BatchPositions | None:
        for doubt in (indexes.forget, indexes.damaged):  # the first time, the file may have been replaced
            index = indexes.get(base, slot.generation, identity)
            if index is None:
                return None
            try:
                positions = index.positions(hash)
            except (FileNotFoundError, Corrupt):
                doubt(base)
                continue
            if not positions:
                return NOWHERE
            segment = self._reader.segment(base, slot)
            if segment.header.file_id == index.file_id:
                return BatchPositions(segment, positions)
            indexes.forget(base)
        return None


def last_of(batch: Batch, key: bytes) -> int | None:
    """Return the number of the last event of a batch that has this key; None if none has."""
    if batch.count == 1:
        return 0 if batch.only(KEY) == key else None
    column = batch.column(KEY)
    rows = np.flatnonzero(column.equals(key)) if column is not None else np.zeros(0, np.int64)
    return int(rows[-1]) if len(rows) else None


def _wanted_batches(index: Index | None, types: TypeTest) -> np.ndarray | None:
    """Return which batches of a sealed segment hold a wanted type; None if that is not known."""
    if index is None or index.types is None:
        return None
    wanted = np.zeros(len(index.offsets), np.bool_)
    for type, numbers in index.types.items():
        if types(type):
            wanted[numbers] = True
    return wanted
