"""Runs a server, and ends it when a given process ends: `python keeper.py PID DIRECTORY COMMAND…`.

A test run may be interrupted, killed or crash; what it started must not stay behind. This process waits for the end of
that one, of the server, or for SIGTERM, whichever comes first. It removes the server's directory if nobody else is left
to do so. If it is killed itself, the system ends the server.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from types import FrameType

PR_SET_PDEATHSIG = 1
GRACE_S = 5.0
POLL_S = 0.5


def main(owner: int, directory: str, command: list[str]) -> int:
    over = threading.Event()
    orphaned = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        over.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)  # noqa: PLW1509  # no threads yet

    def wait_for_owner() -> None:
        _wait_for_end(owner)
        orphaned.set()
        over.set()

    def wait_for_server() -> None:
        server.wait()
        over.set()

    for wait in (wait_for_owner, wait_for_server):
        threading.Thread(target=wait, daemon=True).start()
    over.wait()
    status = _end(server)
    if orphaned.is_set():
        shutil.rmtree(directory, ignore_errors=True)
    return status


def _end(server: subprocess.Popen[bytes]) -> int:
    server.terminate()
    try:
        return server.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        server.kill()
        return server.wait()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for_end(owner: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "pidfd_open"):
            select.select([os.pidfd_open(owner)], [], [])
            return
        while True:
            os.kill(owner, 0)
            threading.Event().wait(POLL_S)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
