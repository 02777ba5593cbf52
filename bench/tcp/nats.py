"""NATS JetStream, to compare with: its server, and as much of its protocol as is needed, by hand.

https://docs.nats.io/reference/reference-protocols/nats-protocol and .../nats_api_reference
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.http.servers import HOST, PATIENCE_S, Server, free_port, wait_for
from bench.peers import running
from bench.tcp.generator import Client

STREAM, SUBJECT = "EVENTS", "events"
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"protocol":1}\r\n'
UNACKNOWLEDGED_MAX = 1000  # as ours


@contextmanager
def nats_server(directory: Path, *, always: bool) -> Iterator[Server | None]:
    """NATS with a stream in files; synced before each answer if `always`, else as by default, every two minutes.

    None, loudly, where it is not installed, or is too old to sync always.
    """
    program = shutil.which("nats-server")
    if program is None:
        print("nats-server is not installed: its figures are left out", file=sys.stderr)
        yield None
        return
    directory.mkdir()
    port = free_port()
    page = directory / "nats.conf"
    sync = ", sync_interval: always" if always else ""
    page.write_text(f'listen: "{HOST}:{port}"\njetstream {{ store_dir: "{directory.resolve()}"{sync} }}\n')
    if subprocess.run([program, "-c", str(page), "-t"], check=False, capture_output=True).returncode != 0:
        print("nats-server is too old to sync always: those figures are left out", file=sys.stderr)
        yield None
        return
    with running([program, "-c", str(page), "-l", str(directory / "log")]) as process:
        wait_for(process, port)
        server = Server(process, port)
        ask(server, f"STREAM.CREATE.{STREAM}", name=STREAM, subjects=[SUBJECT], storage="file", retention="limits")
        yield server


def version() -> str:
    """As in `NATS 2.10.26`; empty where it is not installed."""
    program = shutil.which("nats-server")
    if program is None:
        return ""
    shown = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    return f"NATS {shown.split()[-1].lstrip('v')}"


def ask(server: Server, verb: str, **body: object) -> dict[str, Any]:
    """The answer to a request of JetStream's interface."""
    asked = json.dumps(body).encode()
    with socket.create_connection((HOST, server.port), PATIENCE_S) as connection, connection.makefile("rb") as lines:
        head = f"SUB answer 1\r\nPUB $JS.API.{verb} answer {len(asked)}\r\n"
        connection.sendall(CONNECT + head.encode() + asked + b"\r\n")
        for line in lines:
            if line.startswith(b"MSG "):
                told: dict[str, Any] = json.loads(lines.read(int(line.split()[-1])))
                if "error" in told:
                    raise SystemExit(f"NATS, {verb}: {told['error']}")
                return told
    raise SystemExit(f"NATS, {verb}: no answer")


def publishers(events: Sequence[bytes], crowd: int) -> list[Client]:
    """Clients that publish these in turn, each with an inbox of its own for the acknowledgements of the server."""
    return [
        Client(
            CONNECT + b"SUB inbox.%03d 1\r\nPING\r\n" % number,
            [b"PUB %b inbox.%03d %d\r\n%b\r\n" % (SUBJECT.encode(), number, len(data), data) for data in events],
        )
        for number in range(crowd)
    ]


def subscribing(server: Server, name: str) -> bytes:
    """What has all events of the stream sent, by a new consumer, where one acknowledgement is for all before it."""
    consumer = {
        "durable_name": name,
        "deliver_subject": f"deliver.{name}",
        "deliver_policy": "all",
        "ack_policy": "all",
        "max_ack_pending": UNACKNOWLEDGED_MAX,
    }
    ask(server, f"CONSUMER.DURABLE.CREATE.{STREAM}.{name}", stream_name=STREAM, config=consumer)
    return CONNECT + f"SUB deliver.{name} 1\r\n".encode()


def missing(always: bool) -> str:
    """Why there are no figures of it."""
    return "needs NATS 2.10" if always and shutil.which("nats-server") else "not installed"
