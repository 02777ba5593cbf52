"""Reads fields of JSON or BSON data as columns of Arrow, before they cross to the JVM. Needs no JVM.

Bytes and text that are a JSON object have fields, too.

A chunk of JSON is decoded at once by msgspec, which skips all fields that the schema does not name. If an event in it
does not parse, the chunk is halved until it is small, and its events are then decoded one by one. A column whose values
have one plain type goes to Arrow as it is; any other is converted value by value, by the rules of `values`. Data that
cannot be parsed has no fields; a value that does not fit its type is null.

A column of the name `by.name` is the field `name` of the object `by`; a first part `data` only says that it is a field
of the data, where a column of the log has the name: `data.type`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.errors import Invalid
from headwater.format import events
from headwater.format.codec import codec
from headwater.format.column import Column
from headwater.format.contents import may_be_json
from headwater.spark.reading import values

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from headwater.format.events import EventBatch

Mode = Literal["permissive", "failfast"]
Where = Callable[[int], str]
"""Names the event in a row, for an error."""

_Get = Callable[[str], Callable[[Any], Any]]
"""Makes the function that gets a field of the top level of a document."""

EXACT_ROWS = 1024  # of a chunk that is not halved any more when it does not parse
CHUNK_BYTES_MAX = 64 * 1024 * 1024  # that are joined and parsed at once
_OPEN, _CLOSE = ord("{"), ord("}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_Number = float | bool | str | list[Any] | dict[str, Any] | None
"""Any JSON, with every number as a float: the one type whose values would otherwise be made decimals first."""

_decode_json = msgspec.json.Decoder(float_hook=Decimal).decode


def path_of(name: str) -> tuple[str, ...]:
    """Return where in the data a column of this name is."""
    parts = tuple(name.split("."))
    found = parts[1:] if parts[0] == "data" and len(parts) > 1 else parts
    if not all(found):
        raise Invalid(f"the field name {name!r} has an empty part", hint="separate parts with one dot, as in a.b")
    return found


def reader(schema: StructType, mode: Mode = "permissive") -> FieldReader:
    """Return a reader of the fields that a schema names. Raises Invalid for types that data cannot have.

    With the mode `failfast`, an event whose data or field does not fit raises an error that names it.
    """
    found = to_arrow_schema(schema, timezone="UTC")
    for field in found:
        _check_nullable(field, field.name)
    return FieldReader([_Field(field.name, path_of(field.name), field.type) for field in found], mode)


def _check_nullable(field: Any, name: str) -> None:
    if not field.nullable:
        raise Invalid(f"the field {name!r} is declared NOT NULL", hint="omit NOT NULL: any event may lack a field")
    for member in field.type if pa.types.is_struct(field.type) else ():
        _check_nullable(member, f"{name}.{member.name}")


def documents(content: str, data: pa.BinaryArray) -> list[Any]:
    """Return the data of events as objects; without those that have none."""
    found = (_bson if content == "bson" else _json)(data.drop_null())
    return [document for document in found if isinstance(document, dict)]


class _Field(NamedTuple):
    name: str
    path: tuple[str, ...]
    type: Any


class FieldReader:
    """Reads the same fields again and again; from one thread at a time."""

    def __init__(self, fields: Sequence[_Field], mode: Mode) -> None:
        self.names = [field.name for field in fields]
        self._fields = fields
        self._strict = mode == "failfast"
        unfit = _refuse if self._strict else _drop
        self._converters = [values.converter(field.type, unfit) for field in fields]
        self._slots = {name: f"slot{number}" for number, name in enumerate({field.path[0]: None for field in fields})}
        self._decode = msgspec.json.Decoder(self._row_type(), float_hook=Decimal).decode_lines

    def of(self, batches: Sequence[EventBatch]) -> list[pa.ChunkedArray[Any]]:
        """Return the fields of all events of some batches, in order. Data that is too large to be here has none."""
        chunks: list[list[pa.Array[Any]]] = [[] for _ in self._fields]
        for content, group in groupby(batches, key=lambda batch: batch.piece.batch.content):
            run = list(group)
            data: Any = events.table(run, ["data"]).column("data").combine_chunks()
            found = self.columns(content, data, partial(_event, run))
            for column, more in zip(chunks, found, strict=True):
                column.append(more)
        return [pa.chunked_array(found, field.type) for found, field in zip(chunks, self._fields, strict=True)]

    def columns(self, content: str, data: pa.BinaryArray, where: Where = str) -> list[pa.Array[Any]]:
        """Return the fields of so many events, all of one content, each in the Arrow type that Spark expects."""
        present = _present(content, data)
        if not present.all():
            return self._of_present(content, data, present, where)
        if not len(data):
            return [pa.nulls(0, field.type) for field in self._fields]
        if content == "bson":
            return self.of_documents(_bson(data), where)
        pieces = [self._columns(rows, get, lo, where) for lo, rows, get in self._decoded(data)]
        return [pa.concat_arrays(list(chunks)) for chunks in zip(*pieces, strict=True)]

    def of_documents(self, documents: list[Any], where: Where = str) -> list[pa.Array[Any]]:
        """Return the fields of documents that were decoded before."""
        return self._columns(documents, _member, 0, where)

    def _row_type(self) -> type[msgspec.Struct]:
        """Return a type with the wanted fields of the top level, so that the decoder skips all others."""
        types: dict[str, Any] = dict.fromkeys(self._slots, _Number)
        for field in self._fields:
            if len(field.path) > 1 or not pa.types.is_floating(field.type):
                types[field.path[0]] = Any
        slots = [(slot, types[name], None) for name, slot in self._slots.items()]
        return msgspec.defstruct("_Row", slots, rename={slot: name for name, slot in self._slots.items()}, gc=False)

    def _decoded(self, data: pa.BinaryArray) -> Iterator[tuple[int, list[Any], _Get]]:
        """Yield the data in parts: the first row of each, its documents, and the function that gets a field of one."""
        waiting = [(0, data)]
        while waiting:
            lo, part = waiting.pop()
            rows = self._rows(part)
            if rows is not None:
                yield lo, rows, self._slot
            elif len(part) > EXACT_ROWS:
                half = len(part) // 2
                waiting += [(lo + half, part.slice(half)), (lo, part.slice(0, half))]
            else:
                yield lo, _json(part), _member

    def _rows(self, data: pa.BinaryArray) -> list[Any] | None:
        """Return all events, decoded at once; None if one of them may not be an object of valid JSON."""
        lines = _lines(data) if data.nbytes <= CHUNK_BYTES_MAX else None
        if lines is None:
            return None
        try:
            rows = self._decode(lines)
        except (ValueError, RecursionError):  # invalid JSON is a ValueError, too
            return None
        return rows if len(rows) == len(data) else None

    def _slot(self, name: str) -> Callable[[Any], Any]:
        return attrgetter(self._slots[name])

    def _of_present(self, content: str, data: pa.BinaryArray, present: Any, where: Where) -> list[pa.Array[Any]]:
        rows = np.flatnonzero(present)
        if self._strict:
            row = int(np.flatnonzero(~present)[0])
            why = f"{content}, but not a JSON object" if data[row].is_valid else "too large to be parsed"
            raise _failure(where(row), f"its data is {why}")
        found = self.columns(content, data.filter(pa.array(present)), lambda row: where(int(rows[row])))
        places = pa.array(np.cumsum(present) - 1, mask=~present)
        return [column.take(places) for column in found]

    def _columns(self, documents: list[Any], get: _Get, lo: int, where: Where) -> list[pa.Array[Any]]:
        """Return the fields of documents, the first of which is in row `lo`."""
        if self._strict and get is _member:
            for row, document in enumerate(documents):
                if not isinstance(document, dict):
                    raise _failure(where(lo + row), "its data is not an object that can be parsed")
        columns = []
        for field, convert in zip(self._fields, self._converters, strict=True):
            found = list(map(get(field.path[0]), documents))
            for part in field.path[1:]:
                found = list(map(_member(part), found))
            column = values.plain_array(found, field.type)
            columns.append(_converted(found, field, convert, lo, where) if column is None else column)
        return columns


def _member(name: str) -> Callable[[Any], Any]:
    return lambda value: value.get(name) if isinstance(value, dict) else None


def _converted(found: list[Any], field: _Field, convert: values.Convert, lo: int, where: Where) -> Any:
    row = 0
    try:
        for row, value in enumerate(found):
            if value is not None:
                found[row] = convert(value)
    except _FieldMismatch as error:
        raise _failure(where(lo + row), f"the field {field.name!r} {error}") from None
    return pa.array(found, field.type)


class _FieldMismatch(Exception):
    """A way out with the reason, which no caller sees."""


def _drop(_value: Any, _type: Any) -> None:
    return None


def _refuse(value: Any, type: Any) -> NoReturn:
    text = repr(value)
    raise _FieldMismatch(f"is {text if len(text) < 40 else text[:39] + '…'}, not {type}")


def _failure(where: str, why: str) -> Invalid:
    return Invalid(f"{where}: {why}", hint="in permissive mode, it is null", code="bad_data")


def _event(run: Sequence[EventBatch], row: int) -> str:
    for batch in run:
        if row < len(batch):
            return f"topic {batch.log.topic!r}, partition {batch.partition}, offset {int(batch.offsets()[row])}"
        row -= len(batch)
    raise AssertionError("there is no such row")


def _present(content: str, data: Any) -> Any:
    """Return which events may have fields: their data is here and, as bytes or text, begins like a JSON object."""
    present = data.is_valid().to_numpy(zero_copy_only=False)
    if content in ("bytes", "text") and len(data):
        places, content_bytes = _buffers(data)
        present &= may_be_json(Column(len(data), content_bytes.data, places), objects_only=True)
    return present


def _json(data: Any) -> list[Any]:
    return [_attempt(_decode_json, each) for each in data.to_pylist()]


def _bson(data: Any) -> list[Any]:
    """Return the documents, None for what is none: decoded at once if each begins with its own length."""
    found = codec()
    offsets, bytes_ = _buffers(data)
    lengths = np.diff(offsets)
    if len(data) and (lengths >= 5).all():
        starts = offsets[:-1, None] + np.arange(4)
        told = bytes_[starts].astype(np.int64) @ (1 << np.arange(0, 32, 8))
        if (told == lengths).all():
            try:
                return found.decode_all(bytes_[offsets[0] : offsets[-1]].tobytes(), found.options)
            except (found.damage, ValueError, TypeError, RecursionError):
                pass
    return [_attempt(lambda each: found.decode(each, found.options), each) for each in data.to_pylist()]


def _attempt(decode: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return decode(data)
    except Exception as error:
        if isinstance(error, (ValueError, TypeError, RecursionError, codec().damage)):
            return None
        raise


def _buffers(data: Any) -> tuple[Any, Any]:
    """Return the places of an array of bytes, and the bytes that they are in."""
    _, offsets, content = data.buffers()
    places = np.frombuffer(offsets, np.int32)[data.offset : data.offset + len(data) + 1].astype(np.int64)
    return places, np.frombuffer(content or b"", np.uint8)


def _lines(data: Any) -> bytes | None:
    """Return all data with a newline behind each; None where that could be read as something else than it was.

    Each event begins with a brace and ends with one, so that nothing but the end of an object stands before a newline,
    and nothing but a beginning behind it: no two events make one object, whatever they are. What is skipped while
    decoding must be text, too: it is valid UTF-8 and has no escaped surrogates, of which one alone would not be.
    """
    if not _braced(data):
        try:
            data = pc.ascii_trim(data.cast(pa.string()), " \t\r\n").cast(pa.binary())
        except pa.ArrowInvalid:
            return None
        if not _braced(data):
            return None
    joined: Any = pc.binary_join_element_wise(data, b"", b"\n")
    places, content = _buffers(joined)
    text: bytes = content[: places[-1]].tobytes()
    whole = [None, pa.py_buffer(places[[0, -1]].astype(np.int32).tobytes()), pa.py_buffer(text)]
    try:
        pa.Array.from_buffers(pa.string(), 1, whole).validate(full=True)
    except pa.ArrowInvalid:
        return None
    return None if _SURROGATE.search(text) else text


def _braced(data: Any) -> bool:
    offsets, content = _buffers(data)
    if not len(data) or (np.diff(offsets) < 2).any():
        return False
    return bool((content[offsets[:-1]] == _OPEN).all() and (content[offsets[1:] - 1] == _CLOSE).all())
