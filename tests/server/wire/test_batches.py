"""Batches over the wire: what is sent is what is read, damage is found, and hostile bodies are only refused."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.errors import Corrupt, Invalid, TooLarge, Unsupported
from headwater.event import Content, Event
from headwater.format import batch as batch_format
from headwater.format import frames
from headwater.format.batch import DATA, KEY, META, PRODUCER, TYPE
from headwater.format.column import Column
from headwater.format.events import EventBatch
from headwater.format.frames import ALL, Decoder
from headwater.limits import Limits
from headwater.server.wire import batches
from tests import strategies
from tests.format.test_batch import resealed
from tests.server.wire.logs import event_batches, made, opened
from tests.strategies import NOW_TICKS, Batch, Row

LIMITS = Limits()
EXPECTED = (Invalid, Unsupported)  # TooLarge is Invalid too


def received(batch: EventBatch, pieces: list[bytes]) -> list[Event]:
    """What a client makes of an answer, whose pieces come as they come."""
    decoder = Decoder()
    found = [frame for piece in pieces for frame in decoder.feed(piece)]
    decoder.finish()
    for frame in found:
        frame.batch.validate()
        assert frame.partition == batch.partition
    return [
        event
        for frame in found
        for event in EventBatch(batch.log, frame.batch, frame.lo, frame.hi, frame.rows).events()
    ]


@given(event_batches(), st.integers(1, 400))
def test_a_client_gets_every_event_exactly_as_it_is(batch: EventBatch, size: int) -> None:
    raw = b"".join(batches.encode_all([batch]))
    assert received(batch, [raw[at : at + size] for at in range(0, len(raw), size)]) == batch.events()


@given(
    st.lists(st.integers(0, 2999), min_size=1, max_size=60, unique=True).map(sorted),
    st.sampled_from(["json", "text"]),
    st.booleans(),
)
@example([0], "json", False)
@example([2999], "json", True)
@example(list(range(100, 140)), "json", False)
def test_few_events_of_a_large_batch_are_sent_without_the_others(rows: list[int], content: Content, own: bool) -> None:
    all_rows = [
        Row(b"x" * (i % 50), "ab"[i % 2], None if i % 3 else b"k%d" % i, {"i": str(i)} if i % 5 == 0 else None)
        for i in range(3000)
    ]
    ticks = [NOW_TICKS + i * 2 for i in range(3000)] if own else None
    batch = made(Batch(7, NOW_TICKS, content, all_rows, ticks), rows=rows)
    pieces = list(batches.encode_all([batch]))
    assert received(batch, pieces) == batch.events()
    assert sum(map(len, pieces)) < 600 * len(rows)


def test_a_whole_batch_goes_out_byte_for_byte() -> None:
    stored = Batch(7, NOW_TICKS, "json", [Row(b"x" * 100)] * 1000)
    (frame,) = batches.encode(made(stored))
    assert frame.endswith(stored.encode())
    assert len(frame) == 32 + len(stored.encode())


def test_a_large_batch_goes_out_in_parts() -> None:
    with opened(Limits()) as hw:
        hw.append_many("t", [b"x" * 1000] * 10_000)
        (batch,) = hw.read_batches("t")
        pieces = list(batches.encode_all([batch]))
        assert len(pieces) > 20
        assert max(map(len, pieces)) < 1024 * 1024
        assert received(batch, pieces) == batch.events()


def test_a_huge_event_is_told_by_its_size() -> None:
    with opened() as hw:
        hw.append("t", b"x" * 5000, type="huge")
        (batch,) = hw.read_batches("t")
        (frame,) = Decoder().feed(b"".join(batches.encode(batch)))
        assert frame.batch.blob_reference()[0] == 5000


@given(event_batches(), st.data())
def test_every_damaged_byte_of_an_answer_is_found(batch: EventBatch, data: st.DataObject) -> None:
    raw = bytearray(b"".join(batches.encode(batch)))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    decoder = Decoder()
    with pytest.raises((Corrupt, TooLarge, Unsupported)):  # noqa: PT012  # wherever it is found
        for frame in decoder.feed(bytes(raw)):
            frame.batch.validate()
        decoder.finish()


# In


def sent(rows: list[Row], content: Content = "json", *, zstd: bool = False) -> bytes:
    return frames.encode(0, Batch(0, 0, content, rows, zstd=zstd).encode(), 0, len(rows))


def read(body: bytes, limits: Limits = LIMITS) -> list[tuple[Any, ...]]:
    """Type, key, data and meta of each event of a request."""
    parsed = batches.parse(body, limits)
    found = []
    for kind in (TYPE, KEY, DATA, META):
        column = parsed.columns[kind]
        found.append([None] * parsed.count if column is None else column.values(0, parsed.count))
        if kind != TYPE and column is not None and parsed.count > 1:
            assert column.offsets is not None
            column.validate()
    return list(zip(*found, strict=True))


@given(strategies.row_lists, strategies.contents, st.booleans())
def test_a_server_reads_what_a_client_sends(rows: list[Row], content: Content, zstd: bool) -> None:
    expected = [(row.type.encode(), row.key, row.data, row.raw_meta()) for row in rows]
    found = [(type or b"", *others) for type, *others in read(sent(rows, content, zstd=zstd))]
    assert found == expected
    assert batches.parse(sent(rows, content, zstd=zstd), LIMITS).content == content


def constant(count: int, **columns: bytes) -> bytes:
    """A batch in which one value stands for any number of events."""
    kinds = {"type": TYPE, "key": KEY, "data": DATA, "meta": META, "producer": PRODUCER}
    made = {kinds[name]: Column(count, value) for name, value in columns.items()}
    stored = batch_format.encode(0, 0, count, "bytes", dict(sorted(made.items())))
    return frames.encode(0, stored, 0, count)


def test_values_that_all_events_share_are_written_out() -> None:
    assert (
        read(constant(3, type=b"t", key=b"k", data=b"d", meta=b'{"a":"b"}')) == [(b"t", b"k", b"d", b'{"a":"b"}')] * 3
    )


def peak_of(body: bytes, limits: Limits = LIMITS) -> int:
    """The bytes that refusing a body takes at most."""
    tracemalloc.start()
    try:
        with pytest.raises(EXPECTED):
            batches.parse(body, limits)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_batch_of_billions_is_refused_before_anything_is_made_of_it() -> None:
    with pytest.raises(TooLarge) as refusal:
        batches.parse(constant(2**32 - 2, data=b"x", type=b"t"), LIMITS)
    assert refusal.value.limit == "batch_events_max"
    assert peak_of(constant(2**32 - 2, data=b"x", type=b"t")) < 100_000


def test_a_large_value_that_many_share_is_refused() -> None:
    body = constant(100_000, data=b"x" * 10_000)
    with pytest.raises(TooLarge) as refusal:
        batches.parse(body, LIMITS)
    assert refusal.value.limit == "batch_bytes_max"
    assert peak_of(body) < 2_000_000


def compressed(claimed: int | None, raw: bytes) -> bytes:
    """A batch whose data is a zstd frame."""
    frame = zstandard.ZstdCompressor(level=3, write_content_size=claimed is None).compress(raw)
    stored = bytearray(Batch(0, 0, "bytes", [Row(b"x" * 600)], zstd=True).encode())
    start = batch_format.HEADER_BYTES + batch_format.ENTRY_BYTES
    struct.pack_into("<I", stored, batch_format.HEADER_BYTES + 4, len(frame))
    whole = bytes(stored[:start]) + frame
    whole += bytes(-(len(whole) + 4) & 7)
    whole += struct.pack("<I", len(whole) + 4)
    whole = whole[:8] + struct.pack("<I", len(whole)) + whole[12:]
    return frames.encode(0, resealed(whole), 0, 1)


def test_a_compressed_bomb_is_refused_by_what_it_claims() -> None:
    assert read(compressed(None, b"y" * 5000))[0][2] == b"y" * 5000
    bomb = compressed(None, bytes(200_000_000))
    assert len(bomb) < 100_000
    assert peak_of(bomb) < 1_000_000
    with pytest.raises(TooLarge):
        batches.parse(bomb, LIMITS)
    with pytest.raises(Invalid):  # it does not say how much
        batches.parse(compressed(0, bytes(5000)), LIMITS)


BLOB_BATCH = batch_format.encode_one(
    0, 0, "bytes", batch_format.encode_blob_reference(5, 1, 1), b"", None, None, batch_format.BLOB
)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"HWF1",
        sent([Row(b"a")]) * 2,
        sent([Row(b"a")]) + b"x",
        frames.encode(0, Batch(0, 0, "json", [Row(b"a"), Row(b"b")]).encode(), 0, 2, np.array([1])),
        frames.encode(0, Batch(0, 0, "json", [Row(b"a"), Row(b"b")]).encode(), 0, 1),
        frames.encode(0, BLOB_BATCH, 0, 1),
        frames.encode(0, batch_format.encode_lost(0, 0, 1), 0, 1),
        frames.encode(0, Batch(0, 5, "json", [Row(b"a"), Row(b"b")], [5, 9]).encode(), 0, 2),
        constant(2, data=b"x", producer=b"\0" * 16 + b"id"),
        constant(2, data=b"x", meta=b"[]"),
        constant(2, data=b"x", meta=b'{"a":1}'),
        constant(2, data=b"x", type=b"\xff"),
        constant(2, data=b"x", type=b"t" * 256),
        constant(2, data=b"x", key=b"k" * 1025),
    ],
    ids=range(15),
)
def test_what_a_request_may_not_hold_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        batches.parse(body, LIMITS)


def test_null_data_is_refused() -> None:
    column = Column.of([b"a", b""])
    column.valid = np.array([1], np.uint8)
    stored = batch_format.encode(0, 0, 2, "bytes", {DATA: column})
    with pytest.raises(Invalid, match="null"):
        batches.parse(frames.encode(0, stored, 0, 2), LIMITS)


def test_what_is_newer_is_unsupported() -> None:
    body = bytearray(sent([Row(b"a")]))
    body[28] = 1
    body[4:8] = crc32c(bytes(body[8:32])).to_bytes(4, "little")
    with pytest.raises(Unsupported):
        batches.parse(bytes(body), LIMITS)


def test_a_frame_claims_no_more_than_may_come() -> None:
    for stored, count in ((2**32 - 1, ALL), (8, 2**32 - 2)):
        head = struct.pack("<4sIIIIIII", b"HWF1", 0, stored, 0, 0, 1, count, 0)
        with pytest.raises(TooLarge):
            Decoder().feed(head)


mutations = st.lists(
    st.tuples(st.integers(0, 10_000), st.sampled_from(["set", "cut", "copy", "number"]), st.integers(0, 2**32 - 1)),
    min_size=1,
    max_size=6,
)


def mutated(body: bytes, changes: list[tuple[int, str, int]]) -> bytes:
    raw = bytearray(body)
    for place, kind, value in changes:
        at = place % max(1, len(raw))
        if kind == "set" and raw:
            raw[at] = value & 0xFF
        elif kind == "cut":
            del raw[at : at + value % 9]
        elif kind == "copy":
            raw[at:at] = raw[value % max(1, len(raw)) :][:16]
        elif kind == "number" and len(raw) >= at + 4:
            raw[at : at + 4] = value.to_bytes(4, "little")
    return bytes(raw)


def sealed(body: bytes) -> bytes:
    """A body with every checksum made right again, as somebody with bad intentions would."""
    if len(body) < 32:
        return body
    stored, count = struct.unpack_from("<I", body, 8)[0], struct.unpack_from("<I", body, 24)[0]
    start = 32 + (0 if count == ALL else (count * 4 + 7) & ~7)
    if start + batch_format.HEADER_BYTES > len(body):
        return body
    batch = body[start : start + stored]
    with contextlib.suppress(struct.error, IndexError):
        batch = resealed(batch)
    body = body[:start] + batch + body[start + stored :]
    return body[:4] + crc32c(body[8:start]).to_bytes(4, "little") + body[8:]


@given(strategies.row_lists, st.booleans(), mutations)
def test_no_mutation_of_a_body_does_more_than_be_refused(
    rows: list[Row], zstd: bool, changes: list[tuple[int, str, int]]
) -> None:
    body = sealed(mutated(sent(rows, zstd=zstd), changes))
    limits = Limits(batch_bytes_max=100_000, batch_events_max=1000)
    tracemalloc.start()
    try:
        try:
            parsed = batches.parse(body, limits)
        except EXPECTED:
            return
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            assert peak < 2_000_000
    finally:
        tracemalloc.stop()
    columns = [column for column in parsed.columns.values() if column is not None]
    assert 0 < parsed.count <= 1000
    assert all(column.count == parsed.count for column in columns)
    assert sum(len(column.data) for column in columns) <= 100_000
    stored = batch_format.encode(0, 1, parsed.count, parsed.content, parsed.columns)  # as the log will
    again = batch_format.decode(memoryview(stored), 0, len(stored))
    again.validate()
    for kind in again.kinds:
        column = again.column(kind)
        assert column is not None
        column.values(0, parsed.count)


@given(event_batches(), mutations)
def test_no_mutation_of_an_answer_does_more_than_be_refused(
    batch: EventBatch, changes: list[tuple[int, str, int]]
) -> None:
    body = sealed(mutated(b"".join(batches.encode(batch)), changes))
    decoder = Decoder(events_max=1000)
    with contextlib.suppress(Corrupt, TooLarge, Unsupported):
        for frame in decoder.feed(body):
            frame.batch.validate()
            EventBatch(batch.log, frame.batch, frame.lo, frame.hi, frame.rows).offsets()
        decoder.finish()
