"""Frames of the protocol over TCP: what is taken for BSON is BSON, however deep it is, and however broken."""

from __future__ import annotations

import struct
from typing import Any

import bson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.errors import HeadwaterError
from headwater.format import protocol
from headwater.format.codec import codec
from tests.bsons import array, code_with_scope, document, documents, mutations, text

MIB = 1 << 20


def code_of(raw: bytes, check: Any = protocol.decode) -> str:
    try:
        check(raw)
    except HeadwaterError as error:
        return error.code
    return ""


def accepted(raw: bytes) -> bool:
    """Whether the codec decodes it."""
    found = codec()
    try:
        found.decode(raw, found.options)
    except (found.damage, ValueError, TypeError, OverflowError):
        return False
    return True


def nested(levels: int, kinds: tuple[int, ...] = (3,)) -> bytes:
    """A document with so many levels, itself the first, of these types in turn."""
    found = b"\x05\0\0\0\0"
    for number in range(levels - 1):
        kind = kinds[number % len(kinds)]
        found = document([(kind, b"", found if kind != 0x0F else code_with_scope(b"", found))])
    return found


def in_frame(event: bytes) -> bytes:
    frame = document([(3, b"event", event)])
    return document([(2, b"type", text(b"EMIT")), (3, b"frame", frame)])


@pytest.mark.parametrize("kinds", [(3,), (4,), (0x0F,), (3, 4, 0x0F)])
def test_a_hundred_levels_are_fine_and_one_more_is_too_deep(kinds: tuple[int, ...]) -> None:
    assert code_of(in_frame(nested(98, kinds))) == ""
    assert code_of(in_frame(nested(99, kinds))) == "too_deep"
    for levels, told in ((98, ""), (99, "too_deep")):
        assert code_of(nested(levels, kinds), lambda raw: protocol.check_depth(raw, 3)) == told


def test_wide_documents_are_not_deep() -> None:
    wide = array([(3, nested(90)) for _ in range(200)] + [(3, document([]))] * 5000)
    assert code_of(in_frame(wide)) == ""
    assert code_of(in_frame(array([(3, nested(90)), (3, nested(98))]))) == "too_deep"


def deep(levels: int) -> bytes:
    """The same as `nested`, but made at once."""
    sizes = range(5 + 7 * (levels - 1), 5, -7)
    return b"".join(struct.pack("<i", size) + b"\x03\0" for size in sizes) + b"\x05\0\0\0\0" + b"\0" * (levels - 1)


def test_any_depth_is_refused_and_never_crashes() -> None:
    assert deep(50) == nested(50)
    for levels in (101, 1000, 9000, 100_000, 2_000_000):
        raw = deep(levels)
        assert code_of(raw) == "too_deep"
        assert code_of(raw, protocol.decode_large) == "too_deep"


def test_a_scope_that_points_elsewhere_is_refused() -> None:
    padding = [(3, b"", document([]))] * 200
    for size in (-13, -8, 0, 100, 2**31 - 1, -(2**31)):
        scope = struct.pack("<ii", 14, size) + b"\0\5\0\0\0\0"
        raw = document([(0x0F, b"a", scope), (0x0F, b"b", scope), *padding])
        assert code_of(raw) == "bad_frame"
        assert code_of(raw, protocol.check_depth) in ("bad_frame", "")
        assert code_of(raw, protocol.check) == "bad_frame"


@given(mutations(documents))
@example(document([(0x0F, b"", struct.pack("<i", 0))]))
@example(document([(0x02, b"", struct.pack("<i", 0))]))
@example(document([(0x05, b"", struct.pack("<i", -1))]))
@example(b"")
@example(b"\5\0\0\0")
@example(b"\xff\xff\xff\x7f\0")
def test_what_is_looked_at_without_decoding_raises_nothing_else(raw: bytes) -> None:
    for check in (protocol.decode, protocol.decode_large, protocol.check, protocol.check_depth, protocol.parts):
        assert code_of(raw, check) in ("", "bad_frame")
    assert code_of(raw, lambda raw: protocol.decode_bodies([raw, raw])) in ("", "bad_frame")


@given(mutations(documents), mutations(documents))
def test_the_event_of_what_the_codec_accepts_is_found_where_it_is(body: bytes, event: bytes) -> None:
    for inner in (body, document([(2, b"eventType", text(b"t")), (3, b"event", event), (0x10, b"n", b"\1\0\0\0")])):
        raw = document([(2, b"type", text(b"EMIT")), (3, b"frame", inner)])
        if code_of(raw, lambda raw: protocol.event_of(raw, len(protocol.decode(raw)[1]))):
            continue
        _, frame = protocol.decode(raw)
        found = protocol.event_of(raw, len(frame))
        if found is not None:
            named = frame["event"] if "event" in frame else frame["Event"]
            alone = bson.decode(document([(3, b"event", found)]), codec().options)["event"]
            assert repr(alone) == repr(named)
        if inner is not body:
            assert found == event


