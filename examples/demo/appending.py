"""Several processes append to one log, one is killed, and another one does the rest: nothing is lost or double.

Each batch has a number of its writer's. A batch that was committed without its writer living to hear of it is found
under that number, and not appended again.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import headwater
from examples.demo.screen import bar, expect, note, say
from examples.demo.shop import TOPIC, Entry, batches_of

WRITERS = 4
PATIENCE_S = 60.0

processes = multiprocessing.get_context("spawn")


def write(data: Path, writer: int, visits: int, first: int, acknowledged: Connection | None) -> None:
    """Append the batches of a writer from the `first` on, and tell of each one that is on disk."""
    with headwater.open(data, mode="existing") as hw:
        for number, batch in enumerate(batches_of(writer, WRITERS, visits)):
            if number < first:
                continue
            hw.append_many(
                TOPIC,
                [entry.data for entry in batch],
                types=[entry.type for entry in batch],
                keys=[entry.key for entry in batch],
                producer=(f"writer-{writer}", 0, number),
            )
            if acknowledged is not None:
                acknowledged.send(number)


def begin(work: Callable[..., Any], *arguments: Any) -> BaseProcess:
    process = processes.Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def append_all(hw: headwater.Store, url: str, visits: int) -> int:
    """All visits, by four processes of which one is killed; a reader at the server sees each event. How many."""
    expected = sum(len(batch) for writer in range(WRITERS) for batch in batches_of(writer, WRITERS, visits))
    began_s = time.monotonic()
    acknowledged, acknowledge = processes.Pipe(duplex=False)
    victim = begin(write, hw.path, 0, visits, 0, acknowledge)
    acknowledge.close()
    others = [begin(write, hw.path, writer, visits, 0, None) for writer in range(1, WRITERS)]
    say(f"{WRITERS} processes append to the directory; somebody follows through the server")
    promised = kill_half_way(victim, acknowledged, list(batches_of(0, WRITERS, visits)))
    check_promises(hw, promised)
    others.append(begin(write, hw.path, 0, visits, len(promised), None))
    say("every one of them is in the log; a new process goes on where it was")
    follow(url, expected)
    seconds = time.monotonic() - began_s
    for process in others:
        process.join(PATIENCE_S)
        expect(process.exitcode == 0, f"{process.name} ended with {process.exitcode}")
    there = hw.describe(TOPIC).events
    expect(there == expected, f"{there} events are there, and the shop made {expected}")
    say(f"{expected:,} events: each is there once, and the one who follows has seen them all")
    note("appended by 4 processes", f"{expected:,} events", f"{seconds:.1f} s")
    note("acknowledged to the killed one", f"{sum(map(len, promised)):,} events, all there")
    return expected


def kill_half_way(victim: BaseProcess, acknowledged: Connection, batches: list[list[Entry]]) -> list[list[Entry]]:
    """Kill a writer in the middle of its work; returns what was acknowledged to it."""
    last = -1
    with contextlib.suppress(EOFError):
        while True:
            last = acknowledged.recv()
            if last == len(batches) // 2:
                assert victim.pid is not None
                os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    expect(victim.exitcode == -signal.SIGKILL, f"the victim ended with {victim.exitcode}")
    promised = batches[: last + 1]
    say(f"SIGKILL for one of them, after {sum(map(len, promised)):,} acknowledged events; the others go on")
    return promised


def check_promises(hw: headwater.Store, promised: list[list[Entry]]) -> None:
    """Every event that was acknowledged to the killed process is in the log."""
    there = Counter(seen(event.type, (event.key or b"").decode(), event.value) for event in hw.read(TOPIC))
    made = Counter(seen(*entry) for batch in promised for entry in batch)
    lost = made - there
    expect(not lost, f"{lost.total()} acknowledged events are lost")


def seen(type: str, key: str, line: dict[str, Any]) -> tuple[object, ...]:
    return type, key, line["product"], line["count"], line["at"]


def follow(url: str, expected: int) -> None:
    """Count along at the server until all events were seen."""
    with headwater.open(url) as remote, bar("followed") as update:
        for count, _ in enumerate(remote.follow(TOPIC, start="earliest", timeout=PATIENCE_S), 1):
            if count % 5_000 == 0:
                update(count, expected)
            if count == expected:
                return
    expect(False, "the server ended before all events were seen")
