"""How soon a follower in another process sees an event, and what it costs while nothing happens."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import headwater
from bench.child import STAMP_BYTES
from bench.peers import running
from bench.table import Figure, Row, at_most
from bench.work import EVENT_BYTES, TOPIC, Benchmark, Work

PAUSES_S = (0.002, 0.008)  # between two events: the follower is asleep when the next one comes
SETTLE_S = 0.5


def wake_up(work: Work) -> list[Row]:
    path = _empty_log(work, "follow")
    rounds, each = work.pick(4, 20, 40), 25
    count = str(rounds * each)
    source = random.Random(11)
    with (
        headwater.open(path, durability="os") as log,
        running(child("follow", str(path), count)) as follower,
        running(child("pipe", count)) as reader,
    ):
        _await_ready(follower, reader)
        assert reader.stdin is not None
        time.sleep(SETTLE_S)
        for _ in range(rounds):
            for _ in range(each):
                time.sleep(source.uniform(*PAUSES_S))
                log.append(TOPIC, _stamp() + bytes(EVENT_BYTES - STAMP_BYTES))
            for _ in range(each):
                time.sleep(source.uniform(*PAUSES_S))
                reader.stdin.write(_stamp())
                reader.stdin.flush()
        ours, theirs = (_delays(process) for process in (follower, reader))
    name = "follow from another process, median wake-up"
    return [
        Row(name, Figure(median(ours), "ms"), target=at_most(0.3, "ms")),
        _against(name, median(ours), median(theirs)),
        _against("the same, 99th percentile", _percentile(ours), _percentile(theirs)),
    ]


def idle(work: Work) -> list[Row]:
    path = _empty_log(work, "idle")
    seconds = work.pick(1, 5, 10)
    strace = shutil.which("strace")
    if strace is not None:
        calls = _system_calls(strace, path, work.fresh("strace"), seconds)
        if calls is not None:
            return [Row("idle follower, system calls", Figure(calls, "/s"), target=at_most(20, "/s"))]
    print("strace cannot be used: wake-ups of the idle follower are counted, not its calls", file=sys.stderr)
    name = "idle follower, wake-ups (no strace: a lower bound of its system calls)"
    return [Row(name, Figure(_wake_ups(path, seconds), "/s"), target=at_most(20, "/s"))]


def child(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "bench.child", *arguments]


def _empty_log(work: Work, name: str) -> Path:
    path = work.fresh(name)
    with headwater.open(path) as log:
        log.append(TOPIC, bytes(EVENT_BYTES))
    return path


def _stamp() -> bytes:
    """CLOCK_MONOTONIC, which all processes of a machine share."""
    return time.monotonic_ns().to_bytes(STAMP_BYTES, "little")


def _await_ready(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        assert process.stdout is not None
        line = process.stdout.readline()
        if line.strip() != b"ready":
            raise SystemExit(f"a child process ended early, with {process.wait()}")


def _delays(process: subprocess.Popen[bytes]) -> list[float]:
    """In milliseconds."""
    assert process.stdout is not None
    return [nanoseconds / 1e6 for nanoseconds in json.loads(process.stdout.readline())]


def _percentile(delays: list[float]) -> float:
    return sorted(delays)[len(delays) * 99 // 100]


def _against(name: str, ours: float, theirs: float) -> Row:
    return Row(name, Figure(ours, "ms"), "8 bytes through a pipe", Figure(theirs, "ms"), ours / theirs)


def _system_calls(strace: str, path: Path, output: Path, seconds: int) -> float | None:
    """System calls per second of a follower that was started under strace; None if strace is not allowed to trace."""
    with running([strace, "-f", "-ttt", "-o", str(output), *_idle(path, seconds)]) as traced:
        assert traced.stdout is not None
        if traced.stdout.readline().strip() != b"ready":
            return None
        time.sleep(SETTLE_S)
        began = time.time()
        time.sleep(seconds)
        ended = time.time()
        traced.wait()
    calls = 0
    for line in output.read_text(encoding="utf-8", errors="replace").splitlines():
        _, at, what = line.split(maxsplit=2)
        calls += began <= float(at) < ended and not what.startswith(("---", "+++"))
    return calls / seconds


def _idle(path: Path, seconds: int) -> list[str]:
    """A follower that lives a little longer than it is watched."""
    return child("idle", str(path), str(seconds + 2 * SETTLE_S))


def _wake_ups(path: Path, seconds: int) -> float:
    with running(_idle(path, seconds)) as process:
        _await_ready(process)
        time.sleep(SETTLE_S)
        before = _switches(process.pid)
        time.sleep(seconds)
        return (_switches(process.pid) - before) / seconds


def _switches(pid: int) -> int:
    """How often the threads of a process went to sleep of their own accord."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                total += int(line.split()[1])
    return total


BENCHMARKS = (
    Benchmark(
        "follow",
        "One process appends events with a time stamp at random intervals of 2 to 8 ms, handed to the system; another "
        "follows the log. From before the append to the event in the follower's hands. The pipe takes turns with it.",
        wake_up,
    ),
    Benchmark("idle", "A process that follows a log in which nothing happens.", idle),
)
