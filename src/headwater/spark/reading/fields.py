"""The fields of JSON or BSON data as columns of Arrow, parsed before they cross to the JVM. Needs no JVM.

A chunk of clean JSON goes through Arrow's own parser, as lines. What that does not take (one event in which a field has
another type is enough) is halved until the chunk is small, and then decoded event by event, by the rules of `values`:
both give the same. Data that cannot be parsed has no fields; a value that does not fit its type is null.

A column of the name `by.name` is the field `name` of the object `by`; a first part `data` only says that it is a field
of the data, where a column of the log has the name: `data.type`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.errors import Invalid
from headwater.format import events
from headwater.format.codec import codec
from headwater.spark.reading import values

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from headwater.format.events import EventBatch

Mode = Literal["permissive", "failfast"]
Where = Callable[[int], str]
"""Names the event in a row, for an error."""

EXACT_ROWS = 1024  # of a chunk that is not halved any more when it does not parse
CHUNK_BYTES_MAX = 64 * 1024 * 1024  # that are joined and parsed at once
_OPEN, _CLOSE = ord("{"), ord("}")


class _Object(msgspec.Struct):
    """Any object, of which nothing is kept."""


_objects = msgspec.json.Decoder(_Object).decode_lines
_decode_json = msgspec.json.Decoder(float_hook=Decimal).decode
_Failed = (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError)


def path_of(name: str) -> tuple[str, ...]:
    """Return where in the data a column of this name is."""
    parts = tuple(name.split("."))
    found = parts[1:] if parts[0] == "data" and len(parts) > 1 else parts
    if not all(found):
        raise Invalid(f"the field name {name!r} has an empty part", hint="separate parts with one dot, as in a.b")
    return found


def reader(schema: StructType, mode: Mode = "permissive") -> FieldReader:
    """What reads the fields that a schema names, which has no others. Raises Invalid for types that data cannot have.

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
    if content not in ("json", "bson"):
        return []
    found = (_json if content == "json" else _bson)(data.drop_null())
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
        self._parsers = [_Parser(group) for group in _apart(fields)] if all(map(_is_parsable, fields)) else []

    def of(self, batches: Sequence[EventBatch]) -> list[pa.ChunkedArray[Any]]:
        """The fields of all events of some batches, in order. One whose data is too large to be here has none."""
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
        if content not in ("json", "bson") or data.null_count == len(data):
            if self._strict and len(data):
                raise _failure(where(0), f"its data is {content}, which has no fields")
            return [pa.nulls(len(data), field.type) for field in self._fields]
        if data.null_count:
            return self._around_nulls(content, data, where)
        pieces = [
            self._exact(decode(part), lo, where) if found is None else found
            for lo, part, found, decode in self._pieces(content, data)
        ]
        return [pa.concat_arrays(list(chunks)) for chunks in zip(*pieces, strict=True)]

    def of_documents(self, documents: list[Any], where: Where = str) -> list[pa.Array[Any]]:
        """Return the fields of documents that were decoded before."""
        return self._exact(documents, 0, where)

    def _pieces(self, content: str, data: pa.BinaryArray) -> Iterator[tuple[int, Any, Any, Any]]:
        """Yield the data in parts, with what Arrow's parser has found in each, or with what decodes it."""
        if content == "bson" or not self._parsers:
            yield 0, data, None, _bson if content == "bson" else _json
            return
        waiting = [(0, data)]
        while waiting:
            lo, part = waiting.pop()
            found = self._quickly(part)
            half = len(part) // 2
            if found is None and len(part) > EXACT_ROWS:
                waiting += [(lo + half, part.slice(half)), (lo, part.slice(0, half))]
            else:
                yield lo, part, found, _json

    def _around_nulls(self, content: str, data: pa.BinaryArray, where: Where) -> list[pa.Array[Any]]:
        present: Any = data.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(present)
        if self._strict:
            raise _failure(where(int(np.flatnonzero(~present)[0])), "its data is too large to be parsed")
        found = self.columns(content, data.drop_null(), lambda row: where(int(rows[row])))
        places = pa.array(np.cumsum(present) - 1, mask=~present)
        return [column.take(places) for column in found]

    def _quickly(self, data: pa.BinaryArray) -> list[pa.Array[Any]] | None:
        """All fields by Arrow's parser; None where that does not take the data, or would not see that it is wrong."""
        lines = _lines(data) if data.nbytes <= CHUNK_BYTES_MAX else None
        if lines is None:
            return None
        found: dict[str, pa.Array[Any]] = {}
        try:
            for parser in self._parsers:
                found |= parser.parse(lines, len(data))
        except _Failed:
            return None
        return [found[name] for name in self.names]

    def _exact(self, documents: list[Any], lo: int, where: Where) -> list[pa.Array[Any]]:
        if self._strict:
            for row, document in enumerate(documents):
                if not isinstance(document, dict):
                    raise _failure(where(lo + row), "its data is not an object that can be parsed")
        columns = []
        for field, convert in zip(self._fields, self._converters, strict=True):
            row = 0
            found: list[Any] = [None] * len(documents)
            try:
                for row, value in enumerate(_at(documents, field.path)):
                    if value is not None:
                        found[row] = convert(value)
            except _FieldMismatch as error:
                raise _failure(where(lo + row), f"the field {field.name!r} {error}") from None
            columns.append(pa.array(found, field.type))
        return columns


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


