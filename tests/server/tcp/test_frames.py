"""The rules of fields, and of CONNECT: what is wrong with one is told, and the connection goes on, or ends."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
from bson.binary import Binary, UuidRepresentation
from bson.code import Code
from bson.int64 import Int64

from tests.server.serving import Server
from tests.server.tcp.wire import Closed, Wire, frame, wire

EMIT: dict[str, Any] = {"streamName": "t", "eventType": "x", "event": {}}
BAD = [
    ("PING", {"x": 1}, "unknown field 'x'"),
    ("PING", {"": None}, "unknown field ''"),
    ("EMIT", {**EMIT, "Colour": 1}, "unknown field 'Colour'"),
    ("EMIT", {**EMIT, "streamname": "t"}, "unknown field 'streamname'"),
    ("EMIT", {**EMIT, "StreamName": "t"}, "'streamName' twice"),
    ("EMIT", {**EMIT, "Event": {}}, "'event' twice"),
    ("EMIT", {"streamName": "t", "event": {}}, "'eventType'"),
    ("EMIT", {"streamName": "t", "eventType": "x"}, "'event'"),
    ("EMIT", {**EMIT, "event": []}, "'event'"),
    ("EMIT", {**EMIT, "event": "text"}, "'event'"),
    ("EMIT", {**EMIT, "eventType": 1}, "'eventType'"),
    ("EMIT", {**EMIT, "eventType": Code("x")}, "'eventType'"),
    ("EMIT", {**EMIT, "streamName": b"t"}, "'streamName'"),
    ("EMIT", {**EMIT, "key": 1}, "'key'"),
    ("EMIT", {**EMIT, "partition": 0.5}, "'partition'"),
    ("EMIT", {**EMIT, "partition": True}, "'partition'"),
    ("EMIT", {**EMIT, "partition": float("inf")}, "'partition'"),
    ("EMIT", {**EMIT, "partition": -1}, "'partition'"),
    ("EMIT", {**EMIT, "partition": 2**31}, "'partition'"),
    ("EMIT", {**EMIT, "sessID": 2**31}, "'sessID'"),
    ("EMIT", {**EMIT, "sessID": "1"}, "'sessID'"),
    ("EMIT", {**EMIT, "key": "k", "expectedVersion": -2}, "'expectedVersion'"),
    ("EMIT", {**EMIT, "durability": "soon"}, "'durability'"),
    ("EMIT", {**EMIT, "meta": []}, "'meta'"),
    ("EMIT", {**EMIT, "producer": "p"}, "'producer'"),
    ("EMIT", {**EMIT, "producer": {"id": "p", "epoch": 0}}, "'seq'"),
    ("EMIT", {**EMIT, "content": "xml"}, "'xml'"),
    ("EMIT", {**EMIT, "content": "text"}, "a string for 'event'"),
    ("EMIT", {**EMIT, "content": "bytes", "event": "x"}, "binary data for 'event'"),
    ("STARTTX", {}, "'sessID'"),
    ("STARTTX", {"sessID": None}, "'sessID'"),
    ("STARTTX", {"sessID": 1.5}, "'sessID'"),
    ("COMMITTX", {"sessID": 2**40}, "'sessID'"),
    ("ABORTTX", {"sessID": 1, "x": 1}, "unknown field 'x'"),
    ("SUBSCRIBE", {}, "'streamName'"),
    ("UNSUBSCRIBE", {}, "'subID'"),
    ("QUERY", {"binder": "b", "matcher": {}}, "'queryID'"),
    ("CONNECT", {"version": "1.0"}, "once"),
]


@pytest.mark.parametrize(("type", "body", "told"), BAD)
def test_what_is_wrong_with_a_field_is_told_and_the_connection_goes_on(
    client: Wire, type: str, body: dict[str, Any], told: str
) -> None:
    client.send(frame(type, body), frame("PING"))
    answer, found = client.receive()
    assert answer == ("SUBRESPONSE" if type == "SUBSCRIBE" else "RESPONSE")
    assert (found["ok"], found["errCode"], found["errKind"]) == (False, "bad_field", "Invalid")
    assert told in found["errMsg"], found
    assert client.receive() == ("RESPONSE", {"ok": True})


def test_numbers_may_be_of_any_type_that_holds_them(client: Wire) -> None:
    for session in (7, Int64(8), 9.0, -1, -(2**31), -0.0):
        assert client.ask("STARTTX", sessID=session) == {"ok": True}
        told = client.ask("EMIT", **{**EMIT, "sessID": session, "partition": 0.0})
        assert told == {"ok": True}
        assert client.ask("ABORTTX", SessID=Int64(int(session))) == {"ok": True}


def test_a_field_that_is_null_is_one_that_is_not_said(client: Wire) -> None:
    assert client.ask("EMIT", **{**EMIT, "key": None, "meta": None, "partition": None, "content": None})["ok"]


def test_a_key_may_be_binary_of_any_kind(client: Wire) -> None:
    id = UUID("6e8bc430-9c3a-41d9-9669-0800200c9a66")
    keys = [id.bytes, Binary.from_uuid(id, UuidRepresentation.STANDARD), Binary(id.bytes, 0x80)]
    found = [client.ask("EMIT", **{**EMIT, "streamName": "keys", "key": key}) for key in keys]
    assert [each["offset"] for each in found] == [0, 1, 2]
    last = client.ask("EMIT", **{**EMIT, "streamName": "keys", "key": id.bytes, "expectedVersion": 2})
    assert last["ok"]  # it is the same key


@pytest.mark.parametrize("version", ["1.0", "1", "1.7", "1.0.3"])
def test_other_minor_versions_are_fine(server: Server, version: str) -> None:
    with wire(server.tcp_url, version=version) as client:
        assert client.ask("PING") == {"ok": True}


def test_connect_says_who_answers(server: Server) -> None:
    client = Wire(server.tcp_url)
    told = client.connect()
    client.close()
    assert told["version"] == "1.0"
    assert re.fullmatch(r"headwater/\d+\.\d+.*", told["server"])
    assert str(UUID(told["uuid"])) == told["uuid"]


@pytest.mark.parametrize("type", ["CALL", "CALLBODY"])
def test_a_request_of_http_is_no_frame(client: Wire, type: str) -> None:
    told = client.ask(type, method="GET", target="/topics")
    assert (told["ok"], told["errCode"]) == (False, "unknown_frame")
    assert client.closed()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "bad_field"),
        ({"version": 1}, "bad_field"),
        ({"version": "2.0"}, "unsupported_version"),
        ({"version": ""}, "unsupported_version"),
        ({"version": "1.0", "colour": 1}, "bad_field"),
        ({"version": "1.0", "username": "ada"}, "bad_field"),
        ({"version": "1.0", "username": "a:b", "password": "x"}, "bad_field"),
        ({"version": "1.0", "username": "ada", "password": "x", "token": "y"}, "bad_field"),
    ],
)
def test_a_connect_that_fails_ends_the_connection(server: Server, body: dict[str, Any], code: str) -> None:
    client = Wire(server.tcp_url)
    client.send(frame("CONNECT", body), frame("PING"))
    assert client.receive()[1]["errCode"] == code
    assert client.closed()
    client.close()


def test_a_frame_may_be_sent_byte_by_byte(client: Wire) -> None:
    sent = frame("EMIT", {**EMIT, "streamName": "trickle"}) + frame("PING")
    for byte in sent:
        client.socket.send(bytes((byte,)))
    assert client.receive()[1]["offset"] == 0
    assert client.receive() == ("RESPONSE", {"ok": True})


def test_who_sends_no_more_gets_all_answers(server: Server) -> None:
    client = Wire(server.tcp_url)
    emits = [frame("EMIT", {**EMIT, "streamName": f"half {n % 3}"}) for n in range(300)]
    client.send(frame("CONNECT", {"version": "1.0"}), *emits, frame("PING"), frame("PING")[:9])
    client.socket.shutdown(1)
    assert [client.receive()[1]["ok"] for _ in range(302)] == [True] * 302
    with pytest.raises(Closed):
        client.receive()
    client.close()
