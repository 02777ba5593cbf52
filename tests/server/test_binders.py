"""Binders over HTTP: documents one by one, found, counted, waited for, and only by those who may."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

import headwater
from headwater import App
from headwater.opening import open_directory
from tests.server import people
from tests.server.process import served
from tests.server.serving import WAIT_S, Server, serving

IDS = ("ann", "a/b?c#d", "..", "query", "changes", "index", "über 100%", "{id}")
WHEN = datetime(2026, 1, 31, 12, tzinfo=UTC)

app = App()
app.binder("baskets").index("total")


@app.projection("orders", "baskets", key="who")
def basket(doc: Any, event: headwater.Event) -> Any:
    line = event.value
    if line["n"] == 0:
        return None
    return {"total": line["n"], "when": WHEN, "lines": (doc["lines"] if doc else 0) + 1}


def fill(path: Path, **totals: int) -> None:
    """Have documents with these totals, made by the application in this process."""
    with open_directory(path) as hw:
        for who, total in totals.items():
            hw.append("orders", {"who": who, "n": total})
        app.catch_up(hw)


@pytest.fixture(scope="module")
def server_path(server_path: Path) -> Path:
    fill(server_path, **{id: 10 * (number + 1) for number, id in enumerate(IDS)})
    return server_path


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def found(server: Server, **asked: Any) -> list[Any]:
    answer = server.http.post("/binders/baskets/query", json=asked)
    assert answer.status_code == 200, answer.text
    documents: list[Any] = answer.json()
    return documents


def test_binders_are_listed_with_what_they_hold(server: Server) -> None:
    (listed,) = server.http.get("/binders").json()
    assert listed == server.http.get("/binders/baskets").json()
    assert (listed["name"], listed["documents"]) == ("baskets", len(IDS))
    assert (listed["indexes"], listed["projections"]) == (["total"], ["basket"])
    assert listed["bytes"] > 0


@pytest.mark.parametrize("id", IDS)
def test_a_document_is_had_by_its_id_whatever_that_is(server: Server, id: str) -> None:
    # Not by httpx, which takes dots out of a path.
    head = f"GET /binders/baskets/{quote(id, safe='')} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n"
    (answer,) = server.raw(f"{head}Connection: close\r\n\r\n".encode())
    document = json.loads(answer.body)
    number = IDS.index(id)
    assert (document["id"], document["version"]) == (id, number)
    assert document["data"]["total"] == 10 * (number + 1)
    assert document["data"]["when"] == {"$date": "2026-01-31T12:00:00Z"}


def test_what_is_not_there_is_404_and_says_what_is_missing(server: Server) -> None:
    assert code(server.http.get("/binders/baskets/nobody")) == (404, "no_such_document")
    for path in ("/binders/none", "/binders/none/ann", "/binders/none/changes"):
        assert code(server.http.get(path)) == (404, "no_such_binder")
    assert code(server.http.post("/binders/none/query", json={})) == (404, "no_such_binder")
    assert code(server.http.post("/binders/none/index", json={"field": "x"})) == (404, "no_such_binder")


def test_documents_are_found_sorted_cut_and_with_the_fields_that_are_wanted(server: Server) -> None:
    totals = [each["data"]["total"] for each in found(server, match={"total": {"$gt": 20}}, sort="-total", limit=3)]
    assert totals == [80, 70, 60]
    skipped = found(server, sort=["total"], skip=2, limit=2, fields=["total"])
    assert [each["data"] for each in skipped] == [{"total": 30}, {"total": 40}]
    assert found(server, match={"total": 5}) == []
    later = {"when": {"$gte": {"$date": "2026-01-31T12:00:00Z"}}}
    assert len(found(server, match=later)) == len(IDS)
    everything = server.http.post("/binders/baskets/query")
    assert len(everything.json()) == len(IDS)


def test_lines_hold_the_same_documents_as_an_array(server: Server) -> None:
    answer = server.http.post("/binders/baskets/query", json={}, headers={"accept": "application/x-ndjson"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line) for line in answer.text.splitlines()] == found(server)
    none = server.http.post(
        "/binders/baskets/query", json={"match": {"total": 5}}, headers={"accept": "application/x-ndjson"}
    )
    assert (none.status_code, none.content) == (200, b"")


def test_documents_are_counted_and_it_is_told_how_they_are_found(server: Server) -> None:
    counted = server.http.post("/binders/baskets/query", json={"match": {"total": {"$lte": 30}}, "count": True})
    assert counted.json() == {"count": 3}
    plan = server.http.post("/binders/baskets/query", json={"match": {"total": 30}, "explain": True}).json()
    assert "total" in plan["plan"]


def test_an_index_is_made(server: Server) -> None:
    assert server.http.post("/binders/baskets/index", json={"field": "lines"}).json() is True
    assert server.http.get("/binders/baskets").json()["indexes"] == ["lines", "total"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"match": {"total": {"$above": 1}}}, "bad_match"),
        ({"match": []}, "bad_body"),
        ({"limit": -1}, "bad_body"),
        ({"other": 1}, "bad_body"),
    ],
)
def test_a_bad_question_is_400(server: Server, asked: Any, expected: str) -> None:
    assert code(server.http.post("/binders/baskets/query", json=asked)) == (400, expected)


def test_what_cannot_be_given_or_taken_is_refused(server: Server) -> None:
    refused = server.http.post("/binders/baskets/query", json={}, headers={"accept": "text/html"})
    assert code(refused) == (406, "not_acceptable")
    assert code(server.http.post("/binders/baskets/query", content=b" " * (1 << 20) + b"{}")) == (413, "too_large")
    assert server.http.get(f"/binders/{'x' * 100}").status_code == 413
    assert code(server.http.get("/binders/baskets/ann?at_least=x")) == (400, "bad_parameter")
    assert code(server.http.get("/binders/baskets/ann?at_least=orders:0:1,orders")) == (400, "bad_parameter")
    assert code(server.http.get("/binders/baskets/ann?at_least=1&timeout=-1")) == (400, "bad_parameter")
    assert code(server.http.post("/query/top", json={})) == (404, "no_such_query")


def test_many_documents_are_streamed_with_little_memory(tmp_path: Path) -> None:
    large = App()

    @large.projection("things", "things")
    def thing(doc: Any, event: headwater.Event) -> Any:  # noqa: ARG001
        return {"text": "x" * 20_000}

    with open_directory(tmp_path / "data") as hw:
        hw.append_many("things", [{}] * 1500, keys=[f"k{number}" for number in range(1500)], durability="os")
        large.catch_up(hw)
    with serving(tmp_path / "data") as server:
        server.http.get("/binders/things/k1").raise_for_status()
        before = server.anonymous_bytes()
        for accept in ("application/json", "application/x-ndjson"):
            total = most = 0
            with server.http.stream("POST", "/binders/things/query", json={}, headers={"accept": accept}) as answer:
                for piece in answer.iter_bytes():
                    total += len(piece)
                    most = max(most, server.anonymous_bytes())
            assert total > 1500 * 20_000
            assert most - before < 24 * 1024 * 1024  # of which 16 are the cache of SQLite


def test_a_client_that_leaves_in_the_midst_leaves_nothing_behind(server: Server) -> None:
    def descriptors() -> int:
        return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))

    leave(server, 20)  # as many files are open from now on as are read at once, more or less
    before = descriptors()
    leave(server, 60)
    assert descriptors() <= before + 15


def leave(server: Server, times: int) -> None:
    """Ask for much, leave at once, and wait until nobody is followed any more."""
    for _ in range(times):
        with server.connect() as connection:
            connection.sendall(
                b"POST /binders/baskets/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
            )
            connection.recv(10)
        with server.connect() as connection:
            connection.sendall(b"GET /binders/baskets/changes HTTP/1.1\r\nHost: localhost\r\n\r\n")
            connection.recv(10)
        with server.connect() as connection:
            connection.sendall(b"GET /binders/baskets/x?at_least=999&timeout=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    deadline = time.monotonic() + WAIT_S
    while not {"headwater_subscribers 0.0", "headwater_http_connections 1.0"} <= set(
        server.http.get("/metrics").text.splitlines()
    ):
        assert time.monotonic() < deadline


# Waiting


def test_a_document_is_waited_for(tmp_path: Path) -> None:
    fill(tmp_path / "data", ann=1)
    with serving(tmp_path / "data") as server, open_directory(tmp_path / "data") as hw:
        ref = hw.append("orders", {"who": "ann", "n": 2})
        place = f"orders:0:{ref.offset}"
        late = server.http.get("/binders/baskets/ann", params={"at_least": place, "timeout": "0.1"})
        assert code(late) == (503, "view_behind")
        assert server.http.get("/binders/baskets/ann").json()["data"]["total"] == 1
        got: list[Any] = []
        asking = threading.Thread(
            target=lambda: got.append(server.http.get("/binders/baskets/ann", params={"at_least": place}).json())
        )
        asking.start()
        app.catch_up(hw)
        asking.join(20)
        assert got[0]["data"]["total"] == 2
        asked = {"match": {"total": 2}}
        assert len(server.http.post("/binders/baskets/query", json=asked, params={"at_least": ref.offset}).json()) == 1
        counted = server.http.post("/binders/baskets/query", json=asked | {"count": True}, params={"at_least": place})
        assert counted.json() == {"count": 1}


def test_those_who_wait_hold_no_thread(tmp_path: Path) -> None:
    fill(tmp_path / "data", ann=1)
    limits = {"threads": 2}
    with serving(tmp_path / "data", limits=limits) as server:
        waiting = [server.connect() for _ in range(20)]
        for connection in waiting:
            connection.sendall(b"GET /binders/baskets/ann?at_least=99&timeout=30 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(20):
            assert server.http.get("/binders/baskets/ann", timeout=5).status_code == 200
        for connection in waiting:
            connection.close()


# Who may


def test_binders_are_for_those_who_may_read_them(tmp_path: Path) -> None:
    fill(tmp_path / "data", ann=1)
    users = tmp_path / "users.json"
    tokens = {
        "topic": people.add(users, "topic", "read:orders", token=True),
        "binder": people.add(users, "binder", "read:binder/baskets", token=True),
        "all": people.add(users, "all", "read:*", token=True),
        "admin": people.add(users, "admin", "admin:binder/*", token=True),
    }
    with served(tmp_path / "data", "--auth", str(users)) as server, httpx.Client(base_url=server.url) as http:

        def ask(who: str, method: str, path: str, **options: Any) -> httpx.Response:
            return http.request(method, path, headers=people.bearer(tokens[who]), **options)

        paths = ("/binders/baskets", "/binders/baskets/ann", "/binders/baskets/changes")
        for path in paths:
            assert http.get(path).status_code == 401
            assert code(ask("topic", "GET", path)) == (403, "forbidden")
        assert ask("topic", "POST", "/binders/baskets/query", json={}).status_code == 403
        assert ask("topic", "GET", "/binders").json() == []
        for who in ("binder", "all"):
            assert ask(who, "GET", "/binders/baskets/ann").json()["id"] == "ann"
            assert len(ask(who, "POST", "/binders/baskets/query", json={}).json()) == 1
            assert [each["name"] for each in ask(who, "GET", "/binders").json()] == ["baskets"]
            assert ask(who, "POST", "/binders/baskets/index", json={"field": "x"}).status_code == 403
        assert ask("admin", "POST", "/binders/baskets/index", json={"field": "x"}).json() is True
        assert ask("admin", "GET", "/binders/baskets/ann").status_code == 403
        assert ask("binder", "GET", "/topic/orders/items").status_code == 403
        assert ask("binder", "POST", "/query/top", json={}).status_code == 403
        assert ask("binder", "GET", "/views").json() == []
        assert [each["name"] for each in ask("topic", "GET", "/views").json()] == ["basket"]
