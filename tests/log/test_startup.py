"""Opening a log costs the same however many segments it has: only what is needed is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.disk.disk import Disk
from headwater.opening import open_directory
from headwater.store import Store
from tests.log.conformance import datas
from tests.log.unsynced import UnsyncedDisk, open_unsynced

COUNTED = (
    "pread",
    "pwrite",
    "open_read",
    "open_write",
    "create",
    "size",
    "inode",
    "map",
    "read_file",
    "names",
    "rename",
)


class CountingDisk(UnsyncedDisk):
    """Counts what is asked of it, and the bytes that are read."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        for name in COUNTED:
            setattr(self, name, self._counted(name, getattr(super(), name)))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            result = real(*args, **options)
            self.counts[name] += 1
            if name in ("pread", "read_file"):
                self.counts["bytes read"] += len(result)
            if name == "map":
                self.counts["bytes mapped"] += len(result)
            return result

        return call


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Logs of 5 and of 500 segments, each with one event more in its active one."""
    made = {}
    for segments in (5, 500):
        made[segments] = tmp_path_factory.mktemp("startup") / "data"
        with open_unsynced(made[segments]) as hw:
            for _ in range(segments - 1):
                hw.append("t", b"x" * 50)
                hw._topics.get("t").logs[0].roll(tell=False)
            hw.append("t", b"last")
            hw.seal("t")
            hw.append("t", b"active")
            told = hw.describe("t").partitions[0]
            assert (told.segments, told.sealed) == (segments + 1, segments)
    return made


def test_the_counting_disk_counts(logs: dict[int, Path]) -> None:
    disk = CountingDisk()
    with open_directory(logs[5], disk=disk) as hw:
        before = disk.counts.copy()
        assert len(list(hw.read("t"))) >= 6
        assert (disk.counts - before)["open_read"] >= 6
        assert (disk.counts - before)["bytes read"] > 6 * 64


@pytest.mark.parametrize("what", ["append", "read the first", "read the last", "backwards", "follow", "all"])
def test_opening_costs_the_same_with_many_segments(logs: dict[int, Path], what: str) -> None:
    works: dict[str, Callable[[Store], object]] = {
        "append": lambda hw: hw.append("t", b"next"),
        "read the first": lambda hw: next(hw.read("t")),
        "read the last": lambda hw: list(hw.read("t", start=hw.describe("t").partitions[0].end - 1)),
        "backwards": lambda hw: next(hw.read("t", reverse=True)),
        "follow": lambda hw: list(hw.follow("t", timeout=0)),
    }
    counts = {}
    for segments, path in logs.items():
        disk = CountingDisk()
        with open_directory(path, disk=disk) as hw:
            for name, work in works.items():
                if what in (name, "all"):
                    work(hw)
        counts[segments] = disk.counts
    assert counts[5] == counts[500]
    assert counts[500].total() - counts[500]["bytes read"] - counts[500]["bytes mapped"] < 120
    assert counts[500]["bytes read"] < 8192


def test_a_real_disk_has_all_that_is_counted() -> None:
    assert all(callable(getattr(Disk(), name)) for name in COUNTED)


def test_a_log_of_many_segments_reads_as_one(logs: dict[int, Path]) -> None:
    with open_unsynced(logs[500]) as hw:
        found = datas(hw.read("t", end=501))
        assert found == [b"x" * 50] * 499 + [b"last", b"active"]
        assert datas(hw.read("t", end=501, reverse=True)) == found[::-1]
        assert hw.read_arrow("t", end=501)["offset"].to_pylist() == list(range(501))
        middle = next(hw.read("t", start=250))
        assert next(hw.read("t", start=middle.id)).offset == 250
