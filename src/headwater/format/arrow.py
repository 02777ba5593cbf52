"""Batches as Arrow and back, without copying keys, data or meta. Needs the `arrow` extra."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from headwater.errors import Invalid, Unsupported
from headwater.event import UNIX_EPOCH_TICKS, Content, id_of
from headwater.format.batch import BLOB, DATA, KEY, META, TYPE, Batch
from headwater.format.column import Column

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
_CHUNK = 65_536  # constants are made once for this many events, and sliced


@cache
def pyarrow() -> Any:
    """The module, imported where it is first needed."""
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise Unsupported("Arrow needs pyarrow", hint="pip install 'headwater[arrow]'") from error


def schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns; raises Invalid for an unknown one."""
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


def table(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """One table of all batches, which may be none."""
    return pyarrow().Table.from_batches(batches, schema)  # type: ignore[no-any-return]  # a lazy module


def record_batch(
    batch: Batch, lo: int, hi: int, schema: pa.Schema, topic: str, partition: int, node: int
) -> pa.RecordBatch:
    """The events `lo` to `hi` of a batch. A huge event has null data and its size in `data_bytes`."""
    pa = pyarrow()
    arrays = []
    for field in schema:
        name = field.name
        if name in _KINDS:
            column = None if name == "data" and batch.flags & BLOB else batch.column(_KINDS[name])
            arrays.append(_binary(column, lo, hi))
        elif name == "offset":
            offsets = np.arange(batch.base_offset + lo, batch.base_offset + hi, dtype=np.int64)
            arrays.append(_numbers(field.type, offsets))
        elif name == "time":
            arrays.append(_numbers(field.type, _micros(batch, lo, hi)))
        elif name == "type":
            arrays.append(_types(batch.column(TYPE), lo, hi))
        elif name == "ticks":
            arrays.append(_numbers(field.type, batch.ticks()[lo:hi]))
        elif name == "data_bytes":
            arrays.append(_numbers(field.type, _data_bytes(batch)[lo:hi]))
        elif name == "id":
            ids = [str(id_of(ticks, node)).encode() for ticks in batch.ticks()[lo:hi].tolist()]
            arrays.append(_strings(Column.of(ids)))
        else:
            values = {"partition": partition, "topic": topic, "content": batch.content}
            arrays.append(_repeated(values[name], field.type, hi - lo))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)  # type: ignore[no-any-return]  # a lazy module


def _numbers(type: Any, values: Any) -> Any:
    pa = pyarrow()
    return pa.Array.from_buffers(type, len(values), [None, pa.py_buffer(values)])


def _micros(batch: Batch, lo: int, hi: int) -> Any:
    """Microseconds since the Unix epoch, rounded down."""
    return (batch.ticks()[lo:hi] - UNIX_EPOCH_TICKS) // 10


def _data_bytes(batch: Batch) -> Any:
    """How long the data of each event is."""
    if batch.flags & BLOB:
        return np.array([batch.blob_reference()[0]], np.int64)
    column = batch.column(DATA)
    assert column is not None
    if column.offsets is None:
        return np.full(batch.count, len(column.data), np.int64)
    return np.diff(column.offsets).astype(np.int64)


def _repeated(value: Any, type: Any, count: int) -> Any:
    """An array of one value, or of nulls, cut from one that was made before."""
    if count <= _CHUNK:
        return _chunk_of(value, type).slice(0, count)
    pa = pyarrow()
    return pa.nulls(count, type) if value is None else pa.repeat(pa.scalar(value, type), count)


@lru_cache(maxsize=256)
def _chunk_of(value: Any, type: Any) -> Any:
    pa = pyarrow()
    return pa.nulls(_CHUNK, type) if value is None else pa.repeat(pa.scalar(value, type), _CHUNK)


