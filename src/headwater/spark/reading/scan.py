"""Reads the batches of the splits that were planned for a task. Needs no Spark.

A split is a range of offsets of one partition, whose ends are pinned when the job is planned. Batches are put together
to `ROWS_MAX` rows, because crossing to the JVM costs as much for a small one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from headwater.errors import Conflict, NotFound
from headwater.format.events import with_data
from headwater.format.names import log_uuid, node_of
from headwater.info import Split
from headwater.limits import COLUMN_DATA_BYTES_MAX
from headwater.spark.session import ROWS_MAX

if TYPE_CHECKING:
    from headwater.format.events import EventBatch
    from headwater.store import Store

BATCH_BYTES_MAX = 16 * 1024 * 1024  # of one Arrow batch: a few huge events are not kept together


class EventFilter(msgspec.Struct, frozen=True):
    """Which events of a split are read; everything by default."""

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
    """The wanted batches of several splits, one after the other, gathered; those of huge events with their `data`.

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
    """Batches together, up to what is worth a crossing."""
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
