"""The file of a consumer: slots that alternate, and what crashes leave of them."""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.directory.cursor_file import Cursors, read_slots
from headwater.disk.disk import Clock, Disk
from headwater.errors import Corrupt, Fenced, NotFound, Unavailable
from headwater.format import cursors as format
from headwater.format.cursors import MemberRecord
from tests.crash.machine import Loss, Machine, write_tree
from tests.crash.recording import Op, RecordingDisk, SteadyClock

UUID = bytes(range(16))
WAIT_S = 5.0
NEXT_BOOT = b"another boot id!"
LOSSES = [Loss("dropped", "kept"), Loss("kept", "kept"), *(Loss("random", "adversarial", seed) for seed in range(4))]


def new(path: Path, disk: Disk | None = None, clock: Clock | None = None, partitions: int = 2) -> Cursors:
    return Cursors.create(path, UUID, [0] * partitions, disk or Disk(), clock or Clock(), WAIT_S)


def opened(path: Path, disk: Disk | None = None, clock: Clock | None = None, partitions: int = 2) -> Cursors:
    return Cursors.open(path, UUID, partitions, disk or Disk(), clock or Clock(), WAIT_S)


def test_what_is_put_is_seen_by_others_at_once(tmp_path: Path) -> None:
    mine, other = new(tmp_path / "c"), opened(tmp_path / "c")
    with mine.held():
        mine.put(1, mine.next(1, cursor=7, fence=3))
    with other.held():
        assert [(slot.cursor, slot.fence) for slot in other.slots()] == [(0, 0), (7, 3)]
        assert other.slot(1) == other.slots()[1]
    assert other.peek([0, 1])[1].cursor == 7
    found = read_slots(tmp_path / "c", Disk())
    assert found is not None
    assert [slot.cursor for slot in found[2] if slot is not None] == [0, 7]


