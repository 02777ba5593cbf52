"""Subscriptions over a real socket: every sentence of docs/PROTOCOL.md, "Subscriptions", but for durable ones."""

from __future__ import annotations

import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bson
import httpx
import pytest

import headwater
from tests.server import people
from tests.server.process import served
from tests.server.serving import Server, serving
from tests.server.tcp.wire import Wire, frame, framed, wire

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One where little may be unacknowledged, open, or large."""
    limits = {"subscription_unacked_max": 4, "subscriptions_max": 2, "frame_bytes_max": 100_000}
    with serving(tmp_path_factory.mktemp("narrow") / "data", limits=limits) as running:
        yield running


def fill(server: Server, topic: str, numbers: range, **options: Any) -> None:
    """Append events from outside of the server."""
    with headwater.open(server.path) as hw:
        hw.append_many(topic, [bson.encode({"n": n}) for n in numbers], content="bson", **options)


def subscribe(client: Wire, topic: str, **fields: Any) -> int:
    """Subscribe; the subID."""
    client.send(frame("SUBSCRIBE", {"streamName": topic, **fields}))
    type, told = client.receive()
    assert (type, told["ok"]) == ("SUBRESPONSE", True), told
    assert list(told) == ["ok", "subID"]
    return int(told["subID"])


def refused(client: Wire, **fields: Any) -> str:
    """Subscribe in vain; the errCode. The connection goes on."""
    client.send(frame("SUBSCRIBE", fields))
    type, told = client.receive()
    assert (type, told["ok"]) == ("SUBRESPONSE", False), told
    assert client.ask("PING") == {"ok": True}
    return str(told["errCode"])


def event(client: Wire) -> dict[str, Any]:
    type, body = client.receive()
    assert type == "RECEV", (type, body)
    return body


def numbers(client: Wire, most: int) -> list[int]:
    """What the next events hold."""
    return [event(client)["event"]["n"] for _ in range(most)]


def quiet(client: Wire) -> bool:
    """Whether nothing was sent before the answers to what is asked now; it is asked several times."""
    return all(client.ask("PING") == {"ok": True} for _ in range(20))


# Where it begins


def test_events_come_from_the_sequence_on_with_all_their_fields(server: Server, client: Wire, topic: str) -> None:
    client.emit(topic, {"n": 0})
    told = client.emit(topic, {"n": 1, "of": {"a": [1]}}, eventType="placed", key="o-1", meta={"by": "me"})
    client.emit(topic, {"n": 2}, key=b"\xff")
    assert subscribe(client, topic, startSequence=1) == 1
    first, second = event(client), event(client)
    time = first.pop("timestamp")
    assert first == {
        "subID": 1,
        "seqNo": 1,
        "partition": 0,
        "id": told["id"],
        "eventType": "placed",
        "key": "o-1",
        "meta": {"by": "me"},
        "event": {"n": 1, "of": {"a": [1]}},
    }
    assert (second["seqNo"], second["key"], "meta" in second) == (2, b"\xff", False)
    with headwater.open(server.path) as hw:
        stored = list(hw.read(topic, start=1))
    assert [int(each.time.timestamp() * 1000) for each in stored] == [time, second["timestamp"]]


def test_names_may_begin_with_a_capital(client: Wire, topic: str) -> None:
    client.emit(topic, {"n": 0})
    assert client.ask("SUBSCRIBE", StreamName=topic, StartSequence=0.0)["ok"]
    assert numbers(client, 1) == [0]


def test_without_a_start_only_what_is_stored_after_the_answer_comes(client: Wire, topic: str) -> None:
    emits = [frame("EMIT", {"streamName": topic, "eventType": "t", "event": {"n": n}}) for n in range(200)]
    client.send(*emits[:100], frame("SUBSCRIBE", {"streamName": topic}), *emits[100:])
    answers = [client.receive() for _ in range(301)]
    kinds = [type for type, _ in answers]
    assert kinds.index("SUBRESPONSE") == 100
    assert "RECEV" not in kinds[:101]
    assert [body["event"]["n"] for type, body in answers if type == "RECEV"] == list(range(100, 200))


def test_it_begins_with_the_first_event_of_a_time(client: Wire, topic: str) -> None:
    for n in range(3):
        client.emit(topic, {"n": n})
    subscribe(client, topic, startSequence=0)
    times = [event(client)["timestamp"] for _ in range(3)]
    wanted = [n for n in range(3) if times[n] >= times[1]]
    subscribe(client, topic, startTimestamp=times[1])
    assert numbers(client, len(wanted)) == wanted
    subscribe(client, topic, startTimestamp=times[2] + 3_600_000)
    assert quiet(client)
    subscribe(client, topic, startTimestamp=0)
    assert numbers(client, 3) == [0, 1, 2]


def test_a_sequence_behind_the_end_is_waited_for(client: Wire, topic: str) -> None:
    client.emit(topic, {"n": 0})
    subscribe(client, topic, startSequence=2)
    for n in (1, 2):
        client.send(frame("EMIT", {"streamName": topic, "eventType": "t", "event": {"n": n}}))
    got = [client.receive() for _ in range(3)]
    assert [body["event"]["n"] for type, body in got if type == "RECEV"] == [2]


def test_events_of_another_process_come_live(server: Server, client: Wire, topic: str) -> None:
    client.emit(topic, {"n": 0})
    subscribe(client, topic)
    fill(server, topic, range(1, 30))
    assert numbers(client, 29) == list(range(1, 30))


def test_events_of_any_content_come_as_documents(server: Server, client: Wire, topic: str) -> None:
    with headwater.open(server.path) as hw:
        for data in ({"n": 1}, [1, 2], "text", b"\0"):
            hw.append(topic, data)
    subscribe(client, topic, startSequence=0)
    wanted = [{"n": 1}, {"data": [1, 2]}, {"data": "text"}, {"data": b"\0"}]
    assert [event(client)["event"] for _ in wanted] == wanted


# What it wants


def test_only_events_of_a_type_come(client: Wire, topic: str) -> None:
    for n, type in enumerate(["shop.paid(cash)", "shop-paid(cash)", "shop.paid(cash)+", "", "shop.paid(cash)"]):
        client.emit(topic, {"n": n}, eventType=type)
    subscribe(client, topic, eventType="shop.paid(cash)", startSequence=0)
    assert numbers(client, 2) == [0, 4]
    subscribe(client, topic, eventType="", startSequence=0)
    assert numbers(client, 1) == [3]
    assert quiet(client)


def test_only_events_of_matching_types_come(client: Wire, topic: str) -> None:
    for n, type in enumerate(["placed", "paid", "placed.late", "placed"]):
        client.emit(topic, {"n": n}, eventType=type)
    subscribe(client, topic, eventType="placed", startSequence=0)
    assert [(each["seqNo"], each["eventType"]) for each in (event(client), event(client))] == [
        (0, "placed"),
        (3, "placed"),
    ]
    subscribe(client, topic, typeMatcher="placed|p.id", startSequence=0)
    assert numbers(client, 3) == [0, 1, 3]


def test_only_events_that_match_come(client: Wire, topic: str) -> None:
    for n in range(6):
        client.emit(topic, {"n": n, "to": {"city": "AB"[n % 2]}})
    subscribe(client, topic, matcher={"n": {"$gt": 1}, "to.city": "B"}, startSequence=0)
    assert numbers(client, 2) == [3, 5]
    assert quiet(client)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "bad_field"),
        ({"streamName": 7}, "bad_field"),
        ({"streamName": "there", "startAt": 1}, "bad_field"),
        ({"streamName": "there", "startSequence": 1, "startTimestamp": 1}, "bad_field"),
        ({"streamName": "there", "startSequence": -1}, "bad_field"),
        ({"streamName": "there", "startSequence": 1.5}, "bad_field"),
        ({"streamName": "there", "startTimestamp": 1 << 62}, "bad_field"),
        ({"streamName": "there", "matcher": "n"}, "bad_field"),
        ({"streamName": "there", "after": "x"}, "bad_field"),
        ({"streamName": "there", "partition": 0, "durableID": "d"}, "bad_field"),
        ({"streamName": "there", "partition": 1}, "partition_not_found"),
        ({"streamName": ""}, "invalid"),
        ({"streamName": "n" * 1025}, "too_large"),
        ({"streamName": "not there", "typeMatcher": "("}, "bad_pattern"),
        ({"streamName": "not there", "durableID": "d", "matcher": {"$x": 1}}, "bad_match"),
        ({"streamName": "there", "typeMatcher": "("}, "bad_pattern"),
        ({"streamName": "there", "typeMatcher": "a", "eventType": "a"}, "bad_field"),
        ({"streamName": "there", "matcher": {"n": {"$what": 1}}}, "bad_match"),
    ],
)
def test_what_is_wrong_is_told_and_the_connection_goes_on(client: Wire, fields: dict[str, Any], code: str) -> None:
    client.emit("there", {"n": 0})
    assert refused(client, **fields) == code
    assert subscribe(client, "there") == 1  # what was refused has no number


def test_what_retention_deleted_is_told(server: Server, client: Wire, topic: str) -> None:
    with headwater.open(server.path) as hw:
        hw.create(topic, segment_bytes=4096)
        for n in range(60):
            hw.append(topic, {"n": n, "text": "x" * 500})
        hw.retain(topic, retention_segments=2)
    assert refused(client, streamName=topic, startSequence=0) == "offset_gone"


# Acknowledgements


def test_a_thousand_events_are_unacknowledged_and_not_one_more(server: Server, client: Wire, topic: str) -> None:
    fill(server, topic, range(1500))
    id = subscribe(client, topic, startSequence=0)
    assert numbers(client, 1000) == list(range(1000))
    assert quiet(client)
    client.send(frame("ACKEV", {"subID": id}))
    assert numbers(client, 1) == [1000]
    assert quiet(client)
    client.send(frame("ACKEV", {"subID": id, "seqNo": 9}))
    assert numbers(client, 9) == list(range(1001, 1010))
    assert quiet(client)


def test_with_a_sequence_all_up_to_it_are_acknowledged_and_without_one_more(narrow: Server, topic: str) -> None:
    fill(narrow, topic, range(30))
    with wire(narrow.tcp_url) as client:
        subscribe(client, topic, startSequence=0)
        assert numbers(client, 4) == [0, 1, 2, 3]
        client.send(frame("ACKEV", {"subID": 1}), frame("ACKEV", {"subID": 1}))
        assert numbers(client, 2) == [4, 5]
        client.send(frame("ACKEV", {"subID": 1, "seqNo": 1}))  # again: nothing new
        assert quiet(client)
        client.send(frame("ACKEV", {"subID": 1, "seqNo": 4, "partition": 0}))
        assert numbers(client, 3) == [6, 7, 8]
        client.send(frame("ACKEV", {"subID": 1, "seqNo": 100}))  # only what was sent
        assert numbers(client, 4) == [9, 10, 11, 12]
        assert quiet(client)


@pytest.mark.parametrize(
    "nonsense",
    [
        {},
        {"subID": 99},
        {"subID": "1"},
        {"subID": 1, "seqNo": "x"},
        {"subID": 1, "seqNo": -1},
        {"subID": 1, "what": 1},
        {"subID": 1, "seqNo": 5, "partition": 7},
    ],
)
def test_nonsense_has_no_answer_and_no_effect(client: Wire, topic: str, nonsense: dict[str, Any]) -> None:
    client.emit(topic, {"n": 0})
    subscribe(client, topic, startSequence=0)
    assert numbers(client, 1) == [0]
    client.send(frame("ACKEV", nonsense))
    assert quiet(client)


def test_of_several_partitions_each_has_its_order_and_its_sequence(narrow: Server) -> None:
    with wire(narrow.tcp_url) as client:
        with headwater.open(narrow.path) as hw:
            hw.create("parts", partitions=2)
            for partition in (0, 1):
                events = [bson.encode({"n": 100 * partition + n}) for n in range(10)]
                hw.append_many("parts", events, content="bson", partition=partition)
        assert refused(client, streamName="parts", startSequence=0) == "partition_needed"
        id = subscribe(client, "parts", startTimestamp=0)
        assert [(each["partition"], each["seqNo"]) for each in (event(client) for _ in range(4))] == [
            (0, n) for n in range(4)
        ]
        client.send(frame("ACKEV", {"subID": id, "seqNo": 3}))  # of which?
        client.send(frame("ACKEV", {"subID": id, "seqNo": 3, "partition": 1}))  # nothing of it was sent
        assert quiet(client)
        client.send(frame("ACKEV", {"subID": id, "seqNo": 3, "partition": 0}))
        assert numbers(client, 4) == [4, 5, 6, 7]
        client.send(*[frame("ACKEV", {"subID": id})] * 3)
        assert numbers(client, 3) == [8, 9, 100]  # one of partition 0, 7, is not acknowledged
        client.send(frame("ACKEV", {"subID": id, "seqNo": 0, "partition": 1}))
        assert numbers(client, 1) == [101]
        client.send(frame("ACKEV", {"subID": id}))  # that is 7
        assert numbers(client, 1) == [102]
        client.send(frame("UNSUBSCRIBE", {"subID": id}))
        assert client.receive() == ("RESPONSE", {"ok": True})
        only = subscribe(client, "parts", startSequence=8, partition=1)
        assert numbers(client, 2) == [108, 109]
        client.send(frame("ACKEV", {"subID": only, "seqNo": 9}))  # there is only one
        assert quiet(client)


# Several of them


def test_two_subscriptions_of_a_connection_are_independent(server: Server, client: Wire, topic: str) -> None:
    fill(server, topic, range(1200))
    first, second = subscribe(client, topic, startSequence=0), 2
    client.send(frame("SUBSCRIBE", {"streamName": topic, "startSequence": 100}))
    got: dict[int, list[int]] = {first: [], second: []}
    while sum(map(len, got.values())) < 2000:
        type, body = client.receive()
        if type == "RECEV":
            got[body["subID"]].append(body["seqNo"])
        else:
            assert body == {"ok": True, "subID": second}
    assert got == {first: list(range(1000)), second: list(range(100, 1100))}
    client.send(frame("ACKEV", {"subID": second, "seqNo": 1099}))
    assert [event(client)["subID"] for _ in range(100)] == [second] * 100
    assert quiet(client)


def test_a_connection_may_have_so_many_and_no_more(narrow: Server, topic: str) -> None:
    with wire(narrow.tcp_url) as client, wire(narrow.tcp_url) as other:
        client.emit(topic, {"n": 0})
        assert [subscribe(client, topic), subscribe(client, topic, durableID="d")] == [1, 2]
        assert refused(client, streamName=topic) == "too_many"
        assert refused(client, streamName=topic, durableID="e") == "too_many"
        assert client.ask("UNSUBSCRIBE", subID=1) == {"ok": True}
        assert subscribe(client, topic) == 3
        assert subscribe(other, topic) == 1  # each connection counts for itself


def test_a_client_that_takes_nothing_costs_little_and_delays_nobody(tmp_path: Path) -> None:
    data = {"blob": b"x" * (512 * 1024)}
    with serving(tmp_path / "data") as server, wire(server.tcp_url) as slow, wire(server.tcp_url) as quick:
        with headwater.open(server.path) as hw:
            for _ in range(100):
                hw.append("large", bson.encode(data), content="bson", durability="os")
        subscribe(quick, "large", startSequence=0)
        for n in range(20):  # what the server needs to serve one at all
            assert event(quick)["seqNo"] == n
        before = server.anonymous_bytes()
        for _ in range(2):
            slow.send(frame("SUBSCRIBE", {"streamName": "large", "startSequence": 0}))
        for n in range(20, 100):
            assert event(quick)["seqNo"] == n
        assert server.anonymous_bytes() - before < 24 * MIB
        assert slow.receive() == ("SUBRESPONSE", {"ok": True, "subID": 1})
        got = [slow.receive()[1] for _ in range(201)]
        assert [each["seqNo"] for each in got if each["subID"] == 2 and "seqNo" in each] == list(range(100))


# The end


def test_nothing_comes_after_the_answer_to_unsubscribe(server: Server, client: Wire, topic: str) -> None:
    fill(server, topic, range(900))
    id = subscribe(client, topic, startSequence=0)
    assert numbers(client, 10) == list(range(10))
    client.send(frame("UNSUBSCRIBE", {"subID": id}))
    while (got := client.receive())[0] == "RECEV":
        pass
    assert got == ("RESPONSE", {"ok": True})
    other = subscribe(client, topic)
    for n in range(900, 910):  # what the other has had, the first would have had, too
        client.send(frame("EMIT", {"streamName": topic, "eventType": "t", "event": {"n": n}}))
        seen = {body.get("subID") for _, body in (client.receive(), client.receive())}
        assert seen == {None, other}
    assert quiet(client)
    assert client.ask("UNSUBSCRIBE", subID=id)["errCode"] == "subscription_not_found"


def test_what_is_not_durable_cannot_be_deleted(client: Wire, topic: str) -> None:
    client.emit(topic, {"n": 0})
    id = subscribe(client, topic)
    assert client.ask("UNSUBSCRIBE", subID=id, delete=True)["errCode"] == "not_durable"
    assert client.ask("UNSUBSCRIBE", subID=id)["ok"]


def subend(client: Wire, id: int, code: str) -> dict[str, Any]:
    type, told = client.receive()
    assert (type, told["subID"], told["errCode"]) == ("SUBEND", id, code)
    assert told["errMsg"]
    assert told["errKind"]
    assert "ok" not in told
    return told


def test_it_ends_with_its_topic(server: Server, client: Wire, topic: str) -> None:
    client.emit(topic, {"n": 0})
    id = subscribe(client, topic, startSequence=0)
    assert numbers(client, 1) == [0]
    with headwater.open(server.path) as hw:
        hw.delete(topic)
    subend(client, id, "topic_deleted")
    assert quiet(client)
    assert client.ask("UNSUBSCRIBE", subID=id)["errCode"] == "subscription_not_found"
    fill(server, topic, range(1, 2))
    subscribe(client, topic, startSequence=0)
    assert numbers(client, 1) == [1]


def events(first: int) -> list[dict[str, object]]:
    """Twenty of a kilobyte."""
    return [{"n": n, "text": "x" * 1000} for n in range(first, first + 20)]


def test_it_ends_when_retention_passes_a_slow_client(narrow: Server, topic: str) -> None:
    with wire(narrow.tcp_url) as client:
        with headwater.open(narrow.path) as hw:
            hw.create(topic, segment_bytes=8192)
            hw.append_many(topic, events(0))
            id = subscribe(client, topic, startSequence=0)
            assert numbers(client, 4) == list(range(4))
            for n in range(20, 2000, 20):
                hw.append_many(topic, events(n))
            hw.retain(topic, retention_segments=2)
        got = 4
        while True:  # what was read before comes, in order, and then the end
            client.send(frame("ACKEV", {"subID": id, "seqNo": got - 1}))
            type, body = client.receive()
            if type == "SUBEND":
                break
            assert body["seqNo"] == got
            got += 1
        assert (body["subID"], body["errCode"], body["errKind"]) == (id, "offset_gone", "NotFound")
        assert got < 1900
        assert body["errFacts"]["oldest"] > got


def test_it_ends_when_the_server_stops(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, wire(server.tcp_url) as client:
        client.emit("t", {"n": 0})
        ids = [subscribe(client, "t"), subscribe(client, "t", durableID="d")]
        server.process.send_signal(signal.SIGTERM)
        for id in ids:
            subend(client, id, "stopping")
        type, last = client.receive()
        assert (type, last["errCode"]) == ("RESPONSE", "stopping")
        assert client.closed()


@pytest.mark.parametrize("durable", [{}, {"durableID": "d"}])
def test_nothing_comes_after_the_answer_that_ends_the_connection(server: Server, topic: str, durable: Any) -> None:
    fill(server, topic, range(3000))
    with wire(server.tcp_url) as client, wire(server.tcp_url) as other:
        id = subscribe(client, topic, startSequence=0, **durable)
        client.send(framed(b"garbage"), *[frame("ACKEV", {"subID": id, "seqNo": n}) for n in range(500)])
        while (got := client.receive())[0] == "RECEV":
            pass
        assert (got[0], got[1]["errCode"]) == ("RESPONSE", "bad_frame")
        other.emit(topic, {"n": 3000})
        assert client.closed()
        subscribe(other, topic, startSequence=3000, **durable)


@pytest.mark.parametrize("durable", [{}, {"durableID": "d"}])
def test_an_event_too_large_for_a_frame_ends_it_after_those_before(narrow: Server, topic: str, durable: Any) -> None:
    with wire(narrow.tcp_url) as client:
        with headwater.open(narrow.path) as hw:
            for size in (10, 99_000, 100_000, 10):
                hw.append(topic, bytes(size))
        id = subscribe(client, topic, startSequence=0, **durable)
        assert [len(event(client)["event"]["data"]) for _ in range(2)] == [10, 99_000]
        assert subend(client, id, "too_large")["errFacts"]["offset"] == 2
        assert quiet(client)


# Rights and counts


def test_it_takes_the_right_to_read(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    people.add(users, "reader", "read:orders", password=people.SECRET)
    people.add(users, "writer", "append:*", password=people.SECRET)
    with headwater.open(tmp_path / "data") as hw:
        hw.append("orders", {"n": 0})
        hw.append("other", {"n": 0})
    with served(tmp_path / "data", "--auth", str(users)) as running:
        with wire(running.tcp_url, username="writer", password=people.SECRET) as writer:
            assert refused(writer, streamName="orders") == "forbidden"
            assert refused(writer, streamName="orders", durableID="d") == "forbidden"
        with wire(running.tcp_url, username="reader", password=people.SECRET) as reader:
            assert refused(reader, streamName="other") == "forbidden"
            subscribe(reader, "orders", startSequence=0)
            assert numbers(reader, 1) == [0]
            id = subscribe(reader, "orders", startSequence=0, durableID="d")
            assert numbers(reader, 1) == [0]
            told = reader.ask("UNSUBSCRIBE", subID=id, delete=True)
            assert told["errCode"] == "forbidden"
            assert reader.ask("UNSUBSCRIBE", subID=id)["ok"]  # it was still there


def counted(server: Server) -> tuple[float, float, float]:
    """Subscribers that are there, and events and bytes that were delivered."""
    names = ("headwater_subscribers", "headwater_deliveries_total", "headwater_delivery_bytes_total")
    lines = [line.split() for line in httpx.get(f"{server.url}/metrics").text.splitlines()]
    subscribers, events, size = (float(line[1]) for name in names for line in lines if line[0] == name)
    return subscribers, events, size


def test_what_is_delivered_is_counted(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, wire(server.tcp_url) as client:
        fill(server, "t", range(50))
        for fields in ({}, {"durableID": "d"}):
            nobody, events, size = counted(server)
            assert nobody == 0
            id = subscribe(client, "t", startSequence=0, **fields)
            numbers(client, 50)
            subscribers, events_now, size_now = counted(server)
            assert (subscribers, events_now - events) == (1, 50)
            assert size_now - size > 50 * 100
            client.ask("UNSUBSCRIBE", subID=id)
        assert counted(server)[0] == 0


def test_frames_of_huge_events_are_whole_whatever_else_goes_on(client: Wire, topic: str) -> None:
    huge = {"text": "x" * 3_000_000}
    for _ in range(3):
        client.emit(topic, huge)
        client.emit(topic, {"small": True})
    for number in (1, 2):
        assert client.ask("SUBSCRIBE", streamName=topic, startSequence=0)["subID"] == number
    asked = 20
    client.send(*[frame("PING") for _ in range(asked)])
    found: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    answers = 0
    while answers < asked or min(map(len, found.values())) < 6:
        type, body = client.receive()
        if type == "RECEV":
            found[body["subID"]].append(body)
        else:
            assert body == {"ok": True}
            answers += 1
    for events in found.values():
        assert [event["seqNo"] for event in events] == list(range(6))
        assert [event["event"] for event in events] == [huge, {"small": True}] * 3


def test_a_huge_frame_that_has_begun_is_sent_to_its_end_when_nobody_wants_it_any_more(client: Wire, topic: str) -> None:
    client.emit(topic, {"text": "x" * 9_000_000})
    subscribed = client.ask("SUBSCRIBE", streamName=topic, startSequence=0)["subID"]
    head = client.raw(1000)  # the frame has begun
    client.send(frame("UNSUBSCRIBE", {"subID": subscribed}), frame("PING"))
    (size,) = struct.unpack(">I", head[:4])
    assert len(bson.decode(head[4:] + client.raw(size + 4 - len(head)))["frame"]["event"]["text"]) == 9_000_000
    assert [client.receive()[1], client.receive()[1]] == [{"ok": True}] * 2
