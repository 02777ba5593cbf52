"""How fast events go in over HTTP, from many connections: one at a time, and in batches."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pyarrow as pa

from bench.http.load import CONNECTIONS, PRODUCERS, has_wrk, wrk, wrk_script, xadd
from bench.http.servers import Server, headwater_server, redis_server, uvicorn_server
from bench.peers import MISSING_REDIS
from bench.rounds import Contender, Samples, interleave
from bench.table import Figure, Row, Target, ratio_of
from bench.work import BATCH_EVENTS, EVENT_BYTES, TOPIC, Benchmark, Work

ITEMS = f"/topic/{TOPIC}/items"
FEW = 4
PIPELINE = 16


def single(work: Work) -> list[Row]:
    if not has_wrk():
        return []
    home = work.fresh("http-appends")
    home.mkdir()
    seconds = work.pick(1, 1, 2)
    script = wrk_script(home, "one", work.events[0], "application/octet-stream")
    with ExitStack() as stack:
        ours = _served(stack, home / "log", headwater_server)
        mounted = _served(stack, home / "asgi", uvicorn_server)
        contenders: dict[str, Contender] = {
            "headwater": lambda: wrk(ours, ITEMS, script, seconds),
            "producers": lambda: wrk(ours, ITEMS, PRODUCERS, seconds),
            "asgi": lambda: wrk(mounted, ITEMS, script, seconds),
            "os": lambda: wrk(ours, f"{ITEMS}?durability=os", script, seconds),
        }
        count = work.pick(10_000, 30_000, 60_000)
        _add_redis(stack, home, "always", contenders, lambda server: xadd(server, count))
        _add_redis(stack, home, "everysec", contenders, lambda server: xadd(server, count))
        samples = interleave(work.pick(1, 5, 11), contenders)
    name = f"HTTP: append, {CONNECTIONS} connections, durable"
    clients = f"{CONNECTIONS} clients"
    return [
        _against(name, samples, "headwater", "always", f"Redis XADD, appendfsync=always, {clients}", ratio_of(1)),
        _against(
            f"HTTP: append with key, producer and JSON, {CONNECTIONS} connections, durable",
            samples,
            "producers",
            "headwater",
            "the same without key, producer and JSON",
            ratio_of(0.9),
        ),
        _against(name, samples, "headwater", "asgi", "the same as ASGI under uvicorn"),
        _against(
            f"HTTP: append, {CONNECTIONS} connections, os",
            samples,
            "os",
            "everysec",
            f"Redis XADD, appendfsync=everysec, {clients}",
        ),
    ]


def batches(work: Work) -> list[Row]:
    if not has_wrk():
        return []
    home = work.fresh("http-batches")
    home.mkdir()
    seconds = work.pick(1, 1, 2)
    bodies = {
        "ndjson": (_lines(work.events), "application/x-ndjson"),
        "Arrow": (_arrow(work.events), "application/vnd.apache.arrow.stream"),
    }
    scripts = {name: wrk_script(home, name, *body) for name, body in bodies.items()}
    with ExitStack() as stack:
        ours = _served(stack, home / "log", headwater_server)
        for name, body in bodies.items():
            if b'"count":%d,' % BATCH_EVENTS not in ours.ask("POST", ITEMS, *body):
                raise SystemExit(f"{name}: the server did not take {BATCH_EVENTS} events")

        def post(script: Path, connections: int) -> Contender:
            return lambda: wrk(ours, ITEMS, script, seconds, connections) * BATCH_EVENTS

        contenders = {
            f"{name} {connections}": post(script, connections)
            for name, script in scripts.items()
            for connections in (CONNECTIONS, FEW)
        }
        count = work.pick(20_000, 100_000, 200_000)
        _add_redis(stack, home, "always", contenders, lambda server: xadd(server, count, PIPELINE))
        samples = interleave(work.pick(1, 5, 11), contenders)
    peer = f"Redis XADD, appendfsync=always, {CONNECTIONS} clients, pipelined by {PIPELINE}"
    return [
        _against(
            f"HTTP: {name}, 1,000 events a request, {connections} connections, durable",
            samples,
            f"{name} {connections}",
            "always",
            peer,
            ratio_of(10) if connections == CONNECTIONS else None,
        )
        for name in scripts
        for connections in (CONNECTIONS, FEW)
    ]


def _served(stack: ExitStack, path: Path, start: Callable[[Path], object]) -> Server:
    server: Server = stack.enter_context(start(path))  # type: ignore[arg-type]  # a context manager
    server.ask("PUT", f"/topic/{TOPIC}")
    return server


def _add_redis(
    stack: ExitStack,
    home: Path,
    appendfsync: Literal["always", "everysec"],
    contenders: dict[str, Contender],
    load: Callable[[Server], float],
) -> None:
    server = stack.enter_context(redis_server(home / f"redis-{appendfsync}", appendfsync))
    if server is not None:
        contenders[appendfsync] = lambda: load(server)


def _lines(events: list[bytes]) -> bytes:
    """JSON of about the same size."""
    size = (EVENT_BYTES - len('{"data":""}')) // 4 * 3
    return b"".join(b'{"data":"%b"}\n' % base64.b64encode(data[:size]) for data in events)


def _arrow(events: list[bytes]) -> bytes:
    table = pa.table({"data": pa.array(events, pa.binary())})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def _against(name: str, samples: Samples, ours: str, peer: str, what: str, target: Target | None = None) -> Row:
    figure = Figure(samples.median(ours), "/s")
    if peer not in samples.figures:
        return Row(name, figure, what, missing=MISSING_REDIS)
    return Row(name, figure, what, Figure(samples.median(peer), "/s"), samples.ratio(ours, peer), target)


BENCHMARKS = (
    Benchmark(
        "http-appends",
        f"`wrk` posts 100-byte items over {CONNECTIONS} connections to `headwater serve`, each answered when it is on "
        "disk; `redis-benchmark` does XADDs of 100 bytes over as many connections. Both servers are on loopback, their "
        "files in one directory. A second script sends what the Python client does: a type, a key, a producer with its "
        "next seq, and JSON of about 100 bytes. The ASGI application runs under uvicorn with uvloop and httptools.",
        single,
    ),
    Benchmark(
        "http-batches",
        "The same with 1,000 events in each request, as JSON lines of about 100 bytes and as an Arrow stream, durable, "
        f"over {CONNECTIONS} and {FEW} connections; Redis gets {PIPELINE} XADDs at a time from each client.",
        batches,
    ),
)