class MidwayDisk(Disk):
    """At the first look, the newest slot of partition 0 is only half written."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.looks = 0

    def read_file(self, path: Path) -> bytes:
        stored = bytearray(super().read_file(path))
        self.looks += 1
        if self.looks == 1:
            stored[self.at + 20 : self.at + format.SLOT_BYTES] = b"\x07" * (format.SLOT_BYTES - 20)
        return bytes(stored)


def test_a_look_that_meets_a_slot_half_written_does_not_take_an_older_one_for_the_newest(tmp_path: Path) -> None:
    cursors = new(tmp_path / "c")
    with cursors.held():
        cursors.put(0, cursors.next(0, cursor=5))
        counter = cursors.slot(0).counter
    disk = MidwayDisk(format.slot_at(0, counter))
    found = read_slots(tmp_path / "c", disk)
    assert found is not None
    assert [slot.cursor for slot in found[2] if slot is not None] == [5, 0]
    assert disk.looks == 2


def test_a_slot_that_is_not_synced_is_replaced_and_one_that_is_stays(tmp_path: Path) -> None:
    cursors = new(tmp_path / "c")
    with cursors.held():
        for cursor, counter in ((1, 2), (2, 4), (3, 6)):
            cursors.put(0, cursors.next(0, cursor=cursor))
            assert cursors.slot(0).counter == counter
        cursors.sync()
        cursors.put(0, cursors.next(0, cursor=4))
        assert cursors.slot(0).counter == 7
    with cursors.held():  # its own, and still not synced
        cursors.put(0, cursors.next(0, cursor=5))
        assert cursors.slot(0).counter == 9
    other = opened(tmp_path / "c")
    with other.held():  # somebody else's: synced first
        other.put(0, other.next(0, cursor=6))
        assert other.slot(0).counter == 10


def test_every_flipped_byte_of_a_slot_falls_back_or_is_noticed(tmp_path: Path) -> None:
    cursors = new(tmp_path / "c", partitions=1)
    with cursors.held():
        cursors.put(0, cursors.next(0, cursor=5))
        cursors.sync()
    stored = (tmp_path / "c").read_bytes()
    newest = format.slot_at(0, 2)
    for at in range(newest, newest + format.SLOT_BYTES):
        (tmp_path / "c").write_bytes(stored[:at] + bytes([stored[at] ^ 0x20]) + stored[at + 1 :])
        with cursors.held():
            assert cursors.slot(0).cursor == 0
    (tmp_path / "c").write_bytes(stored[: format.SLOTS_AT] + bytes([7]) * format.PAIR_BYTES)
    with cursors.held(), pytest.raises(Corrupt) as caught:
        cursors.slot(0)
    assert (caught.value.position, caught.value.size) == (format.SLOTS_AT, format.PAIR_BYTES)


def test_a_damaged_header_is_refused_and_one_of_another_topic_is_not_found(tmp_path: Path) -> None:
    cursors = new(tmp_path / "c")
    with pytest.raises(NotFound):
        Cursors.open(tmp_path / "c", b"x" * 16, 2, Disk(), Clock(), WAIT_S)
    with (tmp_path / "c").open("r+b") as file:
        file.seek(20)
        file.write(b"?")
    with pytest.raises(Corrupt), cursors.held():
        pass
    (tmp_path / "c").unlink()
    with pytest.raises(NotFound), cursors.held():
        pass


def test_a_file_that_was_replaced_while_its_lock_was_awaited_is_not_written(tmp_path: Path) -> None:
    class Replacing(Disk):
        def try_lock(self, fd: int) -> bool:
            if not replaced:
                replaced.append(True)
                new(tmp_path / "c")
            return super().try_lock(fd)

    replaced = [True]
    cursors = new(tmp_path / "c", Replacing())
    replaced.clear()
    with cursors.held():
        cursors.put(0, cursors.next(0, cursor=3))
    fresh = opened(tmp_path / "c")
    with fresh.held():
        assert fresh.slot(0).cursor == 3


def test_the_lock_is_waited_for_only_so_long(tmp_path: Path) -> None:
    new(tmp_path / "c")
    holder = opened(tmp_path / "c")
    hasty = Cursors.open(tmp_path / "c", UUID, 2, Disk(), Clock(), 0.05)
    with holder.held(), pytest.raises(Unavailable, match="locked by another"), hasty.held():
        pass
    with hasty.held():
        pass


def test_owner_and_fence_are_compared(tmp_path: Path) -> None:
    cursors = new(tmp_path / "c")
    me = b"m" * 16
    with cursors.held():
        cursors.put(0, cursors.next(0, owner=me, fence=4))
        assert cursors.owned(0, me, 4).fence == 4
        for owner, fence in ((me, 3), (me, 5), (b"x" * 16, 4)):
            with pytest.raises(Fenced):
                cursors.owned(0, owner, fence)


def test_members_come_and_go_and_are_bounded(tmp_path: Path) -> None:
    cursors = new(tmp_path / "c")
    ids = [bytes([number + 1]) * 16 for number in range(129)]
    with cursors.held():
        for id in ids[:128]:
            cursors.put_member(MemberRecord(id, 1000), 10)
        with pytest.raises(Unavailable, match="128 members"):
            cursors.put_member(MemberRecord(ids[128], 1000), 10)
        cursors.remove_member(ids[3])
        assert cursors.put_member(MemberRecord(ids[128], 2000), 10) == [*ids[:3], ids[128], *ids[4:128]]
        assert cursors.put_member(MemberRecord(ids[128], 3000), 1500) == [ids[128]]  # the others have expired


def test_who_finds_busy_or_another_boot_finishes_transactions_first(tmp_path: Path) -> None:
    cursors = new(tmp_path / "c")
    seen: list[str] = []

    def redo(found: Cursors) -> None:
        seen.append("redo")
        with_journal = found.next(0, cursor=9)
        found.restore(0, with_journal)
        assert not found.restore(0, with_journal)

    with cursors.held():
        cursors.put_member(MemberRecord(b"m" * 16, 1 << 62), 0)
        cursors.set_busy(True)
        assert cursors.busy
    other = Cursors.open(tmp_path / "c", UUID, 2, Disk(), Clock(), WAIT_S, redo)
    with other.held():
        assert (seen, other.busy, other.slot(0).cursor) == (["redo"], False, 9)
    with other.held():
        assert seen == ["redo"]
    rebooted = Cursors.open(tmp_path / "c", UUID, 2, Disk(), SteadyClock(NEXT_BOOT), WAIT_S, redo)
    with rebooted.held():
        assert seen == ["redo", "redo"]
        assert not any(rebooted.members(0))
    with rebooted.held():
        assert seen == ["redo", "redo"]


def test_a_redo_that_fails_is_tried_again(tmp_path: Path) -> None:
    def redo(_: Cursors) -> None:
        raise Unavailable("not now")

    cursors = new(tmp_path / "c")
    with cursors.held():
        cursors.set_busy(True)
    for _ in range(2):
        with pytest.raises(Unavailable), Cursors.open(tmp_path / "c", UUID, 2, Disk(), Clock(), WAIT_S, redo).held():
            pass


def test_after_a_failed_sync_slots_are_written_again(tmp_path: Path) -> None:
    class Failing(Disk):
        fail = False
        writes = 0

        def fdatasync(self, fd: int) -> None:  # type: ignore[override]  # fewer options than os has
            if self.fail:
                raise OSError(errno.EIO, "bad sector")
            os.fdatasync(fd)

        def write(self, fd: int, data: bytes, position: int) -> None:
            self.writes += position == format.SLOTS_AT and len(data) == 2 * format.PAIR_BYTES
            super().write(fd, data, position)

    disk = Failing()
    cursors = new(tmp_path / "c", disk)
    disk.fail = True
    with cursors.held():
        cursors.put(0, cursors.next(0, cursor=1))
        with pytest.raises(Unavailable, match="bad sector"):
            cursors.sync()
    disk.fail, disk.writes = False, 0
    with cursors.held():
        assert cursors.slot(0).cursor == 1
        assert disk.writes == 1
    with cursors.held():
        assert disk.writes == 1


# Crashes


def record(path: Path) -> list[Op]:
    """Two members that put and sync, in turns; marks tell what was put, and what is durable."""
    path.mkdir()
    disk = RecordingDisk(path)
    mine = new(path / "c", disk, SteadyClock(), partitions=1)
    other = opened(path / "c", disk, SteadyClock(), partitions=1)
    cursor = 0
    for who, puts, sync in ((mine, 2, True), (mine, 3, False), (mine, 1, False), (other, 2, False), (mine, 1, True)):
        with who.held():
            for _ in range(puts):
                cursor += 1
                disk.mark(("put", cursor))
                who.put(0, who.next(0, cursor=cursor))
            if sync:
                who.sync()
                disk.mark(("synced", cursor))
    return disk.trace


def moments(trace: list[Op]) -> Iterator[tuple[Machine, int, int]]:
    """After each operation from the first mark on: what was synced for sure, and what was put."""
    machine, synced, put = Machine(), 0, 0
    begun = False
    for op in trace:
        machine.apply(op)
        if op.kind == "mark":
            begun = True
            kind, cursor = op.note
            synced, put = (cursor, put) if kind == "synced" else (synced, cursor)
        if begun:
            yield machine, synced, put


def test_a_power_loss_leaves_the_last_synced_cursor_or_a_later_one(tmp_path: Path) -> None:
    trace = record(tmp_path / "recorded")
    count = 0
    for machine, synced, put in moments(trace):
        for loss in LOSSES:
            path = tmp_path / f"{count}"
            write_tree(machine.after_power_loss(loss._replace(seed=loss.seed + count)), path)
            cursors = opened(path / "c", clock=SteadyClock(NEXT_BOOT), partitions=1)
            with cursors.held():
                assert synced <= cursors.slot(0).cursor <= put
            count += 1
    assert count > 100


def test_a_kill_loses_nothing_and_what_follows_is_safe_from_a_power_loss(tmp_path: Path) -> None:
    trace = record(tmp_path / "recorded")
    for number, (machine, _, put) in enumerate(moments(trace)):
        path = tmp_path / f"{number}"
        inodes = write_tree(machine.cached(), path)
        disk = RecordingDisk(path, {inodes[name]: number for name, number in machine.numbers().items()})
        next_one = opened(path / "c", disk, SteadyClock(), partitions=1)
        with next_one.held():
            found = next_one.slot(0).cursor
            assert found in (put, put - 1)
            next_one.put(0, next_one.next(0, cursor=100))
        after_all = copy.deepcopy(machine)
        for op in disk.trace:
            after_all.apply(op)
        for seed in range(3):
            after = tmp_path / f"{number}-{seed}"
            write_tree(after_all.after_power_loss(Loss("random", "adversarial", seed)), after)
            cursors = opened(after / "c", clock=SteadyClock(NEXT_BOOT), partitions=1)
            with cursors.held():
                assert cursors.slot(0).cursor in (found, 100)
