"""How fast events go in over TCP: from many connections, one at a time each, and pipelined over one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.http.load import xadd
from bench.http.servers import Server, headwater_server, redis_server
from bench.peers import MISSING_REDIS
from bench.rounds import Contender, Samples, interleave
from bench.table import Figure, Row, Target, at_least, ratio_of
from bench.tcp import frames, nats
from bench.tcp.generator import Client, Load, Wire, load, processor_s
from bench.work import TOPIC, Benchmark, Work

CONNECTIONS = 64
WINDOW = 1000
MICROSECONDS = 1e6
SYNCED = {"NATS always": "sync_interval=always", "NATS": "synced every 2 minutes"}


class Measured:
    """Who takes turns, and the processor time that each server took for an event, in microseconds."""

    def __init__(self) -> None:
        self.contenders: dict[str, Contender] = {}
        self._costs: dict[str, list[float]] = {}

    def add(self, name: str, server: Server, count: int, run: Callable[[int], float]) -> None:
        """Have `run` do its work, for `count` events, when it is its turn."""

        def contend() -> float:
            before = processor_s(server.process)
            rate = run(count)
            costs.append((processor_s(server.process) - before) / count * MICROSECONDS)
            return rate

        costs = self._costs.setdefault(name, [])
        self.contenders[name] = contend

    def cost(self, name: str) -> float:
        return median(self._costs[name])


def single(work: Work) -> list[Row]:
    home = work.fresh("tcp-emit")
    home.mkdir()
    found, program, count = Measured(), load(work), work.pick(10_000, 40_000, 100_000)
    with ExitStack() as stack:
        ours = [frames.emitter(work.events[:1])] * CONNECTIONS
        _add_headwater(stack, program, home / "log", found, {"headwater": (ours, 1, count)})
        _add_nats(stack, program, home, found, nats.publishers(work.events[:1], CONNECTIONS), 1, count)
        redis = stack.enter_context(redis_server(home / "redis", "always"))
        if redis is not None:
            found.add("Redis", redis, count, lambda count: xadd(redis, count))
        samples = interleave(work.pick(1, 5, 11), found.contenders)
    name, clients = f"TCP: EMIT, {CONNECTIONS} connections, durable", f"{CONNECTIONS} clients"
    told = f"Redis XADD, appendfsync=always, {clients}"
    rows = [_against(name, samples, "headwater", "Redis", told, ratio_of(1))]
    rows += _against_nats(name, samples, "headwater", clients)
    cost = "the same, processor time of the server for each"
    for peer, what in {"Redis": told, "NATS": "NATS JetStream, synced every 2 minutes"}.items():
        if peer in samples.figures:
            mine, theirs = found.cost("headwater"), found.cost(peer)
            rows.append(Row(cost, Figure(mine, "µs"), what, Figure(theirs, "µs"), mine / theirs))
    return rows


def pipelined(work: Work) -> list[Row]:
    home = work.fresh("tcp-pipelined")
    home.mkdir()
    found, program, count = Measured(), load(work), work.pick(50_000, 200_000, 500_000)
    with ExitStack() as stack:
        contents = {
            "plain": ([frames.emitter(work.events)], WINDOW, count),
            "keyed": ([frames.emitter(work.events, keyed=True)], WINDOW, count),
        }
        _add_headwater(stack, program, home / "log", found, contents)
        slow = work.pick(2_000, 5_000, 10_000)  # which it is, if it syncs each
        _add_nats(stack, program, home, found, nats.publishers(work.events, 1), WINDOW, count, slow)
        samples = interleave(work.pick(1, 5, 11), found.contenders)
    name, target = f"TCP: EMIT, one connection, pipelined by {WINDOW:,}, durable", at_least(50_000, "/s")
    rows = [Row(name, Figure(samples.median("plain"), "/s"), target=target)]
    rows += _against_nats(name, samples, "plain", "the same")
    keyed = "the same, each with a key"
    return [
        *rows,
        Row("the same, processor time of the server for each", Figure(found.cost("plain"), "µs")),
        Row(keyed, Figure(samples.median("keyed"), "/s"), target=target),
        Row(f"{keyed}, processor time of the server", Figure(found.cost("keyed"), "µs")),
    ]


def _add_headwater(
    stack: ExitStack, program: Load, path: Path, found: Measured, contents: dict[str, tuple[list[Client], int, int]]
) -> None:
    server = stack.enter_context(headwater_server(path))
    server.ask("PUT", f"/topic/{TOPIC}")
    for name, (clients, window, count) in contents.items():
        found.add(name, server, count, _publish(program, "frames", server.tcp_port, clients, window))


def _add_nats(
    stack: ExitStack,
    program: Load,
    home: Path,
    found: Measured,
    clients: list[Client],
    window: int,
    count: int,
    synced_count: int | None = None,
) -> None:
    for name in SYNCED:
        always = name == "NATS always"
        server = stack.enter_context(nats.nats_server(home / name.replace(" ", "-"), always=always))
        if server is not None:
            number = synced_count or count if always else count
            found.add(name, server, number, _publish(program, "nats", server.port, clients, window))


def _publish(program: Load, wire: Wire, port: int, clients: list[Client], window: int) -> Callable[[int], float]:
    return lambda count: program.publish(wire, port, count, clients, window)


def _against(name: str, samples: Samples, ours: str, peer: str, what: str, target: Target | None = None) -> Row:
    figure = Figure(samples.median(ours), "/s")
    if peer not in samples.figures:
        missing = MISSING_REDIS if peer == "Redis" else nats.missing(peer == "NATS always")
        return Row(name, figure, what, missing=missing)
    return Row(name, figure, what, Figure(samples.median(peer), "/s"), samples.ratio(ours, peer), target)


def _against_nats(name: str, samples: Samples, ours: str, clients: str) -> list[Row]:
    return [
        _against(name, samples, ours, peer, f"NATS JetStream, {synced}, {clients}") for peer, synced in SYNCED.items()
    ]


BENCHMARKS = (
    Benchmark(
        "tcp-emit",
        f"EMITs of 100 bytes of BSON over {CONNECTIONS} connections to `headwater serve`, one at a time on each, "
        "answered when it is on disk; `redis-benchmark` does XADDs of 100 bytes over as many connections, and NATS "
        "JetStream, with a stream in files, gets messages of 100 bytes from the program that emits to us, and "
        "acknowledges each. By default it syncs every two minutes. All servers are on loopback, their files in one "
        "directory. Processor time is that of the server, user and system.",
        single,
    ),
    Benchmark(
        "tcp-pipelined",
        f"The same over one connection, with {WINDOW:,} EMITs unanswered at a time, plain and with one of 1,000 keys "
        "each. Each is answered on its own.",
        pipelined,
    ),
)
