"""How fast events come out over HTTP, and what the server's memory does meanwhile."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.http.servers import Server, headwater_server
from bench.rounds import Contender, interleave
from bench.table import Figure, Row, at_least, at_most
from bench.work import BATCH_EVENTS, EVENT_BYTES, MB, TOPIC, Benchmark, Work, append_batches

ITEMS = f"/topic/{TOPIC}/items"
ITEM_HEAD_BYTES = 12
MIB = 1024 * 1024
SAMPLE_S = 0.01
SETTLE_S = 1.0
FORMATS = {
    "items": "application/octet-stream",
    "ndjson": "application/x-ndjson",
    "Arrow": "application/vnd.apache.arrow.stream",
}


def read(work: Work) -> list[Row]:
    if not _has_curl():
        return []
    count = work.pick(100_000, 1_000_000)
    path = work.log(f"http-{count}", lambda path: append_batches(path, work.events, count // BATCH_EVENTS))
    sizes: dict[str, int] = {}
    with headwater_server(path) as server:

        def get(name: str) -> Contender:
            def run() -> float:
                sizes[name], seconds = _download(server, ITEMS, FORMATS[name])
                return count / seconds

            return run

        samples = interleave(work.pick(1, 5, 11), {name: get(name) for name in FORMATS})
    if sizes["items"] != count * (ITEM_HEAD_BYTES + EVENT_BYTES):
        raise SystemExit(f"{sizes['items']} bytes of items came, which is not what {count} of them have")
    first, rows = f"HTTP: GET of {count:,} events", []
    for name in FORMATS:
        what = f"{first}, {'binary items' if name == 'items' else name}"
        rate, target = samples.median(name), at_least(1.5e6, "/s") if name == "items" else None
        rows.append(Row(what, Figure(rate, "/s"), target=target))
        rows.append(Row("the same, bytes of the answer", Figure(rate * sizes[name] / count / MB, "MB/s")))
    return rows


def memory(work: Work) -> list[Row]:
    if not _has_curl():
        return []
    size = work.pick(64, 1024) * MIB
    home = work.fresh("http-memory")
    home.mkdir()
    with headwater_server(home / "log") as server:
        server.ask("GET", "/health")
        time.sleep(SETTLE_S)
        idle = server.anonymous()
        server.ask("PUT", f"/topic/{TOPIC}")
        huge = home / "huge"
        with huge.open("wb") as file:
            file.truncate(size)
        with _peak(server) as peak:
            began = time.perf_counter()
            _upload(server, ITEMS, huge)
            taken = time.perf_counter() - began
        growth_in = peak[0] - idle
        with _peak(server) as peak:
            given_bytes, given = _download(server, ITEMS, FORMATS["items"])
        growth_out = peak[0] - idle
    if given_bytes != size + ITEM_HEAD_BYTES:
        raise SystemExit(f"an item of {size} bytes came back in {given_bytes}")
    item = f"an item of {size // MIB:,} MiB"
    return [
        Row("HTTP: idle server, anonymous memory", Figure(idle / MB, "MB"), target=at_most(90, "MB")),
        Row(f"HTTP: {item} goes in, memory grows by", Figure(growth_in / MB, "MB"), target=at_most(64, "MB")),
        Row(f"HTTP: {item} comes out, memory grew by", Figure(growth_out / MB, "MB"), target=at_most(64, "MB")),
        Row(f"HTTP: {item} goes in, durable", Figure(size / MB / taken, "MB/s")),
        Row(f"HTTP: {item} comes out", Figure(size / MB / given, "MB/s")),
    ]


def _has_curl() -> bool:
    if shutil.which("curl") is None:
        print("curl is not installed: HTTP reads are not measured", file=sys.stderr)
        return False
    return True


def _curl(*options: str) -> str:
    command = ["curl", "--silent", "--show-error", "--fail", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _download(server: Server, path: str, media: str) -> tuple[int, float]:
    """Bytes of the answer and seconds; nothing is kept of it."""
    told = "%{size_download} %{time_total}"
    said = _curl("--output", "/dev/null", "--write-out", told, "--header", f"Accept: {media}", f"{server.url}{path}")
    size, seconds = said.split()
    return int(size), float(seconds)


def _upload(server: Server, path: str, file: Path) -> None:
    media = "Content-Type: application/octet-stream"
    _curl("--upload-file", str(file), "--request", "POST", "--header", media, f"{server.url}{path}")


@contextmanager
def _peak(server: Server) -> Iterator[list[int]]:
    """The most anonymous memory that is seen during the block, in a list that is filled meanwhile."""
    peak = [server.anonymous()]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(SAMPLE_S):
            peak[0] = max(peak[0], server.anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


BENCHMARKS = (
    Benchmark(
        "http-read",
        "`curl` gets all events of a topic, 100 bytes each in batches of 1,000, and throws them away. The pages of the "
        "files are in memory.",
        read,
    ),
    Benchmark(
        "http-memory",
        "Anonymous memory (RssAnon) of `headwater serve` a second after its start, and its peak over that while `curl` "
        "sends an item of 1 GiB, and while it gets it back.",
        memory,
    ),
)
