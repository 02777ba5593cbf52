"""Any number of topics and partitions in one process, with the descriptors and the memory that it has."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headwater import Limits, NotFound, Unavailable
from headwater.disk.open_files import open_files
from headwater.opening import open_directory
from headwater.store import Store
from tests.log.children import Child, Said
from tests.log.unsynced import UnsyncedDisk, open_unsynced

MIB = 1 << 20
PROGRAM = Path(__file__).with_name("many_topics.py")
ROOT = PROGRAM.parents[2]


@pytest.mark.parametrize(("topics", "descriptors"), [(500, 256), pytest.param(10_000, 1024, marks=pytest.mark.torture)])
@pytest.mark.timeout(1500)
def test_a_process_works_on_far_more_topics_than_it_has_descriptors(
    tmp_path: Path, topics: int, descriptors: int
) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), str(topics), str(descriptors)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["files_max"] <= descriptors * 3 // 4  # some are left for whatever else the program does
    kept = {step: size - figures["bytes_first"] for step, size in figures["bytes"].items()}
    for step in ("append", "append again", "read", "info", "consumers"):
        assert kept[step] < 24 * MIB, kept  # however many there are
    # A reader for each topic at once, and a replica, which has all of them in hand.
    assert figures["bytes_max"] - figures["bytes_first"] < 48 * MIB + topics * 32 * 1024, kept


def open_topics(hw: Store) -> list[str]:
    return sorted(hw.directory._topics.open)


def test_the_topics_that_were_not_used_for_longest_are_closed(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data", limits=Limits(open_topics_max=4)) as hw:
        for name in "abcd":
            hw.append(name, b"")
        hw.append("a", b"")
        list(hw.read("b"))
        assert hw.append("e", b"").offset == 0
        assert open_topics(hw) == ["a", "b", "d", "e"]
        assert [hw.append(name, b"").offset for name in "cdabe"] == [1, 1, 2, 1, 1]
        assert len(open_topics(hw)) <= 4


def test_logs_without_settings_of_their_own_share_their_limits_and_hold_nothing_for_an_archive(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        hw.create("own", segment_bytes=1 << 20)
        for name in ("a", "b", "own"):
            hw.append(name, b"")
            assert len(list(hw.read(name))) == 1
        a, b, own = (hw.directory.partition_log(name, 0) for name in ("a", "b", "own"))
        assert a.place.limits is b.place.limits
        assert own.place.limits.segment_bytes == 1 << 20
        assert not {"key_indexes", "_summaries", "_cached", "_indexed"} & set(vars(a.archived))


def test_a_log_that_somebody_holds_is_the_one_that_others_get(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data", limits=Limits(open_topics_max=2)) as hw:
        hw.append("held", b"0")
        held = hw.directory.partition_log("held", 0)
        for number in range(20):
            hw.append(f"other{number}", b"")
        assert "held" not in open_topics(hw)
        assert hw.directory.partition_log("held", 0) is held


def test_closing_ends_followers_of_topics_that_were_closed_before(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data", limits=Limits(open_topics_max=2)) as hw:
        hw.append("followed", b"0")
        follower = hw.follow("followed", start="earliest", timeout=30)
        assert next(follower).data == b"0"
        for number in range(20):
            hw.append(f"other{number}", b"")
        hw.append("followed", b"1")
        assert next(follower).data == b"1"
        asleep = threading.Thread(target=list, args=[follower])
        asleep.start()
    asleep.join(30)
    assert not asleep.is_alive()


class FailingDisk(UnsyncedDisk):
    """Fails to sync while it is told to."""

    fails = False

    def write_synced(self, fd: int, data: bytes, position: int) -> None:
        if self.fails:
            raise OSError(5, "Input/output error")
        super().write_synced(fd, data, position)


def test_a_frozen_log_stays_frozen_however_many_topics_are_opened(tmp_path: Path) -> None:
    disk = FailingDisk()
    with open_directory(tmp_path / "data", limits=Limits(open_topics_max=2), disk=disk) as hw:
        hw.append("t", b"kept")
        disk.fails = True
        with pytest.raises(Unavailable):
            hw.append("t", b"lost")
        disk.fails = False
        for number in range(20):
            hw.append(f"other{number}", b"")
        with pytest.raises(Unavailable) as raised:
            hw.append("t", b"refused")
        assert raised.value.code == "frozen"
    with open_directory(tmp_path / "data", disk=disk) as hw:
        assert hw.append("t", b"taken").offset == 1


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("how", ["pause", "seal", "pack"])
def test_a_reader_that_pauses_holds_no_file_and_goes_on(tmp_path: Path, how: str, reverse: bool) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        append_some(hw)
        if how == "pack":
            hw.seal("t")
        reader = hw.read("t", key="k", reverse=reverse)  # which reads batch after batch
        found = [next(reader).offset for _ in range(7)]
        if how == "seal":  # which puts a packed file in the place of the one that is being read
            hw.seal("t")
        rest_all()
        assert not files_below(tmp_path)
        found += [event.offset for event in reader]
        assert found == (list(range(499, -1, -1)) if reverse else list(range(500)))


def append_some(hw: Store) -> None:
    """Half a megabyte: more than a reader takes into memory at once."""
    for number in range(500):
        hw.append("t", b"%d" % number + bytes(1000), key="k")


def rest_all() -> None:
    while open_files.spare():
        pass


def files_below(path: Path) -> list[str]:
    """The files of a directory that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [each for each in found if each.startswith(str(path))]


def test_a_reader_that_pauses_is_told_when_retention_has_passed_it(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        append_some(hw)
        reader = hw.read("t", key="k")
        next(reader)
        hw.seal("t")
        rest_all()
        assert hw.retain("t", before=500)
        with pytest.raises(NotFound) as raised:
            list(reader)
        assert (raised.value.code, raised.value.oldest) == ("offset_gone", 500)


def exhaust(path: Path, topics: int) -> str:
    """Work on topics while something else has taken all descriptors but a few; the code of the error of the last."""
    with open_unsynced(path) as hw:
        for number in range(topics):
            hw.append(f"t{number}", b"")
        taken = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for number in range(topics):
            assert hw.append(f"t{number}", b"").offset == 1
            assert len(list(hw.read(f"t{number}"))) == 2
        rest_all()
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        try:
            hw.append("t0", b"")
        except Unavailable as error:
            return error.code
        finally:
            for fd in taken:
                os.close(fd)
        return ""


def test_logs_give_descriptors_back_when_others_have_taken_the_rest(tmp_path: Path) -> None:
    def work(_: Said) -> str:
        limit = max(map(int, os.listdir("/proc/self/fd"))) + 80
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        return exhaust(tmp_path / "data", topics=20)

    assert Child(work).result() == "too_many_files"
