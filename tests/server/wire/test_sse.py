"""Server-sent events: what a browser reads of the frames, and where cursors lead."""

from __future__ import annotations

import base64
import json
import re
from typing import NamedTuple
from uuid import UUID

import bson
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.errors import Invalid
from headwater.event import Event
from headwater.format.events import EventBatch
from headwater.format.jsonl import holds_json
from headwater.server.wire import sse
from tests import strategies
from tests.server.wire.logs import event_batches, made, of, opened
from tests.strategies import NOW_TICKS, Batch, Row

TOPIC = UUID("6e8bc430-9c3a-41d9-9669-0800200c9a66")
OTHER = UUID("7e8bc430-9c3a-41d9-9669-0800200c9a66")


class Message(NamedTuple):
    id: str
    event: str
    data: str


def read(stream: bytes) -> list[Message]:
    """What a browser makes of a stream, as the standard of HTML tells it ("Interpreting an event stream")."""
    found: list[Message] = []
    id = event = ""
    data: list[str] = []
    for line in re.split("\r\n|\r|\n", stream.decode("utf-8", errors="strict")):
        if not line:
            if data:
                found.append(Message(id, event or "message", "\n".join(data)))
            event, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            event = value
        elif field == "data":
            data.append(value)
        elif field == "id" and "\0" not in value:
            id = value
        else:
            assert field in ("", "retry")
    return found


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def shown(event: Event, *, bus: bool) -> str:
    """What the data of a message should be."""
    assert event.data is not None
    as_it_is = event.content in ("text", "json") or (event.content == "bytes" and (bus or holds_json(event.data)))
    if as_it_is and is_text(event.data):
        return re.sub("\r\n|\r", "\n", event.data.decode())
    return base64.b64encode(event.data).decode()


def name(type: str) -> str:
    return type.replace("\n", "%0A").replace("\r", "%0D") or "message"


@given(event_batches().filter(lambda batch: batch.piece.batch.content != "bson"), st.booleans())
def test_a_browser_reads_every_event(batch: EventBatch, bus: bool) -> None:
    expected = [Message(str(event.id), name(event.type), shown(event, bus=bus)) for event in batch.events()]
    assert read(sse.encode(batch, bus=bus)) == expected


texts = st.lists(st.sampled_from(["a", "ä", "\n", "\r", "\r\n", ":", " ", "data: x", "", "%", "\u2028", "\0"])).map(
    "".join
)


@given(st.lists(texts, min_size=1, max_size=4), st.lists(texts, min_size=1, max_size=4))
@example(["\n", "\r\n", "\r", "a\r\n\nb\r"], [""])
@example(["a\rb"], [""])
def test_every_line_of_the_data_and_nothing_else_starts_a_data_line(data: list[str], types: list[str]) -> None:
    rows = [Row(text.encode(), types[i % len(types)]) for i, text in enumerate(data)]
    stream = sse.encode(of(rows, "text"))
    assert [(message.event, message.data) for message in read(stream)] == [
        (name(row.type), re.sub("\r\n|\r", "\n", text)) for row, text in zip(rows, data, strict=True)
    ]
    lines = sum(len(re.split("\r\n|\r|\n", text)) for text in data)
    assert stream.count(b"\ndata: ") == lines


def test_the_bytes_of_a_frame() -> None:
    batch = of([Row(b"first\nsecond", "greeting"), Row(b"", "")], "text")
    ids = [str(event.id).encode() for event in batch.events()]
    assert sse.encode(batch) == (
        b"id: %b\nevent: greeting\ndata: first\ndata: second\n\nid: %b\ndata: \n\n" % (ids[0], ids[1])
    )


def test_bytes_that_are_json_are_shown_as_they_are_and_others_as_base64() -> None:
    rows = [b'{"a": 1}', b" [1,\n2]", b"plain", b'{"a": 1', b'["\xff"]']
    found = [message.data for message in read(sse.encode(of([Row(row) for row in rows], "bytes")))]
    assert found == ['{"a": 1}', " [1,\n2]", *(base64.b64encode(row).decode() for row in rows[2:])]


