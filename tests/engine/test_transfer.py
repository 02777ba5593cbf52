"""What is exported comes back: all formats, all contents, any topic."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headwater
from headwater.disk.disk import Disk
from headwater.errors import Corrupt, Invalid, NotFound, TooLarge
from headwater.event import Content, Event
from headwater.format.given import encode_many
from headwater.limits import MIB, Limits
from headwater.opening import open_directory
from headwater.requests import AppendMany
from headwater.store import Store
from headwater.transfer import exporting
from tests import strategies
from tests.log.unsynced import open_unsynced
from tests.planting import plant

bson = pytest.importorskip("bson")

EXACT = ("jsonl", "arrow", "arrows", "parquet")  # those that hold everything of an event
FORMATS = (*EXACT, "puro")
EXAMPLES = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def meaning(event: Event) -> tuple[Any, ...]:
    return event.content, event.data, event.type, event.key, event.meta


def meanings(hw: Store, topic: str, **options: Any) -> list[tuple[Any, ...]]:
    return [meaning(event) for event in hw.read(topic, **options)]


def of_all_contents(hw: Store, topic: str) -> None:
    """Contents that change from event to event, keys null, empty, text and binary, with and without type and meta."""
    hw.append(topic, b"\x00\xff", key=b"\xff\x00", type="raw")
    hw.append(topic, "größer", key="", meta={"a": "1", "ü": '"'})
    hw.append(topic, {"total": 12, "items": [1, None, "x"]}, key="o-17", type="placed")
    hw.append(topic, b'{\n "several": "lines"\n}', content="json")
    hw.append(
        topic, bson.encode({"wide": bson.Int64(7), "at": bson.ObjectId("0123456789abcdef01234567")}), content="bson"
    )
    hw.append_many(topic, [b"", b"\n", b"a\tb"], types=["x", "", "größer"], keys=[None, b"", b"k"])
    hw.append(topic, "", content="text")
    plant(hw, topic, b"not json")


@pytest.mark.parametrize("format", EXACT)
def test_all_contents_come_back(hw: Store, tmp_path: Path, format: str) -> None:
    of_all_contents(hw, "t")
    file = tmp_path / f"t.{format}"
    assert hw.export("t", file) == 10
    assert hw.import_("copy", file) == 10
    assert meanings(hw, "copy") == meanings(hw, "t")


def test_puro_holds_key_and_data_and_an_empty_key_is_none(hw: Store, tmp_path: Path) -> None:
    of_all_contents(hw, "t")
    assert hw.export("t", tmp_path / "t.puro") == 10
    assert hw.import_("copy", tmp_path / "t.puro") == 10
    assert [(event.data, event.key, event.content) for event in hw.read("copy")] == [
        (event.data, event.key or None, "bytes") for event in hw.read("t")
    ]


def test_data_of_puro_has_the_content_that_the_user_names(hw: Store, tmp_path: Path) -> None:
    hw.append_many("t", [{"n": 1}, {"n": 2}])
    hw.export("t", tmp_path / "t.puro")
    assert hw.import_("copy", tmp_path / "t.puro", content="json") == 2
    assert [(event.value, event.content) for event in hw.read("copy")] == [({"n": 1}, "json"), ({"n": 2}, "json")]


@pytest.mark.parametrize("format", EXACT)
@EXAMPLES
@given(st.lists(st.tuples(strategies.contents, strategies.row_lists), max_size=4))
def test_any_events_come_back(
    hw: Store, tmp_path: Path, format: str, given: list[tuple[Content, list[strategies.Row]]]
) -> None:
    for topic in {"t", "copy"} & set(hw.topics()):
        hw.delete(topic)
    hw.create("t")
    for content, rows in given:
        data = [bson.encode({"data": row.data}) if content == "bson" else row.data for row in rows]
        types, keys, metas = [row.type for row in rows], [row.key for row in rows], [row.meta for row in rows]
        if rows:  # below the check of their content: events may be older than it
            _, columns = encode_many(data, "bytes", types, keys, metas, hw.limits)
            hw.backend.append_many(AppendMany("t", content, columns, len(rows)))
    count = sum(len(rows) for _, rows in given)
    assert hw.export("t", tmp_path / "file", format=format) == count
    hw.create("copy")
    assert hw.import_("copy", tmp_path / "file", format=format) == count
    assert meanings(hw, "copy") == meanings(hw, "t")


@pytest.mark.parametrize("format", FORMATS)
def test_an_empty_topic_makes_a_whole_file_and_comes_back_as_nothing(hw: Store, tmp_path: Path, format: str) -> None:
    hw.create("t")
    assert hw.export("t", tmp_path / f"t.{format}") == 0
    assert hw.import_("copy", tmp_path / f"t.{format}") == 0
    assert hw.topics() == ["t"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_sealed_compressed_and_picked_events_come_back(
    hw: Store, tmp_path: Path, format: str, compression: Any
) -> None:
    hw.create("t", compression=compression, segment_bytes=40_000)
    for n in range(30):
        hw.append_many("t", [b"%d %d " % (n, i) * 20 for i in range(50)], types=["even", "odd"] * 25)
    hw.append("t", b"alone", type="even")
    hw.seal("t")
    expected = [event.data for event in hw.read("t", type="even", start=77, end=1400)]
    count = hw.export("t", tmp_path / f"t.{format}", type="even", start=77, end=1400)
    assert count == len(expected) == hw.import_("copy", tmp_path / f"t.{format}")
    assert [event.data for event in hw.read("copy")] == expected


@pytest.mark.parametrize("format", FORMATS)
def test_keys_choose_the_partition_again_and_keep_their_order(hw: Store, tmp_path: Path, format: str) -> None:
    hw.create("t", partitions=3)
    hw.create("copy", partitions=5)
    for n in range(4):
        hw.append_many("t", [b"%d" % (100 * n + i) for i in range(100)], keys=[b"k%d" % (i % 10) for i in range(100)])
    hw.export("t", tmp_path / f"t.{format}")
    assert hw.import_("copy", tmp_path / f"t.{format}") == 400
    for i in range(10):
        key = b"k%d" % i
        assert [event.data for event in hw.read("copy", key=key)] == [event.data for event in hw.read("t", key=key)]
        assert len({event.partition for event in hw.read("copy", key=key)}) == 1
    assert len({event.partition for event in hw.read("copy")}) > 1
    hw.create("pinned", partitions=5)
    hw.import_("pinned", tmp_path / f"t.{format}", partition=4)
    assert {event.partition for event in hw.read("pinned")} == {4}


@pytest.mark.parametrize("format", FORMATS)
def test_a_huge_event_is_held_and_gets_its_blob_again(hw: Store, tmp_path: Path, format: str) -> None:
    huge = os.urandom(1024) * 3 * 1024
    for data in (b"before", huge, b"between", huge[::-1], b"after"):
        hw.append("t", data, type="" if format == "puro" else "big", key=b"k")
    assert hw.export("t", tmp_path / f"t.{format}") == 5
    hw.import_("copy", tmp_path / f"t.{format}")
    assert meanings(hw, "copy") == meanings(hw, "t")
    assert [event.blob is None for event in hw.read("copy")] == [True, False, True, False, True]


@pytest.mark.parametrize("format", FORMATS)
def test_an_event_above_the_memory_limit_is_refused_and_leaves_no_file(tmp_path: Path, format: str) -> None:
    with open_unsynced(tmp_path / "data", limits=Limits(blob_bytes_in_memory=2 * MIB)) as hw:
        hw.append("t", b"small")
        hw.append("t", bytes(3 * MIB))
        with pytest.raises(TooLarge, match="event 0:1 of topic 't' has 3145728 bytes") as caught:
            hw.export("t", tmp_path / f"t.{format}")
    assert (caught.value.offset, caught.value.limit) == (1, "blob_bytes_in_memory")
    assert os.listdir(tmp_path) == ["data"]


def test_what_a_message_of_puro_cannot_hold_is_refused(tmp_path: Path) -> None:
    limits = Limits(blob_bytes_in_memory=20 * MIB, data_bytes_max=20 * MIB, key_bytes_max=2000)
    with open_unsynced(tmp_path / "data", limits=limits) as hw:
        hw.append("t", bytes(11 * MIB))
        hw.append("k", b"x", key=b"k" * 1025)
        with pytest.raises(TooLarge, match="up to 10485760"):
            hw.export("t", tmp_path / "t.puro")
        with pytest.raises(TooLarge, match="a key of event 0:0 has 1025 bytes"):
            hw.export("k", tmp_path / "t.puro")
        assert hw.export("t", tmp_path / "t.jsonl") == 1
        assert hw.import_("copy", tmp_path / "t.jsonl") == 1
        assert meanings(hw, "copy") == meanings(hw, "t")


@pytest.mark.parametrize("format", ["jsonl", "puro"])
def test_several_topics_in_one_file_come_back_apart_or_one_of_them(hw: Store, tmp_path: Path, format: str) -> None:
    for n in range(3):
        hw.append("orders", b"o%d" % n, key=b"k")
        hw.append("stock", b"s%d" % n)
    file = tmp_path / f"all.{format}"
    assert hw.export(["orders", "stock"], file) == 6
    with open_unsynced(tmp_path / "other") as other:
        assert other.import_(None, file) == 6
        assert other.topics() == ["orders", "stock"]
        assert [event.data for event in other.read("stock")] == [b"s0", b"s1", b"s2"]
        assert other.import_("mine", file, only="orders") == 3
        assert [event.data for event in other.read("mine")] == [b"o0", b"o1", b"o2"]
        assert other.import_(None, file, only="nothing") == 0


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_a_table_holds_one_topic_and_names_it(hw: Store, tmp_path: Path, format: str) -> None:
    hw.append("orders", b"x")
    hw.append("stock", b"y")
    with pytest.raises(Invalid, match="holds one topic"):
        hw.export(["orders", "stock"], tmp_path / f"t.{format}")
    hw.export("orders", tmp_path / f"t.{format}")
    with open_unsynced(tmp_path / "other") as other:
        assert other.import_(None, tmp_path / f"t.{format}") == 1
        assert other.topics() == ["orders"]


@pytest.mark.parametrize("format", FORMATS)
def test_an_open_file_serves_as_well_as_a_path(hw: Store, tmp_path: Path, format: str) -> None:
    of_all_contents(hw, "t")
    out = io.BytesIO()
    assert hw.export("t", out, format=format) == 10
    assert not out.closed
    hw.export("t", tmp_path / "file", format=format)
    assert out.getvalue() == (tmp_path / "file").read_bytes()
    out.seek(0)
    assert hw.import_("copy", out, format=format) == 10


class Pipe(io.RawIOBase):
    """Bytes that come a few at a time and cannot be sought in."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def read(self, size: int = -1) -> bytes:
        return self._data.read(min(size, 1000))


