"""A disk that fails in the midst of transactions and of producers' requests.

Each operation fails once. A transaction that failed is nowhere; one that is committed, and which a log could not take,
says so, and whoever opens the directory next finds it everywhere. A request that failed may be asked again.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import HeadwaterError, Unavailable
from tests.crash.expectation import Failed, Settled, Unfinished
from tests.crash.faulty import Fault, FaultyDisk
from tests.crash.recording import Op, SteadyClock
from tests.crash.test_faults import KINDS, begin, check_crashes
from tests.crash.workload import Driver, contents_of, events_of, open_engine

LOGS = [("x", 0), ("x", 1), ("y", 0)]

STEPS: list[Callable[[Driver], None]] = [
    lambda driver: driver.transact([("x", 0, 40, "bytes"), ("y", 0, 50, "bytes")]),
    lambda driver: driver.ask("x", ("p", 0, 1), [30], "os"),
    lambda driver: driver.transact([("x", 1, 40, "bytes"), ("x", 0, 60, "bytes"), ("x", 0, 60, "text")], writer=1),
    lambda driver: driver.ask("x", ("p", 0, 2), [30, 31], writer=1),
    lambda driver: driver.transact([("y", 0, 400, "bytes"), ("x", 0, 500, "bytes"), ("x", 1, 20, "bytes")]),
    lambda driver: driver.ask("x", ("p", 0, 3), [400]),  # rolls, with a snapshot
    lambda driver: driver.transact([("y", 0, 590, "bytes"), ("x", 0, 30, "bytes")]),  # rolls; the journal begins anew
    lambda driver: driver.transact([("y", 0, 20, "bytes"), ("y", 0, 30, "bytes")]),  # one batch
]


def run(driver: Driver) -> HeadwaterError | None:
    """Do the steps up to the first that fails; returns how."""
    for step in STEPS:
        try:
            step(driver)
        except HeadwaterError as error:
            driver.disk.mark(Unfinished() if error.code == "transaction_unfinished" else Failed("append"))
            return error
    return None


def check_before_it_is_opened_again(driver: Driver, unfinished: bool) -> None:
    """The engines that were there see what was acknowledged, and of what failed nothing."""
    for topic, partition in LOGS:
        log = driver.expected().topics[topic].logs[partition]
        required = log.events() - (len(log.groups[-1].data) if unfinished and log.groups else 0)
        for engine in driver.engines:
            log.check(contents_of(engine, topic, partition), required)


def go_on(driver: Driver, where: str) -> None:
    """Open the directory again, and do all that there is with all engines."""
    driver.engines.append(open_engine(driver.root / "data", driver.disk, SteadyClock()))
    for writer in (2, 1, 0):
        for topic in ("x", "y"):
            driver.read(topic, writer=writer)
        driver.append("x", 31, "os", writer=writer)
        driver.transact([("y", 0, 32, "bytes"), ("x", 0, 33, "bytes"), ("x", 1, 34, "text")], writer=writer)
        driver.ask("x", ("p", 0, 10 + 3 - writer), [35], writer=writer)
    driver.retry("x", ("p", 0, 11), writer=0)
    check_crashes(driver, where)


@pytest.mark.parametrize("truncate", [True, False], ids=["cut off", "not cut off"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_leaves_all_of_a_transaction_or_nothing(kind: str, truncate: bool, arena: Path) -> None:
    fail(kind, truncate, range(0 if truncate else 2, 1000, 5), arena)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("truncate", [True, False], ids=["cut off", "not cut off"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_failure_leaves_all_of_a_transaction_or_nothing(kind: str, truncate: bool, arena: Path) -> None:
    assert fail(kind, truncate, range(1000), arena) or kind not in ("write", "short write")


def fail(kind: str, truncate: bool, numbers: Iterable[int], arena: Path) -> int:
    """Let these operations fail, each in a directory of its own; returns how many transactions were unfinished."""
    unfinished = 0
    for number in numbers:
        driver = begin(arena, None)
        driver.create("x", 2)
        driver.create("y")
        assert isinstance(driver.disk, FaultyDisk)
        driver.disk.set(Fault(kind, number, KINDS[kind], truncate))
        error = run(driver)
        if not driver.disk.failed:
            assert error is None
            break
        where = f"{driver.disk.fault}"
        told = error is not None and error.code == "transaction_unfinished"
        if error is None:  # it was in a checkpoint, of a log that no later step needs: that one is frozen
            frozen = [
                driver.engines[0].directory._topics.get(topic).logs[partition].state().state
                for topic, partition in LOGS
            ]
            assert any(frozen), where
        else:
            assert isinstance(error, Unavailable), f"{where}: {error!r}"
            assert told or (error.code == "disk_full") == (KINDS[kind] == errno.ENOSPC), f"{where}: {error.code}"
        unfinished += told
        driver.disk.set(None)
        check_before_it_is_opened_again(driver, told)
        go_on(driver, where)
        driver.close()
        shutil.rmtree(driver.root)
    return unfinished


class DiskWithoutJournals(FaultyDisk):
    """Fails all that is asked of a journal, once it is told to: `kinds` are "write" and "sync"."""

    def __init__(self, root: Path, files: dict[int, int] | None = None) -> None:
        super().__init__(root, files)
        self.kinds: set[str] = set()
        self._journals: set[int] = set()

    def create(self, path: Path) -> int:
        fd = super().create(path)
        if path.name.endswith(".journal"):
            self._journals.add(self._open[fd])
        return fd

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        if self._open[fd] in self._journals:
            if "write" in self.kinds:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if "second write" in self.kinds:
                self.kinds.add("write")
        return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        if self._open[fd] in self._journals and "sync" in self.kinds:
            self.trace.append(Op("failed sync", file=self._open[fd]))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)


@pytest.mark.parametrize("kinds", [{"write"}, {"sync"}, {"sync", "second write"}], ids=["write", "sync", "void"])
def test_a_transaction_in_doubt_freezes_its_logs_until_they_are_opened_again(kinds: set[str], arena: Path) -> None:
    root = arena / "faulty"
    root.mkdir()
    disk = DiskWithoutJournals(root)
    driver = Driver(root, disk, SteadyClock(), writers=2)
    driver.create("x", 2)
    driver.create("y")
    driver.transact([("x", 0, 40, "bytes"), ("y", 0, 50, "bytes")])
    disk.kinds = set(kinds)
    with pytest.raises(Unavailable):
        driver.transact([("x", 0, 41, "bytes"), ("y", 0, 51, "bytes"), ("x", 1, 30, "bytes")])
    disk.kinds = set()
    for topic, partition in LOGS:
        with pytest.raises(Unavailable, match="frozen"):
            driver.engines[0].append(topic, b"refused", partition=partition)
    driver.engines.append(open_engine(root / "data", disk, SteadyClock()))
    ends = {at: len(events_of(driver.engines[2], *at)) for at in LOGS}
    assert ends in ({("x", 0): 1, ("x", 1): 0, ("y", 0): 1}, {("x", 0): 2, ("x", 1): 1, ("y", 0): 2})
    assert (ends["x", 1] == 1) == ("second write" in kinds)  # a whole entry, and nobody could make it void
    for (topic, partition), end in ends.items():
        driver.engines[2].sync(topic)
        disk.mark(Settled(topic, partition, end))
    go_on(driver, "in doubt")
    driver.close()
