"""A program that appends numbered events to a bucket and prints each when it is acknowledged: to be stopped and killed.

`python -m tests.bucket.writer URL TOPIC NAME COUNT LIMITS`, with the limits as JSON.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

import headwater
from headwater.event import Ref
from headwater.limits import DEFAULTS, Limits
from headwater.store import Store

ROOT = Path(__file__).resolve().parent.parent.parent


def main(url: str, topic: str, name: str, count: int, limits: Limits = DEFAULTS) -> None:
    hw = headwater.open(url, limits=limits)
    assert isinstance(hw, Store)
    choose = random.Random(name)
    tell("ready")
    with hw:
        number = 0
        while number < count:
            some = [f"{name} {each}".encode() for each in range(number, min(count, number + choose.randint(1, 4)))]
            number += len(some)
            for ref, data in zip(_append(hw, topic, some, choose.randint(0, 2)), some, strict=True):
                tell(f"{ref.offset} {data.decode()}")


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _append(hw: Store, topic: str, some: list[bytes], way: int) -> list[Ref]:
    if way == 0:
        return [hw.append(topic, data) for data in some]
    if way == 1:
        return list(hw.append_many(topic, some))
    pending = [hw.append_later(topic, data) for data in some]
    return [each.result() for each in pending]


class Writer:
    """Such a program, running."""

    def __init__(self, url: str, topic: str, name: str, count: int, limits: Limits = DEFAULTS) -> None:
        told = msgspec.json.encode(limits).decode()
        command = [sys.executable, "-m", "tests.bucket.writer", url, topic, name, str(count), told]
        path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        environment = os.environ | {"PYTHONPATH": path}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        self.acknowledged: dict[str, int] = {}

    def hear(self, events: int) -> None:
        """Read until it has told of so many more events, or has ended."""
        for line in self._lines(events):
            offset, _, data = line.partition(" ")
            self.acknowledged[data] = int(offset)

    def ready(self) -> None:
        """Wait until it has opened the bucket."""
        assert self._output.readline() == "ready\n"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, and hear what it had told before."""
        self._process.kill()
        self.finish(-signal.SIGKILL)

    def finish(self, code: int = 0) -> None:
        """Hear all that it tells, until it ends."""
        self.hear(sys.maxsize)
        self._output.close()
        assert self._process.wait() == code

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _lines(self, count: int) -> Iterator[str]:
        for _ in range(count):
            line = self._output.readline()
            if not line:
                return
            if line.endswith("\n") and line != "ready\n":  # else it was killed in the midst of a line
                yield line.rstrip("\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), msgspec.json.decode(sys.argv[5], type=Limits))
