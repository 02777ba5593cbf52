"""Several processes on one directory: together, forked, stopped and killed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import NotFound, Unavailable
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from tests.log.children import Child, Said, stop
from tests.log.conformance import datas
from tests.log.unsynced import UnsyncedDisk, open_unsynced


def numbers(events: Iterator[Any], process: int) -> list[int]:
    """The numbers that one process gave to its events, in the order of the log."""
    found = [(event.data or b"").split(b" ") for event in events]
    return [int(number) for mine, number, *_ in found if int(mine) == process]


# Together


def append_in_turns(path: Path, process: int, count: int) -> Callable[[Said], list[tuple[int, int]]]:
    """Work that appends `count` numbered events, some alone and some together; returns (number, offset) of each."""

    def work(_: Said) -> list[tuple[int, int]]:
        placed = []
        with open_unsynced(path) as hw:
            number = 0
            while number < count:
                some = list(range(number, min(count, number + 1 + number % 4)))
                data = [b"%d %d %s" % (process, each, b"x" * (each % 300)) for each in some]
                refs = [hw.append("t", data[0])] if len(some) == 1 else hw.append_many("t", data)
                placed += [(each, ref.offset) for each, ref in zip(some, refs, strict=True)]
                number += len(some)
        return placed

    return work


def test_what_several_processes_append_is_all_there_once_and_in_order(path: Path) -> None:
    processes, count = 4, 80
    with open_unsynced(path) as hw:
        hw.create("t", segment_bytes=4096)  # so that they roll, and seal what others rolled
    writers = [Child(append_in_turns(path, process, count)) for process in range(processes)]

    def read(_: Said) -> None:
        seen: list[bytes | None] = []
        with open_unsynced(path) as hw:
            while len(seen) < processes * count:
                now = datas(hw.read("t"))
                assert now[: len(seen)] == seen
                assert datas(hw.read("t", reverse=True, end=len(now))) == now[::-1]
                seen = now

    def follow(_: Said) -> list[bytes | None]:
        with open_unsynced(path) as hw:
            return datas(itertools.islice(hw.follow("t", start=0), processes * count))

    readers = [Child(read), Child(follow)]
    placed = [writer.result() for writer in writers]
    assert readers[0].result() is None
    with open_unsynced(path) as hw:
        events = list(hw.read("t"))
        assert readers[1].result() == [event.data for event in events]
        assert [event.offset for event in events] == list(range(processes * count))
        for process in range(processes):
            assert numbers(iter(events), process) == list(range(count))
            for number, offset in placed[process]:
                assert (events[offset].data or b"").startswith(b"%d %d " % (process, number))
        assert all(a.ticks < b.ticks for a, b in itertools.pairwise(events))
        assert hw.describe("t").partitions[0].segments > 3
        assert not hw.check().damaged


def test_processes_that_make_one_topic_at_once_share_it(path: Path) -> None:
    def work(said: Said) -> tuple[bool, str]:
        with open_unsynced(path) as hw:
            said.send("ready")
            said.recv()
            made = hw.create("t", partitions=3)
            hw.append("t", b"x", partition=0)
            return made, hw.describe("t").uuid

    children = [Child(work) for _ in range(4)]
    for child in children:
        child.hear()
    for child in children:
        child.tell()
    results = [child.result() for child in children]
    assert sum(made for made, _ in results) == 1
    assert len({uuid for _, uuid in results}) == 1
    with open_unsynced(path) as hw:
        assert hw.describe("t").events == 4


def in_another_process(path: Path, work: Callable[[Store], Any]) -> Any:
    def run(_: Said) -> Any:
        with open_unsynced(path) as hw:
            return work(hw)

    return Child(run).result()


def test_a_topic_that_another_process_deletes_is_gone(path: Path, hw: Store) -> None:
    hw.create("t", segment_bytes=4096)
    for _ in range(12):
        hw.append("t", b"x" * 1000)
    reading, following = hw.read("t"), hw.follow("t", start=0)
    next(reading)
    next(following)
    in_another_process(path, lambda other: other.delete("t"))
    with pytest.raises(NotFound):
        list(following)
    with pytest.raises(NotFound):
        list(reading)  # some segments were still to be opened
    for call in (hw.read, hw.describe, hw.follow):
        with pytest.raises(NotFound):
            call("t")
    assert hw.topics() == []


def test_a_topic_that_another_process_makes_again_is_another(path: Path, hw: Store) -> None:
    hw.append_many("t", [b"old"] * 5)
    following = hw.follow("t", start=0)
    assert next(following).offset == 0

    def make_again(other: Store) -> str:
        other.delete("t")
        other.create("t")
        return other.describe("t").uuid

    uuid = in_another_process(path, make_again)
    assert hw.append("t", b"new").offset == 0
    assert hw.describe("t").uuid == uuid
    assert datas(hw.read("t")) == [b"new"]
    with pytest.raises(NotFound):
        list(following)


def test_a_follower_that_sleeps_is_told_of_the_deletion(path: Path) -> None:
    with open_unsynced(path) as hw:
        hw.create("t")

    def follow(said: Said) -> str:
        with open_unsynced(path) as mine:
            follower = mine.follow("t")
            said.send("ready")
            try:
                next(follower)
            except NotFound as error:
                return error.code
        return "nothing"

    child = Child(follow)
    child.hear()
    with open_unsynced(path) as hw:
        hw.delete("t")
        hw.create("t")
        hw.append("t", b"new")
    assert child.result() == "topic_deleted"


@pytest.mark.parametrize("what", ["seal", "roll"])
def test_what_another_process_seals_or_rolls_is_noticed_in_the_middle(path: Path, hw: Store, what: str) -> None:
    for number in range(10):
        hw.append("t", b"%d" % number)
    reading, backwards, following = hw.read("t"), hw.read("t", reverse=True), hw.follow("t", start=0)
    for each in (reading, backwards, following):
        for _ in range(4):
            next(each)

    def change(other: Store) -> None:
        for number in range(10, 20):
            if what == "seal":
                other.seal("t")
            else:
                other.directory._topics.get("t").logs[0].roll(tell=False)
            other.append("t", b"%d" % number)

    in_another_process(path, change)
    assert datas(reading) == [b"%d" % i for i in range(4, 10)]
    assert datas(backwards) == [b"%d" % i for i in range(5, -1, -1)]
    assert [next(following).data for _ in range(16)] == [b"%d" % i for i in range(4, 20)]
    assert datas(hw.read("t")) == [b"%d" % i for i in range(20)]
    assert datas(hw.read("t", reverse=True)) == [b"%d" % i for i in range(19, -1, -1)]
    assert hw.append("t", b"20").offset == 20
    assert hw.describe("t").partitions[0].segments == 11


def test_followers_in_two_processes_wake_each_other(path: Path) -> None:
    """A ball that is thrown 40 times; whoever slept through a wake-up would need a second for each."""
    throws = 40
    with open_unsynced(path) as hw:
        hw.create("ping")
        hw.create("pong")

    def play(said: Said) -> None:
        with open_unsynced(path) as mine:
            pings = mine.follow("ping")
            said.send("ready")
            for event in itertools.islice(pings, throws):
                mine.append("pong", event.data or b"")

    child = Child(play)
    child.hear()
    with open_unsynced(path) as hw:
        pongs = hw.follow("pong")
        began = time.monotonic()
        for number in range(throws):
            hw.append("ping", b"%d" % number)
            assert next(pongs).data == b"%d" % number
        assert time.monotonic() - began < throws / 4
    child.result()


# Forked


def fork(work: Callable[[], None]) -> int:
    """Fork, and run the work in the child; returns its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is what is tested
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def test_a_forked_child_and_its_parent_go_on_with_one_engine(hw: Store) -> None:
    hw.create("t", segment_bytes=4096)
    hw.append("t", b"0 0")
    following = hw.follow("t", start=0)
    assert len(list(hw.read("t"))) == 1

    def work() -> None:
        assert len(list(hw.read("t"))) >= 1
        for number in range(30):
            hw.append("t", b"1 %d %s" % (number, b"x" * 200))
        assert numbers(hw.read("t"), 1) == list(range(30))
        assert next(hw.follow("t", start=0)).data == b"0 0"

    pid = fork(work)
    for number in range(1, 30):
        hw.append("t", b"0 %d %s" % (number, b"x" * 200))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    events = list(hw.read("t"))
    assert [event.offset for event in events] == list(range(60))
    assert numbers(iter(events), 0) == numbers(iter(events), 1) == list(range(30))
    assert len(list(itertools.islice(following, 60))) == 60
    assert not hw.check().damaged


