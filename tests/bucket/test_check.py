"""`check` of a bucket finds every damage, and nothing where there is none."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from headwater.bucket.object_place import ObjectPlace
from headwater.errors import NotFound
from headwater.limits import Limits
from headwater.store import Store
from tests.bucket.conftest import Opener, hooks_of
from tests.opened import bucket_of

LIMITS = Limits(blob_bytes_min=1024, compact_objects=0, segment_bytes=14_000, collect_s=0.0)


@pytest.fixture
def filled_bucket(opener: Opener) -> Store:
    """Two segments, three objects behind them, and a huge event in each."""
    hw = opener(limits=LIMITS)
    for _ in range(2):
        for _ in range(10):
            hw.append("t", os.urandom(600))
        hw.append("t", os.urandom(3000))
        hw.seal("t")
    hw.append_many("t", [b"a", b"b"])
    hw.append("t", os.urandom(3000))
    hw.append("t", b"last")
    return hw


def place_of(hw: Store) -> ObjectPlace:
    return bucket_of(hw)._topics.live("t").logs[0].place


def test_a_sound_bucket_has_no_damage(filled_bucket: Store) -> None:
    seen: list[tuple[int, int]] = []
    report = filled_bucket.check(progress=lambda done, total: seen.append((done, total)))
    assert not report.damaged
    assert [finding.damage for finding in report.findings] == [False]  # what was compacted is still there
    assert (report.topics, report.partitions, report.segments, report.events) == (1, 1, 2, 26)
    assert seen
    for _ in range(3):
        filled_bucket.maintain()
    assert filled_bucket.check().findings == []
    filled_bucket.retain("t", before=12)
    assert not filled_bucket.check("t").damaged
    with pytest.raises(NotFound):
        filled_bucket.check("missing")


@pytest.mark.parametrize("at", [5, 30, 100, -2000, -100, -10, -1])
@pytest.mark.parametrize("kind", ["segment", "object", "blob"])
def test_a_damaged_byte_is_found(filled_bucket: Store, kind: str, at: int) -> None:
    place = place_of(filled_bucket)
    meta = filled_bucket.logs._topics.live("t").logs[0].chain.knowledge.look()
    first = meta.segments[0]
    key = {
        "segment": place.segment(first.base, first.end, first.nonce),
        "object": place.events_at(22),
        "blob": next(each.key for each in place.store.list(place.blobs)),
    }[kind]
    stored = place.store.get(key)
    assert stored is not None
    data = bytearray(stored.data)
    data[max(at, -len(data))] ^= 0x40
    place.store.put(key, bytes(data))
    report = filled_bucket.check()
    assert report.damaged
    assert any(key in finding.path for finding in report.findings if finding.damage)


def drop(key_of: Callable[[ObjectPlace], str]) -> Callable[[ObjectPlace], None]:
    return lambda place: place.store.delete([key_of(place)])


def damage_meta(place: ObjectPlace) -> None:
    place.store.put(place.meta, b"{}")


def replace(place: ObjectPlace) -> None:
    """The object of another place, sound in itself."""
    found = place.store.get(place.events_at(25))
    assert found is not None
    place.store.put(place.events_at(24), bytes(found.data))


@pytest.mark.parametrize(
    "damage",
    [
        drop(lambda place: place.events_at(22)),
        drop(lambda place: place.events_at(24)),
        drop(lambda place: next(each.key for each in place.store.list(place.segments))),
        drop(lambda place: next(each.key for each in place.store.list(place.blobs))),
        drop(lambda place: place.meta),
        damage_meta,
        replace,
    ],
    ids=["first object", "object", "segment", "huge event", "no record", "record", "other object"],
)
def test_what_is_missing_or_wrong_is_found(filled_bucket: Store, damage: Callable[[ObjectPlace], None]) -> None:
    damage(place_of(filled_bucket))
    assert filled_bucket.check().damaged


def test_a_check_that_is_overtaken_by_compaction_and_collection_finds_nothing(
    filled_bucket: Store, opener: Opener
) -> None:
    other = opener(limits=LIMITS)
    overtaken: list[str] = []

    def overtake(method: str, key: str) -> None:
        if method == "get" and "/events/" in key and not overtaken:
            overtaken.append(key)
            other.seal("t")
            for _ in range(3):
                other.maintain()

    hooks_of(filled_bucket).before = overtake
    report = filled_bucket.check()
    assert overtaken
    assert not report.damaged
    assert report.events == 26


def test_a_damaged_record_of_a_topic_does_not_hide_the_others(filled_bucket: Store) -> None:
    filled_bucket.append("u", b"a")
    hooks_of(filled_bucket).within.put("topics/u/topic", b"{}")
    report = filled_bucket.check()
    assert report.damaged
    assert report.topics == 1
