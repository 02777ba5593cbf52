"""Arrow's IPC stream, out and in. Needs the `arrow` extra.

    encode(batches, cut=None, columns=None) -> Iterator[bytes]    a stream, in pieces; valid also for no events
    parse(body, limits, events_max) -> list[Parsed]               the rows of a stream, in parts of a batch each
    look(body, limits, events_max) -> Sent                        the same in two steps: may they be more than was sent?

Out, the columns are those of `read_arrow`, but that types are plain strings: dictionaries that change within a stream
are not understood everywhere. A huge event has null data, and its size in `data_bytes`, if that is asked for.

In, the stream may be compressed, and columns may be dictionaries or views: each may claim far more than was sent. What
it comes to is added up before it is made. Bytes only; safe from any thread.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from struct import Struct, error
from typing import Any

import numpy as np

from headwater.errors import HeadwaterError, Invalid, TooLarge
from headwater.event import CONTENTS, Content
from headwater.format import arrow, events, given
from headwater.format.column import I64
from headwater.format.events import EventBatch
from headwater.limits import Limits
from headwater.server.wire.decoding import ParsedEvents, too_long
from headwater.server.wire.encodings import slices
from headwater.server.wire.pieces import Cut, cut_off, joined, parted, size_of

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
GROUP_BYTES = 256 * 1024  # of one record batch: enough to vectorise, and little for a slow client to hold back
CONTENT_RUNS_MAX = 1000  # each is a batch of its own in the log
PART_BYTES = 8 * 1024 * 1024  # what is appended as one batch
JOINED_EVENTS = 16_384  # of record batches that are taken together, if each has fewer
MESSAGES_MAX = 10_000  # of one stream: each costs, however little it holds
WORK = 8  # times `batch_bytes_max`: what all batches together may have of dictionaries, which are looked at with each
_COLUMNS = ("data", "key", "type", "content", "meta")
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


# Out


def encode(
    batches: Iterable[EventBatch], cut: Cut | None = None, columns: Sequence[str] | None = None
) -> Iterator[bytes]:
    """Yield the stream of batches, in pieces. Raises Invalid for a column that there is not."""
    pa = arrow.pyarrow()
    names = list(columns or arrow.DEFAULT_COLUMNS)
    if len(set(names)) < len(names):
        raise Invalid("duplicate column", code="bad_parameter")
    schema = pa.schema(
        [pa.field(field.name, pa.string()) if field.name == "type" else field for field in arrow.schema(names)]
    )

    def pieces() -> Iterator[bytes]:
        yield schema.serialize().to_pybytes()
        for group in _groups(part for batch in cut_off(batches, cut) for part in parted(batch)):
            key = ("arrow", *names, group[0].log.node, group[0].ticks()[0], group[-1].ticks()[-1])
            if sum(map(size_of, group)) > 2 * GROUP_BYTES:
                yield from slices(key, partial(_serialized, group, names, schema))
            else:
                yield _serialized(group, names, schema)
        yield _STREAM_END

    return joined(pieces())


def _serialized(group: list[EventBatch], names: list[str], schema: Any) -> bytes:
    """Return the record batch of events."""
    whole = events.table(group, names).combine_chunks().cast(schema)
    return b"".join(batch.serialize().to_pybytes() for batch in whole.to_batches())


def _groups(parts: Iterable[EventBatch]) -> Iterator[list[EventBatch]]:
    """Neighbours together, up to some bytes: a record batch for each costs more than its rows."""
    group: list[EventBatch] = []
    size = 0
    for part in parts:
        more = size_of(part)
        if group and size + more > GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(part)
        size += more
    if group:
        yield group


# In


def parse(body: bytes, limits: Limits, events_max: int) -> list[ParsedEvents]:
    """Return the rows of a stream, in order, in parts of one content that fit one batch each; none for no rows.

    Raises Invalid for what is no stream with the columns `data` and, if there are, `key`, `type`, `content` and `meta`,
    and TooLarge for more than `events_max` rows, or more bytes than `batch_bytes_max`, however they are packed.
    """
    return look(body, limits, events_max).parts()


def look(body: bytes, limits: Limits, events_max: int) -> ArrowBody:
    """Return the description of a stream; raises as `parse` does."""
    budget = _Budget(limits, events_max)
    with _refusing():
        _look_at_messages(body, budget)
        reader = _ipc().open_stream(arrow.pyarrow().py_buffer(body))
        _check_schema(reader.schema)
        grows = budget.bytes > len(body) or any(_names_values(field.type) for field in reader.schema)
    return ArrowBody(reader, limits, events_max, grows=grows)


class ArrowBody:
    """An inspected stream. `grows` means that its rows may take more memory than was sent."""

    def __init__(self, reader: Any, limits: Limits, events_max: int, *, grows: bool) -> None:
        self.grows = grows
        self._reader = reader
        self._limits = limits
        self._events_max = events_max

    def parts(self) -> list[ParsedEvents]:
        """Return its rows, once."""
        parts: list[ParsedEvents] = []
        rest = _Budget(self._limits, self._events_max)
        with _refusing():
            for batch in self._joined(rest):
                for content, some in _by_content(batch):
                    parts += _parts(some, content, self._limits)
        return parts

    def _joined(self, rest: _Budget) -> Iterator[Any]:
        """Yield the batches that have rows, small ones together: each that is appended costs, however few it has."""
        run: list[Any] = []
        rows = 0
        plain = not any(_names_values(field.type) for field in self._reader.schema)
        for batch in self._reader:
            if not batch.num_rows:
                continue
            batch.validate(full=True)  # its buffers are used without a look at each offset
            rest.add(batch.num_rows, sum(_bytes_of(column) for column in batch.columns))
            run.append(batch)
            rows += batch.num_rows
            if rows >= JOINED_EVENTS or not plain:
                yield from _join(run)
                run, rows = [], 0
        yield from _join(run)


def _join(batches: list[Any]) -> list[Any]:
    if len(batches) < 2:
        return batches
    joined: list[Any] = arrow.pyarrow().Table.from_batches(batches).combine_chunks().to_batches()
    return joined


class _Budget:
    """The limits of a stream. Every claimed size is added here before memory is allocated for it."""

    def __init__(self, limits: Limits, events_max: int) -> None:
        self._limits = limits
        self._events_max = events_max
        self._events = 0
        self._messages = 0
        self._work = 0
        self.bytes = 0

    def work(self, size: int) -> None:
        """A message comes, for which dictionaries of this size are looked at: again and again, with each."""
        self._messages += 1
        self._work += size
        most = WORK * self._limits.batch_bytes_max
        if self._messages > MESSAGES_MAX or self._work > most:
            raise TooLarge(
                f"the stream has at least {self._messages} messages; the limit is {MESSAGES_MAX}"
                if self._messages > MESSAGES_MAX
                else f"the dictionaries of the stream, counted with each batch, have more than {most} bytes",
                hint="write larger record batches",
                code="too_many_batches",
            )

    def add(self, count: int, size: int) -> None:
        self._events += max(count, 0)
        self.bytes += max(size, 0)
        if self._events > self._events_max:
            raise TooLarge(
                f"the stream has at least {self._events} rows; the limit is {self._events_max}",
                hint="send them in several requests",
                limit="arrow_events_max",
                maximum=self._events_max,
                size=self._events,
            )
        if self.bytes > 2 * self._limits.batch_bytes_max:  # offsets and validity are among them
            raise too_long(self.bytes, self._limits)


def _look_at_messages(body: bytes, budget: _Budget) -> None:
    """Add up what the messages of a stream claim to hold: rows, and the bytes of their buffers, decompressed."""
    pa = arrow.pyarrow()
    messages = _ipc().MessageReader.open_stream(pa.py_buffer(body))
    dictionaries: dict[int, int] = {}  # the size of each that holds now
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return
        if message.type in ("record batch", "dictionary"):
            metadata = _FlatTable.root(memoryview(message.metadata))
            header = metadata.table(2)
            batch = header and header.table(1) if message.type == "dictionary" else header
            if batch is None or header is None:
                raise Invalid("a message of the stream is empty", code="bad_body")
            size = _claimed(batch, memoryview(message.body or b""))
            if message.type == "dictionary":
                id = header.long(0)
                dictionaries[id] = dictionaries.get(id, 0) + size  # it may be added to what is there
            budget.work(sum(dictionaries.values()))
            budget.add(0 if message.type == "dictionary" else batch.long(0), size)


def _claimed(batch: _FlatTable, body: memoryview) -> int:
    """Return the bytes of all buffers of a record batch once they are decompressed."""
    buffers = batch.longs(2).reshape(-1, 2)
    if batch.table(3) is None:
        return int(buffers[:, 1].sum())
    total = 0
    for offset, length in buffers.tolist():
        if length:
            (claimed,) = _I64.unpack_from(body, offset)
            total += length if claimed == -1 else claimed
            if claimed < -1:
                raise Invalid("a compressed buffer claims a negative size", code="bad_body")
    return total


_I64, _I32, _U16, _U32 = Struct("<q"), Struct("<i"), Struct("<H"), Struct("<I")


class _FlatTable:
    """A table of flatbuffers, which is what the metadata of Arrow is made of: just enough to read numbers from it."""

    def __init__(self, buffer: memoryview, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._fields = at - _I32.unpack_from(buffer, at)[0]
        self._size = _U16.unpack_from(buffer, self._fields)[0]

    @classmethod
    def root(cls, buffer: memoryview) -> _FlatTable:
        return cls(buffer, _U32.unpack_from(buffer, 0)[0])

    def table(self, field: int) -> _FlatTable | None:
        at = self._place(field)
        return None if at is None else _FlatTable(self._buffer, at + _U32.unpack_from(self._buffer, at)[0])

    def long(self, field: int) -> int:
        at = self._place(field)
        return 0 if at is None else int(_I64.unpack_from(self._buffer, at)[0])

    def longs(self, field: int) -> I64:
        """Return a vector of structs of two numbers, as one array."""
        at = self._place(field)
        if at is None:
            return np.zeros(0, np.int64)
        at += _U32.unpack_from(self._buffer, at)[0]
        count = _U32.unpack_from(self._buffer, at)[0]
        return np.frombuffer(self._buffer, "<i8", 2 * count, at + 4)

    def _place(self, field: int) -> int | None:
        slot = 4 + 2 * field
        offset = _U16.unpack_from(self._buffer, self._fields + slot)[0] if slot < self._size else 0
        return self._at + offset if offset else None


def _check_schema(schema: Any) -> None:
    names = schema.names
    wrong = [name for name in names if name not in _COLUMNS or names.count(name) > 1]
    if wrong or "data" not in names:
        raise Invalid(
            f"the stream has the columns {', '.join(names[:20])}",
            hint="data is required; key, type, content and meta are optional; drop or rename others",
            code="bad_columns",
        )
    for field in schema:
        if not _is_bytes(field.type):
            raise Invalid(
                f"the column {field.name} of {field.type} is not bytes or text", hint="cast it", code="bad_columns"
            )


def _is_bytes(type: Any) -> bool:
    pa = arrow.pyarrow()
    type = type.value_type if pa.types.is_dictionary(type) else type
    plain = pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view()
    return type in plain or bool(pa.types.is_fixed_size_binary(type))


def _names_values(type: Any) -> bool:
    """Return whether many rows of such a column may share one value."""
    pa = arrow.pyarrow()
    return bool(pa.types.is_dictionary(type)) or type in (pa.binary_view(), pa.string_view())


def _bytes_of(array: Any) -> int:
    """Return how many bytes the values of an array have, each counted as often as it is named."""
    if not arrow.pyarrow().types.is_dictionary(array.type):
        return int(_lengths(array).sum())
    lengths = _lengths(array.dictionary)
    codes = array.indices.drop_null()
    return int(lengths[np.asarray(codes)].sum()) if len(codes) else 0


def _lengths(array: Any) -> I64:
    """Return the length of each value; 0 for null."""
    pa = arrow.pyarrow()
    count = len(array)
    if array.type in (pa.binary_view(), pa.string_view()):
        views = np.frombuffer(array.buffers()[1] or b"", np.int32).reshape(-1, 4)
        lengths = views[array.offset : array.offset + count, 0].astype(np.int64)
        return np.where(np.asarray(array.is_valid()), lengths, 0) if array.null_count else lengths
    if pa.types.is_fixed_size_binary(array.type):
        return np.full(count, array.type.byte_width, np.int64)
    if array.null_count == 0 and array.type in (pa.binary(), pa.string()) and count:
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + count + 1]
        return np.diff(offsets).astype(np.int64)
    lengths = _compute().binary_length(array).fill_null(0)
    return np.asarray(lengths).astype(np.int64)


def _by_content(batch: Any) -> Iterator[tuple[Content | None, Any]]:
    """Yield the rows without the column of contents, in runs of one content; None where the stream does not say it."""
    names = batch.schema.names
    if "content" not in names or not batch.num_rows:
        yield None, batch
        return
    values = arrow.values_of(batch.column("content"))
    known = {content.encode(): content for content in CONTENTS}
    if not set(values) <= set(known):
        raise Invalid(f"a content is not one of {', '.join(CONTENTS)}", code="bad_content")
    numbers = {content: number for number, content in enumerate(known)}
    codes = np.fromiter((numbers[value] for value in values if value is not None), np.int64, len(values))
    starts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist()]
    if len(starts) > CONTENT_RUNS_MAX:
        raise Invalid(
            "the content changes too often", hint="sort by content, or send each content separately", code="bad_content"
        )
    rest = batch.select([name for name in names if name != "content"])
    for lo, hi in zip(starts, [*starts[1:], len(values)], strict=True):
        yield known[values[lo] or b""], rest.slice(lo, hi - lo)


def _parts(batch: Any, content: Content | None, limits: Limits) -> Iterator[ParsedEvents]:
    """Rows as columns of logs, so many together as one batch may have."""
    ends = np.cumsum(sum(_row_bytes(column) for column in batch.columns))
    lo = 0
    while lo < batch.num_rows:
        before = int(ends[lo - 1]) if lo else 0
        fitting = int(np.searchsorted(ends, before + min(PART_BYTES, limits.batch_bytes_max), "right"))
        hi = min(max(fitting, lo + 1), lo + min(limits.pack_events, limits.batch_events_max))
        part = batch.slice(lo, hi - lo)
        said, columns = arrow.columns_of(part, content)
        given.check_columns(columns, limits)
        yield ParsedEvents(said, columns, part.num_rows)
        lo = hi


def _row_bytes(array: Any) -> I64:
    if not arrow.pyarrow().types.is_dictionary(array.type):
        return _lengths(array)
    lengths = np.append(_lengths(array.dictionary), 0)
    codes: I64 = np.asarray(array.indices.fill_null(len(array.dictionary)))
    found: I64 = lengths[codes]
    return found


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Raise Invalid for what Arrow cannot read."""
    pa = arrow.pyarrow()
    try:
        yield
    except HeadwaterError:
        raise
    except (pa.ArrowException, OSError, ValueError, error, IndexError, OverflowError) as wrong:
        reason = " ".join(str(wrong).split())[:200]
        raise Invalid(f"the body is not an Arrow stream: {reason}", code="bad_body") from wrong


@cache
def _ipc() -> Any:
    arrow.pyarrow()  # says how to get it, where it is missing
    return importlib.import_module("pyarrow.ipc")


@cache
def _compute() -> Any:
    arrow.pyarrow()
    return importlib.import_module("pyarrow.compute")