def _binary(column: Column | None, lo: int, hi: int) -> Any:
    pa = pyarrow()
    if column is None:
        return _repeated(None, pa.binary(), hi - lo)
    if column.offsets is None:
        value = bytes(column.data)
        if hi - lo == 1:
            column = Column(1, column.data, np.array([0, len(value)], np.int32))
            lo, hi = 0, 1
        else:
            return pa.repeat(pa.scalar(value, pa.binary()), hi - lo)
    valid = None if column.valid is None else pa.py_buffer(column.valid)
    buffers = [valid, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), hi - lo, buffers, -1 if valid is not None else 0, lo)


def _types(column: Column | None, lo: int, hi: int) -> Any:
    pa = pyarrow()
    if column is None or column.offsets is None:
        values = _type_names(b"" if column is None else bytes(column.data))
        codes = _repeated(0, pa.int32(), hi - lo)
    elif column.codes is None:
        return _strings(column).slice(lo, hi - lo).dictionary_encode()
    else:
        values = _strings(Column(len(column.offsets) - 1, column.data, column.offsets))
        codes = _numbers(pa.int32(), column.codes[lo:hi].astype(np.int32))
    return pa.DictionaryArray.from_arrays(codes, values, safe=False)


@lru_cache(maxsize=1024)
def _type_names(type: bytes) -> Any:
    return _strings(Column.of([type]))


def _strings(column: Column) -> Any:
    pa = pyarrow()
    buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.string(), column.count, buffers)


def columns_of(batch: pa.RecordBatch, content: Content | None) -> tuple[Content, dict[int, Column | None]]:
    """The columns of an Arrow batch (`data`, and `key`, `type`, `meta` where there are) as those of a log's batch."""
    pa = pyarrow()
    names = batch.schema.names
    unknown = [name for name in names if name not in ("data", "key", "type", "meta")]
    if unknown or "data" not in names:
        raise Invalid(
            f"an Arrow table needs a column 'data', and has {', '.join(names)}",
            hint="columns are data, key, type and meta; drop or rename others",
        )
    data = _decoded(batch.column("data"))
    if data.null_count:
        raise Invalid("data is null in some rows", hint="fill or filter them first")
    columns: dict[int, Column | None] = {
        TYPE: _type_column(batch.column("type")) if "type" in names else None,
        KEY: _column(batch.column("key")) if "key" in names else None,
        DATA: _column(data),
        META: _meta_column(batch.column("meta")) if "meta" in names else None,
    }
    text = data.type in (pa.string(), pa.large_string(), pa.string_view())
    return content or ("text" if text else "bytes"), columns


def values_of(array: Any) -> list[bytes | None]:
    """The values of an Arrow array of bytes or text."""
    column = _column(array)
    return [None] * len(array) if column is None else column.values(0, len(array))


def _decoded(array: Any) -> Any:
    """An array without a dictionary."""
    return array.cast(array.type.value_type) if pyarrow().types.is_dictionary(array.type) else array


def _column(array: Any) -> Column | None:
    """A plain column over the buffers of an Arrow array; None if all of it is null."""
    pa = pyarrow()
    array = _decoded(array)
    if array.null_count == len(array):
        return None
    if array.type != pa.binary():
        kinds = pa.string(), pa.large_string(), pa.string_view(), pa.large_binary(), pa.binary_view()
        if array.type not in kinds and not pa.types.is_fixed_size_binary(array.type):
            raise Invalid(f"a column of {array.type} is not bytes or text", hint="cast it first")
        array = array.cast(pa.binary())
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    data = memoryview(data_buffer or b"")[first:last]
    valid = None
    if array.null_count:
        valid = np.packbits(np.asarray(array.is_valid()), bitorder="little")
    return Column(len(array), data, offsets - np.int32(first) if first else offsets, None, valid)


def _type_column(array: Any) -> Column | None:
    values = [value or b"" for value in values_of(array)]
    try:
        for value in set(values):
            value.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"a type is not UTF-8: {error}") from error
    return Column.of_repeated(values)


def _meta_column(array: Any) -> Column | None:
    column = _column(array)
    try:
        for value in column.values(0, len(array)) if column is not None else ():
            if value is not None:
                _decode_meta(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"meta is not a flat JSON object of strings: {error}") from error
    return column
