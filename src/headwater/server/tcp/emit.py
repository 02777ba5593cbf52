"""EMIT: from a frame to an append that waits for its commit, and to the answer.

The usual EMIT, which is byte for byte like one before it but for key and event, is not parsed again: a `EmitShape`
knows what its fields mean. Belongs to the loop's thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.errors import HeadwaterError, Invalid, NotFound, TooLarge
from headwater.event import CONTENTS, Content
from headwater.format import given, protocol
from headwater.format.batch import DATA, KEY, META, TYPE
from headwater.format.codec import codec
from headwater.format.column import Column
from headwater.format.contents import check_bson, check_data
from headwater.format.given import Version
from headwater.format.producers import Producer
from headwater.format.protocol import BINARY, DOCUMENT, LENGTH, STRING, bad_frame, elements
from headwater.limits import Limits
from headwater.log.pending import PendingAppend
from headwater.requests import Append, AppendMany
from headwater.server.tcp.answers import ref_fields, response
from headwater.server.tcp.fields import INT32, FrameFields, small

if TYPE_CHECKING:
    from headwater.server.service import Service

HEAD = b"\x02type\x00\x05\x00\x00\x00EMIT\x00\x03frame\x00"  # of an EMIT, after the length of the whole
FRAME_AT = 4 + len(HEAD)
FIELDS_AT = FRAME_AT + 4
NAMES = (
    *("streamName", "eventType", "event", "sessID", "key", "expectedVersion"),
    *("partition", "meta", "durability", "producer", "content"),
)
SHAPE_BYTES_MAX = 1024  # of all but the key and the event: longer ones are parsed each time
SHAPES_MAX = 8  # that a connection remembers: a client emits a few types of events

Span = tuple[int, int, int]
_length = LENGTH.unpack_from


class EmitOptions(NamedTuple):
    """The optional fields of an EMIT, checked and encoded as in `Append`."""

    partition: int | None = None
    meta: bytes | None = None
    expected: int | None = None
    sync: bool | None = None
    producer: Producer | None = None


class EmitShape:
    """The parsed fields of an EMIT, for reuse by another EMIT that differs only in key and event.

    `parts` are the bytes up to each of the two, in their order, with its type in BSON; `tail` those behind the last.
    """

    __slots__ = ("content", "options", "parts", "session", "tail", "topic", "type")

    def __init__(
        self, topic: str, type: bytes, content: Content, session: int | None, options: EmitOptions | None
    ) -> None:
        self.topic = topic
        self.type = type
        self.content = content
        self.session = session
        self.options = options
        self.parts: tuple[tuple[bytes, int, int], ...] = ()
        self.tail = b""

    @property
    def plain(self) -> bool:
        """Return whether it can be appended together with others."""
        return self.options is None and self.content == "bson"

    def remember(self, raw: bytes, spans: Mapping[str, Span]) -> None:
        """Remember the bytes of a frame that has this shape."""
        holes = sorted(span[1:] + span[:1] for name, span in spans.items() if name in ("event", "key"))
        if not raw.startswith(HEAD, 4) or len(raw) - sum(end - start for start, end, _ in holes) > SHAPE_BYTES_MAX:
            return
        at, parts = FIELDS_AT, []
        for start, end, kind in holes:
            if kind == BINARY and raw[start + 4] != 0:
                return
            before = raw[at:start]
            parts.append((before, len(before), kind))
            at = end
        self.parts, self.tail = tuple(parts), raw[at:]

    def match(self, raw: bytes, limits: Limits) -> Emit | None:
        """Return the event of a frame, if that has this shape; else None."""
        at, size, key, data = FIELDS_AT, len(raw), None, b""
        for before, length, kind in self.parts:
            if not raw.startswith(before, at):
                return None
            at += length
            told = _length(raw, at)[0] if at <= size - 5 else 0
            if told < 1 or told > size:
                return None
            if kind == DOCUMENT:
                data = raw[at : at + told]
                at += told
                continue
            key = raw[at + 4 : at + 3 + told] if kind == STRING else raw[at + 5 : at + 5 + told]
            sound = len(key) <= limits.key_bytes_max and (_is_text(raw, at, key) if kind == STRING else not raw[at + 4])
            if not sound:
                return None
            at += 4 + told + (kind == BINARY)
        whole = _length(raw, 0)[0] == size and _length(raw, FRAME_AT)[0] == size - FRAME_AT - 1
        return Emit(self, data, key) if whole and raw[at:] == self.tail and raw.startswith(HEAD, 4) else None


class Emit(NamedTuple):
    """One event to be appended."""

    shape: EmitShape
    data: bytes
    key: bytes | None

    def request(self) -> Append:
        """Return the append that it asks for."""
        shape, options = self.shape, self.shape.options or NOTHING
        event = shape.topic, self.data, shape.content, shape.type, self.key
        return Append(*event, options.meta, options.partition, options.sync, options.expected, options.producer)


def parse(raw: bytes, shapes: list[EmitShape], topic: str, limits: Limits) -> Emit:
    """The event of an EMIT frame; `shapes` are those of others before it, `topic` what it goes to unless it says.

    The event itself is not looked into: see `check`. Raises Invalid with the code `bad_frame` if the frame cannot be
    trusted, and any other for a field that is wrong.
    """
    for shape in shapes:
        found = shape.match(raw, limits)
        if found is not None:
            return found
    emit, spans = _learn(raw, topic, limits)
    if emit.shape.content == "bson":
        emit.shape.remember(raw, spans)
        if emit.shape.parts:
            shapes[SHAPES_MAX - 1 :] = []
            shapes.insert(0, emit.shape)
    return emit


def _learn(raw: bytes, topic: str, limits: Limits) -> tuple[Emit, Mapping[str, Span]]:
    inner = elements(raw, protocol.parts(raw)[1])
    spans = {small(_text(name)): span for name, span in inner.items()}
    event = spans.get("event")
    try:
        binary = "content" in spans and _value(raw, spans["content"]) not in (None, "bson")
        if event is None or (not binary and event[0] != DOCUMENT):
            raise Invalid("EMIT needs a document for 'event'", code="bad_field")
        values = {
            name.decode(): None if span is event and not binary else _value(raw, span) for name, span in inner.items()
        }
        fields = FrameFields("EMIT", values, NAMES)
        shape, key, data = _shape(fields, topic, limits)
    except HeadwaterError:
        protocol.decode(raw)  # raises if it is not even BSON
        raise
    return Emit(shape, data if binary else raw[event[1] : event[2]], key), spans


def _shape(fields: FrameFields, topic: str, limits: Limits) -> tuple[EmitShape, bytes | None, bytes]:
    """What the fields mean, the key, and the data, unless it is a document."""
    type = fields.text("eventType")
    if type is None:
        raise fields.wrong("needs 'eventType'")
    key = fields.data("key")
    content, data = _content(fields)
    encoded_key = given.encode_key(key, limits)
    options = EmitOptions(
        fields.integer("partition", most=INT32),
        given.encode_meta(fields.document("meta"), limits),
        given.check_version(_expected(fields), encoded_key),
        _sync(fields),
        given.check_producer(_producer(fields), limits),
    )
    said = fields.text("streamName")
    shape = EmitShape(
        topic if said is None else said,
        given.encode_type(type),
        content,
        fields.integer("sessID", least=-INT32 - 1, most=INT32),
        None if options == NOTHING else options,
    )
    return shape, encoded_key, data


NOTHING = EmitOptions()


def _content(fields: FrameFields) -> tuple[Content, bytes]:
    said = fields.text("content")
    if said is None or said == "bson":
        return "bson", b""
    if said not in CONTENTS:
        raise fields.wrong(f"has an unknown content {said[:40]!r}", hint=f"use one of {', '.join(CONTENTS)}")
    content: Content = said
    data = fields.data("event")
    if data is None or isinstance(data, str) == (content == "bytes"):
        raise fields.wrong(f"needs {'binary data' if content == 'bytes' else 'a string'} for 'event'")
    encoded = data.encode() if isinstance(data, str) else data
    check_data(encoded, content)
    return content, encoded


def _expected(fields: FrameFields) -> Version | None:
    said = fields.integer("expectedVersion", least=-1)
    return "none" if said == -1 else said


def _sync(fields: FrameFields) -> bool | None:
    said = fields.text("durability")
    if said not in (None, "fsync", "os"):
        raise fields.wrong("needs 'fsync' or 'os' for 'durability'")
    return None if said is None else said == "fsync"


def _producer(fields: FrameFields) -> tuple[str, int, int] | None:
    said = fields.document("producer")
    if said is None:
        return None
    inner = FrameFields("the producer of EMIT", said, ("id", "epoch", "seq"))
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
    try:
        check_bson(events)
    except Invalid as error:
        raise error if error.code == "too_deep" else bad_frame(error.message) from error


def prepare(service: Service, emit: Emit) -> PendingAppend:
    """Return the append of one event. Raises as `LogBackend.prepare` does, NotFound for a new topic."""
    return service.backend.prepare(emit.request())


def prepare_all(service: Service, emits: Sequence[Emit]) -> PendingAppend | None:
    """Return the append of several events that go to one topic, and are plain; None if they cannot be one append.

    Raises NotFound for a topic that is to be made.
    """
    first = emits[0].shape
    types = [emit.shape.type for emit in emits]
    keys = [emit.key for emit in emits]
    columns: dict[int, Column | None] = {
        TYPE: Column.of_repeated(types),
        KEY: Column.of_optional(keys),
        DATA: Column.of([emit.data for emit in emits]),
        META: None,
    }
    try:
        found = service.backend.prepare_many(AppendMany(first.topic, "bson", columns, len(emits)))
    except TooLarge:  # one of them: the others need not suffer for it
        return None
    return found[0] if len(found) == 1 and found[0].where is None else None


def append_huge(service: Service, emit: Emit) -> bytes:
    """Append an event that is too large to wait in memory for a commit with others; in a worker's thread."""
    service.backend.topic(emit.shape.topic)  # raises NotFound: it is made as it is to be
    ref = service.backend.append(emit.request())
    return response(**ref_fields(ref))


def missing(error: BaseException) -> bool:
    """Return whether an append failed because its topic is not there."""
    return isinstance(error, NotFound) and error.code in ("topic_not_found", "topic_deleted")


def _is_text(raw: bytes, start: int, key: bytes) -> bool:
    """Return whether the key whose length is at `start` is a string, as BSON has it."""
    if raw[start + 4 + len(key) : start + 5 + len(key)] != b"\0":
        return False
    try:
        return key.isascii() or bool(key.decode())
    except UnicodeDecodeError:
        return False


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise bad_frame("a field name is not UTF-8") from error


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