def test_bson_is_shown_as_extended_json_and_what_is_none_as_base64() -> None:
    moment = {"n": 1, "d": bson.Int64(2**40)}
    stream = sse.encode(of([Row(bson.encode(moment)), Row(b"no bson")], "bson"))
    assert [message.data for message in read(stream)] == ['{"n": 1, "d": 1099511627776}', "bm8gYnNvbg=="]


def test_a_huge_event_is_told_of_when_it_does_not_fit_into_memory() -> None:
    with opened() as hw:
        hw.append("t", b"x" * 1000, type="large", content="text")
        hw.append("t", b"x" * 5000, type="huge", content="text")
        large, huge = (message for batch in hw.read_batches("t") for message in read(sse.encode(batch)))
        assert (large.event, large.data) == ("large", "x" * 1000)
        assert huge.event == "headwater.huge"
        assert json.loads(huge.data) == {"type": "huge", "partition": 0, "offset": 1, "data_bytes": 5000}


def test_events_of_the_server_heartbeats_and_delays_are_what_browsers_expect() -> None:
    assert sse.told("headwater.gap", {"after": None}) == b'event: headwater.gap\ndata: {"after":null}\n\n'
    assert sse.retry(2000) == b"retry: 2000\n"
    stream = sse.retry(1) + sse.HEARTBEAT + sse.told("a", "line\nfeed") + sse.HEARTBEAT
    assert read(stream) == [Message("", "a", '"line\\nfeed"')]


offset_lists = st.lists(st.integers(0, 300) | strategies.i64, min_size=1, max_size=20)


@given(offset_lists)
def test_a_cursor_is_read_back(offsets: list[int]) -> None:
    text = sse.cursor_encode(offsets, TOPIC)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert sse.cursor_decode(text, TOPIC) == offsets


@given(offset_lists, st.data())
def test_each_event_of_a_batch_has_the_cursor_after_it(offsets: list[int], data: st.DataObject) -> None:
    partition = data.draw(st.integers(0, len(offsets) - 1))
    moved = sorted(data.draw(st.lists(strategies.i64, min_size=1, max_size=5)))
    found = sse.cursor_texts(offsets, TOPIC, partition, np.array(moved, np.int64))
    expected = [[*offsets[:partition], offset, *offsets[partition + 1 :]] for offset in moved]
    assert [sse.cursor_decode(text.decode(), TOPIC) for text in found] == expected


def test_a_cursor_of_another_topic_is_refused() -> None:
    with pytest.raises(Invalid) as refusal:
        sse.cursor_decode(sse.cursor_encode([1, 2], TOPIC), OTHER)
    assert refusal.value.code == "cursor_of_another"


def test_a_cursor_over_as_many_partitions_as_there_can_be_is_read_back() -> None:
    offsets = [2**62 + number for number in range(4096)]
    assert sse.cursor_decode(sse.cursor_encode(offsets, TOPIC), TOPIC) == offsets


@given(st.text(max_size=80) | offset_lists.map(lambda offsets: sse.cursor_encode(offsets, TOPIC)), st.data())
def test_what_is_no_cursor_is_refused_and_nothing_else_happens(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 3))
    damaged = text[:at] + data.draw(st.text(max_size=3)) + text[at + cut :]
    try:
        offsets = sse.cursor_decode(damaged, TOPIC)
    except Invalid:
        return
    assert sse.cursor_decode(sse.cursor_encode(offsets, TOPIC), TOPIC) == offsets
    assert all(0 <= offset < 1 << 63 for offset in offsets)


def test_ids_can_be_given() -> None:
    batch = made(Batch(5, NOW_TICKS, "text", [Row(b"a"), Row(b"b"), Row(b"c")]), rows=[0, 2])
    assert read(sse.encode(batch, [b"one", b"two"])) == [Message("one", "message", "a"), Message("two", "message", "c")]
