"""From batches of the log to those that Spark takes: the columns of a schema, in its order and in its exact types.

A column is one of the log's, or else a field of JSON or BSON data (`fields`). Needs no JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.errors import Corrupt, Invalid
from headwater.format import arrow, events

if TYPE_CHECKING:
    from headwater.format.events import EventBatch
    from headwater.spark.reading.fields import FieldReader
    from headwater.spark.reading.options import Mode

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
