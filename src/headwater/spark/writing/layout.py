"""Maps the columns of a DataFrame to the fields of events: `data`, `key`, `type`, `meta`.

Needs no Spark. A layout is made in the driver, where it refuses what cannot be written before a task begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import Invalid
from headwater.event import CONTENTS, Content
from headwater.spark.writing import jsons

EVENT = ("data", "key", "type", "meta")
WHERE = ("topic", "partition")
READ_ONLY = ("offset", "time", "id", "content", "ticks", "data_bytes")  # what reading tells, and appending decides


class EventRows(msgspec.Struct, frozen=True):
    """Rows as events, and where each of them says that it goes."""

    table: pa.Table  # with the columns of EVENT that there are
    topic: Any = None  # a column, or None
    partition: Any = None


class Layout(msgspec.Struct, frozen=True):
    """Which columns there are. `fields` become JSON objects where there is no `data`."""

    names: tuple[str, ...]
    fields: tuple[str, ...]
    content: Content | None

    @classmethod
    def of(cls, schema: pa.Schema, content: str | None) -> Layout:
        """Return the layout of a DataFrame; raises Invalid for one that cannot be written."""
        if content is not None and content not in CONTENTS:
            raise Invalid(f"unknown content {content!r}", hint=f"use one of {', '.join(CONTENTS)}")
        others = tuple(name for name in schema.names if name not in EVENT + WHERE)
        if len(set(schema.names)) < len(schema.names):
            raise Invalid("two columns have the same name", hint="rename one of them")
        if "data" in schema.names:
            _refuse_others(others)
        else:
            content = _content_of_fields(content, others)
            for name in others:
                jsons.check(name, schema.field(name).type)
        names = tuple(name for name in EVENT + WHERE if name in schema.names)
        for name in names:
            _check_type(name, schema.field(name).type)
        return cls(names, () if "data" in schema.names else others, content)

    def events(self, batches: Sequence[pa.RecordBatch]) -> EventRows:
        """Return rows of a DataFrame as events, in their order."""
        table = pa.Table.from_batches([self._events(batch) for batch in batches]).combine_chunks()
        found = {name: table.column(name) for name in WHERE if name in self.names}
        return EventRows(table.select([name for name in EVENT if name in table.schema.names]), **found)

    def _events(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = {name: batch.column(name) for name in self.names}
        if "data" not in columns:
            columns["data"] = jsons.objects(self.fields, [batch.column(name) for name in self.fields])
        meta = columns.get("meta")
        if meta is not None and pa.types.is_map(meta.type):
            columns["meta"] = jsons.column("meta", meta)
        return pa.RecordBatch.from_pydict(columns)


def _refuse_others(others: Sequence[str]) -> None:
    if not others:
        return
    told = [name for name in others if name in READ_ONLY]
    hint = f"drop({', '.join(map(repr, told or others[:1]))}) first"
    raise Invalid(
        f"with a column 'data', a topic cannot take column {others[0]!r}",
        hint=f"{hint}; or drop 'data', and all columns become fields of JSON data",
    )


def _content_of_fields(content: str | None, fields: Sequence[str]) -> Content:
    if not fields:
        raise Invalid("there is no column 'data', and no other column to write as JSON", hint="name one column 'data'")
    if content not in (None, "json"):
        raise Invalid(f"fields are written as JSON, not {content!r}", hint="add a column 'data'")
    return "json"


def _check_type(name: str, type: pa.DataType) -> None:
    kinds = pa.types
    text = kinds.is_string(type) or kinds.is_large_string(type)
    binary = kinds.is_binary(type) or kinds.is_large_binary(type)
    wanted, sound = {
        "data": ("bytes or text", text or binary),
        "key": ("bytes or text", text or binary),
        "type": ("text", text),
        "meta": ("a JSON text, or a map of texts", text or _is_flat(type)),
        "topic": ("text", text),
        "partition": ("a whole number", kinds.is_integer(type)),
    }[name]
    if not sound:
        raise Invalid(
            f"the column {name!r} has type {type}, but must be {wanted}", hint=f"cast it: col({name!r}).cast(…)"
        )


def _is_flat(type: pa.DataType) -> bool:
    return pa.types.is_map(type) and pa.types.is_string(type.key_type) and pa.types.is_string(type.item_type)
