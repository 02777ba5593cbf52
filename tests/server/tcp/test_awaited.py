"""Subscriptions to topics that do not exist yet: they wait, and get all of it, whoever makes it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headwater
from tests.server import people
from tests.server.process import ServerProcess, http, served
from tests.server.serving import Server
from tests.server.tcp.wire import Wire, frame, wire
from tests.waiting import wait_for

kinds = pytest.mark.parametrize("durable", [{}, {"durableID": "d"}], ids=["plain", "durable"])


@pytest.fixture(scope="module")
def server_settings() -> dict[str, Any]:
    return {"limits": {"awaited_topics_max": 3}}


def subscribe(client: Wire, topic: str, **fields: Any) -> int:
    told = client.ask("SUBSCRIBE", streamName=topic, **fields)
    assert told["ok"], told
    return int(told["subID"])


def received(client: Wire, many: int) -> list[Any]:
    found = []
    for _ in range(many):
        type, body = client.receive()
        assert type == "RECEV", (type, body)
        found.append(body["event"])
    return found


@kinds
def test_it_gets_what_another_client_emits_from_the_start(
    server: Server, client: Wire, topic: str, durable: dict[str, str]
) -> None:
    subscribe(client, topic, **durable)
    assert http.get(f"{server.url}/topic/{topic}").status_code == 404  # waiting makes no topic
    with wire(server.tcp_url) as other:
        for n in range(3):
            assert other.emit(topic, {"n": n})["offset"] == n
    assert received(client, 3) == [{"n": n} for n in range(3)]


@kinds
def test_it_gets_what_it_emits_itself_on_the_same_connection(client: Wire, topic: str, durable: dict[str, str]) -> None:
    id = subscribe(client, topic, **durable)
    client.send(frame("EMIT", {"streamName": topic, "eventType": "x", "event": {"n": 1}}))
    types = {}
    for _ in range(2):
        type, body = client.receive()
        types[type] = body
    assert types["RESPONSE"]["ok"]
    assert (types["RECEV"]["subID"], types["RECEV"]["event"]) == (id, {"n": 1})


@kinds
def test_another_process_makes_it_with_several_partitions(
    server: Server, client: Wire, topic: str, durable: dict[str, str]
) -> None:
    id = subscribe(client, topic, **durable)
    program = (
        "import headwater, sys\n"
        "with headwater.open(sys.argv[1]) as hw:\n"
        "    hw.create(sys.argv[2], partitions=2)\n"
        "    for n in range(4): hw.append(sys.argv[2], {'n': n}, partition=n % 2)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(server.path), topic], check=True, timeout=60)
    assert sorted(each["n"] for each in received(client, 4)) == [0, 1, 2, 3]
    client.send(frame("ACKEV", {"subID": id, "seqNo": 1, "partition": 1}))
    assert client.ask("PING")["ok"]


def test_a_filter_and_a_start_hold_when_the_topic_comes(client: Wire, topic: str) -> None:
    subscribe(client, topic, startSequence=2, matcher={"n": {"$gt": 3}})
    for n in range(6):
        client.send(frame("EMIT", {"streamName": topic, "eventType": "x", "event": {"n": n}}))
    bodies = [client.receive() for _ in range(8)]
    assert [body["event"]["n"] for type, body in bodies if type == "RECEV"] == [4, 5]


def test_a_durable_one_goes_on_after_what_was_acknowledged(server: Server, client: Wire, topic: str) -> None:
    id = subscribe(client, topic, durableID="d")
    with wire(server.tcp_url) as other:
        for n in range(3):
            other.emit(topic, {"n": n})
    assert len(received(client, 3)) == 3
    client.send(frame("ACKEV", {"subID": id, "seqNo": 1}))
    assert client.ask("UNSUBSCRIBE", subID=id)["ok"]
    subscribe(client, topic, durableID="d")
    assert received(client, 1) == [{"n": 2}]


def test_one_connection_waits_with_a_durable_name_at_a_time(server: Server, client: Wire, topic: str) -> None:
    id = subscribe(client, topic, durableID="d")
    with wire(server.tcp_url) as other:
        assert other.ask("SUBSCRIBE", streamName=topic, durableID="d")["errCode"] == "subscription_held"
        assert client.ask("UNSUBSCRIBE", subID=id)["ok"]
        subscribe(other, topic, durableID="d")
    subscribe(client, topic, durableID="d")  # the other one has ended, while it waited
    client.send(frame("EMIT", {"streamName": topic, "eventType": "x", "event": {"n": 1}}))
    assert {client.receive()[0], client.receive()[0]} == {"RESPONSE", "RECEV"}


def test_only_so_many_wait_and_those_who_leave_make_room(client: Wire, topic: str) -> None:
    ids = [subscribe(client, f"{topic}-{n}") for n in range(3)]
    assert client.ask("PING")["ok"]
    refused = client.ask("SUBSCRIBE", streamName=f"{topic}-x")
    assert (refused["errCode"], refused["errFacts"]["limit"]) == ("too_many", "awaited_topics_max")
    assert client.ask("SUBSCRIBE", streamName=f"{topic}-x", durableID="d")["errCode"] == "too_many"
    assert client.ask("UNSUBSCRIBE", subID=ids[0])["ok"]
    wait_for(lambda: client.ask("SUBSCRIBE", streamName=f"{topic}-x", durableID="d")["ok"])


def test_a_topic_that_is_deleted_ends_it_as_any_other(server: Server, client: Wire, topic: str) -> None:
    id = subscribe(client, topic)
    with wire(server.tcp_url) as other:
        other.emit(topic, {"n": 1})
        assert received(client, 1) == [{"n": 1}]
        assert http.delete(f"{server.url}/topic/{topic}").status_code == 200
    type, body = client.receive()
    assert (type, body["subID"], body["errCode"]) == ("SUBEND", id, "topic_deleted")


def test_a_name_without_the_right_is_refused_at_once_and_one_that_loses_it_when_the_topic_comes(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    token = people.add(users, "reader", "read:orders.*", token=True)
    with served(tmp_path / "data", "--auth", str(users)) as server, wire(server.tcp_url, token=token) as client:
        for durable in ({}, {"durableID": "d"}):
            assert client.ask("SUBSCRIBE", streamName="stock", **durable)["errCode"] == "forbidden"
        id = subscribe(client, "orders.eu")
        accounts = json.loads(users.read_text())
        accounts["users"]["reader"]["scopes"] = ["read:nothing"]
        users.write_text(json.dumps(accounts))
        headers = {"Authorization": f"Bearer {token}"}
        wait_for(lambda: http.get(f"{server.url}/topic/orders.eu", headers=headers).status_code == 403)
        with headwater.open(tmp_path / "data") as hw:
            hw.append("orders.eu", {"n": 1})
        type, body = client.receive()
        assert (type, body["subID"], body["errCode"]) == ("SUBEND", id, "forbidden")


@kinds
def test_the_server_stops_while_one_waits(tmp_path: Path, durable: dict[str, str]) -> None:
    server = ServerProcess(tmp_path / "data")
    with wire(server.tcp_url) as client:
        id = subscribe(client, "none", **durable)
        server.ask_to_stop()
        type, body = client.receive()
        assert (type, body["subID"], body["errCode"]) == ("SUBEND", id, "stopping")
    assert server.stop() == 0


def test_http_and_python_say_that_the_topic_is_missing(server: Server, topic: str) -> None:
    for query in ("", "?wait_for_more=true", "?format=sse"):
        assert http.get(f"{server.url}/topic/{topic}/items{query}").status_code == 404
    assert http.post(f"{server.url}/consumer/c/{topic}/items").status_code == 404
    for address in (str(server.path), server.url):
        with headwater.open(address) as hw:
            for attempt in (lambda: next(hw.follow(topic)), lambda: hw.consumer("c", topic)):
                with pytest.raises(headwater.NotFound) as caught:
                    attempt()
                assert caught.value.code == "topic_not_found"
