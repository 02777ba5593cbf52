"""How soon subscribers get what is appended, and whether they get all of it, once."""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Any

from bench.http.servers import HOST, Server, headwater_server
from bench.http.subscribers import STAMP
from bench.peers import running
from bench.table import Figure, Row, at_most
from bench.work import EVENT_BYTES, TOPIC, Benchmark, Work

ITEMS = f"/topic/{TOPIC}/items"
PER_SECOND = 100
SETTLE_S = 1.0


def delivery(work: Work) -> list[Row]:
    crowd, seconds = work.pick(50, 1000), work.pick(2, 10, 20)
    with headwater_server(work.fresh("http-live")) as server:
        server.ask("PUT", f"/topic/{TOPIC}")
        server.ask("PUT", "/topic/alone")
        one = _measure(server, "/topic/alone/items", 1, seconds * PER_SECOND)
        many = _measure(server, ITEMS, crowd, seconds * PER_SECOND)
    alone = "HTTP: SSE, one subscriber, append to delivery"
    together = f"HTTP: SSE, {crowd:,} subscribers, {PER_SECOND} events/s"
    return [
        Row(f"{alone}, median", Figure(one["median_ms"], "ms"), target=at_most(2, "ms")),
        Row(f"{alone}, 99th percentile", Figure(one["p99_ms"], "ms")),
        Row(f"{together}, median delivery", Figure(many["median_ms"], "ms"), target=at_most(20, "ms")),
        Row(f"{together}, 99th percentile", Figure(many["p99_ms"], "ms")),
        Row(f"{together}, reached", Figure(many["rate"], "/s")),
        Row(
            f"{together}, lost, doubled or out of order",
            Figure(many["wrong"] + one["wrong"], "events"),
            target=at_most(0, "events"),
        ),
    ]


def _measure(server: Server, path: str, subscribers: int, events: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.http.subscribers", str(server.port), f"{path}?from=latest"]
    with running([*command, str(subscribers), str(events)]) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != b"ready":
            raise SystemExit("the subscribers did not begin")
        time.sleep(SETTLE_S)
        seconds = _publish(server, path, events)
        told: dict[str, Any] = json.loads(process.stdout.readline())
    if not told["delivered"]:
        raise SystemExit("no event arrived")
    return {**told, "rate": events / seconds}


def _publish(server: Server, path: str, events: int) -> float:
    """Post events at a steady rate, each with its number and the time just before; returns the seconds it took."""
    with socket.create_connection((HOST, server.port), 30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {EVENT_BYTES}\r\n"
        head += "content-type: text/plain\r\n\r\n"
        began = time.monotonic()
        for number in range(events):
            time.sleep(max(0.0, began + number / PER_SECOND - time.monotonic()))
            stamp = STAMP.format(number=number, nanoseconds=time.monotonic_ns())
            connection.sendall(f"{head}{stamp.ljust(EVENT_BYTES, '.')}".encode())
            answer = connection.recv(65_536)
            if not answer.startswith(b"HTTP/1.1 200 "):
                raise SystemExit(f"an event was not taken: {answer[:300].decode(errors='replace')}")
        return time.monotonic() - began


BENCHMARKS = (
    Benchmark(
        "http-live",
        f"One client posts {PER_SECOND} durable 100-byte events a second to a topic, each with the time just before it "
        "was sent; subscribers, all in one other process with raw sockets, get them as server-sent events.",
        delivery,
    ),
)
