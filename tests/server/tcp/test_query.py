"""QUERY over a real socket: what docs/PROTOCOL.md says of it, sentence by sentence."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson.decimal128 import Decimal128

import headwater
from headwater import App
from headwater.opening import open_directory
from headwater.store import Store
from tests.server import people
from tests.server.process import ServerProcess, served
from tests.server.serving import Server, serving
from tests.server.tcp.wire import Wire, frame, wire
from tests.waiting import wait_for

DOCUMENTS = 250
WHEN = datetime(2026, 1, 31, 12, tzinfo=UTC)


def shop(version: int = 1) -> App:
    app = App()
    app.binder("baskets").index("total")

    @app.projection("orders", "baskets", key="who", version=version)
    def basket(doc: Any, event: headwater.Event) -> Any:  # noqa: ARG001
        n = event.value["n"]
        if n < 0:
            return None
        return {"total": n, "odd": n % 2 == 1, "tens": n // 10, "when": WHEN, "price": Decimal128("1.10"), "raw": b"\0"}

    return app


def name_of(number: int) -> str:
    return f"k{number:04}"


def fill(hw: Store, totals: dict[str, int], app: App | None = None) -> None:
    """Have documents with these totals, made by the application in this process."""
    hw.append_many("orders", [{"who": who, "n": total} for who, total in totals.items()])
    (app or shop()).catch_up(hw)


@pytest.fixture(scope="module")
def server_path(server_path: Path) -> Path:
    with open_directory(server_path) as hw:
        fill(hw, {name_of(number): number for number in range(DOCUMENTS)})
    return server_path


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[Store]:
    """A log whose documents change."""
    with open_directory(tmp_path / "data") as hw:
        fill(hw, {name_of(number): number for number in range(DOCUMENTS)})
        yield hw


def asking(id: int = 1, matcher: Any = None, **fields: Any) -> bytes:
    return frame("QUERY", {"queryID": id, "binder": "baskets", "matcher": matcher or {}, **fields})


def acks(count: int, id: int = 1) -> bytes:
    return frame("QUERYACK", {"queryID": id}) * count


def ask(client: Wire, **fields: Any) -> int:
    """Ask; how many there will be."""
    client.send(asking(**fields))
    type, told = client.receive()
    assert (type, told["queryID"]) == ("QUERYRESPONSE", fields.get("id", 1)), told
    assert set(told) == {"queryID", "numResults"}
    return int(told["numResults"])


def results(client: Wire, count: int, id: int = 1, acknowledge: bool = True) -> list[dict[str, Any]]:
    """So many results, each acknowledged."""
    found = []
    for _ in range(count):
        type, told = client.receive()
        assert (type, told["queryID"]) == ("QUERYRESULT", id), told
        assert set(told) == {"queryID", "result", "id", "version"}
        found.append(told)
        if acknowledge:
            client.send(acks(1, id))
    return found


def quiet(client: Wire) -> None:
    """Nothing comes but the answer to what is asked next."""
    for _ in range(3):
        client.send(frame("PING"))
        assert client.receive() == ("RESPONSE", {"ok": True})


def test_it_is_told_how_many_there_are_then_each_comes_as_it_is_stored(server: Server, client: Wire) -> None:
    assert ask(client) == DOCUMENTS
    found = results(client, DOCUMENTS)
    with open_directory(server.path) as hw:
        expected = list(hw.binder("baskets").find())
    assert [(each["id"], each["version"], each["result"]) for each in found] == [
        (document.id, document.version, {**document.data, "when": WHEN.replace(tzinfo=None)}) for document in expected
    ]
    assert found[7]["result"]["total"] == 7
    quiet(client)


ASKED: list[dict[str, Any]] = [
    {"matcher": {"total": {"$gte": 100}}},
    {"matcher": {"odd": True}},
    {"matcher": {"odd": True}, "sort": "-total", "limit": 120, "skip": 3},
    {"matcher": {"total": {"$lt": 150}}, "sort": ["odd", "-tens"]},
    {"sort": "-total"},
    {"sort": ["tens", "-total"], "skip": 5, "limit": 103},
    {"skip": 200},
    {"limit": 3},
    {"limit": 30, "skip": 240},
    {"matcher": {"when": {"$lte": WHEN}}, "limit": 2.0},
    {"limit": 0},
    {"skip": 1000},
    {"matcher": {"total": 1000}},
    {"matcher": {"nothing": 1}, "sort": "odd"},
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_the_results_are_those_of_a_find_and_their_number_is_exact(
    server: Server, client: Wire, asked: dict[str, Any]
) -> None:
    with open_directory(server.path) as hw:
        given: dict[str, Any] = {
            name: int(value) if isinstance(value, float) else value for name, value in asked.items()
        }
        expected = list(hw.binder("baskets").find(given.pop("matcher", None), **given))
    assert ask(client, **asked) == len(expected)
    found = results(client, len(expected))
    assert [(each["id"], each["version"]) for each in found] == [(each.id, each.version) for each in expected]
    quiet(client)


def test_a_query_is_over_with_its_last_result_and_its_name_is_free(client: Wire) -> None:
    for _ in range(3):
        assert ask(client, limit=100) == 100
        results(client, 100, acknowledge=False)
    assert ask(client, limit=0) == ask(client, limit=0) == 0


# Acknowledgements


def test_exactly_100_are_in_transit(client: Wire) -> None:
    assert ask(client) == DOCUMENTS
    results(client, 100, acknowledge=False)
    quiet(client)
    client.send(acks(1))
    results(client, 1, acknowledge=False)
    quiet(client)
    client.send(acks(49))
    results(client, 49, acknowledge=False)
    quiet(client)
    client.send(acks(150))
    assert results(client, 100, acknowledge=False)[-1]["id"] == name_of(249)
    quiet(client)


def test_acknowledging_what_was_not_sent_brings_no_more(client: Wire) -> None:
    client.send(acks(300), acks(10, id=7))
    assert ask(client) == DOCUMENTS
    results(client, 100, acknowledge=False)
    client.send(acks(100, id=7))
    client.send(frame("QUERYACK"), frame("QUERYACK", {"queryID": "1"}), frame("QUERYACK", {"queryID": 1, "x": 2}))
    quiet(client)
    client.send(acks(200))  # which arrive together, before more is sent
    results(client, 100, acknowledge=False)
    quiet(client)
    client.send(acks(1000))
    results(client, 50, acknowledge=False)
    quiet(client)


def test_queries_beside_each_other_and_what_is_sent_behind_them(client: Wire) -> None:
    client.send(asking(1), asking(2, sort="-total"), frame("PING"))
    seen: dict[int, list[str]] = {1: [], 2: []}
    answers = []
    while len(seen[1]) + len(seen[2]) < 2 * DOCUMENTS:
        type, told = client.receive()
        if type == "QUERYRESULT":
            seen[told["queryID"]].append(told["id"])
            client.send(acks(1, told["queryID"]))
        else:
            answers.append((type, told.get("queryID")))
    assert answers == [("QUERYRESPONSE", 1), ("QUERYRESPONSE", 2), ("RESPONSE", None)]
    assert seen[1] == sorted(seen[1]) == seen[2][::-1]


# One moment


def test_all_results_are_of_one_moment_while_the_projection_goes_on(moving: Store) -> None:
    every: dict[int, dict[str, Any]] = {1: {}, 2: {"matcher": {"total": {"$gte": 0}}}, 3: {"sort": ["odd", "total"]}}
    with serving(moving.path) as server, wire(server.tcp_url) as client:
        found = {}
        for id, asked in every.items():
            assert ask(client, id=id, **asked) == DOCUMENTS
            found[id] = results(client, 100, id, acknowledge=False)
        fill(moving, {name_of(number): -1 if number % 2 else number + 1000 for number in range(DOCUMENTS + 50)})
        shop(version=2).catch_up(moving)  # which also makes it anew, and removes the old file
        for id in every:
            client.send(acks(100, id))
            found[id] += results(client, DOCUMENTS - 100, id)
            totals = {each["id"]: each["result"]["total"] for each in found[id]}
            assert totals == {name_of(n): n for n in range(DOCUMENTS)}
        for id, asked in every.items():
            assert ask(client, id=id, **asked) == 150
            assert {each["result"]["total"] for each in results(client, 150, id)} == {
                n + 1000 for n in range(0, 300, 2)
            }


# Errors


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"binder": "none"}, "no_such_binder"),
        ({"matcher": {"total": {"$above": 1}}}, "bad_match"),
        ({"matcher": "all"}, "bad_field"),
        ({"matcher": None}, "bad_field"),
        ({"binder": None}, "bad_field"),
        ({"queryID": None}, "bad_field"),
        ({"queryID": 2**31}, "bad_field"),
        ({"limit": -1}, "bad_field"),
        ({"skip": 1.5}, "bad_field"),
        ({"sort": 5}, "invalid"),
        ({"sort": ["a", 5]}, "invalid"),
        ({"fields": ["total"]}, "bad_field"),
    ],
)
def test_a_query_that_fails_gets_a_response_and_the_connection_goes_on(
    client: Wire, fields: dict[str, Any], code: str
) -> None:
    asked = {"queryID": 1, "binder": "baskets", "matcher": {}, **fields}
    client.send(frame("QUERY", {name: value for name, value in asked.items() if value is not None}))
    type, told = client.receive()
    assert (type, told["ok"], told["errCode"]) == ("RESPONSE", False, code)
    assert ask(client, limit=1) == 1
    results(client, 1)


def test_a_name_in_use_and_too_many_are_refused(client: Wire) -> None:
    for id in range(16):
        assert ask(client, id=id) == DOCUMENTS
        results(client, 100, id, acknowledge=False)
    assert client.ask("QUERY", queryID=3, binder="baskets", matcher={})["errCode"] == "query_open"
    refused = client.ask("QUERY", queryID=16, binder="baskets", matcher={})
    assert (refused["errCode"], refused["errFacts"]["maximum"]) == ("too_many", 16)
    client.send(acks(200, 3))
    results(client, 100, 3, acknowledge=False)
    client.send(acks(100, 3))
    results(client, 50, 3, acknowledge=False)
    assert ask(client, id=16, limit=1) == 1
    results(client, 1, 16)


# Its end


def is_free(hw: Store) -> bool:
    """Whether nobody holds a moment of the binder that is not the last: its log can be emptied."""
    fill(hw, {"later": 1})
    (path,) = (hw.path / "binders").glob("baskets.*.sqlite")
    with closing(sqlite3.connect(path, timeout=0)) as connection:
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def test_what_is_not_acknowledged_ends_and_lets_go_of_its_moment(moving: Store) -> None:
    with serving(moving.path, limits={"write_s": 2.0}) as server, wire(server.tcp_url) as client:
        assert ask(client) == DOCUMENTS
        results(client, 100, acknowledge=False)
        for _ in range(5):
            time.sleep(0.5)  # more in all than it may take nothing
            client.send(acks(1))
            results(client, 1, acknowledge=False)
        begun = time.monotonic()
        assert not is_free(moving)
        type, told = client.receive()
        assert (type, told["queryID"], told["errCode"]) == ("QUERYEND", 1, "timeout")
        assert time.monotonic() - begun > 1.5
        wait_for(lambda: is_free(moving))
        quiet(client)
        assert ask(client, limit=1) == 1
        results(client, 1)


def test_a_client_that_leaves_lets_go_of_its_moment(moving: Store) -> None:
    with serving(moving.path) as server:
        for asked in ({}, {"matcher": {"odd": False}}):
            with wire(server.tcp_url) as client:
                assert ask(client, **asked) > 100
                results(client, 100, acknowledge=False)
                assert not is_free(moving)
            begun = time.monotonic()
            wait_for(lambda: is_free(moving))
            assert time.monotonic() - begun < 10


def test_a_server_that_stops_says_so(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data") as hw:
        fill(hw, {name_of(number): number for number in range(DOCUMENTS)})
    server = ServerProcess(tmp_path / "data")
    with wire(server.tcp_url) as client:
        assert ask(client) == DOCUMENTS
        results(client, 100, acknowledge=False)
        server.ask_to_stop()
        type, told = client.receive()
        assert (type, told["queryID"], told["errCode"]) == ("QUERYEND", 1, "stopping")
    assert server.stop() == 0


def test_a_slow_client_has_the_server_hold_little(tmp_path: Path) -> None:
    large = App()

    @large.projection("things", "baskets")
    def thing(doc: Any, event: headwater.Event) -> Any:  # noqa: ARG001
        return {"text": "x" * 1_000_000}

    with open_directory(tmp_path / "data") as hw:
        hw.append_many("things", [{}] * 40, keys=[f"k{number}" for number in range(40)], durability="os")
        large.catch_up(hw)
    with serving(tmp_path / "data") as server, wire(server.tcp_url) as client:
        assert ask(client, limit=1) == 1
        results(client, 1)
        before = most = server.anonymous_bytes()
        assert ask(client) == 40  # which may all be in transit
        for _ in range(40):
            results(client, 1)
            most = max(most, server.anonymous_bytes())
        assert most - before < 28 * 1024 * 1024  # of which 16 are the cache of SQLite


def test_a_document_too_deep_for_a_frame_ends_a_query_and_a_subscription(tmp_path: Path) -> None:
    deep = App()

    @deep.projection("things", "baskets")
    def thing(doc: Any, event: headwater.Event) -> Any:  # noqa: ARG001
        found: dict[str, Any] = {}
        for _ in range(event.value["levels"]):
            found = {"in": found}
        return found

    with open_directory(tmp_path / "data") as hw:
        hw.append_many("things", [{"levels": 97}, {"levels": 98}], keys=["a", "b"])
        deep.catch_up(hw)
    with serving(tmp_path / "data") as server, wire(server.tcp_url) as client:
        assert ask(client) == 2
        type, told = client.receive()
        assert (type, told["errCode"]) == ("QUERYEND", "too_deep")
        assert ask(client, limit=1) == 1
        results(client, 1)
        assert client.ask("SUBSCRIBE", binder="baskets", after="")["errCode"] == "too_deep"
        quiet(client)


def test_documents_are_for_those_who_may_read_them(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data") as hw:
        fill(hw, {"ann": 1})
    users = tmp_path / "users.json"
    people.add(users, "topic", "read:orders", password=people.SECRET)
    people.add(users, "binder", "read:binder/baskets", password=people.SECRET)
    with served(tmp_path / "data", "--auth", str(users)) as server:
        with wire(server.tcp_url, username="topic", password=people.SECRET) as client:
            assert client.ask("QUERY", queryID=1, binder="baskets", matcher={})["errCode"] == "forbidden"
            assert client.ask("QUERY", queryID=1, binder="none", matcher={})["errCode"] == "forbidden"
        with wire(server.tcp_url, username="binder", password=people.SECRET) as client:
            assert ask(client) == 1
            results(client, 1)
