"""The columns of a batch: many byte strings in Arrow's layout (docs/FORMAT.md, "Batch", "Encodings").

A `Column` is made from Python values, from Arrow buffers or from stored bytes, and never copies what it is
given. It is constant (one value for all), plain (offsets and bytes) or a dictionary (values and codes).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from headwater.errors import Corrupt, Unsupported
from headwater.limits import BATCH_BYTES_CEILING

Bytes = bytes | memoryview
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

CONSTANT, PLAIN, DICTIONARY = 0, 1, 2
NULLS, ZSTD = 0x10, 0x20
DICTIONARY_MAX = 65_535


class Column:
    """`count` byte strings. `offsets is None`: constant. `codes is not None`: dictionary. Else plain."""

    __slots__ = ("codes", "count", "data", "offsets", "valid")

    def __init__(
        self,
        count: int,
        data: Bytes,
        offsets: I32 | None = None,
        codes: npt.NDArray[Any] | None = None,
        valid: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        self.count = count
        self.data = data
        self.offsets = offsets
        self.codes = codes
        self.valid = valid

    @classmethod
    def of(cls, values: Sequence[bytes]) -> Column:
        """Return a plain column of byte strings."""
        return cls(len(values), b"".join(values), _offsets(np.fromiter(map(len, values), np.int64, len(values))))

    @classmethod
    def of_optional(cls, values: Sequence[bytes | None]) -> Column | None:
        """Return a plain column in which None is null; None if all of them are."""
        values = values if type(values) is list else list(values)  # of users: `count` may mean something else
        absent = values.count(None)
        if absent == len(values):
            return None
        if not absent:
            return cls.of(values)  # type: ignore[arg-type]  # none of them is None
        present = np.fromiter((value is not None for value in values), np.bool_, len(values))
        column = cls.of([value or b"" for value in values])
        column.valid = np.packbits(present, bitorder="little")
        return column

    @classmethod
    def of_repeated(cls, values: Sequence[bytes]) -> Column | None:
        """Return a column of few distinct values: constant, else a dictionary, else plain. None if all are empty."""
        codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
        if len(codes) == 1:
            value = next(iter(codes))
            return cls(len(values), value) if value else None
        if len(codes) > DICTIONARY_MAX:
            return cls.of(values)
        width = np.uint8 if len(codes) <= 256 else np.uint16
        return cls.of_codes(list(codes), np.fromiter(map(codes.__getitem__, values), width, len(values)))

    @classmethod
    def of_codes(cls, distinct: Sequence[bytes], codes: npt.NDArray[Any]) -> Column | None:
        """Like `of_repeated`, from the distinct values and which of them each value is."""
        if len(distinct) == 1:
            return cls(len(codes), distinct[0]) if distinct[0] else None
        if len(distinct) > DICTIONARY_MAX:
            return cls.of([distinct[code] for code in codes.tolist()])
        values = cls.of(distinct)
        width = np.uint8 if len(distinct) <= 256 else np.uint16
        return cls(len(codes), values.data, values.offsets, codes.astype(width, copy=False))

    def encode(self) -> tuple[int, list[Any], int]:
        """Return the encoding, the buffers and their size in bytes."""
        if self.offsets is None or (self.count == 1 and self.valid is None and self.codes is None):
            return CONSTANT, [self.data], len(self.data)
        size = self.offsets.nbytes + len(self.data)
        if self.codes is not None:
            k = np.array([len(self.offsets) - 1], np.uint32)
            return (
                DICTIONARY,
                [k.data, self.offsets.data, self.codes.data, self.data],
                size + 4 + self.codes.nbytes,
            )
        if self.valid is not None:
            valid = self.valid.tobytes()
            valid += bytes(-len(valid) % 4)
            return PLAIN | NULLS, [valid, self.offsets.data, self.data], size + len(valid)
        return PLAIN, [self.offsets.data, self.data], size

    @classmethod
    def decode(cls, encoding: int, stored: memoryview, count: int) -> Column:
        """Point into the bytes of a stored column, whose checksum the caller has verified."""
        if encoding & ZSTD:
            stored = memoryview(_decompress(stored))
        layout = encoding & 0x0F
        if encoding & ~(0x0F | NULLS | ZSTD) or layout > DICTIONARY or (encoding & NULLS and layout != PLAIN):
            raise Unsupported(f"column encoding {encoding:#04x} is unknown", hint="upgrade headwater to read this log")
        try:
            if layout == CONSTANT:
                return cls(count, stored)
            if layout == DICTIONARY:
                k = int.from_bytes(stored[:4], "little")
                offsets = np.frombuffer(stored, np.int32, k + 1, 4)
                at = 8 + 4 * k
                codes = np.frombuffer(stored, np.uint8 if k <= 256 else np.uint16, count, at)
                return cls(count, stored[at + codes.nbytes :], offsets, codes)
            valid = None
            at = 0
            if encoding & NULLS:
                valid = np.frombuffer(stored, np.uint8, -(-count // 8))
                at = -(-len(valid) // 4) * 4
            offsets = np.frombuffer(stored, np.int32, count + 1, at)
            return cls(count, stored[at + offsets.nbytes :], offsets, None, valid)
        except ValueError as error:
            raise Corrupt(f"a column of {len(stored)} bytes cannot hold {count} values") from error

    def validate(self) -> None:
        """Check offsets and codes, as is due for bytes that this program did not write."""
        if self.offsets is None:
            return
        offsets = self.offsets
        if offsets[0] != 0 or offsets[-1] != len(self.data) or (offsets[1:] < offsets[:-1]).any():
            raise Corrupt("the offsets of a column do not fit its bytes")
        if self.codes is not None and self.count and int(self.codes.max()) >= len(offsets) - 1:
            raise Corrupt("a code of a column is outside its dictionary")

    def distinct(self) -> list[bytes]:
        """Return the values, each of a dictionary's or of a constant once."""
        size = 1 if self.offsets is None else len(self.offsets) - 1
        return [value or b"" for value in Column(size, self.data, self.offsets).values(0, size)]

    def present(self) -> Bools:
        """Return which values are not null."""
        if self.valid is None:
            return np.ones(self.count, np.bool_)
        return np.unpackbits(self.valid, count=self.count, bitorder="little").view(np.bool_)

    def values(self, lo: int, hi: int) -> list[bytes | None]:
        """Return the values of the events `lo` to `hi` of the batch."""
        if self.offsets is None:
            return [bytes(self.data)] * (hi - lo)
        if self.codes is not None:
            distinct = Column(len(self.offsets) - 1, self.data, self.offsets).values(0, len(self.offsets) - 1)
            return list(map(distinct.__getitem__, self.codes[lo:hi].tolist()))
        first = int(self.offsets[lo])
        raw = bytes(self.data[first : int(self.offsets[hi])])
        at = (self.offsets[lo : hi + 1] - first).tolist() if first else self.offsets[lo : hi + 1].tolist()
        found: list[bytes | None] = [raw[a:b] for a, b in pairwise(at)]
        if self.valid is not None:
            for i in np.flatnonzero(~self.present()[lo:hi]).tolist():
                found[i] = None
        return found

    def take(self, rows: I64) -> list[bytes | None]:
        """Return the values of some events of the batch."""
        if self.offsets is None:
            return [bytes(self.data)] * len(rows)
        at = rows if self.codes is None else self.codes[rows]
        starts, ends = self.offsets[at].tolist(), self.offsets[1:][at].tolist()
        found: list[bytes | None] = [bytes(self.data[a:b]) for a, b in zip(starts, ends, strict=True)]
        if self.valid is not None:
            present = self.present()[rows].tolist()
            found = [value if there else None for value, there in zip(found, present, strict=True)]
        return found

    def pick(self, rows: I64) -> Column | None:
        """Return a column of some of the values; None if all of those are null."""
        if self.offsets is None:
            return Column(len(rows), self.data)
        if self.codes is not None:
            return Column.of_repeated([value or b"" for value in self.take(rows)])
        return Column.of_optional(self.take(rows))

    def slice(self, lo: int, hi: int) -> Column:
        """Return a column of the values of the events `lo` to `hi`; bytes are not copied."""
        if self.offsets is None:
            return Column(hi - lo, self.data)
        if self.codes is not None:
            return Column(hi - lo, self.data, self.offsets, self.codes[lo:hi])
        valid = None if self.valid is None else np.packbits(self.present()[lo:hi], bitorder="little")
        offsets = self.offsets[lo : hi + 1]
        return Column(hi - lo, self.data[offsets[0] : offsets[-1]], offsets - offsets[0], None, valid)

    def equals(self, value: bytes) -> Bools:
        """Return which values equal `value`, by their lengths first."""
        if self.offsets is None:
            return np.full(self.count, bytes(self.data) == value)
        if self.codes is not None:
            distinct = Column(len(self.offsets) - 1, self.data, self.offsets).equals(value)
            mask: Bools = distinct[self.codes]
            return mask
        mask = self.offsets[1:] - self.offsets[:-1] == len(value)
        if self.valid is not None:
            mask &= self.present()
        return self._of_equal_bytes(value, mask) if value and mask.any() else mask

    def _of_equal_bytes(self, value: bytes, mask: Bools) -> Bools:
        """Return which of the values in the mask, which are as long as `value`, are equal to it.

        Word by word, each time only where all before were equal; the last word overlaps the one before it.
        """
        assert self.offsets is not None
        length = len(value)
        width = next(width for width in (8, 4, 2, 1) if width <= length)
        places = [*range(0, length - width, width), length - width]
        rows: I64 | None = None
        for at in places:
            word = int.from_bytes(value[at : at + width], "little")
            if rows is not None:
                words = _words(self.data, width)[self.offsets[rows].astype(np.int64) + at]
                rows = rows[words == word]
            elif mask.all():  # keys of one length are usual: their first words are evenly spaced
                rows = np.flatnonzero(np.ndarray((self.count,), f"<u{width}", self.data, 0, (length,)) == word)
            else:
                rows = np.flatnonzero(mask)
                rows = rows[_words(self.data, width)[self.offsets[rows].astype(np.int64)] == word]
            if not len(rows):
                break
        found = np.zeros(self.count, np.bool_)
        found[rows] = True
        return found

    def bytes_of(self) -> int:
        """Return bytes that the values take; a value that all share counts once."""
        return len(self.data)


