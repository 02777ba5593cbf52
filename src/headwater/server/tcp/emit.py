"""EMIT: from a frame to an append that waits for its commit, and to the answer.

The usual EMIT, whose fields before the event are byte for byte those of the last one, is not parsed again: a `Shape`
knows what they mean. Belongs to the loop's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.engine.waiting import Waiting
from headwater.errors import HeadwaterError, Invalid, NotFound, TooLarge
from headwater.event import CONTENTS, Content, Durability
from headwater.format import given, protocol
from headwater.format.batch import DATA, KEY, META, TYPE
from headwater.format.codec import codec
from headwater.format.column import Column
from headwater.format.given import Version
from headwater.format.protocol import BINARY, DOCUMENT, LENGTH, STRING, bad_frame, elements
from headwater.limits import Limits
from headwater.server.http.appending import check_content
from headwater.server.tcp.answers import emitted, failure, ref_fields, response
from headwater.server.tcp.fields import INT32, Fields, small

if TYPE_CHECKING:
    from headwater.server.store import Store

HEAD = b"\x02type\x00\x05\x00\x00\x00EMIT\x00\x03frame\x00"  # of an EMIT, after the length of the whole
FRAME_AT = 4 + len(HEAD)
FIELDS_AT = FRAME_AT + 4
NAMES = (
    *("streamName", "eventType", "event", "sessID", "key", "expectedVersion"),
    *("partition", "meta", "durability", "producer", "content"),
)
SHAPE_BYTES_MAX = 1024  # of the fields before an event: longer ones are parsed each time


class Options(NamedTuple):
    """What an EMIT may say of its event beside the usual; as for `Engine.prepare`."""

    partition: int | None = None
    meta: dict[str, str] | None = None
    expected_version: Version | None = None
    durability: Durability | None = None
    producer: tuple[str, int, int] | None = None

    def given(self) -> dict[str, Any]:
        """Those that were said."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class Shape:
    """What the fields of an EMIT before its event mean; `fields` are their bytes, if others may have the same."""

    __slots__ = ("content", "fields", "key", "options", "session", "topic", "type")

    def __init__(
        self,
        topic: str,
        type: bytes,
        key: bytes | None,
        content: Content,
        session: int | None,
        options: Options | None,
    ) -> None:
        self.topic = topic
        self.type = type
        self.key = key
        self.content = content
        self.session = session
        self.options = options
        self.fields = b""

    @property
    def plain(self) -> bool:
        """Whether it can be appended together with others."""
        return self.options is None and self.content == "bson"


class Emit(NamedTuple):
    """One event to be appended."""

    shape: Shape
    data: bytes


def parse(raw: bytes, last: Shape | None, topic: str, limits: Limits) -> Emit:
    """The event of an EMIT frame; `last` is the shape of the one before it, `topic` what it goes to unless it says.

    The event itself is not looked into: see `check`. Raises Invalid with the code `bad_frame` if the frame cannot be
    trusted, and any other for a field that is wrong.
    """
    if last is not None and last.fields:
        start = FIELDS_AT + len(last.fields)
        if raw.startswith(last.fields, FIELDS_AT) and raw.startswith(HEAD, 4):
            size = len(raw)
            ends = (
                LENGTH.unpack_from(raw, 0)[0],
                LENGTH.unpack_from(raw, FRAME_AT)[0],
                LENGTH.unpack_from(raw, start)[0],
            )
            if ends == (size, size - FRAME_AT - 1, size - start - 2) and raw[-2:] == b"\0\0":
                return Emit(last, raw[start:-2])
    return _learn(raw, topic, limits)


def _learn(raw: bytes, topic: str, limits: Limits) -> Emit:
    outer = elements(raw, 0)
    kind, at, end = outer.get(b"frame", (0, 0, 0))
    if kind != DOCUMENT or LENGTH.unpack_from(raw, 0)[0] != len(raw):
        raise bad_frame("it is not {type: <string>, frame: <document>}")
    inner = elements(raw, at)
    spans = {small(_text(name)): span for name, span in inner.items()}
    event = spans.get("event")
    plain = "content" not in spans or _value(raw, spans["content"]) == "bson"
    if event is None or (plain and event[0] != DOCUMENT):
        protocol.decode(raw)  # raises if it is not even BSON
        raise Invalid("EMIT needs a document for 'event'", code="bad_field")
    try:
        values = {name.decode(): None if plain and span is event else _value(raw, span) for name, span in inner.items()}
        shape, data = _shape(Fields("EMIT", values, NAMES), topic, limits)
    except HeadwaterError:
        protocol.decode(raw)  # as above
        raise
    if not plain:
        return Emit(shape, data)
    start = event[1]
    last = event[2] == end - 1 == len(raw) - 2
    if last and raw.startswith(HEAD, 4) and start - FIELDS_AT <= SHAPE_BYTES_MAX and shape.plain:
        shape.fields = raw[FIELDS_AT:start]
    return Emit(shape, raw[start : event[2]])


