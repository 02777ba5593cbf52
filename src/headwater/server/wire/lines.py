r"""Lines of JSON (ndjson) and JSON arrays, out and in.

    encode(batch) -> bytes                             a line for each event, as `headwater read --json` prints it
    encode_all(batches, cut=None) -> Iterator[bytes]   the same, in pieces
    encode_array(batches, cut=None) -> Iterator[bytes] the same events as one JSON array, in pieces
    parse(body, limits, events=False) -> Parsed        one event for each line
    parse_array(body, limits, events=False, one=False) -> Parsed     one event for each element of an array

On the way in, the data of an event is its line's JSON, byte for byte, without white space around it; with `events` a
line is an event, with the fields of format/jsonl.py. Blank lines are left out. A line ends with `\n` or `\r\n`.

Bytes only; safe from any thread.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from headwater.errors import Invalid
from headwater.event import Content
from headwater.format import given, jsonl
from headwater.format.batch import BLOB, DATA, KEY, META, TYPE
from headwater.format.column import Column
from headwater.format.contents import may_be_json
from headwater.format.events import EventBatch
from headwater.limits import Limits
from headwater.server.wire.decoding import WRONG, ParsedEvents, more_than, too_long, too_many
from headwater.server.wire.pieces import Cut, cut_off, encoded, joined, parted

_FEW = 4  # so few events are faster one by one
_BLOCK_BYTES = 1024 * 1024  # what is looked at together: what is made of it stays small, whatever it holds
_SPACE = b" \t\r\n"
_OPENING, _CLOSING = (np.isin(np.arange(256), list(signs)) for signs in (b"{[,:", b"}],:"))

_encode = msgspec.json.Encoder().encode
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode
_look_at = msgspec.json.Decoder(Raw).decode
_raw_lines = msgspec.json.Decoder(Raw).decode_lines
_raws = msgspec.json.Decoder(list[Raw]).decode
_WRONG = (*WRONG, Invalid)


# Out


def encode_all(batches: Iterable[EventBatch], cut: Cut | None = None) -> Iterator[bytes]:
    """Return the lines of batches, in pieces. What is not a whole piece is held back until the batches end."""
    return joined(
        piece for batch in cut_off(batches, cut) for part in parted(batch) for piece in encoded(part, "lines", encode)
    )


def encode_array(batches: Iterable[EventBatch], cut: Cut | None = None) -> Iterator[bytes]:
    """Yield one JSON array of all events, in pieces; `[]` for none."""

    def pieces() -> Iterator[bytes]:
        before = b"["
        for batch in cut_off(batches, cut):
            for part in parted(batch):
                yield before
                yield from encoded(part, "array", _elements)
                before = b","
        yield b"[]" if before == b"[" else b"]"

    return joined(pieces())


def _elements(batch: EventBatch) -> bytes:
    return encode(batch)[:-1].replace(b"\n", b",")  # a line has no line feed but at its end


def encode(batch: EventBatch) -> bytes:
    """Return a line for each event. A huge event above the limit for memory has `data_bytes` instead of its data."""
    stored = batch.piece.batch
    count = len(batch)
    if count <= _FEW or stored.flags & BLOB:
        return b"".join([jsonl.encode(event) + b"\n" for event in batch.events()])
    place = batch.log
    ticks = batch.ticks()
    begin = b'{"topic":%b,"partition":%d,"offset":' % (_encode(place.topic), place.partition)
    content = b',"content":"%b",' % stored.content.encode()
    each = zip(
        map(str.encode, map(str, batch.offsets().tolist())),
        jsonl.strings(jsonl.times(ticks)),
        jsonl.strings(jsonl.ids(ticks, batch.log.node)),
        _types(batch),
        _keys(batch),
        _data(batch),
        _metas(batch),
        strict=False,  # what holds for all events does not end
    )
    line = begin.replace(b"%", b"%%") + b'%b,"time":"%b","id":"%b","type":%b,%b' + content + b'%b,"meta":%b}\n'
    return b"".join([line % fields for fields in each])


def _types(batch: EventBatch) -> Iterable[bytes]:
    column = batch.piece.batch.column(TYPE)
    if column is None or column.offsets is None:
        return repeat(_encode("" if column is None else bytes(column.data).decode()))
    values = batch.values(column)
    known = {value: _encode((value or b"").decode()) for value in set(values)}
    return [known[value] for value in values]


def _keys(batch: EventBatch) -> Iterable[bytes]:
    column = batch.piece.batch.column(KEY)
    if column is None:
        return repeat(b'"key":null')
    values = batch.values(column)
    if column.valid is None and _plain(_span(batch, column)):
        return [b'"key":"%b"' % value for value in values]  # type: ignore[str-format]  # none of them is null
    return map(_key, values)


def _key(key: bytes | None) -> bytes:
    if key is None:
        return b'"key":null'
    try:
        return b'"key":' + _encode(key.decode())
    except UnicodeDecodeError:
        return b'"key_base64":"%b"' % b2a_base64(key, newline=False)


def _metas(batch: EventBatch) -> Iterable[bytes]:
    column = batch.piece.batch.column(META)
    if column is None:
        return repeat(b"{}")
    return [b"{}" if meta is None else _encode(_decode_meta(meta)) for meta in batch.values(column)]


def _data(batch: EventBatch) -> list[bytes]:
    stored = batch.piece.batch
    column = stored.column(DATA)
    assert column is not None
    values = [value or b"" for value in batch.values(column)]
    if stored.content in ("bytes", "text"):
        span = _span(batch, column)
        if not may_be_json(span).any() and _plain(span):
            return [b'"data":"%b"' % value for value in values]
    if stored.content == "json" and _sound(values) and _compact(_span(batch, column)):
        return [b'"data":' + value for value in values]
    shown = _SHOWN[stored.content]
    return [_data_of(value, shown) for value in values]


def _data_of(data: bytes, shown: Callable[[bytes], bytes]) -> bytes:
    try:
        return b'"data":' + shown(data)
    except (ValueError, RecursionError):  # the content is what its producer called it, and need not be true
        return b'"data_base64":"%b"' % b2a_base64(data, newline=False)


def _sound(values: list[bytes]) -> bool:
    """Return whether all values are JSON."""
    try:
        for value in values:
            _look_at(value)
            if not value.isascii():
                value.decode()
    except (ValueError, RecursionError):
        return False
    return True


def _compact(column: Column) -> bool:
    """Return whether no JSON has white space outside of its strings: there, it has a sign at one of its sides."""
    raw = bytes(column.data)
    if b"\n" in raw or b"\t" in raw or b"\r" in raw or raw[:1] == b" " or raw[-1:] == b" ":
        return False
    letters = np.frombuffer(raw, np.uint8)
    spaces = np.flatnonzero(letters == 32)
    if _OPENING[letters[spaces - 1]].any() or _CLOSING[letters[spaces + 1]].any():
        return False
    ends = column.offsets
    return ends is None or not (np.isin(spaces, ends).any() or np.isin(spaces, ends - 1).any())


def _shown_text(data: bytes) -> bytes:
    return msgspec.json.format(data, indent=-1) if jsonl.holds_json(data) else _encode(data.decode())


_SHOWN: dict[Content, Callable[[bytes], bytes]] = {
    "bytes": _shown_text,
    "text": _shown_text,
    "json": jsonl.one_line,
    "bson": jsonl.from_bson,
}


def _plain(column: Column) -> bool:
    """Return whether all of it is ASCII that stands for itself in a string of JSON."""
    raw = bytes(column.data)
    return (
        raw.isascii()
        and b'"' not in raw
        and b"\\" not in raw
        and int(np.frombuffer(raw, np.uint8).min(initial=32)) >= 32
    )


def _span(batch: EventBatch, column: Column) -> Column:
    """Return the values from the first to the last of a batch, those between that were not picked among them."""
    _, lo, hi = batch.piece
    return column.slice(lo, hi) if batch.rows is None else column.slice(int(batch.rows[0]), int(batch.rows[-1]) + 1)


# In


def parse(body: bytes, limits: Limits, *, events: bool = False) -> ParsedEvents:
    """Return the events of lines. Raises Invalid, with the number of the line, for one that is not JSON or no event.

    Raises TooLarge for more lines than `batch_events_max`, blank ones among them, or more bytes than the limits allow.
    """
    lines = _line_feeds(body) + (not body.endswith(b"\n") and bool(body))
    if lines > limits.batch_events_max:
        raise too_many(lines, limits)
    if len(body) - lines > limits.batch_bytes_max:
        raise too_long(len(body) - lines, limits)
    if events:
        values = [(number, line) for number, line in enumerate(body.split(b"\n"), 1) if line.strip(_SPACE)]
        return _events(values, limits, "line")
    try:
        columns = [_column(block) for block in _blocks(body)]
    except _WRONG:
        columns = [_column_slowly(body)]
    return _json([column for column in columns if column.count], limits)


def parse_array(body: bytes, limits: Limits, *, events: bool = False, one: bool = False) -> ParsedEvents:
    """Return the events of a JSON array, one for each element; of anything else, or with `one`, a single event."""
    body = body.strip(_SPACE)
    if len(body) > limits.batch_bytes_max + 2 * limits.batch_events_max:
        raise too_long(len(body), limits)
    if one or body[:1] != b"[":
        return _events([(1, body)], limits, "element") if events else _json([_one(body)], limits)
    if more_than(body, limits.batch_events_max):
        raise too_many(limits.batch_events_max + 1, limits)
    try:
        values = list(map(bytes, _raws(body)))
        if not body.isascii():
            body.decode()
    except _WRONG as error:
        raise Invalid(f"the body is not JSON: {_reason(error)}", code="bad_json") from error
    if len(values) > limits.batch_events_max:
        raise too_many(len(values), limits)
    if events:
        return _events(list(enumerate(values, 1)), limits, "element")
    return _json([Column.of(values)] if values else [], limits)


def _json(columns: list[Column], limits: Limits) -> ParsedEvents:
    if not columns:
        return ParsedEvents("json", {}, 0)
    count = sum(column.count for column in columns)
    size = sum(column.bytes_of() for column in columns)
    if size > limits.batch_bytes_max:
        raise too_long(size, limits)
    whole = columns[0]
    if len(columns) > 1:
        starts = np.cumsum([0, *(column.bytes_of() for column in columns)])
        parts: list[Any] = [column.offsets[:-1] + start for column, start in zip(columns, starts, strict=False)]  # type: ignore[index]  # all are plain
        offsets = np.concatenate([*parts, starts[-1:]]).astype(np.int32)
        whole = Column(count, b"".join([column.data for column in columns]), offsets)
    found: dict[int, Column | None] = {DATA: whole}
    given.check_columns(found, limits)
    return ParsedEvents("json", found, count)


def _line_feeds(body: bytes) -> int:
    """Return how many there are; `bytes.count` takes several times as long."""
    raw = np.frombuffer(body, np.uint8)
    return sum(int(np.count_nonzero(raw[at : at + _BLOCK_BYTES] == 10)) for at in range(0, len(raw), _BLOCK_BYTES))


def _blocks(body: bytes) -> Iterator[bytes]:
    """Yield the body in blocks of whole lines; one that is larger than usual has one line."""
    at, end = 0, len(body)
    while at < end:
        cut = end if end - at <= _BLOCK_BYTES else body.rfind(b"\n", at, at + _BLOCK_BYTES) + 1
        if cut == 0:
            cut = body.find(b"\n", at) + 1 or end
        yield body if cut - at == end else body[at:cut]
        at = cut


def _column(block: bytes) -> Column:
    """Return the column of a block's lines, all looked at together. Raises if they are not one JSON value each."""
    if len(block) > _BLOCK_BYTES:  # one line, which may hold any number of values where it should hold one
        line = block.strip(_SPACE)
        return _one(line) if line else Column.of([])
    if not block.isascii():
        block.decode()
    raws = _raw_lines(block)
    data = b"".join(raws)
    raw = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(raw == 10)
    feeds = len(ends)
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(block))
    count = len(ends)
    # As many values as lines, and none that goes over two: so each line has one. The line feeds are all that is left
    # out, so that their positions tell the lengths.
    if len(raws) != count or len(data) + feeds != len(block) or b"\n" in data:
        return _column_slowly(block)
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = ends - np.arange(count)
    return Column(count, data, offsets)


