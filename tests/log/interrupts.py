"""A signal handler that raises, anywhere in a call, leaves the log free for its own process and for all others."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.disk.disk import Clock, Disk, wait_for_lock
from headwater.errors import HeadwaterError, Unavailable
from headwater.limits import Limits
from headwater.replication.marker import Marker
from headwater.server.users import Account, changing, read
from headwater.store import Store
from tests.log.children import Child, Said
from tests.log.interrupting import Interruption, interrupt_everywhere, interrupted
from tests.log.unsynced import UnsyncedDisk, open_unsynced
from tests.opened import join
from tests.waiting import wait_for

# What is interrupted between opening a file and using it leaves that to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
LOCKING = (
    *("directory/cursor_file.py", "disk/disk.py", "directory/group.py", "disk/latch.py"),
    *("consumers/file_consumers.py", "directory/transaction.py", "consumers/member.py", "contextlib.py"),
)
LIMITS = Limits(lock_wait_s=2.0, segment_bytes=40_000)
EVERY = "HEADWATER_TEST_EVERY_PLACE"  # set where there is time to interrupt long calls at each place, too


def stride(step: int) -> int:
    """How far the places of a long call are apart: a prime, so that all kinds of places are among them."""
    return 1 if EVERY in os.environ else step


@pytest.fixture
def limits() -> Limits:
    return LIMITS


def assert_free(path: Path) -> None:
    """Nobody holds a lock of the directory, but for those who own a journal or a temporary file."""
    for file in path.rglob("*"):
        if file.suffix == ".tmp":
            continue
        if file.name in ("lock", ".lock") or file.suffix == ".log" or "consumers" in file.parts:
            with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
                # A thread of ours that seals, or renews a lease, has it for a moment.
                assert wait_for_lock(Disk().try_lock, opened.fileno(), Clock(), 5.0), f"{file} is locked"


def assert_dense(hw: Store, topic: str, acknowledged: set[bytes]) -> None:
    """Offsets have no gaps, and what was acknowledged is there once."""
    events = [
        event for partition in hw.describe(topic).partitions for event in hw.read(topic, partition=partition.partition)
    ]
    for partition in hw.describe(topic).partitions:
        offsets = [event.offset for event in events if event.partition == partition.partition]
        assert offsets == list(range(partition.start, partition.end))
    datas = [event.data or b"" for event in events]
    assert acknowledged <= set(datas)
    assert len(datas) == len(set(datas))


class Work:
    """Appends that are told apart, and which of them were acknowledged."""

    def __init__(self, hw: Store) -> None:
        self.hw = hw
        self.acknowledged: set[bytes] = set()
        self._number = 0

    def next(self, extra: int = 0) -> bytes:
        self._number += 1
        return b"%d" % self._number + bytes(extra)

    def append(self, topic: str = "t", **options: Any) -> None:
        data = self.next()
        self.hw.append(topic, data, **options)
        if topic == "t":
            self.acknowledged.add(data)

    def append_many(self) -> None:
        datas = [self.next() for _ in range(3)]
        self.hw.append_many("t", datas, keys=[b"a", b"b", b"c"])
        self.acknowledged.update(datas)


def run_interrupted(work: Work, do: Callable[[], Any], step: int = 1, *, among: Callable[[], str] = str) -> int:
    """Interrupt everywhere; after each time the log is free, takes an append, and has all that was acknowledged.

    Where a call makes files, `among` names the topic whose files are new, so that not all are looked at each time.
    """
    times = 0
    for _ in interrupt_everywhere(do, step):
        times += 1
        assert_free(work.hw.path / "topics" / among() if among() else work.hw.path)
        work.append()
    do()
    assert times > 20
    assert_dense(work.hw, "t", work.acknowledged)
    assert not work.hw.check().damaged
    return times


def test_an_append_may_be_interrupted_anywhere(hw: Store) -> None:
    work = Work(hw)
    work.append()
    assert run_interrupted(work, work.append) > 60


def test_the_first_append_to_a_topic_may_be_interrupted_anywhere(hw: Store) -> None:
    work = Work(hw)
    work.append()
    made: list[str] = []

    def first() -> None:
        made.append(f"t{len(made)}")
        work.append(made[-1])

    run_interrupted(work, first, stride(7), among=lambda: made[-1])
    assert_free(hw.path)


def test_many_appends_and_those_with_conditions_may_be_interrupted_anywhere(hw: Store) -> None:
    hw.create("t", partitions=2)
    work = Work(hw)
    run_interrupted(work, work.append_many, stride(5))
    requests = iter(range(1, 100_000))
    run_interrupted(work, lambda: work.append(key=b"k", producer=("p", 1, next(requests))), stride(3))


def test_a_retry_after_an_interruption_is_appended_once(hw: Store) -> None:
    work = Work(hw)
    work.append()
    for seq in range(1, 10_000):
        data = work.next()
        fired = interrupted(lambda: hw.append("t", data, producer=("p", 1, seq)), seq - 1)  # noqa: B023
        ref = hw.append("t", data, producer=("p", 1, seq))
        (event,) = hw.read("t", start=ref.offset, end=ref.offset + 1)
        assert event.data == data
        assert hw.append("t", data, producer=("p", 1, seq)).offset == ref.offset
        work.acknowledged.add(data)
        if not fired:
            break
    assert_dense(hw, "t", work.acknowledged)


def test_a_roll_and_a_seal_may_be_interrupted_anywhere(hw: Store) -> None:
    for number in count(step=stride(11)):
        topic = f"t{number}"
        refs = [hw.append(topic, b"%d" % each, durability="os") for each in range(4)]
        fired = interrupted(lambda: hw.seal(topic), number)  # noqa: B023
        assert_free(hw.path / "topics" / topic)
        refs.append(hw.append(topic, b"4"))
        hw.seal(topic)
        assert [event.id for event in hw.read(topic)] == [ref.id for ref in refs]
        if not fired:
            break
    assert number > 500
    assert not hw.check().damaged


def test_a_transaction_may_be_interrupted_anywhere(hw: Store) -> None:
    hw.create("t", partitions=2)
    hw.append("u", b"")
    work = Work(hw)

    def transact() -> None:
        datas = [work.next() for _ in range(3)]
        with hw.transaction() as tx:
            for number, data in enumerate(datas[:2]):
                tx.append("t", data, partition=number)
            tx.append("u", datas[2])
        work.acknowledged.update(datas[:2])

    run_interrupted(work, transact, stride(3))
    in_t = {event.data for event in hw.read("t")}
    for event in list(hw.read("u"))[1:]:
        number = int(event.data or b"")
        assert {b"%d" % (number - 2), b"%d" % (number - 1)} <= in_t, "half a transaction"


@pytest.mark.parametrize("transactional", [False, True], ids=["acks", "acks in a transaction"])
def test_a_consumer_may_be_interrupted_wherever_it_locks(hw: Store, transactional: bool) -> None:
    """Its cursors are stored under the lock of a file, which all members of all processes need."""
    hw.append_many("t", [b"0", b"1", b"2"])
    hw.append("u", b"")

    def consume(name: str) -> None:
        with join(hw, name, "t") as consumer:
            events = consumer.take(2, 1 << 20, 0.0)
            if transactional:
                with hw.transaction() as tx:
                    tx.append("u", name)
                    tx.ack(*events, consumer=consumer)
            else:
                consumer.ack(*events)

    name = ""
    for number in count(step=stride(5)):
        name = f"c{number}"
        fired = interrupted(lambda: consume(name), number, LOCKING)  # noqa: B023
        assert_free(hw.path / "topics")
        assert_free(hw.path / "consumers" / name)
        with hw.consumer(name, "t"):  # joins, and leaves, without a wait for anybody
            pass
        if not fired:
            break
    assert number > 200
    assert [info.cursor for info in hw.consumers("t") if info.name == name] == [2]
    assert not hw.check().damaged


def test_the_lock_of_a_replicator_may_be_interrupted_anywhere(tmp_path: Path) -> None:
    marker = Marker(tmp_path / "replica", Disk(), Clock())

    def hold() -> None:
        with marker.held():
            pass

    times = 0
    for work in (hold, marker.busy):
        for _ in interrupt_everywhere(work):
            times += 1
            assert not marker.busy()
            hold()
    assert times > 20


def test_changing_the_users_may_be_interrupted_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    disk, clock = UnsyncedDisk(), Clock()

    def add(name: str = "ada") -> None:
        with changing(path, disk, clock) as accounts:
            accounts[name] = Account(scopes=("read:*",))

    times = 0
    for _ in interrupt_everywhere(add):
        times += 1
        fd = os.open(tmp_path, os.O_RDONLY)
        try:
            assert disk.try_lock(fd), "it is locked"
        finally:
            os.close(fd)
    add("eve")
    assert times > 20
    assert set(read(path, disk).accounts) == {"ada", "eve"}


def test_deleting_a_topic_may_be_interrupted_anywhere(hw: Store) -> None:
    offsets: list[int] = []
    with open_unsynced(hw.path, limits=LIMITS) as other:
        for number in count():
            hw.append("gone", b"%d" % number)
            fired = interrupted(lambda: hw.delete("gone"), number)
            assert_free(hw.path / "topics")
            for engine in (hw, other):  # it is there as it was, or made again
                ref = engine.append("gone", b"after %d" % number)
                assert [event.data for event in engine.read("gone", start=ref.offset)] == [b"after %d" % number]
            offsets = [event.offset for event in hw.read("gone")]
            assert offsets == list(range(len(offsets)))
            if not fired:
                break
    assert number > 50
    assert offsets == [0, 1]
    assert not hw.check().damaged


@pytest.mark.parametrize("kind", ["append", "transaction"])
def test_those_who_wait_go_on_when_one_of_them_is_interrupted(hw: Store, kind: str) -> None:
    """The interrupted thread leads for the others at times, and waits at other times."""
    hw.create("t", partitions=2)
    work = Work(hw)
    stop = threading.Event()
    counts = [0] * 3
    errors: list[BaseException] = []

    def others(number: int) -> None:
        while not stop.is_set():
            try:
                hw.append("t", b"other %d %d" % (number, counts[number]), durability="os")
            except Unavailable as error:
                if error.code != "interrupted":
                    errors.append(error)
            counts[number] += 1

    def transact() -> None:
        with hw.transaction() as tx:
            tx.append("t", work.next(), partition=0)
            tx.append("t", work.next(), partition=1)

    threads = [threading.Thread(target=others, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in interrupt_everywhere(work.append if kind == "append" else transact, step=1 if kind == "append" else 5):
            before = list(counts)
            work.append()
            wait_for(lambda: all(now > then for now, then in zip(counts, before, strict=True)))  # noqa: B023  (used at once)
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)
    assert_dense(hw, "t", work.acknowledged)


def test_a_handler_that_appends_to_the_log_it_interrupted_is_refused(hw: Store) -> None:
    """It cannot wait for the call that waits for it."""
    hw.append("t", b"")
    refused: list[HeadwaterError] = []
    log = hw.directory._topics.get("t").logs[0]
    with log.transacting():
        try:
            hw.append("t", b"from a handler")
        except Unavailable as error:
            refused.append(error)
    assert [error.code for error in refused] == ["reentered"]
    assert hw.append("t", b"after").offset == 1


def test_signals_thousands_of_times_leave_the_log_in_order(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise Interruption

    def other(said: Said) -> int:
        with open_unsynced(tmp_path / "data", limits=LIMITS) as theirs:
            while (data := said.recv()) is not None:
                said.send(theirs.append("t", data, durability="os").offset)
        return 0

    with open_unsynced(tmp_path / "data", limits=LIMITS) as hw:
        hw.create("t", partitions=2)
    child = Child(other)
    chance = random.Random(5)
    with open_unsynced(tmp_path / "data", limits=LIMITS) as hw:
        work = Work(hw)

        def transact() -> None:
            with hw.transaction() as tx:
                tx.append("t", work.next(), partition=0)
                tx.append("t", work.next(), partition=1)

        before = signal.signal(signal.SIGALRM, interrupt)
        interruptions = 0
        try:
            while interruptions < 3000:
                do = chance.choice([work.append, work.append_many, transact])
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 400e-6))
                    for _ in range(10):
                        do()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Interruption:
                    interruptions += 1
                    if interruptions % 50 == 0:
                        data = work.next()
                        child.tell(data)
                        child.hear()
                        work.acknowledged.add(data)
                    elif interruptions % 5 == 0:
                        assert_free(hw.path)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        child.tell(None)
        child.result()
        work.append()
        assert_dense(hw, "t", work.acknowledged)
        assert not hw.check().damaged
    with headwater.open(tmp_path / "data") as again:
        again.append("t", b"again")


def test_an_append_to_a_bucket_may_be_interrupted_anywhere(tmp_path: Path) -> None:
    with headwater.open(f"objects://{tmp_path}/bucket") as bucket:
        assert isinstance(bucket, headwater.Store)
        bucket.append("t", b"0")
        for number in interrupt_everywhere(lambda: bucket.append("t", b"interrupted")):
            data = b"%d" % number
            ref = bucket.append("t", data)
            (event,) = bucket.read("t", start=ref.offset, end=ref.offset + 1)
            assert event.data == data
        for number in interrupt_everywhere(lambda: bucket.append_later("t", b"later")):
            bucket.append("t", b"%d" % number)
        bucket.flush()
        offsets = [event.offset for event in bucket.read("t")]
        assert offsets == list(range(len(offsets)))
