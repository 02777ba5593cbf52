"""Segment headers, tails, blobs, indexes and settings: round trips, and damage of any single byte."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from headwater.errors import Corrupt, HeadwaterError, Unsupported
from headwater.format import cursors, segment, settings, tail
from headwater.format.cursors import CursorsHeader, CursorSlot, MemberRecord, Words
from headwater.format.index import Index, head_bytes
from headwater.format.segment import SegmentHeader
from headwater.format.settings import LogSettings, TopicRecord, TopicSettings
from headwater.format.tail import TailSlot
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


@pytest.mark.parametrize(("at", "new"), [(8, b"\x02\0"), (8, b"\0\0"), (10, b"\x04\0"), (10, b"\0\x80")])
def test_an_unknown_version_or_flag_of_a_segment_is_unsupported(at: int, new: bytes) -> None:
    head = SegmentHeader(1, bytes(16), 0, 0, 0).encode()[:60]
    head = head[:at] + new + head[at + 2 :]
    with pytest.raises(Unsupported, match="upgrade"):
        segment.decode(head + crc32c(head).to_bytes(4, "little"))


# Tail


@given(strategies.slots)
def test_a_slot_comes_back(slot: TailSlot) -> None:
    assert len(slot.encode()) == tail.SLOT_BYTES
    assert tail.decode_slot(slot.encode()) == slot


@all_bytes_each
@given(strategies.slots)
def test_any_flipped_byte_of_a_slot_is_detected(slot: TailSlot) -> None:
    assert [damaged for damaged in all_flips(slot.encode()) if tail.decode_slot(damaged) is not None] == []


@given(strategies.slots, st.integers(0, tail.SLOT_BYTES - 1))
def test_a_cut_slot_is_detected(slot: TailSlot, size: int) -> None:
    assert tail.decode_slot(slot.encode()[:size]) is None


def test_a_slot_that_was_never_written_is_none() -> None:
    assert tail.decode_slot(bytes(tail.SLOT_BYTES)) is None


@given(strategies.slots, strategies.slots)
def test_the_newest_slot_is_the_one_with_the_higher_counter(one: TailSlot, other: TailSlot) -> None:
    stored = tail.MAGIC + bytes(56) + one.encode() + other.encode()
    newest = tail.newest(stored)
    assert newest is not None
    assert newest.counter == max(one.counter, other.counter)
    assert tail.newest(stored[:192] + bytes(128)) == one
    assert tail.newest(stored[:64] + bytes(128) + stored[192:]) == other
    assert tail.newest(stored[:64] + bytes(256)) is None


@all_bytes_each
@given(strategies.slots, strategies.slots)
def test_any_flipped_byte_of_a_tail_is_detected_but_for_the_volatile_words(one: TailSlot, other: TailSlot) -> None:
    stored = tail.MAGIC + bytes(56) + one.encode() + other.encode()
    assert tail.sound(stored)
    assert tail.sound(stored[:192] + bytes(128))
    unnoticed = [at for at in range(len(stored)) if tail.sound(flipped(stored, at, 0x10))]
    assert unnoticed == list(range(8, 24))
    assert not tail.sound(stored[:-1])


# Consumer


@given(strategies.cursors_headers)
def test_the_header_of_a_consumer_comes_back(header: CursorsHeader) -> None:
    assert len(header.encode()) == cursors.HEADER_BYTES
    assert cursors.decode_header(header.encode()) == header


@all_bytes_each
@given(strategies.cursors_headers)
def test_any_flipped_byte_of_the_header_of_a_consumer_is_detected(header: CursorsHeader) -> None:
    stored = header.encode()
    for damaged in [*all_flips(stored), *(stored[:size] for size in range(len(stored)))]:
        with pytest.raises(Corrupt):
            cursors.decode_header(damaged)


def test_an_unknown_version_of_a_consumer_is_unsupported() -> None:
    head = CursorsHeader(bytes(16), 1).encode()[:60]
    head = head[:8] + b"\x02\0" + head[10:]
    with pytest.raises(Unsupported, match="upgrade"):
        cursors.decode_header(head + crc32c(head).to_bytes(4, "little"))


@given(strategies.cursor_slots)
def test_a_cursor_comes_back(slot: CursorSlot) -> None:
    assert len(slot.encode()) == cursors.SLOT_BYTES
    assert cursors.decode_slot(slot.encode()) == slot
    assert cursors.decode_slot(slot.encode()[:-1]) is None


@all_bytes_each
@given(strategies.cursor_slots, strategies.cursor_slots)
def test_any_flipped_byte_of_a_cursor_leaves_the_other_slot(one: CursorSlot, other: CursorSlot) -> None:
    for damaged in all_flips(one.encode()):
        assert cursors.newest(damaged + other.encode()) == other
        assert cursors.newest(other.encode() + damaged) == other
        assert cursors.newest(damaged + bytes(cursors.SLOT_BYTES)) is None


@given(strategies.cursor_slots, strategies.cursor_slots)
def test_the_newest_cursor_is_the_one_with_the_higher_counter(one: CursorSlot, other: CursorSlot) -> None:
    newest = cursors.newest(one.encode() + other.encode())
    assert newest is not None
    assert newest.counter == max(one.counter, other.counter)


@given(st.lists(strategies.members, max_size=5))
def test_members_come_back_and_a_damaged_one_is_free(members: list[MemberRecord]) -> None:
    table = b"".join(member.encode() for member in members).ljust(cursors.MEMBERS_BYTES, b"\0")
    assert cursors.decode_members(table) == [*members, *[None] * (128 - len(members))]
    for at in range(len(members) * cursors.MEMBER_BYTES):
        found = cursors.decode_members(flipped(table, at, 0x04))
        assert found[at // cursors.MEMBER_BYTES] is None
        assert sum(member is not None for member in found) == len(members) - 1


@given(st.lists(strategies.cursor_slots, min_size=1, max_size=4))
def test_a_whole_file_of_cursors_comes_back(slots: list[CursorSlot]) -> None:
    header = CursorsHeader(bytes(range(16)), len(slots))
    stored = cursors.encode(header, b"b" * 16, slots)
    assert len(stored) == header.file_bytes
    assert cursors.decode_header(stored) == header
    assert cursors.decode_words(stored[cursors.BUSY_AT :]) == Words(0, 0, b"b" * 16)
    for number, slot in enumerate(slots):
        at = cursors.slot_at(number, slot.counter)
        assert stored[at : at + cursors.SLOT_BYTES] == slot.encode()
        assert cursors.newest(stored[cursors.slot_at(number, 0) :][: cursors.PAIR_BYTES]) == slot


# Blob

CHUNK = 16
blobs = st.binary(max_size=100)


def crcs_of(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array([crc32c(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)], np.uint32)


@given(blobs)
def test_the_trailer_of_a_blob_comes_back(data: bytes) -> None:
    crcs = crcs_of(data)
    trailer = segment.encode_trailer(len(data), CHUNK, crcs)
    assert len(trailer) == 4 * len(crcs) + segment.FOOTER_BYTES
    assert segment.decode_trailer(trailer, (len(data), CHUNK, segment.table_crc(crcs))).tolist() == crcs.tolist()


@all_bytes_each
@given(blobs)
def test_any_flipped_byte_of_a_trailer_is_detected(data: bytes) -> None:
    crcs = crcs_of(data)
    trailer = segment.encode_trailer(len(data), CHUNK, crcs)
    for damaged in [*all_flips(trailer), trailer[:-1], trailer[1:], b"", trailer + b"\0"]:
        with pytest.raises(Corrupt):
            segment.decode_trailer(damaged, (len(data), CHUNK, segment.table_crc(crcs)))


def test_the_blob_of_another_event_is_detected() -> None:
    crcs = crcs_of(b"mine")
    trailer = segment.encode_trailer(4, CHUNK, crcs)
    for reference in [
        (4, CHUNK, segment.table_crc(crcs_of(b"hers"))),
        (5, CHUNK, segment.table_crc(crcs)),
        (4, CHUNK + 1, segment.table_crc(crcs)),
    ]:
        with pytest.raises(Corrupt, match="does not match"):
            segment.decode_trailer(trailer, reference)


# Index


def parts(index: Index) -> list[object]:
    kept = None if index.types is None else {name: numbers.tolist() for name, numbers in index.types.items()}
    numbers = index.offsets.tolist(), index.ticks.tolist(), index.positions.tolist()
    keys = None if index.keys is None else index.keys.tolist()
    return [index.file_id, index.base_offset, index.end_offset, index.segment_bytes, *numbers, kept, keys]


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


def lookup(stored: bytes, hash: int) -> list[int] | None:
    """The batches of a key hash, reading no more than must be; None if the index keeps no keys."""
    head = head_bytes(stored[:400], len(stored))
    index = Index.decode_head(stored[:head], len(stored))
    if index.pages is None:
        return None
    first, end = index.pages.find(hash)
    start, stop = index.pages.range(first, end)
    return index.pages.batches(hash, first, stored[start:stop])


@given(strategies.indexes(), st.data())
def test_a_key_is_found_by_its_pages(index: Index, data: st.DataObject) -> None:
    stored = index.encode()
    keys = None if index.keys is None else index.keys.tolist()
    hash = data.draw(st.sampled_from(keys).map(lambda entry: entry >> 32) if keys else st.integers(0, 2**32 - 1))
    for wanted in (hash, max(0, hash - 1), min(hash + 1, 2**32 - 1), 0, 2**32 - 1):
        expected = None if keys is None else [entry & 0xFFFFFFFF for entry in keys if entry >> 32 == wanted]
        assert lookup(stored, wanted) == expected


@pytest.mark.parametrize("repeated", [1, 1024, 1025, 3000])
def test_a_key_in_many_batches_is_found_over_several_pages(repeated: int) -> None:
    one = np.array([5], np.int64)
    entries = [1 << 32, *(7 << 32 | number for number in range(repeated)), 8 << 32 | 5]
    stored = Index(1, 5, 6, 200, one, one, one, None, np.array(entries, np.uint64)).encode()
    assert lookup(stored, 7) == list(range(repeated))
    assert [lookup(stored, hash) for hash in (0, 1, 2, 6, 8, 9)] == [[], [0], [], [], [5], []]


@given(strategies.indexes().filter(lambda index: index.keys is not None), st.data())
def test_any_flipped_byte_is_detected_where_a_key_is_looked_for(index: Index, data: st.DataObject) -> None:
    """It is not found, found as it was, or the index counts as damaged: a flipped byte never hides one."""
    stored = index.encode()
    assert index.keys is not None
    at = data.draw(st.integers(0, len(stored) - 1))
    hashes = {int(entry) >> 32 for entry in index.keys[:: max(1, len(index.keys) // 20)]} | {0, 2**32 - 1}
    for hash in hashes:
        try:
            found = lookup(flipped(stored, at, data.draw(st.integers(1, 255))), hash)
        except Corrupt:
            continue
        assert found == lookup(stored, hash)


def test_an_index_whose_pages_are_not_its_keys_is_detected() -> None:
    one = np.array([5], np.int64)
    index = Index(1, 5, 6, 200, one, one, one, None, np.array([7 << 32], np.uint64))
    stored, other = index.encode(), msgspec.structs.replace(index, keys=np.array([8 << 32], np.uint64)).encode()
    table, body = 48 + 16 * 5, 24
    keys = slice(table + body, table + body + 16)  # section 5; its entry in the table is the fourth
    entry = slice(48 + 16 * 3, 48 + 16 * 4)
    mixed = bytearray(stored)
    mixed[entry], mixed[keys] = other[entry], other[keys]
    mixed[8:12] = crc32c(bytes(mixed[12:table])).to_bytes(4, "little")
    with pytest.raises(Corrupt, match="pages"):
        Index.decode(bytes(mixed))


def test_the_index_finds_the_batch_of_an_offset() -> None:
    offsets = np.array([10, 13, 20], np.int64)
    index = Index(1, 10, 25, 200, offsets, offsets, offsets, None)
    assert [index.batch_of(offset) for offset in (10, 12, 13, 19, 20, 24)] == [0, 0, 1, 1, 2, 2]


# Settings

TOPIC = TopicRecord(
    name='Bestellungen/ö \x00\x1f\x7f\u2028"\\', uuid=UUID, partitions=3, settings=TopicSettings(segment_bytes=4096)
)


def signed(plain: dict[str, object]) -> bytes:
    """Settings as docs/FORMAT.md describes them, made without the code under test."""

    def canonical(value: object) -> bytes:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    return canonical(plain | {"crc": f"{crc32c(canonical(plain)):08x}"}) + b"\n"


@given(strategies.topic_names, st.integers(1, 4096), strategies.topic_settings)
def test_settings_come_back(name: str, partitions: int, chosen: TopicSettings) -> None:
    topic = TopicRecord(name=name, uuid=UUID, partitions=partitions, settings=chosen)
    assert settings.decode(settings.encode(topic), TopicRecord) == topic
    assert settings.decode(settings.encode(LogSettings(uuid=UUID)), LogSettings) == LogSettings(uuid=UUID)


@given(strategies.topic_names)
def test_settings_are_written_as_the_format_says(name: str) -> None:
    plain: dict[str, object] = {"format": 1, "name": name, "uuid": UUID, "partitions": 2, "settings": {}}
    assert settings.encode(TopicRecord(name=name, uuid=UUID, partitions=2)) == signed(plain)


def test_any_flipped_byte_of_settings_is_detected() -> None:
    store, topic = settings.encode(LogSettings(uuid=UUID)), settings.encode(TOPIC)
    for damaged in [*all_flips(store), *(store[:size] for size in range(len(store))), store + b" "]:
        with pytest.raises(Corrupt):
            settings.decode(damaged, LogSettings)
    for damaged in [*all_flips(topic), *(topic[:size] for size in range(len(topic))), topic + b" "]:
        with pytest.raises(Corrupt):
            settings.decode(damaged, TopicRecord)


@given(st.binary(max_size=60) | st.sampled_from([b"1", b"[]", b"{}", b'{"format":1}', b'{"crc":[]}', b"[" * 5000]))
def test_strange_bytes_are_no_settings(stored: bytes) -> None:
    with pytest.raises(HeadwaterError):
        settings.decode(stored, TopicRecord)


@pytest.mark.parametrize("format", [0, 2, 99, "1", None])
def test_another_format_is_unsupported(format: object) -> None:
    with pytest.raises(Unsupported, match="upgrade"):
        settings.decode(signed({"format": format, "uuid": UUID, "new": [1]}), LogSettings)


@pytest.mark.parametrize("chosen", [{"colour": "red"}, {"compression": "lz4"}, {"segment_bytes": "many"}])
def test_an_unknown_setting_is_unsupported(chosen: dict[str, object]) -> None:
    plain: dict[str, object] = {"format": 1, "name": "a", "uuid": UUID, "partitions": 1, "settings": chosen}
    with pytest.raises(Unsupported, match="upgrade"):
        settings.decode(signed(plain), TopicRecord)