@pytest.mark.parametrize("format", ["jsonl", "arrows", "puro"])
def test_a_pipe_is_read_as_it_comes(hw: Store, format: str) -> None:
    hw.append_many("t", [b"%d" % n * 100 for n in range(300)])
    out = io.BytesIO()
    hw.export("t", out, format=format)
    seen: list[tuple[int, int | None]] = []
    source: Any = Pipe(out.getvalue())
    assert hw.import_("copy", source, format=format, progress=lambda *each: seen.append(each)) == 300
    assert meanings(hw, "copy") == meanings(hw, "t")
    assert {total for _, total in seen} == {None}


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_what_is_read_from_its_end_does_not_come_through_a_pipe(hw: Store, format: str) -> None:
    hw.append("t", b"x")
    out = io.BytesIO()
    hw.export("t", out, format=format)
    source: Any = Pipe(out.getvalue())
    with pytest.raises((Invalid, Corrupt)):
        hw.import_("copy", source, format=format)


@pytest.mark.parametrize("format", FORMATS)
def test_progress_goes_from_some_to_all(
    hw: Store, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "GROUP_EVENTS", 100)
    for _ in range(5):
        hw.append_many("t", [b"x" * 100] * 100)
    seen: list[tuple[int, int | None]] = []
    file = tmp_path / f"t.{format}"
    hw.export("t", file, progress=lambda *each: seen.append(each))
    assert seen == [(100 * n, 500) for n in range(1, 6)]
    seen.clear()
    hw.export("t", file, progress=lambda *each: seen.append(each), type="")
    assert seen[-1] == (500, None)
    seen.clear()
    hw.import_("copy", file, progress=lambda *each: seen.append(each))
    assert seen
    assert all(0 < done <= size for done, size in seen if size is not None)
    assert {size for _, size in seen} == {file.stat().st_size}


