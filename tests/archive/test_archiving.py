"""Archiving: every file of a finished segment is in the store, byte by byte, before the manifest names it."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest
from headwater.format.archive import file_key
from msgspec.structs import replace

from headwater.directory.sealer import reindex
from headwater.errors import Conflict, Corrupt, NotFound, Unavailable
from headwater.format.segment import HEADER_BYTES, decode
from headwater.history.restoring import restore
from headwater.store import Store
from tests.archive.logs import FailingStore, everything, fill, manifest_of, objects, open_engine
from tests.waiting import wait_for


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"objects://{tmp_path / 'archive'}"


def files_of(hw: Store, topic: str = "t") -> dict[str, bytes]:
    """The files of all finished segments, by their names."""
    [log] = hw._topics.live(topic).logs
    place, active = log.place, log.state().segment
    found = {}
    for base in place.segments():
        if base < active:
            for path in (place.segment(base), place.index(base), *place.blobs(base).glob("*")):
                found[str(path.relative_to(place.path))] = path.read_bytes()
    return found


def seal(hw: Store) -> None:
    """Seal all of the topic, and let nobody be at it still, whose packed file would take the place of a damaged one."""
    hw._sealer.close()
    hw.seal("t")


def test_every_file_of_a_finished_segment_is_archived_byte_by_byte(tmp_path: Path, url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw)
        done = hw.archive(url)
        store, local = objects(tmp_path / "archive"), files_of(hw)
        manifest = manifest_of(store, hw)
        archived = {}
        for file in (file for segment in manifest.segments for file in segment.files):
            stored = store.get(file_key(manifest, file))
            assert stored is not None
            assert (len(stored.data), hashlib.sha256(stored.data).hexdigest()) == (file.bytes, file.sha256)
            archived[file.name] = bytes(stored.data)
        assert archived == local
        assert any(name.endswith(".blob") for name in local)
        assert [(each.first, each.end) for each in done] == [(each.base, each.end) for each in manifest.segments]
        assert manifest.segments[0].base == 0
        assert manifest.end == hw._topics.live("t").logs[0].state().segment


def test_what_is_archived_is_not_archived_again(tmp_path: Path, url: str) -> None:
    store = FailingStore(objects(tmp_path / "archive"))
    with open_engine(tmp_path / "data", store=store) as hw:
        fill(hw)
        assert hw.archive(url)
        store.calls.clear()
        assert hw.archive() == []
        assert not [key for what, key in store.calls if what == "put_pieces"]
        fill(hw, 40)
        later = hw.archive()
        assert later
        assert later[0].first == manifest_of(store, hw).segments[-len(later)].base


def test_sealing_first_makes_the_archive_complete(tmp_path: Path, url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 10)
        end = hw.describe("t").partitions[0].end
        assert hw.archive(url, seal=True)[-1].end == end
        assert hw.describe("t").partitions[0].archived == end
        assert hw.archive(seal=True) == []


def test_one_topic_alone_is_archived_if_that_is_asked_for(tmp_path: Path, url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw, topic="t")
        fill(hw, topic="u", partitions=2)
        assert {each.topic for each in hw.archive(url, topic="t")} == {"t"}
        assert {(each.topic, each.partition) for each in hw.archive(seal=True) if each.topic == "u"} == {
            ("u", 0),
            ("u", 1),
        }
        with pytest.raises(NotFound):
            hw.archive(topic="nowhere")


def test_an_archive_belongs_to_one_directory_and_a_directory_to_one_archive(tmp_path: Path, url: str) -> None:
    with open_engine(tmp_path / "data") as hw, open_engine(tmp_path / "other") as other:
        fill(hw)
        fill(other)
        with pytest.raises(NotFound) as none:
            hw.archive()
        assert none.value.code == "no_archive"
        hw.archive(url)
        with pytest.raises(Conflict) as refused:
            other.archive(url)
        assert (refused.value.code, other.archive_url) == ("archive_of_another", None)
        with pytest.raises(Conflict) as moved:
            hw.archive(f"objects://{tmp_path / 'elsewhere'}")
        assert (moved.value.code, hw.archive_url) == ("other_archive", url)


def test_two_archivers_at_once_archive_each_segment_once(tmp_path: Path, url: str) -> None:
    with open_engine(tmp_path / "data") as first, open_engine(tmp_path / "data") as second:
        fill(first, 300)
        first.archiver(url)
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
        segments = manifest_of(objects(tmp_path / "archive"), first).segments
        assert [segment.base for segment in segments] == first._topics.live("t").logs[0].place.segments()[:-1]


def test_a_segment_that_is_packed_anew_leaves_the_archived_one_as_it_is(tmp_path: Path, url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw)
        hw.archive(url)
        store = objects(tmp_path / "archive")
        before, [log] = manifest_of(store, hw), hw._topics.live("t").logs
        packed = log.place.segment(0).read_bytes()
        header = decode(packed)
        log.place.segment(0).write_bytes(replace(header, file_id=header.file_id ^ 1).encode() + packed[HEADER_BYTES:])
        assert reindex(log.place, 0)
        with open_engine(tmp_path / "data") as again:
            assert again.archive() == []
        assert manifest_of(store, hw) == before
        assert hw.check_archive().findings == []


def test_a_damaged_segment_is_not_archived_and_stops_its_log_alone(tmp_path: Path, url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw)
        fill(hw, topic="sound")
        seal(hw)
        [log] = hw._topics.live("t").logs
        third = log.place.segments()[2]
        damaged = bytearray(log.place.segment(third).read_bytes())
        damaged[len(damaged) // 2] ^= 1
        log.place.segment(third).write_bytes(damaged)
        with pytest.raises(Corrupt) as refused:
            hw.archive(url)
        assert "not archived" in str(refused.value)
        store = objects(tmp_path / "archive")
        assert manifest_of(store, hw).end == third
        assert manifest_of(store, hw, "sound").segments
        hw.repair("t", apply=True)
        assert hw.archive()
        assert hw.check_archive().damaged is False


def test_a_damaged_index_is_made_again_and_archived(tmp_path: Path, url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw)
        seal(hw)
        [log] = hw._topics.live("t").logs
        sound = log.place.index(0).read_bytes()
        log.place.index(0).write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
        hw.archive(url)
        assert log.place.index(0).read_bytes() == sound
        assert manifest_of(objects(tmp_path / "archive"), hw).end == log.state().segment


def test_a_history_other_than_the_archived_one_is_refused(tmp_path: Path, url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 100)
        hw.archive(url)
        end = hw.describe("t").partitions[0].archived or 0
    restore(url, tmp_path / "back", topic="t", to=end - 10)
    with open_engine(tmp_path / "back") as back:
        with pytest.raises(Conflict) as ahead:
            back.archive(url, seal=True)
        assert ahead.value.code == "archive_diverged"
        fill(back, 100, seed=1)
        with pytest.raises(Conflict) as other:
            back.archive(url, seal=True)
        assert other.value.code == "archive_diverged"
    with open_engine(tmp_path / "data") as hw:
        assert hw.check_archive().findings == []


def test_a_topic_that_is_deleted_and_made_again_is_archived_beside_the_old_one(tmp_path: Path, url: str) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 60)
        hw.archive(url, seal=True)
        hw.delete("t")
        fill(hw, 60, seed=5)
        hw.archive(seal=True)
        expected = everything(hw)
        assert not hw.check_archive().damaged
    restore(url, tmp_path / "back")
    with open_engine(tmp_path / "back") as back:
        assert everything(back) == expected


def test_an_archiver_that_runs_archives_what_others_finish_and_ends_when_it_is_told(tmp_path: Path, url: str) -> None:
    store = FailingStore(objects(tmp_path / "archive"))
    stopping = threading.Event()
    archived: list[int] = []
    failed: list[str] = []
    with open_engine(tmp_path / "data", store=store) as hw, open_engine(tmp_path / "data") as writer:
        archiver = hw.archiver(url, stopping=stopping)
        told = lambda done: archived.extend(each.end for each in done)  # noqa: E731
        thread = threading.Thread(target=archiver.run, args=(told, lambda error: failed.append(error.code)))
        thread.start()
        fill(writer, 60)
        finished = writer._topics.live("t").logs[0].state
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


def test_what_is_under_way_ends_soon_after_an_archiver_is_stopped(tmp_path: Path, url: str) -> None:
    stopping = threading.Event()

    def told(when: str, what: str, _key: str) -> None:
        if (when, what) == ("before", "put_pieces"):
            stopping.set()

    store = FailingStore(objects(tmp_path / "archive"), told)
    with open_engine(tmp_path / "data", store=store) as hw:
        fill(hw)
        assert hw.archiver(url, stopping=stopping).once() == []
    assert not list((tmp_path / "archive").glob("archive/**/manifest"))


def test_a_store_that_is_out_of_reach_leaves_the_directory_without_an_archive(tmp_path: Path, url: str) -> None:
    store = FailingStore(objects(tmp_path / "archive"))
    store.down = True
    with open_engine(tmp_path / "data", store=store) as hw:
        fill(hw)
        with pytest.raises(Unavailable) as out:
            hw.archive(url)
        assert out.value.code == "archive_unavailable"
        assert hw.archive_url is None
