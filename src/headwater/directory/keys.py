"""Finding the batches of a key: by the index of a sealed segment, in memory for one that has none.

Both say where a key *may* be, by its hash; a reader compares the real key. Neither is truth: what is
missing or damaged is reported, and the segment is then read whole. So are the batches of a type. Safe from several
threads.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator

import numpy as np

from headwater.directory.log_directory import LogDirectory
from headwater.errors import Corrupt
from headwater.format.batch import KEY, Batch
from headwater.format.column import Column, concat
from headwater.format.hashes import U32, U64, key_hash, key_hashes
from headwater.format.index import Index, KeyPages, head_bytes

HEAD_BYTES = 64 * 1024  # of an index, read at once: nearly always all that is in front of the key entries
GATHER_EVENTS = 65_536  # hashed at once: enough to pay for the calls, little enough to hold
FEW_BYTES = 64 * 1024  # of new batches: so few that they are not worth a run of their own
SMALL_BATCH = 512  # events; larger batches are hashed on their own
PENDING_MAX = 4096  # keys that came a few at a time, kept in a dictionary before they are sorted
POSITION_MAX = 8 << 32  # positions are kept in units of 8 bytes, as u32


def read_index(place: LogDirectory, base: int) -> Index:
    """Return the index of a segment, without its key entries.

    Raises FileNotFoundError, and Corrupt if it is damaged.
    """
    disk = place.disk
    fd = disk.open_read(place.index(base))
    try:
        size = disk.size(fd)
        stored = disk.pread(fd, min(size, HEAD_BYTES), 0)
        if (head := head_bytes(stored, size)) > len(stored):
            stored = disk.pread(fd, head, 0)
    finally:
        disk.close(fd)
    return Index.decode_head(stored[:head], size)


class KeyIndex:
    """What is needed of a sealed segment's index to find a key in it. Its entries stay on disk."""

    __slots__ = ("_disk", "_pages", "_path", "_positions", "file_id", "lost")

    def __init__(self, place: LogDirectory, base: int, index: Index, pages: KeyPages) -> None:
        self.file_id = index.file_id
        self.lost = index.lost()
        self._disk = place.disk
        self._path = place.index(base)
        self._pages = pages
        self._positions = index.positions

    def positions(self, hash: int) -> list[int]:
        """Return where the batches are that may hold a key with this hash, ascending.

        Raises FileNotFoundError, and Corrupt if the file is damaged or another one by now.
        """
        pages = self._pages
        first, end = pages.find(hash)
        if first == end:
            return []
        start, stop = pages.range(first, end)
        # Not kept open: a log may have more segments than a process may have files.
        fd = self._disk.open_read(self._path)
        try:
            stored = self._disk.pread(fd, stop - start, start)
        finally:
            self._disk.close(fd)
        if len(stored) != stop - start:
            raise Corrupt("the keys of an index are cut off", position=start, size=stop - start)
        numbers = pages.batches(hash, first, stored)
        return self._positions[numbers].tolist() if numbers else []


class KeyIndexes:
    """The key indexes of one log's sealed segments, kept once they were used: a few KiB each."""

    def __init__(self, place: LogDirectory, on_damage: Callable[[int], None]) -> None:
        """`on_damage` is called with the segment whose index is damaged, of another file, or without keys."""
        self._place = place
        self._on_damage = on_damage
        self._generation = -1
        self._found: dict[int, KeyIndex] = {}
        self._unusable: dict[int, int | None] = {}  # what identifies the index file that was of no use

    def get(self, base: int, generation: int, file_id: Callable[[], tuple[int, int]]) -> KeyIndex | None:
        """Return the key index of a segment; None if it has none that is of use. A new generation forgets all.

        `file_id` returns the id and the size of the segment's file, when its index is first looked at.
        """
        if generation != self._generation:
            self._found, self._unusable, self._generation = {}, {}, generation
        return self._found.get(base) or self._open(base, file_id)

    def known(self, base: int, generation: int) -> KeyIndex | None:
        """Return the key index of a segment if it was used before: nothing is read."""
        return self._found.get(base) if generation == self._generation else None

    def forget(self, base: int) -> None:
        """Read the index again when it is needed: it has changed."""
        self._found.pop(base, None)

    def damaged(self, base: int) -> None:
        """Do not use this file of an index any more; `on_damage` is called once for it."""
        self.forget(base)
        identity = self._place.disk.inode(self._place.index(base))
        if self._unusable.get(base) != identity:
            self._unusable[base] = identity
            self._on_damage(base)

    def _open(self, base: int, file_id: Callable[[], tuple[int, int]]) -> KeyIndex | None:
        place = self._place
        if base in self._unusable and place.disk.inode(place.index(base)) == self._unusable[base]:
            return None
        try:
            index = read_index(place, base)
        except FileNotFoundError:
            return None  # it may come: sealing makes it some time after the segment was closed
        except Corrupt:
            self.damaged(base)
            return None
        if (index.file_id, index.segment_bytes) != file_id() or index.pages is None:
            self.damaged(base)
            return None
        found = self._found[base] = KeyIndex(place, base, index, index.pages)
        return found