@pytest.mark.parametrize("format", EXACT)
def test_times_and_places_are_new_and_the_old_ones_kept_if_wanted(hw: Store, tmp_path: Path, format: str) -> None:
    hw.append("t", b"a", meta={"by": "me"})
    hw.append("t", b"b")
    old = list(hw.read("t"))
    hw.export("t", tmp_path / f"t.{format}")
    hw.import_("copy", tmp_path / f"t.{format}", keep_times=True)
    new = list(hw.read("copy"))
    for was, now in zip(old, new, strict=True):
        assert now.time > was.time
        said = {name: now.meta[f"original_{name}"] for name in ("time", "partition", "offset")}
        assert said["time"].rstrip("Z") == was.time.isoformat().removesuffix("+00:00")
        assert (said["partition"], said["offset"]) == ("0", str(was.offset))
    assert new[0].meta["by"] == "me"
    hw.export("copy", tmp_path / f"t.{format}")
    hw.import_("again", tmp_path / f"t.{format}", keep_times=True)
    assert [event.meta for event in hw.read("again")] == [event.meta for event in new]


def test_messages_of_puro_have_no_times_to_keep(hw: Store, tmp_path: Path) -> None:
    hw.append("t", b"a")
    hw.export("t", tmp_path / "t.puro")
    with pytest.raises(Invalid, match="no times"):
        hw.import_("copy", tmp_path / "t.puro", keep_times=True)


