"""One event that is in memory goes as an EMIT over TCP: what the frame says, and that it is one."""

from __future__ import annotations

import io
from typing import Any

import bson
from hypothesis import given
from hypothesis import strategies as st

import headwater
from headwater.client import emitting
from headwater.event import Content
from headwater.format.given import encode_meta
from headwater.format.producers import Producer
from headwater.limits import DEFAULTS
from tests.server.serving import Server
from tests.waiting import wait_for

LITTLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(
    topic=LITTLE.filter(bool),
    type=LITTLE,
    key=st.none() | st.binary(max_size=8),
    meta=st.none() | st.dictionaries(LITTLE.filter(lambda name: "\0" not in name), LITTLE, min_size=1, max_size=3),
    event=st.binary(max_size=40) | LITTLE | st.dictionaries(LITTLE.filter(lambda name: "\0" not in name), LITTLE),
    partition=st.none() | st.integers(0, (1 << 31) - 1),
    expected=st.none() | st.just("none") | st.integers(0, (1 << 63) - 1),
    producer=st.tuples(LITTLE.filter(bool), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 63) - 1)),
)
def test_a_frame_says_what_was_asked_for(
    topic: str,
    type: str,
    key: bytes | None,
    meta: dict[str, str] | None,
    event: Any,
    partition: int | None,
    expected: Any,
    producer: tuple[str, int, int],
) -> None:
    content: Content = "bytes" if isinstance(event, bytes) else "text" if isinstance(event, str) else "bson"
    data = bson.encode(event) if content == "bson" else event.encode() if content == "text" else event
    query = {"type": type or None, "key": key, "partition": partition, "expected_version": expected, "durability": "os"}
    frame = emitting.encode(topic, data, content, encode_meta(meta, DEFAULTS), query, Producer(*producer))
    assert frame is not None
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    told = bson.decode(frame[4:])
    asked: dict[str, Any] = {"streamName": topic, "eventType": type, "durability": "os", "event": event}
    asked |= {"producer": dict(zip(("id", "epoch", "seq"), producer, strict=True))}
    asked |= {} if content == "bson" else {"content": content}
    version = -1 if expected == "none" else expected
    maybe = {"key": key, "partition": partition, "meta": meta, "expectedVersion": version}
    assert told == {"type": "EMIT", "frame": asked | {name: said for name, said in maybe.items() if said is not None}}


def test_what_a_frame_cannot_hold_is_no_frame() -> None:
    asked = {"type": "t", "key": None, "partition": None, "expected_version": None, "durability": "os"}
    who = Producer("p", 0, 0)

    def frame(topic: str = "t", data: bytes = b"x", meta: bytes | None = None, **said: Any) -> bytes | None:
        return emitting.encode(topic, data, "bytes", meta, asked | said, who)

    assert frame() is not None
    assert frame(topic="") is None
    assert frame(data=b"x" * (1024 * 1024 + 1)) is None
    assert frame(meta=b'{"a\\u0000b": "x"}') is None
    assert frame(partition=-1) is None
    assert frame(expected_version=1 << 63) is None


def answered(server: Server, route: str) -> float:
    """How many requests of a kind there were."""
    lines = server.http.get("/metrics").text.splitlines()
    found = (line for line in lines if line.startswith("headwater_http_requests_total") and f'route="{route}"' in line)
    return sum(float(line.split()[-1]) for line in found)


def test_an_event_in_memory_is_an_emit_and_anything_else_is_a_request(server: Server, topic: str) -> None:
    items = "/topic/{name}/items"
    with headwater.open(server.tcp_url) as hw:
        emits, posts = answered(server, "EMIT"), answered(server, items)
        hw.append(topic, {"total": 1}, key="k", type="t", meta={"a": "b"}, expected_version="none")
        hw.append(topic, "text", partition=0, durability="os")
        # It is counted when the answer is written, by another thread than the one that hears it.
        wait_for(lambda: (answered(server, "EMIT"), answered(server, items)) == (emits + 2, posts))
        hw.append(topic, io.BytesIO(b"streamed"))
        hw.append(topic, b"x" * 2_000_000)
        hw.append(topic, b"x", meta={"a\0b": "c"})
        hw.append_many(topic, [b"y"])
        wait_for(lambda: (answered(server, "EMIT"), answered(server, items)) == (emits + 2, posts + 4))
        assert [event.meta for event in hw.read(topic)][-2] == {"a\0b": "c"}
