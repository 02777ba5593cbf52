"""Real programs that are stopped and killed while their bucket is compacted and collected under them.

In every run: offsets are dense, nothing acknowledged is missing or elsewhere, nothing is there twice.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import headwater
from headwater.limits import Limits
from headwater.store import Store
from tests.bucket.test_writers import check
from tests.bucket.writer import ROOT, Writer
from tests.waiting import wait_for

LIMITS = Limits(knowledge_s=0.1, collect_s=0.3, compact_objects=0)


def opened(url: str, limits: Limits = LIMITS) -> Store:
    hw = headwater.open(url, limits=limits)
    assert isinstance(hw, Store)
    return hw


def objects(hw: Store) -> int:
    return sum("/events/" in each.key for each in hw._store.list("topics/"))


def keep(url: str, seconds: float) -> None:
    """Compact and collect over and over, to be killed."""
    with opened(url, msgspec.structs.replace(LIMITS, compact_objects=2)) as hw:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        clock = hw._clock
        end_s = clock.monotonic() + seconds
        while clock.monotonic() < end_s:
            hw.maintain()


@contextlib.contextmanager
def keeping(url: str) -> Iterator[subprocess.Popen[str]]:
    program = "import sys; from tests.bucket.test_upkeep_processes import keep; keep(sys.argv[1], 60.0)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    command = [sys.executable, "-c", program, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def collect_all(hw: Store) -> None:
    """Compact everything, and wait until all objects of events were collected."""
    hw.seal("t")

    def gone() -> bool:
        hw.maintain()
        return objects(hw) == 0

    wait_for(gone)


def test_a_writer_that_was_stopped_while_all_was_compacted_and_collected_goes_on_at_the_end(bucket_url: str) -> None:
    stopped = Writer(bucket_url, "t", "stopped", 60, LIMITS)
    stopped.ready()
    with opened(bucket_url) as hw:
        for number in range(2):
            stopped.hear(10)
            stopped.stop()
            for each in range(5):
                hw.append("t", f"other {number * 5 + each}".encode())
            collect_all(hw)
            stopped.go_on()
        stopped.finish()
        assert not hw.check().damaged
    check(bucket_url, [stopped], all_of=70)


def kill_keepers(url: str, rounds: int, seed: int) -> list[Writer]:
    """Writers append, while those who compact and collect are killed anywhere, one after the other."""
    choose = random.Random(seed)
    writers = [Writer(url, "t", f"w{number}", 100_000, LIMITS) for number in range(2)]
    for writer in writers:
        writer.ready()
        writer.hear(10)
    for _ in range(rounds):
        with keeping(url) as process:
            for _ in range(choose.randint(1, 4)):
                for writer in writers:
                    writer.hear(choose.randint(1, 5))
            process.send_signal(signal.SIGKILL)
    for writer in writers:
        writer.kill()
    return writers


def test_compactors_and_collectors_that_are_killed_lose_and_repeat_nothing(bucket_url: str) -> None:
    writers = kill_keepers(bucket_url, 2, 1)
    check(bucket_url, writers)
    with opened(bucket_url) as hw:
        assert not hw.check().damaged
        collect_all(hw)
        for _ in range(3):
            hw.maintain()
        assert not hw.check().damaged
    check(bucket_url, writers)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(5))
def test_many_compactors_that_are_killed_lose_and_repeat_nothing(tmp_path: Path, seed: int) -> None:
    url = f"objects://{tmp_path}/bucket"
    check(url, kill_keepers(url, 15, seed))