def append_some(hw: Store, process: int) -> None:
    for number in range(10):
        hw.append("t", b"%d %d" % (process, number))


def test_workers_of_multiprocessing_may_use_the_parents_engine(hw: Store) -> None:
    hw.append("t", b"0 0")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=append_some, args=(hw, process)) for process in (1, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for worker in workers:
            worker.start()
    append_some(hw, 3)
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    for process in (1, 2, 3):
        assert numbers(hw.read("t"), process) == list(range(10))


def test_a_child_may_be_forked_while_threads_append_read_and_seal(path: Path) -> None:
    """Whatever lock a thread held at that moment is held for ever in the child, unless it begins anew."""
    stop = threading.Event()
    counts = [0] * 3

    with open_unsynced(path) as hw:
        hw.create("t", segment_bytes=4096)
        hw.append("t", b"9 0")

        def append(thread: int) -> None:
            while not stop.is_set():
                hw.append("t", b"%d %d %s" % (thread, counts[thread], b"x" * 100))
                counts[thread] += 1

        def read() -> None:
            while not stop.is_set():
                list(hw.read("t", start=max(0, sum(counts) - 50)))
                list(hw.read("t", type="none", start=max(0, sum(counts) - 50)))

        threads = [threading.Thread(target=append, args=(number,)) for number in range(3)]
        threads += [threading.Thread(target=read) for _ in range(1)]
        for thread in threads:
            thread.start()
        try:
            for process in range(10, 16):

                def work(process: int = process) -> None:
                    signal.alarm(30)  # a child that is stuck ends here
                    for number in range(3):
                        hw.append("t", b"%d %d" % (process, number))
                    (mine,) = hw.append_many("t", [b"%d 3" % process])
                    assert datas(hw.read("t", start=mine.offset, end=mine.offset + 1)) == [b"%d 3" % process]

                pid = fork(work)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        events = list(hw.read("t"))
        assert [event.offset for event in events] == list(range(len(events)))
        for number, count in enumerate(counts):
            assert numbers(iter(events), number) == list(range(count))
        for process in range(10, 16):
            assert numbers(iter(events), process) == [0, 1, 2, 3]


# Stopped and killed


class StoppingDisk(UnsyncedDisk):
    """Stops its own process in the middle of a commit, when the lock is held and the bytes are written."""

    stops = False

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]  # noqa: ARG002  (the interface)
        if self.stops:
            self.stops = False
            stop()


