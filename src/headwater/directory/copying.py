"""Batches that another log has stored, taken as they are: a replica's log has the same ones as its source.

Nothing that comes from elsewhere is believed: every checksum is verified, and offsets and ticks must follow on what is
here. Only bytes: `LogWriter.take` writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.directory.log_directory import LogDirectory
from headwater.errors import Conflict, Corrupt
from headwater.format.batch import LOST, Batch, corrupt, decode, encode_lost
from headwater.format.segment import HEADER_BYTES
from headwater.format.tail import TailSlot
from headwater.log.packing import part


def behind(stored: memoryview, offset: int, *, zstd: bool) -> list[Batch]:
    """Return the batches in some bytes from an offset on; one that holds events before it is rebuilt without them.

    Their headers are verified, the rest is for `check`. Raises Corrupt for what is no batch.
    """
    found: list[Batch] = []
    at = 0
    while at < len(stored):
        batch = decode(stored, at, len(stored))
        at += batch.size
        if batch.end_offset > offset:
            found.append(batch if batch.base_offset >= offset else rest(batch, offset, zstd=zstd))
    return found


def rest(batch: Batch, offset: int, *, zstd: bool) -> Batch:
    """Return the events of a batch from an offset on, verified, as a batch of their own. It has no producer's stamp."""
    batch.validate()
    lo = offset - batch.base_offset
    ticks = batch.ticks()
    if batch.flags & LOST:
        made = encode_lost(offset, int(ticks[lo]), batch.count - lo)
    else:
        made = part(batch, lo, batch.count, zstd=zstd)
    return decode(memoryview(made), 0, len(made))


def check(batches: Sequence[Batch]) -> None:
    """Raise Corrupt unless every checksum is right, and each batch follows on the one before."""
    before: Batch | None = None
    for batch in batches:
        batch.validate()
        if before is not None and (batch.base_offset != before.end_offset or batch.base_ticks <= before.last_ticks):
            raise corrupt(
                f"a batch at offset {batch.base_offset} does not follow offset {before.end_offset - 1}",
                batch.path,
                batch.position,
                batch.size,
            )
        before = batch


def check_follows(place: LogDirectory, slot: TailSlot, batches: Sequence[Batch]) -> None:
    """Raise Conflict unless the first batch has the next offset, and Corrupt unless it is later than what is here."""
    if not batches:
        return
    first = batches[0]
    if first.base_offset != slot.visible_offset:
        raise Conflict(
            f"{place} ends at offset {slot.visible_offset}, but the next batch begins at {first.base_offset}",
            code="not_next",
            end=slot.visible_offset,
        )
    if first.base_ticks <= slot.last_ticks:
        raise Corrupt(f"{place}: the event at offset {first.base_offset} is not later than the one before it")


def runs(batches: Sequence[Batch], position: int, segment_bytes: int) -> Iterator[list[Batch]]:
    """Yield what goes to the active segment, of which `position` bytes are used, maybe nothing.

    Then to each new one.
    """
    run: list[Batch] = []
    for batch in batches:
        if position > HEADER_BYTES and position + batch.size > segment_bytes:
            yield run
            run, position = [], HEADER_BYTES
        run.append(batch)
        position += batch.size
    yield run


def joined(run: Sequence[Batch]) -> tuple[bytes, int]:
    """Return the bytes of batches, and of those up to the end of the last that has a producer's stamp.

    0 if none has.
    """
    size = stamped = 0
    for batch in run:
        size += batch.size
        if batch.producer is not None:
            stamped = size
    return b"".join([batch.raw() for batch in run]), stamped
