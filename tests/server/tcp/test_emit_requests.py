"""The quick way to decode an EMIT finds what the thorough way finds, or leaves the frame to it."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.errors import HeadwaterError, TooLarge
from headwater.format import protocol
from headwater.limits import DEFAULTS
from headwater.server.tcp.emit import request, usual_request

EVENT = b"\x05\0\0\0\0"
NESTED = b"\x12\0\0\0\x03event\0\x05\0\0\0\0\0"
Field = tuple[int, bytes, bytes]


def document(fields: list[Field]) -> bytes:
    inner = b"".join(bytes((kind,)) + name + b"\0" + value for kind, name, value in fields)
    return struct.pack("<i", len(inner) + 5) + inner + b"\0"


def text(value: bytes) -> bytes:
    return struct.pack("<i", len(value) + 1) + value + b"\0"


def binary(value: bytes, subtype: int = 0) -> bytes:
    return struct.pack("<iB", len(value), subtype) + value


def emit(fields: list[Field], after: list[Field] | None = None) -> bytes:
    return document([(2, b"type", text(b"EMIT")), (3, b"frame", document(fields)), *(after or [])])


def pretending(size: int) -> bytes:
    """Bytes that look like the beginning of an event of so many bytes."""
    return b"\x03event\0" + struct.pack("<i", size)


TYPE: Field = (2, b"eventType", text(b"placed"))
texts = st.one_of(st.sampled_from([b"", b"t", "ü".encode(), b"x" * 256]), st.integers(0, 60).map(pretending)).map(text)
names = st.sampled_from([b"a", b"event", "ü".encode()])
fields = st.one_of(
    st.tuples(st.just(2), st.sampled_from([b"streamName", b"StreamName", b"eventType", b"key", b"durability"]), texts),
    st.tuples(st.just(5), st.just(b"key"), st.builds(binary, st.integers(0, 60).map(pretending), st.integers(0, 1))),
    st.tuples(st.just(3), st.sampled_from([b"event", b"Event", b"meta"]), st.sampled_from([EVENT, NESTED])),
    st.tuples(st.just(0x0A), st.sampled_from([b"streamName", b"key", b"event"]), st.just(b"")),
    st.tuples(st.just(0x10), st.sampled_from([b"event", b"sessID"]), st.just(b"\1\0\0\0")),
    st.tuples(st.just(3), st.just(b"meta"), st.lists(st.tuples(st.just(2), names, texts), max_size=2).map(document)),
    st.just(TYPE),
)


@given(st.lists(fields, max_size=5), st.lists(st.just((2, b"type", text(b"EMIT"))), max_size=1))
@example([TYPE, (3, b"event", EVENT)], [])
@example([TYPE, (3, b"event", EVENT), (3, b"event", EVENT)], [])
@example([TYPE, TYPE, (3, b"event", EVENT)], [])
@example([TYPE, (3, b"event", EVENT)], [(2, b"type", text(b"EMIT"))])
@example([TYPE, (3, b"event", EVENT), (2, b"durability", text(b"os"))], [])
@example([TYPE, (5, b"key", binary(pretending(5))), (3, b"event", EVENT)], [])
@example([(2, b"streamName", text("ü".encode())), TYPE, (3, b"event", EVENT)], [])
def test_what_is_found_quickly_is_what_is_found_thoroughly(inner: list[Field], after: list[Field]) -> None:
    raw = emit(inner, after)
    try:
        [frame] = protocol.decode_bodies([raw])
    except HeadwaterError:
        return
    found = usual_request(raw, frame, "bus", DEFAULTS)
    if found is not None:
        assert (found, None) == request(raw, frame, "bus", DEFAULTS)


def test_meta_that_is_too_large_is_refused_alike() -> None:
    raw = emit([TYPE, (3, b"meta", document([(2, b"a", text(b"x" * DEFAULTS.meta_bytes_max))])), (3, b"event", EVENT)])
    [frame] = protocol.decode_bodies([raw])
    with pytest.raises(TooLarge) as quick:
        usual_request(raw, frame, "bus", DEFAULTS)
    with pytest.raises(TooLarge) as thorough:
        request(raw, frame, "bus", DEFAULTS)
    assert quick.value.message == thorough.value.message


def test_the_usual_frames_are_found_quickly() -> None:
    topic, key = (2, b"streamName", text(b"orders")), (2, b"key", text("ü".encode()))
    event: Field = (3, b"event", document([(2, b"a", text(b"\x03even"))]))
    blob = (5, b"key", binary(b"\xff\0"))
    meta = (3, b"meta", document([(2, b"trace", text(b"1")), (2, b"b", text(b""))]))
    for inner in ([TYPE, event], [topic, TYPE, event], [event, TYPE, key], [meta, TYPE, event, blob, topic]):
        raw = emit(inner)
        frame: dict[str, Any] = protocol.decode_bodies([raw])[0]
        found = usual_request(raw, frame, "bus", DEFAULTS)
        assert found is not None
        assert (found, None) == request(raw, frame, "bus", DEFAULTS)
