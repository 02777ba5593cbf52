"""Transactions on a real server: all or nothing, and once, also when answers are lost."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.consumers.remote_consumer import RemoteConsumer
from headwater.errors import Closed, Conflict, Fenced, Invalid, TooLarge, Unavailable
from headwater.limits import Limits
from headwater.store import Store
from tests.server.process import ServerProcess
from tests.server.serving import Server

PATIENCE_S = 20.0
_numbers = count()


@pytest.fixture
def remote(server: Server) -> Iterator[Store]:
    with opened(server.url) as remote:
        yield remote


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


def opened(url: str, **options: Any) -> Store:
    remote = headwater.open(url, **options)
    assert isinstance(remote, Store)
    return remote


def post(server: Server, body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    connection.request("POST", "/transaction", body if isinstance(body, bytes) else json.dumps(body))
    with connection.getresponse() as answer:
        told = answer.status, json.loads(answer.read())
    connection.close()
    return told


def test_all_of_it_is_there_with_its_references(remote: Store, local: Store, topic: str) -> None:
    local.create(topic, partitions=3)
    with remote.transaction() as tx:
        tx.append(topic, {"n": 1}, key="a", type="t", meta={"m": "1"}, expected_version="none")
        tx.append(topic, b"\xff", key=b"\xfe", partition=2)
        tx.append_many(f"{topic}-b", ["x", "y"], types=["a", "b"], keys=["k", None], metas=[{"m": "2"}, None])
        tx.append(f"{topic}-c", b'{ "n" : 1 }', content="json")
    found = {
        (e.topic, e.partition, e.offset): e for name in (topic, f"{topic}-b", f"{topic}-c") for e in local.read(name)
    }
    assert len(found) == 5
    events = [found[ref.topic, ref.partition, ref.offset] for ref in tx.refs]
    assert [event.data for event in events] == [b'{"n":1}', b"\xff", b"x", b"y", b'{ "n" : 1 }']
    assert [(ref.id, ref.time) for ref in tx.refs] == [(event.id, event.time) for event in events]
    assert [(e.type, e.key, e.content) for e in events[:3]] == [
        ("t", b"a", "json"),
        ("", b"\xfe", "bytes"),
        ("a", b"k", "text"),
    ]
    assert (events[0].meta, events[2].meta, events[1].partition) == ({"m": "1"}, {"m": "2"}, 2)
    assert {ref.durability for ref in tx.refs} == {"fsync"}
    with pytest.raises(Closed):
        tx.append(topic, b"too late")
    with remote.transaction() as nothing:
        pass
    assert nothing.refs == []


def test_nothing_is_there_of_what_conflicts_or_is_discarded(remote: Store, local: Store, topic: str) -> None:
    local.append(topic, b"0", key="k")

    def conflict() -> None:
        with remote.transaction() as tx:
            tx.append(f"{topic}-b", b"x")
            tx.append(topic, b"1", key="k", expected_version="none")

    with pytest.raises(Conflict) as caught:
        conflict()
    assert (caught.value.code, caught.value.version) == ("version_conflict", 0)

    def break_off() -> None:
        with remote.transaction() as tx:
            tx.append(topic, b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert len(list(local.read(topic))) == 1
    assert list(local.read(f"{topic}-b")) == []


def test_what_is_too_large_is_refused(server: Server, remote: Store, topic: str) -> None:
    tx = remote.transaction()
    tx.append(topic, b"x" * (1 << 20 | 1))
    with pytest.raises(TooLarge):
        tx.commit()
    with opened(server.url, limits=Limits(transaction_events_max=2)) as small:
        tx = small.transaction()
        with pytest.raises(TooLarge):
            tx.append_many(topic, [b"x"] * 3)
    assert post(server, b" " * (65 << 20))[0] == 413


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{]",
        b"\xff",
        {"appends": [{"data": 1}]},
        {"appends": [{"topic": "t"}]},
        {"appends": [{"topic": "t", "data_base64": "?"}]},
        {"appends": [{"topic": "t", "data": 1, "content": "text"}]},
        {"appends": [{"topic": "t", "data": 1, "content": "what"}]},
        {"appends": [{"topic": "t", "data": 1, "expected_version": -1}]},
        {"appends": [{"topic": "t", "data": 1, "expected_version": 0}]},
        {"appends": [{"topic": "", "data": 1}]},
        {"appends": [{"topic": "t", "data": 1, "other": 1}]},
        {"appends": [], "producer": ["", 0, 0]},
        {"appends": [], "producer": ["p", 0]},
        {"appends": [], "producer": ["p", -1, 0]},
        {"appends": [], "durability": "none"},
        {"acks": [{"member": "x", "partition": 0}]},
    ],
)
def test_a_transaction_that_makes_no_sense_is_refused(server: Server, body: Any) -> None:
    status, told = post(server, body)
    assert (status, told["kind"]) == (400, "Invalid"), told


def test_a_partition_that_is_not_there_is_404(server: Server, local: Store, topic: str) -> None:
    local.create(topic)
    assert post(server, {"appends": [{"topic": topic, "data": 1, "partition": 7}]})[0] == 404


def test_the_same_request_again_has_the_first_answer(server: Server, local: Store, topic: str) -> None:
    local.create(topic, partitions=8)
    data = base64.b64encode(b"\0").decode()
    asked = {
        "appends": [
            {"topic": topic, "data_base64": data},
            {"topic": topic, "data": "x", "key": "k", "expected_version": "none"},
            {"topic": f"{topic}-b", "data": {"n": 1}},
        ],
        "producer": ["p", 1, 1],
    }
    first = post(server, asked)
    assert first[0] == 200
    for _ in range(10):
        assert post(server, asked) == first
    assert len(list(local.read(topic))) == 2
    assert post(server, {**asked, "producer": ["p", 0, 2]})[1]["code"] == "old_epoch"


def test_an_ack_is_one_with_the_appends(remote: Store, local: Store, topic: str) -> None:
    local.append_many(topic, [b"a", b"b", b"c"])
    with remote.consumer("mover", topic, timeout=0) as consumer:
        for event in consumer:
            with remote.transaction() as tx:
                tx.append(f"{topic}-out", event.data or b"")
                tx.ack(event)
            assert remote.consumers(topic)[0].cursor == event.offset + 1
        assert consumer.lag() == {0: 0}
    assert [event.data for event in local.read(f"{topic}-out")] == [b"a", b"b", b"c"]


def test_a_repetition_is_answered_when_the_member_has_left(
    server: Server, remote: Store, local: Store, topic: str
) -> None:
    local.append_many(topic, [b"a", b"b"])
    with remote.consumer("mover", topic, timeout=0) as consumer:
        assert isinstance(consumer, RemoteConsumer)
        event = next(consumer)
        ack = {"member": consumer._member.token, "partition": event.partition, "offset": event.offset}
        asked = {"appends": [{"topic": f"{topic}-out", "data": 1}], "acks": [ack], "producer": ["p", 1, 1]}
        first = post(server, asked)
        assert (first[0], post(server, asked)) == (200, first)
    assert post(server, asked) == first
    status, told = post(server, {**asked, "producer": ["p", 1, 2]})
    assert (status, told["code"]) == (409, "member_gone")
    assert len(list(local.read(f"{topic}-out"))) == 1
    assert remote.consumers(topic)[0].cursor == 1


def test_acks_that_were_not_sent_yet_come_before_the_transaction(remote: Store, local: Store, topic: str) -> None:
    local.append_many(topic, [b"a", b"b"])
    with remote.consumer("mover", topic, timeout=0) as consumer:
        first, second = consumer
        consumer.ack(first)
        with remote.transaction() as tx:
            tx.ack(second)
        assert remote.consumers(topic)[0].cursor == 2


def test_acks_of_a_transaction_come_in_order_and_from_a_consumer(remote: Store, local: Store, topic: str) -> None:
    local.append_many(topic, [b"a", b"b"])
    [event, _] = local.read(topic)
    with pytest.raises(Invalid) as caught:
        remote.transaction().ack(event)
    assert caught.value.code == "no_holder"
    with remote.consumer("mover", topic, timeout=0) as consumer:
        _, second = consumer
        tx = remote.transaction()
        tx.append(f"{topic}-out", b"x")
        tx.ack(second)
        with pytest.raises(Invalid, match="order"):
            tx.commit()
    assert list(local.read(f"{topic}-out")) == []


def test_a_partition_that_was_taken_over_fences_the_whole_transaction(remote: Store, local: Store, topic: str) -> None:
    local.append_many(topic, [b"a", b"b"])
    local.create(f"{topic}-out")
    with remote.consumer("mover", topic, timeout=0) as consumer:
        event = next(consumer)
        tx = remote.transaction()
        tx.append(f"{topic}-out", b"never")
        tx.ack(event)
        local.seek("mover", topic, 1)  # from now on another fence counts, and the event is behind it
        with pytest.raises(Fenced):
            tx.commit()
    tx = remote.transaction()
    tx.append(f"{topic}-out", b"never")
    tx.ack(event, consumer=consumer)
    with pytest.raises((Fenced, Closed)):
        tx.commit()
    assert list(local.read(f"{topic}-out")) == []


def test_a_transaction_acks_for_its_own_user_alone(server: Server, remote: Store, local: Store, topic: str) -> None:
    local.append(topic, b"a")
    with remote.consumer("mover", topic, timeout=0) as consumer:
        event = next(consumer)
        place = {"partition": event.partition, "offset": event.offset}
        asked = {"appends": [{"topic": topic, "data": 1}], "acks": [{"member": consumer.id, **place}]}
        status, told = post(server, asked)  # the owner's id is for all to see, and is not the member's
        assert (status, told["code"]) == (409, "member_gone")
    assert len(list(local.read(topic))) == 1


def test_one_that_is_in_doubt_can_be_tried_again_and_is_done_once(tmp_path: Path) -> None:
    """The server is stopped when it has the request, and killed before or after it does it."""
    path = tmp_path / "data"
    with headwater.open(path) as engine:
        engine.append_many("in", [b"a", b"b"])
        engine.create("out")
    server = ServerProcess(path)
    try:
        with opened(server.url, timeout=0.3, retry=0.3) as hw, hw.consumer("mover", "in", lease_ms=60_000) as consumer:
            event = next(consumer)
            tx = hw.transaction()
            tx.append("out", event.data or b"")
            tx.append("out", "moved")
            tx.ack(event)
            consumer.flush()
            os.kill(server.pid, signal.SIGSTOP)
            with pytest.raises(Unavailable):
                tx.commit()
            with pytest.raises(Unavailable) as caught:
                tx.commit()
            assert caught.value.code == "transaction_in_doubt"
            os.kill(server.pid, signal.SIGCONT)
            refs = commit_until_it_is_there(tx)
            server.kill()
            server = ServerProcess(path, port=server.port)
            again = hw.transaction(producer=caught.value.producer)
            again.append("out", event.data or b"")
            again.append("out", "moved")
            assert [(ref.offset, ref.id) for ref in again.commit()] == [(ref.offset, ref.id) for ref in refs]
        with headwater.open(path) as engine:
            assert [event.data for event in engine.read("out")] == [b"a", b"moved"]
            assert engine.consumers("in")[0].cursor == 1
    finally:
        server.stop()


def commit_until_it_is_there(tx: Any) -> Any:
    for _ in range(50):
        with contextlib.suppress(Unavailable):
            return tx.commit()
    raise AssertionError("it never came to be")
