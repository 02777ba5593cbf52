"""Threads that append together share commits: all are answered, in order, and errors reach everyone."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater.directory.group import Group
from headwater.errors import HeadwaterError, NotFound, Unavailable
from headwater.event import Ref
from headwater.limits import Limits
from headwater.log.rows import Rows
from headwater.opening import open_directory
from headwater.store import Store
from tests.log.conformance import datas
from tests.log.unsynced import UnsyncedDisk, open_unsynced
from tests.waiting import wait_for


class GatedDisk(UnsyncedDisk):
    """A sync takes a while, or until it is let through; it may fail."""

    def __init__(self) -> None:
        self.syncs = 0
        self.takes_s = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()
        self.failure: OSError | None = None

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]  # noqa: ARG002  (the interface)
        self.syncs += 1
        self.arrived.set()
        self.gate.wait()
        time.sleep(self.takes_s)  # what a real disk does
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
def gated(tmp_path: Path, disk: GatedDisk) -> Iterator[Store]:
    with open_directory(tmp_path / "data", disk=disk) as engine:
        engine.create("t")
        yield engine


def run_together(works: list[Callable[[], Any]]) -> list[Any]:
    """Run all in threads of their own; returns what they returned, or the error."""
    results: list[Any] = [None] * len(works)

    def run(number: int) -> None:
        try:
            results[number] = works[number]()
        except HeadwaterError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def waiting(hw: Store) -> int:
    """How many appends wait for the one that leads."""
    return len(hw.directory._topics.get("t").logs[0]._group._queue)


@contextlib.contextmanager
def led(hw: Store, disk: GatedDisk, followers: int) -> Iterator[list[Any]]:
    """An append that leads, and holds its commit up until so many wait behind it. Gives a list for its result."""
    disk.gate.clear()
    disk.arrived.clear()
    results: list[Any] = []

    def let_through() -> None:
        wait_for(lambda: waiting(hw) == followers)
        disk.gate.set()

    leader = threading.Thread(target=lambda: results.extend(run_together([lambda: hw.append("t", b"leader")])))
    leader.start()
    disk.arrived.wait()
    release = threading.Thread(target=let_through)
    release.start()
    yield results
    leader.join()
    release.join()


def in_one_group(hw: Store, disk: GatedDisk, works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Let them queue up in this order behind an append that leads; returns what each returned or raised."""
    results: list[Any] = [None] * len(works)

    def run(number: int) -> None:
        results[number] = run_together([works[number]])[0]

    threads = []
    with led(hw, disk, len(works)):
        for number in range(len(works)):
            threads.append(threading.Thread(target=run, args=(number,)))
            threads[-1].start()
            wait_for(lambda: waiting(hw) == number + 1 or disk.gate.is_set())  # noqa: B023  (used at once)
    for thread in threads:
        thread.join()
    return results


def test_threads_that_append_durably_share_batches_and_syncs(gated: Store, disk: GatedDisk) -> None:
    threads, count = 32, 10
    disk.takes_s = 0.002
    before = disk.syncs

    def append(thread: int) -> list[Ref]:
        return [gated.append("t", b"%d %d" % (thread, number), type=f"t{thread % 3}") for number in range(count)]

    refs = run_together([partial(append, thread) for thread in range(threads)])
    events = list(gated.read("t"))
    assert len(events) == threads * count
    for thread, mine in enumerate(refs):
        assert [ref.offset for ref in mine] == sorted(ref.offset for ref in mine)
        for number, ref in enumerate(mine):
            event = events[ref.offset]
            assert (event.data, event.id, event.type) == (b"%d %d" % (thread, number), ref.id, f"t{thread % 3}")
    batches = len(list(gated.read_batches("t")))
    assert batches <= disk.syncs - before + 1
    assert batches < threads * count / 4
    assert gated.describe("t").partitions[0].durable == threads * count


def test_those_who_wait_become_one_batch(gated: Store, disk: GatedDisk) -> None:
    def append(number: int) -> Ref:
        return gated.append("t", b"%d" % number, key=b"k", meta={"i": str(number)})

    with led(gated, disk, 20):
        refs = run_together([partial(append, number) for number in range(20)])
    assert [len(batch) for batch in gated.read_batches("t")] == [1, 20]
    for number, ref in enumerate(refs):
        (event,) = gated.read("t", start=ref.offset, end=ref.offset + 1)
        assert (event.data, event.meta, event.id) == (b"%d" % number, {"i": str(number)}, ref.id)


