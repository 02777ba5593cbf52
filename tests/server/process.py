"""A real server process on a port of its own, for tests."""

from __future__ import annotations

import atexit
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

READY_S = 30.0

http = httpx.Client(verify=False, timeout=30)  # one for all: a new one reads the certificates of the world first
atexit.register(http.close)
_URL = re.compile(rb"https?://\S+")
_TCP_URL = re.compile(rb"headwaters?://\S+")


class ServerProcess:
    """A running `headwater serve`. `url` is where it listens, `tcp_url` where it does without HTTP."""

    def __init__(self, path: Path, *options: str, port: int = 0, tcp_port: int = 0) -> None:
        self.path = path
        self.options = options
        where = ("--http", f"127.0.0.1:{port}", "--tcp", f"127.0.0.1:{tcp_port}")
        command = [sys.executable, "-m", "headwater.cli", "serve", str(path), *where, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.output = b""
        self._asked = False
        self.url = self._wait_for_url()
        self.port = int(self.url.rpartition(":")[2])
        tcp = _TCP_URL.search(self.output)
        self.tcp_url = tcp[0].decode() if tcp is not None else ""
        self.tcp_port = int(self.tcp_url.rpartition(":")[2]) if tcp is not None else 0

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """As a crash does it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def ask_to_stop(self) -> None:
        """Ask it to end, once; it waits a little for clients that are connected."""
        if not self._asked and self.process.poll() is None:
            self._asked = True
            self.process.send_signal(signal.SIGTERM)

    def stop(self, timeout_s: float = 20.0) -> int:
        """Ask it to end, and return its exit code."""
        self.ask_to_stop()
        try:
            output, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        except ValueError:  # it was waited for before
            output = b""
        self.output += output or b""
        return self.process.returncode

    def _wait_for_url(self) -> str:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            if select.select([fd], [], [], 0.5)[0]:
                piece = os.read(fd, 65_536)
                self.output += piece
                found = _URL.search(self.output)
                if found is not None and self.output.endswith(b"\n"):
                    return found[0].decode()
                if not piece:
                    break
        self.process.kill()
        self.process.communicate()
        raise AssertionError(f"the server did not start: {self.output.decode(errors='replace')}")


@contextmanager
def served(path: Path, *options: str) -> Iterator[ServerProcess]:
    """A server for the time of a block, which must end cleanly."""
    server = ServerProcess(path, *options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            assert server.stop() == 0, server.output.decode(errors="replace")
