"""Every reader with a match: over batches as appended, packed, compressed, of mixed content, and over huge events."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import bson
import pytest

import headwater
from headwater import Invalid, Limits, Store
from headwater.errors import NotFound
from headwater.format.column import Column
from headwater.format.contents import may_be_json
from tests.planting import plant

OVER_TEN = {"total": {"$gt": 10}}


def offsets(hw: Store, topic: str = "t", **options: Any) -> list[int]:
    """What a read finds, which all ways to read agree on."""
    found = [event.offset for event in hw.read(topic, **options)]
    batches = [offset for batch in hw.read_batches(topic, **options) for offset in batch.offsets().tolist()]
    assert sorted(batches) == sorted(found)
    if not options.pop("reverse", False):
        assert hw.read_arrow(topic, columns=["offset"], **options)["offset"].to_pylist() == found
    return found


def append_mixed(hw: Store) -> list[int]:
    """Batches of one and of many events, of every content; returns the offsets of those with a total above ten."""
    hw.append("t", {"total": 11}, type="placed", key="a")  # 0
    hw.append("t", {"total": 2}, type="placed", key="a")
    hw.append("t", '{"total": 99', type="noted")
    hw.append("t", b'[{"total": 99}]', type="scanned")
    hw.append("t", bson.encode({"total": 12}), content="bson", type="placed")  # 4
    plant(hw, "t", b'{"total": 99')
    hw.append_many("t", [{"total": n} for n in range(20)], types=["placed", "paid"] * 10, keys=["a", "b"] * 10)
    hw.append_many("t", [bson.encode({"total": n / 2}) for n in range(30)], content="bson")
    plant(hw, "t", b'{"total": 50}', b"{", b"[50]", b"\xff", b'{"total": "50"}')
    hw.append_many("t", [{"total": 77}] * 600)
    return [0, 4, *range(17, 26), *range(47, 56), 56, *range(61, 661)]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_all_ways_to_read_find_the_same_also_when_packed(hw: Store, compression: Any) -> None:
    hw.create("t", compression=compression)
    expected = append_mixed(hw)
    for _ in ("as appended", "packed"):
        assert offsets(hw, match=OVER_TEN) == expected
        assert offsets(hw, match=OVER_TEN, reverse=True) == expected[::-1]
        assert offsets(hw, match=OVER_TEN, start=20, end=50) == [o for o in expected if 20 <= o < 50]
        assert offsets(hw, match=OVER_TEN, type="placed") == [0, 4, 18, 20, 22, 24]
        assert offsets(hw, match=OVER_TEN, key="a") == [0, 18, 20, 22, 24]
        assert offsets(hw, match=OVER_TEN, key="b", type="placed") == []
        assert offsets(hw, match={"none": 1}) == []
        assert len(offsets(hw, match={})) == 661 - 6
        assert hw.seal("t") in (0, 1)


@pytest.mark.parametrize("content", ["bytes", "text"])
def test_json_objects_match_whatever_their_content(hw: Store, content: Any) -> None:
    found = [b'{"total": 11}', b' \n\t{"total":12}\r\n', '{"total": 13, "by": "Åsa"}'.encode()]
    other = [b'{"total": 1}', b"", b"total 99", b'[{"total": 99}]', b'{"total": 99', b' {"total": 99} 1', b" ", b"99"]
    hw.append_many("t", [*found, *other], content=content)  # 0 to 10
    hw.append_many("t", found[:1] * 40, content=content)  # 11 to 50: one value for all when packed
    hw.append_many("t", (found[:1] + other[:3]) * 20, content=content)  # 51 to 130: a dictionary when packed
    for data in (*other, *found):  # 131 to 141
        hw.append("t", data, content=content)
    expected = [0, 1, 2, *range(11, 51), *range(51, 131, 4), 139, 140, 141]
    for _ in ("as appended", "packed"):
        assert offsets(hw, match=OVER_TEN) == expected
        assert hw.seal("t") in (0, 1)
    assert [event.data for event in hw.read("t", end=11)] == [*found, *other]


@pytest.mark.parametrize("column", [Column(3, b'{"a":1}'), Column.of_repeated([b"{}", b"no", b"{}"]), Column(2, b"")])
def test_the_first_byte_tells_what_may_be_json_in_every_encoding(column: Column) -> None:
    values = [value or b"" for value in column.values(0, column.count)]
    assert may_be_json(column).tolist() == [value[:1] == b"{" for value in values]
    arrays = Column.of([b"[1]", b"{}", b" [", b"", b"x"])
    assert may_be_json(arrays).tolist() == [True, True, True, False, False]
    assert may_be_json(arrays, objects_only=True).tolist() == [False, True, True, False, False]


def test_the_events_found_are_the_events(hw: Store) -> None:
    append_mixed(hw)
    expected = {event.offset: event for event in hw.read("t")}
    for event in hw.read("t", match=OVER_TEN):
        assert event == expected[event.offset]
    table = hw.read_arrow("t", match={"total": 15})
    assert table["data"].to_pylist() == [b'{"total":15}']
    assert table["key"].to_pylist() == [b"b"]


def test_partitions_are_merged_in_order_of_time(hw: Store) -> None:
    hw.create("t", partitions=3)
    for n in range(60):
        hw.append("t", {"n": n}, key=str(n))
    assert [event.value["n"] for event in hw.read("t", match={"n": {"$gte": 50}})] == list(range(50, 60))
    assert [event.value["n"] for event in hw.read("t", match={"n": {"$lt": 3}}, reverse=True)] == [2, 1, 0]


def test_huge_events_match_up_to_what_is_read_into_memory(tmp_path: Path) -> None:
    limits = Limits(blob_bytes_min=1000, blob_bytes_in_memory=5000)
    with headwater.open(tmp_path / "data", durability="os", limits=limits) as hw:
        for size in (10, 2000, 9000):
            hw.append("t", {"total": 11, "text": "x" * size})
        plant(hw, "t", b"\xff" * 2000)
        hw.append("t", bson.encode({"total": 11, "text": "x" * 2000}), content="bson")
        assert offsets(hw, match=OVER_TEN) == [0, 1, 4]
        assert offsets(hw, match={"none": None}) == [0, 1, 4]
        assert [event.value["total"] for event in hw.read("t", match=OVER_TEN)] == [11, 11, 11]


def test_what_was_damaged_and_cut_never_matches(hw: Store, tmp_path: Path) -> None:
    for n in range(3):
        hw.append_many("t", [{"n": n}] * 5, types=[f"{n}"] * 5)
    hw.append("t", {"n": 3})
    (segment,) = (tmp_path / "data" / "topics" / "t" / "0").glob("*.log")
    stored = bytearray(segment.read_bytes())
    stored[stored.index(b'{"n":1}')] ^= 1
    hw.close()
    segment.write_bytes(stored)
    with headwater.open(tmp_path / "data") as again:
        with pytest.raises(headwater.Corrupt):
            list(again.read("t", match={"n": 5}))
        again.repair("t", apply=True)
        assert offsets(again, match={"x": None}) == [*range(5), *range(10, 16)]


def test_a_follower_hands_out_only_what_matches(hw: Store) -> None:
    hw.append("t", {"total": 11})
    hw.append("t", {"total": 1})
    ready = threading.Event()

    def append() -> None:
        ready.wait(10)
        hw.append("t", {"total": 2})
        hw.append_many("t", [{"total": n} for n in (5, 30, 6)])
        hw.append("t", bson.encode({"total": 40}), content="bson")

    thread = threading.Thread(target=append)
    thread.start()
    found = []
    with hw.follow("t", start=0, match=OVER_TEN, timeout=10) as follow:
        for event in follow:
            found.append(event.offset)
            ready.set()
            if event.value["total"] == 40:
                break
    thread.join()
    assert found == [0, 4, 6]
    assert [event.offset for event in hw.follow("t", start=0, match={"total": 5}, timeout=0)] == [3]


def test_a_bad_match_is_refused_by_the_call_not_by_the_first_event(hw: Store) -> None:
    hw.create("t")
    for verb in (hw.read, hw.read_batches, hw.read_arrow, hw.follow):
        with pytest.raises(Invalid) as refused:
            verb("t", match={"a": {"$bad": 1}})
        assert refused.value.code == "bad_match"
        with pytest.raises(Invalid) as refused:
            verb("t", match={"a": {"$regex": "("}})
        assert refused.value.code == "bad_pattern"
        with pytest.raises(NotFound):
            verb("nowhere", match={})
