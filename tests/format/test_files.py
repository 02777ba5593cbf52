"""Segment headers, tails, blobs, indexes and settings: round trips, and damage of any single byte."""

from __future__ import annotations

import json

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from headwater.errors import Corrupt, HeadwaterError, Unsupported
from headwater.format import blob, segment, settings, tail
from headwater.format.index import Index
from headwater.format.segment import SegmentHeader
from headwater.format.settings import Store, Topic, TopicSettings
from headwater.format.tail import Slot
from tests import strategies

all_bytes_each = settings_of_hypothesis(max_examples=25)  # each damages every byte
UUID = "6e8bc430-9c3a-41d9-9669-0800200c9a66"


def flipped(stored: bytes, at: int, flip: int) -> bytes:
    return stored[:at] + bytes([stored[at] ^ flip]) + stored[at + 1 :]


def all_flips(stored: bytes) -> list[bytes]:
    return [flipped(stored, at, flip) for at in range(len(stored)) for flip in (0x01, 0xA0)]


# Segment


@given(strategies.segment_headers)
def test_a_segment_header_comes_back(header: SegmentHeader) -> None:
    assert len(header.encode()) == segment.HEADER_BYTES
    assert segment.decode(header.encode()) == header


@all_bytes_each
@given(strategies.segment_headers)
def test_any_flipped_byte_of_a_segment_header_is_detected(header: SegmentHeader) -> None:
    for damaged in all_flips(header.encode()):
        with pytest.raises(Corrupt):
            segment.decode(damaged)


@given(strategies.segment_headers, st.integers(0, 63))
def test_a_cut_segment_header_is_detected(header: SegmentHeader, size: int) -> None:
    with pytest.raises(Corrupt):
        segment.decode(header.encode()[:size])


@pytest.mark.parametrize(("at", "new"), [(8, b"\x02\0"), (8, b"\0\0"), (10, b"\x02\0"), (10, b"\0\x80")])
def test_an_unknown_version_or_flag_of_a_segment_is_unsupported(at: int, new: bytes) -> None:
    head = SegmentHeader(1, bytes(16), 0, 0, 0).encode()[:60]
    head = head[:at] + new + head[at + 2 :]
    with pytest.raises(Unsupported, match="upgrade"):
        segment.decode(head + crc32c(head).to_bytes(4, "little"))


# Tail


@given(strategies.slots)
def test_a_slot_comes_back(slot: Slot) -> None:
    assert len(slot.encode()) == tail.SLOT_BYTES
    assert tail.decode_slot(slot.encode()) == slot


@all_bytes_each
@given(strategies.slots)
def test_any_flipped_byte_of_a_slot_is_detected(slot: Slot) -> None:
    assert [damaged for damaged in all_flips(slot.encode()) if tail.decode_slot(damaged) is not None] == []


@given(strategies.slots, st.integers(0, tail.SLOT_BYTES - 1))
def test_a_cut_slot_is_detected(slot: Slot, size: int) -> None:
    assert tail.decode_slot(slot.encode()[:size]) is None


def test_a_slot_that_was_never_written_is_none() -> None:
    assert tail.decode_slot(bytes(tail.SLOT_BYTES)) is None


@given(strategies.slots, strategies.slots)
def test_the_newest_slot_is_the_one_with_the_higher_counter(one: Slot, other: Slot) -> None:
    stored = tail.MAGIC + bytes(56) + one.encode() + other.encode()
    newest = tail.newest(stored)
    assert newest is not None
    assert newest.counter == max(one.counter, other.counter)
    assert tail.newest(stored[:192] + bytes(128)) == one
    assert tail.newest(stored[:64] + bytes(128) + stored[192:]) == other
    assert tail.newest(stored[:64] + bytes(256)) is None


@all_bytes_each
@given(strategies.slots, strategies.slots)
def test_any_flipped_byte_of_a_tail_is_detected_but_for_the_volatile_words(one: Slot, other: Slot) -> None:
    stored = tail.MAGIC + bytes(56) + one.encode() + other.encode()
    assert tail.sound(stored)
    assert tail.sound(stored[:192] + bytes(128))
    unnoticed = [at for at in range(len(stored)) if tail.sound(flipped(stored, at, 0x10))]
    assert unnoticed == list(range(8, 24))
    assert not tail.sound(stored[:-1])


# Blob

CHUNK = 16
blobs = st.binary(max_size=100)


