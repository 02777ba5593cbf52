"""The load on a server, in a process of its own: load.c where there is a compiler, else load.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from bench.work import Work

SOURCE = Path(__file__).with_name("load.c")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
Wire = Literal["frames", "nats"]


class Client(NamedTuple):
    """What one connection sends: something to begin with, and requests of one size."""

    hello: bytes
    requests: Sequence[bytes]


class Load:
    """A program that makes load."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command

    def publish(self, wire: Wire, port: int, count: int, clients: Sequence[Client], window: int) -> float:
        """Answers per second; each client has `window` requests unanswered at a time."""
        hello, size = len(clients[0].hello), len(clients[0].requests[0])
        given = b"".join(part for client in clients for part in (client.hello, *client.requests))
        count = max(count, window * len(clients))
        return count / self._run("publish", wire, port, count, hello, len(clients), window, size, given=given)

    def deliver(self, wire: Wire, port: int, count: int, hello: bytes, ack: bytes, every: int) -> float:
        """Events per second, to one client that acknowledges every so many of them."""
        return count / self._run("deliver", wire, port, count, len(hello), every, given=hello + ack)

    def _run(self, verb: str, *arguments: object, given: bytes) -> float:
        command = [*self._command, verb, *map(str, arguments)]
        done = subprocess.run(command, check=False, input=given, capture_output=True)
        if done.returncode != 0:
            raise SystemExit(f"the load had errors: {done.stderr.decode(errors='replace')}")
        return float(done.stdout)


def load(work: Work) -> Load:
    """The best program that can be had here; says which, loudly."""
    program, compiler = work.directory / "load", shutil.which("gcc")
    if compiler is None:
        print("gcc is not installed: load is made by Python, and may be what limits", file=sys.stderr)
        return Load([sys.executable, "-m", "bench.tcp.load"])
    if not program.exists():
        subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
        print("load is made by load.c, compiled with gcc", file=sys.stderr)
    return Load([str(program)])


def processor_s(process: subprocess.Popen[bytes]) -> float:
    """Processor time that a process has taken so far."""
    told = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(told[11]) + int(told[12])) / CLOCK_TICKS
