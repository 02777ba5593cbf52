"""Transactions: all or nothing, in one partition and over several, whoever dies and whatever fails."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater.directory import journal, transaction
from headwater.directory.log_writer import LogWriter
from headwater.errors import Closed, Conflict, Invalid, NotFound, TooLarge, Unavailable
from headwater.format.names import partition_of
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from headwater.transaction import Transaction
from tests.log.children import Child, Said
from tests.log.conformance import datas
from tests.log.test_groups import run_together
from tests.log.unsynced import UnsyncedDisk, open_unsynced
from tests.opened import begin


@pytest.fixture(autouse=True)
def a_and_b(hw: Store) -> None:
    hw.create("a")
    hw.create("b")


def journals(path: Path) -> list[Path]:
    return sorted((path / "journal").glob("*"))


def ends(hw: Store, *topics: str) -> list[int]:
    return [partition.end for topic in topics for partition in hw.describe(topic).partitions]


def move(tx: Transaction, number: int) -> None:
    """What most tests commit: one event to each of two topics."""
    tx.append("a", b"%d" % number, key=b"k")
    tx.append("b", {"n": number})


# All or nothing


def test_a_transaction_is_there_when_its_block_ends_and_its_refs_tell_where(hw: Store) -> None:
    hw.append("b", b"before")
    with hw.transaction() as tx:
        tx.append("b", {"n": 1}, type="x", meta={"m": "n"})
        tx.append("a", b"2", key=b"k")
        tx.append("b", "3")
        assert (tx.refs, ends(hw, "a", "b")) == ([], [0, 1])
    assert [(ref.topic, ref.partition, ref.offset, ref.durability) for ref in tx.refs] == [
        ("b", 0, 1, "fsync"),
        ("a", 0, 0, "fsync"),
        ("b", 0, 2, "fsync"),
    ]
    events = {(event.topic, event.offset): event for event in (*hw.read("a"), *hw.read("b"))}
    assert all(events[ref.topic, ref.offset].id == ref.id for ref in tx.refs)
    assert [event.value for event in hw.read("b")] == [b"before", {"n": 1}, "3"]
    assert (events["b", 1].type, events["b", 1].meta, events["a", 0].key) == ("x", {"m": "n"}, b"k")


def test_commit_may_be_called_in_the_block(hw: Store) -> None:
    with hw.transaction() as tx:
        move(tx, 1)
        assert tx.commit() == tx.refs
        assert ends(hw, "a", "b") == [1, 1]
    assert ends(hw, "a", "b") == [1, 1]


def test_what_raises_in_the_block_discards_it_all(hw: Store) -> None:
    with pytest.raises(RuntimeError, match="changed my mind"), hw.transaction() as tx:  # noqa: PT012  (that is the case)
        move(tx, 1)
        raise RuntimeError("changed my mind")
    assert (ends(hw, "a", "b"), tx.refs) == ([0, 0], [])
    with pytest.raises(Closed):
        tx.commit()


def test_an_invalid_append_leaves_the_rest_to_be_decided(hw: Store) -> None:
    with hw.transaction() as tx:
        tx.append("a", b"1")
        with pytest.raises(Invalid):
            tx.append("b", object())  # type: ignore[arg-type]
        with pytest.raises(Invalid):
            tx.append("b", b"", expected_version="none")
        with pytest.raises(NotFound):
            tx.append("b", b"", partition=1)
    assert ends(hw, "a", "b") == [1, 0]


@pytest.mark.parametrize("topics", [["a", "b"], ["a"], ["b", "a"], ["a", "a"]])
def test_a_conflict_in_one_part_leaves_nothing_anywhere(hw: Store, path: Path, topics: list[str]) -> None:
    hw.append(topics[-1], b"first", key=b"k")
    before = ends(hw, "a", "b")
    tx = hw.transaction()
    for topic in topics:
        tx.append(topic, b"", key=b"other", expected_version="none")
    tx.append(topics[-1], b"", key=b"k", expected_version=7)
    with pytest.raises(Conflict) as caught:
        tx.commit()
    assert (caught.value.version, ends(hw, "a", "b")) == (0, before)
    with hw.transaction() as tx:  # nothing is left locked, nor frozen
        move(tx, 1)
    assert ends(hw, "a", "b") == [end + 1 for end in before]
    hw.close()
    with open_unsynced(path) as again:
        assert ends(again, "a", "b") == [end + 1 for end in before]
        assert not again.check().findings


def test_expected_versions_are_those_before_the_transaction(hw: Store) -> None:
    with hw.transaction() as tx:
        tx.append("a", b"1", key=b"k", expected_version="none")
        tx.append("a", b"2", key=b"k", expected_version="none")
        tx.append("b", b"3", key=b"k", expected_version="none")
    with hw.transaction() as tx:
        tx.append("a", b"4", key=b"k", expected_version=1)
    with pytest.raises(Conflict), hw.transaction() as tx:
        tx.append("b", b"5", key=b"k", expected_version=1)
    assert hw.append("a", b"6", key=b"k", expected_version=2).offset == 3


def test_an_empty_transaction_does_nothing(hw: Store, path: Path) -> None:
    with hw.transaction() as tx:
        pass
    assert (tx.refs, journals(path)) == ([], [])


def test_a_transaction_is_over_once(hw: Store) -> None:
    with hw.transaction() as tx:
        move(tx, 1)
    for again in (tx.commit, partial(tx.append, "a", b"")):
        with pytest.raises(Closed, match="has ended"):
            again()
    other = hw.transaction()
    other.append("a", b"")
    other.discard()
    with pytest.raises(Closed):
        other.commit()
    assert ends(hw, "a", "b") == [1, 1]


def test_a_transaction_ends_with_its_engine(hw: Store, path: Path) -> None:
    tx = hw.transaction()
    move(tx, 1)
    hw.close()
    with pytest.raises(Closed):
        tx.commit()
    with pytest.raises(Closed):
        tx.append("a", b"")
    with pytest.raises(Closed):
        hw.transaction()
    assert journals(path) == []


# One partition, several partitions


def test_in_one_partition_it_is_one_batch_and_needs_no_journal(hw: Store, path: Path) -> None:
    with hw.transaction() as tx:
        for number in range(10):
            tx.append("a", b"%d" % number, key=b"k%d" % (number % 3), type=f"t{number % 2}")
    assert [len(batch) for batch in hw.read_batches("a")] == [10]
    assert (datas(hw.read("a")), journals(path)) == ([b"%d" % number for number in range(10)], [])


def test_what_one_batch_cannot_hold_needs_a_journal(hw: Store, path: Path) -> None:
    with hw.transaction() as tx:
        tx.append("a", b"1")
        tx.append("a", "2")
        tx.append("a", {"n": 3})
    assert [event.value for event in hw.read("a")] == [b"1", "2", {"n": 3}]
    assert len(journals(path)) == 1


def test_keys_choose_the_partitions(hw: Store) -> None:
    hw.create("many", partitions=5)
    keys = [b"k%d" % number for number in range(20)]
    with hw.transaction() as tx:
        for key in keys:
            tx.append("many", key, key=key)
        tx.append("many", b"there", partition=2)
    assert len({ref.partition for ref in tx.refs}) == 5
    assert {event.data for event in hw.read("many")} == {*keys, b"there"}
    for key, ref in zip(keys, tx.refs, strict=False):
        assert hw.version("many", key) == ref.offset
    assert tx.refs[-1].partition == 2


def test_transactions_make_topics_that_are_not_there(hw: Store) -> None:
    with hw.transaction() as tx:
        tx.append("new", b"1")
        tx.append("newer", b"2")
    assert ends(hw, "new", "newer") == [1, 1]


def test_transactions_roll_segments_which_are_then_sealed(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "own") as hw:
        for topic in ("a", "b"):
            hw.create(topic, segment_bytes=4096)
        for number in range(20):
            with hw.transaction() as tx:
                tx.append("a", b"%d" % number * 300)
                tx.append("b", b"%d" % number * 300, key=b"k", expected_version=number - 1 if number else "none")
        assert hw.describe("a").partitions[0].segments > 1
        hw.seal("a")
    with open_unsynced(tmp_path / "own") as hw:
        assert datas(hw.read("a")) == datas(hw.read("b")) == [b"%d" % number * 300 for number in range(20)]
        assert not hw.check().damaged


# Durability


class CountingDisk(UnsyncedDisk):
    def __init__(self) -> None:
        self.syncs = 0

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]  # noqa: ARG002  (the interface)
        self.syncs += 1


def test_a_transaction_over_several_logs_costs_one_sync(path: Path) -> None:
    disk = CountingDisk()
    with open_directory(path, disk=disk) as hw:
        for syncs in (None, 1):  # the first makes topics and journal
            before = disk.syncs
            with hw.transaction(durability="os") as tx:
                for topic in "abcd":
                    tx.append(topic, b"")
            assert {ref.durability for ref in tx.refs} == {"fsync"}
            assert syncs is None or disk.syncs == before + syncs


@pytest.mark.parametrize(("durability", "syncs"), [("fsync", 1), ("os", 0)])
def test_in_one_partition_durability_is_as_asked_for(path: Path, durability: Any, syncs: int) -> None:
    disk = CountingDisk()
    with open_directory(path, disk=disk) as hw:
        for _ in range(3):
            hw.append("a", b"")
            before = disk.syncs
            for number in (1, 2):
                with hw.transaction(durability=durability) as tx:
                    tx.append("a", b"1")
                    tx.append("a", b"2")
                assert {ref.durability for ref in tx.refs} == {durability}
                assert disk.syncs == before + number * syncs


def test_what_precedes_a_share_is_made_durable_first(path: Path) -> None:
    """A journal brings back its own bytes, not what was appended to the log before them."""
    with open_unsynced(path) as hw:
        hw.append("a", b"", durability="os")
        with hw.transaction() as tx:
            move(tx, 1)
        state = hw.directory._topics.get("a").logs[0].state()
        assert (state.durable_offset, state.safe_offset, state.visible_offset) == (1, 2, 2)


@pytest.mark.parametrize("durability", ["", "none", True])
def test_an_unknown_durability_is_invalid(hw: Store, durability: Any) -> None:
    with pytest.raises(Invalid):
        hw.transaction(durability=durability)


# Limits


def test_limits_on_a_transaction(path: Path) -> None:
    limits = Limits(transaction_bytes_max=1000, transaction_events_max=5, blob_bytes_min=400)
    with open_unsynced(path, limits=limits) as hw:
        tx = hw.transaction()
        with pytest.raises(TooLarge) as caught:
            tx.append("a", b"x" * 401)
        assert caught.value.limit == "blob_bytes_min"
        tx.append("a", b"x" * 400)
        tx.append("a", b"x" * 400)
        with pytest.raises(TooLarge) as caught:
            tx.append("b", b"x" * 150, key=b"k" * 100)
        assert caught.value.limit == "transaction_bytes_max"
        for _ in range(3):  # what was refused does not count
            tx.append("b", b"x" * 60)
        with pytest.raises(TooLarge) as caught:
            tx.append("b", b"")
        assert caught.value.limit == "transaction_events_max"
        tx.commit()
        assert ends(hw, "a", "b") == [2, 3]


def test_a_transaction_of_more_than_one_batch_may_have_is_journaled(path: Path) -> None:
    with open_unsynced(path, limits=Limits(batch_events_max=10)) as hw:
        with hw.transaction() as tx:
            for number in range(35):
                tx.append("a", b"%d" % number)
        assert [len(batch) for batch in hw.read_batches("a")] == [10, 10, 10, 5]
        assert len(journals(path)) == 1


# Others


@pytest.mark.parametrize("how", ["threads", "processes"])
def test_transactions_in_opposite_orders_do_not_wait_for_each_other_forever(tmp_path: Path, how: str) -> None:
    topics = ["a", "b", "c"]
    count = 15
    with open_unsynced(tmp_path / "own") as hw:
        for topic in topics:
            hw.create(topic, partitions=2)

    def commit_all(hw: Store, order: int) -> None:
        for number in range(count):
            with hw.transaction() as tx:
                for topic in topics[::order]:
                    for partition in (0, 1)[::order]:
                        tx.append(topic, b"%d %d" % (order, number), partition=partition)

    def work(order: int, _: Said) -> None:
        with open_unsynced(tmp_path / "own") as hw:
            commit_all(hw, order)

    if how == "threads":
        with open_unsynced(tmp_path / "own") as hw:
            assert run_together([partial(commit_all, hw, order) for order in (1, -1, 1, -1)]) == [None] * 4
    else:
        for child in [Child(partial(work, order)) for order in (1, -1, 1, -1)]:
            child.result()
    with open_unsynced(tmp_path / "own") as hw:
        assert ends(hw, *topics) == [4 * count] * 6
        order = [datas(hw.read("a", partition=0)), *(datas(hw.read(t, partition=p)) for t in topics for p in (0, 1))]
        assert all(each == order[0] for each in order)  # one after the other, everywhere
        assert not hw.check().findings


def test_a_topic_that_is_deleted_in_between_fails_the_transaction_and_not_the_next(hw: Store, path: Path) -> None:
    tx = hw.transaction()
    move(tx, 1)
    with open_unsynced(path) as other:
        other.delete("b")
    with pytest.raises(NotFound) as caught:
        tx.commit()
    assert (caught.value.code, ends(hw, "a")) == ("topic_deleted", [0])
    with hw.transaction() as tx:  # which makes it again
        move(tx, 2)
    assert ends(hw, "a", "b") == [1, 1]
    with open_unsynced(path) as other:
        other.delete("b")
        other.create("b", partitions=3)
    with hw.transaction() as tx:
        tx.append("a", b"")
        tx.append("b", b"", partition=2)
    assert ends(hw, "a", "b") == [2, 0, 0, 1]


def test_followers_in_another_process_see_the_events(hw: Store, path: Path) -> None:
    def work(said: Said) -> list[bytes | None]:
        with open_unsynced(path) as other:
            following = other.follow("a", start=0)
            said.send("ready")
            return datas(itertools.islice(following, 3))

    child = Child(work)
    child.hear()
    for number in range(3):
        with hw.transaction() as tx:
            move(tx, number)
    assert child.result() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("mixed", [False, True])
def test_a_reader_never_sees_a_part_of_what_a_partition_gets(hw: Store, path: Path, mixed: bool) -> None:
    size, count = 40, 25
    contents: list[Callable[[bytes], Any]] = [bytes, bytes.decode if mixed else bytes]

    def work(said: Said) -> int:
        looks = 0
        with open_unsynced(path) as other:
            said.send("ready")
            while True:
                seen = ends(other, "a", "b")
                read = sum(1 for _ in other.read("a", start=max(0, seen[0] - size)))
                assert [end % size for end in (*seen, read)] == [0, 0, 0], (seen, read)
                looks += 1
                if min(seen) == size * count:
                    return looks

    child = Child(work)
    child.hear()
    for _ in range(count):
        with hw.transaction() as tx:
            for number in range(size):
                for topic in ("a", "b"):
                    tx.append(topic, contents[number % 2](b"x" * 100))
    assert child.result() > 1


# Journals


def test_journals_are_removed_on_close(hw: Store, path: Path) -> None:
    for number in range(3):
        with hw.transaction() as tx:
            move(tx, number)
    assert len(journals(path)) == 1
    hw.close()
    assert journals(path) == []


def test_a_journal_that_has_grown_is_begun_anew_when_the_logs_are_synced(
    hw: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "CHECKPOINT_BYTES", 3000)
    monkeypatch.setattr(journal, "RESERVE_BYTES", 100)
    sizes = set()
    for number in range(40):
        with hw.transaction() as tx:
            move(tx, number)
        sizes.add(journals(path)[0].stat().st_size)
    assert max(sizes) < 5000
    assert hw.directory._topics.get("a").logs[0].state().durable_offset > 30
    (file,) = hw.directory._journal._free
    assert file.number == 41
    assert len(list(journal.entries(path / "journal", hw.directory.disk))) == len(file.entries) < 12


@pytest.fixture
def dies(path: Path) -> Callable[[str, int], None]:
    def dies(what: str, number: int) -> None:
        def work(_: Said) -> None:
            with open_directory(path, disk=DyingDisk(what, number)) as hw, hw.transaction() as tx:
                move(tx, 1)
                tx.append("a", "another content")

        with pytest.raises(AssertionError, match=f"ended with -{signal.SIGKILL:d}"):
            Child(work).result()

    return dies


class DyingDisk(UnsyncedDisk):
    """Kills its process right before the entry is written (0), behind it (1), or behind the first or second log."""

    def __init__(self, what: str, number: int) -> None:
        self._what = what
        self._left = number

    def write_synced(self, fd: int, data: bytes, position: int) -> None:
        self._die("entry", data.startswith(b"HWJOURN1"))
        super().write_synced(fd, data, position)
        self._die("entry", data.startswith(b"HWJOURN1"))

    def pwrite(self, fd: int, data: bytes, position: int) -> int:  # type: ignore[override]
        self._die("log", data.startswith(b"HWB1"))
        return os.pwrite(fd, data, position)

    def _die(self, what: str, there: bool) -> None:
        if what == self._what and there:
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1


DEATHS = [("entry", 0, False), ("entry", 1, True), ("log", 0, True), ("log", 1, True)]


@pytest.mark.parametrize(("what", "number", "there"), DEATHS)
@pytest.mark.parametrize("next_one", ["opens", "appends", "reads", "reads one", "follows", "commits", "checks"])
def test_whoever_comes_next_finishes_what_a_killed_process_has_committed(
    hw: Store, path: Path, dies: Callable[[str, int], None], what: str, number: int, there: bool, next_one: str
) -> None:
    hw.append("a", b"before")
    if next_one == "opens":
        hw.close()
    dies(what, number)
    assert len(journals(path)) == 1
    expected = ([b"before", b"1", b"another content"], [b'{"n":1}']) if there else ([b"before"], [])
    after = (0, 0)
    if next_one == "opens":
        hw = open_unsynced(path)
        assert journals(path) == []
    elif next_one == "appends":
        hw.append("a", b"next")
        hw.append("b", b"next")
        after = (1, 1)
    elif next_one == "follows":
        follow = hw.follow("b", start=0, timeout=0)
        assert datas(iter(follow)) == expected[1]
    elif next_one == "commits":
        with hw.transaction() as tx:
            move(tx, 2)
        after = (1, 1)
    elif next_one == "checks":
        assert not hw.check().damaged
    elif next_one == "reads one":
        assert datas(hw.read("b")) == expected[1]
    found = datas(hw.read("a")), datas(hw.read("b"))
    assert tuple(each[: len(each) - more] for each, more in zip(found, after, strict=True)) == expected
    with open_unsynced(path) as again:
        assert (datas(again.read("a")), datas(again.read("b"))) == found
        assert not again.check().damaged
    hw.close()
    assert journals(path) == []


def test_one_who_follows_alone_sees_what_a_killed_process_has_committed(
    hw: Store, dies: Callable[[str, int], None]
) -> None:
    hw.append("b", b"before")
    with hw.follow("b", start=0, timeout=20) as follow:
        assert next(follow).data == b"before"
        dies("log", 0)
        assert next(follow).data == b'{"n":1}'


def test_a_damaged_log_does_not_keep_others_from_being_opened_and_finished(
    hw: Store, path: Path, dies: Callable[[str, int], None]
) -> None:
    dies("log", 0)
    hw.close()
    for file in ("topics/b/topic.json", "topics/b/0/00000000000000000000.log"):
        stored = (path / file).read_bytes()
        (path / file).write_bytes(b"?" + stored[1:])
        with open_unsynced(path) as again:
            assert datas(again.read("a")) == [b"1", b"another content"]
            assert again.check("b").damaged
        assert len(journals(path)) == 1  # it is still needed
        (path / file).write_bytes(stored)
    with open_unsynced(path) as again:
        assert datas(again.read("b")) == [b'{"n":1}']
    assert journals(path) == []


def test_a_journal_is_not_applied_to_a_topic_that_was_made_again(
    hw: Store, path: Path, dies: Callable[[str, int], None]
) -> None:
    dies("log", 0)
    hw.delete("b")
    hw.create("b")
    hw.close()
    with open_unsynced(path) as again:
        assert (ends(again, "a"), ends(again, "b")) == ([2], [0])


# Failures


class FailingDisk(UnsyncedDisk):
    """Fails to write what begins so, while it is told to."""

    def __init__(self) -> None:
        self.failing: bytes | None = None
        self.also_zeros = False
        self.creating = False
        self.errno = errno.ENOSPC

    def write_synced(self, fd: int, data: bytes, position: int) -> None:
        self._fail(data)
        super().write_synced(fd, data, position)

    def pwrite(self, fd: int, data: bytes, position: int) -> int:  # type: ignore[override]
        self._fail(data)
        return os.pwrite(fd, data, position)

    def create(self, path: Path) -> int:
        if self.creating and path.suffix == ".journal":
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().create(path)

    def _fail(self, data: bytes) -> None:
        zeros = self.also_zeros and not any(data)
        if zeros or (self.failing is not None and data.startswith(self.failing)):
            raise OSError(self.errno, os.strerror(self.errno))


@pytest.fixture
def failing(path: Path) -> Iterator[tuple[FailingDisk, Store]]:
    disk = FailingDisk()
    with open_directory(path, disk=disk) as engine:
        with engine.transaction() as tx:
            move(tx, 0)
        yield disk, engine


def fail_to_commit(hw: Store) -> Unavailable:
    with pytest.raises(Unavailable) as caught, hw.transaction() as tx:
        move(tx, 1)
    assert caught.value.hint
    return caught.value


def test_an_entry_that_cannot_be_written_leaves_nothing_and_the_next_one_may_succeed(
    failing: tuple[FailingDisk, Store], path: Path
) -> None:
    disk, hw = failing
    disk.failing = b"HWJOURN1"
    assert fail_to_commit(hw).code == "disk_full"
    assert ends(hw, "a", "b") == [1, 1]
    disk.failing = None
    with hw.transaction() as tx:
        move(tx, 2)
    with open_unsynced(path) as again:
        assert datas(again.read("a")) == [b"0", b"2"]


def test_a_journal_that_cannot_be_made_leaves_nothing(path: Path) -> None:
    disk = FailingDisk()
    with open_directory(path, disk=disk) as hw:
        disk.creating = True
        assert fail_to_commit(hw).code == "disk_full"
        disk.creating = False
        with hw.transaction() as tx:
            move(tx, 1)
        assert ends(hw, "a", "b") == [1, 1]


def test_an_entry_that_is_neither_written_nor_void_freezes_the_logs(
    failing: tuple[FailingDisk, Store], path: Path
) -> None:
    disk, hw = failing
    disk.failing, disk.also_zeros, disk.errno = b"HWJOURN1", True, errno.EIO
    fail_to_commit(hw)
    disk.failing, disk.also_zeros = None, False
    for topic in ("a", "b"):
        with pytest.raises(Unavailable) as caught:
            hw.append(topic, b"")
        assert caught.value.code == "frozen"
    with open_unsynced(path) as again:
        assert len(set(ends(again, "a", "b"))) == 1
        assert again.append("a", b"next").offset == ends(again, "b")[0]


def test_a_log_that_fails_after_the_commit_is_finished_when_it_is_opened_again(
    failing: tuple[FailingDisk, Store], path: Path
) -> None:
    disk, hw = failing
    disk.failing = b"HWB1"
    assert fail_to_commit(hw).code == "transaction_unfinished"
    disk.failing = None
    with open_unsynced(path) as again:
        assert (datas(again.read("a")), len(datas(again.read("b")))) == ([b"0", b"1"], 2)
        assert not again.check().damaged


def test_a_log_that_cannot_be_synced_does_not_stop_transactions_of_others(
    failing: tuple[FailingDisk, Store], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, hw = failing
    disk.failing, disk.errno = b"HWB1", errno.EIO
    with pytest.raises(Unavailable):
        hw.append("a", b"")  # frozen
    disk.failing = None
    monkeypatch.setattr(journal, "CHECKPOINT_BYTES", 1)
    for number in range(3):
        with hw.transaction() as tx:
            tx.append("c", b"%d" % number)
            tx.append("d", b"%d" % number)
    assert len(journals(path)) == 2  # the one with the events of the frozen log is kept
    assert ends(hw, "c", "d") == [3, 3]


@pytest.mark.parametrize("where", ["_write", "written", "_apply", "apply"])
def test_an_interrupt_leaves_no_lock_and_nothing_half_done(
    hw: Store, path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    write = transaction._write

    def interrupted(*arguments: Any, **_: object) -> None:
        if where == "written":
            write(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        name = "_write" if where == "written" else where
        patched.setattr(LogWriter if where == "apply" else transaction, name, interrupted)
        with pytest.raises(KeyboardInterrupt), hw.transaction() as tx:
            move(tx, 1)
    with open_unsynced(path, limits=Limits(lock_wait_s=1)) as other:
        for each in (other, hw):
            with each.transaction() as tx:
                move(tx, 2)
        assert ends(other, "a", "b") == ([2, 2] if where == "_write" else [3, 3])


# Forks


def test_a_forked_child_commits_with_a_journal_of_its_own(hw: Store, path: Path) -> None:
    with hw.transaction() as tx:
        move(tx, 0)
    tx = hw.transaction()
    move(tx, 1)

    def work(_: Said) -> int:
        tx.commit()  # the parent's, too
        with hw.transaction() as mine:
            move(mine, 2)
        found = len(journals(path))
        hw.close()
        return found

    assert Child(work).result() == 2
    assert len(journals(path)) == 1
    tx.commit()
    assert datas(hw.read("a")) == [b"0", b"1", b"2", b"1"]
    hw.close()
    assert journals(path) == []


def test_a_fork_while_others_commit_leaves_both_sides_whole(hw: Store) -> None:
    stop = threading.Event()

    def commit() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            with hw.transaction() as tx:
                move(tx, number)

    def work(_: Said) -> None:
        with contextlib.closing(hw):
            for number in range(5):
                with hw.transaction() as tx:
                    move(tx, number)

    thread = threading.Thread(target=commit)
    thread.start()
    for _ in range(3):
        Child(work).result()
    stop.set()
    thread.join()
    first, second = ends(hw, "a", "b")
    assert first == second >= 15
    assert not hw.check().findings


# Many at once


def test_many_events_of_a_transaction_are_one_batch_beside_single_ones(hw: Store, path: Path) -> None:
    with hw.transaction() as tx:
        tx.append("a", b"0", type="first")
        tx.append_many("a", [b"1", b"2"], types=["second", "third"], keys=[b"k", None], metas=[None, {"m": "1"}])
        tx.append_many("a", [])
        tx.append("a", b"3")
    assert [ref.offset for ref in tx.refs] == [0, 1, 2, 3]
    assert [(event.type, event.key, event.data) for event in hw.read("a")] == [
        ("first", None, b"0"),
        ("second", b"k", b"1"),
        ("third", None, b"2"),
        ("", None, b"3"),
    ]
    assert [event.id for event in hw.read("a")] == [ref.id for ref in tx.refs]
    assert len(list(hw.read_batches("a"))) == 1
    assert journals(path) == []


def test_many_events_of_a_transaction_are_spread_by_their_keys(hw: Store) -> None:
    hw.create("p", partitions=3)
    keys = [b"%d" % number for number in range(20)]
    with hw.transaction() as tx:
        tx.append_many("p", keys, keys=keys)
        tx.append("a", b"beside")
    assert set(datas(hw.read("p"))) == set(keys)
    for event in hw.read("p"):
        assert event.key is not None
        assert event.partition == partition_of(event.key, 3)
    places = {event.data: (event.topic, event.partition, event.offset) for event in hw.read("p")}
    assert [(ref.topic, ref.partition, ref.offset) for ref in tx.refs[:-1]] == [places[key] for key in keys]


def test_too_many_events_at_once_are_refused_and_the_rest_stays(path: Path) -> None:
    with open_unsynced(path, limits=Limits(transaction_events_max=3)) as hw:
        with hw.transaction() as tx:
            tx.append_many("a", [b"1", b"2"])
            with pytest.raises(TooLarge, match="3 events"):
                tx.append_many("a", [b"3", b"4"])
            tx.append_many("b", [b"5"])
        assert ends(hw, "a", "b") == [2, 1]


def test_a_transaction_can_take_over_what_another_was_to_do(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data", limits=Limits(transaction_events_max=3)) as hw:
        hw.append_many("in", [b"x"])
        with hw.consumer("mover", "in", timeout=0) as consumer:
            first, second, third = begin(hw), begin(hw), begin(hw)
            first.append("out", b"1")
            second.append_many("out", [b"2", b"3"])
            second.ack(next(consumer))
            third.append("out", b"4")
            first.absorb(second)
            with pytest.raises(Closed):
                second.commit()
            with pytest.raises(TooLarge):
                first.absorb(third)
            assert first.appended == 3
            first.commit()
            third.commit()
            assert [event.data for event in hw.read("out")] == [b"1", b"2", b"3", b"4"]
            assert [info.cursor for info in hw.consumers("in")] == [1]
