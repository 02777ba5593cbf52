"""Reading a topic: where to begin and end, one partition or all, forwards or backwards, whole or cut into splits."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID

from headwater.errors import HeadwaterError, Invalid, NotFound, out_of_memory
from headwater.event import Event, ticks_and_node, ticks_of, time_of
from headwater.format.batch import Batch
from headwater.format.events import EventBatch, data_in_memory
from headwater.info import Split
from headwater.limits import SPLITS_MAX
from headwater.log.log import Log, cut
from headwater.match.matcher import Selection
from headwater.position import Position, not_a_position
from headwater.requests import Read


def _first_ticks(batch: EventBatch) -> int:
    return int(batch.ticks()[0])


def _last_ticks(batch: EventBatch) -> int:
    return int(batch.ticks()[-1])


_by_ticks = attrgetter("ticks")


def resolve(log: Log, at: Position, logs: int) -> int:
    """Return the offset of a place in one log of a topic that has `logs` of them."""
    if isinstance(at, bool):
        raise not_a_position(at)
    if isinstance(at, int):
        if logs > 1:
            raise Invalid(
                f"topic {log.place.topic!r} has {logs} partitions, and an offset applies to only one of them",
                hint="give partition=, or start at a time",
                code="partition_needed",
            )
        if at < 0:
            raise Invalid(f"offset {at} is negative", hint="use reverse=True to read from the end")
        return at
    if isinstance(at, datetime):
        return log.offset_at(ticks_of(at))
    if isinstance(at, UUID):
        return log.offset_at(ticks_and_node(at)[0])
    if at == "earliest":
        return log.start()
    if at == "latest":
        return log.end()
    raise not_a_position(at)


def begin(logs: Sequence[Log], at: Position | Sequence[int]) -> list[int]:
    """Return the offset in each log of a place in a topic, or of several offsets, one for each."""
    if isinstance(at, Sequence) and not isinstance(at, str):
        if len(at) != len(logs) or min(at) < 0:
            raise Invalid(f"{len(at)} offsets were given for {len(logs)} partitions", code="bad_offsets")
        return list(at)
    check_id(logs, at)
    return [resolve(log, at, len(logs)) for log in logs]


def check_id(logs: Sequence[Log], at: object) -> None:
    """Raise NotFound for an id that no event of these logs can have."""
    if isinstance(at, UUID) and ticks_and_node(at)[1] not in {log.node for log in logs}:
        topic = logs[0].place.topic
        raise NotFound(
            f"{at} is not the id of an event of topic {topic!r}",
            hint="does it belong to another topic?",
            code="id_not_found",
        )


def read_batches(logs: Sequence[Log], request: Read, selection: Selection) -> Iterator[EventBatch]:
    """Return the batches that hold the events, partition after partition."""
    return chain.from_iterable(_each(logs, request, selection))


def read_events(logs: Sequence[Log], request: Read, selection: Selection) -> Iterator[Event]:
    """Return the events, in the order of their times over all partitions."""
    each = [_events(batches, request.reverse) for batches in _each(logs, request, selection)]
    return each[0] if len(each) == 1 else heapq.merge(*each, key=_by_ticks, reverse=request.reverse)


class TopicRead(NamedTuple):
    """A read of a topic that has not begun: of which topic, and from where to where it goes in each of its logs.

    `lost` are the events on its way that are lost: partition, first offset and end of each range.
    """

    uuid: str
    starts: list[int]
    ends: list[int]
    lost: list[tuple[int, int, int]]
    batches: Iterator[EventBatch]


def span(
    uuid: str,
    logs: Sequence[Log],
    start: Position | Sequence[int],
    end: Position | Sequence[int],
    selection: Selection,
    *,
    reverse: bool,
    by_time: bool,
) -> TopicRead:
    """Return what `read_batches` reads, with its bounds.

    `by_time`: in the order of their first events over all partitions.
    """
    starts, ends = begin(logs, start), _ends(logs, end)
    each = [_read_log(log, lo, hi, selection, reverse) for log, lo, hi in zip(logs, starts, ends, strict=True)]
    if by_time and len(each) > 1:
        batches: Iterator[EventBatch] = heapq.merge(
            *each, key=_last_ticks if reverse else _first_ticks, reverse=reverse
        )
    else:
        batches = chain.from_iterable(each)
    return TopicRead(uuid, starts, ends, lost_between(logs, starts, ends), batches)


def lost_between(logs: Sequence[Log], starts: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the lost events of some logs: partition, first offset and end of each range.

    Those behind damage may be left out: reading what is damaged or gone raises the error.
    """
    found = []
    for log, start, end in zip(logs, starts, ends, strict=True):
        with suppress(HeadwaterError):
            found += [(log.partition, *each) for each in log.lost(start, end)]
    return found


