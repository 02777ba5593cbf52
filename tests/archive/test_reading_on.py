"""Reads go on in the archive where the local disk has dropped the beginning, as if it were still there."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headwater.errors import Conflict, Corrupt, NotFound, Unavailable
from headwater.store import Store
from tests.archive.logs import LIMITS, FailingStore, drop, everything, fill, objects, open_engine


class Both(NamedTuple):
    """The same log twice: untouched, and with its finished segments in the archive alone."""

    whole: Store
    dropped: Store
    store: FailingStore
    path: Path


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    path = tmp_path_factory.mktemp("both")
    with open_engine(path / "data") as hw:
        fill(hw, 400)
        hw.archive(f"objects://{path / 'archive'}")
        fill(hw, 20, seed=7)
        hw.archive()
        fill(hw, 10, seed=8)
    shutil.copytree(path / "data", path / "whole")
    (path / "whole" / "archive.json").unlink()
    store = FailingStore(objects(path / "archive"))
    with open_engine(path / "whole") as whole, open_engine(path / "data", store=store) as dropped:
        deleted = drop(dropped)
        assert len(deleted) > 9
        assert dropped.describe("t").partitions[0].local == deleted[-1].end
        yield Both(whole, dropped, store, path)


@pytest.fixture
def emptied(both: Both) -> Both:
    """With an empty cache, and an engine that has nothing open."""
    shutil.rmtree(both.path / "data" / "archived", ignore_errors=True)
    for log in both.dropped._topics.live("t").logs:
        assert log.archived is not None
        log.archived.close()
        log.archived.key_indexes._found.clear()
    both.store.calls.clear()
    return both


def test_everything_is_read_as_if_it_were_here(both: Both) -> None:
    expected = everything(both.whole)
    assert everything(both.dropped) == expected
    assert everything(both.dropped, reverse=True) == expected[::-1]
    assert any(len(event[7] or b"") == 5000 for event in expected), "huge events are among them"
    before, after = (hw.describe("t").partitions[0] for hw in (both.whole, both.dropped))
    assert (before.start, before.end, before.first_time) == (after.start, after.end, after.first_time)


places = st.one_of(
    st.integers(0, 435), st.floats(-0.1, 1.1), st.integers(0, 429).map(lambda n: ("id", n)), st.just("earliest")
)
wanted = st.fixed_dictionaries(
    {"start": places, "end": places, "reverse": st.booleans()},
    optional={
        "type": st.sampled_from(["placed|paid", "huge", "delivered", "none"]),
        "key": st.sampled_from(["a", "b", "k3", "k17", "nobody"]),
        "match": st.just({"n": {"$gt": 50}}),
    },
)


@given(asked=wanted)
@settings(max_examples=60)
def test_any_read_gives_what_an_untouched_copy_gives(both: Both, asked: dict[str, Any]) -> None:
    first, last = (
        both.whole.describe("t").partitions[0].__getattribute__(name) for name in ("first_time", "last_time")
    )
    begin, length = datetime.fromisoformat(first), datetime.fromisoformat(last) - datetime.fromisoformat(first)

    def place(at: Any) -> Any:
        if isinstance(at, float):
            return begin + timedelta(seconds=length.total_seconds() * at)
        return next(both.whole.read("t", start=at[1])).id if isinstance(at, tuple) else at

    asked = {**asked, "start": place(asked["start"]), "end": place(asked["end"])}
    assert everything(both.dropped, **asked) == everything(both.whole, **asked)
    if not asked.pop("reverse"):
        told = both.dropped.read_arrow("t", **asked), both.whole.read_arrow("t", **asked)
        assert told[0].equals(told[1])
    if "key" in asked:
        assert both.dropped.version("t", asked["key"]) == both.whole.version("t", asked["key"])


def test_splits_are_told_without_fetching_anything(emptied: Both) -> None:
    found = emptied.dropped.splits("t", start=5, split_bytes=10_000)
    assert (found[0].start, found[-1].end) == (5, emptied.whole.describe("t").partitions[0].end)
    assert [split.start for split in found[1:]] == [split.end for split in found[:-1]]
    assert sum(split.bytes for split in found) == pytest.approx(
        sum(split.bytes for split in emptied.whole.splits("t", start=5)), rel=0.1
    )
    assert not emptied.store.calls


def test_consumers_followers_and_exports_read_on_too(both: Both) -> None:
    expected = [event[1] for event in everything(both.whole)]
    with both.dropped.consumer("c", "t", timeout=0) as consumer:
        seen = []
        for event in consumer:
            seen.append(event.offset)
            consumer.ack(event)
    assert seen == expected
    assert [event.offset for event in both.dropped.follow("t", start=3, timeout=0)] == expected[3:]
    for hw, name in ((both.whole, "whole"), (both.dropped, "dropped")):
        hw.export("t", both.path / f"{name}.jsonl")
    assert (both.path / "whole.jsonl").read_bytes() == (both.path / "dropped.jsonl").read_bytes()


def test_a_key_that_is_in_one_segment_fetches_the_others_indexes_alone(emptied: Both) -> None:
    assert emptied.dropped.version("t", "nobody") is None
    assert emptied.store.fetched(".index")
    assert emptied.store.fetched(".log") == []
    emptied.store.calls.clear()
    assert emptied.dropped.version("t", "nobody") is None
    assert emptied.store.calls == []


def test_times_and_descriptions_fetch_no_more_than_they_need(emptied: Both) -> None:
    expected = everything(emptied.whole)
    emptied.dropped.describe("t")
    assert emptied.store.calls == []
    event = next(emptied.dropped.read("t", start=expected[150][3]))
    assert event.offset == expected[150][1]
    assert len(emptied.store.fetched(".log")) == 1


def test_what_was_dropped_just_now_is_fetched_no_more_than_that_either(tmp_path: Path) -> None:
    store = FailingStore(objects(tmp_path / "archive"))
    with open_engine(tmp_path / "data", store=store) as hw:
        fill(hw, 200)
        hw.archive(f"objects://{tmp_path / 'archive'}")
        expected = everything(hw)
        drop(hw)
        store.calls.clear()
        assert hw.version("t", "nobody") is None
        assert store.fetched(".index")
        assert store.fetched(".log") == []
        assert next(hw.read("t", start=expected[100][3])).offset == 100
        assert len(store.fetched(".log")) == 1


def test_what_is_local_is_read_while_the_archive_is_out_of_reach(emptied: Both) -> None:
    local = emptied.dropped.describe("t").partitions[0].local or 0
    expected = everything(emptied.whole)
    emptied.store.down = True
    try:
        assert everything(emptied.dropped, start=local) == expected[local:]
        with pytest.raises(Unavailable) as out:
            everything(emptied.dropped)
        assert (out.value.code, "local disk" in out.value.hint) == ("archive_unavailable", True)
        with pytest.raises(Unavailable) as unknown:
            emptied.dropped.append("t", b"", key="nobody", expected_version="none")
        assert unknown.value.code == "archive_unavailable"
    finally:
        emptied.store.down = False
    assert everything(emptied.dropped) == expected


def test_the_cache_stays_below_its_bound_and_a_read_still_gets_through(emptied: Both, tmp_path: Path) -> None:
    limits = replace(LIMITS, archive_cache_bytes=12_000)
    shutil.copytree(emptied.path / "data", tmp_path / "data")
    largest = 0

    def told(_when: str, _what: str, _key: str) -> None:
        nonlocal largest
        cached = [path for path in (tmp_path / "data" / "archived").rglob("*") if path.is_file()]
        largest = max(largest, sum(path.stat().st_size for path in cached))

    store = FailingStore(objects(emptied.path / "archive"), told)
    with open_engine(tmp_path / "data", limits, store) as hw:
        assert everything(hw) == everything(emptied.whole)
        assert everything(hw, reverse=True, key="a") == everything(emptied.whole, reverse=True, key="a")
        [log] = hw._topics.live("t").logs
        assert log.archived is not None
        assert len(log.archived._open) <= 4, "those that were deleted to make room are not held open"
    assert 4000 < largest <= 12_000


def test_a_damaged_object_is_told_and_never_kept(emptied: Both, tmp_path: Path) -> None:
    shutil.copytree(emptied.path / "data", tmp_path / "data")
    shutil.copytree(emptied.path / "archive", tmp_path / "archive")
    [first] = (tmp_path / "archive").rglob("00000000000000000000-*.log")
    sound = first.read_bytes()
    with open_engine(tmp_path / "data", store=objects(tmp_path / "archive")) as hw:
        for damaged in (sound[:100] + bytes([sound[100] ^ 1]) + sound[101:], sound[:-8], None):
            if damaged is None:
                first.unlink()
            else:
                first.write_bytes(damaged)
            with pytest.raises(Corrupt) as told:
                everything(hw)
            assert (told.value.code, first.name in told.value.path) == ("archive_damaged", True)
            assert not list((tmp_path / "data" / "archived").rglob("*.log"))
        first.write_bytes(sound)
        assert everything(hw) == everything(emptied.whole)


def test_an_engine_that_was_open_before_goes_on_when_another_process_drops(tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as reader, open_engine(tmp_path / "data") as keeper:
        fill(keeper)
        expected = everything(reader)
        reading = reader.read("t")
        seen = [next(reading).offset for _ in range(5)]
        version = reader.version("t", "a")
        keeper.archive(f"objects://{tmp_path / 'archive'}")
        assert drop(keeper)
        seen += [event.offset for event in reading]
        assert seen == [event[1] for event in expected]
        assert everything(reader) == expected
        assert everything(reader, key="a", reverse=True) == [event for event in expected if event[5] == b"a"][::-1]
        assert reader.version("t", "a") == version
        with pytest.raises(Conflict):
            reader.append("t", b"", key="a", expected_version=0 if version else "none")
        assert reader.append("t", b"", key="a", expected_version=version).offset == len(expected)


def test_a_damaged_note_is_told_while_what_is_local_is_read_and_archiving_mends_it(tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw)
        hw.archive(f"objects://{tmp_path / 'archive'}")
        expected = everything(hw)
        drop(hw)
        [log] = hw._topics.live("t").logs
        start, note = log.local_start(), log.place.archived
    note.write_bytes(note.read_bytes().replace(b'"partition":0', b'"partition":1'))
    with open_engine(tmp_path / "data") as hw:
        assert everything(hw, start=start) == expected[start:]
        asked: list[dict[str, Any]] = [{}, {"start": 3}, {"reverse": True}]
        for each in asked:
            with pytest.raises(Corrupt) as told:
                everything(hw, **each)
            assert told.value.path == str(note)
        assert [finding.path for finding in hw.check().findings if finding.damage] == [str(note)]
        assert hw.archive(seal=True)
        assert everything(hw) == expected


def test_a_log_whose_beginning_was_deleted_before_it_had_an_archive_begins_there(tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw)
        hw.seal("t")
        gone = hw.retain("t", before=40)[-1].end
        hw.archive(f"objects://{tmp_path / 'archive'}")
        fill(hw, 50)
        hw.archive()
        drop(hw)
        assert hw.describe("t").partitions[0].start == gone
        assert next(event.offset for event in hw.read("t")) == gone
        with pytest.raises(NotFound) as told:
            next(hw.read("t", start=0))
        assert (told.value.code, told.value.oldest) == ("offset_gone", gone)


def _read(path: Path, connection: Any) -> None:
    with open_engine(path, replace(LIMITS, archive_cache_bytes=20_000)) as hw:
        connection.send(everything(hw) + everything(hw, key="a", reverse=True))


def test_several_processes_read_through_the_cache_at_once(emptied: Both, tmp_path: Path) -> None:
    shutil.copytree(emptied.path / "data", tmp_path / "data")
    expected = everything(emptied.whole) + everything(emptied.whole, key="a", reverse=True)
    context = multiprocessing.get_context("fork")
    ends = [context.Pipe(duplex=False) for _ in range(3)]
    processes = [context.Process(target=_read, args=(tmp_path / "data", sending)) for _, sending in ends]
    for process in processes:
        process.start()
    assert all(receiving.recv() == expected for receiving, _ in ends)
    for process in processes:
        process.join(20)
        assert process.exitcode == 0
    cached = [path.stat().st_size for path in (tmp_path / "data" / "archived").rglob("*") if path.is_file()]
    assert sum(cached) <= 20_000
