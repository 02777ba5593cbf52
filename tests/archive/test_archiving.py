"""Archiving: every file of a finished segment is in the store before the manifest names it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from msgspec.structs import replace

from headwater.directory.sealer import reindex
from headwater.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable, Unsupported
from headwater.format.history import file_key
from headwater.format.segment import HEADER_BYTES, decode
from headwater.history import writing
from headwater.history.archiver import archiver_of
from headwater.history.check import check_archive_at, check_archive_of
from headwater.history.restore import restore
from headwater.store import Store
from tests.archive.logs import FailingStore, drop, everything, fill, manifest_of, objects, open_engine
from tests.waiting import wait_for


@pytest.fixture
def archive_url(tmp_path: Path) -> str:
    return f"objects://{tmp_path / 'archive'}"


def seal(hw: Store) -> None:
    """Seal all of the topic, and let nobody be at it still, whose packed file would take the place of a damaged one."""
    hw.directory._sealer.close()
    hw.seal("t")


def test_every_finished_segment_is_archived_as_a_file_with_what_is_beside_it(tmp_path: Path, archive_url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw)
        done = hw.archive(archive_url)
        store = objects(tmp_path / "archive")
        manifest = manifest_of(store, hw)
        for file in (file for part in manifest.parts for file in part.files):
            stored = store.get(file_key(manifest, file))
            assert stored is not None
            assert (len(stored.data), hashlib.sha256(stored.data).hexdigest()) == (file.bytes, file.sha256)
        [log] = hw.directory._topics.live("t").logs
        assert [part.start for part in manifest.parts] == log.place.segments()[:-1]
        assert [(each.first, each.end) for each in done] == [(part.start, part.end) for part in manifest.parts]
        assert [each.bytes for each in done] == [part.bytes for part in manifest.parts]
        assert manifest.end == log.state().segment


def test_what_is_archived_is_not_archived_again(tmp_path: Path, archive_url: str) -> None:
    store = FailingStore(objects(tmp_path / "archive"))
    with open_engine(tmp_path / "data", store=store) as hw:
        fill(hw)
        assert hw.archive(archive_url)
        store.calls.clear()
        assert hw.archive() == []
        assert not [key for what, key in store.calls if what == "put_pieces"]
        fill(hw, 40)
        later = hw.archive()
        assert later
        assert later[0].first == manifest_of(store, hw).parts[-len(later)].start


def test_sealing_first_makes_the_archive_complete(tmp_path: Path, archive_url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 10)
        end = hw.describe("t").partitions[0].end
        assert hw.archive(archive_url, seal=True)[-1].end == end
        assert hw.describe("t").partitions[0].archived == end
        assert hw.archive(seal=True) == []


def test_one_topic_alone_is_archived_if_that_is_asked_for(tmp_path: Path, archive_url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw, topic="t")
        fill(hw, topic="u", partitions=2)
        assert {each.topic for each in hw.archive(archive_url, topic="t")} == {"t"}
        assert {(each.topic, each.partition) for each in hw.archive(seal=True) if each.topic == "u"} == {
            ("u", 0),
            ("u", 1),
        }
        with pytest.raises(NotFound):
            hw.archive(topic="nowhere")


def test_an_archive_belongs_to_one_directory_and_a_directory_to_one_archive(tmp_path: Path, archive_url: str) -> None:
    with open_engine(tmp_path / "data") as hw, open_engine(tmp_path / "other") as other:
        fill(hw)
        fill(other)
        with pytest.raises(NotFound) as none:
            hw.archive()
        assert none.value.code == "no_archive"
        hw.archive(archive_url)
        with pytest.raises(Conflict) as refused:
            other.archive(archive_url)
        assert (refused.value.code, other.archive_url) == ("archive_of_another", None)
        with pytest.raises(Conflict) as moved:
            hw.archive(f"objects://{tmp_path / 'elsewhere'}")
        assert (moved.value.code, hw.archive_url) == ("other_archive", archive_url)
        for path in (tmp_path / "other", tmp_path / "data"):
            with pytest.raises(Invalid, match="contains a log"):
                other.archive(str(path))
        with pytest.raises(NotFound):
            restore(str(tmp_path / "data"), tmp_path / "back")


def test_two_archivers_at_once_archive_each_segment_once(tmp_path: Path, archive_url: str) -> None:
    with open_engine(tmp_path / "data") as first, open_engine(tmp_path / "data") as second:
        fill(first, 300)
        archiver_of(first.directory, archive_url)
        errors: list[BaseException] = []

        def work(hw: Store) -> None:
            try:
                hw.archive()
            except BaseException as error:  # noqa: BLE001  # whatever it is, the test tells
                errors.append(error)

        threads = [threading.Thread(target=work, args=(hw,)) for hw in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not errors
        parts = manifest_of(objects(tmp_path / "archive"), first).parts
        assert [part.start for part in parts] == first.directory._topics.live("t").logs[0].place.segments()[:-1]


def test_a_segment_that_is_packed_anew_leaves_the_archived_one_as_it_is(tmp_path: Path, archive_url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw)
        hw.archive(archive_url)
        store = objects(tmp_path / "archive")
        before, [log] = manifest_of(store, hw), hw.directory._topics.live("t").logs
        packed = log.place.segment(0).read_bytes()
        header = decode(packed)
        log.place.segment(0).write_bytes(replace(header, file_id=header.file_id ^ 1).encode() + packed[HEADER_BYTES:])
        assert reindex(log.place, 0)
        with open_engine(tmp_path / "data") as again:
            assert again.archive() == []
        assert manifest_of(store, hw) == before
        assert check_archive_of(hw.directory).findings == []


def test_a_damaged_segment_is_not_archived_and_stops_its_log_alone(tmp_path: Path, archive_url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw)
        fill(hw, topic="sound")
        seal(hw)
        [log] = hw.directory._topics.live("t").logs
        third = log.place.segments()[2]
        damaged = bytearray(log.place.segment(third).read_bytes())
        damaged[len(damaged) // 2] ^= 1
        log.place.segment(third).write_bytes(damaged)
        with pytest.raises(Corrupt) as refused:
            hw.archive(archive_url)
        assert "not archived" in str(refused.value)
        store = objects(tmp_path / "archive")
        assert manifest_of(store, hw).end == third
        assert manifest_of(store, hw, "sound").parts
        hw.repair("t", apply=True)
        assert hw.archive()
        assert check_archive_of(hw.directory).damaged is False


def test_a_history_other_than_the_archived_one_is_refused(tmp_path: Path, archive_url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 100)
        hw.archive(archive_url)
        end = hw.describe("t").partitions[0].archived or 0
    restore(archive_url, tmp_path / "back", topic="t", to=end - 10)
    with open_engine(tmp_path / "back") as back:
        with pytest.raises(Conflict) as ahead:
            back.archive(archive_url, seal=True)
        assert ahead.value.code == "archive_diverged"
        fill(back, 100, seed=1)
        with pytest.raises(Conflict) as other:
            back.archive(archive_url, seal=True)
        assert other.value.code == "archive_diverged"
    with open_engine(tmp_path / "data") as hw:
        assert check_archive_of(hw.directory).findings == []


def test_a_topic_that_is_deleted_and_made_again_is_archived_beside_the_old_one(
    tmp_path: Path, archive_url: str
) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 60)
        hw.archive(archive_url, seal=True)
        hw.delete("t")
        fill(hw, 60, seed=5)
        hw.archive(seal=True)
        expected = everything(hw)
        assert not check_archive_of(hw.directory).damaged
    restore(archive_url, tmp_path / "back")
    with open_engine(tmp_path / "back") as back:
        assert everything(back) == expected


def test_an_archiver_that_runs_archives_what_others_finish_and_ends_when_it_is_told(
    tmp_path: Path, archive_url: str
) -> None:
    store = FailingStore(objects(tmp_path / "archive"))
    stopping = threading.Event()
    archived: list[int] = []
    failed: list[str] = []
    with open_engine(tmp_path / "data", store=store) as hw, open_engine(tmp_path / "data") as writer:
        archiver = archiver_of(hw.directory, archive_url, stopping=stopping)
        told = lambda done: archived.extend(each.end for each in done)  # noqa: E731
        thread = threading.Thread(target=archiver.run, args=(told, lambda error: failed.append(error.code)))
        thread.start()
        fill(writer, 60)
        finished = writer.directory._topics.live("t").logs[0].state
        wait_for(lambda: bool(archived) and archived[-1] == finished().segment)
        store.down = True
        fill(writer, 60)
        wait_for(lambda: "archive_unavailable" in failed)
        before = len(store.calls)
        store.down = False
        wait_for(lambda: archived[-1] == finished().segment)
        wait_for(lambda: archiver.lag().segments == 0)
        assert before
        asked = len(store.calls)
        stopping.wait(0.2)
        assert len(store.calls) == asked, "an archiver that has nothing to do asks nothing of the store"
        stopping.set()
        thread.join(10)
        assert not thread.is_alive()
        assert archived == sorted(set(archived))


def test_what_is_under_way_ends_soon_after_an_archiver_is_stopped(tmp_path: Path, archive_url: str) -> None:
    stopping = threading.Event()

    def told(when: str, what: str, _key: str) -> None:
        if (when, what) == ("before", "put_pieces"):
            stopping.set()

    store = FailingStore(objects(tmp_path / "archive"), told)
    with open_engine(tmp_path / "data", store=store) as hw:
        fill(hw)
        assert archiver_of(hw.directory, archive_url, stopping=stopping).once() == []
    assert not list((tmp_path / "archive").glob("_headwater/t/*/0.json"))


def test_a_store_that_is_out_of_reach_leaves_the_directory_without_an_archive(tmp_path: Path, archive_url: str) -> None:
    store = FailingStore(objects(tmp_path / "archive"))
    store.down = True
    with open_engine(tmp_path / "data", store=store) as hw:
        fill(hw)
        with pytest.raises(Unavailable) as out:
            hw.archive(archive_url)
        assert out.value.code == "archive_unavailable"
        assert hw.archive_url is None


def test_a_segment_with_much_huge_data_becomes_several_files(
    tmp_path: Path, archive_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "FILE_BYTES", 12_000)
    with open_engine(tmp_path / "data") as hw:
        hw.append_many("t", [b"small"] * 5)
        for number in range(9):
            hw.append("t", bytes([number]) * 5000)
        hw.append("t", b"last")
        expected = everything(hw)
        done = hw.archive(archive_url, seal=True)
        assert [(each.first, each.end) for each in done] == [(0, 8), (8, 11), (11, 14), (14, 15)]
        assert hw.archive() == []
        assert len(drop(hw)) == 1
        assert everything(hw) == expected
        assert not check_archive_of(hw.directory).findings
    restore(archive_url, tmp_path / "back")
    with open_engine(tmp_path / "back") as back:
        assert everything(back) == expected
        assert back.archive(archive_url) == []


def test_an_archive_in_the_form_of_an_earlier_version_is_refused(tmp_path: Path, archive_url: str) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "archive.json").write_text("{}")
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 10)
        for call in (
            lambda: hw.archive(archive_url),
            lambda: check_archive_at(archive_url),
            lambda: restore(archive_url, tmp_path / "back"),
        ):
            with pytest.raises(Unsupported) as refused:
                call()
            assert (refused.value.code, "version that wrote it" in refused.value.hint) == ("archive_form_old", True)
        assert hw.archive_url is None


def test_a_directory_with_an_archive_of_an_earlier_version_reads_what_is_local(
    tmp_path: Path, archive_url: str
) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw)
        hw.archive(archive_url)
        drop(hw)
        start = hw.describe("t").partitions[0].local or 0
        expected = everything(hw, start=start)
        [log] = hw.directory._topics.live("t").logs
    old = {"format": 1, "topic": "t", "uuid": "", "partition": 0, "segments": []}
    log.place.archived.write_bytes(_settings_file(old))
    (tmp_path / "data" / "archive.json").write_bytes(_settings_file({"format": 1, "url": archive_url}))
    with open_engine(tmp_path / "data") as hw:
        assert everything(hw, start=start) == expected
        fill(hw, 60, seed=2)
        for call in (lambda: everything(hw), hw.archive, lambda: drop(hw)):
            with pytest.raises(Unsupported) as refused:
                call()
            assert refused.value.code == "archive_form_old"


def _settings_file(plain: dict[str, Any]) -> bytes:
    crc = f"{crc32c(msgspec.json.encode(plain, order='sorted')):08x}"
    return msgspec.json.encode(plain | {"crc": crc}, order="sorted") + b"\n"


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; import headwater\n"
        f"hw = headwater.open({str(tmp_path / 'data')!r}); hw.append('t', b'x')\n"
        f"try: hw.archive({str(tmp_path / 'archive')!r})\n"
        "except headwater.Unsupported as error: print(error.hint)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # our own code
    assert told.stdout == "pip install 'headwater[arrow]'\n"
    assert not (tmp_path / "archive").exists()
