"""What every job reads with: the splits of a topic, and the Arrow batches of one split. Needs no Spark.

A split is a range of offsets of one partition, whose ends are pinned when the job is planned. Batches are put together
to `ROWS_MAX` rows, because crossing to the JVM costs as much for a small one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headwater.format import events
from headwater.info import Split
from headwater.limits import SPLIT_BYTES
from headwater.spark.session import ROWS_MAX

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.api import Log
    from headwater.format.events import EventBatch

BATCH_BYTES_MAX = 16 * 1024 * 1024  # of one Arrow batch: a few huge events are not kept together


class Wanted(msgspec.Struct, frozen=True):
    """Which events of a split are read; everything by default."""

    type: str | None = None
    key: bytes | None = None
    match: Mapping[str, Any] | None = None


EVERYTHING = Wanted()


def plan(hw: Log, topic: str, *, split_bytes: int = SPLIT_BYTES) -> list[Split]:
    """The splits of all that a topic holds now and that is durable, in order; empty if that is nothing."""
    return hw.splits(topic, split_bytes=split_bytes)


def tables(hw: Log, split: Split, columns: Sequence[str], wanted: Wanted = EVERYTHING) -> Iterator[pa.Table]:
    """The wanted events of a split, in offset order, as Arrow tables of up to ROWS_MAX rows, in the log's own types."""
    for gathered in batches(hw, split, wanted):
        yield events.table(gathered, columns)


def batches(hw: Log, split: Split, wanted: Wanted = EVERYTHING) -> Iterator[list[EventBatch]]:
    """The wanted batches of a split, in offset order, gathered so that each list is worth a crossing."""
    gathered: list[EventBatch] = []
    rows = size = 0
    filters: dict[str, Any] = {"type": wanted.type, "key": wanted.key, "match": wanted.match}
    bounds = {"partition": split.partition, "start": split.start, "end": split.end}
    for batch in hw.read_batches(split.topic, **bounds, **filters):  # type: ignore[arg-type]  # they are as they say
        if gathered and (rows + len(batch) > ROWS_MAX or size + batch.size > BATCH_BYTES_MAX):
            yield gathered
            gathered, rows, size = [], 0, 0
        gathered.append(batch)
        rows += len(batch)
        size += batch.size
    if gathered:
        yield gathered
