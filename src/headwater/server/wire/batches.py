"""Stored batches as an answer, and the batch of a request as columns (docs/FORMAT.md, "Frames"). Bytes only.

    encode(batch) -> Iterator[bytes]           the frames of a batch: one, unless it is large, or little of it is meant
    encode_all(batches) -> Iterator[bytes]     the same for many, in pieces
    parse(body, limits) -> Parsed              the batch that a request holds

A batch goes out byte for byte as it is stored, with what is meant of it in its frame. Where that would send much that
is not meant, or more than is good at once, the events that are go out in new batches, with the offsets and ticks that
they have; others that are between them are empty there. On the way in nothing is believed: every checksum, size and
offset is checked, and nothing is made larger than the limits allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np

from headwater.errors import Corrupt, Invalid
from headwater.format import batch as format
from headwater.format import frames, given
from headwater.format.batch import BLOB, DATA, KEY, META, TYPE, Batch
from headwater.format.column import I64, Bytes, Column
from headwater.format.events import EventBatch
from headwater.format.frames import Decoder
from headwater.limits import Limits
from headwater.server.wire.decoding import ParsedEvents, decoded, too_long
from headwater.server.wire.pieces import PIECE_BYTES, joined, parted

SMALL_BYTES = 4096  # up to this, a batch goes out whole, whatever is meant of it
LARGE_BYTES = 4 * 1024 * 1024  # above this, it goes out in parts
SPARSE = 8  # when less than one in so many is meant, only those go out
GAP = 32  # events that are not meant, between two that are in one batch: a batch more costs about as much
FRAMING_BYTES = 64 * 1024  # of a body, beside what the limits let a batch have: headers, offsets of columns
_KINDS = (TYPE, KEY, DATA, META)
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode


def encode_all(batches: Iterable[EventBatch]) -> Iterator[bytes]:
    """Return the frames of batches, in pieces of a good size."""
    return joined(frame for batch in batches for frame in encode(batch))


def encode(batch: EventBatch) -> Iterator[bytes]:
    """Yield the frames of a batch. Raises Corrupt where something had to be taken out of a damaged one."""
    stored, lo, hi = batch.piece
    dense = len(batch) * SPARSE > stored.count and stored.size <= LARGE_BYTES
    if stored.flags & BLOB or stored.size <= SMALL_BYTES or dense:
        raw = stored.raw()
        if len(raw) <= PIECE_BYTES:
            yield frames.encode(batch.partition, raw, lo, hi, batch.rows)
            return
        yield frames.head(batch.partition, len(raw), lo, hi, batch.rows)
        for at in range(0, len(raw), PIECE_BYTES):
            yield bytes(raw[at : at + PIECE_BYTES])
        return
    ticks = stored.ticks()
    for part in parted(batch):
        rows = np.arange(part.piece.lo, part.piece.hi) if part.rows is None else part.rows
        for run in np.split(rows, np.flatnonzero(np.diff(rows) > GAP) + 1):
            yield _encode(stored, run, ticks, batch.partition)


def _encode(stored: Batch, rows: I64, ticks: I64, partition: int) -> bytes:
    """Return the frame of a new batch that has the events `rows`."""
    lo, hi = int(rows[0]), int(rows[-1]) + 1
    some = rows - lo if len(rows) < hi - lo else None
    columns: dict[int, Column | None] = {}
    for kind in _KINDS:
        column = stored.column(kind)
        columns[kind] = None if column is None else _only(column.slice(lo, hi), some)
    between = ticks[lo:hi]
    made = format.encode(stored.base_offset + lo, int(between[0]), hi - lo, stored.content, columns, ticks=between)
    return frames.encode(partition, made, 0, hi - lo, some)


def _only(column: Column, rows: I64 | None) -> Column:
    """Return the column, in which others than `rows` are empty."""
    if rows is None or column.offsets is None or column.codes is not None:
        return column
    starts = column.offsets[rows].astype(np.int64)
    lengths = column.offsets[1:][rows] - starts
    offsets = np.zeros(column.count + 1, np.int64)
    offsets[1:][rows] = lengths
    at = np.cumsum(lengths) - lengths
    data = splice(at, column.data, starts, lengths, int(lengths.sum()))
    return Column(column.count, bytes(data), np.cumsum(offsets).astype(np.int32), None, column.valid)


def parse(body: bytes, limits: Limits) -> ParsedEvents:
    """Return the events of the batch that a request holds, which is one: whole, without blobs, ticks or a producer.

    Raises Invalid for what is not that, TooLarge for more than the limits allow, Unsupported for a newer format.
    """
    bytes_max = limits.batch_bytes_max + 8 * limits.batch_events_max * len(_KINDS) + FRAMING_BYTES
    decoder = Decoder(bytes_max=bytes_max, events_max=limits.batch_events_max)
    try:
        found = decoder.feed(body)
        decoder.finish()
        if len(found) != 1 or found[0].rows is not None:
            raise Invalid(
                f"the body has {len(found)} batches, or part of one; a request takes exactly one batch", code="bad_body"
            )
        _, batch, lo, hi, _ = found[0]
        if batch.flags or (lo, hi) != (0, batch.count) or not set(batch.kinds) <= set(_KINDS):
            raise Invalid("the batch has flags, ticks or a producer, or is not complete", code="bad_body")
        if batch.bytes_claimed() > bytes_max:
            raise too_long(batch.bytes_claimed(), limits)
        batch.validate()
        columns = {kind: _plain(batch.column(kind), kind, limits) for kind in _KINDS}
    except Corrupt as error:
        raise Invalid(f"the batch cannot be read: {error.message}", code="bad_body") from error
    given.check_columns(columns, limits)
    return ParsedEvents(batch.content, columns, batch.count)


def _plain(column: Column | None, kind: int, limits: Limits) -> Column | None:
    """Return a column as appends make it themselves: types constant or in a dictionary, others plain."""
    if column is None:
        return None
    if column.valid is not None and kind in (TYPE, DATA):
        raise Invalid("data or a type is null", code="bad_body")
    if kind == META:
        _check_metas(column)
    if kind == TYPE:
        plain = column.offsets is not None and column.codes is None
        return Column.of_repeated([value or b"" for value in column.values(0, column.count)]) if plain else column
    if column.offsets is not None or column.count == 1:
        return column
    size = len(column.data)
    if size * column.count > limits.batch_bytes_max:
        raise too_long(size * column.count, limits)
    offsets = np.arange(column.count + 1, dtype=np.int64) * size
    return Column(column.count, bytes(column.data) * column.count, offsets.astype(np.int32))


def _check_metas(column: Column) -> None:
    values = [bytes(column.data)] if column.offsets is None else column.values(0, column.count)
    for value in values:
        if value is not None:
            decoded(_decode_meta, value, "meta is not a flat JSON object of strings")


_WIDTH_MAX = 4096
_BLOCK_BYTES = 96 * 1024  # copied at once: above 128 KiB, memory comes from the system, and its first touch is slow


def splice(at: I64, source: Bytes, starts: I64, lengths: I64, size: int) -> bytearray:
    """So many bytes with `source[starts[i]:starts[i] + lengths[i]]` at `at[i]`, for all `i`; `at` must ascend.

    What lies between is not defined. All strings are copied in steps of one width, which may go beyond the end of a
    string: what is written there wrongly is written again by the strings that follow, as they come in order.
    """
    longest, mean = int(lengths.max()), int(lengths.mean())
    width = 1 << min(longest if longest <= 4 * mean else 2 * mean, _WIDTH_MAX).bit_length()
    first, last = int(starts.min()), int((starts + lengths).max())
    padded = b"".join((source[first:last], bytes(width)))
    if longest > width:
        steps = -(-lengths // width)
        before = np.repeat(np.cumsum(steps) - steps, steps)
        shift = (np.arange(len(before)) - before) * width
        at, starts = np.repeat(at, steps) + shift, np.repeat(starts, steps) + shift
    out = bytearray(size + width)
    to, of = windows(out, width), windows(padded, width)
    rows = max(1, _BLOCK_BYTES // width)
    for lo in range(0, len(at), rows):
        to[at[lo : lo + rows]] = of[starts[lo : lo + rows] - first]
    del to
    del out[size:]
    return out


def windows(buffer: bytes | bytearray, width: int) -> Any:
    """Return the strings of so many bytes that begin at each position."""
    return np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, 0, (1,))
