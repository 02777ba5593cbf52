"""Snapshots of producers and the stamps on batches: round trips, and damage of any byte."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import Corrupt
from headwater.format import producers
from headwater.format.producers import Producer, ProducerAnswer, ProducerState
from tests.strategies import i64, u32, unicode_text

UUID = bytes(range(16))
ids = unicode_text.filter(lambda name: 0 < len(name.encode()) <= 255)
answers = st.builds(ProducerAnswer, st.integers(0, 2**63 - 1), i64, i64, u32)
snapshots = st.dictionaries(ids, st.builds(ProducerState, u32, st.lists(answers, min_size=1, max_size=5)), max_size=4)


@given(st.builds(Producer, ids, u32, st.integers(0, 2**63 - 1)))
def test_a_stamp_comes_back(producer: Producer) -> None:
    assert producers.read_stamp(producer.stamp()) == producer


@given(snapshots, i64)
def test_a_snapshot_comes_back_in_its_order(known: dict[str, ProducerState], base: int) -> None:
    found = producers.decode(producers.encode(UUID, base, known), UUID, base)
    assert list(found.items()) == list(known.items())


@settings(max_examples=6)
@given(snapshots)
def test_any_flipped_byte_or_cut_of_a_snapshot_is_corrupt(known: dict[str, ProducerState]) -> None:
    stored = producers.encode(UUID, 7, known)
    flips = [
        stored[:at] + bytes([stored[at] ^ flip]) + stored[at + 1 :]
        for at in range(len(stored))
        for flip in (0x01, 0xA0)
    ]
    cuts = [stored[:size] for size in range(len(stored))]
    for damaged in (*flips, *cuts, stored + b"\0"):
        with pytest.raises(Corrupt):
            producers.decode(damaged, UUID, 7)


def test_a_snapshot_of_another_log_or_offset_is_corrupt() -> None:
    stored = producers.encode(UUID, 7, {"p": ProducerState(1, [ProducerAnswer(1, 2, 3, 4)])})
    for uuid, base in ((bytes(16), 7), (UUID, 8)):
        with pytest.raises(Corrupt):
            producers.decode(stored, uuid, base)


@pytest.mark.parametrize("change", [b"\xff", b"\xff\xff\xff\xff\xff"])
def test_a_snapshot_that_does_not_parse_is_corrupt_though_its_checksum_is_right(change: bytes) -> None:
    stored = producers.encode(UUID, 7, {"p": ProducerState(1, [ProducerAnswer(1, 2, 3, 4)])})
    for at in range(producers.HEADER_BYTES, producers.HEADER_BYTES + 4):  # lengths
        body = stored[12:at] + change + stored[at + len(change) :]
        with pytest.raises(Corrupt):
            producers.decode(stored[:8] + crc32c(body).to_bytes(4, "little") + body, UUID, 7)
