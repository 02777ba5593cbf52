"""A place in a topic that moves forward: exact ends, parts of large batches, gaps, and what to sleep on."""

from __future__ import annotations

import threading
import time
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import Corrupt, Invalid, NotFound
from headwater.format.events import EventBatch
from headwater.log.topic_cursor import TopicCursor
from headwater.opening import open_directory
from headwater.store import Store


def offsets(batches: list[EventBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.offsets().tolist()]


def take_all(cursor: TopicCursor, bytes_max: int = 1000, stop: tuple[int, ...] | None = None) -> list[int]:
    found: list[int] = []
    before = None
    while cursor.offsets != before:
        before = cursor.offsets
        found += offsets(cursor.take(bytes_max, stop))
    return found


@settings(max_examples=40)
@given(st.data())
def test_any_stops_and_sizes_give_each_event_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    with open_directory(tmp_path_factory.mktemp("cursor"), durability="os") as log:
        total = 0
        for count in data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=6)):
            log.append_many("t", [b"x" * 20] * count)
            total += count
        if data.draw(st.booleans()):
            log.seal("t")  # which packs batches, so that a stop is in the midst of one
        cursor = log.directory.cursor("t", start=data.draw(st.integers(0, total)))
        begun, found = cursor.offsets[0], []
        for stop in sorted(data.draw(st.lists(st.integers(0, total), max_size=5))):
            part = take_all(cursor, data.draw(st.sampled_from([1, 100, 10_000])), (stop,))
            found += part
            assert cursor.offsets == (max(begun, stop),)
        found += take_all(cursor)
        assert found == list(range(begun, total))


def test_a_stop_stays_exact_when_batches_are_packed_meanwhile(hw: Store) -> None:
    for _ in range(50):
        hw.append("t", b"x")
    cursor = hw.directory.cursor("t")
    assert take_all(cursor, stop=(20,)) == list(range(20))
    hw.seal("t")
    assert take_all(cursor, stop=(35,)) == list(range(20, 35))
    assert take_all(cursor) == list(range(35, 50))


def test_a_large_batch_comes_in_parts(hw: Store) -> None:
    hw.append_many("t", [b"x" * 100] * 1000)
    cursor = hw.directory.cursor("t")
    first = cursor.take(5000)
    assert 0 < sum(map(len, first)) < 100
    assert cursor.offsets == (first[-1].end_offset,)
    assert offsets(first) + take_all(cursor, 5000) == list(range(1000))


def test_what_is_not_wanted_is_passed_a_bounded_amount_at_a_time(hw: Store) -> None:
    for _ in range(12):
        hw.append_many("t", [b"x" * 1000] * 1000, types="common")
    hw.append("t", b"y", type="rare")
    cursor = hw.directory.cursor("t", type="rare")
    assert cursor.take(1000) == []
    assert 0 < cursor.offsets[0] < 12_000  # it looked at some, and can be stopped here
    assert take_all(cursor) == [12_000]


def test_partitions_have_offsets_of_their_own(hw: Store) -> None:
    hw.create("wide", partitions=3)
    for number in range(9):
        hw.append("wide", b"x", partition=number % 3)
    cursor = hw.directory.cursor("wide", start=(1, 3, 0))
    assert cursor.has_more()
    assert [(batch.partition, offsets([batch])) for batch in cursor.take(10_000, (3, 3, 2))] == [
        (0, [1]), (0, [2]), (2, [0]), (2, [1]),
    ]  # fmt: skip
    assert cursor.offsets == (3, 3, 2)
    assert cursor.to_end()
    assert not cursor.to_end()
    assert not cursor.has_more()
    assert cursor.offsets == cursor.ends() == (3, 3, 3)
    with pytest.raises(Invalid):
        hw.directory.cursor("wide", start=(1, 2))
    with pytest.raises(Invalid):
        hw.directory.cursor("wide", start=(1, 2, -1))


def test_a_gap_is_met_and_told_and_passed(hw: Store) -> None:
    hw.create("small", segment_bytes=4096)
    ids = [hw.append("small", b"x" * 100).id for _ in range(200)]
    cursor = hw.directory.cursor("small")
    oldest = hw.retain("small", before=100)[-1].end
    with pytest.raises(NotFound) as raised:
        cursor.take(1000)
    assert raised.value.code == "offset_gone"
    with pytest.raises(NotFound):
        cursor.check()
    (gap,) = cursor.pass_gaps()
    assert (gap.partition, gap.offset, gap.oldest, gap.oldest_id) == (0, 0, oldest, ids[oldest])
    assert cursor.pass_gaps() == []
    cursor.check()
    assert take_all(cursor) == list(range(oldest, 200))


def test_what_came_before_damage_is_given_and_then_the_damage_is_met(hw: Store) -> None:
    hw.append_many("t", [b"x" * 100] * 10)
    hw.append_many("t", [b"y" * 100] * 10)
    path = next((hw.path / "topics" / "t" / "0").glob("*.log"))
    stored = path.read_bytes()
    path.write_bytes(stored.replace(b"HWB1", b"HWBX").replace(b"HWBX", b"HWB1", 1))
    cursor = hw.directory.cursor("t")
    assert offsets(cursor.take(100_000)) == list(range(10))
    for _ in range(2):
        with pytest.raises(Corrupt):
            cursor.take(100_000)
    assert cursor.offsets == (10,)


def test_after_an_id_comes_the_next(hw: Store) -> None:
    ids = [hw.append("t", b"x").id for _ in range(3)]
    cursor = hw.directory.cursor("t")
    for number, id in enumerate(ids):
        assert cursor.go_after(id) is None
        assert cursor.offsets == (number + 1,)
    gap = cursor.go_after(hw.append("other", b"x").id)
    assert gap is not None
    assert (gap.offset, gap.oldest, gap.oldest_id) == (None, 0, ids[0])
    with pytest.raises(Invalid):
        cursor.go_after(UUID(int=0))


def test_a_bell_wakes_for_news_of_any_cursor_and_when_it_is_rung(hw: Store) -> None:
    cursors = []
    for topic in ("a", "b", "c"):
        hw.create(topic)
        cursors.append(hw.directory.cursor(topic, start="latest"))
    bell = hw.directory.bell()
    for wake in (lambda: hw.append("b", b"x"), bell.ring):
        woken = threading.Event()

        def sleep(woken: threading.Event = woken) -> None:
            bell.wait(cursors, 30.0, lambda: False)
            woken.set()

        thread = threading.Thread(target=sleep)
        thread.start()
        assert not woken.wait(0.05)
        wake()
        assert woken.wait(10.0)
        thread.join()
        for cursor in cursors:
            cursor.to_end()
    begun = time.monotonic()
    bell.wait(cursors, 30.0, lambda: True)
    hw.append("c", b"x")
    bell.wait(cursors, 30.0, lambda: False)
    assert time.monotonic() - begun < 10.0
