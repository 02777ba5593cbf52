"""A batch as bytes: the atom of the log (docs/FORMAT.md, "Batch").

`encode_one` and `encode` make the bytes of a batch; `decode` points a `Batch` at stored bytes after
checking its header. Columns are verified the first time they are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any

import numpy as np
from crc32c import crc32c

from headwater.errors import Corrupt, Unsupported
from headwater.event import CONTENTS, Content
from headwater.format.column import DICTIONARY, I64, PLAIN, Column, bytes_of_frame, compress
from headwater.format.column import ZSTD as COLUMN_ZSTD

MAGIC = b"HWB1"
VERSION = 1
BLOB, LOST = 1, 2  # flags; must stay
TICKS, TYPE, KEY, DATA, META, PRODUCER = 1, 2, 3, 4, 5, 6  # kinds of columns; must stay
RUNS = 2  # an encoding of ticks; must stay
STAMP_BYTES = 16  # of a producer, before its id
COMPRESS_BYTES_MIN = 512  # below this, a zstd frame saves nothing worth its time

_HEADER = Struct("<4sIIIqqBBBB")
_ENTRY = Struct("<BBHII")
_BLOB_REFERENCE = Struct("<QII")
HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size
BATCH_BYTES_MIN = HEADER_BYTES + 4  # without columns: the header, and the size again
COUNT_MAX = 2**32 - 1  # events of one batch, as far as its header can tell
# The header and table of a batch of one with 1 to 5 columns, so that one call packs it.
_AFTER_CRC = tuple(Struct("<IIqqBBBB" + "BBHII" * n) for n in range(6))
_ONE = _AFTER_CRC[1]
_U32 = Struct("<I")
_PADDING = tuple(bytes(n) for n in range(8))
_CONTENT_CODE = {content: code for code, content in enumerate(CONTENTS)}


def encode_one(
    base_offset: int,
    base_ticks: int,
    content: Content,
    data: bytes,
    type: bytes,
    key: bytes | None,
    meta: bytes | None,
    flags: int = 0,
    producer: bytes | None = None,
) -> bytes:
    """Return the bytes of a batch of one event, fast: every column is constant."""
    n = 1 + bool(type) + (key is not None) + (meta is not None) + (producer is not None)
    at = HEADER_BYTES + ENTRY_BYTES * n
    code = _CONTENT_CODE[content]
    if n == 1:
        length = len(data)
        size = at + length + 4
        padding = -size & 7
        size += padding
        stored = data + _PADDING[padding] + _U32.pack(size)
        crc = crc32c(stored)
        head = _ONE.pack(size, 1, base_offset, base_ticks, VERSION, flags, code, 1, DATA, 0, 0, length, crc)
        return MAGIC + _U32.pack(crc32c(head)) + head + stored
    table: list[int] = []
    parts: list[bytes] = []
    last = PRODUCER if producer is not None else DATA if meta is None else META
    for kind, value in ((TYPE, type or None), (KEY, key), (DATA, data), (META, meta), (PRODUCER, producer)):
        if value is None:
            continue
        length = len(value)
        if kind == last:
            padding = -(at + length + 4) & 7
            at += length + padding + 4
            stored = value + _PADDING[padding] + _U32.pack(at)
        else:  # the next column begins at a multiple of 4
            stored = value + _PADDING[-length & 3]
            at += len(stored)
        table += kind, 0, 0, length, crc32c(stored)
        parts.append(stored)
    head = _AFTER_CRC[n].pack(at, 1, base_offset, base_ticks, VERSION, flags, code, n, *table)
    return b"".join((MAGIC, _U32.pack(crc32c(head)), head, *parts))


def encode(
    base_offset: int,
    base_ticks: int,
    count: int,
    content: Content,
    columns: Mapping[int, Column | None],
    *,
    ticks: I64 | None = None,
    flags: int = 0,
    zstd: bool = False,
) -> bytes:
    """Return the bytes of a batch. `columns` are by kind, in ascending order; None means absent."""
    stored: list[tuple[int, int, list[Any], int]] = []
    if ticks is not None and not _consecutive(ticks):
        stored.append((TICKS, *_encode_ticks(ticks)))
    for kind, column in columns.items():
        if column is not None:
            encoding, buffers, size = column.encode()
            if zstd and size >= COMPRESS_BYTES_MIN and kind != PRODUCER:
                buffers = [compress(buffers)]
                encoding, size = encoding | COLUMN_ZSTD, len(buffers[0])
            stored.append((kind, encoding, buffers, size))
    at = HEADER_BYTES + ENTRY_BYTES * len(stored)
    before = _PADDING[-at & 7] if stored and stored[0][0] == TICKS else b""
    at += len(before)
    table: list[bytes] = []
    parts: list[Any] = []
    for i, (kind, encoding, buffers, size) in enumerate(stored):
        at += size
        after = _PADDING[-at & 3] if i + 1 < len(stored) else _end(at)
        crc = 0
        for buffer in (*buffers, after):
            crc = crc32c(buffer, crc)
        table.append(_ENTRY.pack(kind, encoding, 0, size, crc))
        parts += buffers
        parts.append(after)
        at += len(after)
    if not stored:
        before = _end(at)
        at += len(before)
    head = _AFTER_CRC[0].pack(at, count, base_offset, base_ticks, VERSION, flags, _CONTENT_CODE[content], len(stored))
    head = b"".join((head, *table, before))
    return b"".join((MAGIC, _U32.pack(crc32c(head)), head, *parts))


def _end(at: int) -> bytes:
    """Return what closes a batch whose columns end at `at`: padding, and its size, for reading backwards."""
    padding = -(at + 4) & 7
    return _PADDING[padding] + _U32.pack(at + padding + 4)


def encode_lost(base_offset: int, base_ticks: int, count: int) -> bytes:
    """Return the bytes of a batch that stands for `count` events that were damaged and cut."""
    return encode(base_offset, base_ticks, count, "bytes", {}, flags=LOST)


def encode_blob_reference(size: int, chunk_bytes: int, table_crc: int) -> bytes:
    return _BLOB_REFERENCE.pack(size, chunk_bytes, table_crc)


class Batch:
    """A view of one stored batch. Immutable; keeps alive the bytes that it points into.

    `position` is its place in the file `path`, which errors name.
    """

    __slots__ = (
        "_checked",
        "_shift",
        "_table",
        "base_offset",
        "base_ticks",
        "buffer",
        "content",
        "count",
        "flags",
        "path",
        "position",
        "size",
    )

    def __init__(
        self,
        buffer: memoryview,
        position: int,
        size: int,
        count: int,
        base_offset: int,
        base_ticks: int,
        flags: int,
        content: Content,
        table: list[tuple[int, int, int, int, int, int]],
        path: str,
        shift: int,
    ) -> None:
        self.buffer = buffer
        self.path = path
        self.position = position + shift
        self._shift = shift
        self.size = size
        self.count = count
        self.base_offset = base_offset
        self.base_ticks = base_ticks
        self.flags = flags
        self.content = content
        self._table = table  # (kind, encoding, start, end, end with padding, crc)
        self._checked: dict[int, Column] = {}

    def crc(self, kind: int) -> int | None:
        """Return the stored checksum of a column, unverified; None if the batch does not have the column."""
        return next((crc for found, _, _, _, _, crc in self._table if found == kind), None)

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def end_position(self) -> int:
        return self.position + self.size

    def stored(self) -> memoryview:
        """Return the bytes of the batch, every column verified."""
        self.validate()
        return self.raw()

    def raw(self) -> memoryview:
        """Return the bytes of the batch; its columns are not verified, and carry their checksums with them."""
        start = self.position - self._shift
        return self.buffer[start : start + self.size]

    @property
    def kinds(self) -> list[int]:
        """Return the kinds of its columns."""
        return [entry[0] for entry in self._table]

    def bytes_claimed(self) -> int:
        """Return bytes of all columns once they are decompressed, as they claim; nothing is decompressed to tell."""
        sizes = []
        for kind, encoding, start, end, _, _ in self._table:
            try:
                stored = self.buffer[start:end]
                sizes.append(bytes_of_frame(stored) if encoding & COLUMN_ZSTD and kind != TICKS else end - start)
            except Corrupt as error:
                raise self._damaged(f"column {kind}: {error}") from None
        return sum(sizes)

    def column(self, kind: int) -> Column | None:
        """Return the column, verified; None if it is absent."""
        column = self._checked.get(kind)
        if column is None:
            for entry in self._table:
                if entry[0] == kind:
                    column = self._checked[kind] = self._decoded(entry)
        return column

    def only(self, kind: int) -> bytes | None:
        """Return the value of a column in a batch of one event."""
        column = self.column(kind)
        if column is None:
            return None
        return bytes(column.data) if column.offsets is None else column.values(0, 1)[0]

    def ticks(self) -> I64:
        """Return the ticks of each event."""
        for entry in self._table:
            if entry[0] == TICKS:
                if entry[1] not in (PLAIN, RUNS):
                    raise _unknown_encoding(entry)
                try:
                    return _decode_ticks(entry[1], self._verified(entry), self.count)
                except ValueError as error:
                    raise self._damaged(f"the ticks do not fit the events: {error}") from None
        return np.arange(self.base_ticks, self.base_ticks + self.count, dtype=np.int64)

    @property
    def has_own_ticks(self) -> bool:
        """Return whether the ticks are not simply consecutive from the base ticks."""
        return bool(self._table) and self._table[0][0] == TICKS

    @property
    def last_ticks(self) -> int:
        if self.has_own_ticks:
            return int(self.ticks()[-1])
        return self.base_ticks + self.count - 1

    @property
    def producer(self) -> bytes | None:
        """Return who appended it, if they said so: the bytes of a producer's stamp (see `format.producers`)."""
        if not self._table or self._table[-1][0] != PRODUCER:
            return None
        column = self.column(PRODUCER)
        assert column is not None
        return bytes(column.data)

    def blob_reference(self) -> tuple[int, int, int]:
        """Return size, chunk bytes and CRC of the table of the blob that holds the data."""
        data = self.column(DATA)
        if self.count == 1 and data is not None and data.offsets is None and len(data.data) == _BLOB_REFERENCE.size:
            size, chunk_bytes, crc = _BLOB_REFERENCE.unpack(data.data)
            if chunk_bytes:
                return size, chunk_bytes, crc
        raise self._damaged("a blob batch has no reference")

    def validate(self) -> None:
        """Verify every column, that its offsets are sound, and that the batch is one that a writer makes."""
        kinds = [entry[0] for entry in self._table]
        if kinds != sorted(set(kinds)) or (DATA in kinds) == bool(self.flags & LOST) or (self.flags & LOST and kinds):
            raise self._damaged("a batch has the wrong columns")
        end = self.position - self._shift + self.size
        if size_before(self.buffer, end) != self.size:
            raise self._damaged("a batch does not end with its size")
        if not self.count or not 0 <= self.base_offset < 2**63 - self.count:
            raise self._damaged("a batch has no events, or impossible offsets")
        for kind in kinds:
            if kind == TICKS:
                ticks = self.ticks()
                if ticks[0] != self.base_ticks or (ticks[1:] <= ticks[:-1]).any():
                    raise self._damaged("ticks do not increase")
            else:
                self._validate_column(kind)
        if not 0 <= self.base_ticks <= self.last_ticks < 1 << 60:
            raise self._damaged("ticks are outside the 60 bits of an id")
        if self.flags & BLOB:
            self.blob_reference()

    def _validate_column(self, kind: int) -> None:
        column = self.column(kind)
        assert column is not None
        if kind == PRODUCER and (column.offsets is not None or len(column.data) <= STAMP_BYTES):
            raise self._damaged("the producer column does not hold exactly one stamp")
        try:
            column.validate()
            if kind == TYPE:
                for value in column.distinct():
                    value.decode()
        except (Corrupt, UnicodeDecodeError) as error:
            raise self._damaged(f"column {kind}: {error}") from None

    def _decoded(self, entry: tuple[int, int, int, int, int, int]) -> Column:
        kind, encoding = entry[:2]
        if kind != TYPE and encoding & 0x0F == DICTIONARY:
            raise _unknown_encoding(entry)
        stored = self._verified(entry)
        try:
            return Column.decode(encoding, stored, self.count)
        except Corrupt as error:
            raise self._damaged(f"column {kind}: {error}") from None

    def _verified(self, entry: tuple[int, int, int, int, int, int]) -> memoryview:
        kind, _, start, end, padded_end, crc = entry
        if crc32c(self.buffer[start:padded_end]) != crc:
            raise self._damaged(f"the checksum of column {kind} is wrong")
        return self.buffer[start:end]

    def _damaged(self, reason: str) -> Corrupt:
        return corrupt(reason, self.path, self.position, self.size, (self.base_offset, self.end_offset))


