"""Consumers on a real server: its responses, and what is special to its client. The rest is in tests/consumers."""

from __future__ import annotations

import gc
import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from itertools import count, islice
from typing import Any
from urllib.parse import quote

import pytest

import headwater
from headwater.consumers.remote_consumer import RemoteConsumer
from headwater.errors import Fenced, NotFound, Unavailable
from headwater.event import Event
from headwater.store import Store
from tests.planting import plant
from tests.server.serving import Server
from tests.waiting import wait_for

PATIENCE_S = 20.0
WINDOW = 60
LIMITS = {"member_events_max": WINDOW, "member_bytes_max": 4_000_000, "members_max": 8}

_numbers = count()


@pytest.fixture(scope="module")
def server_settings() -> dict[str, Any]:
    return {"limits": LIMITS}


@pytest.fixture
def remote(server: Server) -> Iterator[Store]:
    with opened(server) as remote:
        yield remote


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


def opened(server: Server, **options: Any) -> Store:
    remote = headwater.open(server.url, **options)
    assert isinstance(remote, Store)
    return remote


def fill(log: Store, topic: str, events: int, partitions: int = 1) -> None:
    """So many numbers in each partition."""
    log.create(topic, partitions=partitions)
    for partition in range(partitions):
        log.append_many(topic, [b"%d" % number for number in range(events)], partition=partition)


def numbers(events: Any) -> list[int]:
    return [int(event.data) for event in events]


def cursor(hw: Store, topic: str, partition: int = 0, name: str = "c") -> int:
    [found] = [info for info in hw.consumers(topic) if (info.name, info.partition) == (name, partition)]
    return found.cursor


def owners(hw: Store, topic: str) -> list[str | None]:
    return [info.owner for info in hw.consumers(topic)]


def now(hw: Store, topic: str, **options: Any) -> RemoteConsumer:
    """A member that ends when there is nothing more."""
    consumer = hw.consumer("c", topic, timeout=0, **options)
    assert isinstance(consumer, RemoteConsumer)
    return consumer


class Raw:
    """A member without any help: one connection for its events, others for what it says."""

    def __init__(self, server: Server, topic: str, query: str = "", name: str = "c") -> None:
        self._server = server
        self._path = f"/consumer/{quote(name)}/{quote(topic)}"
        self._connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
        self._connection.request("POST", f"{self._path}/items?{query}")
        self.response = self._connection.getresponse()
        self.member = self.response.headers.get("Headwater-Member", "")

    def line(self) -> bytes:
        return self.response.readline()

    def events(self, number: int) -> list[int]:
        """The offsets of the next events; signs of life are passed over."""
        found: list[int] = []
        while len(found) < number:
            line = self.line()
            assert line, "the stream ended"
            if line != b"\n":
                found.append(json.loads(line)["offset"])
        return found

    def say(self, **said: Any) -> tuple[int, Any]:
        return post(self._server, f"{self._path}/acks", {"member": self.member, **said})

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    def leave(self) -> None:
        self.say(leave=True)
        self.close()

    def refusal(self) -> tuple[int, Any]:
        """The answer of somebody who could not join."""
        told = self.response.status, json.loads(self.response.read())
        self.close()
        return told


def post(server: Server, path: str, body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body))
    answer = connection.getresponse()
    told = answer.status, json.loads(answer.read())
    connection.close()
    return told


# What the server answers


def test_a_member_is_sent_lines_as_they_come(server: Server, remote: Store, local: Store, topic: str) -> None:
    fill(local, topic, 2, partitions=2)
    raw = Raw(server, topic)
    assert raw.response.status == 200
    assert raw.response.headers["Content-Type"] == "application/x-ndjson"
    found = [json.loads(raw.line()) for _ in range(4)]
    assert sorted((line["partition"], line["offset"]) for line in found) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert owners(remote, topic) == [raw.response.headers["Headwater-Owner"]] * 2
    assert raw.member not in owners(remote, topic), "who can list consumers could ack for them"
    local.append(topic, {"new": 1}, key=b"\xff", type="t", meta={"m": "1"}, partition=1)
    line = json.loads(raw.line())
    assert (line["offset"], line["data"], line["key_base64"], line["type"]) == (2, {"new": 1}, "/w==", "t")
    status, told = raw.say(acks=[[0, 0], [1, 0, 3]], flush=True)
    assert status == 200
    assert (cursor(remote, topic, 0), cursor(remote, topic, 1)) == (1, 3)
    assert told["state"]["sent"] == 5
    status, told = raw.say(to=[[0, 1]], fails=[[0, 1, "no"]], look=True, flush=True)
    assert (status, told["aside"], told["state"]["held"]["0"]["next"]) == (200, [False], 2)  # it was acked
    assert raw.say(leave=True)[0] == 200
    assert owners(remote, topic) == [None, None]
    assert raw.line() == b""
    assert raw.say()[0] == 409
    raw.close()


