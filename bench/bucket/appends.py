"""Appends to one partition of a bucket by 1, 2 and 4 processes, beside bare PUTs of the same bytes."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, NamedTuple

import obstore

import headwater
from bench.bucket.server import MISSING, bare, seaweed
from bench.rounds import Contender, interleave
from bench.table import Figure, Row, at_least, ratio_of
from bench.work import TOPIC, Benchmark, Work
from headwater.limits import Limits
from tests.servers import Seaweed

WRITERS = (1, 2, 4)
SPREAD = 4  # partitions, and threads
PEER = "bare obstore PUTs of the same bytes"


class Load(NamedTuple):
    """What each writer appends in a round: so many times, so many events of so many bytes."""

    name: str
    times: int
    events: int
    event_bytes: int


class Writer:
    """A process that does what it is told."""

    def __init__(self, address: str, endpoint: str) -> None:
        command = [sys.executable, "-m", "bench.bucket.child", address, endpoint]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._line() != "ready":
            raise SystemExit("a process that is to write to the bucket does not start")

    def tell(self, line: str) -> None:
        stream = _given(self._process.stdin)
        stream.write(line + "\n")
        stream.flush()

    def wait(self) -> float:
        """The seconds that it took."""
        return float(self._line() or "nan")

    def close(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        return _given(self._process.stdout).readline().strip()


def single(work: Work) -> list[Row]:
    """One event in each object: what an append costs beyond its request."""
    load = Load("bucket: append", work.pick(20, 100, 300), 1, 100)
    rows = []
    with seaweed(work.fresh("bucket-append")) as server:
        if server is None:
            return [Row(load.name, Figure(0, "/s"), PEER, missing=MISSING)]
        for number, verb, ours, theirs, ratio in _measured(work, server, load):
            target = ratio_of(0.8) if number == 1 and verb == "append" else None
            rows.append(Row(_name(load, number, verb), Figure(ours, "/s"), PEER, Figure(theirs, "/s"), ratio, target))
    return rows


def batched(work: Work) -> list[Row]:
    """1,000 events in each object; figures are in events."""
    load = Load("bucket: append_many of 1,000 x 1 KB", work.pick(4, 20, 60), 1000, 1000)
    rows = []
    with seaweed(work.fresh("bucket-batches")) as server:
        if server is None:
            return [Row(load.name, Figure(0, "/s"), PEER, missing=MISSING)]
        for number, verb, ours, theirs, ratio in _measured(work, server, load):
            rows.append(Row(_name(load, number, verb), Figure(ours, "/s"), PEER, Figure(theirs, "/s"), ratio))
        rows += _spread(work, server, load)
    return rows


def _spread(work: Work, server: Seaweed, load: Load) -> list[Row]:
    """One process that appends to several partitions at once: a partition has one object on its way at a time."""
    name = f"{load.name}, {SPREAD} threads to {SPREAD} partitions"
    events = [work.events[number % len(work.events)] * 10 for number in range(load.events)]
    client, numbers = bare(server.endpoint, "spread"), itertools.count()
    data = b"".join(events)  # and some bytes for each event, which ours have
    topic = f"{TOPIC}-spread"
    with (
        headwater.open(server.url("log"), limits=Limits(compact_objects=0)) as log,
        ThreadPoolExecutor(SPREAD) as pool,
    ):
        log.create(topic, partitions=SPREAD)

        def appended(partition: int) -> None:
            for _ in range(load.times):
                log.append_many(topic, events, partition=partition)

        def put(_partition: int) -> None:
            for _ in range(load.times):
                obstore.put(client, f"{next(numbers):020d}", data, mode="create", use_multipart=False)

        def contender(do: Callable[[int], None]) -> Contender:
            def run() -> float:
                began = time.perf_counter()
                list(pool.map(do, range(SPREAD)))
                return SPREAD * load.times * load.events / (time.perf_counter() - began)

            return run

        samples = interleave(work.pick(1, 5, 9), {"ours": contender(appended), "theirs": contender(put)})
    ours, theirs = (Figure(samples.median(each), "/s") for each in ("ours", "theirs"))
    return [
        Row(name, ours, target=at_least(150_000, "/s")),
        Row(name, ours, PEER, theirs, samples.ratio("ours", "theirs")),
    ]


def _measured(work: Work, server: Seaweed, load: Load) -> Iterator[tuple[int, str, float, float, float]]:
    """Events per second for each number of writers, by the verb of `child`: ours, theirs, and the ratio."""
    address = server.url("log")
    with headwater.open(address) as log:
        log.create(TOPIC)
        log.append_many(TOPIC, [bytes(load.event_bytes)] * load.events)
    size = _object_bytes(server)
    with contextlib.ExitStack() as stack:
        writers = [Writer(address, server.endpoint) for _ in range(max(WRITERS))]
        for writer in writers:
            stack.callback(writer.close)
        for number in WRITERS:
            chosen = writers[:number]
            verbs = ["append", "keep"] if number == 1 else ["append"]
            lines = {verb: f"{verb} {load.times} {load.events} {load.event_bytes}" for verb in verbs}
            lines["put"] = f"put {load.times} {size}"
            contenders = {verb: _contender(chosen, load, line) for verb, line in lines.items()}
            samples = interleave(work.pick(1, 5, 9), contenders)
            for verb in verbs:
                yield number, verb, samples.median(verb), samples.median("put"), samples.ratio(verb, "put")


def _contender(writers: Sequence[Writer], load: Load, line: str) -> Contender:
    def run() -> float:
        for writer in writers:
            writer.tell(line)
        took = max([writer.wait() for writer in writers])
        return len(writers) * load.times * load.events / took

    return run


def _object_bytes(server: Seaweed) -> int:
    """The size of the only object of events."""
    (size,) = (
        each["size"]
        for page in obstore.list(bare(server.endpoint, "log"))
        for each in page
        if "/events/0/" in each["path"]
    )
    return int(size)


def _name(load: Load, number: int, verb: str) -> str:
    if verb == "keep":
        return "the same, compacting in the background"
    return f"{load.name}, {number} writer{'s' * (number > 1)} to one partition"


def _given(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


BENCHMARKS = (
    Benchmark(
        "bucket-append",
        "one 100-byte event after the other to one partition in SeaweedFS, from 1, 2 and 4 processes; beside as many "
        "processes that put objects of the same size, each with the same condition, to keys of their own. Whoever "
        "appends compacts now and then; that is a row of its own, as it takes the same machine's time as the server.",
        single,
    ),
    Benchmark(
        "bucket-batches",
        "the same with append_many of 1,000 events of 1,000 bytes, which is one object; figures are in events. "
        "Then one process with four threads, each with a partition of its own.",
        batched,
    ),
)
