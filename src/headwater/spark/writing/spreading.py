"""From the columns of a DataFrame to encoded batches, each of one topic and partition. Needs no Spark.

A task gathers rows up to some MiB, sorts them by where they go, keeping their order, and cuts what goes to one
partition into batches. So its memory is bounded, whatever comes, and the driver has only to append them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import Invalid, NotFound
from headwater.event import CONTENTS, Content
from headwater.format import arrow, batch, given
from headwater.format.batch import DATA
from headwater.format.column import I64
from headwater.format.contents import check_column
from headwater.format.names import partitions_of_column
from headwater.limits import DEFAULTS, Limits
from headwater.spark.writing import jsons

if TYPE_CHECKING:
    from headwater.store import Store


GATHER_BYTES = 4 * 1024 * 1024  # a large batch of Spark is taken as it is: putting several together costs a copy
GATHER_BYTES_EACH = 512 * 1024  # for each partition, so that what goes to it is worth a request
GATHER_BYTES_MAX = 32 * 1024 * 1024
CHUNK_BYTES = 4 * 1024 * 1024  # of data in one batch: a commit of the log takes about that much at once
CHUNK_EVENTS = DEFAULTS.pack_events


class TopicTarget(msgspec.Struct, frozen=True):
    """A topic that events go to, as it was when they were encoded."""

    name: str
    uuid: str
    partitions: int
    data_bytes_max: int = 0  # 0: as usual


class EncodedBatch(NamedTuple):
    """A batch for one partition of a topic."""

    target: TopicTarget
    partition: int
    events: int
    stored: bytes


class TopicTargets:
    """The topics of a log, each made when it is first met and not there."""

    def __init__(self, hw: Store, partitions: int | None) -> None:
        """`partitions` is for topics that are made; those that are there may have another number."""
        self._hw = hw
        self._partitions = partitions
        self._known: dict[str, TopicTarget] = {}

    def __getitem__(self, topic: str) -> TopicTarget:
        found = self._known.get(topic)
        if found is None:
            found = self._known[topic] = self._target(topic)
        return found

    def _target(self, topic: str) -> TopicTarget:
        try:
            told = self._hw.describe(topic)
        except NotFound:
            try:
                self._hw.create(topic, partitions=self._partitions or 1)
            except Invalid as error:
                if error.code != "partitions_differ":  # else another task was first, and its own count serves
                    raise
            told = self._hw.describe(topic)
        return TopicTarget(told.name, told.uuid, len(told.partitions), int(told.settings.get("data_bytes_max") or 0))


def encode(
    rows: Iterable[pa.RecordBatch], layout: Layout, targets: TopicTargets, topic: str | None, turn: int
) -> Iterator[EncodedBatch]:
    """Yield the batches of a task's rows. Those without a topic go to `topic`; those without a key go in `turn`."""
    partitions = targets[topic].partitions if topic is not None else 1
    enough = min(max(GATHER_BYTES, partitions * GATHER_BYTES_EACH), GATHER_BYTES_MAX)
    for number, gathered in enumerate(_gathered(rows, enough)):
        events = layout.events(gathered)
        for name, some in _by_topic(events, topic):
            target = targets[name]
            for partition, part in _by_partition(some, target, turn + number):
                yield from _chunks(part, layout, target, partition)


def _gathered(rows: Iterable[pa.RecordBatch], enough: int) -> Iterator[list[pa.RecordBatch]]:
    gathered: list[pa.RecordBatch] = []
    size = 0
    for each in rows:
        if each.num_rows:
            gathered.append(each)
            size += each.nbytes
        if size >= enough:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def _by_topic(events: EventRows, topic: str | None) -> Iterator[tuple[str, EventRows]]:
    if events.topic is None:
        yield _named(topic), events
        return
    names = pc.fill_null(events.topic, topic) if topic is not None else events.topic
    encoded = names.combine_chunks().dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    if encoded.null_count:
        _named(None)
    if len(distinct) == 1:
        yield distinct[0], events
        return
    for name, rows in _runs(np.asarray(encoded.indices)):
        yield distinct[name], _taken(events, rows)


