"""Items: every event as `u64 id | u32 length | data`, whatever batch it is from, up to the end that was asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.format.events import EventBatch
from headwater.server.wire import items, pieces
from headwater.server.wire.batches import splice
from headwater.server.wire.pieces import Cut
from tests.server.wire.logs import event_batches, made, of, opened
from tests.strategies import NOW_TICKS, Batch, Row

Item = tuple[int, bytes | None]


def decoded(raw: bytes) -> list[Item]:
    """What a client of the plainest kind reads."""
    found: list[Item] = []
    at = 0
    while at < len(raw):
        id, length = struct.unpack_from(">QI", raw, at)
        assert at + 12 + length <= len(raw)
        found.append((id, raw[at + 12 : at + 12 + length]))
        at += 12 + length
    return found


def expected(batches: list[EventBatch]) -> list[Item]:
    return [(event.offset, event.data) for batch in batches for event in batch.events()]


sizes = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 31, 63, 64, 65, 100, 127, 128, 129]) | st.integers(0, 5000)
many_sizes = st.lists(sizes, min_size=1, max_size=30)


@given(st.lists(event_batches(), max_size=2))
def test_a_client_reads_all_items_of_all_batches(batches: list[EventBatch]) -> None:
    assert decoded(b"".join(items.encode(batches))) == expected(batches)


@given(many_sizes)
def test_data_of_any_sizes_is_laid_out(sizes: list[int]) -> None:
    batch = of([Row(bytes([65 + i]) * size) for i, size in enumerate(sizes)])
    assert decoded(b"".join(items.encode([batch]))) == expected([batch])


def test_nothing_is_encoded_as_nothing() -> None:
    assert list(items.encode([])) == []


@pytest.mark.parametrize("size", [301, 1999, 2001, 1_100_000, 2_500_000])
def test_a_huge_event_comes_chunk_by_chunk_behind_its_header(size: int) -> None:
    with opened() as hw:
        huge = bytes(range(251)) * (size // 251) + b"x" * (size % 251)
        hw.append_many("t", [b"a", b"b"])
        hw.append("t", huge)
        hw.append("t", b"after")
        found = list(items.encode(hw.read_batches("t")))
        assert decoded(b"".join(found)) == [(0, b"a"), (1, b"b"), (2, huge), (3, b"after")]
        assert max(map(len, found)) <= 1024 * 1024


def test_pieces_are_large_enough_to_send_and_small_enough_to_hold() -> None:
    with opened() as hw:
        for _ in range(40):
            hw.append_many("small", [b"x" * 100] * 200, durability="os")
        small = list(items.encode(hw.read_batches("small")))
        assert [len(piece) >= pieces.PIECE_BYTES for piece in small] == [True] * (len(small) - 1) + [False]
        hw.append_many("large", [b"x" * 250] * 20_000)
        large = list(items.encode(hw.read_batches("large")))
        assert len(large) > 10
        assert max(map(len, large)) < 2 * pieces.PIECE_BYTES
        assert len(decoded(b"".join(large))) == 20_000


ends = st.none() | st.integers(0, 14)


@st.composite
def logs(draw: st.DrawFn) -> list[EventBatch]:
    """Batches that follow each other from offset 0 on, with or without some events that a filter left out."""
    found = []
    at = 0
    for count in draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)):
        rows = draw(st.none() | st.lists(st.integers(0, count - 1), min_size=1, unique=True).map(sorted))
        found.append(made(Batch(at, NOW_TICKS + at, "bytes", [Row(b"%d" % i) for i in range(count)]), rows=rows))
        at += count
    return found


@given(logs(), ends, ends, ends)
def test_an_answer_ends_where_the_first_of_its_ends_is_met(
    batches: list[EventBatch], end_before: int | None, end_after: int | None, max_items: int | None
) -> None:
    wanted = [
        (offset, data)
        for offset, data in expected(batches)
        if (end_before is None or offset < end_before) and (end_after is None or offset <= end_after)
    ][:max_items]
    cut = Cut(end_before, end_after, max_items)

    def each() -> Iterator[EventBatch]:
        for batch in batches:
            assert not cut.done  # else nothing more is asked for
            yield batch

    assert decoded(b"".join(items.encode(each(), cut))) == wanted
    end = sum(batch.piece.batch.count for batch in batches)
    passed = cut.end is not None and cut.end <= end
    assert cut.done == (passed or (max_items is not None and len(wanted) == max_items))


def test_an_end_is_met_when_a_filter_has_passed_it() -> None:
    cut = Cut(end_before=10)
    cut.reach(9)
    assert not cut.done
    cut.reach(10)
    assert cut.done


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 3)), min_size=1, max_size=20))
def test_strings_are_spliced_as_a_loop_would(strings: list[tuple[int, int]]) -> None:
    source = np.random.default_rng(1).integers(0, 256, 10_000, np.uint8).tobytes()
    starts = np.array([0 if gap == 3 else 500 + start // 3 for start, gap in strings], np.int64)
    lengths = np.array([length // (1 + 40 * (gap % 2)) for length, gap in strings], np.int64)
    lengths = np.minimum(lengths, len(source) - starts)
    at = np.cumsum(lengths + np.array([gap for _, gap in strings])) - lengths
    size = int(at[-1] + lengths[-1])
    out = splice(at, source, starts, lengths, size)
    assert len(out) == size
    for to, start, length in zip(at.tolist(), starts.tolist(), lengths.tolist(), strict=True):
        assert out[to : to + length] == source[start : start + length]


@given(event_batches(), st.integers(0, 12), st.integers(0, 12))
def test_a_part_of_a_batch_has_its_events(batch: EventBatch, lo: int, hi: int) -> None:
    first, last = min(lo, hi, len(batch)), min(max(lo, hi), len(batch))
    part = batch.part(first, last)
    assert len(part) == last - first
    assert part.events() == batch.events()[first:last]
    assert part.offsets().tolist() == batch.offsets()[first:last].tolist()
