"""The machine that the figures are of."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.bucket.server import version as seaweed_version
from bench.peers import redis_version
from bench.tcp.nats import version as nats_version

IN_MEMORY = ("tmpfs", "ramfs")


def describe(directory: Path) -> dict[str, str]:
    """Facts by name, for the head of the table."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "CPU": f"{_cpu_model()}, {len(os.sched_getaffinity(0))} cores",
        "kernel": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "file system": file_system(directory),
        "one pwrite + fdatasync": f"{sync_seconds(directory) * 1e3:.3f} ms (median)",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "software": f"Python {platform.python_version()}, numpy {version('numpy')}, pyarrow {version('pyarrow')}, "
        f"SQLite {sqlite3.sqlite_version}, {redis_version() or 'no Redis'}, {nats_version() or 'no NATS'}, "
        f"{seaweed_version() or 'no SeaweedFS'}",
    }


def file_system(directory: Path) -> str:
    """The type of the file system that holds a directory."""
    best, found = -1, "unknown"
    path = str(directory.resolve())
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, kind, *_ = line.split(" ")
        mount = mount.replace("\\040", " ")
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= best:
            best, found = len(mount), kind
    return found


def sync_seconds(directory: Path) -> float:
    """How long a bare write and sync of 152 bytes takes at the end of a file."""
    path = directory / "sync-time"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    data = bytes(152)
    times = []
    try:
        for number in range(200):
            began = time.perf_counter()
            os.pwrite(fd, data, number * len(data))
            os.fdatasync(fd)
            times.append(time.perf_counter() - began)
    finally:
        os.close(fd)
        path.unlink()
    return statistics.median(times[20:])


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return platform.machine()
