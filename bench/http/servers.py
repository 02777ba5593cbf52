"""The servers that are measured, each a process of its own on loopback: ours, ours under uvicorn, and Redis."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from bench.peers import running

HOST = "127.0.0.1"
PATIENCE_S = 30.0
_URLS = re.compile(rb"http://\S+:(\d+)\s+and\s+headwater://\S+:(\d+)")


class Server:
    """A server that accepts connections; ours has a second port, for frames."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, tcp_port: int = 0) -> None:
        self.process = process
        self.port = port
        self.tcp_port = tcp_port

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def anonymous(self) -> int:
        """Bytes of anonymous memory (RssAnon)."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise SystemExit("the server has ended, or its memory cannot be seen")

    def ask(self, method: str, path: str, body: bytes = b"", media: str = "application/octet-stream") -> bytes:
        """The body of the answer to one request."""
        lines = f"{method} {path} HTTP/1.0", "host: localhost", f"content-length: {len(body)}", f"content-type: {media}"
        with socket.create_connection((HOST, self.port), PATIENCE_S) as connection:
            connection.sendall("\r\n".join((*lines, "", "")).encode() + body)
            answer = b"".join(iter(lambda: connection.recv(65_536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        if b" 200 " not in head[:16]:
            raise SystemExit(f"{method} {path}: {answer[:300].decode(errors='replace')}")
        return body


@contextlib.contextmanager
def headwater_server(directory: Path) -> Iterator[Server]:
    """`headwater serve`, as its users start it."""
    command = [
        sys.executable,
        "-m",
        "headwater.cli",
        "serve",
        str(directory),
        "--http",
        f"{HOST}:0",
        "--tcp",
        f"{HOST}:0",
    ]
    with running(command) as process:
        assert process.stdout is not None
        said = b""
        while (found := _URLS.search(said)) is None:
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"the server did not start: {said.decode(errors='replace')}")
            said += line
        yield Server(process, int(found[1]), int(found[2]))


@contextlib.contextmanager
def uvicorn_server(directory: Path) -> Iterator[Server]:
    """The same application as plain ASGI, under uvicorn with its quickest settings."""
    port = free_port()
    options = ["--loop", "uvloop", "--http", "httptools", "--log-level", "warning", "--no-access-log"]
    command = [sys.executable, "-m", "uvicorn", "bench.http.asgi:app", "--port", str(port), *options]
    with running(command, env={**os.environ, "HEADWATER_BENCH": str(directory.resolve())}) as process:
        wait_for(process, port)
        yield Server(process, port)


@contextlib.contextmanager
def redis_server(directory: Path, appendfsync: Literal["always", "everysec"]) -> Iterator[Server | None]:
    """Redis with its append-only file in the directory; None, loudly, where it is not installed."""
    program = shutil.which("redis-server")
    if program is None or shutil.which("redis-benchmark") is None:
        print("redis-server is not installed: its figures are left out", file=sys.stderr)
        yield None
        return
    directory.mkdir()
    port = free_port()
    options = {
        "port": str(port),
        "bind": HOST,
        "save": "",
        "appendonly": "yes",
        "appendfsync": appendfsync,
        "auto-aof-rewrite-percentage": "0",  # no rewriting in the background, in its favour
        "daemonize": "no",
        "logfile": "log",
    }
    command = [program, *(part for name, value in options.items() for part in (f"--{name}", value))]
    with running(command, cwd=directory) as process:
        wait_for(process, port)
        yield Server(process, port)


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until a server accepts connections."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection((HOST, port), 1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