def _json(data: Any) -> list[Any]:
    return [_attempt(_decode_json, each) for each in data.to_pylist()]


def _bson(data: Any) -> list[Any]:
    """The documents; None for what is none. All at once, if the length that each of them begins with is its own."""
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


def _at(documents: list[Any], path: tuple[str, ...]) -> Iterator[Any]:
    """What the path leads to in each document; None where it does not."""
    for document in documents:
        found = document
        for part in path:
            found = found.get(part) if isinstance(found, dict) else None
        yield found


def _buffers(data: Any) -> tuple[Any, Any]:
    """Return the places of an array of bytes, and the bytes that they are in."""
    _, offsets, content = data.buffers()
    places = np.frombuffer(offsets, np.int32)[data.offset : data.offset + len(data) + 1].astype(np.int64)
    return places, np.frombuffer(content or b"", np.uint8)


def _lines(data: Any) -> bytes | None:
    """Return all data with a newline behind each; None where that could be read as something else than it was.

    Each event begins with a brace and ends with one, so that nothing but the end of an object stands before a newline,
    and nothing but a beginning behind it: no two events make one object, whatever they are. Whether one of them makes
    two, or is no JSON, a decoder tells that builds nothing. Never give Arrow's parser anything else: a `null` outside
    of objects makes it write where it must not, which ends the process, at once or later.
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
    try:  # the parser does not look at the encoding
        pa.Array.from_buffers(pa.string(), 1, whole).validate(full=True)
    except pa.ArrowInvalid:
        return None
    try:
        return text if len(_objects(text)) == len(data) else None
    except (ValueError, RecursionError):  # that it is no JSON is a ValueError, too
        return None


def _braced(data: Any) -> bool:
    offsets, content = _buffers(data)
    if not len(data) or (np.diff(offsets) < 2).any():
        return False
    return bool((content[offsets[:-1]] == _OPEN).all() and (content[offsets[1:] - 1] == _CLOSE).all())


def _apart(fields: Sequence[_Field]) -> list[list[_Field]]:
    """Return the fields in groups, in none of which one lies within another: each can be read in one go."""
    groups: list[list[_Field]] = []
    for field in fields:
        for group in groups:
            if not any(_within(field.path, other.path) or _within(other.path, field.path) for other in group):
                group.append(field)
                break
        else:
            groups.append([field])
    return groups


def _within(path: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return path[: len(other)] == other


class _Parser:
    """Arrow's parser for fields of which none lies within another."""

    def __init__(self, fields: Sequence[_Field]) -> None:
        self._fields = fields
        tree: dict[str, Any] = {}
        for field in fields:
            place = tree
            for part in field.path[:-1]:
                place = place.setdefault(part, {})
            place[field.path[-1]] = _parsed_as(field.type)
        self._options = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(list(_tree_type(tree))), unexpected_field_behavior="ignore"
        )

    def parse(self, lines: bytes, rows: int) -> dict[str, pa.Array[Any]]:
        """Return each field by its name. Raises one of `_Failed`, or gives what `values` gives."""
        table = pyarrow.json.read_json(
            io.BytesIO(lines),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=self._options,
        )
        if table.num_rows != rows:
            raise ValueError("some data is several objects")
        return {field.name: self._found(table, field) for field in self._fields}

    @staticmethod
    def _found(table: pa.Table, field: _Field) -> Any:
        found: Any = table.column(field.path[0]).combine_chunks()
        for part in field.path[1:]:
            found = pc.struct_field(found, part)
        if "decimal" in str(field.type):
            found.validate(full=True)  # the parser does not count digits
        return _finished(found, field.type)


def _tree_type(tree: dict[str, Any]) -> pa.StructType:
    return pa.struct([(name, _tree_type(below) if isinstance(below, dict) else below) for name, below in tree.items()])


def _is_parsable(field: _Field) -> bool:
    """Return whether Arrow's parser has the type: it has no maps."""
    return "map<" not in str(field.type)


def _parsed_as(type: Any) -> Any:
    """Return the type that is asked of Arrow's parser: text for what it would read otherwise than we do."""
    types = pa.types
    if types.is_struct(type):
        return pa.struct([pa.field(member.name, _parsed_as(member.type)) for member in type])
    if types.is_list(type):
        return pa.list_(type.value_field.with_type(_parsed_as(type.value_type)))
    if types.is_timestamp(type) or types.is_date(type) or types.is_binary(type):
        return pa.string()
    return pa.float64() if types.is_float32(type) else type


def _finished(array: Any, type: Any) -> Any:
    """What was parsed, in the type that is wanted. Raises one of `_Failed` where a value does not fit."""
    types = pa.types
    if array.type == type:
        return array
    if types.is_struct(type):
        members = [_finished(array.field(number), member.type) for number, member in enumerate(type)]
        return pa.StructArray.from_arrays(members, fields=list(type), mask=array.is_null())
    if types.is_list(type):
        found = _finished(array.values, type.value_type)
        return pa.ListArray.from_arrays(array.offsets, found, type=type, mask=array.is_null())
    if types.is_timestamp(type):
        return values.instants(array, type.tz is not None)
    if types.is_binary(type):
        texts = array.to_pylist()
        return pa.array([None if text is None else values.from_base64(text) for text in texts], type)
    found = array.cast(type)
    if types.is_float32(type) and pc.any(pc.is_inf(found)).as_py():
        raise ValueError("a number is too large")
    return found