def test_a_format_is_named_or_told_by_the_suffix(hw: Store, tmp_path: Path) -> None:
    hw.append("t", b"x")
    with pytest.raises(Invalid, match="does not determine a format"):
        hw.export("t", tmp_path / "t.csv")
    with pytest.raises(Invalid, match="no format 'csv'"):
        hw.export("t", tmp_path / "t.jsonl", format="csv")
    with pytest.raises(Invalid, match="a stream does not determine a format"):
        hw.export("t", io.BytesIO())
    assert hw.export("t", tmp_path / "t.NDJSON") == 1
    assert msgspec.json.decode((tmp_path / "t.NDJSON").read_bytes())["offset"] == 0


def test_an_export_that_fails_leaves_what_was_there(hw: Store, tmp_path: Path) -> None:
    hw.append("t", b"x")
    file = tmp_path / "t.jsonl"
    file.write_bytes(b"before")
    with pytest.raises(NotFound):
        hw.export(["t", "nothing"], file)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for format in FORMATS:
        with pytest.raises(KeyboardInterrupt):
            hw.export("t", file, format=format, progress=stop)
    assert file.read_bytes() == b"before"
    assert sorted(os.listdir(tmp_path)) == ["data", "t.jsonl"]
    assert hw.export("t", file) == 1
    assert file.read_bytes() != b"before"


def test_an_export_goes_through_a_link_and_not_over_a_device(hw: Store, tmp_path: Path) -> None:
    hw.append("t", b"x")
    (tmp_path / "link.jsonl").symlink_to("real.jsonl")
    hw.export("t", tmp_path / "link.jsonl")
    assert (tmp_path / "link.jsonl").is_symlink()
    assert (tmp_path / "real.jsonl").stat().st_size > 0
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(Invalid, match="not a regular file"):
        hw.export("t", tmp_path / "pipe.jsonl")


