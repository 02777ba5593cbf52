"""RECEV frames: what an independent decoder finds in them."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.errors import TooLarge
from headwater.event import Content, Event
from headwater.format import contents
from headwater.format.events import EventBatch
from headwater.limits import FRAME_BYTES_MAX, Limits
from headwater.server.tcp import recev
from headwater.server.tcp.subscription import Frames
from tests import strategies
from tests.server.wire.logs import event_batches, made, of, opened
from tests.strategies import NOW_TICKS, Batch, Row

OPTIONS: CodecOptions[Any] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)


def cut(frames: Frames) -> list[bytes]:
    """The frames one by one, by their lengths, which must be where they say that they end."""
    found, at = [], 0
    for end in frames.ends:
        (size,) = struct.unpack_from(">I", frames.data, at)
        assert at + 4 + size == end
        found.append(frames.data[at + 4 : end])
        at = end
    assert at == len(frames.data)
    return found


def whole(frames: Frames) -> Frames:
    """The frames with their bytes, also if they are one of a huge event, which come piece by piece."""
    if frames.huge is None:
        return frames
    data = b"".join(frames.huge)
    return Frames(data, [len(data)], frames.partition, frames.offsets)


def received(frames: list[Frames]) -> list[dict[str, Any]]:
    """The bodies of frames."""
    found = []
    for each in map(whole, frames):
        bodies = []
        for raw in cut(each):
            decoded = bson.decode(raw, OPTIONS)
            assert list(decoded) == ["type", "frame"]
            assert decoded["type"] == "RECEV"
            bodies.append(decoded["frame"])
        assert [body["seqNo"] for body in bodies] == list(each.offsets)
        assert {body["partition"] for body in bodies} == {each.partition}
        found += bodies
    return found


def sent(batches: list[EventBatch], frame_max: int = FRAME_BYTES_MAX) -> list[dict[str, Any]]:
    """All frames of batches, as a subscription asks for them."""
    rest, found = iter(batches), []
    while (encoded := recev.encode(7, rest, frame_max)).frames:
        assert encoded.error is None
        found += received(encoded.frames)
    return found


def expected(batches: list[EventBatch]) -> list[dict[str, Any]]:
    """The fields of each event beside the event itself, told without arrays."""
    found = []
    for batch in batches:
        for event in batch.events():
            body: dict[str, Any] = {
                "subID": 7,
                "seqNo": event.offset,
                "timestamp": (event.ticks - 122_192_928_000_000_000) // 10_000,
                "partition": event.partition,
                "id": bson.Binary(event.id.bytes, 4),
                "eventType": event.type,
            }
            if event.key is not None:
                try:
                    body["key"] = event.key.decode()
                except UnicodeDecodeError:
                    body["key"] = event.key
            if event.meta:
                body["meta"] = {name: value for name, value in event.meta.items() if "\0" not in name}
            if not is_as_said(event):
                body["content"] = "bytes"
            found.append(body)
    return found


def is_as_said(event: Event) -> bool:
    """Whether an event can be sent as what its content says, or at least as text."""
    assert event.data is not None
    try:
        if event.content == "bson":
            bson.decode(event.data, OPTIONS)
        elif event.content != "bytes":
            event.data.decode()
    except (bson.errors.BSONError, ValueError):
        return False
    return True


@given(st.lists(event_batches(), max_size=3))
def test_every_field_is_that_of_the_event(batches: list[EventBatch]) -> None:
    found = sent(batches)
    for body in found:
        assert isinstance(body.pop("event"), dict)
    assert found == expected(batches)


bson_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=8)
    | strategies.unicode_text,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(strategies.unicode_text.filter(lambda name: "\0" not in name), inner, max_size=3)
    ),
    max_leaves=6,
)
names = strategies.unicode_text.filter(lambda name: "\0" not in name)
documents = st.dictionaries(names, bson_values, max_size=4)


@given(st.lists(documents, min_size=1, max_size=40), st.sampled_from(["placed", ""]))
@example([{}], "")
@example([{}] * 40, "placed")
def test_an_event_of_bson_is_sent_byte_for_byte(values: list[dict[str, Any]], type: str) -> None:
    stored = [bson.encode(value) for value in values]
    batch = of([Row(each, type) for each in stored], "bson")
    frames = recev.encode(1, iter([batch]), FRAME_BYTES_MAX).frames
    raw = [each for some in frames for each in cut(some)]
    assert len(raw) == len(stored)
    for frame, document in zip(raw, stored, strict=True):
        assert frame.endswith(b"\x03event\0" + document + b"\0\0")
    assert [body["event"] for body in received(frames)] == values


json_numbers = st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | json_numbers | strategies.unicode_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(json_values, min_size=1, max_size=20))
def test_json_comes_as_bson_and_what_is_no_object_in_data(values: list[Any]) -> None:
    batch = of([Row(json.dumps(value).encode()) for value in values], "json")
    wanted = [value if isinstance(value, dict) else {"data": value} for value in values]
    assert [body["event"] for body in sent([batch])] == wanted


@pytest.mark.parametrize(
    ("content", "data", "event"),
    [
        ("json", b'{"n": 18446744073709551616}', {"data": '{"n": 18446744073709551616}'}),
        ("json", b'{"a\\u0000b": 1}', {"data": '{"a\\u0000b": 1}'}),
        ("json", b"[" * 400 + b"]" * 400, {"data": "[" * 400 + "]" * 400}),
        ("json", b'{"a":' * 99 + b"1" + b"}" * 99, {"data": '{"a":' * 99 + "1" + "}" * 99}),
        ("json", b"{never json", {"data": "{never json"}),
        ("json", b"\xff", {"data": b"\xff"}),
        ("text", "größer\0".encode(), {"data": "größer\0"}),
        ("text", b"\xff", {"data": b"\xff"}),
        ("bytes", b"\0\xff", {"data": b"\0\xff"}),
        ("bytes", b"", {"data": b""}),
        ("bson", b"not bson", {"data": b"not bson"}),
        ("bson", b"", {"data": b""}),
        ("bson", b"\x06\0\0\0\0", {"data": b"\x06\0\0\0\0"}),
        ("bson", b"\x05\0\0\0\1", {"data": b"\x05\0\0\0\1"}),
    ],
)
@pytest.mark.parametrize("count", [1, 20])
def test_what_bson_cannot_hold_comes_in_data(content: Content, data: bytes, event: dict[str, Any], count: int) -> None:
    assert [body["event"] for body in sent([of([Row(data)] * count, content)])] == [event] * count


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def test_json_is_a_document_as_long_as_the_frame_is_not_too_deep() -> None:
    (deepest, deeper) = sent([of([Row(nested(98))], "json"), of([Row(nested(99))], "json")])
    assert "a" in deepest["event"]
    assert "data" in deeper["event"]


@pytest.mark.parametrize("count", [1, 30])
def test_an_event_that_fits_no_frame_ends_it_after_those_before(count: int) -> None:
    small = bson.encode({"a": 1})
    (fits,) = recev.encode(7, iter([of([Row(small)], "bson")]), FRAME_BYTES_MAX).frames
    frame_max = len(fits.data) - 4
    large = bson.encode({"ab": 1})
    batch = of([Row(small)] * count + [Row(large)] + [Row(small)] * count, "bson")
    frames, error = recev.encode(7, iter([batch]), frame_max)
    assert [body["seqNo"] for body in received(frames)] == list(range(1000, 1000 + count))
    assert isinstance(error, TooLarge)
    assert (error.code, error.offset) == ("too_large", 1000 + count)


def test_an_event_that_fits_no_frame_at_the_start_is_told_alone() -> None:
    frames, error = recev.encode(7, iter([of([Row(b"abc")] * 20)]), 20)
    assert frames == []
    assert error is not None


def test_huge_events_are_read_from_their_files_unless_they_fit_no_frame() -> None:
    limits = Limits(blob_bytes_min=300, blob_bytes_in_memory=500)
    with opened(limits) as hw:
        values = [b"a" * 100, b"b" * 400, b"c" * 3000, b"d", b"e" * 90_000, b"f"]
        for value in values:
            hw.append("t", value)
        batches = list(hw.read_batches("t"))
        frames, error = recev.encode(7, iter(batches), 8000)
        assert [body["event"] for body in received(frames)] == [{"data": value} for value in values[:4]]
        assert error is not None
        assert error.offset == 4
        assert [body["event"]["data"] for body in sent(batches)] == values


def test_a_large_read_is_encoded_a_piece_at_a_time() -> None:
    batches = [of([Row(bytes(5000))] * 20) for _ in range(20)]
    rest = iter(batches)
    sizes = []
    while frames := recev.encode(7, rest, FRAME_BYTES_MAX).frames:
        sizes.append(sum(len(each.data) for each in frames))
    assert sum(sizes) > 2_000_000
    assert max(sizes) < 2 * recev.CHUNK_BYTES


def test_a_batch_of_bson_is_checked_once_however_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def is_bson(values: Sequence[bytes]) -> bool:
        looked.append(len(values))
        return contents.is_bson(values)

    monkeypatch.setattr(recev, "is_bson", is_bson)
    monkeypatch.setattr(recev, "_checked", {})
    monkeypatch.setattr(recev, "CHECKED_MAX", 2)
    rows = [Row(bson.encode({"n": number})) for number in range(100)]
    batch = of(rows, "bson")
    first = sent([batch.part(0, 40), batch.part(40, 100)])
    assert first == sent([batch]) == sent([batch.part(0, 70), batch.part(70, 100)])
    assert [body["event"] for body in first] == [{"n": number} for number in range(100)]
    assert looked == [40, 60]
    broken = of([*rows[:99], Row(b"no BSON")], "bson")  # at the same place
    for _ in range(2):
        assert sent([broken])[99]["event"] == {"data": b"no BSON"}
    assert sent([broken.part(0, 50), broken.part(50, 100)])[99]["content"] == "bytes"
    for others in range(1, 4):
        sent([of(rows[others:], "bson")])
        assert len(recev._checked) <= 2


def test_the_check_of_picked_events_says_nothing_about_the_others() -> None:
    rows = [Row(bson.encode({"other": number})) for number in range(50)]
    batch = Batch(1000, NOW_TICKS, "bson", [*rows, Row(b"no BSON")])
    assert len(sent([made(batch, rows=list(range(50)))])) == 50
    assert sent([made(batch)])[50]["event"] == {"data": b"no BSON"}
