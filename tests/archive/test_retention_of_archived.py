"""With an archive, the local disk drops only what is in it: whatever fails, in whatever order."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headwater.directory import local_manifest
from headwater.directory.log_directory import LogDirectory
from headwater.disk.disk import Disk
from headwater.errors import Unavailable
from headwater.format.history import manifest_key
from headwater.format.settings import encode
from headwater.history.archiver import archiver_of
from headwater.history.check import check_archive_of
from headwater.opening import open_directory
from headwater.store import Store
from tests.archive.logs import LIMITS, FailingStore, drop, everything, fill, manifest_of, objects, open_engine
from tests.waiting import wait_for


@pytest.fixture
def archive_url(tmp_path: Path) -> str:
    return f"objects://{tmp_path / 'archive'}"


def local(hw: Store) -> list[int]:
    return hw.directory._topics.live("t").logs[0].place.segments()


def test_only_what_is_archived_is_dropped(tmp_path: Path, archive_url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw)
        hw.archive(archive_url)
        archived = hw.describe("t").partitions[0].archived
        fill(hw, 60)
        expected = everything(hw)
        assert [each.end for each in hw.retain("t", retention_segments=1, dry_run=True)][-1] == archived
        hw.retain("t", retention_segments=1)
        wait_for(lambda: local(hw)[0] == archived)  # what is finished in the background may have been quicker
        assert len(local(hw)) > 1
        assert hw.retain("t", before=10**9) == []
        assert everything(hw) == expected


def test_segments_that_roll_wait_for_the_archiver(tmp_path: Path, archive_url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        hw.create("t", segment_bytes=4096, retention_segments=2, retention_bytes=8192)
        archiver_of(hw.directory, archive_url)
        fill(hw, 200)
        [log] = hw.directory._topics.live("t").logs
        hw.directory._keeper.rolled(log.place)
        assert local(hw)[0] == 0
        assert len(local(hw)) > 4
        hw.archive()

        def few() -> bool:
            hw.directory._keeper.rolled(log.place)  # leaves a segment that is being sealed for the next roll
            return len(local(hw)) <= 2

        wait_for(few)
        assert [event[1] for event in everything(hw)] == list(range(200))


def test_without_the_store_nothing_is_dropped_and_that_is_said(
    tmp_path: Path, archive_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = FailingStore(objects(tmp_path / "archive"))
    with open_engine(tmp_path / "data", store=store) as hw:
        fill(hw)
        hw.archive(archive_url)
        before = local(hw)
        store.down = True
        with pytest.raises(Unavailable) as out:
            hw.retain("t", retention_segments=1)
        assert out.value.code == "archive_unavailable"
        with caplog.at_level(logging.WARNING, "headwater"):
            fill(hw, 100)
            wait_for(lambda: "cannot be reached" in caplog.text)
        assert local(hw)[: len(before)] == before


def test_that_nobody_archives_is_said(tmp_path: Path, archive_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with open_engine(tmp_path / "data") as hw:
        hw.create("t", segment_bytes=4096, retention_segments=1)
        archiver_of(hw.directory, archive_url)
        with caplog.at_level(logging.WARNING, "headwater"):
            fill(hw, 200)
            wait_for(lambda: "is not in the archive, and is kept" in caplog.text)
        assert local(hw)[0] == 0


def test_what_was_put_but_is_in_no_manifest_is_not_dropped(tmp_path: Path, archive_url: str) -> None:
    class Died(BaseException):
        pass

    def told(when: str, what: str, key: str) -> None:
        if when == "before" and what in ("create", "swap") and key.endswith("/0.json"):
            raise Died

    store = FailingStore(objects(tmp_path / "archive"), told)
    with open_engine(tmp_path / "data", store=store) as hw:
        fill(hw)
        with pytest.raises(Died):
            hw.archive(archive_url)
        assert [key for what, key in store.calls if what == "put_pieces"]
        assert drop(hw) == []
        assert local(hw)[0] == 0


def test_an_archive_that_was_emptied_by_hand_drops_nothing(tmp_path: Path, archive_url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw)
        hw.archive(archive_url)
        topic = hw.directory._catalogue.find("t")
        objects(tmp_path / "archive").delete([manifest_key("t", topic.uuid, 0)])
        assert drop(hw) == []
        assert check_archive_of(hw.directory).damaged


def test_a_restored_log_that_went_its_own_way_drops_nothing(tmp_path: Path, archive_url: str) -> None:
    from headwater.history.restore import restore

    with open_engine(tmp_path / "data") as hw:
        fill(hw)
        hw.archive(archive_url)
        end = manifest_of(objects(tmp_path / "archive"), hw).parts[2].start
    restore(archive_url, tmp_path / "back", topic="t", to=end)
    with open_engine(tmp_path / "back") as back:
        archiver_of(back.directory, archive_url)
        fill(back, 100, seed=3)
        deleted = drop(back)
        assert not deleted or deleted[-1].end <= end


def test_a_full_log_that_refuses_says_that_the_archiver_is_missing(tmp_path: Path, archive_url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        hw.create("t", segment_bytes=4096, retention_bytes_hard=12_000, retention_consumers=True, overflow="refuse")
        archiver_of(hw.directory, archive_url)
        with pytest.raises(Unavailable) as full:
            fill(hw, 500)
        assert (full.value.code, "archive" in full.value.hint) == ("log_full", True)
        hw.archive()
        assert hw.append("t", b"x" * 1000).offset > 0


def forget_last(place: LogDirectory) -> None:
    """Shorten the copy of the manifest, as if the archiver had died before it wrote the last one."""
    known = local_manifest.read(place)
    assert known is not None
    place.archived.write_bytes(encode(replace(known, parts=known.parts[:-1])))


class Recorder(Disk):
    """Notes the renames, removals and syncs of directories in their order."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []

    def rename(self, source: Any, target: Any) -> None:  # type: ignore[override]
        super().rename(source, target)
        self.done.append(("rename", Path(target).name))

    def unlink(self, path: Any) -> None:  # type: ignore[override]
        super().unlink(path)
        self.done.append(("unlink", Path(path).name))

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.done.append(("sync", path.name))


def test_the_copy_of_the_manifest_that_names_a_segment_is_durable_before_the_segment_goes(
    tmp_path: Path, archive_url: str
) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 120)
        hw.archive(archive_url)
        [log] = hw.directory._topics.live("t").logs
        forget_last(log.place)
    disk = Recorder()
    with open_directory(tmp_path / "data", limits=replace(LIMITS), disk=disk) as hw:
        assert drop(hw)
        noted = disk.done.index(("rename", "archived.json"))
        gone = next(
            number for number, (what, name) in enumerate(disk.done) if what == "unlink" and name.endswith(".log")
        )
        assert noted < disk.done.index(("sync", "0"), noted) < gone
        assert [event[1] for event in everything(hw)] == list(range(120))
