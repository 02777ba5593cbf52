"""Batches as Arrow and back, without copying keys, data or meta. Needs the `arrow` extra."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from headwater.errors import Invalid, TooLarge, Unsupported
from headwater.event import UNIX_EPOCH_TICKS, Content, id_text
from headwater.format.batch import BLOB, DATA, KEY, META, TYPE, Batch
from headwater.format.column import I64, Column

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "time",
    "id",
    "type",
    "key",
    "data",
    "content",
    "meta",
    "ticks",
    "data_bytes",
)
_KINDS = {"key": KEY, "data": DATA, "meta": META}
DEFAULT_COLUMNS = ("partition", "offset", "time", "type", "key", "data", "meta")
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode
APPEND_BYTES = 8 * 1024 * 1024  # how much of a table goes into one batch
_I32_MAX = 2**31 - 1  # of offsets in an array
_CHUNK = 65_536  # constants are made once for this many events, and sliced
_HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)
_ID_CHARACTERS = 36
# Where an id has the digits of its ticks, and the bits of each: eight, four, and three behind the version.
_ID_DIGITS = [*zip((*range(8), *range(9, 13), *range(15, 18)), range(56, -1, -4), strict=True)]


@cache
def pyarrow() -> Any:
    """Return the module, imported where it is first needed."""
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise Unsupported("Arrow needs pyarrow", hint="pip install 'headwater[arrow]'") from error


def schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of these columns; raises Invalid for an unknown one."""
    return _schema(tuple(columns))


@lru_cache(maxsize=64)
def _schema(columns: tuple[str, ...]) -> pa.Schema:
    pa = pyarrow()
    types = {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "time": pa.timestamp("us", "UTC"),
        "id": pa.string(),
        "type": pa.dictionary(pa.int32(), pa.string()),
        "key": pa.binary(),
        "data": pa.binary(),
        "content": pa.string(),
        "meta": pa.binary(),
        "ticks": pa.int64(),
        "data_bytes": pa.int64(),
    }
    unknown = [column for column in columns if column not in types]
    if unknown:
        raise Invalid(f"there is no column {unknown[0]!r}", hint=f"columns are {', '.join(COLUMNS)}")
    return pa.schema([(column, types[column]) for column in columns])  # type: ignore[no-any-return]  # a lazy module


class BatchSlice(NamedTuple):
    """The events `lo` to `hi` of a stored batch."""

    batch: Batch
    lo: int
    hi: int


def chunks(
    pieces: Sequence[BatchSlice], schema: pa.Schema, topic: str, partition: int, node: int
) -> list[list[pa.Array[Any]]]:
    """Return the chunks of each column over pieces of one partition: one per piece only where its bytes are stored.

    What is computed is made once for all pieces, because making an array costs more than filling it. A huge event has
    null data and its size in `data_bytes`.
    """
    made = _Chunks(pieces, topic, partition, node)
    return [made.column(field) for field in schema]


