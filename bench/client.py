"""How fast the Python client appends: one event at a time, and in the background."""

from __future__ import annotations

import socket
from itertools import count

import headwater
from bench.http.servers import HOST, headwater_server
from bench.rounds import Samples, interleave, rate
from bench.table import Figure, Row, at_least, ratio_of
from bench.work import TOPIC, Benchmark, Work


class BareClient:
    """A kept connection that sends the bytes of the client's request and waits for the answer, and does no more."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._numbers = count(1)

    def append(self, events: list[bytes]) -> None:
        for data in events:
            head = (
                f"POST /topic/{TOPIC}/items?durability=fsync HTTP/1.1\r\nHost: {HOST}\r\nUser-Agent: bare\r\n"
                "Content-Type: application/octet-stream\r\nHeadwater-Producer: bare\r\nHeadwater-Epoch: 0\r\n"
                f"Headwater-Seq: {next(self._numbers)}\r\nContent-Length: {len(data)}\r\n\r\n"
            )
            self._socket.sendall(head.encode() + data)
            answer = self._socket.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200"), answer

    def close(self) -> None:
        self._socket.close()


def one_by_one(work: Work) -> list[Row]:
    home = work.fresh("client")
    home.mkdir()
    events = work.events[: work.pick(100, 500)]
    with headwater_server(home / "log") as server, headwater.open(server.url) as store:
        store.create(TOPIC)
        bare = BareClient(server.port)
        samples = interleave(
            work.pick(5, 21, 41),
            {
                "headwater": lambda: rate(len(events), lambda: [store.append(TOPIC, data) for data in events]),
                "bare": lambda: rate(len(events), lambda: bare.append(events)),
            },
        )
        bare.close()
    theirs = Figure(samples.median("bare"), "/s")
    return [
        Row(
            "Python client: append, one thread, durable",
            Figure(samples.median("headwater"), "/s"),
            "the same requests by a bare loop over one socket",
            theirs,
            samples.ratio("headwater", "bare"),
            ratio_of(0.5),
        )
    ]


def later(work: Work) -> list[Row]:
    home = work.fresh("later")
    home.mkdir()
    events = work.events * work.pick(5, 200, 1000)
    rounds = work.pick(3, 7, 11)
    with headwater.open(home / "embedded") as store:
        embedded = _later(store, events, rounds)
    with headwater_server(home / "served") as server, headwater.open(server.url) as store:
        remote = _later(store, events, rounds)
    name = "append_later, one thread, durable"
    return [
        Row(f"{name}, embedded", Figure(embedded.median("headwater"), "/s"), target=at_least(500_000, "/s")),
        Row(f"Python client: {name}", Figure(remote.median("headwater"), "/s"), target=at_least(200_000, "/s")),
    ]


def _later(store: headwater.Store, events: list[bytes], rounds: int) -> Samples:
    def append() -> None:
        for data in events:
            store.append_later(TOPIC, data)
        store.flush()

    store.create(TOPIC)
    return interleave(rounds, {"headwater": lambda: rate(len(events), append)})


BENCHMARKS = (
    Benchmark(
        "client",
        "One thread of the Python client appends 100-byte events to a server, each on disk before the next. The bare "
        "loop sends requests of the same form over one kept connection, and reads the answers without parsing them.",
        one_by_one,
    ),
    Benchmark(
        "append-later",
        "One thread gives 100-byte events to `append_later`, and waits for all of them at the end: each is on disk. "
        "Once in a directory that the program has open, once on a server.",
        later,
    ),
)