def _shape(fields: Fields, topic: str, limits: Limits) -> tuple[Shape, bytes]:
    """What the fields mean, and the data, unless it is a document."""
    type = fields.text("eventType")
    if type is None:
        raise fields.wrong("needs 'eventType'")
    key = fields.data("key")
    content, data = _content(fields)
    options = Options(
        fields.integer("partition", most=INT32),
        fields.document("meta"),
        _expected(fields),
        _durability(fields),
        _producer(fields),
    )
    given.encode_meta(options.meta, limits)
    encoded_key = given.encode_key(key, limits)
    given.check_version(options.expected_version, encoded_key)
    shape = Shape(
        fields.text("streamName") or topic,
        given.encode_type(type),
        encoded_key,
        content,
        fields.integer("sessID", least=-INT32 - 1, most=INT32),
        None if options == NOTHING else options,
    )
    return shape, data


NOTHING = Options()


def _content(fields: Fields) -> tuple[Content, bytes]:
    said = fields.text("content")
    if said is None or said == "bson":
        return "bson", b""
    if said not in CONTENTS:
        raise fields.wrong(f"has a content that is unknown: {said[:40]!r}", hint=f"it is one of {', '.join(CONTENTS)}")
    content: Content = said
    data = fields.data("event")
    if data is None or isinstance(data, str) == (content == "bytes"):
        raise fields.wrong(f"needs {'binary data' if content == 'bytes' else 'a string'} for 'event'")
    encoded = data.encode() if isinstance(data, str) else data
    check_content(encoded, content)
    return content, encoded


def _expected(fields: Fields) -> Version | None:
    said = fields.integer("expectedVersion", least=-1)
    return "none" if said == -1 else said


def _durability(fields: Fields) -> Durability | None:
    said = fields.text("durability")
    if said not in (None, "fsync", "os"):
        raise fields.wrong("needs 'fsync' or 'os' for 'durability'")
    return said  # type: ignore[return-value]  # it is one of them


def _producer(fields: Fields) -> tuple[str, int, int] | None:
    said = fields.document("producer")
    if said is None:
        return None
    inner = Fields("the producer of EMIT", said, ("id", "epoch", "seq"))
    id, epoch, seq = (
        inner.text("id", needed=True),
        inner.integer("epoch", needed=True),
        inner.integer("seq", needed=True),
    )
    assert id is not None
    assert epoch is not None
    assert seq is not None
    return id, epoch, seq


def check(events: Sequence[bytes]) -> None:
    """Raise Invalid, `bad_frame` or `too_deep`, if one of these is not BSON all the way down."""
    for event in events:
        protocol.check_depth(event)
    found = codec()
    try:
        if len(events) == 1:
            found.decode(events[0], found.options)
        else:
            found.decode_all(b"".join(events), found.options)
    except (found.damage, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise bad_frame(f"it is not BSON: {error}") from error


def prepare(store: Store, emit: Emit) -> Waiting:
    """The append of one event. Raises what `Engine.prepare` raises, NotFound for a topic that is to be made."""
    shape = emit.shape
    options = {} if shape.options is None else shape.options.given()
    type = shape.type.decode()
    return store.engine.prepare(shape.topic, emit.data, type=type, key=shape.key, content=shape.content, **options)


def prepare_all(store: Store, emits: Sequence[Emit]) -> Waiting | None:
    """The append of several events that go to one topic, and are plain; None if they cannot be one append.

    Raises NotFound for a topic that is to be made.
    """
    first = emits[0].shape
    types = [emit.shape.type for emit in emits]
    keys = [emit.shape.key for emit in emits]
    columns: dict[int, Column | None] = {
        TYPE: Column.of_repeated(types),
        KEY: Column.of_optional(keys),
        DATA: Column.of([emit.data for emit in emits]),
        META: None,
    }
    try:
        found = store.engine.prepare_many(first.topic, "bson", columns, len(emits))
    except TooLarge:  # one of them: the others need not suffer for it
        return None
    return found[0] if len(found) == 1 and found[0].where is None else None


def append_huge(store: Store, emit: Emit) -> bytes:
    """Append an event that is too large to wait in memory for a commit with others; in a worker's thread."""
    shape = emit.shape
    options = {} if shape.options is None else shape.options.given()
    store.engine.topic(shape.topic)  # raises NotFound: it is made as it is to be
    ref = store.engine.append(
        shape.topic, emit.data, type=shape.type.decode(), key=shape.key, content=shape.content, **options
    )
    return response(**ref_fields(ref))


def missing(error: BaseException) -> bool:
    """Whether an append failed because its topic is not there."""
    return isinstance(error, NotFound) and error.code in ("topic_not_found", "topic_deleted")


def answers(waiting: Waiting) -> bytes:
    """What is said of the events of one append, once it is committed or has failed."""
    error = waiting.rows.error
    return emitted(waiting) if error is None else failure(error) * waiting.rows.count


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise bad_frame("the name of a field is not UTF-8") from error


def _value(raw: bytes, span: tuple[int, int, int]) -> Any:
    """What a field holds. The usual types by hand, any other by the codec."""
    kind, start, end = span
    if kind == STRING and end - start >= 5 and raw[end - 1] == 0:
        return _text(raw[start + 4 : end - 1])
    if kind == BINARY and raw[start + 4] == 0:
        return raw[start + 5 : end]
    found = codec()
    value = bytes((kind,)) + b"\0" + raw[start:end]
    try:
        return found.decode(LENGTH.pack(len(value) + 5) + value + b"\0", found.options)[""]
    except (found.damage, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise bad_frame(f"it is not BSON: {error}") from error
