"""The other processes of the benchmarks. Imports only Headwater, so that its memory is what a user would see.

`python -m bench.child follow DIRECTORY COUNT` and so on; each prints `ready`, then its result as JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import headwater

TOPIC = "events"
STAMP_BYTES = 8
PATIENCE_S = 30.0  # a follower that hears nothing for so long has lost its writer


def follow(path: str, count: str) -> None:
    """How long after each event's time stamp it arrives, in nanoseconds, for the next `count` events."""
    delays = []
    with (
        headwater.open(path, mode="existing") as log,
        log.follow(TOPIC, start="latest", timeout=PATIENCE_S) as following,
    ):
        _say("ready")
        for event in following:
            delays.append(time.monotonic_ns() - int.from_bytes((event.data or b"")[:STAMP_BYTES], "little"))
            if len(delays) == int(count):
                break
    _say(json.dumps(delays))


def pipe(count: str) -> None:
    """The same for time stamps that come through a pipe."""
    delays = []
    _say("ready")
    for _ in range(int(count)):
        stamp = os.read(sys.stdin.fileno(), STAMP_BYTES)
        delays.append(time.monotonic_ns() - int.from_bytes(stamp, "little"))
    _say(json.dumps(delays))


def idle(path: str, seconds: str) -> None:
    """Follow a log in which nothing happens, for some time."""
    with headwater.open(path, mode="existing") as log, log.follow(TOPIC, timeout=float(seconds)) as following:
        _say("ready")
        for _ in following:
            pass


def busy(path: str) -> None:
    """Append one event at a time until a segment is rolled and sealed, and follow the log from its start meanwhile."""
    followed = 0
    with headwater.open(path, mode="existing", durability="os") as log:
        following = log.follow(TOPIC, start="earliest")

        def run() -> None:
            nonlocal followed
            for event in following:
                followed = event.offset + 1

        thread = threading.Thread(target=run)
        thread.start()
        _say("ready")
        folder = Path(path) / "topics" / TOPIC / "0"
        last = max(folder.glob("*.log"))
        data = bytes(range(100))
        end = 0
        while not last.with_suffix(".index").exists():
            for _ in range(1000):
                end = log.append(TOPIC, data).offset + 1
        while followed < end:
            time.sleep(0.01)
        following.stop()
        thread.join()
    _say(json.dumps(end))


def keys(path: str, count: str) -> None:
    """Milliseconds that each of some look-ups takes in a log of `count` keys, by what is looked up."""
    source = random.Random(os.getpid())
    taken: dict[str, list[float]] = {"history": [], "backwards": [], "version": [], "absent": []}

    def timed(name: str, look_up: Callable[[bytes], object]) -> object:
        key = b"key-%06d" % source.randrange(int(count))
        began = time.perf_counter()
        found = look_up(key)
        taken[name].append((time.perf_counter() - began) * 1e3)
        return found

    with headwater.open(path, mode="existing") as log:
        log.describe(TOPIC)
        for _ in range(15):
            assert timed("history", lambda key: list(log.read(TOPIC, key=key)))
            assert timed("backwards", lambda key: list(log.read(TOPIC, key=key, reverse=True)))
            assert timed("version", lambda key: log.version(TOPIC, key)) is not None
            assert timed("absent", lambda key: log.version(TOPIC, b"absent " + key)) is None
        taken["segments"] = [log.describe(TOPIC).partitions[0].segments]
    _say(json.dumps(taken))


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    children: dict[str, Callable[..., None]] = {
        "follow": follow,
        "pipe": pipe,
        "idle": idle,
        "busy": busy,
        "keys": keys,
    }
    children[sys.argv[1]](*sys.argv[2:])