class _Chunks:
    def __init__(self, pieces: Sequence[BatchSlice], topic: str, partition: int, node: int) -> None:
        self._pieces = pieces
        self._node = node
        self._constants = {"topic": topic, "partition": partition}
        self._counts = np.array([piece.hi - piece.lo for piece in pieces], np.int64)
        self._total = int(self._counts.sum())
        self._ticks: I64 | None = None

    def column(self, field: Any) -> list[Any]:  # noqa: PLR0911  # one for each column
        name, type = field.name, field.type
        if name in _KINDS:
            return self._stored(name)
        if name == "type":
            return self._types()
        if name == "content":
            runs = groupby(self._pieces, key=lambda piece: piece.batch.content)
            counts = ((content, sum(piece.hi - piece.lo for piece in run)) for content, run in runs)
            return [chunk for content, count in counts for chunk in _repeated(content, type, count)]
        if name in self._constants:
            return _repeated(self._constants[name], type, self._total)
        if name == "id":
            return [ids(self._all_ticks(), self._node)]
        if name == "offset":
            starts = np.array([piece.batch.base_offset + piece.lo for piece in self._pieces], np.int64)
            return [_numbers(type, _ranges(starts, self._counts))]
        if name == "data_bytes":
            return [_numbers(type, np.concatenate([_data_bytes(batch)[lo:hi] for batch, lo, hi in self._pieces]))]
        ticks = self._all_ticks()
        return [_numbers(type, ticks if name == "ticks" else (ticks - UNIX_EPOCH_TICKS) // 10)]

    def _all_ticks(self) -> I64:
        if self._ticks is None:
            if any(piece.batch.has_own_ticks for piece in self._pieces):
                self._ticks = np.concatenate([batch.ticks()[lo:hi] for batch, lo, hi in self._pieces])
            else:
                starts = np.array([piece.batch.base_ticks + piece.lo for piece in self._pieces], np.int64)
                self._ticks = _ranges(starts, self._counts)
        return self._ticks

    def _stored(self, name: str) -> list[Any]:
        """Keys, data or meta: each piece points into its batch; where they are absent there is one run of nulls."""
        found: list[Any] = []
        absent = 0
        for batch, lo, hi in self._pieces:
            column = None if name == "data" and batch.flags & BLOB else batch.column(_KINDS[name])
            if column is None:
                absent += hi - lo
                continue
            if absent:
                found += _nulls(absent)
                absent = 0
            found.append(_binary(column, lo, hi))
        return found + _nulls(absent) if absent else found

    def _types(self) -> list[Any]:
        found: list[Any] = []
        for constant, run in groupby(self._pieces, key=_constant_type):
            if constant is None:
                found += [_coded_types(piece) for piece in run]
            else:
                for codes in _repeated(0, pyarrow().int32(), sum(piece.hi - piece.lo for piece in run)):
                    found.append(pyarrow().DictionaryArray.from_arrays(codes, _type_names(constant), safe=False))
        return found


def _constant_type(piece: BatchSlice) -> bytes | None:
    """Return the type that all events of a batch share; None if there are several."""
    column = piece.batch.column(TYPE)
    if column is None:
        return b""
    return bytes(column.data) if column.offsets is None else None


def _ranges(starts: I64, counts: I64) -> I64:
    """Return the numbers from each start on, as many as its count, one after the other."""
    if len(starts) == 1:
        return np.arange(starts[0], starts[0] + counts[0], dtype=np.int64)
    ends = np.cumsum(counts)
    if (starts[1:] == starts[:-1] + counts[:-1]).all():
        return np.arange(starts[0], starts[0] + ends[-1], dtype=np.int64)
    found: I64 = np.repeat(starts - ends + counts, counts) + np.arange(ends[-1])
    return found


def ids(ticks: I64, node: int) -> Any:
    """Return the ids of these ticks as text: all digits of one place at once."""
    texts = np.empty((len(ticks), _ID_CHARACTERS), np.uint8)
    texts[:] = np.frombuffer(id_text(0, node).encode(), np.uint8)
    for at, shift in _ID_DIGITS:
        texts[:, at] = _HEXADECIMAL[ticks >> shift & 15]
    offsets = np.arange(0, texts.size + 1, _ID_CHARACTERS, dtype=np.int32)
    return _strings(Column(len(ticks), texts.reshape(-1).data, offsets))


def indices(rows: I64) -> Any:
    """Numbers of rows, for `take`; they are not copied."""
    return _numbers(pyarrow().int64(), rows)


def _numbers(type: Any, values: Any) -> Any:
    pa = pyarrow()
    return pa.Array.from_buffers(type, len(values), [None, pa.py_buffer(values)])


def _data_bytes(batch: Batch) -> Any:
    """Return how long the data of each event is."""
    if batch.flags & BLOB:
        return np.array([batch.blob_reference()[0]], np.int64)
    column = batch.column(DATA)
    assert column is not None
    if column.offsets is None:
        return np.full(batch.count, len(column.data), np.int64)
    return np.diff(column.offsets).astype(np.int64)


def _repeated(value: Any, type: Any, count: int) -> list[Any]:
    """Arrays of one value, or of nulls, all cut from one that was made before."""
    chunk = _chunk_of(value, type)
    whole, rest = divmod(count, _CHUNK)
    return [chunk] * whole + ([chunk.slice(0, rest)] if rest else [])


@lru_cache(maxsize=256)
def _chunk_of(value: Any, type: Any) -> Any:
    pa = pyarrow()
    if value is None:
        return pa.nulls(_CHUNK, type)
    if isinstance(value, int):
        return _numbers(type, np.full(_CHUNK, value, np.int32 if type == pa.int32() else np.int64))
    return _copies(value.encode(), type, _CHUNK)


def _copies(value: bytes, type: Any, count: int) -> Any:
    """So many of one text or of one bytes. Arrow's own way to repeat a scalar would import pandas, if it is there."""
    pa = pyarrow()
    offsets = np.arange(count + 1, dtype=np.int64) * len(value)
    if offsets[-1] > _I32_MAX:
        raise TooLarge(f"{count} values of {len(value)} bytes are too large for one array")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(value * count)]
    return pa.Array.from_buffers(type, count, buffers)


def _nulls(count: int) -> list[Any]:
    return _repeated(None, pyarrow().binary(), count)


def _binary(column: Column, lo: int, hi: int) -> Any:
    pa = pyarrow()
    if column.offsets is None:
        value = bytes(column.data)
        if hi - lo > 1:
            return _copies(value, pa.binary(), hi - lo)
        column, lo, hi = Column(1, value, np.array([0, len(value)], np.int32)), 0, 1
    valid = None if column.valid is None else pa.py_buffer(column.valid)
    buffers = [valid, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), hi - lo, buffers, -1 if valid is not None else 0, lo)