def test_appends_of_all_kinds_wait_together(gated: Store, disk: GatedDisk) -> None:
    works: list[Callable[[], Any]] = [
        lambda: [gated.append("t", b"bytes", key=b"k")],
        lambda: [gated.append("t", "text", type="a")],
        lambda: [gated.append("t", {"json": 1}, durability="os")],
        lambda: list(gated.append_many("t", [b"m1", b"m2", b"m3"], types=["a", "b", "a"], keys=[None, b"k", None])),
        lambda: list(gated.append_many("t", ["m4", "m5"], metas=[{"a": "b"}, None])),
        lambda: [gated.append("t", b"more", durability="os")],
        lambda: [gated.append("t", b"last", meta={"x": "y"})],
    ]
    with led(gated, disk, len(works)):
        results = run_together(works)
    expected = [[b"bytes"], ["text"], [{"json": 1}], [b"m1", b"m2", b"m3"], ["m4", "m5"], [b"more"], [b"last"]]
    events = list(gated.read("t"))
    assert [event.offset for event in events] == list(range(11))
    for refs, values in zip(results, expected, strict=True):
        assert [ref.offset - refs[0].offset for ref in refs] == list(range(len(refs)))
        assert [events[ref.offset].value for ref in refs] == values
        assert [events[ref.offset].id for ref in refs] == [ref.id for ref in refs]
    assert [refs[0].durability for refs in results] == ["fsync", "fsync", "os", "fsync", "fsync", "os", "fsync"]
    assert events[results[3][1].offset].key == b"k"
    assert events[results[4][0].offset].meta == {"a": "b"}


def test_a_group_above_a_limit_becomes_several_batches(tmp_path: Path, disk: GatedDisk) -> None:
    with open_directory(tmp_path / "data", disk=disk, limits=Limits(batch_events_max=10)) as hw:
        hw.create("t")
        with led(hw, disk, 8):
            run_together([lambda: hw.append_many("t", [b"a", b"b", b"c", b"d"])] * 8)
        assert [len(batch) for batch in hw.read_batches("t")] == [1, 8, 8, 8, 8]
        assert datas(hw.read("t"))[1:] == [b"a", b"b", b"c", b"d"] * 8


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_an_error_of_a_commit_reaches_everyone_who_waits(tmp_path: Path, disk: GatedDisk, code: int) -> None:
    with open_directory(tmp_path / "data", disk=disk) as hw:
        hw.append_many("t", [b"before", b"before too"])
        with led(hw, disk, 10) as results:
            disk.failure = OSError(code, "broken")
            others = run_together([lambda: hw.append("t", b"waiting")] * 10)
        results += others
        assert len(results) == 11
        assert {type(result) for result in results} == {Unavailable}
        assert all(result.hint for result in results)
        disk.failure = None
        assert datas(hw.read("t")) == [b"before", b"before too"]
        if code == errno.EIO:
            with pytest.raises(Unavailable) as caught:
                hw.append("t", b"later")
            assert caught.value.code == "frozen"
            assert datas(hw.read("t")) == [b"before", b"before too"]
    with open_unsynced(tmp_path / "data") as hw:
        assert datas(hw.read("t")) == [b"before", b"before too"]
        assert hw.append("t", b"after").offset == 2


def test_what_needs_the_log_alone_gets_its_turn(gated: Store) -> None:
    """Syncing and rolling go on while threads append without a pause."""
    stop = threading.Event()

    def append() -> int:
        for number in itertools.count():
            if stop.is_set():
                return number
            gated.append("t", b"x", durability="os")
        raise AssertionError

    def interrupt() -> None:
        try:
            for _ in range(20):
                gated.sync("t")
                gated.directory._topics.get("t").logs[0].roll(tell=False)
        finally:
            stop.set()

    *counts, failed = run_together([*[append] * 8, interrupt])
    assert failed is None
    assert len(list(gated.read("t"))) == sum(counts)
    assert min(counts) > 0