def crcs_of(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array([crc32c(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)], np.uint32)


@given(blobs)
def test_the_trailer_of_a_blob_comes_back(data: bytes) -> None:
    crcs = crcs_of(data)
    trailer = blob.encode_trailer(len(data), CHUNK, crcs)
    assert len(trailer) == 4 * len(crcs) + blob.FOOTER_BYTES
    assert blob.decode_trailer(trailer, (len(data), CHUNK, blob.table_crc(crcs))).tolist() == crcs.tolist()


@all_bytes_each
@given(blobs)
def test_any_flipped_byte_of_a_trailer_is_detected(data: bytes) -> None:
    crcs = crcs_of(data)
    trailer = blob.encode_trailer(len(data), CHUNK, crcs)
    for damaged in [*all_flips(trailer), trailer[:-1], trailer[1:], b"", trailer + b"\0"]:
        with pytest.raises(Corrupt):
            blob.decode_trailer(damaged, (len(data), CHUNK, blob.table_crc(crcs)))


def test_the_blob_of_another_event_is_detected() -> None:
    crcs = crcs_of(b"mine")
    trailer = blob.encode_trailer(4, CHUNK, crcs)
    for reference in [
        (4, CHUNK, blob.table_crc(crcs_of(b"hers"))),
        (5, CHUNK, blob.table_crc(crcs)),
        (4, CHUNK + 1, blob.table_crc(crcs)),
    ]:
        with pytest.raises(Corrupt, match="not the one"):
            blob.decode_trailer(trailer, reference)


# Index


def parts(index: Index) -> list[object]:
    kept = None if index.types is None else {name: numbers.tolist() for name, numbers in index.types.items()}
    numbers = index.offsets.tolist(), index.ticks.tolist(), index.positions.tolist()
    return [index.file_id, index.base_offset, index.end_offset, index.segment_bytes, *numbers, kept]


@given(strategies.indexes())
def test_an_index_comes_back(index: Index) -> None:
    assert parts(Index.decode(index.encode())) == parts(index)


@given(strategies.indexes(), st.data())
def test_any_flipped_byte_of_an_index_is_detected(index: Index, data: st.DataObject) -> None:
    stored = index.encode()
    at, flip = data.draw(st.integers(0, len(stored) - 1)), data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        Index.decode(flipped(stored, at, flip))


@given(strategies.indexes(), st.data())
def test_a_cut_or_longer_index_is_detected(index: Index, data: st.DataObject) -> None:
    stored = index.encode()
    for damaged in (stored[: data.draw(st.integers(0, len(stored) - 1))], stored + bytes(8)):
        with pytest.raises(Corrupt):
            Index.decode(damaged)


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda some: b"HWINDEX1" + some))
def test_strange_bytes_are_no_index(stored: bytes) -> None:
    with pytest.raises(Corrupt):
        Index.decode(stored)


def test_an_unknown_section_of_an_index_is_passed_over() -> None:
    one = np.array([5], np.int64)
    stored = Index(1, 5, 6, 200, one, one, one, None).encode()
    extra = b"whatever"
    table = (
        stored[48:96]
        + (77).to_bytes(4, "little")
        + crc32c(extra).to_bytes(4, "little")
        + len(extra).to_bytes(8, "little")
    )
    head = (4).to_bytes(4, "little") + stored[16:48]
    grown = stored[:8] + crc32c(head + table).to_bytes(4, "little") + head + table + stored[96:] + extra
    assert parts(Index.decode(grown)) == parts(Index.decode(stored))


def test_the_index_finds_the_batch_of_an_offset() -> None:
    offsets = np.array([10, 13, 20], np.int64)
    index = Index(1, 10, 25, 200, offsets, offsets, offsets, None)
    assert [index.batch_of(offset) for offset in (10, 12, 13, 19, 20, 24)] == [0, 0, 1, 1, 2, 2]


# Settings

TOPIC = Topic(
    name='Bestellungen/ö \x00\x1f\x7f\u2028"\\', uuid=UUID, partitions=3, settings=TopicSettings(segment_bytes=4096)
)


def signed(plain: dict[str, object]) -> bytes:
    """Settings as docs/FORMAT.md describes them, made without the code under test."""

    def canonical(value: object) -> bytes:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    return canonical(plain | {"crc": f"{crc32c(canonical(plain)):08x}"}) + b"\n"


@given(strategies.topic_names, st.integers(1, 4096), strategies.topic_settings)
def test_settings_come_back(name: str, partitions: int, chosen: TopicSettings) -> None:
    topic = Topic(name=name, uuid=UUID, partitions=partitions, settings=chosen)
    assert settings.decode(settings.encode(topic), Topic) == topic
    assert settings.decode(settings.encode(Store(uuid=UUID)), Store) == Store(uuid=UUID)


@given(strategies.topic_names)
def test_settings_are_written_as_the_format_says(name: str) -> None:
    plain: dict[str, object] = {"format": 1, "name": name, "uuid": UUID, "partitions": 2, "settings": {}}
    assert settings.encode(Topic(name=name, uuid=UUID, partitions=2)) == signed(plain)


def test_any_flipped_byte_of_settings_is_detected() -> None:
    store, topic = settings.encode(Store(uuid=UUID)), settings.encode(TOPIC)
    for damaged in [*all_flips(store), *(store[:size] for size in range(len(store))), store + b" "]:
        with pytest.raises(Corrupt):
            settings.decode(damaged, Store)
    for damaged in [*all_flips(topic), *(topic[:size] for size in range(len(topic))), topic + b" "]:
        with pytest.raises(Corrupt):
            settings.decode(damaged, Topic)


@given(st.binary(max_size=60) | st.sampled_from([b"1", b"[]", b"{}", b'{"format":1}', b'{"crc":[]}', b"[" * 5000]))
def test_strange_bytes_are_no_settings(stored: bytes) -> None:
    with pytest.raises(HeadwaterError):
        settings.decode(stored, Topic)


@pytest.mark.parametrize("format", [0, 2, 99, "1", None])
def test_another_format_is_unsupported(format: object) -> None:
    with pytest.raises(Unsupported, match="upgrade"):
        settings.decode(signed({"format": format, "uuid": UUID, "new": [1]}), Store)


@pytest.mark.parametrize("chosen", [{"colour": "red"}, {"compression": "lz4"}, {"segment_bytes": "many"}])
def test_an_unknown_setting_is_unsupported(chosen: dict[str, object]) -> None:
    plain: dict[str, object] = {"format": 1, "name": "a", "uuid": UUID, "partitions": 1, "settings": chosen}
    with pytest.raises(Unsupported, match="upgrade"):
        settings.decode(signed(plain), Topic)
