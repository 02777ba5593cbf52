"""Arrow streams out and in: what pyarrow, polars and DuckDB read, and what a hostile stream may not claim."""

from __future__ import annotations

import io
import struct
import time
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc

from headwater.errors import Invalid, TooLarge, Unsupported
from headwater.format.batch import DATA, KEY, META, TYPE
from headwater.format.events import EventBatch
from headwater.limits import DEFAULTS, Limits
from headwater.server.wire import arrow, pieces
from headwater.server.wire.decoding import ParsedEvents
from headwater.server.wire.pieces import Cut
from tests import strategies
from tests.server.wire.logs import event_batches, opened
from tests.strategies import Row

LIMITS = Limits()
EVENTS_MAX = 10_000


def table_of(found: list[bytes]) -> pa.Table:
    with ipc.open_stream(b"".join(found)) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table


# Out


@given(st.lists(event_batches(), max_size=3))
def test_pyarrow_reads_every_event(batches: list[EventBatch]) -> None:
    table = table_of(
        list(arrow.encode(batches, columns=["offset", "ticks", "id", "type", "key", "data", "content", "meta"]))
    )
    events = [event for batch in batches for event in batch.events()]
    expected = [(e.offset, e.ticks, str(e.id), e.type, e.key, e.data, e.content, e.raw_meta) for e in events]
    assert list(zip(*(column.to_pylist() for column in table.columns), strict=True)) == expected


def test_an_empty_topic_is_a_stream_of_no_rows() -> None:
    found = list(arrow.encode([]))
    assert found[-1].endswith(b"\xff\xff\xff\xff\0\0\0\0")
    table = table_of(found)
    assert (table.num_rows, table.column_names) == (0, ["partition", "offset", "time", "type", "key", "data", "meta"])


def test_many_small_and_large_batches_are_pieces_of_a_good_size_up_to_the_end_that_was_asked_for() -> None:
    with opened(Limits()) as hw:
        for i in range(300):
            hw.append("t", b"%d" % i, type="ab"[i % 2], durability="os")
        hw.append_many("t", [b"x" * 100] * 50_000, types=["c"] * 50_000, durability="os")
        found = list(arrow.encode(hw.read_batches("t"), Cut(max_items=40_000), ["offset", "type", "data"]))
        assert max(map(len, found)) < 8 * pieces.PIECE_BYTES
        assert len(found) > 3
        table = table_of(found)
        assert table["offset"].to_pylist() == list(range(40_000))
        assert table["type"].to_pylist() == ["a", "b"] * 150 + ["c"] * 39_700


def test_other_programs_read_the_stream() -> None:
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    with opened(Limits()) as hw:
        for run in range(3):
            hw.append_many("t", [b"%d" % i for i in range(2000)], types=[f"t{run}{i % 3}" for i in range(2000)])
        stream = b"".join(arrow.encode(hw.read_batches("t"), columns=["offset", "time", "type", "data"]))
    frame = polars.read_ipc_stream(io.BytesIO(stream))
    assert (frame.height, frame["type"].n_unique()) == (6000, 9)
    rows = duckdb.from_arrow(ipc.open_stream(stream).read_all())
    assert rows.aggregate("count(distinct type), sum(octet_length(data))").fetchall() == [(9, 20670)]


def test_huge_events_are_null_and_have_their_size() -> None:
    with opened() as hw:
        hw.append("t", b"small")
        hw.append("t", b"x" * 5000)
        table = table_of(list(arrow.encode(hw.read_batches("t"), columns=["data", "data_bytes"])))
        assert table.to_pydict() == {"data": [b"small", None], "data_bytes": [5, 5000]}


def test_a_column_that_there_is_not_and_one_twice_are_refused() -> None:
    for columns in (["data", "colour"], ["data", "data"]):
        with pytest.raises(Invalid):
            arrow.encode([], columns=columns)


# In


def stream(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    with ipc.new_stream(out, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return out.getvalue()


def rows_of(parts: list[ParsedEvents]) -> list[tuple[Any, ...]]:
    """Content, type, key, data and meta of each event."""
    found: list[tuple[Any, ...]] = []
    for part in parts:
        columns = [part.columns.get(kind) for kind in (TYPE, KEY, DATA, META)]
        values = [[None] * part.count if column is None else column.values(0, part.count) for column in columns]
        for column in columns:
            if column is not None:
                column.validate()
        found += zip([part.content] * part.count, *values, strict=True)
    return found


BYTES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int8(), pa.binary())]
bytes_types = st.sampled_from(BYTES)
compressions = st.sampled_from([None, "zstd", "lz4"])


