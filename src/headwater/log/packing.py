"""Packing: small batches of a log become ones of a good size, and too large ones are split.

Offsets, times and ids stay; the stamps of producers go, as the log remembers those elsewhere. For what
never changes any more: sealing in a directory, compaction in a bucket. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from headwater.format.batch import BLOB, DATA, KEY, LOST, META, TYPE, Batch, encode
from headwater.format.column import Column, concat, concat_repeated
from headwater.limits import Limits

SPLIT_FROM = 2  # times the packed size: above this, a batch is split, so that a look-up need not verify so much

Pause = Callable[[], None]


class BatchPacker(Protocol):
    """What of a log says how its batches are packed."""

    @property
    def limits(self) -> Limits: ...
    @property
    def zstd(self) -> bool: ...


def too_large(size: int, log: BatchPacker) -> bool:
    """Return whether a batch is so large that finding one event in it costs much more than it need."""
    return size > SPLIT_FROM * log.limits.pack_bytes


def runs(batches: Iterator[Batch], log: BatchPacker, pause: Pause = lambda: None) -> Iterator[list[Batch]]:
    """Yield neighbours that may become one batch. Huge events and lost ranges stay alone."""
    run: list[Batch] = []
    events = size = 0
    for number, batch in enumerate(batches):
        alone = batch.flags & (BLOB | LOST)
        full = events + batch.count > log.limits.pack_events or size + batch.size > log.limits.pack_bytes
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


def packed(run: list[Batch], log: BatchPacker) -> Iterator[bytes]:
    """Yield the bytes of the batches that a run of neighbours becomes: one, or several if a single one is too large."""
    batch = run[0]
    if len(run) > 1:
        yield merge(run, zstd=log.zstd)
    elif batch.count > 1 and too_large(batch.size, log):
        yield from split(batch, -(-batch.size // log.limits.pack_bytes), zstd=log.zstd)
    else:
        yield bytes(batch.stored())


def split(batch: Batch, parts: int, *, zstd: bool) -> Iterator[bytes]:
    """Yield the bytes of batches that hold the events of a large one, verified, with their offsets and ticks."""
    batch.validate()
    step = -(-batch.count // parts)
    for lo in range(0, batch.count, step):
        yield part(batch, lo, min(lo + step, batch.count), zstd=zstd)


def part(batch: Batch, lo: int, hi: int, *, zstd: bool) -> bytes:
    """Return the bytes of a batch with the events number `lo` to `hi` of another, with their offsets and ticks."""
    ticks = batch.ticks()
    columns = {
        kind: None if (column := batch.column(kind)) is None else column.slice(lo, hi)
        for kind in (TYPE, KEY, DATA, META)
    }
    base = batch.base_offset + lo, int(ticks[lo])
    return encode(*base, hi - lo, batch.content, columns, ticks=ticks[lo:hi], zstd=zstd)


def merge(run: list[Batch], *, zstd: bool) -> bytes:
    """Return the bytes of one batch with the events of neighbouring ones, verified, with their offsets and ticks."""
    counts = [batch.count for batch in run]
    columns: dict[int, Column | None] = {}
    for kind in (TYPE, KEY, DATA, META):
        parts = [batch.column(kind) for batch in run]
        columns[kind] = concat_repeated(parts, counts) if kind == TYPE else concat(parts, counts)
    ticks = np.concatenate([batch.ticks() for batch in run])
    return encode(run[0].base_offset, run[0].base_ticks, sum(counts), run[0].content, columns, ticks=ticks, zstd=zstd)
