"""Where the rows of a pipeline go, each way with its own kind of once: as a whole, or batch by batch of a stream.

A rerun of a batch after a crash is recognized by the name of the run and its number, and changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headwater.address import is_server
from headwater.errors import Invalid, Unsupported
from headwater.spark.pipelines.folders import PipelineFolder
from headwater.spark.session import open_place
from headwater.spark.writing import publishing
from headwater.spark.writing.spreading import TopicTargets
from headwater.spark.writing.staging import StagedWrite, StagingArea
from headwater.store import Store
from headwater.views import pipeline_binder
from headwater.views.encoding import document_id, encode
from headwater.views.pipeline import Pipeline
from headwater.views.pipeline_binder import PipelineBatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import DataType
ID = "_id"
_PLAIN = ("string", "boolean", "byte", "short", "integer", "long", "float", "double", "binary", "timestamp", "void")


class StreamWrites:
    """What the batches of a stream have written so far, and what one of them raised, as it was raised."""

    def __init__(self) -> None:
        self.rows = 0
        self.raised: Exception | None = None


class PipelineWriter(Protocol):
    """The interface of a target."""

    def check(self) -> None:
        """Raise what can be told before anything is computed."""

    def write(self, frame: DataFrame, run: str) -> int | None:
        """Write all rows, durably; return how many, None if a run of this name has written them before."""

    def stream(self, frame: DataFrame, run: str, batches: StreamWrites) -> DataStreamWriter:
        """Return the writer of a stream, which makes each batch durable."""

    def settle(self, run: str) -> None:
        """Finish the incomplete output of an abandoned run."""


def target_of(address: str, pipeline: Pipeline, indexes: Sequence[str], directory: Path) -> PipelineWriter:
    """Return where a pipeline writes to. The directory is its own, for what the place itself cannot keep."""
    if pipeline.target.kind == "topic":
        return ToTopic(address, pipeline, directory)
    if pipeline.target.kind == "binder":
        return ToBinder(address, pipeline, indexes)
    return ToParquet(pipeline, directory / "written.json")


class ToTopic:
    """An event a row. A batch is a transaction of the sink; of a stream, the sink knows the batches by itself."""

    def __init__(self, address: str, pipeline: Pipeline, directory: Path) -> None:
        self._address = address
        self._pipeline = pipeline.name
        self._options = {"topic": pipeline.target.place}
        if pipeline.content is not None:
            self._options["content"] = pipeline.content
        self._staging: str | None = None
        if is_server(address):  # which keeps no files for others
            self._staging = self._options["staging"] = str(directory / "staging")

    def check(self) -> None:
        """Create the topic, so that it exists even without rows."""
        with open_place(self._address) as hw:
            _ = TopicTargets(hw, None)[self._options["topic"]]

    def write(self, frame: DataFrame, run: str) -> int | None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        rows = Observation()
        counted = frame.observe(rows, f.count(f.lit(1)).alias("rows"))
        writer = (
            counted.write.format("headwater").options(**self._options).option("transaction", self._transaction(run))
        )
        writer.mode("append").save(self._address)
        return int(rows.get["rows"])

    def stream(self, frame: DataFrame, run: str, batches: StreamWrites) -> DataStreamWriter:  # noqa: ARG002  # a checkpoint is of one
        writer = frame.writeStream.outputMode("append").format("headwater")
        return writer.options(**self._options).option("path", self._address)

    def settle(self, run: str) -> None:
        write = StagedWrite.of_transaction(self._transaction(run))
        with contextlib.closing(StagingArea.at(self._staging or self._address)) as staging:
            if staging.manifest(write) is not None:
                with open_place(self._address) as hw:
                    publishing.publish(hw, staging, write, [])

    def _transaction(self, run: str) -> str:
        return f"pipeline-{self._pipeline}-{run}"


def _each_batch(
    frame: DataFrame, mode: str, write: Callable[[DataFrame, int], int | None], batches: StreamWrites
) -> DataStreamWriter:
    def one(rows: DataFrame, number: int) -> None:
        try:
            written = write(rows, number)
            if written is None:  # what Spark keeps of the batch, as sums that go on, it has not computed yet
                rows.write.format("noop").mode("overwrite").save()
            batches.rows += written or 0
        except Exception as error:
            batches.raised = error  # Spark tells of it as text, among much else
            raise

    return frame.writeStream.outputMode(mode).foreachBatch(one)


class ToBinder:
    """A document a row, by its column `_id`."""

    def __init__(self, address: str, pipeline: Pipeline, indexes: Sequence[str]) -> None:
        self._address = address
        self._pipeline = pipeline.name
        self._binder = pipeline.target.place
        self._indexes = indexes

    def check(self) -> None:
        with self._open() as hw:
            pipeline_binder.check_free(hw, self._binder, self._pipeline)

    def write(self, frame: DataFrame, run: str) -> int | None:
        with self._open() as hw:
            return pipeline_binder.replace(
                hw, self._binder, PipelineBatch(self._pipeline, run), encoded(frame), self._indexes
            )

    def stream(self, frame: DataFrame, run: str, batches: StreamWrites) -> DataStreamWriter:
        def write(rows: DataFrame, number: int) -> int | None:
            with self._open() as hw:
                return pipeline_binder.put(
                    hw, self._binder, PipelineBatch(self._pipeline, run, number), encoded(rows), self._indexes
                )

        return _each_batch(frame, "update", write, batches)

    def settle(self, run: str) -> None:
        pass  # documents change all at once

    def _open(self) -> Store:
        hw = open_place(self._address)
        try:
            hw.directory  # noqa: B018  # raises Unsupported for any other store
        except Unsupported:
            hw.close()
            raise
        return hw


class ToParquet:
    """A directory of Parquet files."""

    def __init__(self, pipeline: Pipeline, notes: Path) -> None:
        self._folder = PipelineFolder(Path(pipeline.target.place), notes)
        self._columns = pipeline.partition_by

    def check(self) -> None:
        self._folder.check()
        self._folder.path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, frame: DataFrame, run: str) -> int | None:  # noqa: ARG002  # the same again is the same
        return self._folder.replace(lambda path: self._save(frame, path))

    def stream(self, frame: DataFrame, run: str, batches: StreamWrites) -> DataStreamWriter:
        def write(rows: DataFrame, number: int) -> int | None:
            return self._folder.put(run, number, lambda path: self._save(rows, path))

        return _each_batch(frame, "append", write, batches)

    def settle(self, run: str) -> None:
        pass  # what is not whole is not in the directory

    def _save(self, frame: DataFrame, path: Path) -> None:
        missing = {*self._columns} - {*frame.columns}
        if missing:
            raise Invalid(f"partition_by names {min(missing)!r}, but the columns are {', '.join(frame.columns)}")
        frame.write.partitionBy(*self._columns).parquet(path.as_uri())


def encoded(frame: DataFrame) -> Iterator[tuple[str, bytes]]:
    """Return the id and the BSON of each row, in no order. Raises Invalid for columns that documents cannot have.

    A date becomes text, because a document knows moments only.
    """
    from pyspark.sql import functions as f

    if ID not in frame.columns:
        there = ", ".join(frame.columns)
        raise Invalid(f"documents need a column {ID}; the columns are {there}", hint=f"as in .alias({ID!r})")
    columns = []
    for field in frame.schema:
        as_text = field.name == ID or field.dataType.typeName() == "date"
        column = f.col(f"`{field.name}`")
        columns.append(column.cast("string").alias(field.name) if as_text else column)
        if not as_text:
            _check(field.name, field.dataType)
    rows = frame.select(*columns).mapInArrow(_encode, "id string, data binary")
    return ((row.id, bytes(row.data)) for row in rows.toLocalIterator(prefetchPartitions=True))


def _check(name: str, type: DataType) -> None:
    """Raise Invalid for a type that a document has not, at any depth."""
    found: Any = type
    if found.typeName() == "array":
        _check(name, found.elementType)
    elif found.typeName() == "struct":
        for field in found:
            _check(f"{name}.{field.name}", field.dataType)
    elif found.typeName() not in _PLAIN:
        hint = "cast it, to bigint, double or string" if found.typeName() == "decimal" else "cast it to string"
        raise Invalid(f"a document cannot store column {name!r} of type {found.simpleString()}", hint=hint)


def _encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Encode rows as documents; runs in a task."""
    import pyarrow as pa

    for batch in batches:
        rows = batch.to_pylist()
        ids = [_checked(row.pop(ID)) for row in rows]
        yield pa.record_batch({"id": pa.array(ids, pa.string()), "data": pa.array(map(encode, rows), pa.binary())})


def _checked(id: Any) -> str:
    found = document_id(id)
    if found is None:
        raise Invalid(f"a row has no {ID}", hint=f"filter such rows: where {ID} is not null")
    return found
