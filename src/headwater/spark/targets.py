"""Where the rows of a pipeline go, each way with its own kind of once: as a whole, or batch by batch of a stream.

A rerun of a batch, which is what follows a crash, is told by the name of the run and its number, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from headwater.errors import Invalid, Unsupported
from headwater.spark.documents import encoded
from headwater.spark.folders import Folder
from headwater.spark.places import open_place
from headwater.views import filling
from headwater.views.filling import Batch
from headwater.views.local import Local
from headwater.views.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Target(Protocol):
    """One place to write to. `mode` is which rows of a stream it wants: those that are final, or all that changed."""

    mode: Literal["append", "update"]

    def check(self) -> None:
        """Raise what can be told before anything is computed."""

    def write(self, frame: DataFrame, run: str) -> int | None:
        """All rows, durable when it returns; how many, None if a run of this name has written them before."""

    def put(self, frame: DataFrame, run: str, batch: int) -> int | None:
        """The same for one batch of a stream."""


def target_of(address: str, pipeline: Pipeline, indexes: Sequence[str], notes: Path) -> Target:
    """Where a pipeline writes to. `notes` is a file for it to keep how far it is, where the place itself has none."""
    if pipeline.target.kind == "topic":
        return ToTopic(address, pipeline)
    if pipeline.target.kind == "binder":
        return ToBinder(address, pipeline, indexes)
    return ToParquet(pipeline, notes)


class ToTopic:
    """An event a row."""

    mode: Literal["append", "update"] = "append"

    def __init__(self, address: str, pipeline: Pipeline) -> None:
        self._address = address
        self._pipeline = pipeline.name
        self._topic = pipeline.target.place

    def check(self) -> None:
        pass

    def write(self, frame: DataFrame, run: str) -> int | None:
        return self._append(frame, f"pipeline-{self._pipeline}-{run}")

    def put(self, frame: DataFrame, run: str, batch: int) -> int | None:
        return self._append(frame, f"pipeline-{self._pipeline}-{run}-{batch}")

    def _append(self, frame: DataFrame, transaction: str) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        rows = Observation()
        counted = frame.observe(rows, f.count(f.lit(1)).alias("rows"))
        writer = counted.write.format("headwater").option("topic", self._topic).option("transaction", transaction)
        writer.mode("append").save(self._address)
        return int(rows.get["rows"])


class ToBinder:
    """A document a row, by its column `_id`."""

    mode: Literal["append", "update"] = "update"

    def __init__(self, address: str, pipeline: Pipeline, indexes: Sequence[str]) -> None:
        self._address = address
        self._pipeline = pipeline.name
        self._binder = pipeline.target.place
        self._indexes = indexes

    def check(self) -> None:
        with self._open() as hw:
            filling.check_free(hw, self._binder, self._pipeline)

    def write(self, frame: DataFrame, run: str) -> int | None:
        with self._open() as hw:
            return filling.replace(hw, self._binder, Batch(self._pipeline, run), encoded(frame), self._indexes)

    def put(self, frame: DataFrame, run: str, batch: int) -> int | None:
        with self._open() as hw:
            return filling.put(hw, self._binder, Batch(self._pipeline, run, batch), encoded(frame), self._indexes)

    def _open(self) -> Local:
        hw = open_place(self._address)
        if not isinstance(hw, Local):
            hw.close()
            raise Unsupported(
                "binders are in directories", hint="run it where the directory is", code="needs_directory"
            )
        return hw


class ToParquet:
    """A directory of Parquet files."""

    mode: Literal["append", "update"] = "append"

    def __init__(self, pipeline: Pipeline, notes: Path) -> None:
        self._folder = Folder(Path(pipeline.target.place), notes)
        self._columns = pipeline.partition_by

    def check(self) -> None:
        self._folder.check()
        self._folder.path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, frame: DataFrame, run: str) -> int | None:  # noqa: ARG002  # the same again is the same
        return self._folder.replace(lambda path: self._save(frame, path))

    def put(self, frame: DataFrame, run: str, batch: int) -> int | None:
        return self._folder.put(run, batch, lambda path: self._save(frame, path))

    def _save(self, frame: DataFrame, path: Path) -> None:
        missing = {*self._columns} - {*frame.columns}
        if missing:
            raise Invalid(f"partition_by names {min(missing)!r}, and the columns are {', '.join(frame.columns)}")
        frame.write.partitionBy(*self._columns).parquet(path.as_uri())
