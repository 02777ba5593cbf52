"""Load on a server, from programs that others wrote and tuned: wrk for HTTP, redis-benchmark for Redis."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.http.servers import Server
from bench.work import EVENT_BYTES

CONNECTIONS = 64
MISSING_WRK = "wrk is not installed (apt install wrk): HTTP appends are not measured"

PRODUCERS = Path(__file__).parent / "producers.lua"
"""The script of wrk that appends as the Python client does, with key, producer and JSON."""

_SCRIPT = """
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["Content-Type"] = "{media}"
file:close()
"""
_RATE = re.compile(r"Requests/sec:\s*([\d.]+)")


def has_wrk() -> bool:
    """Return whether wrk is installed; prints a notice if not."""
    if shutil.which("wrk") is None:
        print(MISSING_WRK, file=sys.stderr)
        return False
    return True


def wrk_script(directory: Path, name: str, body: bytes, media: str) -> Path:
    """Write and return a script of wrk that sends the same body again and again."""
    content = directory / f"{name}.body"
    content.write_bytes(body)
    script = directory / f"{name}.lua"
    script.write_text(_SCRIPT.format(body=content.resolve(), media=media), encoding="utf-8")
    return script


def wrk(server: Server, path: str, script: Path, seconds: int, connections: int = CONNECTIONS) -> float:
    """Return the requests per second that were answered with 200."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), f"{server.url}{path}"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = _RATE.search(shown)
    if found is None or "Non-2xx" in shown or "Socket errors" in shown:
        raise SystemExit(f"wrk had errors:\n{shown}")
    return float(found[1])


def xadd(server: Server, count: int, pipeline: int = 1) -> float:
    """Return the XADDs per second of redis-benchmark, with as many connections and as large values."""
    value = "x" * EVENT_BYTES
    options = ["-p", str(server.port), "-c", str(CONNECTIONS), "-n", str(count), "-P", str(pipeline), "--csv"]
    command = ["redis-benchmark", *options, "XADD", "events", "*", "data", value]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(shown.strip().splitlines()[-1].split(",")[1].strip('"'))