def decode(buffer: memoryview, position: int, end: int, path: str = "", shift: int = 0) -> Batch:
    """Return the batch at `position` of the buffer, its header verified.

    `end` is where the readable bytes end; `path` and `shift` say where in which file the buffer begins.
    """
    table_at = position + HEADER_BYTES
    if table_at > end:
        raise corrupt("the header of a batch is cut off", path, position + shift, end - position)
    magic, crc, size, count, base_offset, base_ticks, version, flags, content, n = _HEADER.unpack_from(buffer, position)
    if magic != MAGIC or size & 7 or position + size > end or table_at + n * ENTRY_BYTES > position + size:
        raise corrupt("no batch begins here", path, position + shift, end - position)
    table: list[list[int]] = []
    at = table_at + n * ENTRY_BYTES
    first = at
    for i in range(n):
        kind, encoding, _, column_size, column_crc = _ENTRY.unpack_from(buffer, table_at + i * ENTRY_BYTES)
        align = 7 if kind == TICKS else 3
        at += -(at - position) & align
        if i == 0:
            first = at
        else:
            table[-1][4] = at
        table.append([kind, encoding, at, at + column_size, 0, column_crc])
        at += column_size
    batch_end = position + size
    if n:
        table[-1][4] = batch_end
    if n == 0:
        first = batch_end
    if crc32c(buffer[position + 8 : first]) != crc or not at + 4 <= batch_end < at + 12:
        raise corrupt("the checksum of a batch's header is wrong", path, position + shift, size)
    if version != VERSION or flags & ~(BLOB | LOST) or content >= len(CONTENTS):
        raise Unsupported(
            f"a batch has version {version}, flags {flags:#x}, content {content}",
            hint="upgrade headwater to read this log",
        )
    for entry in table:
        if not TICKS <= entry[0] <= PRODUCER:
            raise Unsupported(f"a batch has a column of kind {entry[0]}", hint="upgrade headwater to read this log")
    rows: Any = table  # lists of six integers
    return Batch(buffer, position, size, count, base_offset, base_ticks, flags, CONTENTS[content], rows, path, shift)


