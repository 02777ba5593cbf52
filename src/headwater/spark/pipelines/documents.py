"""Documents of the rows of a frame: encoded where the rows are, and handed over a partition at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headwater.errors import Invalid
from headwater.views.codec import document_id, encode

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

ID = "_id"
_PLAIN = ("string", "boolean", "byte", "short", "integer", "long", "float", "double", "binary", "timestamp", "void")


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
    """In a task: from rows to documents."""
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
