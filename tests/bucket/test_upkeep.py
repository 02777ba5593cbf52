"""Compacting, trimming and collecting a bucket through its verbs."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from headwater.disk.disk import Clock
from headwater.errors import NotFound, Unavailable, Unsupported
from headwater.limits import Limits
from headwater.opening import open_bucket
from headwater.store import Store
from tests.bucket.conftest import Opener, hooks_of
from tests.opened import bucket_of
from tests.waiting import wait_for

QUICK = Limits(cache_bytes=0, knowledge_s=0.05, collect_s=0.0, compact_objects=0)
BLOB = Limits(cache_bytes=0, blob_bytes_min=1024, collect_s=0.0, compact_objects=0)
SWEEP = Limits(collect_s=0.0, blob_orphan_s=0.0, compact_objects=0)


def offsets(events: Any) -> list[int]:
    return [event.offset for event in events]


def keys(hw: Store, part: str) -> list[str]:
    return [each.key for each in hooks_of(hw).within.list("topics/") if f"/{part}/" in each.key]


def overtake(other: Store) -> None:
    """Compact all, and delete the objects."""
    assert other.seal("t") == 1
    for _ in range(2):
        other.maintain()
    assert keys(other, "events") == []


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
def test_a_read_that_is_overtaken_by_compaction_gives_each_event_once(opener: Opener, reverse: bool) -> None:
    hw = opener(limits=QUICK)
    for number in range(40):
        hw.append("t", b"%d" % number)
    events = hw.read("t", reverse=reverse)
    found = offsets([next(events) for _ in range(5)])
    overtake(opener(limits=QUICK))
    found += offsets(events)
    assert found == (list(range(40)) if not reverse else list(range(39, -1, -1)))


def test_a_follower_that_is_overtaken_by_compaction_gives_each_event_once(opener: Opener) -> None:
    hw = opener(limits=QUICK)
    for number in range(40):
        hw.append("t", b"%d" % number)
    events = hw.follow("t", start="earliest", timeout=0.0)
    found = offsets([next(events) for _ in range(5)])
    overtake(opener(limits=QUICK))
    found += offsets(events)
    assert found == list(range(40))


def test_segments_hold_all_fields_huge_events_and_producers(opener: Opener) -> None:
    hw, other, sweeper = opener(limits=BLOB), opener(limits=BLOB), opener(limits=SWEEP)
    first = hw.append("t", b"one", type="a", key=b"k", meta={"m": "1"}, producer=("p", 1, 7))
    hw.append("t", "text", content="text")
    hw.append("t", os.urandom(5000))
    hw.append_many("t", [b"x", b"y"])
    before = [(e.offset, e.time, e.id, e.type, e.key, e.meta, b"".join(e.chunks())) for e in hw.read("t")]
    assert hw.seal("t") == 1
    for _ in range(3):
        sweeper.maintain()
    assert keys(hw, "events") == []
    after = [(e.offset, e.time, e.id, e.type, e.key, e.meta, b"".join(e.chunks())) for e in other.read("t")]
    assert after == before
    again = other.append("t", b"one", producer=("p", 1, 7))
    assert (again.offset, again.time) == (first.offset, first.time)
    assert len(keys(hw, "blobs")) == 1


def test_large_segments_are_read_in_ranges_from_any_offset_and_time(opener: Opener) -> None:
    limits = Limits(cache_bytes=0, pack_bytes=2000, fetch_bytes=5000, compact_objects=0)
    hw = opener(limits=limits)
    times = [hw.append("t", os.urandom(500)).time for _ in range(100)]
    assert hw.seal("t") == 1
    other = opener(limits=limits)
    for start in range(0, 100, 7):
        assert offsets(other.read("t", start=start)) == list(range(start, 100))
        assert offsets(other.read("t", start=times[start])) == list(range(start, 100))
    assert hooks_of(other).asked["get_range"] > 20


def test_small_segments_are_merged_so_that_they_stay_few(opener: Opener) -> None:
    hw = opener(limits=Limits(cache_bytes=0, compact_objects=0))
    for number in range(64):
        hw.append("t", b"%d" % number)
        hw.seal("t")
    assert len(hw.logs._topics.live("t").logs[0].chain.knowledge.look().segments) < 10
    assert [int(event.data or b"") for event in opener().read("t")] == list(range(64))


def test_a_segment_that_spans_too_much_time_is_not_merged(opener: Opener) -> None:
    hw = opener(limits=Limits(compact_objects=0), clock=(clock := LaterClock()))
    for _ in range(3):
        hw.append("t", b"a")
        hw.seal("t")
        hw.append("t", b"b")
        hw.seal("t")
        clock.later_s += 30 * 24 * 3600.0
    segments = hw.logs._topics.live("t").logs[0].chain.knowledge.look().segments
    assert [(each.base, each.end) for each in segments] == [(0, 2), (2, 3), (3, 4), (4, 5), (5, 6)]


def test_only_what_is_worth_it_is_compacted_by_itself(opener: Opener) -> None:
    hw = opener(limits=Limits(compact_objects=10))
    hw.maintain()
    for _ in range(5):
        hw.append("t", b"a")
    assert opener(limits=Limits(compact_objects=10)).maintain("t").segments == 0
    assert opener(limits=Limits(compact_objects=0)).maintain("t").segments == 0
    assert opener(limits=Limits(compact_objects=5)).maintain("t").segments == 1
    assert opener(limits=Limits(compact_objects=5)).maintain("t").segments == 0


def test_whoever_appends_compacts_in_the_background(opener: Opener) -> None:
    hw = opener(limits=Limits(compact_objects=5))
    for number in range(30):
        hw.append("t", b"%d" % number)
    wait_for(lambda: hw.describe("t").partitions[0].sealed > 0)
    assert [event.data for event in hw.read("t")] == [b"%d" % number for number in range(30)]


def test_it_can_be_switched_off(opener: Opener) -> None:
    hw = opener(limits=Limits(compact_objects=0))
    for _ in range(200):
        hw.append("t", b"a")
    hw.close()
    assert bucket_of(hw)._keeper._thread is None


def test_an_append_does_not_wait_for_compaction(opener: Opener) -> None:
    hw = opener(limits=Limits(compact_objects=2))
    waits: list[int] = []

    def stop(method: str, key: str) -> None:
        if method == "put_pieces" and "/segments/" in key and not waits:
            waits.append(1)
            wait_for(lambda: len(waits) > 1)

    hooks_of(hw).before = stop
    while not waits:
        hw.append("t", b"a")
    end = hw.append("t", b"b").offset
    waits.append(2)
    assert [event.data for event in hw.read("t")][-1] == b"b"
    assert len(list(hw.read("t"))) == end + 1


def test_retention_trims_before_anything_is_deleted(opener: Opener) -> None:
    hw, other = opener(limits=QUICK), opener(limits=Limits(collect_s=1000.0, compact_objects=0))
    for number in range(4):
        hw.append("t", b"%d" % number * 100)
    hw.seal("t")
    hw.append_many("t", [b"4", b"5"])
    told = hw.retain("t", before=4, dry_run=True)
    assert [(each.first, each.end) for each in told] == [(0, 4)]
    assert offsets(hw.read("t")) == list(range(6))
    assert hw.retain("t", before=4) == told
    assert offsets(hw.read("t")) == [4, 5]
    with pytest.raises(NotFound) as error:
        list(hw.read("t", start=1))
    assert (error.value.code, error.value.facts["oldest"]) == ("offset_gone", 4)
    assert keys(hw, "segments") != []
    other.maintain()
    assert keys(hw, "segments") != []
    for _ in range(3):
        hw.maintain()
    assert keys(hw, "segments") == []
    assert offsets(opener().read("t")) == [4, 5]


@pytest.mark.parametrize(
    ("kept", "left"),
    [
        ({"retention_segments": 2}, list(range(10, 23))),
        ({"retention_bytes": 12_000}, list(range(10, 23))),
        ({"retention_age_ms": 3600_000}, [20, 21, 22]),
        ({"before": 15}, list(range(10, 23))),
    ],
)
def test_bounds_are_those_of_a_directory(opener: Opener, kept: Any, left: list[int]) -> None:
    limits = Limits(segment_bytes=11_000, compact_objects=0, knowledge_s=0.0)
    hw = opener(limits=limits, clock=(clock := LaterClock()))
    for _ in range(2):
        for _ in range(10):
            hw.append("t", os.urandom(700))
        hw.seal("t")
    clock.later_s = 7200.0
    for _ in range(3):
        hw.append("t", b"new")
    hw.retain("t", **kept)
    assert offsets(hw.read("t")) == left
    assert hw.append("t", b"next").offset == 23


def test_a_log_that_is_too_old_as_a_whole_is_trimmed_to_its_end(opener: Opener) -> None:
    hw = opener(limits=QUICK, clock=(clock := LaterClock()))
    hw.create("t", retention_age_ms=3600_000)
    hw.append("t", b"a")
    hw.seal("t")
    hw.append("t", b"b", producer=("p", 1, 1))
    assert hw.maintain().trimmed == []
    clock.later_s = 7200.0
    assert [(each.first, each.end) for each in hw.maintain().trimmed] == [(0, 1), (1, 2)]
    other = opener(limits=QUICK, clock=clock)
    assert offsets(other.read("t")) == []
    assert other.append("t", b"b", producer=("p", 1, 1)).offset == 1
    last = other.append("t", b"c")
    assert last.offset == 2
    for _ in range(3):
        hw.maintain()
    assert (len(keys(hw, "events")), keys(hw, "segments")) == (1, [])


def test_what_consumers_have_not_passed_is_kept(opener: Opener) -> None:
    hw = opener(limits=QUICK)
    hw.create("t", retention_segments=1, retention_consumers=True)
    for _ in range(3):
        hw.append("t", b"a")
    hw.seal("t")
    with hw.consumer("c", "t", start="earliest") as consumer:
        events = [next(consumer) for _ in range(3)]
        assert hw.maintain("t").trimmed == []
        consumer.ack(*events)
        consumer.flush()
        assert [(each.first, each.end) for each in hw.maintain("t").trimmed] == [(0, 3)]


def test_hard_bounds_are_not_to_be_had(opener: Opener) -> None:
    hw = opener(limits=QUICK)
    hw.create("t")
    with pytest.raises(Unsupported, match="hard limit"):
        hw.retain("t", retention_bytes_hard=1000)
    with pytest.raises(Unsupported, match="hard limit"):
        hw.create("u", retention_bytes_hard=1000)


def test_orphans_are_deleted_and_what_is_named_is_not(opener: Opener) -> None:
    hw, sweeper = opener(limits=BLOB), opener(limits=SWEEP)
    hw.append("t", os.urandom(5000))
    hw.append("t", os.urandom(5000))
    place = hw.logs._topics.live("t").logs[0].place
    for key in (place.blob("0" * 32), place.segment(0, 2, "1" * 32)):
        place.store.put(key, b"of somebody who died")
    for _ in range(2):
        sweeper.maintain()
    assert (len(keys(hw, "blobs")), keys(hw, "segments")) == (2, [])
    hw.seal("t")
    for _ in range(3):
        sweeper.maintain()
    assert len(keys(hw, "blobs")) == 2
    hw.append("t", b"c")
    hw.retain("t", before=2)
    for _ in range(4):
        sweeper.maintain()
    assert (keys(hw, "blobs"), offsets(opener().read("t"))) == ([], [2])


def test_young_orphans_stay(opener: Opener) -> None:
    hw = opener(limits=Limits(compact_objects=0))
    hw.append("t", b"a")
    place = hw.logs._topics.live("t").logs[0].place
    for key in (place.blob("0" * 32), place.segment(0, 2, "1" * 32)):
        place.store.put(key, b"of somebody who is at it")
    for _ in range(3):
        hw.maintain()
    assert (len(keys(hw, "blobs")), len(keys(hw, "segments"))) == (1, 1)
    assert hw.logs._topics.live("t").logs[0].chain.knowledge.look().mark.doomed == []


def test_an_upload_that_took_so_long_that_its_data_may_be_collected_is_refused(opener: Opener) -> None:
    hw = opener(limits=Limits(blob_bytes_min=1024, blob_orphan_s=-1.0))
    with pytest.raises(Unavailable) as told:
        hw.append("t", os.urandom(5000))
    assert told.value.code == "upload_too_slow"
    assert list(hw.read("t")) == []


# Topics that were deleted


def test_what_is_left_of_a_deleted_topic_is_collected_and_one_made_again_stays(opener: Opener) -> None:
    hw = opener(limits=QUICK)
    for name in ("t", "u"):
        for _ in range(3):
            hw.append(name, b"a")
        hw.seal(name)
        hw.append(name, b"b")
        hw.delete(name)
    hw.append("u", b"again")
    assert hw.maintain().collected > 8
    left = [each.key for each in hooks_of(hw).within.list("topics/t/")]
    assert [key.rpartition("/")[2] for key in left] == ["topic"]
    other = opener(limits=QUICK)
    assert other.topics() == ["u"]
    assert [event.data for event in other.read("u")] == [b"again"]
    assert len(hooks_of(hw).within.folders("topics/u/")) == 1


def test_a_topic_that_was_just_deleted_is_not_collected(opener: Opener) -> None:
    hw = opener(limits=Limits(compact_objects=0))
    hw.append("t", b"a")
    hw.delete("t")
    assert hw.maintain().collected == 0
    assert keys(hw, "events") != []


def test_whoever_slept_while_making_a_topic_that_was_swept_makes_it_anew(opener: Opener) -> None:
    hw, other = opener(limits=QUICK), opener(limits=QUICK)
    swept: list[int] = []

    def slept(method: str, key: str) -> None:
        if method == "create" and key.endswith("/topic") and not swept:
            swept.append(other.maintain().collected)

    hooks_of(hw).before = slept
    hw.create("t")
    assert swept == [1]
    assert hw.append("t", b"a").offset == 0
    assert [event.data for event in other.read("t")] == [b"a"]


def test_a_writer_that_slept_while_its_topic_was_deleted_and_made_again_appends_to_the_new_one(opener: Opener) -> None:
    hw, other = opener(limits=QUICK, clock=(clock := LaterClock())), opener(limits=QUICK)
    hw.append("t", b"old")
    ghosts: list[str] = []

    def sleep(method: str, key: str) -> None:
        if method == "create" and "/events/" in key:
            hooks_of(hw).before = lambda _method, _key: None
            other.delete("t")
            other.maintain()
            other.append("t", b"new")
            clock.later_s += 1000.0
            ghosts.append(key)

    hooks_of(hw).before = sleep
    assert hw.append("t", b"late").offset == 1
    assert ghosts != []
    for reader in (hw, other, opener()):
        assert [event.data for event in reader.read("t")] == [b"new", b"late"]
    other.maintain()
    other.maintain()
    assert len(hooks_of(hw).within.folders("topics/t/")) == 1


def test_a_writer_that_slept_while_its_topic_was_deleted_is_told_or_makes_it_anew(opener: Opener) -> None:
    hw, other = opener(limits=QUICK, clock=(clock := LaterClock())), opener(limits=QUICK)
    hw.append("t", b"old")

    def sleep(method: str, key: str) -> None:
        if method == "create" and "/events/" in key:
            hooks_of(hw).before = lambda _method, _key: None
            other.delete("t")
            other.maintain()
            clock.later_s += 1000.0

    hooks_of(hw).before = sleep
    hw.append("t", b"late")
    assert [event.data for event in opener().read("t")] == [b"late"]


class LaterClock(Clock):
    """The real time, moved forward by a test."""

    def __init__(self) -> None:
        self.later_s = 0.0

    def ticks(self) -> int:
        return super().ticks() + int(timedelta(seconds=self.later_s).total_seconds() * 10_000_000)


def test_a_real_object_store_is_compacted_trimmed_collected_and_sound(s3_url: str) -> None:
    with open_bucket(s3_url, limits=msgspec.structs.replace(BLOB, blob_orphan_s=3600.0)) as hw:
        for number in range(10):
            hw.append("t", b"%d" % number)
        hw.append("t", os.urandom(5000))
        assert hw.seal("t") == 1
        for _ in range(2):
            hw.maintain()
        left = [each.key for each in bucket_of(hw)._store.list("topics/t/")]
        assert not any("/events/" in key for key in left)
        hw.append("t", b"last")
        assert offsets(hw.read("t")) == list(range(12))
        assert hw.check().findings == []
        hw.retain("t", before=11)
        for _ in range(2):
            hw.maintain()
        left = [each.key for each in bucket_of(hw)._store.list("topics/t/")]
        assert not any("/segments/" in key for key in left)
        assert [event.data for event in hw.read("t")] == [b"last"]
        hw.delete("t")
        assert hw.maintain().collected > 0
        assert [each.key for each in bucket_of(hw)._store.list("topics/t/")] == ["topics/t/topic"]
