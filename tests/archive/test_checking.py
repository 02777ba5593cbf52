"""`check` finds whatever is wrong with an archive: alone, and beside the directory that it belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from headwater.errors import NotFound
from headwater.history import writing
from headwater.history.check import check_archive_at, check_archive_of
from tests.archive.logs import fill, open_engine
from tests.archive.tables import edit, files


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(writing, "COLUMN_DATA_BYTES_MAX", 4000)
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 600, partitions=2)
        hw.append("t", b"z" * 5000, partition=0)
        hw.append("t", b"", partition=1, producer=("p", 1, 1))
        fill(hw, 5, topic="other")
        hw.archive(str(tmp_path / "out"), seal=True)
    return tmp_path / "out"


def problems(out: Path, topic: str | None = None) -> list[tuple[str, str, bool]]:
    found = check_archive_at(str(out), topic).findings
    return [(Path(each.path).name, each.problem, each.damage) for each in found]


def test_a_sound_archive_is_told_to_be_so_with_all_that_is_in_it(out: Path) -> None:
    told: list[tuple[int, int]] = []
    report = check_archive_at(str(out), progress=lambda *each: told.append(each))
    assert report.findings == []
    assert (report.topics, report.partitions, report.events) == (2, 3, 607)
    assert report.segments == len(files(out)) + len(files(out, "other"))
    assert told[-1][0] == told[-1][1] == report.bytes
    assert check_archive_at(str(out), "other").topics == 1
    with pytest.raises(NotFound):
        check_archive_at(str(out), "nowhere")
    with pytest.raises(NotFound):
        check_archive_at(str(out.parent / "nowhere"))


def flip(path: Path) -> None:
    stored = bytearray(path.read_bytes())
    stored[len(stored) // 2] ^= 1
    path.write_bytes(stored)


@pytest.mark.parametrize("kind", ["*.parquet", "*.blob", "*.index", "*.producers"])
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (flip, "its bytes are not the ones that were archived"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "it is cut short"),
        (lambda path: path.unlink(), "it is missing"),
    ],
    ids=["flipped", "cut", "missing"],
)
def test_damage_to_any_file_is_found(out: Path, kind: str, damage: Callable[[Path], object], problem: str) -> None:
    harmed = max(out.rglob(kind))
    damage(harmed)
    assert problems(out) == [(harmed.name, problem, True)]


def test_every_damaged_file_is_told(out: Path) -> None:
    for path in files(out)[:3]:
        flip(path)
    assert len(problems(out)) == 3


def _manifest(out: Path, partition: int = 0) -> Path:
    [found] = (out / "_headwater" / "t").glob(f"*/{partition}.json")
    return found


def _rewritten(out: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Put another file in the place of the first, which the manifest then names with a right checksum."""
    path = files(out)[0]
    pq.write_table(change(pq.read_table(path)), path, store_schema=False)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    stem = path.name.rpartition("-")[0]
    path = path.rename(path.with_name(f"{stem}-{digest[:16]}.parquet"))

    def rename(record: dict[str, Any]) -> None:
        record["parts"][0]["file"] |= {"bytes": path.stat().st_size, "sha256": digest}

    edit(_manifest(out), rename)


def _with(name: str, change: Callable[[Any], Any]) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.column_names.index(name), name, change(table[name]))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda table: table.slice(1), "columns or rows differ"),
        (lambda table: table.drop_columns(["meta"]), "columns or rows differ"),
        (lambda table: table.take(list(range(table.num_rows))[::-1]), "out of order"),
        (_with("offset", lambda column: pc.add(column, 1)), "out of order, or not those"),
        (_with("ticks", lambda column: pc.add(column, 10)), "its times do not match its ticks"),
        (_with("topic", lambda column: pa.array(["x"] * len(column))), "rows of another log"),
        (_with("data", lambda column: pa.nulls(len(column), pa.binary())), "events without data"),
        (_with("key", lambda column: pa.array([b"another"] * len(column))), "does not match the keys"),
    ],
    ids=["rows", "columns", "order", "offsets", "ticks", "log", "data", "keys"],
)
def test_a_file_that_is_whole_and_wrong_is_found(
    out: Path, change: Callable[[pa.Table], pa.Table], problem: str
) -> None:
    _rewritten(out, change)
    found = problems(out)
    assert any(problem in each for _, each, _ in found)
    assert all(damage for _, _, damage in found)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda record: record["parts"].pop(1), "does not follow"),
        (lambda record: record.update(uuid="0" * 32), "belongs to another log"),
        (lambda record: record["parts"][0].update(rows=10**6), "a different number of rows"),
        (lambda record: record["parts"][1].update(first_ticks=1), "do not increase"),
        (lambda record: record["parts"][1].update(previous_ticks=1), "do not increase"),
        (lambda record: record["parts"][0]["file"].update(name="../../../etc/passwd"), "invalid name"),
    ],
    ids=["gap", "other", "rows", "ticks", "previous", "name"],
)
def test_a_manifest_that_cannot_be_is_found(
    out: Path, change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    edit(_manifest(out), lambda record: change(record) and None)
    ((name, found, damage),) = problems(out)
    assert (name, damage) == ("0.json", True)
    assert problem in found


def test_a_manifest_with_a_wrong_checksum_is_found(out: Path) -> None:
    flip(_manifest(out, 1))
    ((name, _, damage),) = problems(out)
    assert (name, damage) == ("1.json", True)


def test_what_no_manifest_names_is_worth_a_note(out: Path) -> None:
    left = files(out)[0].with_name(f"1-{10**6:020d}-{10**6 + 5:020d}-0123456789abcdef.parquet")
    left.write_bytes(b"half")
    ((name, found, damage),) = problems(out)
    assert (name, damage) == (left.name, False)
    assert "no manifest names" in found


def test_a_damaged_record_of_a_topic_is_found(out: Path) -> None:
    flip(out / "_headwater" / "t" / "topic.json")
    ((name, _, damage),) = problems(out)
    assert (name, damage) == ("topic.json", True)


def test_columns_beyond_ours_are_passed_over(out: Path) -> None:
    _rewritten(out, lambda table: table.append_column("total", pa.array([1] * table.num_rows, pa.int64())))
    assert problems(out) == []


def test_what_the_directory_dropped_and_the_archive_lost_is_found(out: Path, tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as hw:
        assert check_archive_of(hw.directory).findings == []
        edit(_manifest(out), lambda record: record["parts"].pop())
        damaged = [finding for finding in check_archive_of(hw.directory).findings if finding.damage]
        assert [Path(finding.path).name for finding in damaged] == ["archived.json"]
        assert "no longer has them" in damaged[0].problem
        assert not any(finding.damage for finding in hw.check().findings)  # an index may not be built yet
