"""Damaged, missing or left: snapshots of producers, and journals. It is said, mended, and never read as true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.directory import check as log_check
from headwater.directory import producer_memory as producers
from headwater.errors import Corrupt
from headwater.info import Finding
from headwater.store import Store
from tests.log.conformance import datas
from tests.log.unsynced import open_unsynced


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log whose active segment begins at offset 3, with a snapshot of two producers, and holds one request more."""
    path = tmp_path / "data"
    with open_unsynced(path) as hw:
        hw.append("t", b"p1", producer=("p", 3, 1))
        hw.append("t", b"p2", producer=("p", 3, 2))
        hw.append("t", b"q1", producer=("q", 1, 1))
        hw.seal("t")
        hw.append("t", b"q2", producer=("q", 1, 2))
    return path


@pytest.fixture
def snapshot(data: Path) -> Path:
    (found,) = (data / "topics/t/0").glob("*.producers")
    return found


def flips(file: Path, step: int) -> Iterator[int]:
    """Flip bytes in turn, remove some at the end, and remove it all (-1); then it is as it was."""
    stored = file.read_bytes()
    for at in range(0, len(stored), step):
        file.write_bytes(stored[:at] + bytes([stored[at] ^ 0x15]) + stored[at + 1 :])
        yield at
    for at in (0, 1, 39, 40, len(stored) - 1):
        file.write_bytes(stored[:at])
        yield at
    file.unlink()
    yield -1
    file.write_bytes(stored)


def damage(hw: Store) -> list[Finding]:
    return [finding for finding in hw.check().findings if finding.damage]


def test_a_sound_snapshot_is_nothing_to_speak_of(data: Path) -> None:
    with open_unsynced(data) as hw:
        assert hw.check().findings == []
        assert hw.repair() == []


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.torture)])
def test_any_damage_of_the_snapshot_is_found_and_only_producers_feel_it(data: Path, snapshot: Path, step: int) -> None:
    for number, at in enumerate(flips(snapshot, step)):
        with open_unsynced(data) as hw:
            (found,) = damage(hw)
            assert (found.path, found.topic, found.partition) == (str(snapshot), "t", 0), at
            assert datas(hw.read("t"))[:4] == [b"p1", b"p2", b"q1", b"q2"], at
            with pytest.raises(Corrupt, match="headwater repair") as caught:
                hw.append("t", b"p2", producer=("p", 3, 2))
            assert caught.value.path == str(snapshot)
            if number % 20 == 0:
                assert hw.append("t", b"plain", key=b"k").offset == hw.version("t", b"k")
    with open_unsynced(data) as hw:
        assert damage(hw) == []
        assert hw.append("t", b"p2", producer=("p", 3, 2)).offset == 1


def test_no_segment_is_begun_over_a_damaged_snapshot(data: Path, snapshot: Path) -> None:
    snapshot.write_bytes(b"?" + snapshot.read_bytes()[1:])
    with open_unsynced(data) as hw:
        for _ in range(2):
            with pytest.raises(Corrupt, match="headwater repair"):
                hw.seal("t")
        assert hw.append("t", b"goes on").offset == 4
        hw.repair(apply=True)
        assert hw.seal("t") == 1
        assert datas(hw.read("t")) == [b"p1", b"p2", b"q1", b"q2", b"goes on"]


@pytest.mark.parametrize("missing", [False, True])
def test_repair_puts_an_empty_snapshot_in_place_and_keeps_the_damaged_one(
    data: Path, snapshot: Path, missing: bool
) -> None:
    stored = b"?" + snapshot.read_bytes()[1:]
    snapshot.write_bytes(stored)
    if missing:
        snapshot.unlink()
    with open_unsynced(data) as hw:
        with pytest.raises(Corrupt):
            hw.append("t", b"", producer=("p", 3, 2))
        (planned,) = hw.repair()
        assert (planned.path, planned.done, snapshot.exists()) == (str(snapshot), False, not missing)
        assert "forgotten as of offset 3" in planned.what
        (done,) = hw.repair(apply=True)
        assert done.done
        assert damage(hw) == []
        assert hw.repair() == []
        if missing:
            assert done.kept == ""
        else:
            assert done.kept == planned.kept
            assert Path(done.kept).read_bytes() == stored
            assert [finding.path for finding in hw.check().findings] == [done.kept]
        # What is in the active segment is still known, and the rest is not.
        assert hw.append("t", b"q2", producer=("q", 1, 2)).offset == 3
        assert hw.append("t", b"p2", producer=("p", 1, 2)).offset == 4


def test_a_second_repair_keeps_the_bytes_of_the_first(data: Path, snapshot: Path) -> None:
    kept = set()
    for byte in (b"1", b"2"):
        snapshot.write_bytes(byte)
        with open_unsynced(data) as hw:
            kept |= {action.kept for action in hw.repair(apply=True)}
    assert sorted(Path(each).read_bytes() for each in kept) == [b"1", b"2"]