@given(strategies.row_lists, st.data(), compressions, st.integers(1, 5))
def test_the_rows_of_a_stream_come_in(rows: list[Row], data: st.DataObject, compression: str | None, each: int) -> None:
    def array(values: list[Any]) -> Any:
        chosen = data.draw(bytes_types)
        made = pa.array(values, pa.binary())
        return made.dictionary_encode() if pa.types.is_dictionary(chosen) else made.cast(chosen)

    table = pa.table(
        {
            "data": array([row.data for row in rows]),
            "type": pa.array([row.type for row in rows]).dictionary_encode(),
            "key": array([row.key for row in rows]),
            "meta": array([row.raw_meta() for row in rows]),
        }
    )
    table = pa.concat_tables([table.slice(at, each) for at in range(0, len(rows), each)])
    if any(pa.types.is_dictionary(field.type) for field in table.schema):
        table = table.unify_dictionaries()
    body = stream(table, compression=compression)
    expected = [("bytes", row.type.encode(), row.key, row.data, row.raw_meta()) for row in rows]
    found = [(content, type or b"", *rest) for content, type, *rest in rows_of(arrow.parse(body, LIMITS, EVENTS_MAX))]
    assert found == expected


def test_text_is_text_and_a_column_of_contents_says_what_each_row_is() -> None:
    contents = ["json", "json", "text", "bytes"]
    table = pa.table({"data": ["1", "2", "x", "y"], "content": contents})
    assert [(row[0], row[3]) for row in rows_of(arrow.parse(stream(table), LIMITS, EVENTS_MAX))] == [
        ("json", b"1"),
        ("json", b"2"),
        ("text", b"x"),
        ("bytes", b"y"),
    ]
    only = table.select(["data"])
    assert {row[0] for row in rows_of(arrow.parse(stream(only), LIMITS, EVENTS_MAX))} == {"text"}


def test_what_a_stream_writes_out_can_be_sent_in() -> None:
    with opened() as hw:
        hw.append_many("t", [b"a", b"b"], keys=[b"k", None], types=["x", ""], metas=[{"m": "1"}, None])
        body = b"".join(arrow.encode(hw.read_batches("t"), columns=["type", "key", "data", "content", "meta"]))
    assert rows_of(arrow.parse(body, LIMITS, EVENTS_MAX)) == [
        ("bytes", b"x", b"k", b"a", b'{"m":"1"}'),
        ("bytes", b"", None, b"b", None),
    ]


def test_no_rows_are_no_parts() -> None:
    assert arrow.parse(stream(pa.table({"data": pa.array([], pa.binary())})), LIMITS, EVENTS_MAX) == []


def test_many_rows_are_parted_into_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "PART_BYTES", 2000)
    limits = Limits(batch_events_max=1000, batch_bytes_max=50_000)
    table = pa.table({"data": [b"x" * (i % 40) for i in range(400)] + [b""] * 4000})
    parts = arrow.parse(stream(table, compression="zstd"), limits, EVENTS_MAX)
    assert sum(part.count for part in parts) == 4400
    assert max(part.count for part in parts) == 1000
    assert max(column.bytes_of() for part in parts if (column := part.columns[DATA]) is not None) <= 2000
    assert [row[3] for row in rows_of(parts)] == table["data"].to_pylist()


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"key": [b"a"]}),
        pa.table({"data": [b"a"], "offset": [1]}),
        pa.table({"data": [1]}),
        pa.table({"data": [[b"a"]]}),
        pa.table({"data": pa.nulls(3)}),
        pa.table({"data": pa.array([b"a", None])}),
        pa.table({"data": [b"a"], "meta": [b"[]"]}),
        pa.table({"data": [b"a"], "type": [b"\xff"]}),
        pa.table({"data": [b"a"], "type": ["x" * 256]}),
        pa.table({"data": [b"a"], "key": ["x" * 1025]}),
        pa.table({"data": [b"a"], "content": ["xml"]}),
        pa.table({"data": [b"a"], "content": pa.array([None], pa.string())}),
        pa.Table.from_arrays([pa.array([b"a"]), pa.array([b"b"])], names=["data", "data"]),
    ],
    ids=range(13),
)
def test_a_stream_of_something_else_is_refused(table: pa.Table) -> None:
    with pytest.raises(Invalid):
        arrow.parse(stream(table), LIMITS, EVENTS_MAX)


@pytest.mark.parametrize("body", [b"", b"nonsense", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"ARROW1\0\0", b"\xff" * 100])
def test_what_is_no_stream_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        arrow.parse(body, LIMITS, EVENTS_MAX)


def test_offsets_that_go_back_and_text_that_is_none_are_refused() -> None:
    body = stream(pa.table({"data": ["a", "bb", "ccc"]}))
    offsets, wrong = struct.pack("<4i", 0, 1, 3, 6), struct.pack("<4i", 0, 5, 3, 6)
    assert body.count(offsets) == body.count(b"abbccc") == 1
    for damaged in (body.replace(offsets, wrong), body.replace(b"abbccc", b"abb\xffcc")):
        with pytest.raises(Invalid):
            arrow.parse(damaged, LIMITS, EVENTS_MAX)


def peak_of(body: bytes, limits: Limits, events_max: int = EVENTS_MAX) -> int:
    """What refusing a stream takes at most, of Arrow's memory and of Python's."""
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            arrow.parse(body, limits, events_max)
        return max(counted.max_memory() or 0, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)


SMALL = Limits(batch_bytes_max=1_000_000, data_bytes_max=500_000)