def test_the_member_leaves_when_the_connection_ends(server: Server, remote: Store, local: Store, topic: str) -> None:
    fill(local, topic, 3)
    raw = Raw(server, topic, "lease_ms=600000")
    assert raw.events(3) == [0, 1, 2]
    raw.say(acks=[[0, 0]])
    raw.close()
    wait_for(lambda: owners(remote, topic) == [None])
    assert cursor(remote, topic) == 1
    status, told = raw.say(acks=[[0, 1]])
    assert (status, told["kind"], told["code"]) == (409, "Fenced", "member_gone")


def test_a_client_that_dies_with_an_event_has_failed_at_it(
    server: Server, remote: Store, local: Store, topic: str
) -> None:
    fill(local, topic, 1)
    for _ in range(2):
        raw = Raw(server, topic, "failures_max=3")
        assert raw.events(1) == [0]
        raw.close()
        wait_for(lambda: owners(remote, topic) == [None])
    with now(remote, topic, failures_max=3) as consumer:
        assert consumer.fail(next(consumer), "again")
    [dead] = local.read(f"{topic}.dead")
    assert dead.meta["dead_failures"] == "3"


def test_an_idle_stream_shows_signs_of_life_and_a_silent_client_is_dropped(
    server: Server, remote: Store, local: Store, topic: str
) -> None:
    fill(local, topic, 1)
    raw = Raw(server, topic, "lease_ms=600")
    assert raw.events(1) == [0]
    began, beats = time.monotonic(), 0
    while time.monotonic() < began + 1.0:  # longer than the lease
        assert raw.line() == b"\n"
        beats += 1
        assert raw.say()[0] == 200
    assert beats >= 3
    assert owners(remote, topic) == [raw.response.headers["Headwater-Owner"]]
    silent_s = time.monotonic()
    lines = list(iter(raw.line, b""))
    assert 0.5 < time.monotonic() - silent_s < 5
    assert json.loads(lines[-1])["error"]["code"] == "member_gone"
    assert owners(remote, topic) == [None]
    assert raw.say(acks=[[0, 0]])[1]["code"] == "member_gone"
    assert cursor(remote, topic) == 0
    raw.close()


def test_no_more_is_sent_than_the_window_takes(server: Server, local: Store, topic: str) -> None:
    fill(local, topic, 500)
    raw = Raw(server, topic, "lease_ms=600000")
    assert raw.events(WINDOW) == list(range(WINDOW))
    state = raw.say(look=True)[1]["state"]
    assert (state["sent"], state["full"], state["idle"], state["held"]["0"]["next"]) == (WINDOW, True, False, WINDOW)
    raw.say(acks=[[0, 5], [0, 7, 10]])
    assert raw.events(4) == [WINDOW, WINDOW + 1, WINDOW + 2, WINDOW + 3]
    assert raw.say(look=True)[1]["state"]["sent"] == WINDOW + 4
    raw.leave()


def test_bytes_fill_the_window_too(server: Server, local: Store, topic: str) -> None:
    local.append_many(topic, [b"x" * 500_000] * 12)
    raw = Raw(server, topic, "lease_ms=600000")
    assert raw.events(8) == list(range(8))
    state = raw.say(look=True)[1]["state"]
    assert (state["sent"], state["full"]) == (8, True)
    raw.say(to=[[0, 3]])
    assert raw.events(4) == [8, 9, 10, 11]
    raw.leave()


def test_a_partition_that_is_lost_makes_room(server: Server, remote: Store, local: Store, topic: str) -> None:
    fill(local, topic, 500)
    raw = Raw(server, topic, "lease_ms=600000")
    raw.events(WINDOW)
    remote.seek("c", topic, 400)
    assert raw.events(WINDOW) == list(range(400, 400 + WINDOW))
    assert raw.say(acks=[[0, 0]])[0] == 409
    assert raw.say(acks=[[0, 3], [0, 400]], flush=True)[0] == 409
    assert raw.say(flush=True)[0] == 200
    assert cursor(remote, topic) == 401  # what could be taken was
    raw.leave()


def test_a_stream_may_end_when_nothing_comes(server: Server, remote: Store, local: Store, topic: str) -> None:
    fill(local, topic, 2)
    raw = Raw(server, topic, "timeout=0.05")
    assert [json.loads(line)["offset"] for line in iter(raw.line, b"")] == [0, 1]
    wait_for(lambda: owners(remote, topic) == [None])
    raw.close()