def test_an_export_is_synced_before_it_gets_its_name(tmp_path: Path) -> None:
    done: list[str] = []

    class Recorder(Disk):
        def fdatasync(self, _: int) -> None:  # type: ignore[override]  # a function there
            done.append("sync")

        def rename(self, source: Any, target: Any) -> None:  # type: ignore[override]  # as above
            done.append(f"rename to {Path(target).name}")
            os.rename(source, target)

        def sync_directory(self, path: Path) -> None:
            done.append(f"sync {path.name}")

    with open_directory(tmp_path / "data", disk=Recorder()) as hw:
        hw.append("t", b"x")
        done.clear()
        hw.export("t", tmp_path / "t.jsonl")
    assert done == ["sync", "rename to t.jsonl", f"sync {tmp_path.name}"]


def test_an_import_syncs_once_at_its_end(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as hw:
        hw.append_many("t", [b"x" * 1000] * 20_000)
        hw.export("t", tmp_path / "t.puro")
        hw.import_("copy", tmp_path / "t.puro")
        (partition,) = hw.describe("copy").partitions
        assert len(list(hw.read_batches("copy"))) > 3
    assert partition.durable == partition.end == 20_000


def test_limits_that_are_small_make_more_batches(tmp_path: Path) -> None:
    limits = Limits(batch_events_max=7, batch_bytes_max=4000, pack_events=5)
    with open_unsynced(tmp_path / "data") as hw:
        hw.append_many("t", [b"x" * (n % 900) for n in range(500)], keys=[b"k" * 500] * 500)
        for format in FORMATS:
            hw.export("t", tmp_path / f"t.{format}")
        expected = [event.data for event in hw.read("t")]
    with open_unsynced(tmp_path / "other", limits=limits) as hw:
        for format in FORMATS:
            assert hw.import_(format, tmp_path / f"t.{format}") == 500
            assert [event.data for event in hw.read(format)] == expected
            assert max(map(len, hw.read_batches(format))) <= 7


@pytest.mark.parametrize("format", EXACT)
def test_an_event_that_is_refused_comes_after_all_before_it(hw: Store, tmp_path: Path, format: str) -> None:
    hw.append_many("t", [b"fits"] * 700, keys=[b"%d" % n for n in range(700)])
    hw.append("t", b"does not")
    hw.append_many("t", [b"fits"] * 100)
    hw.export("t", tmp_path / f"t.{format}")
    for partitions in (1, 3):
        topic = f"copy{partitions}"
        hw.create(topic, data_bytes_max=5, partitions=partitions)
        with pytest.raises(TooLarge, match="after 700 events, which are imported; skip 700 to continue") as caught:
            hw.import_(topic, tmp_path / f"t.{format}")
        assert (caught.value.imported, caught.value.skip) == (700, 700)
        assert hw.describe(topic).events == 700
        assert hw.import_(topic, tmp_path / f"t.{format}", skip=701) == 100


def test_exported_parquet_is_plain_parquet(hw: Store, tmp_path: Path) -> None:
    of_all_contents(hw, "t")
    hw.export("t", tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    assert table.column_names == ["partition", "offset", "time", "type", "key", "content", "data", "meta"]
    events = list(hw.read("t"))
    assert table["data"].to_pylist() == [event.data for event in events]
    assert table["time"].to_pylist() == [event.time for event in events]
    assert table["type"].to_pylist() == [event.type for event in events]
    assert table["content"].to_pylist() == [event.content for event in events]
    assert table.schema.metadata[b"headwater.topic"] == b"t"
    column = pq.ParquetFile(tmp_path / "t.parquet").metadata.row_group(0).column(6)
    assert (column.path_in_schema, column.compression) == ("data", "ZSTD")


def test_exported_arrow_is_plain_arrow(hw: Store, tmp_path: Path) -> None:
    of_all_contents(hw, "t")
    for format, opened in (("arrow", pa.ipc.open_file), ("arrows", pa.ipc.open_stream)):
        hw.export("t", tmp_path / "t", format=format)
        with pa.OSFile(str(tmp_path / "t"), "rb") as file:
            table = opened(file).read_all()
        assert table["data"].to_pylist() == [event.data for event in hw.read("t")]
        assert table["offset"].to_pylist() == list(range(10))


def test_the_first_bytes_tell_an_arrow_file_from_a_stream(hw: Store, tmp_path: Path) -> None:
    hw.append("t", b"x")
    hw.export("t", tmp_path / "file", format="arrow")
    hw.export("t", tmp_path / "stream", format="arrows")
    assert hw.import_("copy", tmp_path / "file", format="arrows") == 1
    assert hw.import_("copy", tmp_path / "stream", format="arrow") == 1


def test_foreign_tables_are_taken_by_their_columns(hw: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "foreign.parquet"
    rows = {"value": ["a", "b"], "key": [None, "k"], "headers": [1, 2]}
    pq.write_table(pa.table(rows), file)
    assert hw.import_("kafka", file) == 2
    assert meanings(hw, "kafka") == [("text", b"a", "", None, {}), ("text", b"b", "", b"k", {})]
    assert "columns of the table that are not imported: headers" in caplog.text
    rows = {"body": ['{"n": 1}', "2"], "user": [b"u1", b"u2"], "kind": ["x", "y"], "meta": [5, 6], "content": ["", "a"]}
    pq.write_table(pa.table(rows), file)
    options: Any = {"data_column": "body", "key_column": "user", "type_column": "kind", "content": "json"}
    assert hw.import_("named", file, **options) == 2
    assert meanings(hw, "named") == [("json", b'{"n": 1}', "x", b"u1", {}), ("json", b"2", "y", b"u2", {})]
    table = pa.table({"data": pa.array([b"x", b"x"], pa.large_binary()).dictionary_encode(), "type": ["a", None]})
    with pa.OSFile(str(tmp_path / "foreign.arrow"), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    assert hw.import_("coded", tmp_path / "foreign.arrow") == 2
    assert meanings(hw, "coded") == [("bytes", b"x", "a", None, {}), ("bytes", b"x", "", None, {})]


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ({"body": ["a"]}, {}, "no column 'data'"),
        ({"data": ["a"]}, {"key_column": "user"}, "no column 'user'"),
        ({"data": ["a"]}, {"data_column": "body"}, "no column 'body'"),
        ({"data": [1, 2]}, {}, "a column of int64 is not bytes or text"),
        ({"data": ["a", None]}, {}, "data is null"),
        ({"data": ["a"], "content": ["xml"]}, {}, "a content is not one of"),
        ({"data": ["a"], "meta": ["[]"]}, {}, "meta is not a flat JSON object"),
        ({"data": ["a"], "meta": ["[]"]}, {"keep_times": True}, "meta is not a flat JSON object"),
        ({"data": ["a"]}, {"topic": None}, "does not name the topic"),
    ],
)
def test_a_table_that_holds_no_events_is_refused(
    hw: Store, tmp_path: Path, rows: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    pq.write_table(pa.table(rows), tmp_path / "foreign.parquet")
    with pytest.raises(Invalid, match=said):
        hw.import_(options.pop("topic", "t"), tmp_path / "foreign.parquet", **options)
    assert hw.topics() in ([], ["t"])


def test_a_missing_file_is_an_error_of_the_system_and_makes_no_topic(hw: Store, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        hw.import_("t", tmp_path / "nothing.jsonl")
    assert hw.topics() == []
    hw.create("t")
    with pytest.raises(FileNotFoundError):
        hw.export("t", tmp_path / "nowhere" / "t.jsonl")
    with pytest.raises(Invalid, match="content 'xml' is unknown"):
        hw.import_("t", tmp_path / "nothing.jsonl", content="xml")  # type: ignore[arg-type]  # what a user may do
