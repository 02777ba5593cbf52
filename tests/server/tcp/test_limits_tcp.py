"""The limits of connections over TCP, on a server with small ones: what is above them is told, and others go on."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Server, serving
from tests.server.tcp.wire import Closed, Wire, frame, wire

CONNECT = frame("CONNECT", {"version": "1.0"})
LIMITS = {
    "connections_max": 4,
    "header_s": 0.5,
    "body_idle_s": 0.5,
    "idle_s": 1.0,
    "write_s": 1.0,
}


@pytest.fixture(scope="module")
def server_settings() -> dict[str, Any]:
    return {"limits": LIMITS}


def rest(client: Wire) -> list[tuple[str, str]]:
    """The types and codes of all frames that come before the connection ends."""
    found = []
    try:
        while True:
            type, body = client.receive()
            found.append((type, body.get("errCode", "ok")))
    except Closed:
        client.close()
    return found


def last(client: Wire) -> str:
    """The code of the last answer before the connection ends."""
    return rest(client)[-1][1]


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", "no CONNECT frame was received in time"),
        (CONNECT[:7], "no CONNECT frame was received in time"),
        (CONNECT, "the connection was idle for too long"),
        (CONNECT + frame("PING")[:9], "a frame timed out"),
        (CONNECT + frame("STARTTX", {"sessID": 1}), "the connection was idle for too long"),
    ],
)
def test_who_sends_nothing_is_told_and_cut_off(server: Server, sent: bytes, told: str) -> None:
    client = Wire(server.tcp_url)
    client.send(sent)
    while (found := client.receive()[1])["ok"]:
        pass
    assert (found["errCode"], found["errMsg"]) == ("timeout", told)
    assert client.closed()
    client.close()


def test_a_subscription_keeps_a_connection(server: Server) -> None:
    with wire(server.tcp_url) as client:
        client.emit("kept", {})
        assert client.ask("SUBSCRIBE", streamName="kept")["ok"]
        silent = Wire(server.tcp_url)
        silent.send(CONNECT)
        assert last(silent) == "timeout"
        assert client.ask("PING") == {"ok": True}


def _ping_for_ever(client: Wire, other: Wire) -> None:
    while True:
        client.socket.send(frame("PING") * 1000)
        assert other.ask("PING") == {"ok": True}


def test_who_takes_nothing_is_cut_off_and_others_go_on(server: Server) -> None:
    with wire(server.tcp_url) as other:
        client = Wire(server.tcp_url, timeout_s=5)
        client.send(CONNECT)
        with pytest.raises((ConnectionError, TimeoutError)):
            _ping_for_ever(client, other)
        client.close()


def test_connections_that_are_too_many_are_told_so(server: Server) -> None:
    clients = [Wire(server.tcp_url) for _ in range(4)]
    for client in clients:
        assert client.connect()["ok"]
    assert last(Wire(server.tcp_url)) == "overloaded"
    assert clients[0].ask("PING") == {"ok": True}
    for client in clients:
        client.close()


def test_a_server_that_stops_answers_what_was_asked_and_says_so(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        idle = Wire(server.tcp_url)
        assert idle.connect()["ok"]
        busy = Wire(server.tcp_url)
        assert busy.connect()["ok"]
        assert busy.ask("EMIT", eventType="t", event={})["ok"]
        subscribed = Wire(server.tcp_url)
        assert subscribed.connect()["ok"]
        assert subscribed.ask("SUBSCRIBE", streamName="events", startSequence=0)["ok"]
        assert subscribed.receive()[0] == "RECEV"
        emits = [frame("EMIT", {"eventType": "t", "event": {"n": n}}) for n in range(500)]
        busy.send(*emits)
        first = busy.receive()[1]
        server.process.send_signal(signal.SIGTERM)
        told = [first]
        while told[-1]["ok"]:
            told.append(busy.receive()[1])
        assert told[-1]["errCode"] == "stopping"
        assert [each["offset"] for each in told[:-1]] == list(range(1, len(told)))
        assert busy.closed()
        assert last(idle) == "stopping"
        found = [each for each in rest(subscribed) if each[0] != "RECEV"]
        assert found == [("SUBEND", "stopping"), ("RESPONSE", "stopping")]
        server.process.wait(20)
        busy.close()