def concat(columns: Sequence[Column | None], counts: Sequence[int]) -> Column | None:
    """Return one plain column of all values in order, where None stands for `count` nulls. None if all are."""
    if all(column is None for column in columns):
        return None
    if any(column is None or column.valid is not None for column in columns):
        values: list[bytes | None] = []
        for column, count in zip(columns, counts, strict=True):
            values += [None] * count if column is None else column.values(0, count)
        return Column.of_optional(values)
    some = [column for column in columns if column is not None]
    if all(column.count == 1 for column in some):
        return Column.of(
            [bytes(column.data) if column.offsets is None else column.values(0, 1)[0] or b"" for column in some]
        )
    plain = [column if column.offsets is not None and column.codes is None else expand(column) for column in some]
    lengths = [np.diff(column.offsets) for column in plain if column.offsets is not None]
    return Column(sum(counts), b"".join([column.data for column in plain]), _offsets(np.concatenate(lengths)))


def concat_repeated(columns: Sequence[Column | None], counts: Sequence[int]) -> Column | None:
    """Like `concat`, for few distinct values, where None stands for empty ones."""
    found: dict[bytes, int] = {}
    codes: list[npt.NDArray[np.int64]] = []
    for column, count in zip(columns, counts, strict=True):
        if column is None or column.offsets is None:
            value = b"" if column is None else bytes(column.data)
            codes.append(np.full(count, found.setdefault(value, len(found))))
        else:
            size = len(column.offsets) - 1
            distinct = Column(size, column.data, column.offsets).values(0, size)
            mapped = np.array([found.setdefault(value or b"", len(found)) for value in distinct], np.int64)
            codes.append(mapped if column.codes is None else mapped[column.codes])
    total = sum(counts)
    if len(found) == 1:
        value = next(iter(found))
        return Column(total, value) if value else None
    values = Column.of(list(found))
    merged = np.concatenate(codes)
    if len(found) > DICTIONARY_MAX:
        return Column.of([value or b"" for value in values.take(merged)])
    width = np.uint8 if len(found) <= 256 else np.uint16
    return Column(total, values.data, values.offsets, merged.astype(width))


