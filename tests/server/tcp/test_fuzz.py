"""Whatever is sent, the server lives, nobody else is disturbed, and nothing is kept of it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bsons import document, documents, mutations, text
from tests.server.serving import Server, serving, until_closed
from tests.server.tcp.wire import Wire, frame, framed, wire

CONNECT = frame("CONNECT", {"version": "1.0"})
TYPES = st.sampled_from(
    b"CONNECT PING EMIT STARTTX COMMITTX ABORTTX SUBSCRIBE UNSUBSCRIBE ACKEV QUERY QUERYACK CALL HELLO".split()
)
NAMES = st.sampled_from(
    b"version streamName StreamName eventType event sessID key meta partition subID seqNo queryID binder matcher "
    b"startSequence durableID content method target body more data delete sort limit after".split()
)
USUAL = [
    (2, text(b"1.0")),
    (2, text(b"orders")),
    (2, text(b"GET")),
    (2, text(b"/topics")),
    (3, document([])),
    (0x10, b"\1\0\0\0"),
    (8, b"\1"),
]


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A frame that is nearly one of the protocol."""
    fields = [
        (value[0], name, value[1])
        for name, value in draw(
            st.lists(
                st.tuples(NAMES, st.sampled_from(USUAL) | documents.map(lambda found: (3, found))),
                max_size=5,
                unique_by=lambda each: each[0],
            )
        )
    ]
    whole = document([(2, b"type", text(draw(TYPES))), (3, b"frame", document(fields))])
    return framed(whole)


class Steady(threading.Thread):
    """A client that emits all the time, and must get every answer."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._wire = Wire(server.tcp_url)
        assert self._wire.connect()["ok"]
        self._over = threading.Event()
        self.offsets: list[int] = []
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            self.offsets.append(self._wire.emit("steady", {"n": len(self.offsets)}).get("offset", -1))

    def stop(self) -> None:
        self._over.set()
        self.join()
        self._wire.close()


@pytest.fixture(scope="module")
def steady(server: Server) -> Iterator[Steady]:
    made = Steady(server)
    yield made
    made.stop()
    assert made.offsets == list(range(len(made.offsets)))


def thrown(server: Server, sent: bytes) -> bytes:
    """What the server says to these bytes before it ends the connection, which it must when they end."""
    with socket.create_connection((server.host, int(server.tcp_url.rpartition(":")[2])), timeout=20) as made:
        with contextlib.suppress(ConnectionError):
            made.sendall(sent)
            made.shutdown(socket.SHUT_WR)
        return until_closed(made)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans(), st.lists(mutations(frames()) | frames() | st.binary(max_size=30), max_size=6))
def test_nothing_that_is_sent_disturbs_others(
    server: Server, steady: Steady, connected: bool, sent: list[bytes]
) -> None:
    before = len(steady.offsets)
    thrown(server, (CONNECT if connected else b"") + b"".join(sent))
    with wire(server.tcp_url) as client:
        assert client.ask("PING") == {"ok": True}
    assert server.process.poll() is None
    assert steady.is_alive()
    assert len(steady.offsets) >= before


def test_thousands_of_bad_connections_leave_nothing_behind(tmp_path: Path) -> None:
    half = frame("EMIT", {"eventType": "t", "event": {"x": "y" * 200_000}})[:150_000]
    bad = [
        b"\xff" * 100,
        CONNECT + framed(b"nonsense"),
        CONNECT + half,
        CONNECT + frame("SUBSCRIBE", {"streamName": "orders"}) + b"\0\0\0\1",
        CONNECT + frame("STARTTX", {"sessID": 1}) + frame("EMIT", {"sessID": 1, "eventType": "", "event": {}}),
        frame("PING"),
    ]
    with serving(tmp_path / "data") as server:
        with wire(server.tcp_url) as client:
            client.emit("orders", {})
        for each in bad * 50:  # what is made once
            thrown(server, each)
        before = server.anonymous_bytes()
        for each in bad * 400:
            thrown(server, each)
        assert server.anonymous_bytes() - before < 16 << 20
        metrics = server.http.get("/metrics").text
        assert "headwater_http_connections 1.0" in metrics  # that of this request
