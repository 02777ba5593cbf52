"""From what users give to what a batch holds: the bytes of data, keys, types and meta, checked against the limits.

Bytes only; safe from any thread. A directory and a server are given the same, and refuse the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Literal

import msgspec
import numpy as np

from headwater.errors import Invalid, TooLarge
from headwater.event import CONTENTS, Content
from headwater.format.batch import DATA, KEY, META, TYPE
from headwater.format.column import Column
from headwater.format.contents import StreamedText, check_column, check_data
from headwater.format.names import utf8
from headwater.format.producers import Producer
from headwater.limits import BLOB_CHUNK_BYTES, TYPE_BYTES_MAX, Limits

Data = bytes | bytearray | memoryview | str | dict[str, Any] | list[Any]
Meta = Mapping[str, str]
Version = int | Literal["none"]
"""The offset of a key's last event, or that it has none."""

NO_VERSION = -1  # expected of a key that must have no events

_PRODUCER = tuple[str, int, int]
msgspec.convert(("", 0, 0), _PRODUCER)  # msgspec learns a type at its first use, which threads must not do at once
_encode_json = msgspec.json.Encoder().encode


def encode_data(data: Data, content: Content | None) -> tuple[bytes, Content]:
    """Return the bytes of one event's data, and what they are, which `content` says of bytes; raises Invalid."""
    encoded, said = _encoded(data, content)
    if not _is_own(data, said):
        check_data(encoded, said)
    return encoded, said


def _is_own(data: Data, content: Content) -> bool:
    """Tell whether data is what its content says because it was encoded here."""
    return isinstance(data, dict | list) or content == "bytes" or (content == "text" and isinstance(data, str))


def _encoded(data: Data, content: Content | None) -> tuple[bytes, Content]:
    if type(data) is bytes:
        return data, content or "bytes"
    if isinstance(data, str):
        return utf8(data, "text"), content or "text"
    if isinstance(data, dict | list):
        if content not in (None, "json"):
            raise Invalid(
                f"a {type(data).__name__} is stored as JSON, not {content!r}", hint="encode it to bytes first"
            )
        return encode_json(data), "json"
    if isinstance(data, bytearray | memoryview):
        return bytes(data), content or "bytes"
    raise Invalid(
        f"data cannot be a {type(data).__name__}",
        hint="give bytes, str, a dict, a list, a file or an iterator of bytes",
    )


def encode_json(value: Any) -> bytes:
    try:
        return _encode_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"the data is not JSON: {error}") from error


def encode_type(type: str) -> bytes:
    encoded = utf8(type, "a type")
    if len(encoded) > TYPE_BYTES_MAX:
        raise _too_large("a type", len(encoded), "type_bytes_max", TYPE_BYTES_MAX)
    return encoded


def encode_key(key: bytes | str | None, limits: Limits) -> bytes | None:
    if key is None:
        return None
    encoded = utf8(key, "a key") if isinstance(key, str) else bytes(key)
    if len(encoded) > limits.key_bytes_max:
        raise _too_large("a key", len(encoded), "key_bytes_max", limits.key_bytes_max)
    return encoded


def encode_meta(meta: Meta | None, limits: Limits) -> bytes | None:
    if not meta:
        return None
    if not {type(part) for pair in meta.items() for part in pair} <= {str}:
        raise Invalid("meta has a value that is not a string", hint="meta is a flat object of strings")
    encoded = encode_json(dict(meta))
    if len(encoded) > limits.meta_bytes_max:
        raise _too_large("meta", len(encoded), "meta_bytes_max", limits.meta_bytes_max)
    return encoded


def check_content(content: str | None) -> None:
    if content is not None and content not in CONTENTS:
        raise Invalid(f"content {content!r} is unknown", hint=f"it is one of {', '.join(CONTENTS)}")


def check_size(size: int, limits: Limits) -> None:
    if size > limits.data_bytes_max:
        raise _too_large("data", size, "data_bytes_max", limits.data_bytes_max)


def check_version(expected: Version | None, key: bytes | None) -> int | None:
    """Return the version that rows must find of their key; None if that does not matter."""
    if expected is None:
        return None
    if key is None:
        raise Invalid("expected_version needs a key", hint="give key=")
    if expected == "none":
        return NO_VERSION
    if type(expected) is not int or expected < 0:
        raise Invalid(f"{expected!r} is not a version", hint="give the offset of the key's last event, or 'none'")
    return expected


def check_producer(producer: Producer | tuple[str, int, int] | None, limits: Limits) -> Producer | None:
    """Return the producer of a request, checked."""
    if producer is None:
        return None
    try:
        said = (producer.id, producer.epoch, producer.seq) if isinstance(producer, Producer) else producer
        id, epoch, seq = msgspec.convert(said, _PRODUCER)
        sound = bool(id) and 0 <= epoch < 1 << 32 and 0 <= seq < 1 << 63
    except (TypeError, msgspec.ValidationError) as error:
        raise _not_a_producer(producer) from error
    if not sound:
        raise _not_a_producer(producer)
    size = len(utf8(id, "a producer's id"))
    if size > limits.producer_id_bytes_max:
        raise _too_large("a producer's id", size, "producer_id_bytes_max", limits.producer_id_bytes_max)
    return Producer(id, epoch, seq)


def _not_a_producer(producer: object) -> Invalid:
    return Invalid(
        f"{producer!r} is not a producer", hint="give its id, epoch and seq: a str and two numbers, not negative"
    )


