"""Sealing: packing the batches of a finished segment into ones of a good size, and building its index.

Outside the writers' lock: the finished segment never changes, readers that hold it keep the old file, and the new one
takes its name in one rename. Offsets, times and ids stay. A lock on the segment's own file keeps two processes from
sealing it at once, and retention from deleting it meanwhile. Damage is never packed over: it raises, and the segment
stays as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from headwater.format import segment as segment_format
from headwater.format.batch import BLOB, DATA, KEY, LOST, META, TYPE, Batch, encode
from headwater.format.column import I64, Column, concat, concat_repeated
from headwater.format.index import Index
from headwater.format.names import offset_of
from headwater.format.segment import HEADER_BYTES
from headwater.storage.keys import KeyEntries
from headwater.storage.place import Place
from headwater.storage.segment import SegmentFile

SPLIT_FROM = 2  # times the packed size: above this, a batch is split, so that a look-up need not verify so much

Pause = Callable[[], None]


def seal(place: Place, base: int, pause: Pause = lambda: None, *, anew: bool = False) -> bool:
    """Pack and index one finished segment; False if another process is at it.

    `anew` makes its index also where there is one. `pause` is called between pieces of work; it may sleep to leave the
    processor to others, or raise to stop.
    """
    disk = place.disk
    path = place.segment(base)
    fd = disk.open_read(path)
    try:
        if not disk.hold(fd) or disk.inode(path) != disk.inode(fd):
            return False
        segment = SegmentFile(place, base)
        try:
            if anew or segment.index() is None:
                if not segment.header.packed and _worth_packing(place, segment):
                    packed = _pack(place, segment, pause)
                    disk.release(fd)
                    fd = packed
                    segment.close()
                    segment = SegmentFile(place, base)
                index = build_index(segment, pause)
                _remove_orphans(place, segment)
                disk.replace(place.index(base), index.encode(), sync=False)
        finally:
            segment.close()
    finally:
        disk.release(fd)
    return True


def unsealed(place: Place, active: int) -> list[int]:
    """The finished segments that have no index."""
    names = set(place.disk.names(place.path))
    return [base for base in place.segments() if base < active and place.index(base).name not in names]


def build_index(segment: SegmentFile, pause: Pause = lambda: None) -> Index:
    """Read a finished segment whole, verifying it, and tell where its batches, types and keys are."""
    size = segment.size()
    offsets, ticks, positions = [], [], []
    types: dict[bytes, list[int]] = {}
    keys = KeyEntries()
    window = segment.window(HEADER_BYTES, size)
    end = segment.base
    for number, batch in enumerate(window.batches(HEADER_BYTES, segment.base)):
        batch.validate()
        offsets.append(batch.base_offset)
        ticks.append(batch.base_ticks)
        positions.append(batch.position)
        for type in _types_of(batch):
            types.setdefault(type, []).append(number)
        keys.add(batch, number)
        end = batch.end_offset
        if number % 256 == 255:
            pause()
    numbers = {type: np.array(batches, np.int32) for type, batches in sorted(types.items())}
    return Index(
        segment.header.file_id,
        segment.base,
        end,
        size,
        np.array(offsets, np.int64),
        np.array(ticks, np.int64),
        np.array(positions, np.int64),
        numbers,
        keys.sorted(),
    )


def _types_of(batch: Batch) -> set[bytes]:
    if batch.flags & LOST:
        return set()
    column = batch.column(TYPE)
    if column is None:
        return {b""}
    if column.codes is not None and column.offsets is not None:
        distinct = Column(len(column.offsets) - 1, column.data, column.offsets)
        return {value or b"" for value in distinct.take(np.unique(column.codes).astype(np.int64))}
    return {
        value or b"" for value in (column.values(0, 1) if column.offsets is None else column.values(0, column.count))
    }


def _worth_packing(place: Place, segment: SegmentFile) -> bool:
    """Not if its batches have about the right size already: then rewriting would only cost."""
    batches = len(segment.map(segment.size()).positions)
    return batches > 2 * max(1, segment.size() // place.limits.pack_bytes) or _too_large(
        segment.size() // max(1, batches), place
    )


def _too_large(size: int, place: Place) -> bool:
    """Whether a batch is so large that finding one event in it costs much more than it need."""
    return size > SPLIT_FROM * place.limits.pack_bytes


def _pack(place: Place, segment: SegmentFile, pause: Pause) -> int:
    """Put a packed file in the place of the segment; returns it, locked, so that it stays until it is indexed."""
    disk = place.disk
    path = place.segment(segment.base)
    file_id = int.from_bytes(place.clock.random_bytes(4), "little")
    header = msgspec.structs.replace(segment.header, file_id=file_id, packed=True)
    temporary, fd = disk.create_temporary(path)
    try:
        disk.write(fd, header.encode(), 0)
        position = segment_format.HEADER_BYTES
        window = segment.window(HEADER_BYTES, segment.size())
        for run in _runs(window.batches(HEADER_BYTES, segment.base), place, pause):
            for packed in _packed(run, place):
                disk.write(fd, packed, position)
                position += len(packed)
                pause()
        disk.fdatasync(fd)
        disk.rename(temporary, path)
        disk.sync_directory(place.path)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        disk.release(fd)
        raise
    return fd


def _runs(batches: Iterator[Batch], place: Place, pause: Pause) -> Iterator[list[Batch]]:
    """Neighbours that may become one batch. Huge events and lost ranges stay alone."""
    run: list[Batch] = []
    events = size = 0
    for number, batch in enumerate(batches):
        alone = batch.flags & (BLOB | LOST)
        full = events + batch.count > place.limits.pack_events or size + batch.size > place.limits.pack_bytes
        if run and (alone or full or batch.content != run[0].content or run[0].flags & (BLOB | LOST)):
            yield run
            run, events, size = [], 0, 0
        run.append(batch)
        events += batch.count
        size += batch.size
        if number % 256 == 255:
            pause()
    if run:
        yield run


def _packed(run: list[Batch], place: Place) -> Iterator[bytes]:
    """The bytes of the batches that a run of neighbours becomes: one, or, if a single one is too large, several."""
    batch = run[0]
    if len(run) > 1:
        yield merge(run, zstd=place.zstd)
    elif batch.count > 1 and _too_large(batch.size, place):
        yield from split(batch, -(-batch.size // place.limits.pack_bytes), zstd=place.zstd)
    else:
        yield bytes(batch.stored())


def split(batch: Batch, parts: int, *, zstd: bool) -> Iterator[bytes]:
    """The bytes of batches that hold the events of a large one, verified, with their offsets and ticks."""
    batch.validate()
    ticks = batch.ticks()
    step = -(-batch.count // parts)
    for lo in range(0, batch.count, step):
        yield part(batch, lo, min(lo + step, batch.count), ticks, zstd=zstd)


def part(batch: Batch, lo: int, hi: int, ticks: I64, *, zstd: bool) -> bytes:
    """The bytes of a batch that holds some events of another, whose ticks are given, with their offsets and ticks."""
    columns = {
        kind: None if (column := batch.column(kind)) is None else column.slice(lo, hi)
        for kind in (TYPE, KEY, DATA, META)
    }
    base = batch.base_offset + lo, int(ticks[lo])
    return encode(*base, hi - lo, batch.content, columns, ticks=ticks[lo:hi], zstd=zstd)


def merge(run: list[Batch], *, zstd: bool) -> bytes:
    """The bytes of one batch that holds the events of neighbouring ones, verified, with their offsets and ticks."""
    counts = [batch.count for batch in run]
    columns: dict[int, Column | None] = {}
    for kind in (TYPE, KEY, DATA, META):
        parts = [batch.column(kind) for batch in run]
        columns[kind] = concat_repeated(parts, counts) if kind == TYPE else concat(parts, counts)
    ticks = np.concatenate([batch.ticks() for batch in run])
    return encode(run[0].base_offset, run[0].base_ticks, sum(counts), run[0].content, columns, ticks=ticks, zstd=zstd)


def _remove_orphans(place: Place, segment: SegmentFile) -> None:
    """Remove blobs that no event names: left by a crash between placing one and committing its event."""
    blobs = place.blobs(segment.base)
    names = place.disk.names(blobs)
    if names:
        window = segment.window(HEADER_BYTES, segment.size())
        named = {batch.base_offset for batch in window.batches(HEADER_BYTES, segment.base) if batch.flags & BLOB}
        for name in names:
            offset = offset_of(name, "blob")
            if offset is not None and offset not in named:
                place.disk.unlink(blobs / name)
