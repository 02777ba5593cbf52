"""Writing into topics: `df.write.format("headwater")` and `df.writeStream`, exactly once.

Tasks stage what they have (staging.py), already encoded (spreading.py); the driver publishes it when all are done
(publishing.py). An attempt that fails, is killed or loses a race leaves only an unreferenced file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.address import absolute, is_server, kind_of
from headwater.errors import Invalid, NotFound
from headwater.spark.session import open_place
from headwater.spark.writing import publishing, spreading
from headwater.spark.writing.publishing import PublishedBatch
from headwater.spark.writing.spreading import EncodedBatch, Layout, TopicTargets
from headwater.spark.writing.staging import StagedBatch, StagedWrite, StagingArea

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headwater.store import Store

OPTIONS = ("path", "topic", "content", "transaction", "partitions", "staging")
OF_SPARK = ("checkpointlocation", "queryname", "outputmode")  # what it hands to sinks of streams
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # properties of a task of a stream


class SinkSettings(msgspec.Struct, frozen=True):
    """Where and how a DataFrame is written, checked in the driver."""

    address: str
    topic: str | None
    layout: Layout
    partitions: int | None
    staging: str | None  # None: inside the log
    transaction: str | None = None

    def open(self) -> Store:
        """Return the log, made if it is not there."""
        try:
            return open_place(self.address)
        except NotFound as error:
            if error.code != "not_a_log":
                raise
            return open_place(self.address, mode="create")

    def staged(self, write: StagedWrite) -> StagingArea:
        """Return where a write is staged."""
        return StagingArea.at(self.staging or self.address, durable=write.repeatable)


def settings(options: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool) -> SinkSettings:
    """Return the settings that the options give; raises Invalid for invalid ones."""
    if overwrite:
        raise Invalid(
            "a topic cannot be overwritten",
            hint="use mode('append'); to start over, write to another topic, or delete this one first",
        )
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(given.keys() - {*OPTIONS, *(OF_SPARK if streaming else ())})
    if unknown:
        raise Invalid(f"unknown option {unknown[0]!r}", hint=f"known options: {', '.join(OPTIONS)}")
    if "path" not in given:
        raise Invalid("the address of the log is missing", hint='use save("data"), or option("path", …) for a stream')
    layout = Layout.of(to_arrow_schema(schema, timezone="UTC"), given.get("content"))
    topic, transaction = given.get("topic"), given.get("transaction")
    if topic is None and "topic" not in layout.names:
        raise Invalid("the topic is missing", hint='use option("topic", …), or a column "topic"')
    if transaction is not None and streaming:
        raise Invalid("a stream takes no transaction", hint="omit it: the checkpoint identifies the write")
    kind_of(given["path"])  # raises for an address that cannot be opened, before a task stages anything
    address = absolute(given["path"])
    repeatable = streaming or transaction is not None
    place = _staging(given, address, repeatable=repeatable)
    return SinkSettings(address, topic, layout, _partitions(given.get("partitions")), place, transaction)


def _partitions(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise Invalid(f"partitions {text!r} is not a number above 0", hint="use a number from 1")
    return int(text)


def _staging(given: Mapping[str, str], address: str, *, repeatable: bool) -> str | None:
    """Return where a write is staged that cannot be inside its log: a server keeps no files for others."""
    if "staging" in given:
        return absolute(given["staging"])
    if not is_server(address):
        return None
    if repeatable:
        raise Invalid(
            "exactly-once writes to a server need a staging location",
            hint='use option("staging", …): a directory or bucket that the driver and all tasks can reach',
        )
    return os.path.join(tempfile.gettempdir(), f"headwater-{os.getuid()}")


class StagedFiles(WriterCommitMessage):
    """The staged output of a task's attempt: one file, and the batches in it."""

    def __init__(self, write: StagedWrite, sent: list[PublishedBatch]) -> None:
        self.write = write
        self.sent = sent

    @property
    def files(self) -> set[str]:
        """Return the keys of its files."""
        return {each.chunk.file for each in self.sent}