def corrupt(reason: str, path: str, position: int, size: int, offsets: tuple[int, int] | None = None) -> Corrupt:
    """Damage, with its exact range."""
    place = f" in {path}" if path else ""
    which = f", offsets {offsets[0]} to {offsets[1] - 1}" if offsets else ""
    return Corrupt(
        f"{reason}{place}, bytes {position} to {position + size}{which}",
        hint="run 'headwater check', then 'headwater repair', which keeps the bytes it removes" if path else "",
        path=path,
        position=position,
        size=size,
        offsets=offsets,
        reason=reason,
    )


def torn(buffer: memoryview, position: int, offset: int) -> bool:
    """Return whether a batch with this offset begins at `position`, with a sound header, and ends behind the buffer."""
    head = position + HEADER_BYTES
    if head > len(buffer):
        return False
    size, _, base_offset, _ = peek(buffer, position)
    if position + size <= len(buffer) or base_offset != offset or head + ENTRY_BYTES * buffer[head - 1] > len(buffer):
        return False
    try:
        decode(buffer, position, position + size)
    except Corrupt:
        return False
    except Unsupported:
        pass  # of a later version, and sound
    return True


def size_before(buffer: memoryview, position: int) -> int:
    """Return the size of the batch that ends at `position`, unchecked."""
    size: int = _U32.unpack_from(buffer, position - 4)[0]
    return size