def _column_slowly(lines: bytes) -> Column:
    """Parse line by line: for lines with white space, and to find the one that is wrong."""
    values = []
    for number, line in enumerate(lines.split(b"\n"), 1):
        value = line.strip(_SPACE)
        if value:
            try:
                jsonl.check_json(value)
            except _WRONG as error:
                raise Invalid(
                    f"line {number} is not JSON: {_reason(error)}", code="bad_json", line=number, reason=_reason(error)
                ) from error
            values.append(value)
    return Column.of(values)


def _one(value: bytes) -> Column:
    try:
        jsonl.check_json(value)
    except _WRONG as error:
        raise Invalid(f"the body is not JSON: {_reason(error)}", code="bad_json") from error
    return Column.of([value])


def _events(values: list[tuple[int, bytes]], limits: Limits, what: str) -> ParsedEvents:
    """Events in the form in which they are read. All must have one content, as an append has."""
    data, contents, types, keys, metas = [], set(), [], [], []
    for number, value in values:
        try:
            line = jsonl.decode_line(value)
            each, content = jsonl.data_of(line, None)
            keys.append(jsonl.key_of(line))
        except _WRONG as error:
            reason = _reason(error)
            raise Invalid(
                f"{what} {number} is not an event: {reason}", code="bad_event", line=number, reason=reason
            ) from error
        data.append(each)
        contents.add(content)
        types.append(line.type)
        metas.append(line.meta or None)
    if not data:
        return ParsedEvents("json", {}, 0)
    if len(contents) > 1:
        raise Invalid(
            f"the events have different contents: {', '.join(sorted(contents))}",
            hint="send each content in its own request",
            code="several_contents",
        )
    content, columns = given.encode_many(data, contents.pop(), types, keys, metas, limits)
    return ParsedEvents(content, columns, len(data))


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return error.message if isinstance(error, Invalid) else str(error)
