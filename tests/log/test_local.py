"""The log in a directory passes the suite of all logs, and keeps the promises of its own."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

import headwater
from headwater.directory import sealer
from headwater.limits import DEFAULTS, Limits
from headwater.store import Store
from tests.log.conformance import Log
from tests.log.key_conformance import KeyConformance
from tests.log.unsynced import open_unsynced


class Directory:
    """A log directory that is opened again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened: list[Store] = []

    def open(self, *, durability: Any = "fsync", limits: Limits = DEFAULTS) -> Store:
        self.opened.append(open_unsynced(self.path, durability=durability, limits=limits))
        return self.opened[-1]

    def settle(self, log: Log, topic: str) -> None:
        assert isinstance(log, Store)
        log.seal(topic)


class TestLocalLog(KeyConformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Directory]:
        directory = Directory(tmp_path / "data")
        yield directory
        for engine in directory.opened:
            engine.close()


def test_what_was_only_handed_to_the_system_is_not_called_durable(hw: Store) -> None:
    hw.append("t", b"", durability="os")
    told = hw.describe("t").partitions[0]
    assert (told.end, told.durable) == (1, 0)


@pytest.mark.parametrize("sealed", [False, True])
def test_large_batches_become_arrow_without_a_copy(hw: Store, sealed: bool) -> None:
    size, count = 1000, 10_000
    for _ in range(3):
        hw.append_many("t", [b"%04d" % (i % 10_000) * (size // 4) for i in range(count)], keys=[b"key"] * count)
    if sealed:
        hw.seal("t")
    list(hw.read("t", start=0, end=1))
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        table = hw.read_arrow("t", columns=["data", "key"])
        copied = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - before
    finally:
        tracemalloc.stop()
    assert table.nbytes > 3 * size * count
    assert copied < 3 * size * count // 20
    assert table["data"][12_345].as_py() == b"2345" * 250
    # What was handed out stays valid when the log and its files are gone.
    hw.delete("t")
    hw.close()
    assert table["data"][29_999].as_py() == b"9999" * 250


def test_sealing_packs_small_batches_and_changes_nothing_else(hw: Store) -> None:
    for number in range(300):
        hw.append("t", b"%d" % number, type=f"t{number % 3}", key=b"k" if number % 2 else None, durability="os")
    before = list(hw.read("t"))
    assert len(list(hw.read_batches("t"))) == 300
    assert hw.seal("t") == 1
    assert len(list(hw.read_batches("t"))) == 1
    assert list(hw.read("t")) == before
    assert hw.seal("t") == 0
    told = hw.describe("t").partitions[0]
    assert (told.segments, told.sealed) == (2, 1)


def test_a_full_segment_is_followed_by_another(hw: Store) -> None:
    hw.create("t", segment_bytes=4096)
    for _ in range(20):
        hw.append("t", b"x" * 1000, durability="os")
    assert hw.describe("t").partitions[0].segments >= 5
    assert hw.describe("t").events == 20


def test_an_old_segment_is_followed_by_another(hw: Store) -> None:
    hw.create("t", segment_age_ms=1)
    first = hw.append("t", b"a")
    while hw.append("t", b"b").ticks - first.ticks < 20_000:
        pass
    assert hw.describe("t").partitions[0].segments > 1


def test_compressed_topics_are_smaller_and_read_the_same(hw: Store) -> None:
    sizes = {}
    compressions: tuple[Literal["none", "zstd"], ...] = ("none", "zstd")
    for compression in compressions:
        hw.create(compression, compression=compression)
        for number in range(100):
            hw.append(compression, b"the same again and again %d" % number * 5, durability="os")
        hw.append_many(compression, [b"and many at once"] * 500)
        hw.seal(compression)
        sizes[compression] = hw.describe(compression).bytes
    assert sizes["zstd"] < sizes["none"] / 3
    assert [event.data for event in hw.read("zstd")] == [event.data for event in hw.read("none")]


def test_deleting_and_closing_let_go_of_all_files(tmp_path: Path) -> None:
    def open_files() -> set[str]:
        links = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        return {str(link) for link in links if str(tmp_path) in str(link)} | {
            line.partition("/")[2] for line in maps if str(tmp_path) in line
        }

    hw = headwater.open(tmp_path / "data")
    for topic in ("kept", "deleted"):
        hw.append(topic, b"a")
        list(hw.read(topic))
    hw.delete("deleted")
    assert not [name for name in open_files() if "deleted" in name]
    hw.close()
    assert open_files() == set()


def test_a_huge_event_holds_no_lock_while_it_arrives_and_bounds_memory(hw: Store, tmp_path: Path) -> None:
    hw.create("t", data_bytes_max=100 << 20)
    with headwater.open(tmp_path / "data", limits=Limits(lock_wait_s=0.5)) as other:

        def arrive() -> Iterator[bytes]:
            for number in range(64):
                other.append("t", b"meanwhile %d" % number, durability="os")  # as another process would
                yield bytes([number]) * (1 << 20)

        tracemalloc.start()
        try:
            ref = hw.append("t", arrive())
            (event,) = hw.read("t", start=ref.offset)
            sizes = [len(chunk) for chunk in event.chunks()]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert ref.offset == 64
    assert event.data is None
    assert sizes == [1 << 20] * 64
    assert peak < 16 << 20


def test_sealing_leaves_the_lock_to_the_writers(hw: Store, tmp_path: Path) -> None:
    for number in range(2_000):
        hw.append("t", b"%d" % number, durability="os")
    log = hw.directory._topics.get("t").logs[0]
    log.roll(tell=False)
    with headwater.open(tmp_path / "data", limits=Limits(lock_wait_s=0.5)) as other:
        meanwhile: list[int] = []

        def append_now() -> None:
            meanwhile.append(other.append("t", b"meanwhile", durability="os").offset)

        assert sealer.seal(log.place, 0, pause=append_now)
    assert meanwhile == list(range(2_000, 2_000 + len(meanwhile)))
    assert len(meanwhile) > 1
    assert [event.offset for event in hw.read("t")] == list(range(2_000 + len(meanwhile)))


def test_a_topic_that_a_power_loss_left_under_both_names_can_be_deleted(hw: Store) -> None:
    hw.append("t", b"x")
    left = hw.path / "topics" / f".deleted-{hw.describe('t').uuid}" / "0"
    left.mkdir(parents=True)
    (left / "lock").touch()
    hw.delete("t")
    assert hw.topics() == []