def _named(topic: str | None) -> str:
    if topic is None:
        raise Invalid(
            "some events have no topic", hint="fill the column 'topic', or give the option: .option('topic', …)"
        )
    return topic


def _by_partition(events: EventRows, target: TopicTarget, turn: int) -> Iterator[tuple[int, pa.Table]]:
    """Split events as append does: by the column `partition`, else by the hash of the key, else in turn."""
    where = _partitions(events, target, turn)
    if isinstance(where, int):
        yield where, events.table
        return
    for partition, rows in _runs(where):
        whole = len(rows) == events.table.num_rows
        yield partition, events.table if whole else events.table.take(rows)


def _partitions(events: EventRows, target: TopicTarget, turn: int) -> I64 | int:
    if events.partition is not None and not events.partition.null_count:
        return _asked(events.partition, target)
    keyed = "key" in events.table.schema.names and target.partitions > 1
    where: I64 | int = turn % target.partitions
    if keyed:
        where = _of_keys(events.table.column("key").combine_chunks(), target.partitions, turn)
    if events.partition is None or events.partition.null_count == len(events.partition):
        return where
    asked = _asked(pc.fill_null(events.partition, 0), target)
    return np.where(np.asarray(events.partition.is_valid()), asked, where)


def _of_keys(keys: Any, partitions: int, turn: int) -> I64 | int:
    column = arrow.column_of(keys)
    if column is None:  # no event has one
        return turn % partitions
    where = partitions_of_column(column, partitions)
    if keys.null_count:
        where[np.asarray(keys.is_null())] = turn % partitions
    return where


def _asked(column: Any, target: TopicTarget) -> I64:
    where: I64 = np.asarray(column.cast(pa.int64()))
    if len(where) and not 0 <= int(where.min()) <= int(where.max()) < target.partitions:
        wrong = int(where.max()) if int(where.min()) >= 0 else int(where.min())
        raise NotFound(
            f"topic {target.name!r} has no partition {wrong}",
            hint=f"it has {target.partitions} partitions, numbered from 0",
            code="partition_not_found",
        )
    return where


def _runs(numbers: Any) -> Iterator[tuple[int, Any]]:
    """Yield each number that there is, and at which rows, in their order."""
    small = numbers.astype(np.uint16) if len(numbers) and int(numbers.max()) < 1 << 16 else numbers  # sorted by digits
    order = np.argsort(small, kind="stable")
    ordered = small[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] + 1))
    yield from zip(ordered[starts].tolist(), np.split(order, starts[1:]), strict=True)


def _taken(events: EventRows, rows: Any) -> EventRows:
    partition = None if events.partition is None else events.partition.take(rows)
    return EventRows(events.table.take(rows), None, partition)


def _chunks(table: pa.Table, layout: Layout, target: TopicTarget, partition: int) -> Iterator[EncodedBatch]:
    limits = _limits(target)
    (whole,) = table.combine_chunks().to_batches()
    for start, stop in _cuts(whole.column("data")):
        part = whole.slice(start, stop - start)
        content, columns = arrow.columns_of(part, layout.content)
        given.check_columns(columns, limits)
        if not layout.fields:  # whose JSON was made here
            check_column(columns[DATA], content)
        yield EncodedBatch(target, partition, stop - start, batch.encode(0, 0, stop - start, content, columns))


def _cuts(data: Any) -> Sequence[tuple[int, int]]:
    """Return where rows are cut so that each part has about CHUNK_BYTES of data, and at most one row more."""
    column = arrow.column_of(data)
    if column is None or column.offsets is None:  # nothing but nulls, which are refused
        return [(0, len(data))]
    ends = column.offsets[1:]
    cuts = [0]
    while cuts[-1] < len(ends):
        stop = int(np.searchsorted(ends, int(column.offsets[cuts[-1]]) + CHUNK_BYTES)) + 1
        cuts.append(min(stop, cuts[-1] + CHUNK_EVENTS, len(ends)))
    return list(pairwise(cuts))


def _limits(target: TopicTarget) -> Limits:
    if not target.data_bytes_max:
        return DEFAULTS
    return msgspec.structs.replace(DEFAULTS, data_bytes_max=target.data_bytes_max)


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