def peek(buffer: memoryview, position: int) -> tuple[int, int, int, int]:
    """Size, count, base offset and base ticks of the batch at `position`, unchecked: for building maps of batches."""
    _, _, size, count, base_offset, base_ticks, _, _, _, _ = _HEADER.unpack_from(buffer, position)
    return size, count, base_offset, base_ticks


def header_sound(buffer: memoryview, position: int) -> bool:
    """Return whether the checksum of a header is right, without decoding it: for walking over many batches."""
    _, crc, size, _, _, _, _, _, _, n = _HEADER.unpack_from(buffer, position)
    first = position + HEADER_BYTES + ENTRY_BYTES * n
    if not n:
        first = position + size
    elif buffer[position + HEADER_BYTES] == TICKS:
        first += -(first - position) & 7
    return bool(crc32c(buffer[position + 8 : first]) == crc)


def _unknown_encoding(entry: tuple[int, int, int, int, int, int]) -> Unsupported:
    return Unsupported(
        f"column {entry[0]} has the encoding {entry[1]:#04x}, which is unknown for it",
        hint="upgrade headwater to read this log",
    )


def _encode_ticks(ticks: I64) -> tuple[int, list[Any], int]:
    """As runs of consecutive ticks, which appends of many events make, or one by one: whichever is shorter."""
    starts = np.flatnonzero(np.diff(ticks, prepend=ticks[0] - 2) != 1)
    if len(starts) * 12 >= ticks.nbytes:
        return PLAIN, [ticks.data], ticks.nbytes
    return RUNS, [ticks[starts].data, starts.astype(np.uint32).data], len(starts) * 12


def _decode_ticks(encoding: int, stored: memoryview, count: int) -> I64:
    """Return the ticks of each event; raises ValueError if they are not as many as the events."""
    if encoding == PLAIN:
        if len(stored) != count * 8:
            raise ValueError("there are too few or too many ticks")
        return np.frombuffer(stored, np.int64, count)
    runs = len(stored) // 12
    ticks = np.frombuffer(stored, np.int64, runs)
    starts = np.frombuffer(stored, np.uint32, runs, runs * 8).astype(np.int64)
    if len(stored) % 12 or not runs or starts[0] != 0 or starts[-1] >= count:
        raise ValueError("the runs do not begin at the first event")
    return np.repeat(ticks - starts, np.diff(starts, append=count)) + np.arange(count)


def _consecutive(ticks: I64) -> bool:
    return bool(ticks[-1] - ticks[0] == len(ticks) - 1)
