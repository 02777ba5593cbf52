"""Clients that request large documents and read nothing take little of the server's memory, as those of events do."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from tests.server.serving import Server, serving
from tests.server.tcp.wire import frame, wire
from tests.server.test_slow_clients import (
    CLIENTS,
    EACH_BYTES,
    HUGE,
    SHARED_BYTES,
    Ask,
    get,
    silent,
    steady,
)
from tests.views.filling import Filling
from tests.waiting import wait_for

BOUND = SHARED_BYTES + CLIENTS * EACH_BYTES
MIDDLING = 240_000  # of a document that is loaded as a whole
PEAK_BYTES = 160_000_000  # for a moment: two are decoded and two encoded, each in several copies


def document(number: int, size: int = HUGE) -> dict[str, Any]:
    """Return a document of about this size, of which no two are equal."""
    return {"n": number, "kind": "large", "text": f"{number:04}-" + "x" * size}


def post(**asked: Any) -> Ask:
    def ask(binder: str, number: int) -> bytes:
        del number
        body = json.dumps(asked).encode()
        head = f"POST /binders/{binder}/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    return ask


def queries(count: int, **fields: Any) -> Ask:
    def ask(binder: str, number: int) -> bytes:
        del number
        asked = {"binder": binder, "matcher": {}, **fields}
        sent = (frame("QUERY", {"queryID": each, **asked}) for each in range(count))
        return frame("CONNECT", {"version": "1.0"}) + b"".join(sent)

    return ask


def changes(count: int, **fields: Any) -> Ask:
    def ask(binder: str, number: int) -> bytes:
        del number
        return frame("CONNECT", {"version": "1.0"}) + frame("SUBSCRIBE", {"binder": binder, **fields}) * count

    return ask


def resident_bytes(server: Server, name: str) -> int:
    """Return `VmRSS`, the memory of the server now, or `VmHWM`, the most that it has had."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


MATCH: dict[str, Any] = {"n": {"$gte": 0}}
ASKS = {
    "an array": post(),
    "a match": post(match=MATCH),
    "a sort": post(match=MATCH, sort="-n"),
    "all fields": post(fields=["text"]),
    "a document": get("/binders/{topic}/d{number:02}", "application/json"),
    "the same document": get("/binders/{topic}/d00", "application/json"),
    "changes": get("/binders/{topic}/changes", "text/event-stream"),
    "lines of changes": get("/binders/{topic}/changes"),
    "QUERY": queries(1),
    "QUERY with a match": queries(1, matcher=MATCH),
    "QUERY with a sort": queries(1, matcher=MATCH, sort="-n"),
    "ten QUERYs": queries(10),
    "SUBSCRIBE": changes(1, after=""),
    "ten SUBSCRIBEs": changes(10, after=""),
}
LIVE = {
    "live changes": get("/binders/{topic}/changes?after=latest", "text/event-stream"),
    "live lines of changes": get("/binders/{topic}/changes?after=latest"),
    "SUBSCRIBE": changes(1),
}


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A binder of large documents, one for each client, one of middling documents, and one of many small ones."""
    path: Path = tmp_path_factory.mktemp("slow") / "data"
    with headwater.open(path, durability="os") as hw:
        for binder, count, size in (("huge", CLIENTS, HUGE), ("middling", 200, MIDDLING), ("small", 50_000, 50)):
            with Filling(hw, binder) as filling:
                for at in range(0, count, 10_000):
                    filling.put(
                        {f"d{number:02}": document(number, size) for number in range(at, min(at + 10_000, count))}
                    )
    return path


BRIEF = {  # one of each way to encode a response; `make torture` asks in all ways
    ("an array", "huge"),
    ("a document", "huge"),
    ("changes", "huge"),
    ("QUERY", "huge"),
    ("ten SUBSCRIBEs", "huge"),
    ("a match", "middling"),
    ("changes", "small"),
}


@pytest.mark.parametrize(
    ("name", "binder"),
    [
        pytest.param(name, binder, marks=() if (name, binder) in BRIEF else pytest.mark.torture)
        for name, binder in (
            *((name, "huge") for name in ASKS),
            *((name, "middling") for name in ("an array", "a match", "changes", "QUERY", "SUBSCRIBE")),
            *((name, "small") for name in ("an array", "a match", "changes", "QUERY with a match", "SUBSCRIBE")),
        )
    ],
)
def test_a_client_that_reads_no_document_takes_little_memory(contents: Path, name: str, binder: str) -> None:
    with serving(contents) as server:
        with silent(server, ASKS[name], binder, 1) as (first,):
            assert first.recv(1), "it is answered"  # what is made once is made then
        before, resident = steady(server), resident_bytes(server, "VmRSS")
        with silent(server, ASKS[name], binder, CLIENTS):
            after, peak = steady(server), resident_bytes(server, "VmHWM")
        assert after - before < BOUND
        assert peak - resident < BOUND + PEAK_BYTES


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "live changes" else pytest.mark.torture) for name in LIVE]
)
def test_a_client_that_reads_no_change_as_it_comes_takes_little_memory(tmp_path: Path, name: str) -> None:
    with headwater.open(tmp_path / "data", durability="os") as hw, Filling(hw, "live") as filling:
        filling.put({"d": document(0)})
        with serving(tmp_path / "data") as server:
            with silent(server, LIVE[name], "live", 1) as (first,):
                assert first.recv(1), "it is answered"
            before = steady(server)
            with silent(server, LIVE[name], "live", CLIENTS) as clients:
                for client in clients:
                    assert client.recv(1), "it follows"
                for number in range(3):
                    filling.put({f"d{number}{each}": document(number) for each in range(2)})
                    after = steady(server)
                    assert after - before < BOUND


def test_a_large_document_is_the_same_however_it_comes(contents: Path) -> None:
    expected = document(3)
    with serving(contents) as server, silent(server, ASKS["an array"], "huge", CLIENTS):
        asked = {"match": {"n": 3}}
        whole = {"id": "d03", "version": 3, "data": expected}
        assert server.http.get("/binders/huge/d03").json() == whole
        assert server.http.post("/binders/huge/query", json=asked).json() == [whole]
        assert server.http.post("/binders/huge/query", json={**asked, "sort": "-n"}).json() == [whole]
        some = server.http.post("/binders/huge/query", json={"fields": ["n"], "skip": 2, "limit": 2}).json()
        assert [each["data"] for each in some] == [{"n": 2}, {"n": 3}]
        accept = {"accept": "application/x-ndjson"}
        with server.http.stream("GET", "/binders/huge/changes", headers=accept) as answer:
            lines = answer.iter_lines()
            assert [json.loads(next(lines))["data"]["n"] for _ in range(3)] == [0, 1, 2]
        with wire(server.tcp_url) as client:
            client.connect()
            assert client.ask("QUERY", queryID=1, binder="huge", matcher={"n": {"$lt": 3}})["numResults"] == 3
            assert [client.receive()[1]["result"]["n"] for _ in range(3)] == [0, 1, 2]
            client.ask("SUBSCRIBE", binder="huge", after="")
            assert [client.receive()[1]["event"]["n"] for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("name", ["a document", "changes"])
def test_a_slow_client_gets_a_large_document_as_it_was_when_it_began(tmp_path: Path, name: str) -> None:
    with headwater.open(tmp_path / "data", durability="os") as hw, Filling(hw, "moving") as filling:
        filling.put({"d00": document(1)})
        with serving(tmp_path / "data") as server, silent(server, ASKS[name], "moving", 1) as (client,):
            received = bytearray(client.recv(1000))
            filling.put({"d00": document(2, HUGE + 1)})
            with silent(server, post(), "moving", CLIENTS):  # what was encoded before is dropped for these
                while received.count(b"x") < HUGE:
                    received += client.recv(1 << 16)
            assert b"0001-" in received
            assert b"0002-" not in received[:HUGE]


ANSWERS = """
from headwater import App