class KeyEntries:
    """Gathers the keys of many batches into sorted entries: key hash * 2^32 + number of the batch."""

    def __init__(self) -> None:
        self.events = 0  # that wait to be hashed
        self._done: list[U64] = []
        self._keys: list[bytes] = []
        self._key_numbers: list[int] = []
        self._columns: list[Column] = []
        self._column_numbers: list[int] = []

    def add(self, batch: Batch, number: int) -> None:
        """Take the keys of a batch; the column is verified, and raises Corrupt."""
        column = batch.column(KEY)
        if column is None:
            return
        if column.offsets is None:
            self._keys.append(bytes(column.data))
            self._key_numbers.append(number)
            self.events += 1
        elif column.count > SMALL_BATCH or column.valid is not None:
            self._done.append(_entries(key_hashes(column), number))
        else:
            self._columns.append(column)
            self._column_numbers.append(number)
            self.events += column.count
        if self.events >= GATHER_EVENTS:
            self._hash()

    def sorted(self) -> U64:
        """Return all entries so far, ascending, each once."""
        self._hash()
        return _sorted(self._done)

    def _hash(self) -> None:
        """Hash what waits, all at once: for small batches that costs a fraction of one after the other."""
        if self._keys:
            hashes = key_hashes(Column.of(self._keys))
            self._done.append(_entries(hashes, np.array(self._key_numbers, np.uint64)))
        if self._columns:
            counts = [column.count for column in self._columns]
            joined = concat(self._columns, counts)
            assert joined is not None
            numbers = np.repeat(np.array(self._column_numbers, np.uint64), counts)
            self._done.append(_entries(key_hashes(joined), numbers))
        self._keys, self._key_numbers, self._columns, self._column_numbers = [], [], [], []
        self.events = 0


class KeyRuns:
    """The keys of a segment without an index, in memory: 8 bytes per key and batch. Grows with the segment.

    Sorted runs, merged when they are of like size, so that a look-up searches few of them and each key is merged only a
    few times; and the latest single events, so that a look-up after each append costs little.
    """

    def __init__(self, start: int, offset: int) -> None:
        """Nothing yet; the first batch will begin at this position and offset."""
        self._to = start
        self._offset = offset
        self._runs: list[U64] = []
        self._pending: dict[int, list[int]] = {}
        self._pending_keys = 0
        self._mutex = threading.Lock()  # protects all of it

    def positions(self, hash: int, end: int, batches: Callable[[int, int, int], Iterator[Batch]]) -> Positions:
        """Return where the batches before position `end` are that may hold a key with this hash, ascending.

        `batches` gives those from a position and offset to an end. Raises Corrupt if one is damaged.
        """
        with self._mutex:
            if self._to < end:
                self._extend(batches(self._to, end, self._offset), end)
            bounds = np.array((hash << 32, hash << 32 | end >> 3), np.uint64)
            found: list[U64 | list[int]] = []
            for run in self._runs:
                at, stop = run.searchsorted(bounds).tolist()
                if at < stop:
                    found.append(run[at:stop])
            pending = self._pending.get(hash)
            if pending is not None:
                found.append(pending[: bisect_left(pending, end)])
        return Positions(found)

    def _extend(self, batches: Iterator[Batch], end: int) -> None:
        """Take in the batches up to `end`: all of them, or none if one is damaged. Runs are in the order of batches."""
        offset = self._offset
        if end - self._to < FEW_BYTES:
            hashes: list[tuple[int, int]] = []
            for batch in batches:
                offset = batch.end_offset
                hashes += ((hash, batch.position) for hash in _hashes(batch))
            for hash, position in hashes:
                self._pending.setdefault(hash, []).append(position)
            self._pending_keys += len(hashes)
            if self._pending_keys > PENDING_MAX:
                self._settle()
        else:
            gathered = KeyEntries()
            for batch in batches:
                offset = batch.end_offset
                gathered.add(batch, batch.position >> 3)
            self._settle()
            self._add_run(gathered.sorted())
        self._to, self._offset = end, offset

    def _settle(self) -> None:
        """Make a run of the latest few."""
        pairs = [hash << 32 | at >> 3 for hash, positions in self._pending.items() for at in positions]
        self._pending, self._pending_keys = {}, 0
        self._add_run(np.sort(np.array(pairs, np.uint64)))

    def _add_run(self, run: U64) -> None:
        runs = self._runs
        runs.append(run)
        while len(runs) > 1 and len(runs[-2]) < 2 * len(runs[-1]):
            last = runs.pop()
            runs[-1] = np.sort(np.concatenate((runs[-1], last)), kind="stable")  # which merges what is sorted


class Positions:
    """Positions of batches, ascending. Going backwards costs what is looked at: a busy key has very many."""

    def __init__(self, parts: list[U64 | list[int]]) -> None:
        """Parts of entries in memory, or of positions."""
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[int]:
        for part in self._parts:
            yield from part if isinstance(part, list) else (part << np.uint64(32) >> np.uint64(29)).tolist()

    def __reversed__(self) -> Iterator[int]:
        for part in reversed(self._parts):
            for at in range(len(part) - 1, -1, -1):
                yield part[at] if isinstance(part, list) else (int(part[at]) & 0xFFFFFFFF) << 3


def _hashes(batch: Batch) -> set[int]:
    """Return the distinct hashes of a small batch's keys."""
    column = batch.column(KEY)
    if column is None:
        return set()
    if column.offsets is None:
        return {key_hash(bytes(column.data))}
    return set(key_hashes(column).tolist())


def _entries(hashes: U32, numbers: U64 | int) -> U64:
    entries = hashes.astype(np.uint64)
    entries <<= np.uint64(32)
    entries |= np.uint64(numbers) if isinstance(numbers, int) else numbers
    return entries


def _sorted(parts: list[U64]) -> U64:
    entries = np.concatenate([np.zeros(0, np.uint64), *parts])
    entries.sort()
    if len(entries) < 2:
        return entries
    new = np.empty(len(entries), np.bool_)
    new[0] = True
    np.not_equal(entries[1:], entries[:-1], out=new[1:])
    return entries[new]
