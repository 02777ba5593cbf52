"""Batches as bytes: what is encoded is decoded, any damage is found, and hostile bytes break nothing."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.errors import Corrupt, HeadwaterError, Unsupported
from headwater.event import CONTENTS, Content
from headwater.format import arrow
from headwater.format.batch import (
    BLOB,
    DATA,
    ENTRY_BYTES,
    HEADER_BYTES,
    KEY,
    LOST,
    META,
    RUNS,
    TICKS,
    TYPE,
    Batch,
    decode,
    encode,
    encode_blob_reference,
    encode_lost,
    encode_one,
)
from headwater.format.column import CONSTANT, DICTIONARY, NULLS, PLAIN, ZSTD, Column
from tests import strategies
from tests.strategies import NOW_TICKS, Row


def decoded(stored: bytes) -> Batch:
    return decode(memoryview(stored), 0, len(stored))


def meaning(batch: Batch) -> list[tuple[Any, ...]]:
    """Offset, ticks, type, key, data and meta of each event."""

    def values(kind: int, absent: bytes | None) -> list[bytes | None]:
        column = batch.column(kind)
        return [absent] * batch.count if column is None else column.values(0, batch.count)

    return list(
        zip(
            range(batch.base_offset, batch.end_offset),
            batch.ticks().tolist(),
            [(value or b"").decode() for value in values(TYPE, b"")],
            values(KEY, None),
            values(DATA, None),
            values(META, None),
            strict=True,
        )
    )


def encodings(stored: bytes) -> dict[int, int]:
    """The encoding of each column, by kind."""
    entries = range(HEADER_BYTES, HEADER_BYTES + stored[35] * ENTRY_BYTES, ENTRY_BYTES)
    return {stored[at]: stored[at + 1] for at in entries}


def resealed(stored: bytes) -> bytes:
    """The same bytes with every checksum made right again, as somebody with bad intentions would."""
    raw = bytearray(stored)
    n = raw[35]
    at = HEADER_BYTES + n * ENTRY_BYTES
    if at > len(raw):
        return stored
    starts = []
    for i in range(n):
        kind, _, _, size = struct.unpack_from("<BBHI", raw, HEADER_BYTES + i * ENTRY_BYTES)
        at += -at % (8 if kind == TICKS else 4)
        starts.append(at)
        at += size
    for i, start in enumerate(starts):
        end = starts[i + 1] if i + 1 < n else len(raw)
        struct.pack_into("<I", raw, HEADER_BYTES + i * ENTRY_BYTES + 8, crc32c(raw[start:end]))
    struct.pack_into("<I", raw, 4, crc32c(raw[8 : starts[0] if starts else len(raw)]))
    return bytes(raw)


def patched(stored: bytes, at: int, new: bytes) -> bytes:
    return resealed(stored[:at] + new + stored[at + len(new) :])


def read_everything(stored: bytes) -> list[tuple[Any, ...]]:
    batch = decoded(stored)
    batch.validate()
    return meaning(batch)


SAMPLES = {
    "one": encode_one(7, NOW_TICKS, "text", b"hello", b"greeting", b"key", b'{"a":"b"}'),
    "one bare": encode_one(0, NOW_TICKS, "bytes", b"", b"", None, None),
    "constant": encode(3, NOW_TICKS, 9, "json", {TYPE: Column(9, b"same"), DATA: Column(9, b"{}")}),
    "plain": encode(
        3, NOW_TICKS, 3, "bytes", {KEY: Column.of([b"a", b"", b"ccc"]), DATA: Column.of([b"x", b"y", b""])}
    ),
    "nulls": encode(
        3,
        NOW_TICKS,
        9,
        "bytes",
        {
            KEY: Column.of_optional([b"k", None, b"", None, None, None, None, None, b"l"]),
            DATA: Column.of([b"%d" % i for i in range(9)]),
            META: Column.of_optional([None] * 8 + [b'{"n":"8"}']),
        },
    ),
    "dictionary u8": encode(
        3, NOW_TICKS, 5, "bytes", {TYPE: Column.of_repeated([b"a", b"bb", b"", b"a", b"bb"]), DATA: Column(5, b"d")}
    ),
    "dictionary u16": encode(
        3,
        NOW_TICKS,
        258,
        "bytes",
        {TYPE: Column.of_repeated([b"%d" % (i % 257) for i in range(258)]), DATA: Column(258, b"")},
    ),
    "ticks": encode(
        3,
        NOW_TICKS,
        3,
        "bytes",
        {DATA: Column.of([b"x", b"y", b"z"])},
        ticks=np.array([NOW_TICKS, NOW_TICKS + 10, NOW_TICKS + 11], np.int64),
    ),
    "ticks in runs": encode(
        3,
        NOW_TICKS,
        6,
        "bytes",
        {DATA: Column(6, b"d")},
        ticks=np.array(
            [NOW_TICKS, NOW_TICKS + 1, NOW_TICKS + 2, NOW_TICKS + 50, NOW_TICKS + 51, NOW_TICKS + 52], np.int64
        ),
    ),
    "zstd": encode(3, NOW_TICKS, 2, "bytes", {DATA: Column.of([b"x" * 500, b"y" * 500])}, zstd=True),
    "blob": encode_one(3, NOW_TICKS, "bytes", encode_blob_reference(2**21, 2**20, 1), b"", None, None, BLOB),
    "lost": encode_lost(3, NOW_TICKS, 1000),
}


def test_the_samples_use_every_encoding() -> None:
    used = {name: encodings(stored) for name, stored in SAMPLES.items()}
    assert used["one"] == {TYPE: CONSTANT, KEY: CONSTANT, DATA: CONSTANT, META: CONSTANT}
    assert used["one bare"] == {DATA: CONSTANT}
    assert used["constant"] == {TYPE: CONSTANT, DATA: CONSTANT}
    assert used["plain"] == {KEY: PLAIN, DATA: PLAIN}
    assert used["nulls"] == {KEY: PLAIN | NULLS, DATA: PLAIN, META: PLAIN | NULLS}
    assert used["dictionary u8"] == used["dictionary u16"] == {TYPE: DICTIONARY, DATA: CONSTANT}
    assert used["ticks"] == {TICKS: PLAIN, DATA: PLAIN}
    assert used["ticks in runs"] == {TICKS: RUNS, DATA: CONSTANT}
    assert used["zstd"] == {DATA: PLAIN | ZSTD}
    assert used["lost"] == {}
    assert decoded(SAMPLES["blob"]).flags == BLOB
    assert decoded(SAMPLES["lost"]).flags == LOST


@given(strategies.batches())
def test_what_was_encoded_is_decoded(batch: strategies.Batch) -> None:
    stored = batch.encode()
    found = decoded(stored)
    found.validate()
    assert found.content == batch.content
    assert found.size == len(stored)
    assert len(stored) % 8 == 0
    assert meaning(found) == batch.meaning()
    assert found.last_ticks == batch.meaning()[-1][1]


@given(strategies.rows, strategies.contents)
def test_the_short_way_to_a_batch_of_one_gives_the_same_event(row: Row, content: Content) -> None:
    alone = encode_one(5, NOW_TICKS, content, row.data, row.type.encode(), row.key, row.raw_meta())
    assert meaning(decoded(alone)) == strategies.Batch(5, NOW_TICKS, content, [row]).meaning()


@given(strategies.rows, strategies.contents)
def test_a_batch_of_one_has_only_constant_columns(row: Row, content: Content) -> None:
    stored = strategies.Batch(5, NOW_TICKS, content, [row]).encode()
    assert set(encodings(stored).values()) == {CONSTANT}
    assert stored == encode_one(5, NOW_TICKS, content, row.data, row.type.encode(), row.key, row.raw_meta())


@given(strategies.batches(), st.data())
def test_a_batch_is_found_at_any_place_of_a_file(batch: strategies.Batch, data: st.DataObject) -> None:
    before, behind = data.draw(st.integers(0, 9)) * 8, data.draw(st.binary(max_size=20))
    stored = batch.encode()
    found = decode(memoryview(bytes(before) + stored + behind), before, before + len(stored) + len(behind))
    found.validate()
    assert meaning(found) == batch.meaning()
    assert bytes(found.stored()) == stored


@pytest.mark.parametrize("name", SAMPLES)
def test_every_flipped_byte_is_detected(name: str) -> None:
    stored = SAMPLES[name]
    read_everything(stored)
    for at in range(len(stored)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = stored[:at] + bytes([stored[at] ^ flip]) + stored[at + 1 :]
            with pytest.raises(Corrupt):
                read_everything(damaged)


@given(strategies.batches(), st.data())
def test_any_flipped_byte_is_detected(batch: strategies.Batch, data: st.DataObject) -> None:
    stored = batch.encode()
    at, flip = data.draw(st.integers(0, len(stored) - 1)), data.draw(st.integers(1, 255))
    damaged = stored[:at] + bytes([stored[at] ^ flip]) + stored[at + 1 :]
    with pytest.raises(Corrupt):
        read_everything(damaged)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_cut_is_detected(name: str) -> None:
    for size in range(len(SAMPLES[name])):
        with pytest.raises(Corrupt):
            read_everything(SAMPLES[name][:size])


def test_a_damaged_column_does_not_keep_others_from_being_read() -> None:
    stored = SAMPLES["one"]
    at = stored.index(b"hello")
    batch = decoded(stored[:at] + b"J" + stored[at + 1 :])
    key = batch.column(KEY)
    assert key is not None
    assert key.values(0, 1) == [b"key"]
    with pytest.raises(Corrupt, match="column 4") as caught:
        batch.column(DATA)
    assert (caught.value.position, caught.value.size, caught.value.offsets) == (0, len(stored), (7, 8))


@given(st.binary(max_size=200))
@example(b"HWB1" + bytes(60))
def test_strange_bytes_are_corrupt(stored: bytes) -> None:
    with pytest.raises(Corrupt):
        read_everything(stored)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_an_unknown_version_is_unsupported(version: int) -> None:
    with pytest.raises(Unsupported, match="upgrade"):
        decoded(patched(SAMPLES["plain"], 32, bytes([version])))


@pytest.mark.parametrize("flags", [4, 0x80, 5])
def test_an_unknown_flag_is_unsupported(flags: int) -> None:
    with pytest.raises(Unsupported, match="upgrade"):
        decoded(patched(SAMPLES["plain"], 33, bytes([flags])))


def test_an_unknown_content_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="upgrade"):
        decoded(patched(SAMPLES["plain"], 34, bytes([len(CONTENTS)])))


def test_an_unknown_kind_of_column_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="upgrade"):
        decoded(patched(SAMPLES["plain"], HEADER_BYTES + ENTRY_BYTES, b"\x07"))


@pytest.mark.parametrize("encoding", [3, 15, 0x40, 0x80, CONSTANT | NULLS, DICTIONARY | NULLS])
def test_an_unknown_encoding_is_unsupported(encoding: int) -> None:
    batch = decoded(patched(SAMPLES["plain"], HEADER_BYTES + 1, bytes([encoding])))
    with pytest.raises(Unsupported, match="upgrade"):
        batch.column(KEY)


@pytest.mark.parametrize("encoding", [CONSTANT, PLAIN | NULLS, PLAIN | ZSTD, 0x41])
def test_ticks_in_another_encoding_are_unsupported(encoding: int) -> None:
    batch = decoded(patched(SAMPLES["ticks"], HEADER_BYTES + 1, bytes([encoding])))
    with pytest.raises(Unsupported, match="upgrade"):
        batch.ticks()


def test_a_dictionary_of_keys_is_unsupported() -> None:
    column = Column.of_repeated([b"a", b"b", b"a"])
    batch = decoded(encode(3, NOW_TICKS, 3, "bytes", {KEY: column, DATA: Column(3, b"")}))
    with pytest.raises(Unsupported, match="upgrade"):
        batch.column(KEY)


PLAIN_OFFSETS_AT = HEADER_BYTES + 2 * ENTRY_BYTES


@pytest.mark.parametrize(
    "offsets",
    [(1, 1, 1, 4), (0, 1, 1, 5), (0, 1, 1, 3), (0, 3, 1, 4), (0, -1, 1, 4), (0, 5, 5, 4), (0, 2**31 - 1, 1, 4)],
)
def test_offsets_that_do_not_fit_are_found_by_validate(offsets: tuple[int, ...]) -> None:
    batch = decoded(patched(SAMPLES["plain"], PLAIN_OFFSETS_AT, struct.pack("<4i", *offsets)))
    with pytest.raises(Corrupt) as caught:
        batch.validate()
    assert caught.value.offsets == (3, 6)


def test_a_code_outside_the_dictionary_is_found_by_validate() -> None:
    stored = SAMPLES["dictionary u8"]
    codes_at = HEADER_BYTES + 2 * ENTRY_BYTES + 4 + 4 * 4
    assert stored[codes_at : codes_at + 5] == bytes([0, 1, 2, 0, 1])
    with pytest.raises(Corrupt, match="code"):
        decoded(patched(stored, codes_at + 4, b"\x03")).validate()


@pytest.mark.parametrize("second", [NOW_TICKS, NOW_TICKS - 1, NOW_TICKS + 11, 0])
def test_ticks_that_do_not_grow_are_found_by_validate(second: int) -> None:
    at = -(-(HEADER_BYTES + 2 * ENTRY_BYTES) // 8) * 8 + 8
    with pytest.raises(Corrupt, match="ticks"):
        decoded(patched(SAMPLES["ticks"], at, struct.pack("<q", second))).validate()


@pytest.mark.parametrize("starts", [(1, 3), (0, 0), (0, 6), (0, 2**32 - 1), (3, 0)])
def test_runs_of_ticks_that_do_not_fit_are_found_by_validate(starts: tuple[int, int]) -> None:
    stored = SAMPLES["ticks in runs"]
    at = stored.index(struct.pack("<II", 0, 3), HEADER_BYTES + 2 * ENTRY_BYTES)
    with pytest.raises(Corrupt):
        decoded(patched(stored, at, struct.pack("<II", *starts))).validate()


def test_a_type_that_is_not_utf8_is_found_by_validate() -> None:
    with pytest.raises(Corrupt, match="utf-8"):
        decoded(encode_one(0, NOW_TICKS, "bytes", b"", b"\xff", None, None)).validate()


@pytest.mark.parametrize(
    "stored",
    [
        patched(SAMPLES["lost"], 12, bytes(4)),
        patched(SAMPLES["plain"], 33, bytes([LOST])),
        patched(SAMPLES["plain"], 33, bytes([BLOB])),
        patched(SAMPLES["lost"], 33, b"\0"),
        patched(SAMPLES["plain"], HEADER_BYTES, bytes([DATA])),
        patched(SAMPLES["plain"], HEADER_BYTES, bytes([META])),
        encode_one(3, NOW_TICKS, "bytes", b"too short", b"", None, None, BLOB),
        patched(SAMPLES["plain"], len(SAMPLES["plain"]) - 4, bytes(4)),
    ],
    ids=[
        "no events",
        "lost with data",
        "blob of three",
        "no data",
        "data twice",
        "not ascending",
        "no reference",
        "no size at its end",
    ],
)
def test_a_batch_that_no_writer_makes_is_found_by_validate(stored: bytes) -> None:
    batch = decoded(stored)
    with pytest.raises(Corrupt):
        batch.validate()


@given(strategies.batches(), st.data())
def test_bytes_that_validate_accepts_can_be_read(batch: strategies.Batch, data: st.DataObject) -> None:
    """Whoever sends a batch with right checksums and wrong insides gets an error of ours, or is understood."""
    raw = bytearray(batch.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        # Not the upper bytes of the count: constants of a billion events are refused by whoever knows a limit.
        at = data.draw(st.integers(16, len(raw) - 1) | st.just(12))
        raw[at] = data.draw(st.integers(0, 255))
    try:
        hostile = decoded(resealed(bytes(raw)))
        hostile.validate()
    except HeadwaterError:
        return
    if not hostile.flags & LOST:
        meaning(hostile)
        whole = [arrow.BatchSlice(hostile, 0, hostile.count)]
        for (array,) in arrow.chunks(whole, arrow.schema(arrow.COLUMNS), "topic", 0, 0):
            array.validate(full=True)


@given(strategies.batches(), st.data())
def test_some_rows_are_taken_as_from_a_list(batch: strategies.Batch, data: st.DataObject) -> None:
    found = decoded(batch.encode())
    count = len(batch.rows)
    rows = data.draw(st.lists(st.integers(0, count - 1), unique=True).map(sorted))
    lo, hi = sorted((data.draw(st.integers(0, count)), data.draw(st.integers(0, count))))
    wanted = data.draw(st.sampled_from([row.key for row in batch.rows if row.key is not None] or [b""]))
    for kind, values in (
        (TYPE, [row.type.encode() for row in batch.rows]),
        (KEY, [row.key for row in batch.rows]),
        (DATA, [row.data for row in batch.rows]),
    ):
        column = found.column(kind)
        if column is not None:
            assert column.values(lo, hi) == values[lo:hi]
            assert column.slice(lo, hi).values(0, hi - lo) == values[lo:hi]
            column.slice(lo, hi).validate()
            assert column.take(np.array(rows, np.int64)) == [values[row] for row in rows]
            assert column.equals(wanted).tolist() == [value == wanted for value in values]
            picked = column.pick(np.array(rows, np.int64)) if rows else None
            expected = [values[row] for row in rows]
            if picked is not None:
                assert picked.values(0, len(rows)) == expected
            else:
                assert not any(expected)


@given(st.integers(0, 40), st.data())
def test_a_value_is_found_among_others_of_any_length(length: int, data: st.DataObject) -> None:
    """Values are compared word by word: those that differ in one byte only, or only in length, are told apart."""
    value = data.draw(st.binary(min_size=length, max_size=length))
    changed = [value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :] for at in range(length)]
    choices: list[list[bytes | None]] = [[], [b""], [value + b"\0"], [value[:-1], None]]
    others = data.draw(st.sampled_from(choices))
    values = data.draw(st.permutations([value, *changed, value, *others]))
    column = Column.of_optional(values)
    assert column is not None
    assert column.equals(value).tolist() == [each == value for each in values]


def test_meta_is_json_in_the_order_given() -> None:
    row = Row(b"", meta={"b": "1", "a": "2"})
    assert row.raw_meta() == b'{"b":"1","a":"2"}'
    assert msgspec.json.decode(row.raw_meta() or b"") == {"b": "1", "a": "2"}


def test_overhead_is_what_the_format_promises() -> None:
    alone = encode_one(0, NOW_TICKS, "bytes", b"x" * 100, b"", None, None)
    assert len(alone) - 100 == 52
    many = encode(0, NOW_TICKS, 1000, "bytes", {DATA: Column.of([b"x" * 100] * 1000)})
    assert (len(many) - 100_000) / 1000 < 4.1
