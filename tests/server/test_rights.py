"""Every request and frame needs the right that the table says, which is the one of the docs: no more, and no less."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.server.http.routes import RIGHTS, ROUTES
from headwater.server.rights import ACTIONS, Right
from headwater.server.tcp.connection import _OWN
from headwater.server.tcp.handlers import HANDLERS
from tests.server import people
from tests.server.process import ServerProcess, served
from tests.server.process import http as client
from tests.server.tcp.wire import Wire
from tests.server.test_binders import fill
from tests.server.test_cross_site import path_of
from tests.waiting import wait_for

PAGE = Path(__file__).parents[2] / "docs" / "SECURITY.md"
NAMES = {"topic": "t", "each topic": "t", "bus": "events", "binder": "binder/baskets", "query": "query/top"}
GUARDED = {request: right for request, right in RIGHTS.items() if right.needed in ACTIONS}
BY_HTTP = [f"{route.method} {route.pattern}" for route in ROUTES]
BODIES: dict[str, Any] = {
    "POST /transaction": {"appends": [{"topic": "t", "data": 1}]},
    "POST /consumer/{name}/{topic}/acks": {"member": "none"},
    "POST /consumer/{name}/{topic}/acks with seek": {"member": "none", "seek": {"at": "earliest"}},
    "POST /consumer/{name}/{topic}/seek": {"at": "earliest"},
    "POST /binders/{binder}/index": {"field": "total"},
}
NEEDS_MORE = {"POST /transaction with acks"}  # a member, which is joined with the right that is to be missing
FRAMES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "EMIT": [("EMIT", {"streamName": "t", "eventType": "x", "event": {}})],
    "COMMITTX": [
        ("STARTTX", {"sessID": 1}),
        ("EMIT", {"streamName": "t", "eventType": "x", "event": {}, "sessID": 1}),
        ("COMMITTX", {"sessID": 1}),
    ],
    "SUBSCRIBE": [("SUBSCRIBE", {"streamName": "t"})],
    "SUBSCRIBE with binder": [("SUBSCRIBE", {"binder": "baskets"})],
    "UNSUBSCRIBE with delete": [
        ("SUBSCRIBE", {"streamName": "t", "durableID": "d"}),
        ("UNSUBSCRIBE", {"subID": 1, "delete": True}),
    ],
    "QUERY": [("QUERY", {"queryID": 1, "binder": "baskets", "matcher": {}})],
}


class Place:
    """A server with users, and their file."""

    def __init__(self, server: ServerProcess, users: Path) -> None:
        self.server = server
        self.users = users
        self.uuid = client.get(f"{server.url}/version").json()["uuid"]

    def user(self, name: str, *scopes: str) -> dict[str, str]:
        """The header of a user that may do just this."""
        return {"Authorization": f"Bearer {people.add(self.users, name, *scopes, token=True)}"}

    def call(self, request: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """The status of an answer, and of an error what it tells; `request` is a row of the table."""
        named = request.partition(" with ")[0]
        route = next(route for route in ROUTES if f"{route.method} {route.pattern}" == named)
        body = BODIES.get(request, {})
        if named == "POST /replication/batches":
            with headwater.open(self.server.path) as hw:
                uuid = hw.describe("t").uuid
            body = {"logs": [{"topic": "t", "uuid": uuid, "partition": 0, "offset": 0}], "wait_ms": 0}
        with client.stream(
            route.method,
            self.server.url + path_of(route),
            headers=headers,
            json=body if route.method == "POST" else None,
        ) as answer:
            refused = answer.status_code in (401, 403)
            return answer.status_code, json.loads(answer.read()) if refused else {}

    def send(self, request: str, headers: dict[str, str]) -> list[dict[str, Any]]:
        """What is answered to the frames of a row."""
        wire = Wire(self.server.tcp_url)
        try:
            assert wire.connect(token=headers["Authorization"].removeprefix("Bearer "))["ok"]
            return [wire.ask(type, **body) for type, body in FRAMES[request]]
        finally:
            wire.close()


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    path = tmp_path_factory.mktemp("rights")
    fill(path / "data", ann=10)
    users = path / "users.json"
    people.add(users, "admin")
    with served(path / "data", "--auth", str(users)) as server:
        yield Place(server, users)


@pytest.fixture(autouse=True)
def topics(guarded_server: Place) -> None:
    """What the requests are about, though the one before may have deleted it."""
    with headwater.open(guarded_server.server.path) as hw:
        hw.create("t")
        hw.create("events")
        if not hw.consumers("t"):
            hw.consumer("c", "t").close()


def all_but(right: Right) -> list[str]:
    """Scopes that grant everything but this: the other actions on all, and this one on another name."""
    others = [f"{action}:*" for action in ACTIONS if action != right.needed]
    return [*others, f"{right.needed}:t*" if right.of == "all topics" else f"{right.needed}:other"]


def only(request: str) -> list[str]:
    """Scopes that grant what a request needs, with what it needs in any case."""
    rows = {request, request.partition(" with ")[0]} & GUARDED.keys()
    rows |= {"SUBSCRIBE"} if request == "UNSUBSCRIBE with delete" else set()
    return [f"{GUARDED[row].needed}:{NAMES.get(GUARDED[row].of, '*')}" for row in rows]


@pytest.mark.parametrize("request_", [each for each in GUARDED if "/" in each and each not in NEEDS_MORE])
def test_a_request_without_its_right_is_403_and_with_it_alone_is_not(guarded_server: Place, request_: str) -> None:
    right = GUARDED[request_]
    status, told = guarded_server.call(request_, guarded_server.user("without", *all_but(right)))
    assert (status, told["code"]) == (403, "forbidden")
    assert told["facts"]["action"] == right.needed
    assert told["facts"]["topic"] == NAMES.get(right.of)
    assert guarded_server.call(request_, guarded_server.user("with", *only(request_)))[0] not in (401, 403)


@pytest.mark.parametrize("request_", [each for each in GUARDED if "/" not in each])
def test_a_frame_without_its_right_is_refused_and_with_it_alone_is_not(guarded_server: Place, request_: str) -> None:
    right = GUARDED[request_]
    answers = guarded_server.send(request_, guarded_server.user("without", *all_but(right)))
    [refused] = [each for each in answers if each.get("errCode") == "forbidden"]
    assert (refused["errFacts"]["action"], refused["errFacts"]["topic"]) == (right.needed, NAMES[right.of])
    answers = guarded_server.send(request_, guarded_server.user("with", *only(request_)))
    assert [each.get("errCode") for each in answers] == [None] * len(answers)


@pytest.mark.parametrize("request_", [each for each in RIGHTS if "/" in each and each not in NEEDS_MORE])
def test_who_is_not_known_gets_only_what_needs_no_right(guarded_server: Place, request_: str) -> None:
    status, told = guarded_server.call(request_, {})
    if RIGHTS[request_].needed is None:
        assert status == 200
    else:
        assert (status, told["code"]) == (401, "unauthenticated")


def test_a_transaction_acks_only_events_of_topics_that_may_still_be_read(guarded_server: Place) -> None:
    headers = guarded_server.user("member", "read,append:t")
    joined = http.client.HTTPConnection("127.0.0.1", guarded_server.server.port, timeout=20)
    with headwater.open(guarded_server.server.path) as hw:
        place_of_event = hw.append("t", b"x")
    joined.request("POST", "/consumer/m/t/items?start=latest", headers=headers)
    answer = joined.getresponse()
    token = answer.headers["Headwater-Member"]
    with headwater.open(guarded_server.server.path) as hw:
        offset = hw.append("t", b"y").offset
    assert offset == place_of_event.offset + 1
    while answer.readline() == b"\n":
        pass
    asked = {"acks": [{"member": token, "partition": 0, "offset": offset}]}
    accounts = json.loads(guarded_server.users.read_text())
    accounts["users"]["member"]["scopes"] = ["append:t"]
    guarded_server.users.write_text(json.dumps(accounts))
    wait_for(lambda: client.get(f"{guarded_server.server.url}/topic/t", headers=headers).status_code == 403)
    refused = client.post(f"{guarded_server.server.url}/transaction", json=asked, headers=headers)
    assert (refused.status_code, refused.json()["facts"]["action"]) == (403, "read")
    answer.close()
    joined.close()


def test_the_table_has_every_request_and_every_frame() -> None:
    named = {request.partition(" with ")[0] for request in RIGHTS}
    assert {each for each in named if "/" in each} == set(BY_HTTP)
    assert {each for each in named if "/" not in each} == {*HANDLERS, *_OWN}
    assert {each for each in GUARDED if "/" not in each} == set(FRAMES)


def test_the_page_about_security_has_the_same_table() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("\n| right | of | requests and frames |\n|---|---|---|\n")[2]
    said = {}
    for line in table.partition("\n\n")[0].splitlines():
        right, of, requests = (cell.strip() for cell in line.strip("|").split("|"))
        needed = {"none": None, "any user": "user"}.get(right, right.strip("`"))
        for request in re.findall(r"`([^`]+)`", requests):
            assert request not in said
            said[request] = (needed, of)
    assert said == {request: tuple(right) for request, right in RIGHTS.items()}
