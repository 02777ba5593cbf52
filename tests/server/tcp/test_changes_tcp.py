"""Changes of documents over a real socket: what docs/PROTOCOL.md says of them, sentence by sentence."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater import App
from headwater.opening import open_directory
from headwater.store import Store
from tests.server import people
from tests.server.process import ServerProcess, served
from tests.server.serving import Server, serving
from tests.server.tcp.wire import Wire, frame, wire
from tests.waiting import wait_for

_numbers = count()


def counting(topic: str, binder: str, version: int = 1) -> App:
    app = App()

    @app.projection(topic, binder, version=version, name=binder)
    def count(doc: Any, event: headwater.Event) -> Any:
        if event.type == "gone":
            return None
        return {"n": (doc["n"] if doc else 0) + version, "text": "x" * event.value.get("size", 0)}

    return app


class Clicks:
    """A topic and a binder of its own, which counts clicks in this process."""

    def __init__(self, hw: Store) -> None:
        number = next(_numbers)
        self.hw = hw
        self.topic, self.binder = f"clicks{number}", f"counts{number}"
        self.app = counting(self.topic, self.binder)

    def click(self, *keys: str, type: str = "click", size: int = 0) -> None:
        self.hw.append_many(self.topic, [{"size": size}] * len(keys), keys=list(keys), types=type)
        self.app.catch_up(self.hw)


@pytest.fixture
def clicks(local: Store) -> Clicks:
    made = Clicks(local)
    made.click("a", "b")
    return made


def subscribe(client: Wire, clicks: Clicks, **fields: Any) -> dict[str, Any]:
    """Subscribe; what is answered."""
    client.send(frame("SUBSCRIBE", {"binder": clicks.binder, **fields}))
    type, told = client.receive()
    assert (type, told["ok"], set(told)) == ("SUBRESPONSE", True, {"ok", "subID", "place"}), told
    return told


def received(client: Wire) -> dict[str, Any]:
    type, told = client.receive()
    assert type == "RECEV", told
    return told


def changes(client: Wire, number: int) -> list[tuple[str, str, Any]]:
    found = []
    for _ in range(number):
        told = received(client)
        client.send(frame("ACKEV", {"subID": told["subID"]}))
        found.append((told["eventType"], told.get("id", ""), told["event"].get("n")))
    return found


def quiet(client: Wire) -> None:
    """Nothing comes but the answer to what is asked next."""
    for _ in range(3):
        client.send(frame("PING"))
        assert client.receive() == ("RESPONSE", {"ok": True})


def test_what_changes_from_now_on_is_told(clicks: Clicks, client: Wire) -> None:
    subscription = subscribe(client, clicks)["subID"]
    before = time.time() * 1000
    clicks.click("a")
    told = received(client)
    assert told["timestamp"] == pytest.approx(before, abs=20_000)
    del told["timestamp"]
    assert told.pop("place")
    assert told == {
        "subID": subscription,
        "eventType": "put",
        "seqNo": 0,
        "id": "a",
        "version": 2,
        "event": {"n": 2, "text": ""},
    }
    clicks.click("b", type="gone")
    told = received(client)
    assert (told["eventType"], told["id"], told["event"], told["seqNo"]) == ("delete", "b", {}, 1)
    assert "version" not in told
    clicks.click("c")
    assert received(client)["seqNo"] == 2
    quiet(client)


def test_all_documents_come_first_after_an_empty_place(clicks: Clicks, client: Wire) -> None:
    subscribe(client, clicks, after="")
    assert changes(client, 2) == [("put", "a", 1), ("put", "b", 1)]
    clicks.click("a")
    assert changes(client, 1) == [("put", "a", 2)]


def test_it_goes_on_after_a_place(clicks: Clicks, server: Server) -> None:
    with wire(server.tcp_url) as client:
        begun = subscribe(client, clicks)["place"]
        clicks.click("c")
        last = received(client)["place"]
    clicks.click("a", "d")
    with wire(server.tcp_url) as client:
        subscribe(client, clicks, after=last)
        assert changes(client, 2) == [("put", "a", 2), ("put", "d", 1)]
        subscribe(client, clicks, after=begun)
        assert changes(client, 3) == [("put", "c", 1), ("put", "a", 2), ("put", "d", 1)]
        clicks.click("e")
        assert changes(client, 2) == [("put", "e", 1)] * 2
        quiet(client)


def test_a_rebuild_is_told_as_a_reset_and_all_documents_come_again(clicks: Clicks, client: Wire) -> None:
    place = subscribe(client, clicks)["place"]
    clicks.app = counting(clicks.topic, clicks.binder, version=2)
    clicks.app.catch_up(clicks.hw)
    reset = received(client)
    assert (reset["eventType"], reset["event"], reset["seqNo"]) == ("reset", {}, 0)
    assert changes(client, 2) == [("put", "a", 2), ("put", "b", 2)]
    subscribe(client, clicks, after=place)  # of what is not there any more
    assert changes(client, 3) == [("reset", "", None), ("put", "a", 2), ("put", "b", 2)]
    quiet(client)


def test_at_most_1000_are_unacknowledged_and_acknowledgements_are_as_for_events(clicks: Clicks, client: Wire) -> None:
    clicks.click(*(f"k{number:04}" for number in range(1500)))
    subscription = subscribe(client, clicks, after="")["subID"]
    assert [received(client)["seqNo"] for _ in range(1000)] == list(range(1000))
    quiet(client)
    client.send(frame("ACKEV", {"subID": subscription}))
    assert received(client)["seqNo"] == 1000
    quiet(client)
    client.send(frame("ACKEV", {"subID": subscription, "seqNo": 99}))
    assert [received(client)["seqNo"] for _ in range(99)] == list(range(1001, 1100))
    client.send(frame("ACKEV", {"subID": subscription, "seqNo": 5000}))
    assert [received(client)["seqNo"] for _ in range(402)] == list(range(1100, 1502))
    quiet(client)


def test_nothing_comes_after_unsubscribe_and_nothing_is_kept(clicks: Clicks, client: Wire) -> None:
    subscription = subscribe(client, clicks)["subID"]
    assert client.ask("UNSUBSCRIBE", subID=subscription, delete=True)["errCode"] == "not_durable"
    assert client.ask("UNSUBSCRIBE", subID=subscription) == {"ok": True}
    other = subscribe(client, clicks)["subID"]
    clicks.click("a")
    assert received(client)["subID"] == other
    quiet(client)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"binder": "none"}, "no_such_binder"),
        ({"binder": 5}, "bad_field"),
        ({"after": "nowhere"}, "bad_place"),
        ({"after": 5}, "bad_field"),
        ({"streamName": "orders"}, "bad_field"),
        ({"durableID": "me"}, "bad_field"),
        ({"startSequence": 0}, "bad_field"),
        ({"matcher": {}}, "bad_field"),
    ],
)
def test_a_subscription_that_fails_is_answered_and_the_connection_goes_on(
    clicks: Clicks, client: Wire, fields: dict[str, Any], code: str
) -> None:
    client.send(frame("SUBSCRIBE", {"binder": clicks.binder, **fields}))
    type, told = client.receive()
    assert (type, told["ok"], told["errCode"]) == ("SUBRESPONSE", False, code)
    assert "subID" not in told
    subscribe(client, clicks)


def test_many_follow_and_each_is_told_of_everything_in_order(clicks: Clicks, server: Server) -> None:
    clients = [Wire(server.tcp_url) for _ in range(5)]
    for client in clients:
        client.connect()
        subscribe(client, clicks)
        subscribe(client, clicks)
    for _ in range(10):
        clicks.click("z")
    for client in clients:
        seen: dict[int, list[int]] = {1: [], 2: []}
        while any(not each or each[-1] < 10 for each in seen.values()):
            told = received(client)
            assert (told["eventType"], told["id"]) == ("put", "z")
            seen[told["subID"]].append(told["event"]["n"])
        assert all(each == sorted(set(each)) for each in seen.values())
        client.close()
    wait_for(lambda: "headwater_subscribers 0.0" in server.http.get("/metrics").text.splitlines())


def test_a_slow_client_has_the_server_hold_little_and_loses_nothing(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data") as hw:
        clicks = Clicks(hw)
        clicks.click("first")
        with serving(hw.path) as server, wire(server.tcp_url) as client:
            subscribe(client, clicks)
            before = most = server.anonymous_bytes()
            for number in range(40):
                clicks.click(f"k{number:02}", size=1_000_000)
                most = max(most, server.anonymous_bytes())
            found = changes(client, 40)
            assert found == [("put", f"k{number:02}", 1) for number in range(40)]
            assert most - before < 28 * 1024 * 1024  # of which 16 are the cache of SQLite


def test_a_server_that_stops_says_so(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data") as hw:
        clicks = Clicks(hw)
        clicks.click("a")
    server = ServerProcess(tmp_path / "data")
    with wire(server.tcp_url) as client:
        subscription = subscribe(client, clicks)["subID"]
        server.ask_to_stop()
        type, told = client.receive()
        assert (type, told["subID"], told["errCode"]) == ("SUBEND", subscription, "stopping")
    assert server.stop() == 0


def test_changes_are_for_those_who_may_read_the_binder(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data") as hw:
        clicks = Clicks(hw)
        clicks.click("a")
    users = tmp_path / "users.json"
    people.add(users, "topic", f"read:{clicks.topic}", password=people.SECRET)
    people.add(users, "binder", f"read:binder/{clicks.binder}", password=people.SECRET)
    with served(tmp_path / "data", "--auth", str(users)) as server:
        with wire(server.tcp_url, username="topic", password=people.SECRET) as client:
            assert client.ask("SUBSCRIBE", binder=clicks.binder)["errCode"] == "forbidden"
        with wire(server.tcp_url, username="binder", password=people.SECRET) as client:
            subscribe(client, clicks, after="")
            assert changes(client, 1) == [("put", "a", 1)]
