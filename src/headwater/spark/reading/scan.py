"""The splits that a task of a batch or a stream reads, how it reads them, and the batches that it gives to Spark.

A split is a range of offsets of one partition, whose ends are pinned when the job is planned. Batches are put together
to `ROWS_MAX` rows, because crossing to the JVM costs as much for a small one. `RowShape` gives them the columns of a
schema, in its order and exact types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.errors import Conflict, Corrupt, Invalid, NotFound
from headwater.format import arrow, events
from headwater.format.events import with_data
from headwater.format.names import log_uuid, node_of
from headwater.info import Split
from headwater.limits import COLUMN_DATA_BYTES_MAX
from headwater.spark.session import ROWS_MAX, open_place

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.format.events import EventBatch
    from headwater.spark.reading.fields import FieldReader
    from headwater.spark.reading.options import Mode, SourceOptions
    from headwater.store import Store


BATCH_BYTES_MAX = 16 * 1024 * 1024  # of one Arrow batch: a few huge events are not kept together
TASK_BYTES_MIN = 4 * 1024 * 1024  # smaller splits are read by one task together: starting one costs more than they do


class EventFilter(msgspec.Struct, frozen=True):
    """A filter of the events of a split; everything by default."""

    type: str | None = None
    key: bytes | None = None
    match: Mapping[str, Any] | None = None


EVERYTHING = EventFilter()


class PlannedSplit(msgspec.Struct, frozen=True):
    """A split, and the node that the ids of its events share: that of another topic with the same name differs."""

    split: Split
    node: int


def nodes(uuid: str, partitions: int) -> list[int]:
    """Return the node of each partition of a topic."""
    return [node_of(log_uuid(UUID(uuid), number)) for number in range(partitions)]


def pieces(
    hw: Store,
    pieces: Iterable[PlannedSplit],
    wanted: EventFilter = EVERYTHING,
    *,
    fail_on_data_loss: bool = True,
    data: bool = True,
) -> Iterator[list[EventBatch]]:
    """Yield the wanted batches of several splits in order, gathered; those of huge events with their `data`.

    Raises NotFound with the code `offset_gone` where retention has come in between, unless losses are allowed, and
    Conflict with the code `topic_remade` if a topic was deleted and made again.
    """
    bytes_max = COLUMN_DATA_BYTES_MAX if data else -1
    return _gathered(batch for piece in pieces for batch in _checked(hw, piece, wanted, fail_on_data_loss, bytes_max))


def remade(topic: str) -> Conflict:
    """Return the error for a topic that is another one than before."""
    return Conflict(
        f"topic {topic!r} was deleted and recreated: its events are different",
        hint="start again; a stream needs a new checkpoint",
        code="topic_remade",
    )


def _checked(
    hw: Store, piece: PlannedSplit, wanted: EventFilter, fail_on_data_loss: bool, bytes_max: int
) -> Iterator[EventBatch]:
    """Yield the wanted batches of a split that was planned before, perhaps long ago and by another process.

    Huge events have their data, if that is not above `bytes_max`.
    """
    split, seen = piece.split, False
    while split.start < split.end:
        try:
            for batch in _stored(hw, split, wanted):
                if batch.log.node != piece.node:
                    raise remade(split.topic)
                seen = True
                whole = with_data(batch, bytes_max)
                split = msgspec.structs.replace(split, start=batch.end_offset)
                yield whole
            break
        except NotFound as error:
            oldest = error.facts.get("oldest", 0)
            if fail_on_data_loss or error.code != "offset_gone" or oldest <= split.start:
                raise
            split = msgspec.structs.replace(split, start=oldest)
    if not seen and nodes(hw.describe(split.topic).uuid, split.partition + 1)[-1] != piece.node:
        raise remade(split.topic)  # no event has told of which topic it is


def _stored(hw: Store, split: Split, wanted: EventFilter) -> Iterator[EventBatch]:
    return hw.read_batches(
        split.topic,
        partition=split.partition,
        start=split.start,
        end=split.end,
        type=wanted.type,
        key=wanted.key,
        match=wanted.match,
    )


def _gathered(batches: Iterable[EventBatch]) -> Iterator[list[EventBatch]]:
    """Yield batches together, up to the size of one Arrow batch."""
    gathered: list[EventBatch] = []
    rows = size = 0
    for batch in batches:
        if gathered and (rows + len(batch) > ROWS_MAX or size + batch.size > BATCH_BYTES_MAX):
            yield gathered
            gathered, rows, size = [], 0, 0
        gathered.append(batch)
        rows += len(batch)
        size += batch.size
    if gathered:
        yield gathered


class ReadTask(InputPartition):
    """The splits that one task reads."""

    def __init__(self, pieces: Sequence[PlannedSplit]) -> None:
        super().__init__(None)
        self.pieces = pieces


def read_tasks(pieces: Iterable[PlannedSplit]) -> list[InputPartition]:
    """Return a task for each split, or for several small ones that follow each other."""
    gathered: list[list[PlannedSplit]] = []
    size = 0
    for piece in pieces:
        if not gathered or size + piece.split.bytes > TASK_BYTES_MIN:
            gathered.append([])
            size = 0
        gathered[-1].append(piece)
        size += piece.split.bytes
    return [ReadTask(each) for each in gathered]


def read_task(
    read: SourceOptions, wanted: EventFilter, shape: RowShape, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of a task; none for the empty task that Spark makes if there is nothing to read."""
    if not isinstance(partition, ReadTask):
        return
    with open_place(read.address) as hw:
        loss, data = read.fail_on_data_loss, shape.has_data
        for gathered in pieces(hw, partition.pieces, wanted, fail_on_data_loss=loss, data=data):
            yield from shape.batches(gathered)


