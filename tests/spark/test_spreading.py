"""From rows to encoded batches, and what is refused on the way. No session is needed for that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

import headwater
from headwater.errors import HeadwaterError, Invalid
from headwater.format import batch
from headwater.format.batch import DATA
from headwater.format.names import partition_of
from headwater.spark.writing import jsons, sink, spreading
from headwater.spark.writing.spreading import Layout, TopicTarget
from headwater.spark.writing.staging import StagedWrite
from tests.spark.staged import files, stage

TEXT = StructType().add("data", StringType())
PARTITIONS = {"one": 1, "three": 3}

texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)


class Known:
    """Topics that are there."""

    def __getitem__(self, topic: str) -> TopicTarget:
        return TopicTarget(topic, f"uuid of {topic}", PARTITIONS[topic])


def spread(*batches: pa.RecordBatch, topic: str | None = "three", turn: int = 0) -> list[tuple[str, int, list[bytes]]]:
    layout = Layout.of(batches[0].schema, None)
    found = []
    for each in spreading.encode(batches, layout, Known(), topic, turn):  # type: ignore[arg-type]  # it is as good
        stored = batch.decode(memoryview(each.stored), 0, len(each.stored))
        stored.validate()
        column = stored.column(DATA)
        assert column is not None
        assert stored.count == each.events == column.count
        found.append((each.target.name, each.partition, [value or b"" for value in column.values(0, stored.count)]))
    return found


rows_of = st.tuples(
    st.sampled_from(["one", "three", None]),  # the topic
    st.one_of(st.none(), st.integers(0, 0)),  # the partition
    st.one_of(st.none(), st.binary(max_size=3)),  # the key
)


@given(st.lists(rows_of, min_size=1, max_size=60), st.integers(1, 7), st.integers(1, 9), st.integers(0, 5))
def test_every_row_is_where_it_belongs_in_order(
    rows: list[tuple[str | None, int | None, bytes | None]], batch_rows: int, chunk_events: int, turn: int
) -> None:
    table = pa.table(
        {
            "data": [str(number) for number in range(len(rows))],
            "topic": pa.array([row[0] for row in rows], pa.string()),
            "partition": pa.array([row[1] for row in rows], pa.int32()),
            "key": pa.array([row[2] for row in rows], pa.binary()),
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spreading, "CHUNK_EVENTS", chunk_events)
        patch.setattr(spreading, "GATHER_BYTES_MAX", 1 << 30)
        found = spread(*table.to_batches(max_chunksize=batch_rows), turn=turn)
    assert all(0 < len(values) <= chunk_events for _, _, values in found)
    there: dict[tuple[str, int], list[int]] = {}
    for topic, partition, values in found:
        there.setdefault((topic, partition), []).extend(map(int, values))
    expected: dict[tuple[str, int], list[int]] = {}
    for number, (asked_topic, asked, key) in enumerate(rows):
        name = asked_topic or "three"
        by_key = turn % PARTITIONS[name] if key is None else partition_of(key, PARTITIONS[name])
        expected.setdefault((name, by_key if asked is None else asked), []).append(number)
    assert there == expected


def test_memory_is_bounded_by_what_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreading, "GATHER_BYTES_MAX", 1000)
    taken = 0

    def many() -> Any:
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield pa.record_batch({"data": [b"x" * 500]})

    layout = Layout.of(pa.schema({"data": pa.binary()}), None)
    encoded = spreading.encode(many(), layout, Known(), "one", 0)  # type: ignore[arg-type]
    next(encoded)
    assert taken == 2
    assert sum(each.events for each in encoded) == 98


def test_a_batch_has_about_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreading, "CHUNK_BYTES", 100)
    sizes = [10, 10, 90, 500, 1, 1, 99, 100, 0, 0]
    found = spread(pa.record_batch({"data": [b"x" * size for size in sizes]}), topic="one")
    assert [[len(value) for value in values] for _, _, values in found] == [
        [10, 10, 90],
        [500],
        [1, 1, 99],
        [100],
        [0, 0],
    ]


# JSON


@given(st.lists(st.one_of(st.none(), st.dictionaries(texts, st.one_of(st.none(), st.integers(-9, 9)), max_size=3))))
def test_maps_and_lists_are_what_they_say(rows: list[dict[str, int | None] | None]) -> None:
    maps = pa.array([None if row is None else list(row.items()) for row in rows], pa.map_(pa.string(), pa.int64()))
    lists = pa.array([None if row is None else list(row.values()) for row in rows], pa.list_(pa.int64()))
    for start in range(min(3, len(rows))):  # slices have offsets
        pair = jsons.objects(["m", "l"], [maps.slice(start), lists.slice(start)]).to_pylist()
        expected = [{} if row is None else {"m": row, "l": list(row.values())} for row in rows[start:]]
        assert [json.loads(text) for text in pair] == expected


@given(st.lists(st.tuples(st.one_of(st.none(), texts), st.one_of(st.none(), st.floats()), st.booleans()), min_size=1))
def test_fields_are_what_they_say(rows: list[tuple[str | None, float | None, bool]]) -> None:
    columns: list[Any] = [
        pa.array([row[0] for row in rows], pa.string()),
        pa.array([row[1] for row in rows], pa.float64()),
    ]
    inner = pa.StructArray.from_arrays(columns, ["a b", 'q"'])
    table = pa.record_batch({"text": columns[0], "number": columns[1], "inner": inner})
    for row, text in zip(rows, jsons.objects(table.schema.names, table.columns).to_pylist(), strict=True):
        values = {"text": row[0], "number": _number(row[1])}
        plain = {name: value for name, value in values.items() if value is not None}
        nested = {{"text": "a b", "number": 'q"'}[name]: value for name, value in plain.items()}
        assert json.loads(text) == plain | {"inner": nested}


def _number(value: float | None) -> float | str | None:
    if value is None or value - value == 0:
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124  # it is not a number


# What is refused


@pytest.mark.parametrize(
    ("schema", "options", "said", "hint"),
    [
        (TEXT, {"topics": "a"}, "unknown option 'topics'", "known options: path, topic"),
        (TEXT, {"path": None}, "address of the log is missing", "save"),
        (TEXT, {"topic": None}, "the topic is missing", "column"),
        (TEXT, {"content": "xml"}, "unknown content 'xml'", "json"),
        (TEXT, {"partitions": "many"}, "partitions 'many' is not a number", "from 1"),
        (TEXT, {"partitions": "0"}, "partitions '0' is not a number", "from 1"),
        (TEXT, {"transaction": "t", "path": "http://here"}, "need a staging location", "staging"),
        (StructType([*TEXT]).add("offset", LongType()), {}, "cannot take column 'offset'", "drop('offset')"),
        (StructType().add("data", IntegerType()), {}, "'data' has type int32", "cast"),
        (StructType().add("key", LongType()).add("n", LongType()), {}, "'key' has type int64", "cast"),
        (StructType().add("n", LongType()), {"content": "bytes"}, "written as JSON, not 'bytes'", "data"),
        (StructType().add("key", BinaryType()), {}, "no column 'data'", "data"),
    ],
)
def test_what_cannot_be_written_is_refused_in_the_driver(
    schema: StructType, options: dict[str, Any], said: str, hint: str
) -> None:
    given_options = {name: value for name, value in ({"path": "data", "topic": "t"} | options).items() if value}
    with pytest.raises(Invalid) as refused:
        sink.settings(given_options, schema, overwrite=False, streaming=False)
    assert said in refused.value.message
    assert hint in refused.value.hint


def test_a_stream_has_no_transaction_and_takes_what_spark_hands_on() -> None:
    options = {"path": "data", "topic": "t", "checkpointLocation": "/c"}
    assert sink.settings(options, TEXT, overwrite=False, streaming=True).topic == "t"
    with pytest.raises(Invalid, match="takes no transaction"):
        sink.settings(options | {"transaction": "t"}, TEXT, overwrite=False, streaming=True)
    with pytest.raises(Invalid, match="need a staging location"):
        sink.settings(options | {"path": "http://here"}, TEXT, overwrite=False, streaming=True)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"data": ["a", None]}, "data is null in some rows"),
        ({"data": ["a", "b"], "partition": [0, 7]}, "has no partition 7"),
        ({"data": ["a", "b"], "partition": [0, -1]}, "has no partition -1"),
        ({"data": ["a", "b"], "meta": ["{}", "no json"]}, "meta is not a flat JSON object"),
        ({"data": ["a", "b"], "key": ["a", "k" * 2000]}, "a key has 2000 bytes"),
        ({"data": ["a", "x" * 20_000_000]}, "data has 20000000 bytes"),
        ({"data": ["a", "b"], "topic": ["t", None]}, "some events have no topic"),
    ],
)
def test_what_cannot_be_written_is_refused_in_a_task_which_leaves_nothing(
    tmp_path: Path, columns: dict[str, Any], said: str
) -> None:
    data = tmp_path / "data"
    headwater.open(data).close()
    with pytest.raises(HeadwaterError, match=said):
        stage(data, StagedWrite.once(), pa.record_batch(columns), topic=None if "topic" in columns else "orders")
    assert not files(data)
