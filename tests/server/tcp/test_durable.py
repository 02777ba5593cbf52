"""Durable subscriptions over a real socket: what is acknowledged is kept, and nothing else is lost."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bson
import pytest

import headwater
from headwater.limits import DEFAULTS
from headwater.opening import open_directory
from headwater.server.access import OpenAccess
from headwater.server.metrics import Metrics
from headwater.server.service import Service
from headwater.server.settings import ServerSettings
from headwater.server.tcp import durable, subscribing
from tests.opened import join
from tests.server import people
from tests.server.process import served
from tests.server.serving import Server, serving
from tests.server.tcp.wire import Closed, Wire, frame, wire
from tests.waiting import wait_for

LEASE_MS = 1000
SHORT: dict[str, Any] = {"limits": {"lease_ms_max": LEASE_MS}}


@pytest.fixture(scope="module")
def server_settings() -> dict[str, Any]:
    return SHORT


def fill(path: Path, topic: str, numbers: range, **options: Any) -> None:
    with headwater.open(path) as hw:
        hw.append_many(topic, [bson.encode({"n": n}) for n in numbers], content="bson", **options)


def ask(client: Wire, topic: str, name: str = "d", **fields: Any) -> dict[str, Any]:
    """SUBSCRIBE, durably; the answer."""
    client.send(frame("SUBSCRIBE", {"streamName": topic, "durableID": name, **fields}))
    type, told = client.receive()
    assert type == "SUBRESPONSE"
    return told


def subscribe(client: Wire, topic: str, name: str = "d", **fields: Any) -> int:
    told = ask(client, topic, name, **fields)
    assert told["ok"], told
    return int(told["subID"])


def numbers(client: Wire, most: int) -> list[int]:
    """What the next events hold."""
    found = []
    for _ in range(most):
        type, body = client.receive()
        assert type == "RECEV", (type, body)
        found.append(body["event"]["n"])
    return found


def ack(client: Wire, id: int, seq: int | None = None) -> None:
    client.send(frame("ACKEV", {"subID": id} if seq is None else {"subID": id, "seqNo": seq}))


def quiet(client: Wire) -> bool:
    return all(client.ask("PING") == {"ok": True} for _ in range(20))


def wait_for_cursor(path: Path, topic: str, wanted: int, name: str = "d") -> None:
    """Until it is stored that so much was acknowledged."""
    with headwater.open(path) as hw:
        wait_for(lambda: cursor(hw, topic, name) == wanted)


def cursor(hw: Any, topic: str, name: str = "d") -> int | None:
    return next((each.cursor for each in hw.consumers(topic) if each.name == name), None)


def no_dead_letters(path: Path, topic: str) -> bool:
    with headwater.open(path) as hw:
        return f"{topic}.dead" not in hw.topics()


# What is kept


def test_it_goes_on_after_what_was_acknowledged_when_it_was_unsubscribed(server: Server, topic: str) -> None:
    fill(server.path, topic, range(10))
    with wire(server.tcp_url) as client:
        id = subscribe(client, topic, startSequence=2)
        assert numbers(client, 8) == list(range(2, 10))
        ack(client, id)
        ack(client, id, 5)
        assert client.ask("UNSUBSCRIBE", subID=id) == {"ok": True}
        with headwater.open(server.path) as hw:
            assert cursor(hw, topic) == 6  # it was stored before the answer
        again = subscribe(client, topic, startSequence=0)  # the start is that of the first
        assert again == id + 1
        assert numbers(client, 4) == [6, 7, 8, 9]
        assert quiet(client)


def test_it_goes_on_after_what_was_acknowledged_when_its_connection_ended(server: Server, topic: str) -> None:
    fill(server.path, topic, range(10))
    with wire(server.tcp_url) as client:
        id = subscribe(client, topic, startSequence=0)
        assert numbers(client, 10) == list(range(10))
        for _ in range(3):
            ack(client, id)
    with wire(server.tcp_url) as client:  # at once: the server may not have noticed that the other has gone
        subscribe(client, topic)
        assert numbers(client, 7) == list(range(3, 10))


def test_without_a_start_a_new_one_begins_at_its_subscribe_whatever_happens_then(tmp_path: Path) -> None:
    with serving(tmp_path / "data", **SHORT) as running:
        fill(running.path, "t", range(5))
        client = Wire(running.tcp_url)
        client.connect()
        subscribe(client, "t")
        running.process.kill()
        running.process.wait()
        client.close()
    fill(tmp_path / "data", "t", range(5, 8))
    with serving(tmp_path / "data", **SHORT) as running, wire(running.tcp_url) as client:
        subscribe(client, "t", startSequence=0)
        assert numbers(client, 3) == [5, 6, 7]


def test_without_a_start_what_follows_the_subscribe_comes(server: Server, topic: str) -> None:
    with wire(server.tcp_url) as client:
        emits = [frame("EMIT", {"streamName": topic, "eventType": "t", "event": {"n": n}}) for n in range(200)]
        client.send(*emits[:100], frame("SUBSCRIBE", {"streamName": topic, "durableID": "d"}), *emits[100:])
        got = [client.receive() for _ in range(301)]
        assert [body["event"]["n"] for type, body in got if type == "RECEV"] == list(range(100, 200))


def test_a_start_that_cannot_be_is_refused_and_nothing_is_made(server: Server, topic: str) -> None:
    fill(server.path, topic, range(3))
    with wire(server.tcp_url) as client:
        assert ask(client, topic, startSequence=4)["errCode"] == "offset_behind_end"
        assert ask(client, topic, matcher={"$what": 1})["errCode"] == "bad_match"
        with headwater.open(server.path) as hw:
            assert cursor(hw, topic) is None
        subscribe(client, topic, startSequence=3)  # and nobody has it


def test_it_can_begin_at_a_time_and_has_a_filter(server: Server, topic: str) -> None:
    fill(server.path, topic, range(10))
    with wire(server.tcp_url) as client:
        id = subscribe(client, topic, startTimestamp=0, matcher={"n": {"$gte": 7}}, typeMatcher=".*")
        assert numbers(client, 3) == [7, 8, 9]
        ack(client, id, 8)
        assert client.ask("UNSUBSCRIBE", subID=id)["ok"]
        subscribe(client, topic)  # what did not match was passed over for good
        assert numbers(client, 1) == [9]


def test_deleted_it_begins_anew(server: Server, topic: str) -> None:
    fill(server.path, topic, range(4))
    with wire(server.tcp_url) as client:
        id = subscribe(client, topic, startSequence=0)
        assert numbers(client, 4) == [0, 1, 2, 3]
        ack(client, id, 3)
        assert client.ask("UNSUBSCRIBE", subID=id, delete=True) == {"ok": True}
        with headwater.open(server.path) as hw:
            assert hw.consumers(topic) == []
        subscribe(client, topic, startSequence=1)
        assert numbers(client, 3) == [1, 2, 3]


def test_to_delete_it_takes_an_admin(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    people.add(users, "reader", "read:*", password=people.SECRET)
    people.add(users, "admin", "read,admin:*", password=people.SECRET)
    fill(tmp_path / "data", "t", range(1))
    with served(tmp_path / "data", "--auth", str(users)) as running:
        with wire(running.tcp_url, username="reader", password=people.SECRET) as client:
            id = subscribe(client, "t")
            assert client.ask("UNSUBSCRIBE", subID=id, delete=True)["errCode"] == "forbidden"
            with headwater.open(tmp_path / "data") as hw:
                assert cursor(hw, "t") == 1
        with wire(running.tcp_url, username="admin", password=people.SECRET) as client:
            id = subscribe(client, "t")
            assert client.ask("UNSUBSCRIBE", subID=id, delete=True)["ok"]


def test_acknowledgements_are_stored_while_it_goes_on(server: Server, topic: str) -> None:
    fill(server.path, topic, range(50))
    with wire(server.tcp_url) as client:
        id = subscribe(client, topic, startSequence=0)
        numbers(client, 50)
        ack(client, id, 17)
        wait_for_cursor(server.path, topic, 18)
        ack(client, id)
        wait_for_cursor(server.path, topic, 19)
        ack(client, id, 1000)  # only what was sent
        wait_for_cursor(server.path, topic, 50)


def test_a_thousand_are_unacknowledged_and_not_one_more(server: Server, topic: str) -> None:
    fill(server.path, topic, range(3000))
    with wire(server.tcp_url) as client:
        id = subscribe(client, topic, startSequence=0)
        assert numbers(client, 1000) == list(range(1000))
        assert quiet(client)
        ack(client, id)
        assert numbers(client, 1) == [1000]
        assert quiet(client)
        ack(client, id, 500)
        assert numbers(client, 500) == list(range(1001, 1501))
        assert quiet(client)
        ack(client, id, 9999)
        assert numbers(client, 1000) == list(range(1501, 2501))
        assert quiet(client)


def test_of_several_partitions_each_is_kept(server: Server, topic: str) -> None:
    with headwater.open(server.path) as hw:
        hw.create(topic, partitions=2)
        for partition in (0, 1):
            events = [bson.encode({"n": 100 * partition + n}) for n in range(5)]
            hw.append_many(topic, events, content="bson", partition=partition)
    with wire(server.tcp_url) as client:
        assert ask(client, topic, startSequence=1)["errCode"] == "partition_needed"
        id = subscribe(client, topic, startTimestamp=0)
        assert sorted(numbers(client, 10)) == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]
        client.send(frame("ACKEV", {"subID": id, "seqNo": 4}))  # of which?
        client.send(frame("ACKEV", {"subID": id, "seqNo": 2, "partition": 1}))
        client.send(frame("ACKEV", {"subID": id, "seqNo": 0, "partition": 0}))
        assert client.ask("UNSUBSCRIBE", subID=id)["ok"]
        subscribe(client, topic)
        assert sorted(numbers(client, 6)) == [1, 2, 3, 4, 103, 104]


# One owner


def test_it_is_refused_while_another_connection_has_it(server: Server, topic: str) -> None:
    fill(server.path, topic, range(3))
    with wire(server.tcp_url) as first, wire(server.tcp_url) as second:
        id = subscribe(first, topic, startSequence=0)
        told = ask(second, topic)
        assert (told["ok"], told["errCode"], told["errKind"]) == (False, "subscription_held", "Conflict")
        assert numbers(first, 3) == [0, 1, 2]
        first.send(frame("SUBSCRIBE", {"streamName": topic, "durableID": "d"}))  # nor twice by the same
        assert first.receive()[1]["errCode"] == "subscription_held"
        subscribe(second, topic, "other", startSequence=2)  # another name is another subscription
        assert numbers(second, 1) == [2]
        ack(first, id, 1)
        assert first.ask("UNSUBSCRIBE", subID=id)["ok"]
        subscribe(second, topic)
        assert numbers(second, 1) == [2]


def test_a_connection_that_ends_in_the_midst_of_much_frees_it_at_once(server: Server, topic: str) -> None:
    fill(server.path, topic, range(20_000))
    for _ in range(5):
        with wire(server.tcp_url) as client:
            subscribe(client, topic, startSequence=0)
            numbers(client, 3)
    assert no_dead_letters(server.path, topic)


def test_a_client_that_goes_before_it_is_answered_leaves_nothing(server: Server, topic: str) -> None:
    fill(server.path, topic, range(3))
    for _ in range(10):
        client = Wire(server.tcp_url)
        client.send(frame("CONNECT", {"version": "1.0"}))
        client.send(frame("SUBSCRIBE", {"streamName": topic, "durableID": "d", "startSequence": 0}))
        client.close()
    with wire(server.tcp_url) as client:
        subscribe(client, topic)
        assert numbers(client, 3) == [0, 1, 2]


async def test_a_client_that_is_cut_off_while_the_consumer_is_joined_leaves_nothing(tmp_path: Path) -> None:
    loop, joining, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    with open_directory(tmp_path / "data", limits=DEFAULTS) as engine:
        engine.append("t", b"x")
        store = Service(engine, OpenAccess(), ServerSettings(), Metrics())
        join = store.members.join

        def slowly(*args: Any, **options: Any) -> Any:
            loop.call_soon_threadsafe(joining.set)
            go_on.wait()
            return join(*args, **options)

        store.members.join = slowly  # type: ignore[method-assign]
        connection: Any = SimpleNamespace(service=store, limits=store.limits, loop=loop, parts={})
        subscription = await durable.owned(connection, "t", "d", "", "earliest", {})
        task = loop.create_task(subscribing.enter(subscription, {}))
        await joining.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (owner,) = store.durable.values()
        go_on.set()
        async with asyncio.timeout(20):
            await owner.left.wait()
        assert not store.durable
        assert len(store.members) == 0
        assert engine.consumers("t")[0].owner is None
        await store.close()


def test_what_another_process_holds_comes_when_it_lets_go(server: Server, topic: str) -> None:
    fill(server.path, topic, range(3))
    with headwater.open(server.path) as hw, wire(server.tcp_url) as client:
        with hw.consumer("d", topic) as consumer:
            consumer.ack(next(consumer))
            consumer.flush()
            subscribe(client, topic)  # answered, though it is held
            assert quiet(client)
        assert numbers(client, 2) == [1, 2]


def test_it_ends_when_it_is_moved_and_goes_on_there(server: Server, topic: str) -> None:
    fill(server.path, topic, range(10))
    with wire(server.tcp_url) as client:
        id = subscribe(client, topic, startSequence=5)
        assert numbers(client, 5) == [5, 6, 7, 8, 9]
        with headwater.open(server.path) as hw:
            hw.seek("d", topic, 3)
        ack(client, id, 9)  # too late: it would pass over what is to come again
        while (got := client.receive())[0] == "RECEV":
            pass
        type, body = got
        assert type == "SUBEND"
        assert (body["subID"], body["errCode"], body["errKind"]) == (id, "fenced", "Fenced")
        subscribe(client, topic)
        assert numbers(client, 7) == list(range(3, 10))


def test_it_ends_with_its_topic(server: Server, topic: str) -> None:
    fill(server.path, topic, range(3))
    with wire(server.tcp_url) as client:
        id = subscribe(client, topic, startSequence=0)
        assert numbers(client, 3) == [0, 1, 2]
        with headwater.open(server.path) as hw:
            hw.delete(topic)
        type, body = client.receive()
        assert (type, body["subID"], body["errCode"]) == ("SUBEND", id, "topic_deleted")
        fill(server.path, topic, range(7, 9))
        subscribe(client, topic, startSequence=0)
        assert numbers(client, 2) == [7, 8]


def test_retention_lets_it_go_on_at_the_oldest(server: Server, topic: str) -> None:
    with headwater.open(server.path) as hw, wire(server.tcp_url) as client:
        hw.create(topic, segment_bytes=8192)
        for first in range(0, 6000, 60):
            fill(server.path, topic, range(first, first + 60))
        id = subscribe(client, topic, startSequence=0)
        assert numbers(client, 1000) == list(range(1000))
        hw.retain(topic, retention_segments=2)
        oldest = next(iter(hw.read(topic))).offset
        got = 999
        while got < 5999:  # what was read before, and then what is left, in order
            ack(client, id, got)
            (n,) = numbers(client, 1)
            assert n == got + 1 or n == oldest
            got = n
        assert oldest > 5000


# Kills


def receive_all(client: Wire, got: list[int]) -> None:
    try:
        while True:
            type, body = client.receive()
            if type == "RECEV":
                got.append(body["event"]["n"])
    except (Closed, OSError, AssertionError):
        pass


def test_nothing_is_lost_when_the_server_is_killed_again_and_again(tmp_path: Path) -> None:
    """Each life is killed in the midst of delivery: all comes at least once, and goes on after what was stored."""
    path, total, acked, seen = tmp_path / "data", 2000, -1, set[int]()
    fill(path, "t", range(total))
    for life in range(4):
        with serving(path, **SHORT) as running:
            client = Wire(running.tcp_url)
            client.connect()
            id = subscribe(client, "t", startSequence=0)
            (first,) = numbers(client, 1)
            assert first == acked + 1
            seen.add(first)
            if life < 3:
                seen.update(numbers(client, 300))
                ack(client, id, first + 99)
                acked = first + 99
                wait_for_cursor(path, "t", acked + 1)
                killer = threading.Timer(0.01, running.process.kill)
                killer.start()
                got: list[int] = []
                receive_all(client, got)
                seen.update(got)
                killer.join()
                running.process.wait()
            else:
                while (last := numbers(client, 1)[0]) < total - 1:
                    seen.add(last)
                    ack(client, id)
                seen.add(last)
                ack(client, id, last)
                wait_for_cursor(path, "t", total)
            client.close()
    assert seen == set(range(total))
    assert no_dead_letters(path, "t")


def test_however_often_somebody_died_with_an_event_it_comes_again(server: Server, topic: str) -> None:
    fill(server.path, topic, range(100))
    with headwater.open(server.path) as hw:
        for _ in range(12):  # more often than an event may fail, and some more to find which one it is
            consumer = join(hw, "d", topic, failures_max=1000)
            next(consumer)
            consumer.abandon()
    with wire(server.tcp_url) as client:
        subscribe(client, topic)
        assert numbers(client, 100) == list(range(100))
    assert no_dead_letters(server.path, topic)


def test_under_random_ends_of_its_clients_everything_comes_and_what_is_acknowledged_stays(
    server: Server, topic: str
) -> None:
    dice = random.Random(7)
    total, acked, seen = 2000, -1, set[int]()
    fill(server.path, topic, range(total))
    while acked < total - 1:
        client = Wire(server.tcp_url)
        client.connect()
        id = subscribe(client, topic, startSequence=0)
        first = acked + 1
        got = numbers(client, min(dice.randint(1, 900), total - first))
        assert got == list(range(first, first + len(got)))  # neither less nor, as all was stored, more
        seen.update(got)
        if dice.random() < 0.5:
            acked = first + dice.randrange(len(got))
            ack(client, id, acked)
        else:
            ones = dice.randrange(len(got)) + 1
            client.send(*[frame("ACKEV", {"subID": id})] * ones)
            acked = first + ones - 1
        way = dice.choice(["unsubscribe", "ping", "cut"])
        if way == "unsubscribe":
            client.send(frame("UNSUBSCRIBE", {"subID": id}))
            while client.receive()[0] != "RESPONSE":
                pass
        elif way == "ping":
            client.send(frame("PING"))
            while client.receive()[0] != "RESPONSE":
                pass
        else:  # its acknowledgements may have been cut off, or not
            client.close()
            with headwater.open(server.path) as hw:
                wait_for(lambda: hw.consumers(topic)[0].owner is None)
                at = cursor(hw, topic)
            assert at is not None
            assert first <= at <= acked + 1
            acked = at - 1
        client.close()
    assert seen == set(range(total))
    assert no_dead_letters(server.path, topic)
