"""Child processes for tests: forked, talking through a pipe, stopped, continued and killed at will."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headwater.consumers.file_consumers import FileLeases
from headwater.consumers.log_consumer import LogConsumer
from tests.waiting import wait_for

PATIENCE_S = 40.0  # a child that is silent for longer is stuck

_fork = multiprocessing.get_context("fork")


class Said:
    """The child's side of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send(self, value: object) -> None:
        self._pipe.send(("said", value))

    def recv(self) -> Any:
        return self._pipe.recv()


class Child:
    """A process that runs `work(said)`. What that returns is the `result`; what it sends is heard one by one."""

    def __init__(self, work: Callable[[Said], Any]) -> None:
        self._pipe, theirs = _fork.Pipe()
        self._process = _fork.Process(target=_run, args=(work, theirs, self._pipe), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is what is tested
            self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def hear(self) -> Any:
        """The next thing that the child says."""
        kind, value = self._receive()
        assert kind == "said", value
        return value

    def tell(self, value: object = None) -> None:
        self._pipe.send(value)

    def result(self) -> Any:
        """What the work returned, once it has; fails with the child's traceback."""
        kind, value = self._receive()
        self._process.join(PATIENCE_S)
        assert kind == "done", value
        assert self._process.exitcode == 0
        return value

    def wait_until_stopped(self) -> None:
        """Return when the child has stopped itself."""
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def _receive(self) -> Any:
        if not self._pipe.poll(PATIENCE_S):
            self.kill()
            raise AssertionError("the child is stuck")
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            raise AssertionError(f"the child ended with {self._process.exitcode}") from None


def _run(work: Callable[[Said], Any], pipe: Connection, others: Connection) -> None:
    others.close()
    try:
        answer = ("done", work(Said(pipe)))
    except BaseException:  # noqa: BLE001  (the parent must hear of everything)
        answer = ("failed", traceback.format_exc())
    pipe.send(answer)
    pipe.close()


def stop() -> None:
    """Stop this process, here: a signal to all of it is taken by any thread, while this one runs on."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def stop_with(consumer: LogConsumer) -> None:
    """Stop this process while none of its threads has the consumer's file locked: else nobody could take over."""
    leases = consumer._leases
    assert isinstance(leases, FileLeases)
    with leases.cursors._mutex:  # nobody takes the file's lock then; who has it lets go of it
        with leases.cursors.path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
        stop()


def stop_outside(pid: int, file: Path) -> None:
    """Stop a process that this one has started, while it does not have a file locked; the same from outside."""

    def stopped_without_the_lock() -> bool:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        with file.open() as opened, contextlib.suppress(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_for(stopped_without_the_lock)
