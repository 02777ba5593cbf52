"""Arrow (files and streams) and Parquet, out and in. Needs the `arrow` extra."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from typing import IO, Any

import msgspec
import numpy as np

from headwater.errors import Corrupt, Invalid
from headwater.event import CONTENTS, Content
from headwater.format import arrow, events
from headwater.format.batch import BLOB
from headwater.format.column import I64
from headwater.format.events import EventBatch
from headwater.transfer.chunks import ORIGINAL, ImportChunk, ImportOptions, ImportTarget, original, runs
from headwater.transfer.files import Format, Input, events_of

COLUMNS = ("partition", "offset", "time", "type", "key", "content", "data", "meta")
TOPIC = b"headwater.topic"  # in the metadata of the schema
CHUNK_EVENTS = 65_536
CHUNK_BYTES = 8 * 1024 * 1024
APPEND_ARROW_BYTES = 8 * 1024 * 1024  # above this `append_arrow` splits, and an error in the second part comes too late
FILE_MAGIC = b"ARROW1"
STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode
_log = logging.getLogger("headwater")


class TableWriter:
    """Writes record batches or row groups. The columns are those of `read_arrow`, with types as plain strings."""

    def __init__(self, out: IO[bytes], format: Format, topic: str) -> None:
        pa = arrow.pyarrow()
        fields = [pa.field(field.name, pa.string()) if field.name == "type" else field for field in _fields()]
        # Dictionaries that differ between batches do not fit into an Arrow file.
        self._schema = pa.schema(fields, {TOPIC: topic.encode()})
        if format == "parquet":
            parquet = _parquet()
            self._writer = parquet.ParquetWriter(out, self._schema, compression="zstd", write_page_checksum=True)
        else:
            self._writer = (_ipc().new_file if format == "arrow" else _ipc().new_stream)(out, self._schema)

    def write(self, group: list[EventBatch]) -> None:
        tables = []
        for is_blob, run in groupby(group, key=lambda batch: bool(batch.piece.batch.flags & BLOB)):
            if is_blob:
                tables += [_with_blob(batch) for batch in run]
            else:
                tables.append(events.table(run, COLUMNS))
        whole = arrow.pyarrow().concat_tables(tables).combine_chunks().cast(self._schema)
        self._writer.write_table(whole)

    def close(self) -> None:
        self._writer.close()


def _fields() -> Any:
    return arrow.schema(COLUMNS)


def _with_blob(batch: EventBatch) -> Any:
    """Return the table of a huge event, with its data."""
    (event,) = events_of(batch)
    data = arrow.pyarrow().array([event.data], arrow.pyarrow().binary())
    return events.table([batch], COLUMNS).set_column(COLUMNS.index("data"), "data", data)


def read_arrow(input: Input, wanted: ImportOptions) -> Iterator[ImportChunk]:
    """Yield the rows of an Arrow file or stream: which of them it is, its first bytes tell."""
    with _damage(input):
        is_file = False
        if input.seekable():
            begin = input.tell()
            is_file = input.read(len(FILE_MAGIC)) == FILE_MAGIC
            input.seek(begin)
        found = _of_file(input) if is_file else _of_stream(input)
        plan: TableColumns | None = None
        for batch in found:
            plan = plan or TableColumns(batch.schema, wanted)
            batch.validate(full=True)  # its buffers come from outside, and are used without a look at each offset
            yield from _chunks(batch, plan, wanted)


def read_parquet(input: Input, wanted: ImportOptions) -> Iterator[ImportChunk]:
    """The rows of a Parquet file, row group after row group, with the checksums of pages that have them verified."""
    if not input.seekable():
        raise Invalid("Parquet is read from its end, so it cannot be read from a pipe", hint="save it to a file first")
    with _damage(input):
        file = _parquet().ParquetFile(input, page_checksum_verification=True)
        plan = TableColumns(file.schema_arrow, wanted)
        for number in range(file.num_row_groups):
            about = file.metadata.row_group(number)
            rows = max(1, min(CHUNK_EVENTS, CHUNK_BYTES * about.num_rows // max(1, about.total_byte_size)))
            for batch in file.iter_batches(rows, row_groups=[number], columns=plan.used):
                yield from _chunks(batch, plan, wanted)


def _of_file(input: Input) -> Iterator[Any]:
    reader = _ipc().open_file(input)
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


def _of_stream(input: Input) -> Iterator[Any]:
    yield from _ipc().open_stream(input)
    if input.tail != STREAM_END:
        raise Corrupt(
            f"{input.name} ends at byte {input.position} without the end-of-stream marker of Arrow",
            hint="it may have been cut off between two batches",
            path=input.name,
            position=input.position,
            size=0,
        )


class TableColumns:
    """Which columns of a table are used for what, and which topic its schema names."""

    def __init__(self, schema: Any, wanted: ImportOptions) -> None:
        names = schema.names
        data = wanted.data_column or ("data" if "data" in names else "value")
        self.by_role = {"data": data}
        roles = ("key", "type") if wanted.data_column else ("key", "type", "content", "meta", "topic")
        for role in roles:
            given = {"key": wanted.key_column, "type": wanted.type_column}.get(role)
            name = given or role
            if name in names and name != data:
                self.by_role[role] = name
            elif given:
                raise Invalid(f"the table has no column {given!r}", hint=f"it has {', '.join(names)}")
        if data not in names:
            hint = f"it has {', '.join(names)}; name the one that holds the data"
            raise Invalid(f"the table has no column {wanted.data_column or 'data'!r}", hint=hint)
        if wanted.keep_times:
            self.by_role |= {name: name for name in ORIGINAL if name in names and name not in self.by_role.values()}
        self.used = list(dict.fromkeys(self.by_role.values()))
        self.topic = (schema.metadata or {}).get(TOPIC, b"").decode(errors="replace") or None
        left = [name for name in names if name not in self.used and name not in arrow.COLUMNS]
        if left:
            _log.warning("columns of the table that are not imported: %s", ", ".join(left))


def _chunks(batch: Any, plan: TableColumns, wanted: ImportOptions) -> Iterator[ImportChunk]:
    rows = max(1, min(CHUNK_EVENTS, CHUNK_BYTES * batch.num_rows // max(1, batch.nbytes)))
    for at in range(0, batch.num_rows, rows):
        yield _chunk(batch.slice(at, rows), plan, wanted)


class TableChunk:
    """Events as an Arrow batch with the columns of `append_arrow`. What is not a list holds for all of them."""

    def __init__(
        self, batch: Any, topic: str | list[str | None] | None, content: Content | list[Content], *, as_stored: bool
    ) -> None:
        self._batch = batch
        self._as_stored = as_stored  # they were exported, and so were stored before
        self._topic = topic
        self._content = content

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def runs(self) -> Iterator[tuple[str | None, Content, ImportChunk]]:
        return runs(self, self._topic, self._content)

    def part(self, lo: int, hi: int) -> TableChunk:
        topic = self._topic[lo:hi] if isinstance(self._topic, list) else self._topic
        content = self._content[lo:hi] if isinstance(self._content, list) else self._content
        return TableChunk(self._batch.slice(lo, hi - lo), topic, content, as_stored=self._as_stored)

    def sizes(self) -> I64:
        column = arrow.column_of(self._batch.column("data"))
        assert column is not None
        assert column.offsets is not None
        return np.diff(column.offsets).astype(np.int64)

    def fits(self) -> bool:
        return bool(self._batch.nbytes <= APPEND_ARROW_BYTES)

    def append(self, place: ImportTarget) -> None:
        options: dict[str, Any] = {"content": place.content, "durability": "os", "partition": place.partition}
        place.log.append_arrow(place.topic, self._batch, **options)

    def append_alone(self, place: ImportTarget) -> None:
        found = {name: arrow.values_of(self._batch.column(name))[0] for name in self._batch.schema.names}
        meta = found.get("meta")
        type = (found.get("type") or b"").decode()
        kept = type, found.get("key"), _decode_meta(meta) if meta else None
        place.append_one(found["data"] or b"", *kept, as_stored=self._as_stored)


def _chunk(batch: Any, plan: TableColumns, wanted: ImportOptions) -> TableChunk:
    columns = {role: batch.column(name) for role, name in plan.by_role.items()}
    data = columns["data"]
    if data.null_count:
        raise Invalid("data is null in some rows", hint="fill or filter them; a huge event has to be exported whole")
    if wanted.keep_times:
        columns["meta"] = _with_originals(columns, len(data))
    if "meta" in columns and columns["meta"].null_count == len(data):
        del columns["meta"]
    topic: Any = _texts(columns["topic"]) if "topic" in columns and wanted.by_topic else plan.topic
    kept = {role: columns[role] for role in ("data", "key", "type", "meta") if role in columns}
    table = arrow.pyarrow().RecordBatch.from_arrays(list(kept.values()), names=list(kept))
    as_stored = plan.topic is not None and "content" in columns
    return TableChunk(table, topic, _contents(columns, wanted), as_stored=as_stored)


def _with_originals(columns: dict[str, Any], count: int) -> Any:
    """Return a column of meta, with the times and places that the events had."""
    facts = {name: _texts(columns[name]) for name in ORIGINAL if name in columns}
    each = zip(*facts.values(), strict=True) if facts else iter([()] * count)
    metas = arrow.values_of(columns["meta"]) if "meta" in columns else [None] * count
    encoded = [
        msgspec.json.encode(original(_meta(meta), **dict(zip(facts, values, strict=True))))
        for meta, values in zip(metas, each, strict=True)
    ]
    return arrow.pyarrow().array(encoded, arrow.pyarrow().binary())


def _contents(columns: dict[str, Any], wanted: ImportOptions) -> Content | list[Content]:
    """Return what the table says, or the user, or, for a column of text, the column itself."""
    pa = arrow.pyarrow()
    if "content" in columns:
        contents: Any = _texts(columns["content"])
        distinct = set(contents)
        if not distinct <= set(CONTENTS):
            raise Invalid(f"a content is not one of {', '.join(CONTENTS)}", hint="name the columns to import")
        return contents[0] if len(distinct) == 1 else contents  # type: ignore[no-any-return]  # all are contents
    if wanted.content:
        return wanted.content
    type = columns["data"].type
    type = type.value_type if pa.types.is_dictionary(type) else type
    return "text" if type in (pa.string(), pa.large_string(), pa.string_view()) else "bytes"


def _meta(value: bytes | None) -> dict[str, str] | None:
    try:
        return None if value is None else _decode_meta(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"meta is not a flat JSON object of strings: {error}") from error


def _texts(array: Any) -> list[str]:
    """The values of a column as text: what is null is empty, what is no text is written as Python and ISO 8601 do."""
    pa = arrow.pyarrow()
    if pa.types.is_timestamp(array.type):
        moments: Iterable[Any] = array.cast(pa.timestamp("us", array.type.tz)).to_pylist()
        return ["" if moment is None else moment.isoformat().replace("+00:00", "Z") for moment in moments]
    if pa.types.is_integer(array.type):
        return ["" if number is None else str(number) for number in array.to_pylist()]
    values = arrow.values_of(array)
    try:
        known = {value: (value or b"").decode() for value in set(values)}
    except UnicodeDecodeError as error:
        raise Invalid(f"a type, a topic or a content is not UTF-8: {error}") from error
    return [known[value] for value in values]


@contextlib.contextmanager
def _damage(input: Input) -> Iterator[None]:
    """Raise Corrupt for what pyarrow cannot read, near the position up to which it was read."""
    pa = arrow.pyarrow()
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's own
        reason = " ".join(str(error).split())[:200]
        raise Corrupt(
            f"{input.name} is damaged, or of another format, near byte {input.position}: {reason}",
            path=input.name,
            position=input.position,
            size=0,
            reason=reason,
        ) from error


@cache
def _ipc() -> Any:
    arrow.pyarrow()  # says how to get it, where it is missing
    return importlib.import_module("pyarrow.ipc")


@cache
def _parquet() -> Any:
    arrow.pyarrow()
    return importlib.import_module("pyarrow.parquet")
