"""However the bytes of requests are cut into pieces on their way, and whatever came before, they mean the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.opening import open_directory
from headwater.server.access import OpenAccess
from headwater.server.connections import Connections
from headwater.server.http.app import HttpApplication
from headwater.server.http.protocol import ServerConnection
from headwater.server.metrics import CountingDisk, Metrics
from headwater.server.service import Service
from headwater.server.settings import ServerSettings
from headwater.store import Store
from tests.server.serving import answers
from tests.waiting import wait_in_loop

HOST = b"Host: localhost\r\n"
POST = b"POST /topic/orders/items HTTP/1.1\r\n" + HOST


def append(data: bytes, more: bytes = b"") -> bytes:
    return POST + more + b"Content-Length: %d\r\n\r\n" % len(data) + data


# What is asked, and the status of its answer.
REQUESTS = [
    (append(b"one"), 200),
    (append(b"two"), 200),  # the same head
    (append(b"longer"), 200),
    (append(b""), 200),
    (append(b"\r\n\r\n"), 200),
    (append(b"GET /health HTTP/1.1\r\n\r\n"), 200),
    (append(append(b"one")), 200),
    (append(b"text", b"Content-Type: text/plain\r\n"), 200),
    (append(b"meta", b'Headwater-Meta: {"a": "b"}\r\n'), 200),
    (append(b"one").replace(b"items", b"items?type=placed"), 200),
    (append(b"one").replace(b"items", b"items?key=k"), 200),
    (append(b"x" * 70_000), 200),
    (append(b"one").replace(b"orders", b"missing"), 404),
    (append(b"one").replace(b"items", b"items?tpye=placed"), 400),
    (POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n", 200),
    (POST + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\none\r\n3\r\ntwo\r\n0\r\nA: b\r\n\r\n", 200),
    (b"\r\n" + append(b"one"), 200),
    (b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n", 200),
    (b"GET /version HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc", 200),
    (b"POST /nowhere HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc", 404),
    (b"POST /nowhere HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 404),
    (b"OPTIONS /topics HTTP/1.1\r\n" + HOST + b"\r\n", 204),
]

CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

# What ends the connection, and the status of its answer.
ENDINGS = [
    (append(b"one", b"Connection: close\r\n"), 200),
    (b"GET /health HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n", 200),
    (b"GET /health HTTP/1.0\r\n\r\n", 200),
    (b"GET /health HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 200),
    (b"\0\1\2 garbage\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\n\r\n", 400),  # no Host
    (append(b"one", b"Content-Length: 3\r\n"), 400),
    (b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431),
    (CHUNKED + b"3\r\nabc\r\ngarbage\r\n", 400),
    (CHUNKED + b"3\r\nabcdef\r\n0\r\n\r\n", 400),
    (CHUNKED.replace(b"orders", b"missing") + b"3\r\nabc\r\ngarbage\r\n", 404),
]


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False
        self.sent_end = False

    def write(self, data: Any) -> None:
        assert not self.sent_end, "written after the end"
        self.written += data

    async def answered(self, count: int) -> None:
        """Wait for so many answers, or the end."""
        await wait_in_loop(lambda: bytes(self.written).count(b"HTTP/1.1 ") >= count or self.closed)

    async def ended(self) -> None:
        """Wait until the server has said all."""
        await wait_in_loop(lambda: self.closed or self.sent_end)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return 1  # so that only the loop writes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def write_eof(self) -> None:
        self.sent_end = True


class Served:
    """A log, served to transports of ours, in a loop that runs when it is told to."""

    def __init__(self, runner: asyncio.Runner, engine: Store) -> None:
        self.runner = runner
        self.engine = engine
        self.connections = runner.run(self._open())

    async def _open(self) -> Connections:
        loop = asyncio.get_running_loop()
        self.store = Service(self.engine, OpenAccess(), ServerSettings(), Metrics(CountingDisk()))
        connections = Connections(HttpApplication(self.store), loop)
        self.listening = await loop.create_server(partial(ServerConnection, connections), "127.0.0.1", 0)
        return connections

    async def close(self) -> None:
        self.listening.close()
        self.connections.abort()
        await self.store.close()

    async def ask(self, pieces: list[bytes], turns: list[int], answers_wanted: int, *, patient: bool = False) -> Wire:
        """Give a connection these pieces, with so many turns of the loop after each, or when each is answered."""
        wire = Wire()
        connection = ServerConnection(self.connections)
        connection.connection_made(wire)
        for number, (piece, turn) in enumerate(zip(pieces, turns, strict=True)):
            connection.data_received(piece)
            if patient:
                await wire.answered(number + 1)
            for _ in range(turn):
                await asyncio.sleep(0)
        await wire.answered(answers_wanted)
        connection.connection_lost(None)
        return wire

    async def ask_over_tcp(
        self, pieces: list[bytes], turns: list[int], answers_wanted: int, *, patient: bool = False
    ) -> Wire:
        """The same over a real connection, where threads may write answers."""
        wire = Wire()
        host, port = self.listening.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(host, port)

        async def receive() -> None:
            while piece := await reader.read(1 << 16):
                wire.write(piece)
            wire.close()

        receiving = asyncio.create_task(receive())
        for number, (piece, turn) in enumerate(zip(pieces, turns, strict=True)):
            writer.write(piece)
            await writer.drain()
            if patient:
                await wire.answered(number + 1)
            for _ in range(turn):
                await asyncio.sleep(0)
        await wire.answered(answers_wanted)
        closed = wire.closed
        receiving.cancel()
        writer.close()
        await asyncio.gather(writer.wait_closed(), receiving, return_exceptions=True)
        wire.closed = closed
        return wire


def cut(sent: bytes, places: set[int]) -> list[bytes]:
    return [sent[first:end] for first, end in pairwise(sorted(places | {0, len(sent)}))]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("cut") / "data"
    with asyncio.Runner() as runner, open_directory(path, durability="os") as engine:
        engine.create("orders")
        served = Served(runner, engine)
        yield served
        runner.run(served.close())


@given(
    asked=st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=8),
    cuts=st.lists(st.floats(0, 1), max_size=12),
    turns=st.lists(st.integers(0, 3), min_size=13, max_size=13),
    whole=st.booleans(),
    patient=st.booleans(),
    tcp=st.booleans(),
)
def test_requests_mean_the_same_however_they_are_cut(
    served: Served,
    asked: list[tuple[bytes, int]],
    cuts: list[float],
    turns: list[int],
    whole: bool,
    patient: bool,
    tcp: bool,
) -> None:
    if whole:  # each request in a piece of its own, as most clients send them
        pieces = [request for request, _ in asked]
    else:
        sent = b"".join(request for request, _ in asked)
        pieces = cut(sent, {round(place * len(sent)) for place in cuts})
    before = served.engine.describe("orders").events
    ask = served.ask_over_tcp if tcp else served.ask
    wire = served.runner.run(ask(pieces, turns[: len(pieces)], len(asked), patient=whole and patient))
    found = answers(bytes(wire.written))
    assert [answer.status for answer in found] == [status for _, status in asked]
    appends = [
        answer
        for answer, (request, status) in zip(found, asked, strict=True)
        if b"orders/items" in request and status == 200
    ]
    assert [int(answer.body) for answer in appends] == list(range(before, before + len(appends)))
    assert served.engine.describe("orders").events == before + len(appends)
    assert not wire.closed


def test_requests_that_were_not_parsed_do_not_count_against_the_next_head(served: Served) -> None:
    async def drive() -> Wire:
        wire = Wire()
        connection = ServerConnection(served.connections)
        connection.connection_made(wire)
        for number in range(100):
            connection.data_received(append(b"x" * 1000))
            await wire.answered(number + 1)
        connection.data_received(b"\r\n")  # as some clients send after a body
        connection.data_received(append(b"one"))
        await wire.answered(101)
        return wire

    wire = served.runner.run(drive())
    assert {answer.status for answer in answers(bytes(wire.written))} == {200}


def ending(served: Served, asked: list[tuple[bytes, int]], pieces: list[bytes], turns: int) -> None:
    """Check that all are answered, however they come, and that the last ends the connection and is the last."""
    before = served.engine.describe("orders").events

    async def drive() -> Wire:
        wire = Wire()
        connection = ServerConnection(served.connections)
        connection.connection_made(wire)
        for piece in pieces:
            connection.data_received(piece)
            for _ in range(turns):
                await asyncio.sleep(0)
        await wire.ended()
        connection.connection_lost(None)
        return wire

    found = answers(bytes(served.runner.run(drive()).written))
    assert [answer.status for answer in found] == [status for _, status in asked]
    assert [answer.headers.get("connection") for answer in found] == [None] * (len(found) - 1) + ["close"]
    appends = sum(b"orders/items" in request and status == 200 for request, status in asked)
    assert served.engine.describe("orders").events == before + appends


@pytest.mark.parametrize("last", ENDINGS, ids=range(len(ENDINGS)))
@pytest.mark.parametrize("turns", [0, 2])
def test_what_ends_a_connection_is_answered_after_all_before_it_wherever_it_is_cut(
    served: Served, last: tuple[bytes, int], turns: int
) -> None:
    asked = [(append(b"one"), 200), (b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n", 200), last]
    sent = b"".join(request for request, _ in asked) + append(b"behind")
    ending(served, asked, [sent], turns)
    for place in range(1, len(sent), 1 + len(sent) // 500):
        ending(served, asked, cut(sent, {place}), turns)


@given(
    asked=st.lists(st.sampled_from(REQUESTS), max_size=8),
    last=st.sampled_from(ENDINGS),
    behind=st.binary(max_size=30) | st.sampled_from([request for request, _ in REQUESTS]),
    cuts=st.lists(st.floats(0, 1), max_size=12),
    turns=st.integers(0, 3),
)
def test_whatever_comes_before_what_ends_a_connection_is_answered(
    served: Served,
    asked: list[tuple[bytes, int]],
    last: tuple[bytes, int],
    behind: bytes,
    cuts: list[float],
    turns: int,
) -> None:
    asked = [*asked, last]
    sent = b"".join(request for request, _ in asked) + behind
    ending(served, asked, cut(sent, {round(place * len(sent)) for place in cuts}), turns)
