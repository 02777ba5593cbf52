"""Directories of Parquet that pipelines write: what is there after a crash at any step, and nothing twice."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from headwater import Conflict
from headwater.disk.disk import Disk
from headwater.spark.pipelines.folders import PipelineFolder, Write


def writing(*numbers: int, name: str = "part-0") -> Write:
    """As Spark does it: files, a checksum beside each, and a mark."""

    def write(path: Path) -> None:
        path.mkdir()
        for number in numbers:
            file = path / f"{name}-{number}.snappy.parquet"
            parquet.write_table(pa.table({"n": [number]}), file)
            (path / f".{file.name}.crc").write_bytes(b"crc")
        (path / "_SUCCESS").touch()

    return write


def shown(path: Path) -> list[int]:
    found: list[Any] = parquet.read_table(path)["n"].to_pylist()
    return sorted(found)


def names(path: Path) -> list[str]:
    """What is beside a directory; half a note is removed by who runs the pipeline next."""
    return sorted(each.name for each in path.parent.iterdir() if each.suffix != ".tmp")


def test_a_directory_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = PipelineFolder(tmp_path / "out", tmp_path / "notes")
    folder.check()
    assert folder.replace(writing(1, 2)) == 2
    folder.check()
    assert folder.replace(writing(3)) == 1
    assert shown(folder.path) == [3]
    assert [each.name for each in folder.path.iterdir()] == ["part-0-3.snappy.parquet"]
    assert names(folder.path) == ["out"]


def test_what_holds_anything_but_parquet_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    PipelineFolder(tmp_path / "home", tmp_path / "notes").check()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    with pytest.raises(Conflict, match=r"holds thesis.txt, which is not Parquet"):
        PipelineFolder(tmp_path / "home", tmp_path / "notes").check()
    with pytest.raises(Conflict, match="is no directory"):
        PipelineFolder(tmp_path / "home" / "thesis.txt", tmp_path / "notes").check()


def test_batches_are_added_once_each(tmp_path: Path) -> None:
    folder = PipelineFolder(tmp_path / "out", tmp_path / "notes")
    assert folder.put("run", 0, writing(1)) == 1
    assert folder.put("run", 2, writing(2, 3)) == 2
    for number in (0, 1, 2):
        assert folder.put("run", number, writing(9)) is None
    assert shown(folder.path) == [1, 2, 3]
    assert names(folder.path) == ["notes", "out"]


def test_the_first_batch_of_another_run_replaces_all(tmp_path: Path) -> None:
    folder = PipelineFolder(tmp_path / "out", tmp_path / "notes")
    folder.put("one", 0, writing(1))
    folder.put("one", 1, writing(2))
    folder.put("two", 0, writing(3))
    assert shown(folder.path) == [3]


def test_partitions_of_spark_keep_their_directories(tmp_path: Path) -> None:
    def of_day(day: int) -> Write:
        def write(path: Path) -> None:
            path.mkdir()
            writing(day, name=f"part-{day}")(path / f"day={day}")

        return write

    folder = PipelineFolder(tmp_path / "out", tmp_path / "notes")
    folder.put("run", 0, of_day(1))
    folder.put("run", 1, of_day(2))
    assert sorted(each.name for each in folder.path.iterdir()) == ["day=1", "day=2"]
    assert shown(folder.path) == [1, 2]


class Dying(Disk):
    """Dies at a step of what changes the disk, as a process does: nothing behind it happens."""

    def __init__(self, step: int) -> None:
        self.left = step
        for name in ("rename", "exchange", "unlink", "mkdir", "sync_directory", "remove_tree", "replace", "fdatasync"):
            setattr(self, name, self._counted(getattr(super(), name)))

    def _counted(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            return act(*arguments, **named)

        return counted


@pytest.mark.parametrize("exchanging", [True, False])
def test_a_crash_at_any_step_and_a_rerun_give_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanging: bool
) -> None:
    if not exchanging:

        def cannot(*_: Any) -> None:
            raise OSError(errno.EINVAL, "not here")

        monkeypatch.setattr(Disk, "exchange", cannot)
    steps = 0
    died = True
    while died:
        out = tmp_path / f"{exchanging}-{steps}" / "out"
        out.parent.mkdir()
        PipelineFolder(out, out.parent / "notes").put("old", 0, writing(7))
        died = False
        for batch, rows in enumerate([(1, 2), (3,), (4, 5)]):
            disk = Dying(steps)
            try:
                PipelineFolder(out, out.parent / "notes", disk).put("run", batch, writing(*rows, name=f"first-{batch}"))
            except KeyboardInterrupt:
                died = True
                assert out.exists() or not exchanging  # there is always one or the other
                if out.exists():
                    assert set(shown(out)) <= {7} or set(shown(out)) >= {1, 2}  # never a part of the first
                PipelineFolder(out, out.parent / "notes").put("run", batch, writing(*rows, name=f"again-{batch}"))
        assert shown(out) == [1, 2, 3, 4, 5]
        assert names(out) == ["notes", "out"]
        steps += 1
    assert steps > 20