app = App()

@app.query("small")
def small(views):
    return "x" * 500_000

@app.query("large")
def large(views):
    return "x" * 8_000_000
"""
LARGE_BYTES = 8_000_002  # of the answer above
HELD_BYTES_MAX = 20_000_000  # two such answers, and no third


@pytest.fixture(scope="module")
def answering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with named queries, and memory for two of their large answers."""
    path = tmp_path_factory.mktemp("answering")
    (path / "answers.py").write_text(ANSWERS)
    limits = {"held_bytes_max": HELD_BYTES_MAX}
    with serving(path / "data", app=str(path / "answers.py"), limits=limits) as server:
        yield server


def named(query: str, number: int) -> bytes:
    """Return the request of a named query."""
    del number
    return f"POST /query/{query} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode()


def begun(client: socket.socket) -> int:
    """Return the status of a response of which the body has begun to come; what follows is not read."""
    received = bytearray()
    while not received.partition(b"\r\n\r\n")[2]:
        received += client.recv(1)
    return int(received.split(b" ")[1])


def test_large_answers_of_named_queries_share_the_memory_of_request_bodies(answering: Server) -> None:
    with silent(answering, named, "large", 2) as clients:
        assert [begun(client) for client in clients] == [200, 200]
        refused = answering.http.post("/query/large")
        assert refused.status_code == 503
        assert refused.json()["code"] == "overloaded"
        lines, content_type = b'{"n": 1}\n' * 600_000, {"content-type": "application/x-ndjson"}
        refused = answering.http.post("/topic/t/items", content=lines, headers=content_type)
        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        assert answering.http.post("/query/small").status_code == 200, "small answers take none of it"
    wait_for(lambda: answering.http.post("/query/large").status_code == 200)
    with silent(answering, named, "large", 2) as clients:
        assert [begun(client) for client in clients] == [200, 200], "all of it was given back"


def test_clients_that_read_no_answer_of_a_named_query_take_no_more_than_that_memory(answering: Server) -> None:
    assert len(answering.http.post("/query/large").content) == LARGE_BYTES
    before = steady(answering)
    with silent(answering, named, "large", CLIENTS) as clients:
        statuses = sorted(begun(client) for client in clients)
        after = steady(answering)
    assert statuses == [200, 200] + [503] * (CLIENTS - 2)
    assert after - before < HELD_BYTES_MAX + BOUND