def bombs() -> dict[str, pa.Table]:
    large = bytes(400_000)
    return {
        "compressed": pa.table({"data": [bytes(100_000_000)]}),
        "dictionary": pa.table({"data": pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int8()), [large])}),
        "view": pa.table({"data": repeated_view(large, 5000)}),
        "key": pa.table(
            {"data": [b""] * 5000, "key": pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int8()), [large])}
        ),
    }


def repeated_view(value: bytes, count: int) -> Any:
    """An array whose values all point to the same bytes."""
    view = struct.pack("<i4sii", len(value), value[:4], 0, 0)
    return pa.Array.from_buffers(pa.binary_view(), count, [None, pa.py_buffer(view * count), pa.py_buffer(value)])


@pytest.mark.parametrize("name", ["compressed", "dictionary", "view", "key"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_stream_that_would_grow_is_refused_before_it_does(name: str, compression: str | None) -> None:
    body = stream(bombs()[name], compression=compression)
    assert peak_of(body, SMALL) < 3_000_000


def test_dictionaries_are_counted_too_when_they_are_compressed() -> None:
    table = pa.table({"data": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), [bytes(100_000_000)])})
    assert peak_of(stream(table, compression="zstd"), SMALL) < 1_000_000


def test_no_more_rows_are_taken_than_is_said() -> None:
    table = pa.table({"data": pa.array([b""] * 10_001, pa.binary(0))})
    with pytest.raises(TooLarge) as refusal:
        arrow.parse(stream(table), LIMITS, EVENTS_MAX)
    assert refusal.value.limit == "arrow_events_max"
    assert len(arrow.parse(stream(table.slice(0, 10_000)), LIMITS, EVENTS_MAX)) == 1


def test_contents_that_change_all_the_time_are_refused() -> None:
    table = pa.table({"data": [b"1"] * 4000, "content": ["json", "text"] * 2000})
    with pytest.raises(Invalid, match="content changes too often"):
        arrow.parse(stream(table), LIMITS, EVENTS_MAX)


@given(
    strategies.row_lists,
    compressions,
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=5),
    st.integers(0, 40),
)
def test_no_damaged_stream_does_more_than_be_refused(
    rows: list[Row], compression: str | None, changes: list[tuple[int, int]], cut: int
) -> None:
    table = pa.table(
        {
            "data": repeated_view(b"x" * 20, len(rows)),
            "type": pa.array([row.type for row in rows]).dictionary_encode(),
            "key": pa.array([row.key for row in rows], pa.binary()),
        }
    )
    body = bytearray(stream(table, compression=compression))
    for at, value in changes:
        body[at % len(body)] = value
    try:
        parts = arrow.parse(bytes(body[: len(body) - cut]), SMALL, 1000)
    except (Invalid, Unsupported):
        return
    rows_of(parts)
    assert sum(part.count for part in parts) <= 1000


@pytest.mark.parametrize(
    ("data", "compression", "grows"),
    [
        (pa.array([b"plain"] * 100), None, False),
        (pa.array(["plain"] * 100), None, False),
        (pa.array([b"same"] * 10_000), "zstd", True),
        (pa.array([bytes(10_000)] * 100).dictionary_encode(), None, True),
        (pa.array([bytes(10_000)] * 2).cast(pa.binary_view()), None, True),
    ],
)
def test_a_stream_that_may_hold_more_than_was_sent_is_known_before_it_is_read(
    data: Any, compression: str | None, grows: bool
) -> None:
    sent = arrow.look(stream(pa.table({"data": data}), compression=compression), LIMITS, EVENTS_MAX)
    assert sent.grows is grows
    assert sum(part.count for part in sent.parts()) == len(data)


def stream_of(batches: int, rows: int, dictionary: int = 0) -> bytes:
    """A stream of so many equal batches; with a dictionary of so many values, which all of them name."""
    column: Any = pa.array([b"x"] * rows, pa.binary())
    if dictionary:
        values = pa.array([b"%07d" % number for number in range(dictionary)])
        column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), values)
    batch = pa.record_batch([column], names=["data"])
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    whole: bytes = sink.getvalue().to_pybytes()
    return whole


@pytest.mark.parametrize(
    ("batches", "rows", "dictionary"), [(60_000, 0, 0), (60_000, 1, 0), (9000, 0, 100_000), (9000, 1, 100_000)]
)
def test_a_stream_costs_no_more_than_its_bytes_however_many_batches_it_has(
    batches: int, rows: int, dictionary: int
) -> None:
    body = stream_of(batches, rows, dictionary)
    begun = time.process_time()
    with pytest.raises(TooLarge) as refused:
        arrow.parse(body, DEFAULTS, 1_000_000)
    assert refused.value.code == "too_many_batches"
    assert time.process_time() - begun < 5  # some times what it takes


def test_small_batches_are_appended_together_and_empty_ones_not_at_all() -> None:
    assert arrow.parse(stream_of(5000, 0), DEFAULTS, 1_000_000) == []
    (part,) = arrow.parse(stream_of(5000, 2), DEFAULTS, 1_000_000)
    assert part.count == 10_000
    (few,) = arrow.parse(stream_of(1, 2, 50), DEFAULTS, 1_000_000)
    assert few.count == 2
