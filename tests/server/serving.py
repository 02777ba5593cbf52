"""A real server in a process of its own, and raw connections to it."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

PROGRAM = """
import json, sys
from pathlib import Path
import msgspec
from headwater.server.serve import ListenAddress, serve
from headwater.server.settings import ServerSettings
options = json.loads(sys.argv[2])
settings = msgspec.convert(options, ServerSettings)
here = ListenAddress("127.0.0.1", 0)
serve(Path(sys.argv[1]), here, settings, tcp=here, ready=lambda urls: print(urls, flush=True))
"""
WAIT_S = 20.0


class Answer(NamedTuple):
    """One answer of a raw connection."""

    status: int
    headers: dict[str, str]
    body: bytes


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], urls: str, path: Path) -> None:
        self.process = process
        url, self.tcp_url = urls.split()
        self.url = url
        self.path = path
        self.host, _, port = url.removeprefix("http://").rpartition(":")
        self.port = int(port)
        self.http = httpx.Client(base_url=url, timeout=WAIT_S)

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=WAIT_S)

    def raw(self, *sent: bytes, half_close: bool = False) -> list[Answer]:
        """What comes back for these bytes until the server closes the connection, which it must."""
        with self.connect() as connection:
            for piece in sent:
                with contextlib.suppress(ConnectionError):  # it may have been refused before all of it was sent
                    connection.sendall(piece)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            return answers(until_closed(connection))

    def anonymous_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) * 1024


def until_closed(connection: socket.socket) -> bytes:
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            received += piece
    return bytes(received)


def answers(received: bytes) -> list[Answer]:
    """The answers in what was received, each checked to be framed as HTTP says."""
    found = []
    while received:
        head, end, received = received.partition(b"\r\n\r\n")
        assert end, head
        line, *lines = head.decode("latin-1").split("\r\n")
        version, status, _ = line.split(" ", 2)
        assert version == "HTTP/1.1"
        headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in lines)}
        if status == "100":
            continue
        if headers.get("transfer-encoding") == "chunked":
            body, received = _chunks(received)
        else:
            size = int(headers.get("content-length", "0"))
            assert len(received) >= size
            body, received = received[:size], received[size:]
        found.append(Answer(int(status), headers, body))
    return found


def _chunks(received: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, received = received.partition(b"\r\n")
        length = int(size, 16)
        body, after, received = body + received[:length], received[length : length + 2], received[length + 2 :]
        assert after == b"\r\n"
        if not length:
            return body, received


@contextlib.contextmanager
def serving(path: Path, **settings: Any) -> Iterator[Server]:
    """Serve a directory. `settings` are those of `Settings`, as JSON has them."""
    command = [sys.executable, "-c", PROGRAM, str(path), json.dumps(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            urls = process.stdout.readline().strip()
            assert urls, "the server did not start"
            server = Server(process, urls, path)
            with server.http:
                yield server
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