def test_a_header_that_is_written_anew_still_tells_of_its_snapshot(data: Path, snapshot: Path) -> None:
    file = snapshot.with_suffix(".log")
    file.write_bytes(b"?" + file.read_bytes()[1:])
    with open_unsynced(data) as hw:
        hw.repair(apply=True)
        assert damage(hw) == []
        assert hw.append("t", b"p2", producer=("p", 3, 2)).offset == 1
        assert hw.append("t", b"q2", producer=("q", 1, 2)).offset == 3


def test_header_and_snapshot_are_mended_together(data: Path, snapshot: Path) -> None:
    for file in (snapshot, snapshot.with_suffix(".log")):
        file.write_bytes(b"?" + file.read_bytes()[1:])
    with open_unsynced(data) as hw:
        assert {Path(action.path).suffix for action in hw.repair(apply=True)} == {".log", ".producers"}
        assert damage(hw) == []
        assert hw.append("t", b"q2", producer=("q", 1, 2)).offset == 3


@pytest.mark.parametrize("base", [0, 1, 99])
def test_a_snapshot_of_no_active_segment_is_worth_knowing_and_swept(data: Path, snapshot: Path, base: int) -> None:
    orphan = snapshot.with_name(f"{base:020d}.producers")
    orphan.write_bytes(snapshot.read_bytes())
    with open_unsynced(data) as hw:
        assert [(finding.path, finding.damage) for finding in hw.check().findings] == [(str(orphan), False)]
    (data / "topics/t/0/tail").unlink()  # so that the log is recovered
    with open_unsynced(data) as hw:
        assert hw.append("t", b"p2", producer=("p", 3, 2)).offset == 1
        assert hw.check().findings == []
    assert not orphan.exists()


def test_a_snapshot_that_no_header_tells_of_is_not_used(tmp_path: Path, snapshot: Path) -> None:
    with open_unsynced(tmp_path / "other") as hw:
        hw.append("t", b"")
        stray = tmp_path / "other/topics/t/0" / f"{0:020d}.producers"
        stray.write_bytes(snapshot.read_bytes())
        (found,) = hw.check().findings
        assert (found.path, found.damage) == (str(stray), False)
        assert hw.append("t", b"", producer=("p", 1, 1)).offset == 1


def test_check_beside_writers_that_roll_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A roll between the look at the segments and the look at the snapshot takes that away."""
    with open_unsynced(tmp_path / "data") as hw:
        hw.append("t", b"", producer=("p", 1, 1))
        hw.seal("t")
        hw.append("t", b"")
        read = producers.read_snapshot

        def roll_first(*args: object) -> object:
            hw.seal("t")
            return read(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(log_check, "read_snapshot", roll_first)
        assert hw.check().findings == []


# Journals


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A journal with two transactions that its process has left behind."""
    path = tmp_path / "left"
    hw = open_unsynced(path)
    for number in range(2):
        with hw.transaction() as tx:
            tx.append("a", b"%d" % number)
            tx.append("b", b"%d" % number)
    (file,) = (path / "journal").iterdir()
    stored = file.read_bytes()
    hw.close()
    file.write_bytes(stored)
    return file


def test_the_journal_of_a_living_process_is_nothing_to_speak_of(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data") as hw, hw.transaction() as tx:
        tx.append("a", b"")
        tx.append("b", b"")
        tx.commit()
        with open_unsynced(tmp_path / "data") as other:
            assert other.check().findings == hw.check().findings == []
            assert list((tmp_path / "data/journal").iterdir()) != []


def test_a_journal_that_could_not_be_finished_is_worth_knowing(left: Path) -> None:
    path = left.parent.parent
    file = path / "topics/b/0/00000000000000000000.log"
    stored = file.read_bytes()
    (path / "topics/b/0/tail").unlink()
    file.write_bytes(b"?" + stored[1:])
    with open_unsynced(path) as hw:
        (found,) = [finding for finding in hw.check().findings if finding.path == str(left)]
        assert (found.damage, "2 committed" in found.problem) == (False, True)
        assert [finding.topic for finding in hw.check("a").findings] == []
    file.write_bytes(stored)
    open_unsynced(path).close()
    assert not left.exists()


@pytest.mark.parametrize("at", [0, 9, 40, -1])
def test_an_entry_that_does_not_parse_was_not_committed(left: Path, at: int) -> None:
    stored = left.read_bytes().rstrip(b"\0")
    damaged = bytearray(stored)
    damaged[at] ^= 0x15
    left.write_bytes(damaged)
    with open_unsynced(left.parent.parent) as hw:
        assert datas(hw.read("a")) == datas(hw.read("b")) == [b"0", b"1"]  # the logs have it all
        assert hw.check().findings == []
    assert not left.exists()


def test_strange_files_among_the_journals_are_left_alone(left: Path) -> None:
    for name in ("README", "x.tmp"):
        (left.parent / name).write_bytes(b"strange")
    with open_unsynced(left.parent.parent) as hw:
        assert hw.check().findings == []
    assert sorted(each.name for each in left.parent.iterdir()) == ["README", "x.tmp"]