def is_stream(data: object) -> bool:
    """Return whether data arrives in pieces: a file, or an iterator of bytes."""
    return hasattr(data, "read") or hasattr(data, "__next__")


def checked_pieces(data: IO[bytes] | Iterator[bytes], content: Content | None, limits: Limits) -> Iterable[bytes]:
    """Return the pieces of a stream, which are checked as they come; JSON and BSON as one piece.

    Raises TooLarge before more of such a piece is held than may be stored.
    """
    if content == "text":
        return _text_pieces(pieces(data))
    if content not in ("json", "bson"):
        return pieces(data)
    held = bytearray()
    for piece in pieces(data):
        held += piece
        check_size(len(held), limits)
    return (encode_data(bytes(held), content)[0],)


def _text_pieces(found: Iterator[bytes]) -> Iterator[bytes]:
    """Yield pieces of text; a character may go over two of them."""
    checked = StreamedText()
    for piece in found:
        checked.take(piece)
        yield piece
    checked.end()


def pieces(data: IO[bytes] | Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a stream."""
    read = getattr(data, "read", None)
    source: Iterable[Any] = iter(lambda: read(BLOB_CHUNK_BYTES), b"") if read is not None else data
    for piece in source:
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise Invalid(
                f"the stream returned a {type(piece).__name__}, not bytes", hint="open the file in binary mode"
            )
        yield bytes(piece)


def encode_many(
    data: Sequence[Data],
    content: Content | None,
    types: Sequence[str] | str,
    keys: Sequence[bytes | str | None] | None,
    metas: Sequence[Meta | None] | None,
    limits: Limits,
) -> tuple[Content, dict[int, Column | None]]:
    """Return the content and the columns of many events. Their sizes are left to `check_columns`."""
    count = len(data)
    if count > limits.batch_events_max:
        raise _too_large("append_many", count, "batch_events_max", limits.batch_events_max, "events")
    for name, values in (("types", types), ("keys", keys), ("metas", metas)):
        if values is not None and not isinstance(values, str) and len(values) != count:
            raise Invalid(f"there are {count} events, but {len(values)} {name}")
    data_column, content, unchecked = _data_column(data, content)
    if unchecked is not None:
        check_column(data_column, content, values=unchecked)
    encoded_keys = None if keys is None else _encode_keys(keys, limits)
    if isinstance(types, str):
        one = encode_type(types)
        type_column = Column(count, one) if one else None
    else:
        distinct = {type: encode_type(type) for type in set(types)}
        type_column = Column.of_repeated([distinct[type] for type in types])
    columns = {
        TYPE: type_column,
        KEY: None if encoded_keys is None else Column.of_optional(encoded_keys),
        DATA: data_column,
        META: None if metas is None else Column.of_optional([encode_meta(meta, limits) for meta in metas]),
    }
    return content, columns


def check_columns(columns: dict[int, Column | None], limits: Limits) -> None:
    """Check the sizes of all values and of the whole."""
    bounds = {
        TYPE: ("a type", "type_bytes_max", TYPE_BYTES_MAX),
        KEY: ("a key", "key_bytes_max", limits.key_bytes_max),
        DATA: ("data", "data_bytes_max", limits.data_bytes_max),
        META: ("meta", "meta_bytes_max", limits.meta_bytes_max),
    }
    total = 0
    for kind, column in columns.items():
        if column is not None:
            what, limit, maximum = bounds[kind]
            longest = len(column.data) if column.offsets is None else int(np.diff(column.offsets).max(initial=0))
            if longest > maximum:
                raise _too_large(what, longest, limit, maximum)
            total += column.bytes_of()
    if total > limits.batch_bytes_max:
        raise _too_large("a batch", total, "batch_bytes_max", limits.batch_bytes_max)


def _data_column(data: Sequence[Any], content: Content | None) -> tuple[Column, Content, Sequence[bytes] | None]:
    """Return the column, its content, and its values, or None if all of them were encoded here."""
    if type(data[0]) is bytes:
        try:
            column = Column.of(data)  # joins what is bytes, and nothing else
        except TypeError:
            column = None
        if column is not None and column.offsets is not None and column.offsets[-1] == len(column.data):
            return column, content or "bytes", None if content in (None, "bytes") else data
    encoded, contents = zip(*(_encoded(each, content) for each in data), strict=True)
    if len(set(contents)) > 1:
        raise Invalid(
            f"the events have different contents: {', '.join(sorted(set(contents)))}",
            hint="append each content separately",
        )
    own = all(_is_own(each, contents[0]) for each in data)
    return Column.of(encoded), contents[0], None if own else encoded


def _encode_keys(keys: Sequence[bytes | str | None], limits: Limits) -> Sequence[bytes | None]:
    if set(map(type, keys)) <= {bytes, type(None)}:
        return keys  # type: ignore[return-value]  # no str among them; their sizes are checked as a column
    return [encode_key(key, limits) for key in keys]


def _too_large(what: str, size: int, limit: str, maximum: int, unit: str = "bytes") -> TooLarge:
    hints = {
        "data_bytes_max": "create the topic with a larger data_bytes_max",
        "batch_events_max": "append fewer at once, or use append_arrow, which splits",
        "batch_bytes_max": "append fewer at once, or use append_arrow, which splits",
    }
    return TooLarge(
        f"{what} has {size} {unit}; the limit is {maximum}",
        hint=hints.get(limit, ""),
        limit=limit,
        maximum=maximum,
        size=size,
    )
