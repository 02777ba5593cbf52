"""EMIT over a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headwater
from tests.server.serving import Server, serving
from tests.server.tcp.wire import Wire, frame, wire


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("tcp") / "data") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Wire]:
    with wire(server.tcp_url) as made:
        yield made


def test_an_emit_is_stored_byte_for_byte_and_answered_with_its_place(server: Server, client: Wire) -> None:
    told = client.emit("orders", {"total": 12, "of": {"a": [1, 2]}}, eventType="placed", key="o-1")
    assert (told["ok"], told["offset"], told["partition"]) == (True, 0, 0)
    with headwater.open(server.path) as hw:
        (event,) = hw.read("orders")
    assert (event.type, event.key, event.content, event.value) == (
        *("placed", b"o-1", "bson"),
        {"total": 12, "of": {"a": [1, 2]}},
    )
    assert event.id == told["id"].as_uuid()


def test_pipelined_emits_are_answered_in_their_order(client: Wire) -> None:
    frames = [frame("EMIT", {"streamName": "many", "eventType": "t", "event": {"n": n}}) for n in range(2000)]
    client.send(*frames)
    assert [client.receive()[1]["offset"] for _ in frames] == list(range(2000))