def expand(column: Column) -> Column:
    """Return the same values as a plain column."""
    return Column.of([value or b"" for value in column.values(0, column.count)])


def _offsets(lengths: npt.NDArray[Any]) -> I32:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > BATCH_BYTES_CEILING:
        raise AssertionError("a column above the ceiling must be refused or split before it is built")
    return offsets.astype(np.int32)


def _words(data: Bytes, width: int) -> npt.NDArray[Any]:
    """Return the number of so many bytes that begins at each position."""
    return np.ndarray((len(data) - width + 1,), f"<u{width}", data, 0, (1,))


def compress(buffers: list[Any]) -> bytes:
    """Return one zstd frame, with its content size, of the buffers."""
    frame: bytes = _zstd().ZstdCompressor(level=3).compress(b"".join(buffers))
    return frame


def bytes_of_frame(frame: memoryview) -> int:
    """Return how many bytes a zstd frame claims to hold.

    Raises Corrupt if it does not say so, or more than any column has.
    """
    zstd = _zstd()
    try:
        size: int = zstd.frame_content_size(frame)
    except zstd.ZstdError as error:
        raise Corrupt(f"a compressed column does not decompress: {error}") from error
    if not 0 <= size <= BATCH_BYTES_CEILING:
        raise Corrupt(f"a compressed column claims {size} bytes")
    return size


def _decompress(frame: memoryview) -> bytes:
    size = bytes_of_frame(frame)
    zstd = _zstd()
    try:
        raw: bytes = zstd.ZstdDecompressor().decompress(frame, max_output_size=max(size, 1))
    except zstd.ZstdError as error:
        raise Corrupt(f"a compressed column does not decompress: {error}") from error
    return raw


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise Unsupported("this topic is compressed with zstd", hint="pip install 'headwater[zstd]'") from error
    return zstandard
