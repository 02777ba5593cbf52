"""Read your writes: the events that a read must come after, and the progress of the projections."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from headwater.errors import Invalid, NotFound, Unavailable
from headwater.event import Event, Ref, Refs
from headwater.protocols import AtLeast
from headwater.store import Store
from headwater.views import registry

Wanted = dict[tuple[str | None, int], int]
"""The last offset of each topic and partition that must be passed; the topic is None if only an offset was given."""

HINT = "give the reference that append returned, as in at_least=ref"


class ViewLag(msgspec.Struct, frozen=True):
    """Describes the progress that a read waits for. `never`: it needs another projection."""

    told: str
    never: bool = False


def wanted(at_least: AtLeast) -> Wanted:
    """Return the offsets to wait for; raises Invalid for a value that names none."""
    if isinstance(at_least, int) and not isinstance(at_least, bool):
        if at_least < 0:
            raise Invalid(f"at_least must be an offset from 0, not {at_least}", hint=HINT)
        return {(None, 0): at_least}
    found: Wanted = {}
    for topic, partition, offset in _places(at_least):
        found[topic, partition] = max(offset, found.get((topic, partition), -1))
    return found


def behind(hw: Store, connection: sqlite3.Connection, name: str, wanted: Wanted) -> ViewLag | None:
    """Return what a binder still lacks, inside of a transaction; None if it is far enough.

    Raises Unavailable with the code `projection_stopped`, and Invalid if an offset alone says too little.
    """
    rows = registry.rows(connection)
    for (given, partition), offset in wanted.items():
        if not rows:
            return ViewLag(f"no projection fills binder {name!r} yet")
        topic = _only_topic(hw, rows, name) if given is None else given
        ours = [row for row in rows if row.topic == topic]
        if not ours:
            topics = ", ".join(repr(each) for each in sorted({row.topic for row in rows}))
            return ViewLag(f"binder {name!r} is filled from {topics}, not from {topic!r}", never=True)
        uuid = _uuid(hw, topic)
        for row in ours:
            if row.topic_uuid != uuid:
                return ViewLag(f"binder {name!r} is still built from an older topic {topic!r}, which was deleted")
            next = registry.cursors(connection, row.name).get(partition, 0)
            if next > offset:
                continue
            if row.state == "stopped":
                raise registry.stopped(row)
            place = f"topic {topic!r}, partition {partition}"
            return ViewLag(f"projection {row.name!r} is at offset {next} of {place}, not yet past {offset}")
    return None


def late(behind: ViewLag, timeout: float) -> Invalid | Unavailable:
    """Return the error for a wait that timed out."""
    if behind.never:
        return Invalid(behind.told, hint="wait for an event of one of its topics")
    return Unavailable(
        f"after {timeout:g} s, {behind.told}",
        hint="check that the application runs: headwater views status shows its progress",
        code="view_behind",
    )


def _places(at_least: Any) -> Iterator[tuple[str, int, int]]:
    if isinstance(at_least, Ref | Event):
        yield at_least.topic, at_least.partition, at_least.offset
    elif isinstance(at_least, Refs):
        for run in at_least.runs:
            if run.count:
                yield at_least.topic, run.partition, run.offset + run.count - 1
    elif isinstance(at_least, Sequence) and not isinstance(at_least, str | bytes):
        for each in at_least:
            if not isinstance(each, Ref | Event | Refs):
                raise Invalid(f"at_least takes references of events, not {type(each).__name__}", hint=HINT)
            yield from _places(each)
    else:
        raise Invalid(f"at_least takes references of events, not {type(at_least).__name__}", hint=HINT)


def _only_topic(hw: Store, rows: Sequence[registry.Row], name: str) -> str:
    """Return the topic that an offset alone is of."""
    topics = {row.topic for row in rows}
    if len(topics) > 1:
        raise Invalid(f"binder {name!r} is filled from {len(topics)} topics: an offset alone is ambiguous", hint=HINT)
    (topic,) = topics
    try:
        partitions = hw.directory.topic(topic).partitions
    except NotFound:
        return topic
    if partitions > 1:
        raise Invalid(f"topic {topic!r} has {partitions} partitions: an offset alone is ambiguous", hint=HINT)
    return topic


def _uuid(hw: Store, topic: str) -> str:
    try:
        return hw.directory.topic(topic).uuid
    except NotFound:
        return ""
