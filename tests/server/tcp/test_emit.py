"""EMIT over a real socket: what docs/PROTOCOL.md says of it, sentence by sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.int64 import Int64

import headwater
from headwater.event import Event
from tests.server.process import served
from tests.server.serving import Server
from tests.server.tcp.wire import Wire, frame, wire


def events(server: Server, topic: str, **options: Any) -> list[Event]:
    with headwater.open(server.path) as hw:
        return list(hw.read(topic, **options))


def emit(topic: str, **fields: Any) -> bytes:
    return frame("EMIT", {"streamName": topic, "eventType": "made", "event": {}, **fields})


def counted(server: Server, name: str) -> float:
    (found,) = re.findall(rf"^{re.escape(name)} (\S+)$", server.http.get("/metrics").text, re.MULTILINE)
    return float(found)


def test_an_event_is_stored_byte_for_byte_and_answered_with_its_place(server: Server, client: Wire, topic: str) -> None:
    data = {"total": 12, "of": {"a": [1, Int64(2), 3.5]}, "none": None}
    told = client.emit(topic, data, eventType="placed", key="o-1", meta={"by": "ada"})
    assert (told["ok"], told["offset"], told["partition"]) == (True, 0, 0)
    assert isinstance(told["offset"], Int64)
    (event,) = events(server, topic)
    assert (event.type, event.key, event.content, event.meta) == ("placed", b"o-1", "bson", {"by": "ada"})
    assert event.data == bson.encode(data)
    assert event.id == told["id"].as_uuid()


def test_a_topic_that_is_not_said_is_that_of_the_bus(server: Server, client: Wire) -> None:
    assert client.ask("EMIT", eventType="greeting", event={"to": "all"})["ok"]
    (event,) = events(server, "events")
    assert (event.type, event.value) == ("greeting", {"to": "all"})
    settings = server.http.get("/topic/events").json()["settings"]
    assert settings["retention_segments"] == 16  # as that of the bus, however it was made


def test_pipelined_emits_are_stored_and_answered_in_their_order(server: Server, client: Wire, topic: str) -> None:
    frames = [emit(topic, event={"n": n}, key=str(n % 7)) for n in range(2000)]
    client.send(*frames)
    told = [client.receive()[1] for _ in frames]
    found = events(server, topic)
    assert [each["offset"] for each in told] == list(range(2000))
    assert [each["id"].as_uuid() for each in told] == [event.id for event in found]
    assert [(event.value["n"], event.key) for event in found] == [(n, b"%d" % (n % 7)) for n in range(2000)]


def test_emits_that_arrive_together_share_one_sync(server: Server, topic: str) -> None:
    with wire(server.tcp_url) as one, wire(server.tcp_url) as other:
        one.emit(topic, {})
        before = counted(server, "headwater_commits_total")
        one.send(*[emit(topic) for _ in range(500)])
        other.send(*[emit(topic) for _ in range(500)])
        for each in (one, other):
            assert all(each.receive()[1]["ok"] for _ in range(500))
    assert counted(server, "headwater_commits_total") - before < 100
    assert len(events(server, topic)) == 1001


def test_emits_to_several_topics_are_answered_in_the_order_of_the_requests(client: Wire, topic: str) -> None:
    names = [f"{topic} {n % 3}" for n in range(300)]
    client.send(*[emit(name) for name in names])
    assert [client.receive()[1]["offset"] for _ in names] == [n // 3 for n in range(300)]


def test_types_and_fields_may_change_from_event_to_event(server: Server, client: Wire, topic: str) -> None:
    shapes: list[dict[str, Any]] = [
        {"eventType": f"type {n % 5}", **({"key": f"k{n}"} if n % 2 else {}), **({"meta": {"n": "x"}} if n % 3 else {})}
        for n in range(100)
    ]
    client.send(*[emit(topic, **fields) for fields in shapes])
    assert all(client.receive()[1]["ok"] for _ in shapes)
    found = events(server, topic)
    assert [(e.type, e.key and e.key.decode(), e.meta or None) for e in found] == [
        (fields["eventType"], fields.get("key"), fields.get("meta")) for fields in shapes
    ]


def test_an_event_with_its_fields_in_any_order_is_the_same(server: Server, client: Wire, topic: str) -> None:
    for _ in range(2):
        for body in (
            {"event": {"a": 1}, "eventType": "t", "key": "k", "streamName": topic},
            {"key": "k", "event": {"a": 1}, "streamName": topic, "eventType": "t"},
        ):
            assert client.ask("EMIT", **body)["ok"]
        swapped = bson.encode(
            {"frame": {"streamName": topic, "eventType": "t", "key": "k", "event": {"a": 1}}, "type": "EMIT"}
        )
        client.send(len(swapped).to_bytes(4, "big") + swapped)
        assert client.receive()[1]["ok"]
    assert {(e.type, e.key, e.value["a"]) for e in events(server, topic)} == {("t", b"k", 1)}


@pytest.mark.parametrize(
    ("content", "event", "stored"),
    [
        ("bytes", b"\x00\xff", b"\x00\xff"),
        ("text", "grüß dich", "grüß dich".encode()),
        ("json", '{"a": [1,2]}', b'{"a": [1,2]}'),
        ("bson", {"a": 1}, bson.encode({"a": 1})),
    ],
)
def test_events_of_other_contents(
    server: Server, client: Wire, topic: str, content: str, event: Any, stored: bytes
) -> None:
    assert client.emit(topic, event, content=content)["ok"]
    (found,) = events(server, topic)
    assert (found.content, found.data) == (content, stored)


@pytest.mark.parametrize(
    "fields",
    [
        {"event": "text"},
        {"event": None},
        {"event": [1]},
        {"eventType": None},
        {"eventType": 7},
        {"eventType": "x" * 256},
        {"streamName": 7},
        {"streamName": "x" * 1025},
        {"key": 7},
        {"key": "k" * 1025},
        {"meta": {"n": 1}},
        {"meta": "x"},
        {"partition": -1},
        {"partition": 1},
        {"partition": 1.5},
        {"sessID": 1 << 40},
        {"durability": "perhaps"},
        {"expectedVersion": 0},
        {"expectedVersion": -2, "key": "k"},
        {"producer": {"id": "p"}},
        {"producer": {"id": "p", "epoch": 0, "seq": -1}},
        {"content": "xml"},
        {"content": "bytes", "event": "text"},
        {"content": "json", "event": "{"},
        {"content": "text", "event": b"bytes"},
        {"colour": "red"},
    ],
    ids=lambda fields: repr(fields)[:40],
)
def test_what_is_wrong_with_one_event_is_answered_and_the_others_are_stored(
    server: Server, client: Wire, topic: str, fields: dict[str, Any]
) -> None:
    client.emit(topic, {})
    client.send(emit(topic, event={"n": 0}), emit(topic, **fields), emit(topic, event={"n": 1}))
    told = [client.receive()[1] for _ in range(3)]
    assert [each["ok"] for each in told] == [True, False, True]
    assert told[1]["errCode"]
    assert told[1]["errKind"] in ("Invalid", "TooLarge", "NotFound")
    assert [event.value for event in events(server, topic)] == [{}, {"n": 0}, {"n": 1}]
    assert client.ask("PING")["ok"]


def test_expected_versions(client: Wire, topic: str) -> None:
    assert client.emit(topic, {}, key="k", expectedVersion=-1)["offset"] == 0
    told = client.emit(topic, {}, key="k", expectedVersion=-1)
    assert (told["ok"], told["errCode"], told["errKind"]) == (False, "version_conflict", "Conflict")
    assert told["errFacts"]["version"] == 0
    assert client.emit(topic, {}, key="k", expectedVersion=Int64(0))["offset"] == 1
    client.send(*[emit(topic, key="k", expectedVersion=1) for _ in range(3)])
    assert [client.receive()[1]["ok"] for _ in range(3)] == [True, False, False]


def test_a_producers_event_is_there_once_however_often_it_is_sent(server: Server, client: Wire, topic: str) -> None:
    producer = {"id": "till 7", "epoch": 0, "seq": 0}
    first = client.emit(topic, {"n": 1}, producer=producer)
    assert client.emit(topic, {"n": 1}, producer=producer) == first
    assert client.emit(topic, {"n": 2}, producer=producer | {"seq": 1})["offset"] == 1
    assert len(events(server, topic)) == 2


def test_a_producers_event_is_there_once_when_its_answer_is_lost_with_the_server(tmp_path: Path) -> None:
    sent = emit("t", event={"n": 1}, producer={"id": "till 7", "epoch": 0, "seq": 0})
    with served(tmp_path / "data") as server:
        with wire(server.tcp_url) as client:
            client.send(sent)
            first = client.receive()[1]
        server.kill()
    with served(tmp_path / "data") as again:
        for _ in range(2):
            with wire(again.tcp_url) as client:
                client.send(sent)
                assert client.receive()[1] == first
    with headwater.open(tmp_path / "data") as hw:
        assert [event.value for event in hw.read("t")] == [{"n": 1}]


def test_partitions(server: Server, client: Wire, topic: str) -> None:
    with headwater.open(server.path) as hw:
        hw.create(topic, partitions=3)
    told = [client.emit(topic, {"n": n}, partition=2) for n in range(2)]
    assert [(each["partition"], each["offset"]) for each in told] == [(2, 0), (2, 1)]
    client.send(*[emit(topic, event={"n": n}, key=str(n)) for n in range(30)])
    told = [client.receive()[1] for _ in range(30)]
    found = {(e.partition, e.offset): e for e in events(server, topic)}
    for n, each in enumerate(told):
        assert found[each["partition"], each["offset"]].key == str(n).encode()
    assert len({each["partition"] for each in told}) == 3
    assert client.emit(topic, {}, partition=3)["errCode"] == "partition_not_found"


def test_an_event_of_many_megabytes_is_stored_and_one_above_its_topics_limit_refused(
    server: Server, client: Wire, topic: str
) -> None:
    data = {"blob": b"x" * (3 << 20)}
    client.send(emit(topic, event={"n": 0}), emit(topic, event=data), emit(topic, event={"n": 1}))
    assert [client.receive()[1]["offset"] for _ in range(3)] == [0, 1, 2]
    told = client.emit(topic, {"blob": b"x" * (11 << 20)})
    assert (told["ok"], told["errCode"], told["errKind"]) == (False, "too_large", "TooLarge")
    assert client.ask("PING")["ok"]
    assert events(server, topic)[1].data == bson.encode(data)


def test_an_answer_may_be_had_before_the_event_is_durable(server: Server, client: Wire, topic: str) -> None:
    client.emit(topic, {})
    before = counted(server, "headwater_fsyncs_total")
    for _ in range(20):
        assert client.emit(topic, {}, durability="os")["ok"]
    assert counted(server, "headwater_fsyncs_total") - before < 10


def test_a_topic_that_was_deleted_is_made_again(server: Server, client: Wire, topic: str) -> None:
    assert [client.emit(topic, {})["offset"] for _ in range(3)] == [0, 1, 2]
    assert server.http.delete(f"/topic/{topic}").status_code == 200
    assert client.emit(topic, {"after": True})["offset"] == 0
    assert [event.value for event in events(server, topic)] == [{"after": True}]


def test_a_topic_that_another_process_deleted_is_made_again(server: Server, client: Wire, topic: str) -> None:
    client.emit(topic, {})
    for count in (1, 3, 40):  # alone, and several together
        with headwater.open(server.path) as hw:
            hw.delete(topic)
        client.send(*[emit(topic, event={"n": n}) for n in range(count)])
        assert [client.receive()[1].get("offset") for _ in range(count)] == list(range(count))
        assert [event.value["n"] for event in events(server, topic)] == list(range(count))
