"""Transactions over a real socket: what docs/PROTOCOL.md says of them, sentence by sentence."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.store import Store
from tests.server import people
from tests.server.process import served
from tests.server.serving import Server, serving
from tests.server.tcp.wire import Wire, frame, wire
from tests.waiting import wait_for

KIB = 1024
HELD_BYTES_MAX = 256 * KIB
OK = frame("RESPONSE", {"ok": True})


def emit(topic: str, n: int, session: int, **fields: Any) -> bytes:
    return frame("EMIT", {"sessID": session, "streamName": topic, "eventType": "t", "event": {"n": n}, **fields})


def begin(client: Wire, session: int = 1) -> None:
    assert client.ask("STARTTX", sessID=session) == {"ok": True}


def stored(log: Store, topic: str) -> list[int]:
    """What a topic holds; nothing, if it is not there."""
    if topic not in log.topics():
        return []
    return [event.value["n"] for event in log.read(topic)]


def test_events_are_stored_when_the_transaction_is_committed_and_not_before(
    client: Wire, local: Store, topic: str
) -> None:
    other = f"{topic}-other"
    local.create(other, partitions=3)
    begin(client)
    for n in range(4):
        told = client.emit((topic, other)[n % 2], {"n": n}, sessID=1, key=f"k{n}", meta={"by": "ann"})
        assert told == {"ok": True}
    assert stored(local, topic) == stored(local, other) == []
    told = client.ask("COMMITTX", sessID=1)
    assert told["ok"]
    assert [ref["streamName"] for ref in told["refs"]] == [topic, other, topic, other]
    for n, ref in enumerate(told["refs"]):
        (event,) = local.read(ref["streamName"], start=ref["offset"], partition=ref["partition"], end=ref["offset"] + 1)
        assert (event.value, event.id, event.type) == ({"n": n}, ref["id"].as_uuid(), "made")
        assert (event.key, event.meta, event.content) == (f"k{n}".encode(), {"by": "ann"}, "bson")
    assert set(told["refs"][0]) == {"streamName", "partition", "offset", "id"}


def test_a_whole_transaction_may_be_sent_at_once_and_the_next_behind_it(client: Wire, local: Store, topic: str) -> None:
    for n in range(50):
        client.send(
            frame("STARTTX", {"sessID": 1}),
            *(emit(topic, 3 * n + k, 1) for k in range(3)),
            frame("COMMITTX", {"sessID": 1}),
            frame("EMIT", {"streamName": f"{topic}-alone", "eventType": "t", "event": {"n": n}}),
        )
    for n in range(50):
        assert [client.receive()[1] for _ in range(4)] == [{"ok": True}] * 4
        assert [ref["offset"] for ref in client.receive()[1]["refs"]] == [3 * n, 3 * n + 1, 3 * n + 2]
        assert client.receive()[1]["offset"] == n
    assert stored(local, topic) == list(range(150))


def test_an_empty_transaction_is_committed_without_refs(client: Wire) -> None:
    begin(client)
    assert client.ask("COMMITTX", sessID=1) == {"ok": True, "refs": []}


def test_the_bus_is_what_an_event_goes_to_that_names_no_topic(tmp_path: Path) -> None:
    bus = {"topic": "bus", "segments": 3, "segment_bytes": 1 << 20}
    with serving(tmp_path / "data", bus=bus) as server, wire(server.tcp_url) as client:
        begin(client)
        assert client.ask("EMIT", sessID=1, eventType="t", event={"n": 1}) == {"ok": True}
        assert client.ask("COMMITTX", sessID=1)["refs"][0]["streamName"] == "bus"
        with headwater.open(server.path) as hw:
            settings = hw.describe("bus").settings
        assert (settings["retention_segments"], settings["segment_bytes"]) == (3, 1 << 20)


def test_what_is_aborted_is_not_stored(client: Wire, local: Store, topic: str) -> None:
    begin(client)
    client.send(emit(topic, 1, 1), frame("ABORTTX", {"sessID": 1}), frame("COMMITTX", {"sessID": 1}))
    assert [client.receive()[1]["ok"] for _ in range(2)] == [True, True]
    assert client.receive()[1]["errCode"] == "no_transaction"
    assert topic not in local.topics()


@pytest.mark.parametrize("session", [0, -1, 2**31 - 1, -(2**31), 7.0])
def test_any_int32_names_a_transaction(client: Wire, local: Store, topic: str, session: Any) -> None:
    begin(client, session)
    client.send(emit(topic, 1, session))
    assert client.receive()[1] == {"ok": True}
    assert client.ask("COMMITTX", sessID=session)["ok"]
    assert stored(local, topic) == [1]


@pytest.mark.parametrize("type", ["STARTTX", "COMMITTX", "ABORTTX"])
@pytest.mark.parametrize("fields", [{}, {"sessID": 2**31}, {"sessID": "1"}, {"sessID": 1.5}, {"sessID": 1, "other": 1}])
def test_what_names_none_is_refused_and_ends_none(client: Wire, type: str, fields: dict[str, Any]) -> None:
    if type != "STARTTX":
        begin(client)
    assert client.ask(type, **fields)["errCode"] == "bad_field"
    if type == "STARTTX":
        begin(client)
    assert client.ask("COMMITTX", SessID=1)["ok"]


def test_a_connection_may_have_64_and_another_connection_has_its_own(server: Server, client: Wire) -> None:
    for session in range(64):
        begin(client, session)
    refused = client.ask("STARTTX", sessID=64)
    assert (refused["errCode"], refused["errFacts"]["maximum"]) == ("too_many", 64)
    assert client.ask("ABORTTX", sessID=3)["ok"]
    begin(client, 64)
    with wire(server.tcp_url) as other:
        assert other.ask("COMMITTX", sessID=5)["errCode"] == "no_transaction"
        begin(other, 5)


def test_an_event_of_a_session_without_a_transaction_is_stored_at_once(client: Wire, local: Store, topic: str) -> None:
    assert client.emit(topic, {"n": 1}, sessID=9)["offset"] == 0
    assert stored(local, topic) == [1]


def test_a_transaction_that_is_open_cannot_be_begun_and_one_that_is_not_cannot_be_ended(
    client: Wire, local: Store, topic: str
) -> None:
    for type in ("COMMITTX", "ABORTTX"):
        assert client.ask(type, sessID=1)["errCode"] == "no_transaction"
    begin(client)
    client.send(emit(topic, 1, 1))
    assert client.receive()[1]["ok"]
    assert client.ask("STARTTX", sessID=1)["errCode"] == "transaction_open"
    assert len(client.ask("COMMITTX", sessID=1)["refs"]) == 1  # it is as it was before
    assert stored(local, topic) == [1]


def test_transactions_on_one_connection_do_not_mix(client: Wire, local: Store, topic: str) -> None:
    for session in range(5):
        begin(client, session)
    alone = [frame("EMIT", {"streamName": topic, "eventType": "t", "event": {"n": n}}) for n in range(50)]
    client.send(*(piece for n in range(50) for piece in (emit(f"{topic}-{n % 3}", n, n % 5), alone[n])))
    for n in range(50):
        assert client.receive()[1] == {"ok": True}
        assert client.receive()[1]["offset"] == n
    for session in (3, 1, 4):
        told = client.ask("COMMITTX", sessID=session)
        assert [ref["streamName"] for ref in told["refs"]] == [f"{topic}-{n % 3}" for n in range(session, 50, 5)]
    assert client.ask("ABORTTX", sessID=0)["ok"]
    found = [n for each in range(3) for n in stored(local, f"{topic}-{each}")]
    assert sorted(found) == [n for n in range(50) if n % 5 in (1, 3, 4)]
    assert stored(local, topic) == list(range(50))
    assert len(client.ask("COMMITTX", sessID=2)["refs"]) == 10


BAD: list[tuple[dict[str, Any], str]] = [
    ({"durability": "os"}, "bad_field"),
    ({"producer": {"id": "p", "epoch": 0, "seq": 0}}, "bad_field"),
    ({"event": "no document"}, "bad_field"),
    ({"eventType": 5}, "bad_field"),
    ({"colour": "red"}, "bad_field"),
    ({"expectedVersion": 3}, "invalid"),
    ({"key": "k" * 1025}, "too_large"),
    ({"partition": 7}, "partition_not_found"),
    ({"streamName": "x" * 1025}, "too_large"),
    ({"event": {"large": b"x" * (KIB * KIB)}}, "too_large"),
]


@pytest.mark.parametrize(("fields", "code"), BAD, ids=[next(iter(fields)) for fields, _ in BAD])
def test_an_event_that_fails_is_not_part_of_it_and_leaves_it_open(
    client: Wire, local: Store, topic: str, fields: dict[str, Any], code: str
) -> None:
    local.create(topic)
    begin(client)
    client.send(emit(topic, 1, 1), emit(topic, 2, 1, **fields), emit(topic, 3, 1))
    first, failed, last = (client.receive()[1] for _ in range(3))
    assert (first, last) == ({"ok": True}, {"ok": True})
    assert (failed["ok"], failed["errCode"]) == (False, code)
    assert len(client.ask("COMMITTX", sessID=1)["refs"]) == 2
    assert stored(local, topic) == [1, 3]


def test_a_commit_that_fails_has_stored_nothing_and_is_over(client: Wire, local: Store, topic: str) -> None:
    local.append(topic, {"n": 0}, key="k")
    begin(client)
    client.send(emit(f"{topic}-other", 1, 1), emit(topic, 2, 1, key="k", expectedVersion=-1), emit(topic, 3, 1))
    assert [client.receive()[1]["ok"] for _ in range(3)] == [True] * 3
    failed = client.ask("COMMITTX", sessID=1)
    assert (failed["ok"], failed["errCode"], failed["errKind"]) == (False, "version_conflict", "Conflict")
    assert (stored(local, topic), stored(local, f"{topic}-other")) == ([0], [])
    assert client.ask("COMMITTX", sessID=1)["errCode"] == "no_transaction"
    assert client.ask("PING") == {"ok": True}


def test_versions_are_compared_at_the_commit_with_what_was_there_before(client: Wire, local: Store, topic: str) -> None:
    begin(client)
    client.send(*(emit(topic, n, 1, key="k", expectedVersion=0) for n in (1, 2)))  # there is none yet
    assert [client.receive()[1]["ok"] for _ in range(2)] == [True] * 2
    local.append(topic, {"n": 0}, key="k")
    assert [ref["offset"] for ref in client.ask("COMMITTX", sessID=1)["refs"]] == [1, 2]
    assert stored(local, topic) == [0, 1, 2]


def test_a_connection_that_ends_aborts_what_is_open(server: Server, client: Wire, local: Store, topic: str) -> None:
    with wire(server.tcp_url) as leaving:
        begin(leaving, 1)
        leaving.send(emit(topic, 1, 1))
        assert leaving.receive()[1]["ok"]
    wait_for(lambda: "headwater_http_connections 2.0" in server.http.get("/metrics").text)
    assert client.ask("COMMITTX", sessID=1)["errCode"] == "no_transaction"
    assert topic not in local.topics()


def test_what_was_committed_when_the_client_sends_no_more_is_answered(server: Server, local: Store, topic: str) -> None:
    with wire(server.tcp_url) as leaving:
        leaving.send(frame("STARTTX", {"sessID": 1}), emit(topic, 1, 1), frame("COMMITTX", {"sessID": 1}))
        leaving.socket.shutdown(1)
        assert [leaving.receive()[1]["ok"] for _ in range(3)] == [True] * 3
        assert leaving.closed()
    assert stored(local, topic) == [1]


def test_nobody_sees_a_part_of_one(client: Wire, local: Store, topic: str) -> None:
    local.create(topic)
    parts: list[list[int]] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            found = stored(local, topic)
            if len(found) % 7:
                parts.append(found)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for n in range(100):
            frames = [emit(topic, 7 * n + k, 1) for k in range(7)]
            client.send(frame("STARTTX", {"sessID": 1}), *frames, frame("COMMITTX", {"sessID": 1}))
            assert all(client.receive()[1]["ok"] for _ in range(9))
    finally:
        over.set()
        looking.join()
    assert not parts
    assert stored(local, topic) == list(range(700))


# Limits


def test_a_transaction_of_too_many_bytes_stays_open(client: Wire, local: Store, topic: str) -> None:
    begin(client)
    for n in range(64):
        assert client.emit(topic, {"n": n, "x": b"x" * (KIB * KIB - 100)}, sessID=1)["ok"]
    refused = client.emit(topic, {"n": 64, "x": b"x" * 100 * KIB}, sessID=1)
    assert (refused["errCode"], refused["errFacts"]["limit"]) == ("too_large", "transaction_bytes_max")
    assert client.emit(topic, {"n": 65}, sessID=1)["ok"]
    assert len(client.ask("COMMITTX", sessID=1)["refs"]) == 65
    assert stored(local, topic) == [*range(64), 65]


@pytest.mark.torture
def test_a_transaction_of_too_many_events_stays_open(client: Wire, topic: str) -> None:
    begin(client)
    sending = threading.Thread(target=client.send, args=[emit(topic, 0, 1) * 100_001])
    sending.start()
    told = client.raw(len(OK) * 100_000)
    sending.join()
    assert told == OK * 100_000
    assert client.receive()[1]["errFacts"]["limit"] == "transaction_events_max"
    assert len(client.ask("COMMITTX", sessID=1)["refs"]) == 100_000


def test_the_answer_to_a_commit_fits_a_frame(tmp_path: Path) -> None:
    with serving(tmp_path / "data", limits={"frame_bytes_max": 2 * KIB}) as server, wire(server.tcp_url) as client:
        begin(client)
        topics = [f"{n}-{'x' * 200}" for n in range(10)]
        client.send(*(emit(topic, 1, 1) for topic in topics))
        taken = [client.receive()[1]["ok"] for _ in topics].index(False)
        assert 4 < taken < 10
        client.send(frame("COMMITTX", {"sessID": 1}))
        assert 1.5 * KIB < int.from_bytes(client.raw(4), "big") <= 2 * KIB


def test_what_is_gathered_counts_as_held_and_is_given_back_once_however_it_ends(tmp_path: Path) -> None:
    limits = {"held_bytes_max": HELD_BYTES_MAX}
    with serving(tmp_path / "data", limits=limits) as server, wire(server.tcp_url) as client:
        client.emit("t", {"n": 0}, key="k")
        room = fill(client)
        assert 20 < room <= HELD_BYTES_MAX // (10 * KIB)
        assert client.emit("t", {"n": 1}, sessID=1)["ok"]  # there is room for a small one yet
        for end in ("ABORTTX", "COMMITTX", "conflict", "lost"):
            for _ in range(2):
                if end == "lost":
                    with wire(server.tcp_url) as leaving:
                        client.ask("ABORTTX", sessID=1)
                        assert fill(leaving) == room
                    wait_for(lambda: "headwater_http_connections 2.0" in server.http.get("/metrics").text)
                elif end == "conflict":
                    assert client.emit("t", {"n": 1}, sessID=1, key="k", expectedVersion=99)["ok"]
                    assert client.ask("COMMITTX", sessID=1)["errCode"] == "version_conflict"
                else:
                    assert client.ask(end, sessID=1)["ok"]
                assert fill(client) == room, f"after {end}"


def test_what_is_being_committed_when_the_client_leaves_is_given_back_when_it_is_done(tmp_path: Path) -> None:
    limits = {"held_bytes_max": HELD_BYTES_MAX}
    with serving(tmp_path / "data", limits=limits) as server, wire(server.tcp_url) as client:
        client.emit("t", {"n": 0})
        room = fill(client)
        for _ in range(3):
            assert client.ask("ABORTTX", sessID=1)["ok"]
            with wire(server.tcp_url) as leaving:
                assert fill(leaving) == room
                leaving.send(frame("COMMITTX", {"sessID": 1}))
            wait_for(lambda: fill(client) == room or not client.ask("ABORTTX", sessID=1))


def fill(client: Wire) -> int:
    """Begin a transaction and add as much as there is room for: how many events of 10 KiB."""
    begin(client)
    for n in range(1000):
        told = client.emit("t", {"n": n, "x": b"x" * 10 * KIB}, sessID=1)
        if not told["ok"]:
            assert told["errCode"] == "overloaded"
            return n
    raise AssertionError("there is room for everything")


# Who may


def test_rights_are_asked_for_each_event_and_again_when_it_is_committed(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    people.add(users, "ann", "append:mine.*", password=people.SECRET)
    with served(tmp_path / "data", "--auth", str(users)) as server:
        with wire(server.tcp_url, username="ann", password=people.SECRET) as client:
            begin(client)
            client.send(emit("mine.a", 1, 1), emit("yours", 2, 1), emit("mine.b", 3, 1))
            told = [client.receive()[1] for _ in range(3)]
            assert [each.get("errCode") for each in told] == [None, "forbidden", None]
            assert len(client.ask("COMMITTX", sessID=1)["refs"]) == 2
            begin(client)
            client.send(emit("mine.a", 4, 1), emit("mine.b", 5, 1))
            assert [client.receive()[1]["ok"] for _ in range(2)] == [True] * 2
            people.add(users, "ann", "append:mine.a", password=people.SECRET)
            wait_for(lambda: client.emit("mine.b", {"n": 0})["ok"] is False)
            assert client.ask("COMMITTX", sessID=1)["errCode"] == "forbidden"
            assert client.ask("COMMITTX", sessID=1)["errCode"] == "no_transaction"
        with headwater.open(tmp_path / "data") as hw:
            assert [event.value["n"] for event in hw.read("mine.a")] == [1]
