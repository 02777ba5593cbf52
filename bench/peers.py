"""What Headwater is measured against: a bare file, SQLite and Redis Streams, each as its own users would use it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import redis

MISSING_REDIS = "not installed"


class BareFile:
    """What no log can beat: the bytes at the end of a file, and a sync."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._position = 0

    def append(self, count: int, data: bytes) -> None:
        """Append the same bytes `count` times, each synced before the next."""
        fd, position, size = self._fd, self._position, len(data)
        for _ in range(count):
            os.pwrite(fd, data, position)
            os.fdatasync(fd)
            position += size
        self._position = position

    def close(self) -> None:
        os.close(self._fd)


class Sqlite:
    """A table of events in WAL mode, with the offset as its key."""

    def __init__(self, path: Path, synchronous: Literal["FULL", "OFF"]) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute(f"PRAGMA synchronous={synchronous}")
        self._connection.execute("CREATE TABLE events (offset INTEGER PRIMARY KEY, data BLOB)")

    def append(self, events: Sequence[bytes]) -> None:
        """One INSERT, and so one transaction, for each event."""
        execute = self._connection.execute
        for data in events:
            execute("INSERT INTO events (data) VALUES (?)", (data,))

    def append_many(self, events: Sequence[bytes]) -> None:
        """One transaction and one executemany."""
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT INTO events (data) VALUES (?)", [(data,) for data in events])
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


class RedisStreams:
    """One client of a Redis server on a unix socket, with its append-only file in the benchmark's directory."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def append(self, events: Sequence[bytes]) -> None:
        """One XADD at a time."""
        execute: Callable[..., object] = self._client.execute_command
        for data in events:
            execute("XADD", "events", "*", "data", data)

    def append_many(self, events: Sequence[bytes]) -> None:
        """One pipeline of XADDs, without a transaction."""
        pipeline = self._client.pipeline(transaction=False)
        queue: Callable[..., object] = pipeline.execute_command
        for data in events:
            queue("XADD", "events", "*", "data", data)
        pipeline.execute()


@contextlib.contextmanager
def redis_streams(directory: Path, appendfsync: Literal["always", "no"]) -> Iterator[RedisStreams | None]:
    """A Redis server for as long as the block lasts; None, loudly, where none is installed."""
    program = shutil.which("redis-server")
    if program is None:
        print("redis-server is not installed: its figures are left out", file=sys.stderr)
        yield None
        return
    home = directory / f"redis-{appendfsync}"
    home.mkdir()
    options = {
        "port": "0",
        "unixsocket": "socket",
        "save": "",
        "appendonly": "yes",
        "appendfsync": appendfsync,
        "auto-aof-rewrite-percentage": "0",  # no rewriting in the background, in its favour
        "daemonize": "no",
        "logfile": "log",
    }
    command = [program, *(part for name, value in options.items() for part in (f"--{name}", value))]
    # The path of a socket may have 107 bytes: the one relative to the working directory is short.
    with running(command, cwd=home) as server:
        client = redis.Redis(unix_socket_path=os.path.relpath(home / "socket"))
        try:
            _wait_for(client, server)
            yield RedisStreams(client)
        finally:
            client.close()


def redis_version() -> str:
    """As in `Redis 7.0.15`; empty where it is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        return ""
    shown = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    return next((f"Redis {word[2:]}" for word in shown.split() if word.startswith("v=")), "Redis")


@contextlib.contextmanager
def running(
    command: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A child process that ends with the block."""
    process = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _wait_for(client: redis.Redis, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            client.ping()
        except redis.ConnectionError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
