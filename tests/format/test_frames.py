"""Frames around batches: what is encoded is decoded, however it arrives, and any damage is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import Corrupt, HeadwaterError, TooLarge
from headwater.format import frames
from headwater.format.batch import DATA, encode
from headwater.format.column import Column
from headwater.format.frames import Decoder, Frame
from tests import strategies

Made = tuple[int, bytes, int, int, list[int] | None]


@st.composite
def made(draw: st.DrawFn) -> Made:
    """The partition, the batch, the bounds and the rows of a frame."""
    batch = draw(strategies.batches())
    count = len(batch.rows)
    lo = draw(st.integers(0, count - 1))
    hi = draw(st.integers(lo + 1, count))
    rows = draw(st.none() | st.lists(st.integers(lo, hi - 1), min_size=1, unique=True).map(sorted))
    return draw(st.integers(0, 4095)), batch.encode(), lo, hi, rows


def encoded(frame: Made) -> bytes:
    partition, stored, lo, hi, rows = frame
    return frames.encode(partition, stored, lo, hi, None if rows is None else np.array(rows, np.int64))


def told(frame: Frame) -> Made:
    rows = None if frame.rows is None else frame.rows.tolist()
    return frame.partition, bytes(frame.batch.stored()), frame.lo, frame.hi, rows


@given(st.lists(made(), max_size=4), st.integers(1, 200))
def test_frames_come_back_however_their_bytes_arrive(many: list[Made], piece: int) -> None:
    whole = b"".join(map(encoded, many))
    decoder = Decoder()
    found = [told(frame) for at in range(0, len(whole), piece) for frame in decoder.feed(whole[at : at + piece])]
    decoder.finish()
    assert found == many


@given(made(), st.data())
def test_a_changed_byte_is_found(frame: Made, data: st.DataObject) -> None:
    whole = bytearray(encoded(frame))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    decoder = Decoder()
    with pytest.raises(HeadwaterError):  # noqa: PT012  # it may be found at any of these steps
        for found in decoder.feed(bytes(whole)):
            found.batch.validate()
        decoder.finish()


@given(made(), st.data())
def test_a_cut_off_frame_is_found(frame: Made, data: st.DataObject) -> None:
    whole = encoded(frame)
    decoder = Decoder()
    assert decoder.feed(whole[: data.draw(st.integers(1, len(whole) - 1))]) == []
    with pytest.raises(Corrupt):
        decoder.finish()


@pytest.mark.parametrize(("lo", "hi", "rows"), [(0, 0, None), (2, 1, None), (0, 9, None), (0, 3, [1, 1]), (1, 3, [0])])
def test_a_frame_that_does_not_fit_its_batch_is_refused(lo: int, hi: int, rows: list[int] | None) -> None:
    stored = encode(0, 0, 3, "bytes", {DATA: Column.of([b"a", b"b", b"c"])})
    with pytest.raises(Corrupt):
        Decoder().feed(encoded((0, stored, lo, hi, rows)))


def test_a_batch_that_claims_more_events_than_any_has_is_refused() -> None:
    stored = encode(0, 0, 1 << 31, "bytes", {DATA: Column(1 << 31, b"x")})
    with pytest.raises(TooLarge):
        Decoder().feed(frames.encode(0, stored, 0, 1))


def test_a_frame_that_claims_to_be_huge_is_refused_before_it_is_waited_for() -> None:
    head = bytearray(frames.encode(0, encode(0, 0, 1, "bytes", {DATA: Column(1, b"x")}), 0, 1)[:32])
    head[8:12] = b"\xff\xff\xff\xff"
    with pytest.raises(TooLarge):
        Decoder().feed(bytes(head))