def stage(chosen: SinkSettings, write: StagedWrite, rows: Iterable[pa.RecordBatch], turn: int) -> StagedFiles:
    """Encode and stage the rows of one attempt. Memory is bounded; if it raises, nothing is left."""
    with chosen.open() as hw:
        batches = spreading.encode(rows, chosen.layout, TopicTargets(hw, chosen.partitions), chosen.topic, turn)
        first = next(batches, None)
        if first is None:
            return StagedFiles(write, [])
        staging = chosen.staged(write)
        file, sent = staging.new_file(write), list[PublishedBatch]()
        try:
            staging.put(file, _pieces(chain((first,), batches), file, sent))
        finally:
            staging.close()
    return StagedFiles(write, sent)


def _pieces(batches: Iterable[EncodedBatch], file: str, sent: list[PublishedBatch]) -> Iterator[bytes]:
    """Yield the bytes of a file; what is where in it is noted."""
    position = 0
    for each in batches:
        sent.append(
            PublishedBatch(each.target, each.partition, StagedBatch(file, position, len(each.stored), each.events))
        )
        yield each.stored
        position += len(each.stored)


class BatchWriter(DataSourceArrowWriter):
    """A batch write. Made in the driver, copied to the tasks."""

    def __init__(self, chosen: SinkSettings) -> None:
        """Create the topic, so that it exists even without rows."""
        self._chosen = chosen
        transaction = chosen.transaction
        self._write = StagedWrite.once() if transaction is None else StagedWrite.of_transaction(transaction)
        if chosen.topic is not None:
            with chosen.open() as hw:
                _ = TopicTargets(hw, chosen.partitions)[chosen.topic]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedFiles:  # type: ignore[override]  # as writers of Arrow are
        """Stage the rows of a task; runs in the task."""
        return stage(self._chosen, self._write, iterator, _task().partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish when all tasks are done; runs in the driver."""
        _publish(self._chosen, self._write, messages, self._chosen.transaction or "")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete staged files after a task or publishing has failed for good; runs in the driver."""
        _abandon(self._chosen, self._write, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writes of a streaming query. Created for each batch."""

    def __init__(self, chosen: SinkSettings) -> None:
        self._chosen = chosen

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedFiles:  # type: ignore[override]  # as writers of Arrow are
        """Stage the rows of a task, under the query and the batch that Spark runs it for."""
        task = _task()
        query, batch = task.getLocalProperty(QUERY), task.getLocalProperty(BATCH)
        if query is None or batch is None:
            raise Invalid("a task of a stream has no query id", hint="use Spark 4.2 or later")
        return stage(self._chosen, StagedWrite.of_query(query, int(batch)), iterator, task.partitionId() + int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Publish a batch; runs in the driver."""
        for write in _writes(messages, batchId):
            _publish(self._chosen, write, messages, "")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Delete the staged files of a failed batch; runs in the driver."""
        for write in _writes(messages, batchId):
            _abandon(self._chosen, write, messages)


def _writes(messages: list[WriterCommitMessage | None], batch: int) -> set[StagedWrite]:
    """Return the one write that all tasks were of; none if there was no task."""
    found = {message.write for message in messages if isinstance(message, StagedFiles)}
    if len(found) > 1 or any(write.batch != batch for write in found):
        raise Invalid(f"batch {batch} has tasks of {sorted(write.key for write in found)}")
    return found


def _publish(chosen: SinkSettings, write: StagedWrite, messages: list[WriterCommitMessage | None], title: str) -> None:
    sent = [each for message in messages if isinstance(message, StagedFiles) for each in message.sent]
    staging = chosen.staged(write)
    try:
        with chosen.open() as hw:
            publishing.publish(hw, staging, write, sent, title)
    finally:
        staging.close()


def _abandon(chosen: SinkSettings, write: StagedWrite, messages: list[WriterCommitMessage | None]) -> None:
    files = {file for message in messages if isinstance(message, StagedFiles) for file in message.files}
    staging = chosen.staged(write)
    try:
        publishing.abandon(staging, write, files)
    finally:
        staging.close()


def _task() -> Any:
    task = TaskContext.get()
    assert task is not None  # Spark calls writers in tasks
    return task
