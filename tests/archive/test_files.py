"""A log as Parquet files: all of it and nothing twice, whatever dies, and whoever does it at the same time."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headwater
from headwater.errors import Conflict, Corrupt, NotFound
from headwater.format import history as format
from headwater.format.history import ArchivedFile, HistoryFile, file_name
from headwater.format.settings import TopicRecord
from headwater.history import writing
from headwater.history.records import HistoryStore
from headwater.spark import archiving
from tests.archive.logs import drop, fill, open_engine
from tests.archive.tables import (
    archive,
    archived,
    described,
    files,
    logged,
    manifests,
    opened,
    run_here,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log with small segments, two partitions, and events of every kind."""
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 600, partitions=2)
        hw.append("t", b"\x0c\0\0\0\x10n\0\x01\0\0\0\0", content="bson", key="b")
        hw.append("t", "späte Nachricht", type="grüße", meta={"ü": "1", "a": "b"})
        hw.append("t", b"", key=b"")
        hw.append("t", [1, 2.5, None], key=b"\xff\0")
    return tmp_path / "data"


def test_the_files_hold_each_column_of_each_event(data: Path, tmp_path: Path) -> None:
    done = archive(data, tmp_path / "out", seal=True)
    with open_engine(data) as hw:
        expected = logged(hw)
    found = archived(tmp_path / "out")
    for name in expected.column_names:
        assert found[name].to_pylist() == expected[name].to_pylist(), name
    assert found.schema.equals(expected.schema)
    assert set(expected["content"].to_pylist()) == {"bytes", "text", "json", "bson"}
    assert (
        max(len(data or b"") for data in expected["data"].to_pylist()) == 5000
    )  # which is a blob, as the log is limited
    assert sum(each.end - each.first for each in done) == found.num_rows == 604


def test_each_file_is_one_partition_and_one_range_in_order(data: Path, tmp_path: Path) -> None:
    archive(data, tmp_path / "out", seal=True)
    for log in manifests(tmp_path / "out"):
        assert len(log.parts) > 2
        assert [part.start for part in log.parts] == [0, *(part.end for part in log.parts[:-1])]
    parts = [(log.partition, part) for log in manifests(tmp_path / "out") for part in log.parts]
    for path, (partition, part) in zip(files(tmp_path / "out"), parts, strict=True):
        table = pq.read_table(path)
        assert set(table["partition"].to_pylist()) == {partition}
        assert table["offset"].to_pylist() == list(range(part.start, part.end))
        assert (table["ticks"][0].as_py(), table["ticks"][-1].as_py()) == (part.first_ticks, part.last_ticks)


def test_plain_parquet_for_duckdb_and_polars(data: Path, tmp_path: Path) -> None:
    archive(data, tmp_path / "out", seal=True)
    with open_engine(data) as hw:
        expected = logged(hw)
    at = f"{tmp_path / 'out' / 't'}/*/*.parquet"
    rows = duckdb.execute(f"SELECT * FROM '{at}' ORDER BY partition, \"offset\"").fetchall()  # our path
    columns = [description[0] for description in duckdb.description() or []]
    assert columns == list(expected.column_names)
    assert [row[columns.index("data")] for row in rows] == expected["data"].to_pylist()
    assert [row[columns.index("time")].timestamp() for row in rows] == [
        row["time"].timestamp() for row in expected.to_pylist()
    ]
    frame = pl.scan_parquet(tmp_path / "out" / "t" / "**" / "*.parquet").sort("partition", "offset").collect()
    assert frame["id"].to_list() == expected["id"].to_pylist()
    assert frame["type"].to_list() == expected["type"].to_pylist()
    assert frame.schema["time"] == pl.Datetime("us", "UTC")
    assert frame.schema["type"] == pl.String


def test_statistics_and_order_are_there_for_readers(data: Path, tmp_path: Path) -> None:
    archive(data, tmp_path / "out", seal=True)
    group = pq.ParquetFile(files(tmp_path / "out")[0]).metadata.row_group(0)
    told = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    assert all(told[name].is_stats_set for name in ("offset", "time", "type", "key", "ticks"))
    assert {column.compression for column in told.values()} == {"ZSTD"}
    assert told["offset"].has_offset_index


def test_again_there_is_nothing_to_do_and_later_only_what_is_new(data: Path, tmp_path: Path) -> None:
    archive(data, tmp_path / "out", seal=True)
    before = {path: path.stat().st_mtime_ns for path in files(tmp_path / "out")}
    assert archive(data, tmp_path / "out", seal=True) == []
    with open_engine(data) as hw:
        end = [each.end for each in hw.describe("t").partitions]
        hw.append_many("t", [b"new"] * 3, partition=1)
    done = archive(data, tmp_path / "out", seal=True)
    assert [(each.partition, each.first, each.end) for each in done] == [(1, end[1], end[1] + 3)]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    with open_engine(data) as hw:
        assert archived(tmp_path / "out").sort_by("offset").equals(logged(hw).sort_by("offset"))


