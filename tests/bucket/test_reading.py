"""Reading a bucket: fetched ahead and in parallel, from a bounded cache, while others compact what is being read."""

from __future__ import annotations

import itertools
import threading
from datetime import timedelta

import pytest

from headwater.errors import Corrupt
from headwater.limits import Limits
from headwater.store import Store
from tests.bucket.conftest import Opener, hooks_of
from tests.bucket.stage import StageClock
from tests.opened import bucket_of


def fill(hw: Store, objects: int, events: int = 3) -> list[bytes]:
    data = [b"%d" % number for number in range(objects * events)]
    for at in range(0, len(data), events):
        hw.append_many("t", data[at : at + events], types="n", keys=[b"k"] * events)
    return data


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("read_before", [1, 4, 31, 59])
def test_a_read_goes_on_without_a_gap_or_a_repetition_when_it_is_compacted_meanwhile(
    opener: Opener, reverse: bool, read_before: int
) -> None:
    """What was read from small objects is not read again from the large batch that they became a part of."""
    hw, other = opener(limits=Limits(cache_bytes=0)), opener()
    data = fill(hw, 20)
    reader = opener(limits=Limits(cache_bytes=0)).read("t", reverse=reverse)
    found = [event.data for event in itertools.islice(reader, read_before)]
    other.seal("t")
    store = hooks_of(other).within
    store.delete([each.key for each in store.list("topics/") if "/events/" in each.key])
    found += [event.data for event in reader]
    assert found == (data[::-1] if reverse else data)


def test_a_catch_up_fetches_objects_in_parallel(opener: Opener) -> None:
    data = fill(opener(), 30)
    hw = opener(limits=Limits(fetch_threads=4))
    met, all_met = threading.Barrier(4), threading.Event()

    def meet(method: str, key: str) -> None:
        if method == "get" and "/events/" in key and int(key[-20:]) >= 30 and not all_met.is_set():
            met.wait(10)  # four requests are under way
            all_met.set()

    reader = hw.read("t")
    assert next(reader).data == b"0"
    hooks_of(hw).before = meet
    assert [b"0", *(event.data for event in reader)] == data
    assert all_met.is_set()
    assert hooks_of(hw).at_once <= 4


def test_a_segment_is_fetched_in_ranges_and_in_parallel(opener: Opener) -> None:
    hw = opener(limits=Limits(pack_bytes=2000))
    data = [b"%d" % number * 100 for number in range(2000)]
    for at in range(0, 2000, 100):
        hw.append_many("t", data[at : at + 100])
    hw.seal("t")
    other = opener(limits=Limits(fetch_bytes=5000, fetch_threads=4))
    assert [event.data for event in other.read("t")] == data
    asked = hooks_of(other).asked
    assert asked["get_range"] > 20
    assert hooks_of(other).at_once > 1
    before = asked["get_range"]
    fresh = opener(limits=Limits(fetch_bytes=5000))
    assert [event.data for event in fresh.read("t", start=1000, end=1001)] == [data[1000]]
    assert hooks_of(fresh).asked["get_range"] < 5 < before


def test_what_was_read_is_kept_up_to_a_bound(opener: Opener) -> None:
    data = fill(opener(), 10, 100)
    hw = opener(limits=Limits(cache_bytes=1_000_000))
    for _ in range(2):
        assert [event.data for event in hw.read("t")] == data
    again = hooks_of(hw).asked["get"]
    assert [event.data for event in hw.read("t")] == data
    assert hooks_of(hw).asked["get"] - again <= 3  # where the end is, and no object
    small = opener(limits=Limits(cache_bytes=8000))
    for _ in range(2):
        assert [event.data for event in small.read("t")] == data
    assert 0 < bucket_of(small)._cache.size <= 8000


def test_a_follower_that_has_caught_up_looks_ever_more_rarely(opener: Opener) -> None:
    clock = StageClock()
    hw = opener(clock=clock, limits=Limits(follow_ms=20, follow_ms_max=1000))
    hw.append("t", b"0")
    log = hw.logs._topics.get("t").logs[0]
    looks: list[float] = []
    hooks_of(hw).before = lambda _method, key: looks.append(clock.now_s) if "/events/" in key else None
    for _ in range(6000):  # a minute
        log.seen()
        clock.now_s += 0.01
    assert 60 < len(looks) < 80
    assert looks[1] - looks[0] < 0.05
    assert looks[-1] - looks[-2] >= 1.0
    opener().append("t", b"1")
    clock.now_s += log.pause_s()
    assert log.seen() == 2
    assert log.pause_s() <= 0.021  # something came: it looks often again


@pytest.mark.parametrize("sealed", [False, True])
def test_places_are_found_by_time_and_id(bucket: Store, sealed: bool) -> None:
    fill(bucket, 12)
    if sealed:
        bucket.seal("t")
        fill(bucket, 3)
    events = list(bucket.read("t"))
    for number in range(0, len(events), 6):  # times have a coarser grain than ids
        event = events[number]
        assert [e.offset for e in bucket.read("t", start=event.id)] == list(range(number, len(events)))
        assert next(bucket.read("t", start=event.time)).offset == number
        assert [e.offset for e in bucket.read("t", end=event.time)] == list(range(number))
    assert list(bucket.read("t", start=events[-1].time + timedelta(seconds=1))) == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "another's"])
def test_damage_is_told_with_its_place(opener: Opener, damage: str) -> None:
    hw = opener()
    fill(hw, 5)
    store = hooks_of(hw).within
    keys = [each.key for each in store.list("topics/") if "/events/" in each.key]
    found = store.get(keys[2])
    assert found is not None
    data = bytearray(found.data)
    if damage == "missing":
        store.delete([keys[2]])
    elif damage == "another's":
        other = store.get(keys[3])
        assert other is not None
        store.put(keys[2], bytes(other.data))
    else:
        store.put(keys[2], bytes(data[:-20]) if damage == "cut" else bytes(data[:-20]) + b"\xff" + bytes(data[-19:]))
    with pytest.raises(Corrupt) as caught:
        list(opener().read("t"))
    assert keys[2] in str(caught.value)