def _coded_types(piece: BatchSlice) -> Any:
    """Return the types of a batch that has several."""
    column = piece.batch.column(TYPE)
    assert column is not None
    assert column.offsets is not None
    if column.codes is None:
        return _strings(column).slice(piece.lo, piece.hi - piece.lo).dictionary_encode()
    values = _strings(Column(len(column.offsets) - 1, column.data, column.offsets))
    codes = _numbers(pyarrow().int32(), column.codes[piece.lo : piece.hi].astype(np.int32))
    return pyarrow().DictionaryArray.from_arrays(codes, values, safe=False)


@lru_cache(maxsize=1024)
def _type_names(type: bytes) -> Any:
    return _strings(Column.of([type]))


def _strings(column: Column) -> Any:
    pa = pyarrow()
    buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.string(), column.count, buffers)


def columns_of(batch: pa.RecordBatch, content: Content | None) -> tuple[Content, dict[int, Column | None]]:
    """Return the columns of an Arrow batch (`data`, and maybe `key`, `type`, `meta`) as those of a log's batch."""
    names = batch.schema.names
    unknown = [name for name in names if name not in ("data", "key", "type", "meta")]
    if unknown:
        raise Invalid(
            f"unknown columns of an Arrow table: {', '.join(unknown)}",
            hint="columns are data, key, type and meta; drop or rename others",
        )
    said, data = data_of(batch, content)
    columns: dict[int, Column | None] = {
        TYPE: _type_column(batch.column("type")) if "type" in names else None,
        KEY: column_of(batch.column("key")) if "key" in names else None,
        DATA: data,
        META: _meta_column(batch.column("meta")) if "meta" in names else None,
    }
    return said, columns


def data_of(batch: pa.RecordBatch, content: Content | None) -> tuple[Content, Column | None]:
    """Return the column `data` of an Arrow batch, and its content: a column of text is text unless `content` is given.

    Raises Invalid if there is none, or if it has nulls.
    """
    pa = pyarrow()
    if "data" not in batch.schema.names:
        raise Invalid(
            f"an Arrow table needs a column 'data'; this one has {', '.join(batch.schema.names)}",
            hint="columns are data, key, type and meta; drop or rename others",
        )
    data = _decoded(batch.column("data"))
    if data.null_count:
        raise Invalid("data is null in some rows", hint="fill or filter them first")
    text = data.type in (pa.string(), pa.large_string(), pa.string_view())
    return content or ("text" if text else "bytes"), column_of(data)


def split(table: Any, events_max: int) -> list[Any]:
    """Return a table, or a record batch, in parts that each make a good batch of a log; none of them is empty."""
    pa = pyarrow()
    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    rows = max(1, min(events_max, APPEND_BYTES * whole.num_rows // max(1, whole.nbytes)))
    return [batch for batch in whole.to_batches(max_chunksize=rows) if batch.num_rows]


def values_of(array: Any) -> list[bytes | None]:
    """Return the values of an Arrow array of bytes or text."""
    column = column_of(array)
    return [None] * len(array) if column is None else column.values(0, len(array))


def _decoded(array: Any) -> Any:
    """Return an array without a dictionary."""
    return array.cast(array.type.value_type) if pyarrow().types.is_dictionary(array.type) else array


def _as_binary(array: Any) -> Any:
    """Return an array of bytes or text, without a dictionary, as bytes."""
    pa = pyarrow()
    if array.type == pa.string():
        array = array.view(pa.binary())  # a tenth of a cast's time
    elif array.type != pa.binary():
        kinds = pa.large_string(), pa.string_view(), pa.large_binary(), pa.binary_view()
        if array.type not in kinds and not pa.types.is_fixed_size_binary(array.type):
            raise Invalid(f"a column of {array.type} is not bytes or text", hint="cast it first")
        array = array.cast(pa.binary())
    return array


def column_of(array: Any) -> Column | None:
    """Return a plain column over the buffers of an Arrow array; None if all of it is null."""
    array = _decoded(array)
    if array.null_count == len(array):
        return None
    array = _as_binary(array)
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, array.offset + len(array) + 1)[array.offset :]
    first, last = int(offsets[0]), int(offsets[-1])
    data = memoryview(data_buffer or b"")[first:last]
    valid = None
    if array.null_count:
        valid = np.packbits(np.asarray(array.is_valid()), bitorder="little")
    return Column(len(array), data, offsets - np.int32(first) if first else offsets, None, valid)


def _type_column(array: Any) -> Column | None:
    """Return a column of few distinct values: they are looked at, the rows are not."""
    array = _decoded(array)
    if array.null_count == len(array):
        return None
    values = _as_binary(array)
    encoded = (values.fill_null(b"") if values.null_count else values).dictionary_encode()
    distinct = [value or b"" for value in values_of(encoded.dictionary)]
    try:
        for value in distinct:
            value.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"a type is not UTF-8: {error}") from error
    return Column.of_codes(distinct, np.asarray(encoded.indices))


def _meta_column(array: Any) -> Column | None:
    column = column_of(array)
    try:
        for value in column.values(0, len(array)) if column is not None else ():
            if value is not None:
                _decode_meta(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"meta is not a flat JSON object of strings: {error}") from error
    return column