def stop_while_holding_the_lock(path: Path) -> Child:
    def work(_: Said) -> int:
        disk = StoppingDisk()
        with open_directory(path, disk=disk) as hw:
            hw.append("t", b"before")
            disk.stops = True
            return hw.append("t", b"stopped").offset

    child = Child(work)
    child.wait_until_stopped()
    return child


IMPATIENT = Limits(lock_wait_s=0.1)


def test_a_process_that_stops_with_the_lock_keeps_others_from_appending_and_loses_nothing(path: Path) -> None:
    child = stop_while_holding_the_lock(path)
    with open_unsynced(path, limits=IMPATIENT) as hw:
        assert datas(hw.read("t")) == [b"before"]
        appends: list[Callable[[], object]] = [
            lambda: hw.append("t", b"mine"),
            lambda: hw.append_many("t", [b"mine"]),
            lambda: hw.append("t", iter([b"mine" * 500_000])),
            lambda: hw.sync("t"),
            lambda: hw.delete("t"),
        ]
        for append in appends:
            with pytest.raises(Unavailable) as caught:
                append()
            assert caught.value.code == "locked"
            assert "fuser" in caught.value.hint
        assert datas(hw.read("t")) == [b"before"]
        assert hw.append("other", b"fine").offset == 0
        child.resume()
        assert child.result() == 1
        assert hw.append("t", b"mine").offset == 2
        assert datas(hw.read("t")) == [b"before", b"stopped", b"mine"]


def test_a_process_that_is_killed_with_the_lock_is_cleaned_up_after(path: Path) -> None:
    child = stop_while_holding_the_lock(path)
    child.kill()
    with open_unsynced(path, limits=IMPATIENT) as hw:
        found = datas(hw.read("t"))  # whoever reads finishes what it finds whole
        assert found in ([b"before"], [b"before", b"stopped"])
        hw.append("t", b"mine")
        assert datas(hw.read("t")) == [*found, b"mine"]
        assert not hw.check().damaged


def test_a_lock_is_not_inherited_by_a_forked_child_that_outlives_its_parent(path: Path) -> None:
    def work(said: Said) -> None:
        disk = StoppingDisk()
        hw = open_directory(path, disk=disk)
        hw.append("t", b"before")
        said.send(fork(signal.pause))
        disk.stops = True
        hw.append("t", b"stopped")

    child = Child(work)
    idle = child.hear()
    child.wait_until_stopped()
    child.kill()
    try:
        with open_unsynced(path, limits=IMPATIENT) as hw:
            hw.append("t", b"mine")
            assert datas(hw.read("t", reverse=True))[0] == b"mine"
    finally:
        os.kill(idle, signal.SIGKILL)
