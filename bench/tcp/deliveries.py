"""How fast events come out over TCP: those that are stored, to one subscriber that acknowledges, and new ones."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count as numbers
from pathlib import Path
from statistics import median

from bson import encode

import headwater
from bench.http.servers import HOST, PATIENCE_S, Server, headwater_server
from bench.rounds import Contender, interleave
from bench.table import Figure, Row, at_least, at_most
from bench.tcp import frames, nats
from bench.tcp.generator import Load, load
from bench.work import BATCH_EVENTS, TOPIC, Benchmark, Work
from headwater.format import protocol

ACK_EVERY = 250
PUBLISH_WINDOW = 1000
PER_SECOND = 100


def stored(work: Work) -> list[Row]:
    count = work.pick(50_000, 1_000_000)
    home = work.fresh("tcp-deliver")
    home.mkdir()
    program, names = load(work), numbers()
    contenders: dict[str, Contender] = {}
    with ExitStack() as stack:
        _append(home / "log", work.events, count)
        server = stack.enter_context(headwater_server(home / "log"))
        ack = frames.acknowledging()

        def deliver(hello: bytes) -> float:
            return program.deliver("frames", server.tcp_port, count, hello, ack, ACK_EVERY)

        contenders["plain"] = lambda: deliver(frames.subscribing())
        contenders["durable"] = lambda: deliver(frames.subscribing(durableID=f"bench-{next(names)}"))
        peer = stack.enter_context(_nats_with_events(home / "nats", work, program, count))
        if peer is not None:
            contenders["NATS"] = lambda: program.deliver(
                "nats", peer.port, count, nats.subscribing(peer, f"bench-{next(names)}"), b"", ACK_EVERY
            )
        samples = interleave(work.pick(1, 3, 7), contenders)
    name, target = f"TCP: delivery of {count:,} stored events to one subscriber", at_least(150_000, "/s")
    what = "NATS JetStream, push consumer, acks for all before"
    rows = [Row(name, Figure(samples.median("plain"), "/s"), target=target)]
    for ours, told in {"plain": name, "durable": "the same, durable subscription"}.items():
        mine = Figure(samples.median(ours), "/s")
        if peer is None:
            rows.append(Row(told, mine, what, missing=nats.missing(always=False)))
        else:
            rows.append(Row(told, mine, what, Figure(samples.median("NATS"), "/s"), samples.ratio(ours, "NATS")))
    return rows


def latency(work: Work) -> list[Row]:
    events = work.pick(100, 1000, 2000)
    with headwater_server(work.fresh("tcp-latency")) as server:
        server.ask("PUT", f"/topic/{TOPIC}")
        delays = sorted(_emit_and_receive(server, work.events[:1], events))
    name = "TCP: EMIT to RECEV, durable"
    return [
        Row(f"{name}, median", Figure(median(delays) * 1e3, "ms"), target=at_most(2, "ms")),
        Row(f"{name}, 99th percentile", Figure(delays[len(delays) * 99 // 100] * 1e3, "ms")),
    ]


def _append(path: Path, events: list[bytes], count: int) -> None:
    """Store so many documents, in batches of 1,000."""
    batch = [encode(document) for document in frames.documents(events)]
    with headwater.open(path, durability="os") as log:
        log.create(TOPIC)
        for _ in range(count // BATCH_EVENTS):
            log.append_many(TOPIC, batch, types=frames.TYPE, content="bson")
        log.sync(TOPIC)


@contextmanager
def _nats_with_events(directory: Path, work: Work, program: Load, count: int) -> Iterator[Server | None]:
    with nats.nats_server(directory, always=False) as server:
        if server is not None:
            program.publish("nats", server.port, count, nats.publishers(work.events, 1), PUBLISH_WINDOW)
        yield server


def _emit_and_receive(server: Server, events: list[bytes], count: int) -> Iterator[float]:
    """Seconds from an EMIT on one connection to its RECEV on another, of a client that waits for nothing else."""
    client = frames.emitter(events)
    address = HOST, server.tcp_port
    with (
        socket.create_connection(address, PATIENCE_S) as emitting,
        socket.create_connection(address, PATIENCE_S) as subscribed,
        emitting.makefile("rb") as answers,
        subscribed.makefile("rb") as arrivals,
    ):
        emitting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        emitting.sendall(client.hello)
        subscribed.sendall(frames.subscribing())
        for _ in range(2):
            _next(arrivals, "RESPONSE")
        _next(answers, "RESPONSE")
        began = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, began + number / PER_SECOND - time.monotonic()))
            sent = time.perf_counter()
            emitting.sendall(client.requests[0])
            _next(arrivals, "RECEV")
            yield time.perf_counter() - sent
            _next(answers, "RESPONSE")
            if number % ACK_EVERY == 0:
                ack = {"subID": frames.FIRST_SUBSCRIPTION, "seqNo": number}
                subscribed.sendall(protocol.encode("ACKEV", ack))


def _next(stream: object, type: str) -> None:
    """Read one frame, which must be of a type that ends so."""
    read = stream.read  # type: ignore[attr-defined]  # a file
    raw = read(int.from_bytes(read(4)))
    found, told = protocol.decode(raw)
    if not found.endswith(type) or told.get("ok") is False:
        raise SystemExit(f"{type} was expected, and {found} came: {told}")


BENCHMARKS = (
    Benchmark(
        "tcp-deliver",
        "SUBSCRIBE from the first event of a topic with 100 bytes of BSON each, stored in batches of 1,000, to a "
        f"program that counts them, looks at their numbers, and acknowledges every {ACK_EVERY}: from connecting to the "
        "last event. NATS JetStream does the same with a push consumer, of which one acknowledgement is for all before "
        "it, and as many may be unacknowledged (1,000). The pages of the files are in memory.",
        stored,
    ),
    Benchmark(
        "tcp-latency",
        f"One connection emits {PER_SECOND} durable events a second, another one of the same process is subscribed: "
        "from sending the EMIT to having read the RECEV.",
        latency,
    ),
)
