"""Clients that ask for much and read nothing take little of the server's memory, whatever they ask for."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headwater
from tests.server.serving import Server, serving
from tests.server.tcp.wire import frame
from tests.waiting import wait_for

CLIENTS = 24
EACH_BYTES = 2_000_000  # as docs/RUNNING.md says
SHARED_BYTES = 48_000_000  # the same, of what all share
HUGE = 9_000_000
STEADY_S = 1.5  # without a change, after which nothing more is expected
WAIT_S = 60.0

Ask = Callable[[str, int], bytes]


def get(path: str, accept: str = "application/x-ndjson") -> Ask:
    def ask(topic: str, number: int) -> bytes:
        target = path.format(topic=topic, number=number)
        return f"GET {target} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode()

    return ask


def subscriptions(count: int, *, durable: bool = False) -> Ask:
    def ask(topic: str, number: int) -> bytes:
        sent = [frame("CONNECT", {"version": "1.0"})]
        for each in range(count):
            fields = {"durableID": f"d{number}.{each}"} if durable else {}
            sent.append(frame("SUBSCRIBE", {"streamName": topic, "startSequence": 0, **fields}))
        return b"".join(sent)

    return ask


ASKS = {
    "live lines": get("/topic/{topic}/items?wait_for_more=true"),
    "lines": get("/topic/{topic}/items"),
    "an array": get("/topic/{topic}/items", "application/json"),
    "items": get("/topic/{topic}/items", "*/*"),
    "live items": get("/topic/{topic}/items?wait_for_more=true", "*/*"),
    "arrow": get("/topic/{topic}/items", "application/vnd.apache.arrow.stream"),
    "batches": get("/topic/{topic}/items", "application/vnd.headwater.batches"),
    "live events": get("/topic/{topic}/items", "text/event-stream"),
    "events to an end": get("/topic/{topic}/items?wait_for_more=false", "text/event-stream"),
    "a member": get("/consumer/c{number}/{topic}/items?lease_ms=600000"),
    "a subscription": subscriptions(1),
    "ten subscriptions": subscriptions(10),
    "a durable subscription": subscriptions(1, durable=True),
}


def steady(server: Server) -> int:
    """Return the memory of a server when it has not changed for a while."""
    last, since = server.anonymous_bytes(), time.monotonic()

    def at_rest() -> bool:
        nonlocal last, since
        now = server.anonymous_bytes()
        if abs(now - last) > 300_000:
            last, since = now, time.monotonic()
        return time.monotonic() >= since + STEADY_S

    wait_for(at_rest, WAIT_S)
    return last


@contextlib.contextmanager
def silent(server: Server, ask: Ask, topic: str, count: int) -> Iterator[list[socket.socket]]:
    """Clients that have asked, and read nothing."""
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(count):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(WAIT_S)
            sent = ask(topic, number)
            tcp = not sent.startswith((b"GET", b"POST"))
            client.connect((server.host, int(server.tcp_url.rpartition(":")[2]) if tcp else server.port))
            client.sendall(sent)
            made.append(client)
        yield made


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with huge events, and one with many small ones."""
    path: Path = tmp_path_factory.mktemp("slow") / "data"
    with headwater.open(path, durability="os") as hw:
        hw.create("huge", data_bytes_max=HUGE)
        for _ in range(2):
            hw.append("huge", b"x" * HUGE, content="text")
            hw.append("huge", b'{"a": "' + b"x" * (HUGE - 20) + b'"}', content="json")
        hw.create("small")
        for _ in range(4):
            hw.append_many("small", [b'{"n":%d}' % number for number in range(100_000)], content="json")
    return path


BRIEF = {  # one of each way to encode a response; `make torture` asks in all ways
    ("live lines", "huge"),
    ("an array", "huge"),
    ("live items", "huge"),
    ("batches", "huge"),
    ("live events", "huge"),
    ("a member", "huge"),
    ("ten subscriptions", "huge"),
    ("a durable subscription", "huge"),
    ("arrow", "small"),
    ("live lines", "small"),
}


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        pytest.param(name, topic, marks=() if (name, topic) in BRIEF else pytest.mark.torture)
        for name, topic in (
            *((name, "huge") for name in ASKS),
            *((name, "small") for name in ("live lines", "arrow", "live events", "a member", "ten subscriptions")),
        )
    ],
)
def test_a_client_that_reads_nothing_takes_little_memory(contents: Path, name: str, topic: str) -> None:
    with serving(contents) as server:
        with silent(server, ASKS[name], topic, 1) as (first,):
            assert first.recv(1), "it is answered"  # what is made once is made then
        before = steady(server)
        with silent(server, ASKS[name], topic, CLIENTS):
            after = steady(server)
        assert after - before < SHARED_BYTES + CLIENTS * EACH_BYTES
