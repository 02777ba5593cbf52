"""A full disk refuses appends, and nothing else: when there is space again, the log goes on by itself."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.disk.disk import Disk
from headwater.errors import Unavailable
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from tests.log.conformance import datas
from tests.log.unsynced import UnsyncedDisk, open_unsynced
from tests.opened import join
from tests.server.process import http, served
from tests.waiting import wait_for

LIMITS = Limits(segment_bytes=3000)


class FullDisk(UnsyncedDisk):
    """Has no space for what makes a file longer, once it has let `left` operations through."""

    def __init__(self) -> None:
        self.left = -1  # it never is full

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        if position + len(data) > os.fstat(fd).st_size:
            self._take()
        return os.pwrite(fd, data, position)

    def create(self, path: Path) -> int:
        self._take()
        return super().create(path)

    def reserve(self, fd: int, position: int, end: int) -> None:
        if self.left:
            super().reserve(fd, position, end)

    def _take(self) -> None:
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= self.left > 0


def works(hw: Store, sizes: Iterator[int]) -> dict[str, Callable[[], Any]]:
    def transact() -> None:
        with hw.transaction() as tx:
            tx.append("t", b"x" * next(sizes))
            tx.append("u", b"y" * next(sizes))

    def consume() -> None:
        with join(hw, f"c{next(sizes)}", "t") as consumer:
            for event in consumer.take(1, 1 << 20, 0.0):
                consumer.ack(event)

    return {
        "append": lambda: hw.append("t", b"z" * next(sizes)),
        "os": lambda: hw.append("t", b"z" * next(sizes), durability="os"),
        "producer": lambda: hw.append("t", b"p" * next(sizes), producer=("p", 1, next(sizes))),
        "many": lambda: hw.append_many("t", [b"m" * next(sizes)] * 3),
        "huge": lambda: hw.append("t", b"h" * 50_000),
        "transaction": transact,
        "consumer": consume,
        "seal": lambda: hw.seal("t"),
        "create": lambda: hw.create(f"new{next(sizes)}"),
    }


def codes_of(do: Callable[[], Any]) -> list[str]:
    """How a call was refused: nothing if it was not."""
    try:
        do()
    except Unavailable as error:
        return [error.code]
    return []


@pytest.mark.parametrize(
    "kind", ["append", "os", "producer", "many", "huge", "transaction", "consumer", "seal", "create"]
)
def test_whatever_a_full_disk_refuses_works_again_when_there_is_space(tmp_path: Path, kind: str) -> None:
    """The disk is full after each number of operations in turn: of a write, a roll, a snapshot, a journal, an index."""
    disk = FullDisk()
    limits = Limits(segment_bytes=3000, blob_bytes_min=20_000, blob_bytes_in_memory=20_000)
    with (
        open_directory(tmp_path / "data", disk=disk, limits=limits) as hw,
        open_unsynced(tmp_path / "data", limits=limits) as other,
    ):
        hw.append("u", b"first")
        codes: Counter[str] = Counter()
        acknowledged = []
        sizes = iter(range(300, 100_000))
        do = works(hw, sizes)[kind]
        for left in range(40):
            acknowledged.append(b"%d" % left)
            hw.append("t", acknowledged[-1], producer=("q", 1, left + 1))
            disk.left = left % 4
            codes.update(codes_of(do))
            disk.left = -1
            do()
            acknowledged.append(b"other %d" % left)
            other.append("t", acknowledged[-1])
            acknowledged.append(b"own %d" % left)
            hw.append("t", acknowledged[-1])
        assert codes["disk_full"] or kind == "seal"
        assert set(codes) <= {"disk_full", "transaction_unfinished"}, codes
        in_u = [data for data in datas(hw.read("u"))[1:] if (data or b"").startswith(b"y")]
        assert len(in_u) == sum((data or b"").startswith(b"x") for data in datas(hw.read("t")))
        events = list(hw.read("t"))
        assert [event.offset for event in events] == list(range(len(events)))
        assert [data for data in datas(iter(events)) if data in set(acknowledged)] == acknowledged
        assert not hw.directory.frozen()
        assert not hw.check().damaged
    with headwater.open(tmp_path / "data") as again:
        assert not again.check().damaged


def test_a_frozen_log_is_told_once_in_the_log_and_once_that_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    with open_directory(tmp_path / "data", disk=disk) as hw, caplog.at_level(logging.WARNING, "headwater"):
        hw.append("t", b"a" * 20_000, durability="os")
        disk.left = 0
        for _ in range(3):
            with pytest.raises(Unavailable) as caught:
                hw.append("t", b"b" * 100_000)
            assert caught.value.code == "disk_full"
        assert hw.directory.frozen() == [("t", 0, "frozen: a write failed")]
        assert datas(hw.read("t")) == [b"a" * 20_000]
        disk.left = -1
        hw.append("t", b"c" * 100_000)
        hw.append("t", b"d")
        assert hw.directory.frozen() == []
    failed, back = (record.getMessage() for record in caplog.records)
    assert failed.startswith("topic 't', partition 0: a write failed: No space left on device")
    assert back == "topic 't', partition 0 is no longer frozen and accepts appends"


class SyncFailure(Disk):
    """A disk whose syncs fail while `failing`."""

    failing = False

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        if self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fsync(fd)

    def write_synced(self, fd: int, data: bytes, position: int) -> None:
        self.write(fd, data, position)
        self.fdatasync(fd)


def test_a_log_frozen_by_a_failed_sync_is_thawed_as_if_it_were_opened_again(tmp_path: Path) -> None:
    disk = SyncFailure()
    with open_directory(tmp_path / "data", disk=disk) as hw:
        hw.append("t", b"before")
        disk.failing = True
        with pytest.raises(Unavailable):
            hw.append("t", b"refused")
        hw.directory.thaw()  # the disk fails still
        assert hw.directory.frozen() == [("t", 0, "frozen: a sync failed")]
        disk.failing = False
        with pytest.raises(Unavailable, match="frozen"):
            hw.append("t", b"refused")
        hw.directory.thaw()
        assert hw.directory.frozen() == []
        assert hw.append("t", b"after").offset == 1
        assert datas(hw.read("t")) == [b"before", b"after"]


@pytest.mark.parametrize("thaw", [False, True])
def test_a_look_for_frozen_logs_hides_nothing_from_the_writer(tmp_path: Path, thaw: bool) -> None:
    """What another process appended must be seen by the next append, whoever has looked at the tail meanwhile."""
    with open_unsynced(tmp_path / "data") as hw, open_unsynced(tmp_path / "data") as other:
        hw.append("t", b"0")
        other.append("t", b"1")
        assert hw.directory.frozen() == []
        if thaw:
            hw.directory._topics.get("t").logs[0].thaw()  # another process was first
        assert hw.append("t", b"2").offset == 2
        other.append("t", b"3")
        assert hw.directory.frozen() == []
    with open_unsynced(tmp_path / "data") as hw:
        assert datas(hw.read("t")) == [b"0", b"1", b"2", b"3"]


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A file system of one MB, where one may be mounted."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def test_a_server_on_a_full_disk_goes_on_when_there_is_space(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as small, served(small / "data") as server:
        http.put(f"{server.url}/topic/t").raise_for_status()
        http.post(f"{server.url}/topic/t/items", content=b"before").raise_for_status()
        filler = small / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        while (answer := http.post(f"{server.url}/topic/t/items", content=b"x" * 5000)).is_success:
            pass
        assert (answer.status_code, answer.json()["code"]) == (503, "disk_full")
        told = http.get(f"{server.url}/health")
        assert told.status_code == 503
        assert told.json()["code"] == "frozen"
        assert told.json()["facts"]["frozen"] == [{"topic": "t", "partition": 0, "reason": "frozen: a write failed"}]
        assert http.get(f"{server.url}/topic/t/items").status_code == 200
        filler.unlink()
        # Nobody appends: the server itself finds out that a write works again.
        wait_for(lambda: http.get(f"{server.url}/health").status_code == 200)
        assert http.get(f"{server.url}/health").json() == {"status": "ok"}
        http.post(f"{server.url}/topic/t/items", content=b"x" * 5000).raise_for_status()
    assert server.output.count(b"the log is frozen until a write works again") == 1
    assert server.output.count(b"is no longer frozen") == 1


def test_a_server_that_may_not_write_more_goes_on_when_it_may(tmp_path: Path) -> None:
    """A limit of the process stands for a full disk where none can be mounted."""
    with served(tmp_path / "data") as server:
        http.put(f"{server.url}/topic/t").raise_for_status()
        http.post(f"{server.url}/topic/t/items", content=b"before").raise_for_status()
        _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (8192, hard))
        answer = http.post(f"{server.url}/topic/t/items", content=b"x" * 20_000)
        assert (answer.status_code, answer.json()["code"]) == (503, "disk_full")
        assert http.get(f"{server.url}/health").status_code == 503
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))
        http.post(f"{server.url}/topic/t/items", content=b"x" * 20_000).raise_for_status()
        assert http.get(f"{server.url}/health").status_code == 200
