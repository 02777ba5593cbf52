"""Catching up with a log in a bucket, beside bare parallel GETs of the same objects."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import obstore

import headwater
from bench.bucket.server import MISSING, bare, seaweed
from bench.rounds import Samples, interleave
from bench.table import Figure, Row, Target, ratio_of
from bench.work import BATCH_EVENTS, TOPIC, Benchmark, Work
from headwater.limits import DEFAULTS, Limits

NAME = "bucket: catch-up read of 1,000 x 1 KB objects"
PEER = f"{DEFAULTS.fetch_threads} threads of bare obstore GETs of the same objects"
EVENT_BYTES = 1000


def catch_up(work: Work) -> list[Row]:
    objects = work.pick(10, 200, 400)
    events = [each * (EVENT_BYTES // len(each)) for each in work.events]
    with seaweed(work.fresh("bucket-read")) as server:
        if server is None:
            return [Row(NAME, Figure(0, "/s"), PEER, missing=MISSING)]
        address = server.url("log")
        with headwater.open(address, limits=Limits(compact_objects=0)) as log:
            for _ in range(objects):
                log.append_many(TOPIC, events)
        client = bare(server.endpoint, "log")
        keys = [each["path"] for page in obstore.list(client) for each in page if "/events/0/" in each["path"]]
        assert len(keys) == objects

        def ours() -> float:
            with headwater.open(address, mode="existing") as log:  # with nothing in its cache
                began = time.perf_counter()
                found = sum(len(batch) for batch in log.read_batches(TOPIC))
                took = time.perf_counter() - began
            assert found == objects * BATCH_EVENTS
            return found / took

        def theirs() -> float:
            with ThreadPoolExecutor(DEFAULTS.fetch_threads) as pool:
                began = time.perf_counter()
                assert all(pool.map(lambda key: len(obstore.get(client, key).bytes()), keys))
                return objects * BATCH_EVENTS / (time.perf_counter() - began)

        rounds = work.pick(1, 5, 9)
        rows = [_row(NAME, interleave(rounds, {"ours": ours, "theirs": theirs}), ratio_of(0.7))]
        with headwater.open(address) as log:
            log.seal(TOPIC)
        rows.append(_row("the same, compacted into segments", interleave(rounds, {"ours": ours, "theirs": theirs})))
    return rows


def _row(name: str, samples: Samples, target: Target | None = None) -> Row:
    ours, theirs = (Figure(samples.median(each), "/s") for each in ("ours", "theirs"))
    return Row(name, ours, PEER, theirs, samples.ratio("ours", "theirs"), target)


BENCHMARKS = (
    Benchmark(
        "bucket-read",
        "read_batches of a whole topic in SeaweedFS by a program that has just opened it, beside threads that get the "
        "same objects, whose names they know; figures are in events.",
        catch_up,
    ),
)
