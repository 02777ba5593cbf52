"""Server-sent events as clients that others wrote read them: each event once, and nothing that is none.

httpx-sse is the real one. `fetch_event_source` and `r3labs` dispatch as `@microsoft/fetch-event-source` and Go's
r3labs/sse do: the one at every empty line, the other for every block that has an id, a type, data or a delay, and with
the last id for one that has none.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx_sse
import pytest

import headwater
from headwater.server.http import binders
from tests.server.process import served
from tests.server.serving import WAIT_S, Server

Dispatch = Callable[[bytes], list[tuple[str, str]]]  # the type and data of each event


def standard(stream: bytes) -> list[tuple[str, str]]:
    return [(event or "message", data) for event, data, some in _blocks(stream) if some & {"data"}]


def fetch_event_source(stream: bytes) -> list[tuple[str, str]]:
    return [(event or "message", data) for event, data, _ in _blocks(stream)]


def r3labs(stream: bytes) -> list[tuple[str, str]]:
    found, seen = [], False
    for event, data, some in _blocks(stream):
        seen = seen or "id" in some
        if seen or some:
            found.append((event or "message", data))
    return found


def httpx_(stream: bytes) -> list[tuple[str, str]]:
    headers = {"content-type": "text/event-stream"}
    source = httpx_sse.EventSource(httpx.Response(200, headers=headers, content=stream))
    return [(event.event, event.data) for event in source.iter_sse()]


def _blocks(stream: bytes) -> Iterator[tuple[str, str, set[str]]]:
    """What stands before each empty line: the type, the data, and the names of the fields."""
    event, data, names = "", list[str](), set[str]()
    *lines, _ = stream.decode().split("\n")
    for line in lines:
        name, _, value = line.partition(":")
        if not line:
            yield event, "\n".join(data), names
            event, data, names = "", [], set()
        elif name:
            names.add(name)
            event = value.removeprefix(" ") if name == "event" else event
            data += [value.removeprefix(" ")] if name == "data" else []


CLIENTS: dict[str, Dispatch] = {
    "the standard": standard,
    "httpx-sse": httpx_,
    "fetch-event-source": fetch_event_source,
    "r3labs/sse": r3labs,
}


@pytest.fixture(scope="module")
def server_settings() -> dict[str, Any]:
    return {"heartbeat_s": 0.05}


@pytest.fixture(scope="module")
def server_path(server_path: Path) -> Path:
    with headwater.open(server_path) as hw:
        hw.create("orders")
        hw.create("wide", partitions=3)
    return server_path


class Reader:
    """The bytes of a stream, as they come."""

    def __init__(self, server: Server, target: str, last_event_id: str = "") -> None:
        self.body = b""
        self._socket = server.connect()
        more = f"Last-Event-ID: {last_event_id}\r\n" if last_event_id else ""
        asked = f"GET {target} HTTP/1.0\r\nAccept: text/event-stream\r\n{more}\r\n"
        self._socket.sendall(asked.encode())
        self._received = b""
        self.until(lambda _: True)

    def until(self, holds: Callable[[bytes], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while b"\r\n\r\n" not in self._received or not holds(self.body):
            assert time.monotonic() < deadline, self.body
            piece = self._socket.recv(1 << 16)
            assert piece, self.body
            self._received += piece
            self.body = self._received.partition(b"\r\n\r\n")[2]

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def reading(server: Server, target: str, last_event_id: str = "") -> Iterator[Reader]:
    made = Reader(server, target, last_event_id)
    try:
        yield made
    finally:
        made.close()


def beats(count: int) -> Callable[[bytes], bool]:
    return lambda body: body.count(b"\n:") + body.startswith(b":") >= count


@pytest.mark.parametrize("target", ["/topic/orders/items?from=latest", "/topic/wide/items?from=latest", "/api/events"])
def test_every_client_gets_each_event_and_nothing_else(server: Server, target: str) -> None:
    name = "wide" if "wide" in target else "orders" if "orders" in target else "events"
    server.http.post("/api/events?type=made", content="before").raise_for_status()
    with reading(server, target) as stream:
        stream.until(beats(3))
        begun = len(standard(stream.body))
        sent = []
        for number in range(4):
            data = f"event {number}\nof two lines" if number % 2 else f"event {number}"
            headers = {"content-type": "text/plain"}
            server.http.post(f"/topic/{name}/items?type=made", content=data, headers=headers).raise_for_status()
            sent.append(("made", data))
            stream.until(lambda body, number=number: b"event %d" % number in body)  # type: ignore[misc]
            stream.until(beats(stream.body.count(b":\n") + 2))
        body = stream.body
    assert body.count(b"retry: ") == 1
    for dispatch in CLIENTS.values():
        assert dispatch(body)[begun:] == sent, dispatch
        assert len(dispatch(body)) == begun + len(sent)


def test_so_do_those_that_end_come_back_or_have_missed_something(server: Server) -> None:
    sent = [server.http.post("/topic/orders/items?type=made", content=b"%d" % number) for number in range(3)]
    last = sent[-3].headers["headwater-id"]
    other = server.http.post("/api/events?type=x", content="x").json()["id"]  # of another log, so that there is a gap
    for target, id, count in (
        ("/topic/orders/items?wait_for_more=false", last, 2),
        ("/topic/orders/items?wait_for_more=false&from=latest", "", 0),
        ("/topic/orders/items?max_items=2", last, 2),
        ("/topic/orders/items?max_items=1", other, 2),
        ("/topic/orders/items", last, 2),
    ):
        with reading(server, target, id) as stream:
            with contextlib.suppress(AssertionError):  # it may have ended
                stream.until(lambda body, count=count: body.count(b"\n\n") >= max(count, 1))  # type: ignore[misc]
            for name, dispatch in CLIENTS.items():
                assert len(dispatch(stream.body)) == count, (target, name, stream.body)


def test_one_that_waits_for_its_end_shows_that_it_is_alive(server: Server) -> None:
    with reading(server, "/topic/orders/items?from=latest&max_items=1") as stream:
        stream.until(beats(3))
        server.http.post("/topic/orders/items?type=made", content="the only one")
        stream.until(lambda body: body.endswith(b"\n\n"))
        for dispatch in CLIENTS.values():
            assert len(dispatch(stream.body)) == 1


def test_so_do_the_changes_of_a_binder() -> None:
    opening = binders.EVENTS.opening("a place") + binders.EVENTS.heartbeat
    for dispatch in CLIENTS.values():
        assert dispatch(opening) == [("headwater.begin", '{"place":"a place"}')]


def test_something_comes_at_once_and_as_often_as_the_option_says(tmp_path: Path) -> None:
    for often, count in (("3600", 1), ("0.1", 4)):
        with served(tmp_path / "data", "--heartbeat", often) as server:
            httpx.put(f"{server.url}/topic/orders").raise_for_status()
            with httpx.stream("GET", f"{server.url}/topic/orders/items?format=sse") as answer:
                pieces = answer.iter_raw()
                assert [next(pieces) for _ in range(count)] == [b":\n"] * count