def test_a_member_belongs_to_its_consumer(server: Server, local: Store, topic: str) -> None:
    fill(local, topic, 1)
    raw = Raw(server, topic)
    for path in (f"/consumer/d/{topic}/acks", "/consumer/c/other/acks"):
        status, told = post(server, path, {"member": raw.member})
        assert (status, told["code"]) == (409, "member_gone")
    assert len(raw.member) >= 32
    raw.leave()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_only_a_post_joins(server: Server, remote: Store, local: Store, topic: str, method: str) -> None:
    fill(local, topic, 1)
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    connection.request(method, f"/consumer/c/{topic}/items")
    with connection.getresponse() as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "OPTIONS, POST")
    connection.close()
    assert remote.consumers(topic) == []


def test_there_are_only_so_many_members(server: Server, local: Store, topic: str) -> None:
    fill(local, topic, 1)
    joined = [Raw(server, topic, name=f"c{number}") for number in range(8)]
    assert {each.response.status for each in joined} == {200}
    status, told = Raw(server, topic).refusal()
    assert (status, told["code"]) == (503, "too_many_members")
    joined[0].leave()
    again = Raw(server, topic)
    assert again.response.status == 200
    for each in (*joined[1:], again):
        each.leave()


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("lease_ms=1", 400),
        ("lease_ms=x", 400),
        ("failures_max=0", 400),
        ("start=yesterday", 400),
        ("start=99", 400),
        ("start=2020-01-01", 400),
        ("type=(", 400),
        ("match=[]", 400),
        ("match={", 400),
        ("timeout=-1", 400),
        ("timeout=nan", 400),
        ("wrong=1", 400),
    ],
)
def test_a_member_that_cannot_be_is_refused(
    server: Server, remote: Store, local: Store, topic: str, query: str, status: int
) -> None:
    fill(local, topic, 1)
    found, told = Raw(server, topic, query).refusal()
    assert (found, told["kind"]) == (status, "Invalid")
    assert all(owner is None for owner in owners(remote, topic))


def test_joining_what_is_not_there_is_404_and_what_is_not_served_406(server: Server, local: Store, topic: str) -> None:
    assert Raw(server, topic).refusal()[0] == 404
    fill(local, topic, 1)
    assert Raw(server, topic, name="x" * 65).refusal()[0] == 413
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    connection.request("POST", f"/consumer/c/{topic}/items", headers={"Accept": "image/png"})
    with connection.getresponse() as answer:
        assert answer.status == 406
    connection.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"member": 1}',
        b'{"member": "x", "acks": [[0]]}',
        b'{"member": "x", "acks": [[0, -1]]}',
        b'{"member": "x", "acks": [[0, 9223372036854775808]]}',
        b'{"member": "x", "acks": [[0, 1, 2, 3]]}',
        b'{"member": "x", "to": [["0", 1]]}',
        b'{"member": "x", "fails": [[0, 1]]}',
        b'{"member": "x", "look": 1}',
        b'{"member": "x", "other": 1}',
        b"[" * 50_000,
    ],
)
def test_acks_that_make_no_sense_are_refused(server: Server, topic: str, body: bytes) -> None:
    assert post(server, f"/consumer/c/{topic}/acks", body)[0] == 400
    assert post(server, f"/consumer/c/{topic}/seek", body)[0] == 400


def test_a_request_that_acks_is_bounded(server: Server, topic: str) -> None:
    assert post(server, f"/consumer/c/{topic}/acks", b" " * (2 << 20))[0] == 413


def test_ranges_that_were_not_handed_out_are_refused_at_once(server: Server, local: Store, topic: str) -> None:
    fill(local, topic, 1)
    raw = Raw(server, topic)
    raw.events(1)
    for acks in ([[0, 0, 1 << 61]], [[0, 1]], [[5, 0]], [[0, 0, 0]]):
        began = time.monotonic()
        assert raw.say(acks=acks)[0] == 409
        assert time.monotonic() - began < 5
    assert raw.say(acks=[[0, 0]])[0] == 200
    raw.leave()