def test_only_finished_segments_are_archived_unless_they_are_sealed_first(tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as hw:
        hw.append_many("t", [b"old"] * 5)
        hw.seal("t")
        hw.append_many("t", [b"young"] * 2)
    assert [each.end for each in archive(tmp_path / "data", tmp_path / "out")] == [5]
    assert [each.end for each in archive(tmp_path / "data", tmp_path / "out", seal=True)] == [7]


def test_chosen_topics_and_odd_names(tmp_path: Path) -> None:
    names = ["_headwater", "böse/Namen %", "plain"]
    with open_engine(tmp_path / "data") as hw:
        for name in [*names, "other"]:
            hw.append(name, name)
    done = archive(tmp_path / "data", tmp_path / "out", topics=names, seal=True)
    assert [each.topic for each in done] == names
    assert [topic.name for topic in opened(tmp_path / "out").topics()] == names
    for name in names:
        assert archived(tmp_path / "out", name)["data"].to_pylist() == [name.encode()]
    with pytest.raises(NotFound):
        archive(tmp_path / "data", tmp_path / "out", topics="nowhere")


class Died(BaseException):
    """The process is gone, as far as the archive can see."""


@pytest.mark.parametrize("after", [0, 1, 3, 7])
def test_died_after_any_file_it_goes_on_and_has_nothing_twice(data: Path, tmp_path: Path, after: int) -> None:
    def dying(_spark: Any, places: Any, works: Iterable[Any]) -> Iterable[Any]:
        for number, work in enumerate(list(works)[::-1]):  # the last are done first: they wait for the others
            if number == after:
                raise Died
            yield archiving.write((places, work))

    with pytest.raises(Died):
        archive(data, tmp_path / "out", run=dying, seal=True)
    archive(data, tmp_path / "out", seal=True)
    with open_engine(data) as hw:
        assert archived(tmp_path / "out").equals(logged(hw))
    left = set((tmp_path / "out").rglob("*.parquet"))
    assert left == {*files(tmp_path / "out")}  # also who reads all files by a pattern has nothing twice


def test_died_between_the_file_and_the_manifest(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(HistoryStore, "extend", die)
        with pytest.raises(Died):
            archive(data, tmp_path / "out", seal=True)
    assert not any(log.parts for log in manifests(tmp_path / "out"))
    archive(data, tmp_path / "out", seal=True)
    with open_engine(data) as hw:
        assert archived(tmp_path / "out").equals(logged(hw))
    assert {*(tmp_path / "out").rglob("*.parquet")} == {*files(tmp_path / "out")}


def test_two_at_once_have_nothing_twice(data: Path, tmp_path: Path) -> None:
    with open_engine(data) as hw:
        hw.seal("t")

    def interrupted(spark: Any, places: Any, works: Iterable[Any]) -> Iterable[Any]:
        """Another one does all of it after this one's files are written, and before they are named."""
        written = list(run_here(spark, places, works))
        archive(data, tmp_path / "out")
        return written

    archive(data, tmp_path / "out", run=interrupted)
    with open_engine(data) as hw:
        assert archived(tmp_path / "out").equals(logged(hw))
    assert {*(tmp_path / "out").rglob("*.parquet")} == {*files(tmp_path / "out")}


def _fill_bucket(hw: Any, segments: int) -> None:
    hw.create("t", segment_bytes=4096)
    for _ in range(segments):
        hw.append_many("t", [b"x" * 100] * 20)
        hw.seal("t")


def test_another_that_has_cut_a_bucket_differently_is_followed(tmp_path: Path) -> None:
    url = f"objects://{tmp_path / 'bucket'}"
    with headwater.open(url) as hw:
        _fill_bucket(hw, 20)

        def interrupted(spark: Any, places: Any, works: Iterable[Any]) -> Iterable[Any]:
            written = list(run_here(spark, places, works))
            if not any(log.parts for log in manifests(tmp_path / "out")):
                dying = lambda *given: islice(run_here(*given), 3)  # noqa: E731
                archive(url, tmp_path / "out", run=dying, file_bytes=400)  # a part of it, cut smaller
            return written

        assert archive(url, tmp_path / "out", run=interrupted, file_bytes=5000)
        assert archived(tmp_path / "out")["id"].to_pylist() == [str(event.id) for event in hw.read("t")]
    assert {*(tmp_path / "out").rglob("*.parquet")} == {*files(tmp_path / "out")}


def test_a_damaged_batch_is_told_and_nothing_false_is_named(data: Path, tmp_path: Path) -> None:
    with open_engine(data) as hw:
        hw.seal("t")
        expected = logged(hw)
    log = sorted((data / "topics" / "t" / "1").glob("*.log"))[2]
    stored = bytearray(log.read_bytes())
    stored[len(stored) // 2] ^= 1
    log.write_bytes(stored)
    with pytest.raises(Corrupt, match="checksum") as raised:
        archive(data, tmp_path / "out", seal=True)
    assert raised.value.path == str(log)
    first, second = manifests(tmp_path / "out")
    with open_engine(data) as hw:
        assert first.end == hw.describe("t").partitions[0].end  # the other partition is whole
    assert second.end == int(log.stem)
    ends = {0: first.end, 1: second.end}
    named = [row for row in expected.to_pylist() if row["offset"] < ends[row["partition"]]]
    assert archived(tmp_path / "out").to_pylist() == named
    assert raised.value.archived == len(first.parts) + len(second.parts)


def test_a_damaged_blob_is_told(data: Path, tmp_path: Path) -> None:
    with open_engine(data) as hw:
        hw.append("t", b"z" * 9000, partition=0)
    blob = max((data / "topics" / "t" / "0").rglob("*.blob"))
    stored = bytearray(blob.read_bytes())
    stored[77] ^= 1
    blob.write_bytes(stored)
    with pytest.raises(Corrupt, match="chunk"):
        archive(data, tmp_path / "out", seal=True)


def test_a_file_that_does_not_read_as_it_was_written_is_not_named(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = writing._fingerprint
    seen = []

    def broken(table: Any) -> int:
        seen.append(table)
        return honest(table) ^ (len(seen) == 2)  # the first file has one row group: this is its second look

    monkeypatch.setattr(writing, "_fingerprint", broken)
    with pytest.raises(Corrupt) as raised:
        archive(data, tmp_path / "out", seal=True, topics="t", file_bytes=10**6)
    assert raised.value.code == "not_as_written"
    assert not manifests(tmp_path / "out")[0].parts


def test_the_fingerprint_tells_tables_apart(data: Path) -> None:
    with open_engine(data) as hw:
        table = logged(hw)
    prints = {writing._fingerprint(table.slice(lo, 20)) for lo in range(100)}
    assert len(prints) == 100
    for name in table.column_names:
        assert writing._fingerprint(table.drop_columns([name])) != writing._fingerprint(table), name
    nulls = pa.table({"key": pa.array([b"", None], pa.binary())})
    assert writing._fingerprint(nulls) != writing._fingerprint(nulls.slice(1).append_column("k", nulls["key"][:1]))
    assert writing._fingerprint(nulls) != writing._fingerprint(pa.table({"key": pa.array([None, b""], pa.binary())}))


def test_data_too_large_for_a_column_is_beside_it(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "COLUMN_DATA_BYTES_MAX", 4000)
    archive(data, tmp_path / "out", seal=True)
    with open_engine(data) as hw:
        huge = {(event.partition, event.offset) for event in hw.read("t") if len(event.data or b"") > 4000}
        rows = archived(tmp_path / "out").to_pylist()
        assert {(row["partition"], row["offset"]) for row in rows if row["data"] is None} == huge
        headwater.restore(f"{tmp_path / 'out'}", tmp_path / "back")
        with open_engine(tmp_path / "back") as back:
            assert logged(back).equals(logged(hw))
    assert huge


def test_a_bucket_is_archived_and_remembers_it(tmp_path: Path) -> None:
    url = f"objects://{tmp_path / 'bucket'}"
    with headwater.open(url) as hw:
        hw.append_many("t", [b"one", b"two"], keys=["a", "b"])
        assert isinstance(hw, headwater.Store)
        assert archive(url, tmp_path / "out") == []  # nothing was compacted yet
        assert [each.end for each in archive(url, f"objects://{tmp_path / 'out'}", seal=True)] == [2]
        assert hw.archive_url == f"objects://{tmp_path / 'out'}"
        assert archived(tmp_path / "out")["id"].to_pylist() == [str(event.id) for event in hw.read("t")]


def test_an_archive_is_of_one_log(data: Path, tmp_path: Path) -> None:
    archive(data, tmp_path / "out")
    with open_engine(tmp_path / "other") as hw:
        hw.append("t", b"x")
    with pytest.raises(Conflict) as raised:
        archive(tmp_path / "other", tmp_path / "out", seal=True)
    assert raised.value.code == "archive_of_another"


def test_a_topic_that_was_made_again_is_not_mixed_with_the_old_one(data: Path, tmp_path: Path) -> None:
    archive(data, tmp_path / "out", seal=True)
    before = files(tmp_path / "out")
    with open_engine(data) as hw:
        hw.delete("t")
        hw.append("t", b"new")
        archive(data, tmp_path / "out", seal=True)
        assert archived(tmp_path / "out").equals(logged(hw))
    assert {path.parent for path in before}.isdisjoint(path.parent for path in files(tmp_path / "out"))
    assert all(path.exists() for path in before)


def test_what_a_bucket_has_deleted_before_it_was_archived_is_told(tmp_path: Path) -> None:
    url = f"objects://{tmp_path / 'bucket'}"
    with headwater.open(url) as hw:
        _fill_bucket(hw, 1)
        archive(url, tmp_path / "out")
        _fill_bucket(hw, 2)
        hw.retain("t", before=40)
        with pytest.raises(NotFound) as raised:
            archive(url, tmp_path / "out")
    assert raised.value.code == "offset_gone"
    assert manifests(tmp_path / "out")[0].end == 20


def test_a_log_that_begins_late_is_archived_from_there(tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 60)
        hw.seal("t")
        drop(hw)
        hw.append_many("t", [b"x"] * 3)
        start = hw.describe("t").partitions[0].start
        archive(tmp_path / "data", tmp_path / "out", seal=True)
        assert manifests(tmp_path / "out")[0].start == start > 0
        assert archived(tmp_path / "out").equals(logged(hw))
    headwater.restore(f"{tmp_path / 'out'}", tmp_path / "back")
    with open_engine(tmp_path / "back") as back, open_engine(tmp_path / "data") as hw:
        assert logged(back).equals(logged(hw))
        assert back.append("t", b"on").offset == hw.describe("t").partitions[0].end


def test_a_log_that_went_another_way_is_not_archived(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "copy")
    with open_engine(data) as hw:
        hw.append_many("t", [b"one way"] * 4, partition=0)
    archive(data, tmp_path / "out", seal=True)
    with open_engine(tmp_path / "copy") as hw:  # shorter, then as long, with other events
        for events in (0, 4):
            if events:
                hw.append_many("t", [b"the other"] * events, partition=0)
            with pytest.raises(Conflict) as raised:
                archive(tmp_path / "copy", tmp_path / "out", seal=True)
            assert raised.value.code == "archive_diverged"


def test_settings_follow_the_topic(data: Path, tmp_path: Path) -> None:
    archive(data, tmp_path / "out")
    with open_engine(data) as hw:
        hw.retain("t", retention_bytes=10**9)
    archive(data, tmp_path / "out")
    assert opened(tmp_path / "out").topics("t")[0].settings.retention_bytes == 10**9


def test_progress_tells_of_bytes(data: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    archive(data, tmp_path / "out", progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 0


def test_what_does_not_follow_is_not_named(tmp_path: Path) -> None:
    store, topic = opened(tmp_path / "out"), TopicRecord(name="t", uuid=str(uuid4()), partitions=1)

    def part(start: int, end: int) -> HistoryFile:
        file, index = (ArchivedFile(file_name(0, start, end, suffix), 1, "ab" * 32) for suffix in ("parquet", "index"))
        return HistoryFile(start, end, end - start, start, start + 1, end, end, 1, file, index)

    def bounds(*parts: HistoryFile) -> list[tuple[int, int]]:
        return [(each.start, each.end) for each in store.extend(topic, 0, parts).parts]

    assert bounds(part(3, 5), part(5, 8)) == [(3, 5), (5, 8)]  # a log may begin late
    assert bounds(part(9, 10)) == [(3, 5), (5, 8)]  # behind a gap
    assert bounds(part(5, 9), part(9, 10)) == [(3, 5), (5, 8)]  # cut at other places
    assert bounds(part(8, 9), part(9, 10))[2:] == [(8, 9), (9, 10)]
    with pytest.raises(Corrupt):
        bounds(part(10, 11), part(12, 13))


def test_every_column_of_a_batch_is_verified_also_what_is_not_archived(tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as hw:
        hw.append("t", b"x", producer=("of-this-name", 1, 1))
        log = next((tmp_path / "data").rglob("*.log"))
        stored = log.read_bytes()
        log.write_bytes(stored.replace(b"of-this-name", b"of-that-name"))
        nothing = format.nothing(described(hw), 0)
        with pytest.raises(Corrupt, match="column 6"):
            writing.write_files(opened(tmp_path / "out").store, nothing, (0, 1), hw.read_batches("t"), (0, None))
    assert not [*(tmp_path / "out").rglob("*.parquet")]
