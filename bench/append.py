"""How fast events go in: one at a time and in batches, durable or handed to the system."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import headwater
from bench.peers import MISSING_REDIS, BareFile, Sqlite, redis_streams
from bench.rounds import Contender, Samples, interleave, rate
from bench.table import Figure, Row, Target, at_least, ratio_of
from bench.work import BATCH_EVENTS, MB, TOPIC, Benchmark, Work, segments

THREADS = 32
SLOW_SYNC_S = 0.0003  # from here on the disk is what limits; below, the processor does


def durable(work: Work) -> list[Row]:
    home = work.fresh("durable")
    home.mkdir()
    events = work.events[: work.pick(100, 200)]
    with ExitStack() as stack:
        log = stack.enter_context(headwater.open(home / "log", durability="fsync"))
        bare = stack.enter_context(closing(BareFile(home / "bare")))
        stored = _stored_bytes(log, home / "log")
        sqlite = stack.enter_context(closing(Sqlite(home / "sqlite", "FULL")))
        contenders = {
            "headwater": _each(events, lambda: _append(log, events)),
            "bare": _each(events, lambda: bare.append(len(events), stored)),
            "sqlite": _each(events, lambda: sqlite.append(events)),
        }
        redis = stack.enter_context(redis_streams(home, "always"))
        if redis is not None:
            contenders["redis"] = _each(events, lambda: redis.append(events))
        samples = interleave(work.pick(5, 21, 41), contenders)
    name = "append, one at a time, durable"
    return [
        _against(name, samples, "bare", "pwrite + fdatasync", ratio_of(0.85)),
        _against(name, samples, "sqlite", "SQLite, WAL, synchronous=FULL, one INSERT per transaction"),
        _against(name, samples, "redis", "Redis Streams, appendfsync=always, one client"),
    ]


def threads(work: Work) -> list[Row]:
    home = work.fresh("threads")
    home.mkdir()
    each = work.events[: work.pick(20, 60)]
    alone = work.events[: work.pick(50, 150)]
    with ExitStack() as stack:
        log = stack.enter_context(headwater.open(home / "log", durability="fsync"))
        bare = stack.enter_context(closing(BareFile(home / "bare")))
        stored = _stored_bytes(log, home / "log")
        contenders: dict[str, Contender] = {
            "headwater": lambda: _together(log, each),
            "bare": _each(alone, lambda: bare.append(len(alone), stored)),
        }
        samples = interleave(work.pick(5, 21, 41), contenders)
    slow = 1 / samples.median("bare") >= SLOW_SYNC_S
    target = ratio_of(5) if slow else at_least(25_000, "/s")
    return [_against(f"append, {THREADS} threads, durable", samples, "bare", "pwrite + fdatasync, one thread", target)]


def handed_over(work: Work) -> list[Row]:
    home = work.fresh("os")
    home.mkdir()
    events = work.events
    with ExitStack() as stack:
        log = stack.enter_context(headwater.open(home / "log", durability="os"))
        sqlite = stack.enter_context(closing(Sqlite(home / "sqlite", "OFF")))
        contenders = {
            "headwater": _each(events, lambda: _append(log, events)),
            "sqlite": _each(events, lambda: sqlite.append(events)),
        }
        redis = stack.enter_context(redis_streams(home, "no"))
        if redis is not None:
            contenders["redis"] = _each(events, lambda: redis.append(events))
        samples = interleave(work.pick(5, 41, 81), contenders)
    name = "append, one at a time, os"
    return [
        _alone(name, samples, at_least(80_000, "/s")),
        _against(name, samples, "sqlite", "SQLite, WAL, synchronous=OFF, one INSERT per transaction"),
        _against(name, samples, "redis", "Redis Streams, appendfsync=no, one client"),
    ]


def batches(work: Work) -> list[Row]:
    home = work.fresh("batches")
    home.mkdir()
    events = work.events
    repeat = range(work.pick(10, 20))
    with ExitStack() as stack:
        log = stack.enter_context(headwater.open(home / "log", durability="os"))
        off = stack.enter_context(closing(Sqlite(home / "sqlite-off", "OFF")))
        full = stack.enter_context(closing(Sqlite(home / "sqlite-full", "FULL")))
        contenders = {
            "headwater": _batches(repeat, lambda: log.append_many(TOPIC, events)),
            "off": _batches(repeat, lambda: off.append_many(events)),
            "full": _batches(repeat, lambda: full.append_many(events)),
        }
        redis = stack.enter_context(redis_streams(home, "no"))
        if redis is not None:
            contenders["redis"] = _batches(repeat[:2], lambda: redis.append_many(events))
        samples = interleave(work.pick(3, 21, 41), contenders)
    name = "append, batches of 1,000, os"
    return [
        _alone(name, samples, at_least(5e6, "/s")),
        _against(name, samples, "off", "SQLite, WAL, synchronous=OFF, executemany", ratio_of(10)),
        _against(name, samples, "full", "SQLite, WAL, synchronous=FULL, executemany"),
        _against(name, samples, "redis", "Redis Streams, appendfsync=no, pipeline of 1,000"),
        _sustained(work),
    ]


def _sustained(work: Work) -> Row:
    """The mean over many segments, so that rolling, syncing finished segments and sealing all count."""
    size = work.pick(20, 400, 1000) * MB
    count = size // (BATCH_EVENTS * len(work.events[0]))
    with headwater.open(work.fresh("sustained"), durability="os") as log:
        log.create(TOPIC, segment_bytes=8 * MB if work.size == 0 else 0)
        figure = rate(count * BATCH_EVENTS, lambda: [log.append_many(TOPIC, work.events) for _ in range(count)])
    return Row(f"the same, sustained over {size // MB:,} MB with rolling and sealing", Figure(figure, "/s"))


def _append(log: headwater.Store, events: list[bytes]) -> None:
    for data in events:
        log.append(TOPIC, data)


def _together(log: headwater.Store, events: list[bytes]) -> float:
    """Events per second of all threads, from the first that begins to the last that ends."""
    began: list[float] = []
    ended: list[float] = []
    ready = threading.Barrier(THREADS)

    def run() -> None:
        ready.wait()
        began.append(time.perf_counter())
        _append(log, events)
        ended.append(time.perf_counter())

    running = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(ended) == THREADS
    return THREADS * len(events) / (max(ended) - min(began))


def _each(events: list[bytes], work: Callable[[], object]) -> Contender:
    return lambda: rate(len(events), work)


def _batches(repeat: range, work: Callable[[], object]) -> Contender:
    return lambda: rate(len(repeat) * BATCH_EVENTS, lambda: [work() for _ in repeat])


def _stored_bytes(log: headwater.Store, path: Path) -> bytes:
    """The bytes that the log writes for one event, for the bare file to write too."""
    log.append(TOPIC, bytes(100))
    stored = segments(path)[0].read_bytes()[64:]
    return stored[: int.from_bytes(stored[8:12], "little")]


def _alone(name: str, samples: Samples, target: Target) -> Row:
    return Row(name, Figure(samples.median("headwater"), "/s"), target=target)


def _against(name: str, samples: Samples, peer: str, what: str, target: Target | None = None) -> Row:
    ours = Figure(samples.median("headwater"), "/s")
    if peer not in samples.figures:
        return Row(name, ours, what, missing=MISSING_REDIS)
    theirs = Figure(samples.median(peer), "/s")
    return Row(name, ours, what, theirs, samples.ratio("headwater", peer), target)


BENCHMARKS = (
    Benchmark(
        "append-durable",
        "One thread appends 100-byte events one at a time, each on disk before the next. The bare loop writes the same "
        "bytes (those of the stored batch) at the end of a file and syncs them. All files are in one directory.",
        durable,
    ),
    Benchmark(
        "append-threads",
        f"{THREADS} threads append one event at a time to one log, each waiting until its event is on disk. The target "
        f"is 5 times the bare loop where a sync takes 0.3 ms or more, else 25,000/s.",
        threads,
    ),
    Benchmark(
        "append-os",
        "One thread, one event at a time, returned once the system has it: it survives the process, not the machine.",
        handed_over,
    ),
    Benchmark(
        "append-batches",
        "Batches of 1,000 events, each a transaction of its own, handed to the system. SQLite is given both without "
        "syncs, which is the same promise, and with them, which is its default.",
        batches,
    ),
)