def test_seek_and_forget_over_http(server: Server, remote: Store, local: Store, topic: str) -> None:
    fill(local, topic, 2, partitions=2)
    for number in range(3):
        local.append(topic, b"%d" % number, partition=0)
        local.append(topic, b"%d" % number, partition=1)
    with now(remote, topic):
        pass
    path = f"/consumer/c/{topic}"
    assert post(server, f"{path}/seek", {"at": 3, "partition": 1}) == (200, {"1": 3})
    assert post(server, f"{path}/seek", {"at": "latest"}) == (200, {"0": 5, "1": 5})
    [event, *_] = local.read(topic, start=2, partition=0)
    assert post(server, f"{path}/seek", {"at": event.time.isoformat()})[1]["0"] == 2
    assert post(server, f"{path}/seek", {"at": str(event.id), "partition": 0}) == (200, {"0": 2})
    assert post(server, f"{path}/seek", {"at": 3})[0] == 400  # of which partition?
    assert post(server, f"{path}/seek", {"at": "never"})[1]["code"] == "bad_position"
    assert post(server, f"/consumer/nobody/{topic}/seek", {"at": 0})[0] == 404
    remote.forget("c", topic)
    assert remote.consumers(topic) == []
    with pytest.raises(NotFound):
        remote.forget("c", topic)


# The client


def test_events_are_the_same_as_those_that_were_appended(remote: Store, local: Store, topic: str) -> None:
    local.append(topic, b"\x00\xff bytes", key=b"\xfe", type="a", meta={"n": "1"})
    local.append(topic, "text\nof two lines", key="é")
    local.append(topic, {"total": 12.50, "big": 2**70})
    local.append(topic, b'{\n "spaced" : 1 }\n', content="json")
    plant(local, topic, b"not json")
    local.append(topic, b"", content="text")
    with now(remote, topic) as consumer:
        assert list(consumer) == list(local.read(topic))


def test_a_huge_event_is_read_when_it_is_wanted(remote: Store, local: Store, topic: str) -> None:
    data = os.urandom(1 << 20) * 11
    local.create(topic, data_bytes_max=len(data))
    local.append(topic, iter([data]))
    with now(remote, topic) as consumer:
        [event] = consumer
        assert (event.data, event.size) == (None, len(data))
        assert b"".join(event.chunks()) == data
        consumer.ack(event)
    assert cursor(remote, topic) == 1


def test_what_came_twice_is_handed_out_once_when_it_is_acked(remote: Store, local: Store, topic: str) -> None:
    fill(local, topic, 4)
    with now(remote, topic) as consumer:
        first, second = islice(consumer, 2)
        remote.seek("c", topic, 0)  # the same member takes it again, and all of it is sent once more
        wait_for(lambda: consumer._member.received == 8)
        consumer.ack(first)
        with remote.transaction() as tx:
            tx.append(f"{topic}-out", b"x")
            tx.ack(second)
        assert numbers(consumer) == [2, 3]
        consumer.ack_to((0, 3))
    assert cursor(remote, topic) == 4


def test_what_is_taken_away_is_not_handed_out_from_the_buffer(remote: Store, local: Store, topic: str) -> None:
    fill(local, topic, 20)
    with remote.consumer("c", topic, timeout=PATIENCE_S, lease_ms=600) as consumer:
        [first, *_] = islice(consumer, 2)
        remote.forget("c", topic)
        with pytest.raises(NotFound):
            list(consumer)
        with pytest.raises(Fenced):
            consumer.ack(first)


def test_too_many_events_without_an_ack_are_told(remote: Store, local: Store, topic: str) -> None:
    fill(local, topic, WINDOW + 10)
    with remote.consumer("c", topic) as consumer, pytest.raises(Unavailable):
        list(consumer.drain())
    with now(remote, topic) as consumer:
        with pytest.raises(Unavailable) as caught:
            list(consumer)
        assert caught.value.code == "too_many_unacked"
        consumer.ack_to((0, 19))
        assert numbers(consumer) == list(range(WINDOW, WINDOW + 10))


def test_a_window_makes_the_program_wait_for_its_own_acks(remote: Store, local: Store, topic: str) -> None:
    fill(local, topic, 3 * WINDOW)
    with remote.consumer("c", topic) as consumer:
        kept: list[Event] = []
        timers: list[threading.Timer] = []
        for seen, event in enumerate(consumer, 1):
            kept.append(event)
            if len(kept) == WINDOW:
                timers.append(threading.Timer(0.05, consumer.ack, (list(kept),)))
                timers[-1].start()
                kept.clear()
            if seen == 3 * WINDOW:
                break
        for timer in timers:
            timer.join()
    assert cursor(remote, topic) == 3 * WINDOW


def test_a_consumer_that_is_dropped_leaves(remote: Store, local: Store, topic: str) -> None:
    fill(local, topic, 1)
    consumer = remote.consumer("dropped", topic, lease_ms=600_000)
    next(consumer)
    del consumer
    gc.collect()
    wait_for(lambda: owners(remote, topic) == [None])
    wait_for(lambda: not [each for each in threading.enumerate() if each.name.startswith("headwater-dropped")])