def test_the_event_is_found_in_any_order_and_a_field_that_comes_twice_is_refused() -> None:
    event, kind = (3, b"event", document([(2, b"a", text(b"\x03event\0"))])), (2, b"eventType", text(b"t"))
    name = (2, b"type", text(b"EMIT"))
    for fields in ([event, kind], [kind, event], [(3, b"Event", event[2]), kind]):
        frame = (3, b"frame", document(fields))
        for raw in (document([name, frame]), document([frame, name])):
            assert protocol.event_of(raw, 2) == event[2]
    assert protocol.event_of(document([name, (3, b"frame", document([kind]))]), 1) is None
    for wrong in (
        [name, (3, b"frame", document([event, event, kind]))],
        [name, name, (3, b"frame", document([event, kind]))],
        [name, (3, b"frame", document([event, kind])), (3, b"frame", document([event, kind]))],
    ):
        assert code_of(document(wrong), lambda raw: protocol.event_of(raw, 2)) == "bad_frame"


@given(mutations(documents), st.integers(0, 3), st.booleans())
@example(document([(3, b"x", document([(0x10, b"$ref", b"\0\0\0\0"), (0x0A, b"$id", b"")]))]), 0, True)
@example(document([(2, b"", struct.pack("<i", 1) + b"\1")]), 0, True)
def test_piece_by_piece_is_as_good_as_whole(raw: bytes, before: int, scope: bool) -> None:
    filling = [(2, b"x%d" % number, text(b"y" * 30_000)) for number in range(before)]
    inner = document([*filling, (3, b"it", raw), *filling])
    large = document([*filling, (0x0F, b"c", code_with_scope(b"", inner)) if scope else (4, b"d", inner), *filling])
    assert (code_of(large, protocol.check) == "") == accepted(large)


def test_only_an_emit_may_have_large_documents() -> None:
    many = array([(3, document([]))] * 150_000)
    assert len(many) > MIB
    for name, told in ((b"EMIT", ""), (b"SUBSCRIBE", "too_large")):
        raw = document([(2, b"type", text(name)), (3, b"frame", document([(4, b"x", many)]))])
        assert code_of(raw, protocol.decode_large) == told
    body = document([(5, b"body", struct.pack("<iB", 2 * MIB, 0) + b"x" * 2 * MIB)])
    type, found = protocol.decode_large(document([(2, b"type", text(b"QUERY")), (3, b"frame", body)]))
    assert (type, len(found["body"])) == ("QUERY", 2 * MIB)


def test_a_frame_is_a_type_and_a_document_and_nothing_else() -> None:
    fine = document([(2, b"type", text(b"PING")), (3, b"frame", document([]))])
    assert protocol.decode(fine) == ("PING", {})
    assert protocol.parts(fine)[0] == b"PING"
    turned = document([(3, b"frame", document([])), (2, b"type", text(b"PING"))])
    assert protocol.decode(turned) == ("PING", {})
    for wrong in (
        document([(2, b"type", text(b"PING"))]),
        document([(3, b"frame", document([]))]),
        document([(2, b"type", text(b"PING")), (4, b"frame", document([]))]),
        document([(0x10, b"type", b"\1\0\0\0"), (3, b"frame", document([]))]),
        document([(0x0D, b"type", text(b"PING")), (3, b"frame", document([]))]),
        document([(2, b"type", text(b"PING")), (3, b"frame", document([])), (0x0A, b"x", b"")]),
        document([(2, b"type", text(b"\xff")), (3, b"frame", document([]))]),
        fine + b"\0",
        fine[:-1],
    ):
        assert code_of(wrong) == "bad_frame"
        if wrong[:30] != document([(2, b"type", text(b"\xff")), (3, b"frame", document([]))])[:30]:
            assert code_of(wrong, protocol.parts) == "bad_frame"


@given(st.sampled_from(["QUERYRESULT", "X"]), st.dictionaries(st.text("abc", max_size=3), st.integers(0, 9)), documents)
def test_a_document_that_is_put_into_a_frame_is_there_byte_for_byte(
    type: str, fields: dict[str, int], raw: bytes
) -> None:
    framed = protocol.encode_around(type, fields, "result", raw)
    assert struct.unpack_from(">I", framed)[0] == len(framed) - 4
    assert framed.endswith(b"\x03result\0" + raw + b"\0\0")
    name, start = protocol.parts(framed[4:])
    assert name == type.encode()
    assert framed[4 + start + 4 :].startswith(bson.encode(fields)[4:-1])
