"""CALL over a real socket: any request of the HTTP interface within the protocol over TCP."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import headwater
from tests.server import people
from tests.server.process import served
from tests.server.serving import Server, serving
from tests.server.tcp.wire import Closed, Wire, frame, wire
from tests.waiting import wait_for

MIB = 1024 * 1024
WAIT_S = 10.0
_MORE: dict[str, Any] = {"more": True}


def call(method: str, target: str, **fields: Any) -> bytes:
    return frame("CALL", {"method": method, "target": target, **fields})


def answer(client: Wire) -> tuple[dict[str, Any], bytes]:
    """The next answer to a CALL: its first frame, and its whole body."""
    kind, head = client.receive()
    assert kind == "CALLRESPONSE", (kind, head)
    body, last = head["body"], head
    while last["more"]:
        kind, last = client.receive()
        assert kind == "CALLBODY"
        assert "aborted" not in last
        assert len(last["data"]) <= 64 * 1024
        body += last["data"]
    return head, body


def ask(client: Wire, method: str, target: str, **fields: Any) -> tuple[int, Any]:
    """The status of an answer, and what its JSON says."""
    client.send(call(method, target, **fields))
    head, body = answer(client)
    return head["status"], json.loads(body)


def open_connections(server: Server) -> int:
    lines = server.http.get("/metrics").text.splitlines()
    (line,) = (each for each in lines if each.startswith("headwater_http_connections "))
    return int(float(line.split()[1]))


def test_a_request_is_answered_as_over_http(server: Server, client: Wire) -> None:
    assert ask(client, "PUT", "/topic/orders%20of%20%C3%A9t%C3%A9?partitions=2") == (200, True)
    headers = {"Content-Type": "application/json", "Headwater-Meta": '{"by": "zoé"}'}
    client.send(
        call("POST", "/topic/orders of été/items?type=placed&partition=1", headers=headers, body=b'{"total":3}')
    )
    client.send(call("POST", "/topic/orders%20of%20%C3%A9t%C3%A9/items?partition=1", headers=headers, body=b"{"))
    refused, told = answer(client)  # a space is no part of an address
    assert (refused["status"], json.loads(told)["code"]) == (400, "bad_field")
    refused, told = answer(client)
    assert (refused["status"], json.loads(told)["kind"]) == (400, "Invalid")
    target = "/topic/orders%20of%20%C3%A9t%C3%A9/items?type=placed&partition=1"
    client.send(call("POST", target, headers=headers, body=b'{"total":3}'))
    head, body = answer(client)
    assert (head["status"], body, head["headers"]["headwater-partition"]) == (200, b"0", "1")
    with headwater.open(server.path) as hw:
        (event,) = hw.read("orders of été")
    assert (event.type, event.value, event.meta) == ("placed", {"total": 3}, {"by": "zoé"})
    assert str(event.id) == head["headers"]["headwater-id"]


def test_names_of_fields_may_begin_with_a_capital(client: Wire) -> None:
    client.send(frame("CALL", {"Method": "PUT", "Target": "/topic/capital", "Body": b"", "More": True}))
    client.send(frame("CALLBODY", {"Data": b"", "More": False}))
    head, body = answer(client)
    assert (head["status"], body) == (200, b"true")


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"target": "/topics"}, 400, "bad_field"),
        ({"method": "BREW", "target": "/topics"}, 400, "bad_field"),
        ({"method": "GET"}, 400, "bad_field"),
        ({"method": "GET", "target": "http://127.0.0.1/topics"}, 400, "bad_field"),
        ({"method": "GET", "target": "/topics\r\nx"}, 400, "bad_field"),
        ({"method": "GET", "target": "/topics", "headers": {"accept": 1}}, 400, "bad_field"),
        ({"method": "GET", "target": "/topics", "headers": {"accept": "*/*", "Accept": "*/*"}}, 400, "bad_field"),
        ({"method": "GET", "target": "/topics", "headers": {"x": "y" * 40_000}}, 431, "headers_too_large"),
        ({"method": "GET", "target": "/topics", "body": "text"}, 400, "bad_field"),
        ({"method": "GET", "target": "/topics", "more": "yes"}, 400, "bad_field"),
        ({"method": "GET", "target": "/topics", "tea": True}, 400, "bad_field"),
        ({"method": "GET", "target": "/topics?tea=1"}, 400, "bad_parameter"),
        ({"method": "GET", "target": "/%ff"}, 400, "bad_request"),
        ({"method": "GET", "target": "/nowhere"}, 404, "no_such_route"),
        ({"method": "PATCH", "target": "/topics"}, 405, "method_not_allowed"),
        ({"method": "GET", "target": "/topic/none"}, 404, "topic_not_found"),
    ],
)
def test_what_is_wrong_with_a_call_is_told_and_the_connection_goes_on(
    client: Wire, fields: dict[str, Any], status: int, code: str
) -> None:
    client.send(frame("CALL", fields), frame("PING"))
    head, body = answer(client)
    assert (head["status"], json.loads(body)["code"]) == (status, code)
    assert client.receive() == ("RESPONSE", {"ok": True})


def test_the_body_of_a_call_that_is_wrong_is_passed_over(client: Wire) -> None:
    client.send(call("BREW", "/topics", more=True))
    client.send(*(frame("CALLBODY", {"data": b"x", "more": more}) for more in (True, False)), frame("PING"))
    assert answer(client)[0]["status"] == 400
    assert client.receive() == ("RESPONSE", {"ok": True})


def test_a_piece_of_a_body_without_a_call_is_refused(client: Wire) -> None:
    told = client.ask("CALLBODY", data=b"x", more=False)
    assert (told["ok"], told["errCode"]) == (False, "no_call")
    assert client.ask("PING") == {"ok": True}


def test_headers_that_are_the_connections_own_are_ignored(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    reader = people.add(users, "reader", "read:*", token=True)
    writer = people.add(users, "writer", "append,read:*", token=True)
    lies = {"Authorization": f"Bearer {writer}", "Host": "evil.example", "Origin": "http://evil.example"}
    lies |= {"Content-Length": "5", "Transfer-Encoding": "chunked", "Expect": "tea"}
    with served(tmp_path / "data", "--auth", str(users)) as server:
        with wire(server.tcp_url, token=reader) as client:
            assert ask(client, "GET", "/topics", headers=lies)[0] == 200
            status, error = ask(client, "PUT", "/topic/t", headers=lies)
            assert (status, error["code"]) == (403, "forbidden")
        with wire(server.tcp_url, token=writer) as client:
            assert ask(client, "PUT", "/topic/t", headers=lies | {"Authorization": "Bearer x"}) == (200, True)
            assert ask(client, "POST", "/topic/t/items", headers=lies, body=b"x" * 100) == (200, 0)
        with wire(server.tcp_url, token=reader) as client:
            client.send(call("GET", "/topic/t/items"))
            assert b"x" * 100 in answer(client)[1]


def test_a_host_that_is_not_ours_is_no_reason_to_refuse(client: Wire) -> None:
    assert ask(client, "GET", "/topics", headers={"Host": "evil.example"})[0] == 200


def test_a_user_who_is_removed_is_told_so_and_the_connection_ends(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    token = people.add(users, "reader", "read:*", token=True)
    with served(tmp_path / "data", "--auth", str(users)) as server, wire(server.tcp_url, token=token) as client:
        assert ask(client, "GET", "/topics")[0] == 200
        people.revoke(users, "reader")
        wait_for(lambda: ask(client, "GET", "/topics")[0] == 401)
        assert client.closed()


def test_answers_come_in_the_order_of_what_was_asked(client: Wire) -> None:
    def emit(n: int) -> bytes:
        return frame("EMIT", {"streamName": "ordered", "eventType": "t", "event": {"n": n}})

    client.send(emit(0), frame("PING"), call("GET", "/topic/ordered/version?key=x"), emit(1), emit(2))
    client.send(call("POST", "/topic/ordered/items", more=True), frame("CALLBODY", {"data": b"3", "more": False}))
    client.send(frame("PING"), emit(4))
    assert client.receive()[1]["offset"] == 0
    assert client.receive() == ("RESPONSE", {"ok": True})
    assert answer(client)[1] == b"null"
    assert [client.receive()[1]["offset"] for _ in range(2)] == [1, 2]
    assert answer(client)[1] == b"3"
    assert client.receive() == ("RESPONSE", {"ok": True})
    assert client.receive()[1]["offset"] == 4


def test_a_body_of_any_size_is_streamed_both_ways(server: Server, client: Wire) -> None:
    size, piece = 192 * MIB, bytes(range(256)) * 4096
    assert ask(client, "PUT", f"/topic/huge?data_bytes_max={size}") == (200, True)
    before, most = server.anonymous_bytes(), 0
    client.send(call("POST", "/topic/huge/items", more=True))
    for n in range(size // MIB):
        client.send(frame("CALLBODY", {"data": piece, "more": n < size // MIB - 1}))
        most = max(most, server.anonymous_bytes())
    head, body = answer(client)
    assert (head["status"], body) == (200, b"0")
    client.send(call("GET", "/topic/huge/items"))
    assert client.receive()[1]["more"]
    received, last = 0, _MORE
    while last["more"]:
        _, last = client.receive()
        received += len(last["data"])
        most = max(most, server.anonymous_bytes())
    assert received >= size
    assert most - before < 64 * MIB


def test_the_first_piece_of_a_body_may_be_as_large_as_a_frame(client: Wire) -> None:
    ask(client, "PUT", f"/topic/first?data_bytes_max={64 * MIB}")
    client.send(call("POST", "/topic/first/items", body=b"x" * (16 * MIB), more=True))
    client.send(*(frame("CALLBODY", {"data": b"y" * MIB, "more": n < 7}) for n in range(8)))
    assert answer(client)[1] == b"0"
    status, found = ask(client, "GET", "/topic/first")
    assert status == 200
    assert found["partitions"][0]["end"] == 1


def test_a_body_that_nobody_reads_does_not_harm_what_follows(client: Wire) -> None:
    client.send(call("POST", "/nowhere", more=True))
    client.send(*(frame("CALLBODY", {"data": b"x" * 1000, "more": n < 99}) for n in range(100)), frame("PING"))
    assert answer(client)[0]["status"] == 404
    assert client.receive() == ("RESPONSE", {"ok": True})


def test_a_body_without_an_end_that_nobody_reads_ends_the_connection(client: Wire) -> None:
    client.send(call("POST", "/nowhere", more=True))
    with contextlib.suppress(ConnectionError):
        for _ in range(500):
            client.send(frame("CALLBODY", {"data": b"x" * 100_000, "more": True}))
    assert answer(client)[0]["status"] == 404
    assert client.closed()


def test_another_frame_within_a_body_ends_the_connection(client: Wire) -> None:
    ask(client, "PUT", "/topic/within")
    client.send(call("POST", "/topic/within/items", body=b"x", more=True), frame("PING"), frame("PING"))
    head, body = answer(client)
    assert (head["status"], json.loads(body)["code"]) == (400, "bad_frame")
    kind, told = client.receive()
    assert (kind, told["ok"], told["errCode"]) == ("RESPONSE", False, "bad_frame")
    assert client.closed()


def test_a_client_that_leaves_amid_its_body_has_appended_nothing(server: Server) -> None:
    with wire(server.tcp_url) as client:
        ask(client, "PUT", "/topic/left")
        client.send(call("POST", "/topic/left/items", body=b"x" * 100, more=True))
        for _ in range(5):
            open_connections(server)  # by now, the server waits for more
        client.socket.shutdown(socket.SHUT_WR)
        head, body = answer(client)
        assert (head["status"], json.loads(body)["code"]) == (400, "disconnected")
        assert client.closed()
    with headwater.open(server.path) as hw:
        assert list(hw.read("left")) == []


@pytest.mark.parametrize(
    ("target", "accept"),
    [
        ("/topic/waited/items?wait_for_more=true", "application/x-ndjson"),
        ("/topic/waited/items?wait_for_more=true", "text/event-stream"),
        ("/consumer/c/waited/items", "application/x-ndjson"),
    ],
)
@pytest.mark.parametrize("half", [False, True])
def test_a_client_that_leaves_while_an_answer_waits_is_noticed(
    server: Server, target: str, accept: str, half: bool
) -> None:
    with wire(server.tcp_url) as client:
        ask(client, "PUT", "/topic/waited")
    wait_for(lambda: open_connections(server) == 1)
    with wire(server.tcp_url) as client:
        client.send(call("GET", target, headers={"Accept": accept}))
        _, head = client.receive()
        assert (head["status"], head["more"]) == (200, True), head
        assert open_connections(server) == 2
        if half:
            client.socket.shutdown(socket.SHUT_WR)
        else:
            client.close()
        wait_for(lambda: open_connections(server) == 1)


def test_an_answer_that_waits_brings_what_comes(server: Server, client: Wire) -> None:
    with headwater.open(server.path) as hw:
        hw.append("live", "first")
        client.send(
            call("GET", "/topic/live/items?wait_for_more=true", headers={"Accept": "text/event-stream"}), frame("PING")
        )
        received = b""
        while b"first" not in received:
            received += client.receive()[1].get("data", b"")
        hw.append("live", "second")
        while b"second" not in received:
            kind, told = client.receive()
            assert kind == "CALLBODY"  # what comes behind waits
            received += told["data"]


def test_a_client_that_takes_nothing_is_not_written_to_without_end(server: Server) -> None:
    with headwater.open(server.path) as hw:
        hw.append_many("slow", [b"x" * 10_000] * 6400)
    with wire(server.tcp_url) as client:
        before = server.anonymous_bytes()
        client.send(call("GET", "/topic/slow/items", headers={"Accept": "application/octet-stream"}))
        assert client.receive()[1]["more"]
        most = 0
        for _ in range(50):
            most = max(most, server.anonymous_bytes() - before)
            time.sleep(0.01)  # it would grow meanwhile
        assert most < 32 * MIB
        size, last = 0, _MORE
        while last["more"]:
            _, last = client.receive()
            size += len(last["data"])
        assert size > 64_000_000


def test_an_answer_that_breaks_off_says_so(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        with headwater.open(server.path) as hw:
            hw.create("broken", segment_bytes=MIB)
            for _ in range(80):
                hw.append("broken", b"x" * 100_000)
        segments = sorted((server.path / "topics" / "broken" / "0").glob("*.log"))
        damaged = bytearray(segments[-2].read_bytes())
        damaged[50_000] ^= 1
        segments[-2].write_bytes(damaged)
        with wire(server.tcp_url) as client:
            client.send(call("GET", "/topic/broken/items", headers={"Accept": "application/octet-stream"}))
            last = client.receive()[1]
            while last.get("more"):
                _, last = client.receive()
            assert last == {"aborted": True}
            assert client.ask("PING") == {"ok": True}


def test_a_server_that_stops_ends_answers_properly(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, contextlib.ExitStack() as opened:
        server.http.put("/topic/stopped").raise_for_status()
        waiting = []
        for target, accept in (
            ("/topic/stopped/items?wait_for_more=true", "application/x-ndjson"),
            ("/topic/stopped/items?wait_for_more=true", "text/event-stream"),
            ("/consumer/c/stopped/items", "application/x-ndjson"),
        ):
            client = opened.enter_context(wire(server.tcp_url))
            client.send(call("GET", target, headers={"Accept": accept}))
            assert client.receive()[1]["more"]
            waiting.append(client)
        uploading = opened.enter_context(wire(server.tcp_url))
        uploading.send(call("POST", "/topic/stopped/items", body=b"x", more=True))
        wait_for(lambda: open_connections(server) == 5)
        server.process.terminate()
        for client in waiting:
            kind, last = client.receive()
            while kind == "CALLBODY" and last["more"]:
                kind, last = client.receive()
            assert (kind, last) == ("CALLBODY", {"data": b"", "more": False})
            assert client.receive()[1]["errCode"] == "stopping"
            with pytest.raises(Closed):
                client.receive()
        head, body = answer(uploading)
        assert (head["status"], json.loads(body)["code"]) == (503, "stopping")
        assert server.process.wait(WAIT_S) == 0


def test_a_body_that_stands_still_is_given_up_and_an_answer_that_waits_is_not(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "data", limits={"idle_s": 0.3, "body_idle_s": 0.3}) as server,
        wire(server.tcp_url) as waiting,
        wire(server.tcp_url) as uploading,
    ):
        server.http.put("/topic/still").raise_for_status()
        target = "/topic/still/items?wait_for_more=true"
        waiting.send(call("GET", target, headers={"Accept": "application/x-ndjson"}))
        assert waiting.receive()[1]["more"]
        uploading.send(call("POST", "/topic/still/items", body=b"x", more=True))
        head, body = answer(uploading)
        assert (head["status"], json.loads(body)["code"]) == (408, "timeout")
        assert uploading.closed()
        server.http.post("/topic/still/items", content=b"at last").raise_for_status()
        kind, told = waiting.receive()
        assert (kind, told["more"]) == ("CALLBODY", True)


def test_the_access_log_and_the_metrics_tell_of_the_request_itself(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with served(tmp_path / "data", "--access-log", str(log)) as server, wire(server.tcp_url) as client:
        ask(client, "PUT", "/topic/noted")
        ask(client, "POST", "/topic/noted/items?type=t", body=b"12345")
        client.send(call("GET", "/metrics"))
        metrics = answer(client)[1].decode()
        assert 'route="/topic/{name}/items"' in metrics
        assert 'route="CALL"' not in metrics
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    noted = [line for line in lines if line["route"] == "/topic/{name}/items"]
    assert [(line["method"], line["status"], line["bytes_in"]) for line in noted] == [("POST", 200, 5)]
    assert not [line for line in lines if line["route"] == "CALL"]


def test_a_slow_handler_does_not_keep_other_connections_waiting(server: Server, client: Wire) -> None:
    ask(client, "PUT", "/topic/patient")
    client.send(call("POST", "/topic/patient/items", more=True))
    done: list[int] = []

    def others() -> None:
        with wire(server.tcp_url) as other:
            done.append(ask(other, "GET", "/topics")[0])

    asking = threading.Thread(target=others)
    asking.start()
    asking.join(WAIT_S)
    assert done == [200]
    client.send(frame("CALLBODY", {"data": b"x", "more": False}))
    assert answer(client)[1] == b"0"
