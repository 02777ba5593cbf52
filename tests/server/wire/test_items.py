"""Items: every event as `u64 id | u32 length | data`, whatever batch it comes from, up to the end that was asked for."""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.server.wire import items, pieces
from headwater.server.wire.pieces import Cut
from headwater.server.wire.splice import splice
from tests import strategies
from tests.server.wire.logs import append, batches, opened
from tests.strategies import Row

Item = tuple[int, bytes]


def decoded(raw: bytes) -> list[Item]:
    """What a client of the plainest kind reads."""
    found = []
    at = 0
    while at < len(raw):
        id, length = struct.unpack_from(">QI", raw, at)
        assert at + 12 + length <= len(raw)
        found.append((id, raw[at + 12 : at + 12 + length]))
        at += 12 + length
    return found


sizes = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 31, 63, 64, 65, 100, 127, 128, 129]) | st.integers(0, 290)
data = sizes.flatmap(lambda size: st.binary(min_size=size, max_size=size))
runs = st.lists(st.lists(data, min_size=1, max_size=12), min_size=1, max_size=4)


@given(runs, st.integers(0, 3))
def test_a_client_reads_all_items_of_all_batches(runs: list[list[bytes]], picked: int) -> None:
    with opened() as hw:
        hw.create("t")
        for run in runs:
            append(hw, "t", [Row(each, "ab"[i % 2]) for i, each in enumerate(run)])
        wanted = {} if not picked else {"type": "a"}
        expected = [(event.offset, event.data) for event in hw.read("t", **wanted)]
        assert decoded(b"".join(items.encode(batches(hw, "t", **wanted)))) == expected


def test_nothing_is_encoded_as_nothing() -> None:
    assert list(items.encode([])) == []


def test_a_value_that_all_events_share_is_written_for_each() -> None:
    with opened() as hw:
        hw.append_many("t", [b"same"] * 5)
        (batch,) = batches(hw, "t")
        assert decoded(b"".join(items.encode([batch]))) == [(i, b"same") for i in range(5)]


@pytest.mark.parametrize("size", [301, 1999, 2001, 1_100_000, 2_500_000])
def test_a_huge_event_comes_chunk_by_chunk_behind_its_header(size: int) -> None:
    with opened() as hw:
        huge = bytes(range(251)) * (size // 251) + b"x" * (size % 251)
        hw.append_many("t", [b"a", b"b"])
        hw.append("t", huge)
        hw.append("t", b"after")
        found = list(items.encode(batches(hw, "t")))
        assert decoded(b"".join(found)) == [(0, b"a"), (1, b"b"), (2, huge), (3, b"after")]
        assert max(map(len, found)) <= 1024 * 1024


def test_pieces_are_large_enough_to_send_and_small_enough_to_hold() -> None:
    with opened() as hw:
        for _ in range(40):
            hw.append_many("small", [b"x" * 100] * 200, durability="os")
        small = list(items.encode(batches(hw, "small")))
        assert [len(piece) >= pieces.PIECE_BYTES for piece in small] == [True] * (len(small) - 1) + [False]
        hw.append_many("large", [b"x" * 250] * 20_000)
        large = list(items.encode(batches(hw, "large")))
        assert len(large) > 10
        assert max(map(len, large)) < 2 * pieces.PIECE_BYTES
        assert len(decoded(b"".join(large))) == 20_000


ends = st.none() | st.integers(0, 14)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.booleans(), ends, ends, ends)
def test_an_answer_ends_where_the_first_of_its_ends_is_met(
    counts: list[int], picked: bool, end_before: int | None, end_after: int | None, max_items: int | None
) -> None:
    with opened() as hw:
        for count in counts:
            append(hw, "t", [Row(b"%d" % i, "ab"[i % 2]) for i in range(count)])
        wanted = {"type": "b"} if picked else {}
        expected = []
        for event in hw.read("t", **wanted):
            if end_before is not None and event.offset >= end_before:
                break
            if end_after is not None and event.offset > end_after:
                break
            if max_items is not None and len(expected) >= max_items:
                break
            expected.append((event.offset, event.data))
        cut = Cut(end_before, end_after, max_items)
        asked = 0

        def each() -> object:
            nonlocal asked
            for batch in hw.read_batches("t", **wanted):
                asked += 1
                assert not cut.done
                yield batch

        assert decoded(b"".join(items.encode(each(), cut))) == expected  # type: ignore[arg-type]  # a generator
        last = hw.describe("t").events
        met = (max_items is not None and len(expected) >= max_items) or (cut.end is not None and cut.end == 0)
        if met:
            assert cut.done
        if cut.end is not None and cut.end <= last and not picked:
            assert cut.done
        if cut.end is None and max_items is None:
            assert not cut.done


def test_an_end_is_met_when_a_filter_has_passed_it() -> None:
    cut = Cut(end_before=10)
    cut.reach(9)
    assert not cut.done
    cut.reach(10)
    assert cut.done


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 3)), min_size=1, max_size=20), st.randoms())
def test_strings_are_spliced_as_a_loop_would(strings: list[tuple[int, int]], random: object) -> None:
    source = bytes(np.random.default_rng(1).integers(0, 256, 10_000, np.uint8))
    starts = np.array([0 if gap == 3 else 500 + start // 3 for start, gap in strings], np.int64)
    lengths = np.array([length // (1 + 40 * (gap % 2)) for length, gap in strings], np.int64)
    lengths = np.minimum(lengths, len(source) - starts)
    gaps = np.array([gap for _, gap in strings], np.int64)
    at = np.cumsum(lengths + gaps) - lengths
    size = int(at[-1] + lengths[-1])
    out = splice(at, source, starts, lengths, size)
    assert len(out) == size
    for to, start, length in zip(at.tolist(), starts.tolist(), lengths.tolist(), strict=True):
        assert out[to : to + length] == source[start : start + length]


@given(strategies.few_row_lists, st.integers(0, 8), st.integers(0, 8))
def test_a_part_of_a_batch_has_its_events(rows: list[Row], lo: int, hi: int) -> None:
    with opened() as hw:
        append(hw, "t", rows)
        for wanted in ({}, {"type": "placed|paid"}):
            for batch in batches(hw, "t", **wanted):
                first, last = min(lo, hi, len(batch)), min(max(lo, hi), len(batch))
                part = batch.part(first, last)
                assert part.events() == batch.events()[first:last]
                assert list(pairwise(part.offsets())) == list(pairwise(batch.offsets()[first:last]))
