"""Who may read what Headwater stores: its user alone, or the group of a directory that was made for one."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater import App, Event
from headwater.opening import directory_parts, open_directory
from headwater.replication.replicator import Replicator
from headwater.store import Store
from tests.cli.conftest import PROGRAM
from tests.log.children import Child, Said
from tests.log.unsynced import open_unsynced

PRIVATE = {0o700, 0o600}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(path: Path) -> dict[str, int]:
    """The modes of a directory and of all that is below it, by path; links have none of their own."""
    found = [path, *path.rglob("*")]
    return {str(each): stat.S_IMODE(each.stat().st_mode) for each in found if not each.is_symlink()}


def use(hw: Store) -> None:
    """Have every kind of file: segments, indexes, blobs, cut ends, consumers, journals, producers."""
    hw.create("t", partitions=2)
    hw.append("t", b"1", partition=0, producer=("p", 0, 0))
    hw.append("t", bytes(2 << 20), partition=0)
    hw.seal("t")
    with hw.consumer("c", "t", timeout=0.1) as member:
        member.ack(next(member))
    with hw.transaction() as tx:
        tx.append("t", b"2", partition=0)
        tx.append("u", b"3")
    hw.retain("u", retention_bytes=1 << 20)


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o000])
def test_a_new_directory_and_its_files_are_for_their_user_alone(tmp_path: Path, mask: int) -> None:
    tmp_path.chmod(0o777)  # as /tmp: what is above says nothing
    with umask(mask):
        with open_unsynced(tmp_path / "data") as hw:
            use(hw)
            found = modes(tmp_path / "data")
        found |= modes(tmp_path / "data")
    assert len(found) > 20
    assert {path for path, mode in found.items() if mode not in PRIVATE} == set()


def test_documents_are_for_their_user_alone(tmp_path: Path) -> None:
    app = App()

    @app.projection("orders", "counts")
    def count(document: dict[str, Any] | None, event: Event) -> dict[str, Any]:
        return {"before": document is not None, "offset": event.offset}

    @app.function("orders")
    def act(event: Event) -> None:
        del event

    with umask(0o022), open_directory(tmp_path / "data") as hw:
        hw.append("orders", {}, key="k")
        with app.running(hw) as runner:
            runner.settle(60)
            found = modes(tmp_path / "data")
    assert any("counts" in path for path in found)
    assert {path for path, mode in found.items() if mode not in PRIVATE} == set()


@pytest.mark.parametrize(
    ("mode", "directory", "file"),
    [
        (0o770, 0o770, 0o660),
        (0o2770, 0o2770, 0o660),
        (0o775, 0o770, 0o660),
        (0o750, 0o750, 0o640),
        (0o755, 0o700, 0o600),
        (0o700, 0o700, 0o600),
    ],
)
def test_a_directory_that_was_made_for_a_group_is_shared_with_it(
    tmp_path: Path, mode: int, directory: int, file: int
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    with umask(0o002), open_unsynced(data) as hw:
        use(hw)
        found = modes(data)
    assert found.pop(str(data)) == mode
    assert set(found.values()) == {directory, file}


def test_the_umask_only_narrows(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o770)
    with umask(0o027), open_unsynced(data) as hw:
        use(hw)
    assert set(modes(data).values()) == {0o770, 0o750, 0o640}


@pytest.mark.skipif(os.getuid() != 0, reason="another user takes root")
def test_users_of_one_group_work_on_a_shared_directory(tmp_path: Path) -> None:
    """Two users append and read, each what the other has made; one who is not of the group does neither."""
    group, data = 54_321, tmp_path / "data"
    data.mkdir()
    os.chown(data, -1, group)
    data.chmod(0o2770)
    for each in [tmp_path, *tmp_path.parents][:-1]:
        if each.stat().st_uid == os.getuid() and each != Path("/tmp"):
            each.chmod(each.stat().st_mode | 0o011)

    def work_as(user: int, group: int) -> list[bytes | None]:
        def work(_: Said) -> list[bytes | None]:
            os.setgroups([group])
            os.setgid(user)
            os.setuid(user)
            os.umask(0o007)
            with open_unsynced(data) as hw:
                hw.append("t", b"%d" % user)
                hw.seal("t")
                with hw.consumer("c", "t", timeout=0.1) as member:
                    member.ack(*list(member))
                return [event.data for event in hw.read("t")]

        found: list[bytes | None] = Child(work).result()
        return found

    assert work_as(40_001, group) == [b"40001"]
    assert work_as(40_002, group) == [b"40001", b"40002"]
    assert work_as(40_001, group) == [b"40001", b"40002", b"40001"]
    with pytest.raises(AssertionError, match=r"Unavailable|Permission"):
        work_as(40_003, 54_322)


def test_what_others_make_of_a_log_is_private_too(tmp_path: Path) -> None:
    """A replica, a log in a directory of objects, an archive, and what is restored from it."""
    tmp_path.chmod(0o777)
    with umask(0o022):
        with headwater.open(tmp_path / "data") as hw:
            hw.append("t", b"1")
            hw.archive(f"objects://{tmp_path}/archive", seal=True)
            Replicator(hw.replication(), tmp_path / "replica", directory_parts, address="here").run(once=True)
        headwater.restore(f"objects://{tmp_path}/archive", tmp_path / "restored")
        with headwater.open(f"objects://{tmp_path}/bucket") as bucket:
            bucket.append("t", b"1")
    for name in ("data", "archive", "replica", "restored", "bucket"):
        found = modes(tmp_path / name)
        assert len(found) > 2
        assert {path for path, mode in found.items() if mode not in PRIVATE} == set(), name


def test_what_is_exported_is_an_ordinary_file(tmp_path: Path) -> None:
    with umask(0o022), headwater.open(tmp_path / "data") as hw:
        hw.append("t", b"1")
        hw.export("t", tmp_path / "t.jsonl")
    assert modes(tmp_path / "t.jsonl") == {str(tmp_path / "t.jsonl"): 0o644}
    with umask(0o077), headwater.open(tmp_path / "data") as hw:
        hw.export("t", tmp_path / "u.jsonl")
    assert modes(tmp_path / "u.jsonl") == {str(tmp_path / "u.jsonl"): 0o600}


def test_the_command_line_makes_private_directories(tmp_path: Path) -> None:
    with umask(0o022):
        subprocess.run([*PROGRAM, "init", tmp_path / "data"], check=True)
        subprocess.run([*PROGRAM, "append", tmp_path / "data", "t"], input=b"1", check=True)
    assert set(modes(tmp_path / "data").values()) == PRIVATE