def pick(log: Log, batch: Batch, lo: int, hi: int, selection: Selection) -> EventBatch | None:
    """Return the wanted events of a stored batch between two offsets; None if there are none."""
    first, last = max(0, lo - batch.base_offset), min(batch.count, hi - batch.base_offset)
    if first >= last:
        return None
    rows = selection.rows(batch, first, last, partial(data_in_memory, log))
    if rows is not None and not len(rows):
        return None
    return EventBatch(log, batch, first, last, rows)


def _each(logs: Sequence[Log], request: Read, selection: Selection) -> list[Iterator[EventBatch]]:
    bounds = zip(logs, begin(logs, request.start), _ends(logs, request.end), strict=True)
    return [_read_log(log, lo, hi, selection, request.reverse) for log, lo, hi in bounds]


def _ends(logs: Sequence[Log], end: Position | Sequence[int]) -> list[int]:
    ends = [log.end() for log in logs]
    return ends if end == "latest" else list(map(min, begin(logs, end), ends))


def _read_log(log: Log, lo: int, hi: int, selection: Selection, reverse: bool) -> Iterator[EventBatch]:
    try:
        for batch in log.batches(lo, hi, backwards=reverse, types=selection.types, key=selection.key):
            picked = pick(log, batch, lo, hi, selection)
            lo, hi = (lo, batch.base_offset) if reverse else (batch.end_offset, hi)  # what comes next may overlap
            if picked is not None:
                yield picked
    except MemoryError as error:
        raise out_of_memory(f"{log.place} cannot be read") from error


def _events(batches: Iterator[EventBatch], reverse: bool) -> Iterator[Event]:
    try:
        for batch in batches:
            yield from batch.reversed() if reverse else batch.events()
    except MemoryError as error:
        raise out_of_memory("a batch of events cannot be read") from error


def time_at(log: Log, start: int, end: int) -> str | None:
    """Return when the first event of a range was appended; None if there is none, or it is damaged or gone."""
    with contextlib.suppress(HeadwaterError):  # damage is for `check` to tell; retention may have come in between
        for batch in log.batches(start, end):
            return time_of(batch.base_ticks).isoformat()
    return None


SMALL = 4  # what is smaller than this share of a split is not looked into: splits are then of up to so much more


def splits(
    logs: Sequence[Log], start: Position | Sequence[int], end: Position | Sequence[int], split_bytes: int
) -> list[Split]:
    """Return the splits from `start` to before `end`, up to what is durable now, partition after partition."""
    if split_bytes < 1:
        raise Invalid(f"split_bytes is {split_bytes}, but must be positive", hint="64 MiB is a good size")
    secured = [log.state().secured_offset for log in logs]
    while True:
        starts, ends = begin(logs, start), secured
        if end != "latest":
            ends = [min(pair) for pair in zip(begin(logs, end), secured, strict=True)]
        try:
            bounds = zip(logs, starts, ends, strict=True)
            return [split for log, lo, hi in bounds for split in _of_log(log, lo, hi, split_bytes)]
        except NotFound as error:
            if error.code != "offset_gone" or (isinstance(start, (int, Sequence)) and start != "earliest"):
                raise  # else retention came in between: search what is left


def _of_log(log: Log, start: int, end: int, split_bytes: int) -> list[Split]:
    if start >= end:
        return []
    extents = log.extents(start, end, split_bytes // SMALL)
    parts = cut(extents, split_bytes, SPLITS_MAX)
    starts, sizes = parts.starts.tolist(), parts.sizes.tolist()
    return [
        Split(log.topic, log.partition, lo, hi, size)
        for lo, hi, size in zip(starts, [*starts[1:], end], sizes, strict=True)
    ]