SCHEMA = (
    "topic string, partition int, offset bigint, time timestamp, id string, type string, key binary, data binary,"
    " meta string"
)


class RowShape:
    """The rows of a schema. Can be pickled; what reads fields is made where they are read.

    Raises Invalid for a schema without columns, and for a type that a column cannot have.
    """

    def __init__(self, schema: StructType, mode: Mode = "permissive") -> None:
        if not schema.fields:
            raise Invalid("the schema has no columns")
        self._mode = mode
        self._schema = schema
        self._others = StructType([field for field in schema.fields if field.name not in arrow.COLUMNS])
        self.names = [field.name for field in schema.fields if field.name in arrow.COLUMNS]  # of the log's columns
        for name in self.names:
            _check_type(name, self._arrow.field(name).type)
        self._check_fields()

    @property
    def has_data(self) -> bool:
        """Return whether it takes the data of events to make the rows."""
        return "data" in self.names or bool(self._others.fields)

    def batches(self, gathered: list[EventBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the events of some batches of the log, which are not many."""
        found: dict[str, Any] = {}
        if self._fields is not None:
            found |= zip(self._fields.names, self._fields.of(gathered), strict=True)
        if self.names:
            table = events.table(gathered, self.names)
            found |= {name: self._own(name, table.column(name)) for name in self.names}
        columns = [found[field.name] for field in self._arrow]
        table = pa.Table.from_arrays(columns, schema=self._arrow).combine_chunks()
        yield from table.to_batches()

    def _own(self, name: str, column: Any) -> Any:
        """Return a column of the log in the type that the schema has for it."""
        field = self._arrow.field(name)
        if column.null_count and not field.nullable:
            raise Invalid(f"{name} is null in some events", hint=f"omit NOT NULL in the schema: {name} may be null")
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type)
        except pa.ArrowInvalid as error:
            if self._mode == "failfast" or not pa.types.is_binary(column.type):
                raise Corrupt(f"{name} of some events is not {field.type}: {error}") from None
            return pa.chunked_array([[_text(value) for value in column.to_pylist()]], field.type)

    @cached_property
    def _arrow(self) -> pa.Schema:
        return to_arrow_schema(self._schema, timezone="UTC")

    @cached_property
    def _fields(self) -> FieldReader | None:
        if not self._others.fields:
            return None
        from headwater.spark.reading import fields  # which takes long to import, in every process

        return fields.reader(self._others, self._mode)

    def _check_fields(self) -> None:
        _ = self._fields

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_arrow", "_fields")}


def _check_type(name: str, wanted: Any) -> None:
    """Raise Invalid if what the log has cannot be made such values."""
    own: Any = arrow.schema([name]).field(name).type
    try:
        pa.nulls(0, own).cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        hint = f"the log's column is {own}; for a field of the data with that name use `data.{name}`"
        raise Invalid(f"the column {name} cannot be {wanted}", hint=hint) from None


def _text(value: bytes | None) -> str | None:
    """Return the text that bytes are, or None."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
