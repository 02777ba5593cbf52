"""Appends that wait, and are committed together."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.errors import Closed, Conflict, Invalid, NotFound, TooLarge
from headwater.format.batch import DATA, KEY
from headwater.format.column import Column
from headwater.limits import Limits
from headwater.log import pending as waits
from headwater.log.pending import PendingAppend
from headwater.requests import Append, AppendMany
from headwater.store import Store


@pytest.fixture(autouse=True)
def topics(hw: Store) -> None:
    hw.create("orders")
    hw.create("spread", partitions=3)


def many(hw: Store, topic: str, data: list[bytes], keys: list[bytes] | None = None, **options: Any) -> Any:
    columns: dict[int, Column | None] = {DATA: Column.of(data), KEY: None if keys is None else Column.of(keys)}
    return hw.directory.prepare_many(AppendMany.of(topic, "bytes", columns, len(data), hw.limits, **options))


def one(hw: Store, topic: str, data: bytes, **options: Any) -> PendingAppend:
    return hw.directory.prepare(Append.of(topic, data, hw.limits, **options))


def test_many_requests_become_one_batch_with_their_offsets_in_order(hw: Store) -> None:
    group = [one(hw, "orders", b"%d" % number, type="placed") for number in range(5)]
    hw.directory.commit(group)
    assert [each.ref().offset for each in group] == [0, 1, 2, 3, 4]
    (batch,) = hw.read_batches("orders")
    assert [event.data for event in batch.events()] == [b"0", b"1", b"2", b"3", b"4"]
    assert [event.id for event in batch.events()] == [each.ref().id for each in group]


def test_one_request_that_fails_does_not_fail_the_others(hw: Store) -> None:
    hw.append("orders", b"first", key="o-1")
    group = [
        one(hw, "orders", b"a", key=b"o-1", expected_version="none"),
        one(hw, "orders", b"b", key=b"o-1", expected_version=0),
        one(hw, "orders", b"c"),
    ]
    hw.directory.commit(group)
    with pytest.raises(Conflict):
        group[0].ref()
    assert sorted(each.ref().offset for each in group[1:]) == [1, 2]


def test_a_request_that_is_sent_again_gets_its_first_answer(hw: Store) -> None:
    first = one(hw, "orders", b"a", producer=("p", 0, 1))
    hw.directory.commit([first])
    again = one(hw, "orders", b"a", producer=("p", 0, 1))
    hw.directory.commit([again, one(hw, "orders", b"b")])
    assert again.ref().offset == first.ref().offset == 0
    assert [event.data for event in hw.read("orders")] == [b"a", b"b"]


def test_many_events_go_to_the_partitions_of_their_keys(hw: Store) -> None:
    data, keys = [b"%d" % number for number in range(30)], [b"k-%d" % (number % 7) for number in range(30)]
    group = many(hw, "spread", data, keys)
    hw.directory.commit(group)
    refs = waits.refs("spread", group)
    expected = hw.append_many("spread", data, keys=keys)
    assert [ref.partition for ref in refs] == [ref.partition for ref in expected]
    for ref, value in zip(refs, data, strict=True):
        (event,) = hw.read("spread", partition=ref.partition, start=ref.offset, end=ref.offset + 1)
        assert event.data == value


def test_groups_of_several_logs_are_committed_apart(hw: Store) -> None:
    group = [
        one(hw, "orders", b"a"),
        one(hw, "spread", b"b", partition=2),
        one(hw, "orders", b"c"),
    ]
    hw.directory.commit(group)
    assert [(each.ref().topic, each.ref().partition, each.ref().offset) for each in group] == [
        ("orders", 0, 0),
        ("spread", 2, 0),
        ("orders", 0, 1),
    ]


def test_what_waits_for_a_topic_that_is_deleted_is_told_so(hw: Store) -> None:
    waiting = one(hw, "orders", b"a")
    hw.delete("orders")
    hw.directory.commit([waiting])
    with pytest.raises(NotFound):
        waiting.ref()
    assert "orders" not in hw.topics()


def test_what_waits_for_a_topic_that_is_made_again_goes_to_the_new_one(hw: Store, tmp_path: Path) -> None:
    waiting = [one(hw, "orders", b"a"), one(hw, "orders", b"b")]
    with headwater.open(tmp_path / "data") as other:
        other.append("orders", b"old")
        other.delete("orders")
        other.create("orders")
    hw.directory.commit(waiting)
    assert [each.ref().offset for each in waiting] == [0, 1]
    assert [event.data for event in hw.read("orders")] == [b"a", b"b"]


def test_a_missing_topic_is_not_made(hw: Store) -> None:
    with pytest.raises(NotFound):
        one(hw, "none", b"a")
    with pytest.raises(NotFound):
        many(hw, "none", [b"a"])
    with pytest.raises(NotFound):
        hw.directory.upload(Append("none", b"", "bytes"))
    assert "none" not in hw.topics()


def test_what_is_too_large_to_wait_is_refused(tmp_path: Path) -> None:
    limits = Limits(blob_bytes_min=100, data_bytes_max=1000, batch_bytes_max=500)
    with headwater.open(tmp_path / "data", limits=limits) as hw:
        hw.create("orders")
        for size in (101, 1001):
            with pytest.raises(TooLarge):
                one(hw, "orders", b"x" * size)
        with pytest.raises(TooLarge):
            many(hw, "orders", [b"x" * 300, b"y" * 300])
        with pytest.raises(Invalid):
            one(hw, "orders", b"a", expected_version=3)


def test_nothing_waits_for_a_log_that_was_closed(tmp_path: Path) -> None:
    hw = headwater.open(tmp_path / "data")
    hw.create("orders")
    waiting = one(hw, "orders", b"a")
    hw.close()
    with pytest.raises(Closed):
        hw.directory.commit([waiting])


def test_an_upload_is_one_event_whatever_its_size(hw: Store) -> None:
    hw.create("huge", data_bytes_max=20_000_000)
    for sizes in ([], [5], [600_000, 600_000], [3_000_000, 10]):
        pieces = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
        upload, log = hw.directory.upload(Append("huge", b"", "bytes", b"up", b"k"))
        for piece in pieces:
            upload.write(piece)
        offset = upload.commit().offset
        upload.discard()
        assert log.end() == offset + 1
        (event,) = hw.read("huge", start=offset)
        assert b"".join(event.chunks()) == b"".join(pieces)
        assert (event.type, event.key) == ("up", b"k")


def test_a_file_is_not_closed_under_a_write(hw: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hw.create("huge", data_bytes_max=20_000_000)
    upload, log = hw.directory.upload(Append("huge", b"", "bytes"))
    upload.write(b"x" * 3_000_000)
    disk = log.place.disk
    writing, go_on, ends = threading.Event(), threading.Event(), []

    def slow_write(*_: object) -> None:
        writing.set()
        assert go_on.wait(20)
        ends.append("written")

    def closed(fd: int) -> None:
        ends.append("closed")
        release(fd)

    release = disk.release
    monkeypatch.setattr(disk, "write", slow_write)
    monkeypatch.setattr(disk, "release", closed)
    writer = threading.Thread(target=upload.write, args=(b"x" * 200_000,))
    writer.start()
    assert writing.wait(20)
    leaver = threading.Thread(target=upload.discard)  # as when the client has left
    leaver.start()
    leaver.join(0.1)
    assert leaver.is_alive()
    go_on.set()
    writer.join(20)
    leaver.join(20)
    assert ends == ["written", "closed"]
    with pytest.raises(Closed):
        upload.write(b"more")


def test_an_upload_that_is_discarded_leaves_nothing(hw: Store) -> None:
    hw.create("huge", data_bytes_max=20_000_000)
    upload, log = hw.directory.upload(Append("huge", b"", "bytes"))
    upload.write(b"x" * 3_000_000)
    assert list(log.place.spool.iterdir())
    upload.discard()
    assert not list(log.place.spool.iterdir())
    assert log.end() == 0