def test_closing_waits_for_appends_under_way(tmp_path: Path, disk: GatedDisk) -> None:
    hw = open_directory(tmp_path / "data", disk=disk)
    hw.create("t")
    disk.gate.clear()
    disk.arrived.clear()
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(hw.append("t", b"under way")))
    thread.start()
    disk.arrived.wait()
    closing = threading.Thread(target=hw.close)
    closing.start()
    wait_for(lambda: hw.directory._closed)
    assert closing.is_alive()
    disk.gate.set()
    closing.join()
    thread.join()
    assert results[0].offset == 0
    with open_unsynced(tmp_path / "data") as again:
        assert datas(again.read("t")) == [b"under way"]


def test_an_interrupt_is_raised_when_the_append_it_came_to_is_done(gated: Store, disk: GatedDisk) -> None:
    """Rows that wait may be taken, or be handed the lead, at any moment: who left them would leave the log stuck."""
    disk.gate.clear()
    disk.arrived.clear()
    leader = threading.Thread(target=gated.append, args=("t", b"leader"))
    leader.start()
    disk.arrived.wait()

    def interrupt(*_: object) -> None:
        threading.Timer(0.01, disk.gate.set).start()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    group = gated.directory._topics.get("t").logs[0]._group
    try:
        threading.Thread(target=interrupt_when_queued, args=(group,)).start()
        with pytest.raises(KeyboardInterrupt):
            gated.append("t", b"interrupted")
    finally:
        signal.signal(signal.SIGUSR1, before)
        disk.gate.set()
        leader.join()
    assert gated.append("t", b"after").offset == 2
    assert [event.data for event in gated.read("t")] == [b"leader", b"interrupted", b"after"]


def interrupt_when_queued(group: Group) -> None:
    while not group._queue:
        threading.Event().wait(0.001)
    os.kill(os.getpid(), signal.SIGUSR1)


def test_who_had_the_log_open_when_it_froze_does_not_thaw_it_by_a_first_append(
    gated: Store, disk: GatedDisk, tmp_path: Path
) -> None:
    gated.append("t", b"there")
    with open_unsynced(tmp_path / "data") as other:
        assert datas(other.read("t")) == [b"there"]  # it has read, and never appended
        disk.failure = OSError(errno.EIO, "failed")
        with pytest.raises(Unavailable):
            gated.append("t", b"refused")
        disk.failure = None
        for engine in (other, gated):
            with pytest.raises(Unavailable, match="frozen"):
                engine.append("t", b"refused")
        with open_unsynced(tmp_path / "data") as new:
            assert new.append("t", b"thawed").offset == 1
        assert [engine.append("t", b"on").offset for engine in (other, gated)] == [2, 3]


def test_a_log_that_froze_stays_frozen_for_another_that_appended_however_often_it_tries(
    gated: Store, disk: GatedDisk, tmp_path: Path
) -> None:
    with open_unsynced(tmp_path / "data") as other:
        other.append("t", b"there")
        disk.failure = OSError(errno.EIO, "failed")
        with pytest.raises(Unavailable):
            gated.append("t", b"refused")
        disk.failure = None
        for _ in range(3):
            with pytest.raises(Unavailable, match="frozen"):
                other.append("t", b"refused")
        assert datas(other.read("t")) == [b"there"]


def test_nothing_is_appended_to_a_log_that_another_deleted_however_often_it_is_tried(
    gated: Store, tmp_path: Path
) -> None:
    gated.append("t", b"there")
    log = gated.directory._topics.get("t").logs[0]  # as a thread has it that has just looked it up
    with open_unsynced(tmp_path / "data") as other:
        other.delete("t")
        other.create("t")
        for _ in range(3):
            with pytest.raises(NotFound, match="deleted"):
                log.append(Rows.one("bytes", True, b"lost"))


def test_a_call_is_under_way_until_it_returns_or_raises_even_if_its_traceback_is_kept() -> None:
    rows = Rows("bytes", False)
    seen: list[bool] = []

    def raising() -> None:
        rows.frame = sys._getframe()
        seen.append(rows.runs())
        with ThreadPoolExecutor() as pool:
            seen.append(pool.submit(rows.runs).result())
        raise KeyboardInterrupt

    assert not rows.runs()
    with pytest.raises(KeyboardInterrupt) as caught:
        raising()
    assert seen == [True, True]
    assert caught.tb.tb_next.tb_frame is rows.frame  # type: ignore[union-attr]  # the frame outlives its call
    assert not rows.runs()
